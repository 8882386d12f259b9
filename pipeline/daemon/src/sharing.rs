//! Several daemons share readers and lanes: one that holds more than its part gives some back, so that a daemon that
//! starts later gets its part within a minute.
//!
//! Each process raises its own number in a register of the log's bucket. One whose number stays the same is gone, and
//! one whose number has not moved yet takes no part: it may have ended before this process began, and tasks that were
//! given back to it would stand still. No clock is compared with another process's. Leases decide which process works;
//! the numbers show which has too much.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::Registers;
use anabranch_pipeline::retry::again;
use anabranch_pipeline::supervise::{TaskState, TaskStates};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::roles::Role;
use crate::wiring::Wiring;

/// The key of the register.
const KEY: &str = "members";
/// Intervals without a new number after which a process is gone.
const INTERVALS_UNTIL_GONE: u32 = 4;
/// Divisor of a surplus for one interval: all of it is given back within some intervals, and never all at once.
const SURPLUS_PARTS: usize = 4;
/// Time for which a task that no process took is not given back again.
const KEPT_FOR: Duration = Duration::from_secs(600);
/// Time for which a process leaves a task alone that it gave back.
pub const STAND_BACK: Duration = Duration::from_secs(5);

/// Kinds of tasks that are shared out: the beginning of their names, and their role.
const KINDS: [(&str, Role); 2] = [("reader/", Role::Reader), ("lane/", Role::Projector)];

/// Asks tasks of this process to give their leases back.
#[derive(Debug, Clone, Default)]
pub struct Yields(Arc<Mutex<BTreeMap<String, Arc<Notify>>>>);

impl Yields {
    fn notify_of(&self, task: &str) -> Arc<Notify> {
        // No code under this lock leaves it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(task.to_owned()).or_default().clone()
    }

    /// Resolves when the task is asked during this wait.
    pub async fn requested(&self, task: &str) {
        self.notify_of(task).notified().await;
    }

    fn request(&self, task: &str) {
        self.notify_of(task).notify_waiters();
    }
}

/// The processes that share the work.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Members {
    members: BTreeMap<String, Member>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Member {
    beats: u64,
    /// The kinds of tasks that it takes.
    kinds: Vec<String>,
}

impl Members {
    /// Parses the value of the register; an unreadable value counts as no members.
    fn of(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    fn of_kind(&self, kind: &str) -> usize {
        self.members.values().filter(|member| member.kinds.iter().any(|known| known == kind)).count()
    }
}

/// Last number of each process and the time of its change, by the clock of this process.
#[derive(Debug, Default)]
struct MemberSightings(BTreeMap<String, Sighting>);

#[derive(Debug)]
struct Sighting {
    beats: u64,
    at: Instant,
    has_moved: bool,
}

impl MemberSightings {
    fn record(&mut self, members: &Members, now: Instant) {
        self.0.retain(|id, _| members.members.contains_key(id));
        for (id, member) in &members.members {
            let first = Sighting { beats: member.beats, at: now, has_moved: false };
            let seen = self.0.entry(id.clone()).or_insert(first);
            if seen.beats != member.beats {
                *seen = Sighting { beats: member.beats, at: now, has_moved: true };
            }
        }
    }

    fn is_gone(&self, id: &str, now: Instant, after: Duration) -> bool {
        self.0.get(id).is_some_and(|seen| now.duration_since(seen.at) > after)
    }

    /// Returns whether the process has counted while this one looked.
    fn has_moved(&self, id: &str) -> bool {
        self.0.get(id).is_some_and(|seen| seen.has_moved)
    }
}

/// One process among those that share the work.
struct Sharer {
    id: String,
    kinds: Vec<String>,
    interval: Duration,
    seen: MemberSightings,
    /// Time at which this process gave each task back.
    given_back: BTreeMap<String, Instant>,
}

/// Gives back surplus tasks, every interval, until `cancel`.
pub fn run(
    wiring: &Wiring,
    states: &TaskStates,
    yields: &Yields,
    roles: &[Role],
    cancel: &CancellationToken,
) -> impl Future<Output = ()> + 'static {
    let kinds = KINDS.iter().filter(|(_, role)| roles.contains(role)).map(|(kind, _)| (*kind).to_owned());
    let sharer = wiring.config().rebalance_interval.map(|interval| Sharer {
        id: format!("{:016x}", rand::random::<u64>()),
        kinds: kinds.collect(),
        interval,
        seen: MemberSightings::default(),
        given_back: BTreeMap::new(),
    });
    let (wiring, states, yields, cancel) =
        (wiring.clone(), states.clone(), yields.clone(), cancel.child_token());
    async move {
        if let Some(sharer) = sharer {
            share(sharer, &wiring, &states, &yields, &cancel).await;
        }
    }
}

async fn share(
    mut sharer: Sharer,
    wiring: &Wiring,
    states: &TaskStates,
    yields: &Yields,
    cancel: &CancellationToken,
) {
    let interval = sharer.interval;
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let turn = async {
            ticks.tick().await;
            sharer.count(wiring.log().await?, Instant::now()).await
        };
        tokio::select! {
            () = cancel.cancelled() => return,
            counted = turn => match counted {
                Ok(members) => {
                    let tasks = states.snapshot().into_iter().map(|(task, status)| (task, status.state));
                    for task in sharer.surplus(&members, &tasks.collect(), Instant::now()) {
                        tracing::info!(task, "another process has fewer tasks: this one gives the task back");
                        yields.request(&task);
                    }
                }
                Err(fault) => tracing::debug!(%fault, "the processes that share the work could not be counted"),
            },
        }
    }
}

