//! Runs named tasks, each on its own: one that fails is retried or stopped, the others go on.
//!
//! A transient fault or a bug (also a panic) is retried with growing pauses; a definite fault that comes back within an
//! hour stops the task and stays visible with its code. (Once is not enough: a process that was frozen may find that a place
//! which it had read from its progress is purged, while another one has long gone on.) The states are what `status`,
//! readiness and the metrics show.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use backoff::backoff::Backoff;
use metrics::{counter, gauge};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::error::{Class, Code, Fault};
use crate::metrics as names;
use crate::retry::{self, PAUSE_MAX};

/// What is definite is met again at once, since the task goes on where it stopped. What comes back later is another
/// matter: a process that is frozen once a week is not broken.
const DEFINITE_WITHIN: Duration = Duration::from_secs(3600);

/// What a task is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskState {
    /// Not working yet: waiting for its lease, or getting ready.
    Waiting,
    Running,
    /// Failed by something that may pass; it will be tried again.
    Retrying,
    /// Stopped by a definite fault, until an operator mends it and restarts.
    Stopped,
}

impl TaskState {
    pub fn name(self) -> &'static str {
        match self {
            TaskState::Waiting => "waiting",
            TaskState::Running => "running",
            TaskState::Retrying => "retrying",
            TaskState::Stopped => "stopped",
        }
    }
}

/// A task's state and, unless it runs, why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskStatus {
    pub state: TaskState,
    /// Code and one line of the last fault; kept while retrying, cleared when running again.
    pub fault: Option<(Code, String)>,
    /// Since when it has not run; `None` while running.
    pub down_since: Option<Instant>,
    /// It has been retrying for longer than the retry budget.
    pub lasting: bool,
}

type States = Arc<Mutex<BTreeMap<String, TaskStatus>>>;

/// The states of all tasks, for those who show them.
#[derive(Debug, Clone, Default)]
pub struct TaskStates(States);

impl TaskStates {
    pub fn snapshot(&self) -> BTreeMap<String, TaskStatus> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, task: &str, state: TaskState, fault: Option<(Code, String)>, lasting: bool) {
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let status = states.entry(task.to_owned()).or_insert(TaskStatus {
            state,
            fault: None,
            down_since: Some(Instant::now()),
            lasting: false,
        });
        status.down_since = match state {
            TaskState::Running => None,
            _ => status.down_since.or_else(|| Some(Instant::now())),
        };
        if state == TaskState::Running {
            status.fault = None;
        } else if fault.is_some() {
            status.fault = fault;
        }
        status.state = state;
        status.lasting = lasting;
        gauge!(names::TASK_STATE, "task" => task.to_owned()).set(state as u8 as f64);
    }
}

/// A task's own voice.
#[derive(Debug, Clone)]
pub struct TaskHandle {
    name: Arc<str>,
    states: TaskStates,
}

impl TaskHandle {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The task is at work; pauses start small again.
    pub fn running(&self) {
        self.states.set(&self.name, TaskState::Running, None, false);
    }

    /// The task has lost its lease and waits for it again, without its supervisor.
    pub fn waiting(&self) {
        self.states.set(&self.name, TaskState::Waiting, None, false);
    }
}

/// A group of tasks that stops together.
#[derive(Debug)]
pub struct Supervisor {
    tasks: JoinSet<()>,
    names: Vec<String>,
    states: TaskStates,
    cancel: CancellationToken,
    retry_budget: Duration,
}

impl Supervisor {
    /// Tasks stop when `cancel` is cancelled. Groups that share `states` are shown together.
    pub fn new(states: TaskStates, cancel: CancellationToken, retry_budget: Duration) -> Self {
        Self { tasks: JoinSet::new(), names: Vec::new(), states, cancel, retry_budget }
    }

    /// Runs `attempt` again and again until it ends well, is cancelled or meets a definite fault.
    pub fn spawn<A>(&mut self, name: &str, attempt: A)
    where
        A: AsyncAttempt,
    {
        let handle = TaskHandle { name: name.into(), states: self.states.clone() };
        self.states.set(name, TaskState::Waiting, None, false);
        self.names.push(name.to_owned());
        self.tasks.spawn(supervise(handle, attempt, self.cancel.clone(), self.retry_budget));
    }

    /// Whether each of its tasks was stopped by a definite fault.
    pub fn are_stopped(&self) -> bool {
        let states = self.states.snapshot();
        self.names
            .iter()
            .all(|name| states.get(name).is_some_and(|status| status.state == TaskState::Stopped))
    }

    /// Resolves when no task is left.
    pub async fn finished(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    /// Cancels the group and waits until `deadline`; what has not ended by then is aborted. Returns whether all ended.
    pub async fn stop(&mut self, deadline: tokio::time::Instant) -> bool {
        self.cancel.cancel();
        let ended = tokio::time::timeout_at(deadline, self.finished()).await.is_ok();
        self.tasks.shutdown().await;
        ended
    }
}

/// One attempt of a task. Implemented by functions `Fn(TaskHandle, CancellationToken) -> Future`.
pub trait AsyncAttempt: Send + Sync + 'static {
    fn start(
        &self,
        handle: TaskHandle,
        cancel: CancellationToken,
    ) -> impl Future<Output = Result<(), Fault>> + Send + 'static;
}

impl<F, R> AsyncAttempt for F
where
    F: Fn(TaskHandle, CancellationToken) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), Fault>> + Send + 'static,
{
    fn start(
        &self,
        handle: TaskHandle,
        cancel: CancellationToken,
    ) -> impl Future<Output = Result<(), Fault>> + Send + 'static {
        self(handle, cancel)
    }
}

