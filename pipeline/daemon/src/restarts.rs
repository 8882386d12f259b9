//! Restarts on request: in every process through a register in the log's bucket, in one by SIGHUP.
//!
//! Each process reads the register regularly, and tries again the stopped and pausing tasks that were requested since
//! its first read. It leaves a working task alone.

use std::collections::VecDeque;
use std::time::Duration;

use anabranch_connectors::refusals;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::Registers;
use anabranch_pipeline::retry::again;
use anabranch_pipeline::supervise::TaskStates;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::coupons;
use crate::task_names::{MINT_TASK, cache_task, lane_task, reader_task, sweep_task};
use crate::wiring::{Wiring, lanes};

/// The key of the register.
const KEY: &str = "restarts";
/// Time between two reads of the register, for which a person waits.
const CHECK_INTERVAL: Duration = Duration::from_secs(3);
/// Requests that the register holds: far more than are made between two reads.
const REQUESTS_MAX: usize = 100;

/// Requested restarts, the newest last.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Requests {
    requests: VecDeque<Request>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Request {
    /// One more than the number of the request before it.
    number: u64,
    /// Name of the task; `None` = all tasks.
    task: Option<String>,
}

impl Requests {
    /// Parses the value of the register; an unreadable value counts as no requests.
    fn of(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    fn newest(&self) -> u64 {
        self.requests.back().map_or(0, |request| request.number)
    }

    fn add(&mut self, task: Option<&str>) -> u64 {
        let number = self.newest() + 1;
        self.requests.push_back(Request { number, task: task.map(str::to_owned) });
        while self.requests.len() > REQUESTS_MAX {
            self.requests.pop_front();
        }
        number
    }
}

/// Asks every process to try a task again, or all of them; returns the number of the request.
pub async fn request_restart(registers: &impl Registers, task: Option<&str>) -> Result<u64, Fault> {
    again(async || {
        let known = registers.read(KEY).await?;
        let mut requests = Requests::of(&known.value);
        let number = requests.add(task);
        let text = serde_json::to_string(&requests).expect("numbers and texts are always JSON");
        registers.compare_and_set(KEY, &known, text).await?;
        Ok(number)
    })
    .await
}

/// Returns the number of the newest request; 0 = there was none.
pub async fn newest_request(registers: &impl Registers) -> Result<u64, Fault> {
    Ok(Requests::of(&registers.read(KEY).await?.value).newest())
}

/// Refuses the name of a task that no process of this configuration has.
pub fn require_task(wiring: &Wiring, task: &str) -> Result<(), Fault> {
    let config = wiring.config();
    let mut names: Vec<String> = config.sources.iter().map(|source| reader_task(&source.name)).collect();
    names.extend(lanes(config).iter().map(lane_task));
    names.extend(config.caches.iter().map(|cache| cache_task(&cache.name)));
    names.extend(wiring.all_documents().map(|documents| sweep_task(&documents.projection)));
    names.extend(wiring.retaining_projections().map(sweep_task));
    names.extend([crate::reconciliations::SCHEDULED, MINT_TASK].map(str::to_owned));
    if config.coupon_system.is_some() {
        let programmes = coupons::programmes(config).unwrap_or_default();
        names.extend(programmes.iter().map(|programme| coupons::dispatcher_task(&programme.name)));
        names.push(coupons::GRANTER_TASK.to_owned());
    }
    if names.iter().any(|name| name == task) {
        return Ok(());
    }
    Err(Fault::new(Code::ConfigInvalid, format!("task {task}"), "the configuration has no task of this name")
        .needs(format!("one of {}", names.join(", "))))
}

/// Takes SIGHUP from now on, so that it no longer ends the process.
pub fn hang_ups() -> Result<Signal, Fault> {
    signal(SignalKind::hangup()).map_err(|error| {
        Fault::new(Code::Internal, "signals", "no handler could be installed").caused_by(error)
    })
}

/// Carries out the requests, until `cancel`.
pub async fn run(wiring: Wiring, states: TaskStates, mut hang_ups: Signal, cancel: CancellationToken) {
    let mut seen = None;
    let mut ticks = tokio::time::interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let next_read = async {
            ticks.tick().await;
            wiring.log().await?.read(KEY).await
        };
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = hang_ups.recv() => {
                refusals::forget();
                tracing::info!(
                    signal = "SIGHUP", tasks = states.restart_all(),
                    "stopped and waiting tasks are tried again"
                );
            }
            read = next_read => match read {
                Ok(register) => seen = Some(follow(&Requests::of(&register.value), seen, &states)),
                Err(fault) => tracing::debug!(%fault, "the register of restarts could not be read"),
            },
        }
    }
}

/// Restarts the tasks of requests after the number `seen`; returns the newest number. Requests of the first read are
/// past.
fn follow(requests: &Requests, seen: Option<u64>, states: &TaskStates) -> u64 {
    let newest = requests.newest();
    let since = seen.unwrap_or(newest);
    for request in requests.requests.iter().filter(|request| request.number > since) {
        refusals::forget();
        let tasks = match &request.task {
            Some(task) => usize::from(states.restart(task)),
            None => states.restart_all(),
        };
        tracing::info!(task = request.task, tasks, "a restart was asked for");
    }
    newest
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use anabranch_pipeline::supervise::{Supervisor, TaskHandle};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_request_behind_the_first_look_is_done_once_in_every_process() {
        let (states, tries) = (TaskStates::default(), Arc::new(AtomicU32::new(0)));
        let mut supervisor =
            Supervisor::new(states.clone(), CancellationToken::new(), Duration::from_secs(60));
        let counted = tries.clone();
        supervisor.spawn("reader/a", move |_: TaskHandle, _| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { Err(Fault::new(Code::SourceDiverged, "source a", "it lacks transactions")) }
        });
        let (mut requests, mut seen) = (Requests::default(), None);
        requests.add(Some("reader/a"));
        // The request before the first read is past. Then this task is requested, another, all, and this one.
        for (task, expected) in
            [(None, 1), (Some("reader/a"), 2), (Some("reader/b"), 2), (None, 3), (Some("reader/a"), 4)]
        {
            if seen.is_some() {
                requests.add(task);
            }
            seen = Some(follow(&requests, seen, &states));
            seen = Some(follow(&requests, seen, &states));
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(tries.load(Ordering::SeqCst), expected, "{requests:?}");
        }
        (0..200).for_each(|_| _ = requests.add(Some("reader/b")));
        let written = serde_json::to_string(&requests).unwrap();
        assert_eq!((Requests::of(&written).newest(), requests.requests.len()), (205, REQUESTS_MAX));
        assert_eq!(Requests::of("no register").newest(), 0);
    }
}