impl Sharer {
    /// Counts this process and forgets processes that are gone; returns the ones that take part.
    async fn count(&mut self, registers: &impl Registers, now: Instant) -> Result<Members, Fault> {
        let gone_after = self.interval * INTERVALS_UNTIL_GONE;
        let (id, kinds, seen) = (&self.id, &self.kinds, Mutex::new(&mut self.seen));
        again(async || {
            let known = registers.read(KEY).await?;
            let mut members = Members::of(&known.value);
            {
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.record(&members, now);
                members.members.retain(|other, _| other == id || !seen.is_gone(other, now, gone_after));
            }
            let new = || Member { beats: 0, kinds: kinds.clone() };
            members.members.entry(id.clone()).or_insert_with(new).beats += 1;
            let text = serde_json::to_string(&members).expect("numbers and texts are always JSON");
            registers.compare_and_set(KEY, &known, text).await?;
            let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            members.members.retain(|other, _| other == id || seen.has_moved(other));
            Ok(members)
        })
        .await
    }

    /// Returns the tasks that are to be given back now.
    fn surplus(
        &mut self,
        members: &Members,
        tasks: &BTreeMap<String, TaskState>,
        now: Instant,
    ) -> Vec<String> {
        self.given_back.retain(|_, at| now.duration_since(*at) < KEPT_FOR);
        let mut surplus = Vec::new();
        for kind in &self.kinds {
            let of_kind = || tasks.iter().filter(|(task, _)| task.starts_with(kind));
            let held: Vec<&String> =
                of_kind().filter(|(_, state)| **state == TaskState::Running).map(|(task, _)| task).collect();
            let all = of_kind().filter(|(_, state)| **state != TaskState::Paused).count();
            let share = all.div_ceil(members.of_kind(kind).max(1));
            let too_many = held.len().saturating_sub(share).div_ceil(SURPLUS_PARTS);
            let free = held.into_iter().rev().filter(|task| !self.given_back.contains_key(*task));
            surplus.extend(free.take(too_many).cloned());
        }
        self.given_back.extend(surplus.iter().map(|task| (task.clone(), now)));
        surplus
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(5);

    fn sharer(id: &str) -> Sharer {
        let kinds = KINDS.iter().map(|(kind, _)| (*kind).to_owned()).collect();
        let (seen, given_back) = (MemberSightings::default(), BTreeMap::new());
        Sharer { id: id.to_owned(), kinds, interval: INTERVAL, seen, given_back }
    }

    fn members(ids: &[&str]) -> Members {
        let kinds: Vec<String> = KINDS.iter().map(|(kind, _)| (*kind).to_owned()).collect();
        let member = |id: &&str| ((*id).to_owned(), Member { beats: 1, kinds: kinds.clone() });
        Members { members: ids.iter().map(member).collect() }
    }

    fn running(tasks: &[&str]) -> BTreeMap<String, TaskState> {
        tasks.iter().map(|task| ((*task).to_owned(), TaskState::Running)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_too_much_is_given_back_in_parts_and_not_twice() {
        let mut sharer = sharer("a");
        let lanes: Vec<String> = (0..20).map(|lane| format!("lane/{lane:02}")).collect();
        let names: Vec<&str> = lanes.iter().map(String::as_str).chain(["reader/s", "uuids"]).collect();
        let mut tasks = running(&names);
        let now = Instant::now();
        assert_eq!(sharer.surplus(&members(&["a"]), &tasks, now), [""; 0], "alone it has all");
        let given = sharer.surplus(&members(&["a", "b"]), &tasks, now);
        assert_eq!(given, ["lane/19", "lane/18", "lane/17"], "10 are too many; one reader is no surplus");
        let given = sharer.surplus(&members(&["a", "b"]), &tasks, now);
        assert_eq!(given, ["lane/16", "lane/15", "lane/14"], "those that nobody took are left alone");
        tasks.retain(|task, _| !task.starts_with("lane/1"));
        assert_eq!(sharer.surplus(&members(&["a", "b"]), &tasks, now), ["lane/09", "lane/08"]);
        let paused: Vec<_> = tasks.keys().filter(|task| *task < &"lane/05".to_owned()).cloned().collect();
        for task in paused {
            tasks.insert(task, TaskState::Paused);
        }
        assert_eq!(sharer.surplus(&members(&["a", "b"]), &tasks, now), ["lane/07"], "2 of 5 that move");
        let later = now + KEPT_FOR;
        assert_eq!(sharer.surplus(&members(&["a", "b"]), &tasks, later), ["lane/09"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_counts_no_more_is_gone_after_some_intervals_of_this_ones_clock() {
        let mut seen = MemberSightings::default();
        let (now, gone_after) = (Instant::now(), INTERVAL * INTERVALS_UNTIL_GONE);
        let mut all = members(&["a", "b"]);
        seen.record(&all, now);
        all.members.get_mut("a").unwrap().beats += 1;
        let later = now + gone_after + Duration::from_millis(1);
        seen.record(&all, later);
        assert!(seen.has_moved("a") && !seen.has_moved("b"), "it may have ended before this process began");
        assert!(seen.is_gone("b", later, gone_after));
        assert!(!seen.is_gone("a", later, gone_after));
        assert_eq!(Members::of("no register").of_kind("lane/"), 0);
    }
}