async fn supervise(
    handle: TaskHandle,
    attempt: impl AsyncAttempt,
    cancel: CancellationToken,
    retry_budget: Duration,
) {
    let mut pauses = retry::pauses();
    let mut definite = None;
    loop {
        let fault = match one_attempt(&handle, &attempt, &cancel).await {
            Ok(()) => return,
            Err(fault) => fault,
        };
        if cancel.is_cancelled() {
            tracing::info!(task = handle.name(), %fault, "stopped");
            return;
        }
        counter!(names::FAULTS, "task" => handle.name().to_owned(), "code" => fault.code().as_str())
            .increment(1);
        let shown = Some((fault.code(), fault.to_string()));
        let now = tokio::time::Instant::now();
        let is_definite = fault.class() == Class::Definite;
        let before = std::mem::replace(&mut definite, is_definite.then(|| (fault.code(), now)));
        let comes_back = |(code, at): (Code, tokio::time::Instant)| {
            code == fault.code() && now.duration_since(at) < DEFINITE_WITHIN
        };
        if is_definite && before.is_some_and(comes_back) {
            tracing::error!(task = handle.name(), %fault, "stopped by a definite fault");
            handle.states.set(handle.name(), TaskState::Stopped, shown, true);
            return;
        }
        // A task that had worked starts with small pauses again.
        let down = handle.states.snapshot().get(handle.name()).and_then(|status| status.down_since);
        if down.is_none() {
            pauses = retry::pauses();
        }
        let lasting = down.is_some_and(|since| since.elapsed() > retry_budget);
        handle.states.set(handle.name(), TaskState::Retrying, shown, lasting);
        let pause = pauses.next_backoff().unwrap_or(PAUSE_MAX);
        tracing::warn!(task = handle.name(), %fault, pause_ms = pause.as_millis() as u64, lasting, "will try again");
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Runs one attempt in a task of its own, so that a panic is a fault and not the end of the process.
async fn one_attempt(
    handle: &TaskHandle,
    attempt: &impl AsyncAttempt,
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    let mut task = JoinSet::new();
    task.spawn(attempt.start(handle.clone(), cancel.clone()));
    match task.join_next().await {
        Some(Ok(result)) => result,
        Some(Err(error)) if error.is_panic() => {
            Err(Fault::new(Code::Internal, format!("task {}", handle.name()), "it panicked (see the log)"))
        }
        _ => Err(Fault::new(Code::Internal, format!("task {}", handle.name()), "it was aborted")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn supervisor() -> (Supervisor, TaskStates) {
        let states = TaskStates::default();
        (Supervisor::new(states.clone(), CancellationToken::new(), Duration::from_secs(60)), states)
    }

    #[tokio::test(start_paused = true)]
    async fn a_transient_fault_is_tried_again_and_a_definite_one_stops_only_its_task() {
        let (mut supervisor, states) = supervisor();
        let tries = Arc::new(AtomicU32::new(0));
        let counted = tries.clone();
        supervisor.spawn("flaky", move |handle: TaskHandle, _| {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            async move {
                if number < 3 {
                    Err(Fault::new(Code::LogUnreachable, "log", "down"))
                } else {
                    handle.running();
                    Ok(())
                }
            }
        });
        supervisor.spawn("broken", |_, _| async {
            Err(Fault::new(Code::SourceBinlogOff, "source a", "log_bin is OFF"))
        });
        supervisor.finished().await;
        assert_eq!(tries.load(Ordering::SeqCst), 4);
        let states = states.snapshot();
        assert_eq!(states["flaky"].state, TaskState::Running);
        assert_eq!(states["broken"].state, TaskState::Stopped);
        assert_eq!(states["broken"].fault.as_ref().map(|fault| fault.0), Some(Code::SourceBinlogOff));
    }

    #[tokio::test(start_paused = true)]
    async fn a_definite_fault_that_comes_back_after_long_work_is_tried_again() {
        let (mut supervisor, states) = supervisor();
        let tries = Arc::new(AtomicU32::new(0));
        let counted = tries.clone();
        supervisor.spawn("frozen at times", move |_, _| {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            async move {
                // A day of work between the first two; the third comes at once.
                tokio::time::sleep(Duration::from_secs(if number == 1 { 86_400 } else { 0 })).await;
                Err(Fault::new(Code::BinlogPurged, "source a", "binlog.000001 is gone"))
            }
        });
        supervisor.finished().await;
        assert_eq!(tries.load(Ordering::SeqCst), 3);
        assert_eq!(states.snapshot()["frozen at times"].state, TaskState::Stopped);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_a_bug_of_one_task_and_is_tried_again() {
        let (mut supervisor, _) = supervisor();
        let tries = Arc::new(AtomicU32::new(0));
        let counted = tries.clone();
        supervisor.spawn("panics", move |_, _| {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            async move {
                assert!(number > 0, "the first attempt panics");
                Ok(())
            }
        });
        supervisor.finished().await;
        assert_eq!(tries.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn stop_waits_for_the_tasks_but_not_beyond_the_deadline() {
        let (mut supervisor, _) = supervisor();
        supervisor.spawn("orderly", |_, cancel: CancellationToken| async move {
            cancel.cancelled().await;
            Ok(())
        });
        assert!(supervisor.stop(tokio::time::Instant::now() + Duration::from_secs(1)).await);
        let (mut supervisor, _) = self::supervisor();
        supervisor.spawn("stuck", |_, _| std::future::pending());
        assert!(!supervisor.stop(tokio::time::Instant::now() + Duration::from_secs(1)).await);
    }
}
