//! A process: every reader and lane, each made by the product's composition and under its lease.
//!
//! The product's supervisor chooses its pauses at random, and a seed must be replayed. So here the attempts follow one
//! another, and an operator follows the runbook. `codes.rs` tests the supervisor itself.

use std::sync::Arc;
use std::time::Duration;

use anabranch_connectors::memory::{Freezer, MemoryLeases};
use anabranch_pipeline::composition;
use anabranch_pipeline::deliver::Shared;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::supervise::{TaskHandle, TaskStates};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::anew::begin_anew;
use crate::process::{Process, ProcessLeases};
use crate::refresh::refresh_all;
use crate::script::SOURCES;
use crate::stage::{DIRECT_FEEDS, SOURCE_NAMES, Stage, lane_id, lanes_of};

const RETRY_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy)]
enum Work {
    Reader(usize),
    Lane(usize, usize, u32),
}

impl Work {
    fn all() -> impl Iterator<Item = Work> {
        let lanes = |source| lanes_of(source).map(|(source, target, lane)| Work::Lane(source, target, lane));
        (0..SOURCES).flat_map(move |source| std::iter::once(Work::Reader(source)).chain(lanes(source)))
    }

    fn name(self) -> String {
        match self {
            Work::Reader(source) => format!("reader {source}"),
            Work::Lane(source, target, lane) => format!("lane {source}/{target}/{lane}"),
        }
    }

    fn source(self) -> usize {
        match self {
            Work::Reader(source) | Work::Lane(source, ..) => source,
        }
    }
}

/// The parts of a process that a task needs.
struct Task {
    stage: Arc<Stage>,
    leases: ProcessLeases,
    shared: Arc<Shared>,
    work: Work,
    /// Number of a user's fields that its readers capture.
    fields: usize,
    cancel: CancellationToken,
}

/// A running process; dropping it kills it.
pub struct Daemon {
    tasks: JoinSet<()>,
    freezer: Freezer,
    cancel: CancellationToken,
}

impl Daemon {
    /// Starts a process; without `leases` every task believes that it holds its own.
    pub fn start(stage: &Arc<Stage>, leases: Option<&MemoryLeases>) -> Self {
        Self::start_capturing(stage, leases, stage.fields())
    }

    /// Starts a process with this number of captured fields of a user. With fewer fields than the projection reads, its
    /// configuration has no lanes of it.
    pub fn start_capturing(stage: &Arc<Stage>, leases: Option<&MemoryLeases>, fields: usize) -> Self {
        let freezer = Freezer::default();
        let (mut tasks, cancel) = (JoinSet::new(), CancellationToken::new());
        let shared: Vec<_> = (0..SOURCES).map(|_| Arc::new(Shared::new(DIRECT_FEEDS))).collect();
        let has = |work: &Work| fields >= stage.fields() || matches!(work, Work::Reader(_));
        for work in Work::all().filter(has) {
            let leases = match leases {
                Some(leases) => ProcessLeases::Kept(leases.of_process(freezer.clone())),
                None => ProcessLeases::Believed,
            };
            let shared = shared[work.source()].clone();
            let task = Task { stage: stage.clone(), leases, shared, work, fields, cancel: cancel.clone() };
            let freezer = freezer.clone();
            tasks.spawn(async move { freezer.run(task.supervise()).await });
        }
        Self { tasks, freezer, cancel }
    }

    pub fn is_frozen(&self) -> bool {
        self.freezer.is_frozen()
    }

    /// Stops the process as SIGSTOP does, or resumes it.
    pub fn set_frozen(&self, frozen: bool) {
        self.freezer.set(frozen);
    }

    /// Ends the process by an orderly stop.
    pub async fn stop(mut self) {
        self.cancel.cancel();
        self.set_frozen(false);
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Faults that no refresh repairs.
fn is_of_lost_history(code: Code) -> bool {
    matches!(code, Code::SourceServerChanged | Code::SourceDiverged)
}

impl Task {
    async fn supervise(self) {
        let handle = TaskStates::default().handle(&self.work.name());
        let mut repeats = (None, 0);
        loop {
            let outcome = self.attempt(&handle).await;
            let Err(fault) = outcome else { return };
            self.stage.log_line(|| format!("{}: {fault}", self.work.name()));
            if self.cancel.is_cancelled() {
                return;
            }
            let code = fault.code();
            repeats = (Some(code), if repeats.0 == Some(code) { repeats.1 + 1 } else { 1 });
            if code == Code::LogEpochReused {
                // Wipes the log: this remedy ends the fault for every later message too.
                self.stage.log.wipe(SOURCE_NAMES[self.work.source()]);
            } else if self.stage.has_disasters && is_of_lost_history(code) {
                tokio::select! {
                    biased;
                    () = self.cancel.cancelled() => return,
                    () = begin_anew(&self.stage, self.work.source()) => {}
                }
            } else if self.stage.by_text && code.is_mended_by_refresh() {
                // The remedy is a refresh, and then a restart.
                tokio::select! {
                    biased;
                    () = self.cancel.cancelled() => return,
                    () = refresh_all(&self.stage, self.work.source()) => {}
                }
            } else if code.stops_after().is_some_and(|most| repeats.1 >= most) {
                let mut stopped = self.stage.stopped.lock().expect("nothing panics in here");
                stopped.push(format!("{}: {fault}", self.work.name()));
                return;
            }
            tokio::select! {
                biased;
                () = self.cancel.cancelled() => return,
                () = tokio::time::sleep(RETRY_PAUSE) => {}
            }
        }
    }

    async fn attempt(&self, handle: &TaskHandle) -> Result<(), Fault> {
        let process = Process::new(&self.stage, self.fields, &self.shared, self.leases.clone());
        match self.work {
            Work::Reader(source) => {
                Box::pin(composition::read(&process, SOURCE_NAMES[source], handle, &self.cancel)).await
            }
            Work::Lane(source, target, lane) => {
                let id = lane_id((source, target, lane));
                Box::pin(composition::apply(&process, &id, handle, &self.cancel)).await
            }
        }
    }
}
