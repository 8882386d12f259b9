//! Runs named tasks independently: a task that fails is tried again, and the others continue.
//!
//! Every failure (a fault, a panic) is followed by another attempt, with pauses that grow to a minute. Only a code with
//! [`Code::stops_after`] stops a task, until an operator asks for a restart. A stop protects nothing by itself, since
//! another process may try at once: each attempt proves its preconditions before it writes. `status`, readiness and the
//! metrics show the states.

mod held;
mod turns;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anabranch_schemas::lsn::Lsn;
use metrics::{counter, gauge};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use self::held::{
    HeldLeases, Ready, acquired, acquired_within, running, running_under, under_lease, unless_cancelled,
    while_held,
};
pub use self::turns::TURN_INTERVAL;
use crate::error::{Code, Fault};
use crate::metrics as names;
use crate::retry::Pauses;

/// Least time between two log lines of the same fault of a task; the later line says how often it came in between.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// State of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskState {
    /// The task waits for its servers and does not work yet, see [`TaskStatus::waits_for`].
    Waiting,
    Running,
    /// A fault that may pass ended the attempt; the task will be tried again.
    Retrying,
    /// A code that time does not mend stopped the task, until an operator asks for a restart.
    Stopped,
    /// Another process holds the task's lease and does the work; this process takes over when that one ends.
    Standby,
    /// An operator paused the task, until an operator resumes it.
    Paused,
}

impl TaskState {
    pub fn name(self) -> &'static str {
        match self {
            TaskState::Waiting => "getting-ready",
            TaskState::Running => "running",
            TaskState::Retrying => "retrying",
            TaskState::Stopped => "stopped",
            TaskState::Standby => "standby",
            TaskState::Paused => "paused",
        }
    }
}

/// A task's state and, unless the task runs, the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskStatus {
    pub state: TaskState,
    /// Code and one line of the last fault, kept until the task is well again.
    pub fault: Option<(Code, String)>,
    /// Time since which the task has not run; `None` while it runs.
    pub down_since: Option<Instant>,
    /// The task has been retrying for longer than the retry budget.
    pub lasting: bool,
    /// Server or lease that the attempt waits for until the task runs.
    pub waits_for: String,
    /// Thing that a part of the work waits for while the task runs.
    pub work_waits_for: Option<String>,
}

/// A task as the process shares it.
#[derive(Debug)]
struct ObservedTask {
    status: TaskStatus,
    /// Ends the task's pause, or its stop.
    restart: Arc<Notify>,
    /// Time of the last turn of the task's loop; `None` once the task has ended.
    turned_at: Option<Instant>,
}

/// The states of all tasks, for parts that show them or ask for a restart.
#[derive(Debug, Clone, Default)]
pub struct TaskStates(Arc<Mutex<BTreeMap<String, ObservedTask>>>);

impl TaskStates {
    pub fn snapshot(&self) -> BTreeMap<String, TaskStatus> {
        self.lock().iter().map(|(name, seen)| (name.clone(), seen.status.clone())).collect()
    }

    /// Tries the task again at once if it has stopped or pauses; returns whether it did.
    pub fn restart(&self, task: &str) -> bool {
        self.lock().get(task).is_some_and(ObservedTask::restart)
    }

    /// Tries all tasks again at once that have stopped or pause; returns how many.
    pub fn restart_all(&self) -> usize {
        self.lock().values().filter(|seen| seen.restart()).count()
    }

    /// Returns the handle of a task that runs without a supervisor.
    pub fn handle(&self, task: &str) -> TaskHandle {
        self.set(task, TaskState::Waiting, None, false);
        TaskHandle { name: task.into(), states: self.clone(), position: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, ObservedTask>> {
        // No code under this lock leaves it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, task: &str, state: TaskState, fault: Option<(Code, String)>, lasting: bool) {
        let mut states = self.lock();
        let seen = states.entry(task.to_owned()).or_insert_with(|| ObservedTask {
            status: TaskStatus {
                state,
                fault: None,
                down_since: Some(now()),
                lasting: false,
                waits_for: "the log".to_owned(),
                work_waits_for: None,
            },
            restart: Arc::default(),
            turned_at: Some(now()),
        });
        let status = &mut seen.status;
        status.down_since = match state {
            TaskState::Running => None,
            _ => status.down_since.or_else(|| Some(now())),
        };
        if matches!(state, TaskState::Running | TaskState::Standby | TaskState::Paused) {
            if let Some((code, _)) = status.fault.take() {
                tracing::info!(task, %code, "the task works again");
            }
        } else if fault.is_some() {
            status.fault = fault;
        }
        status.state = state;
        status.lasting = lasting;
        gauge!(names::TASK_STATE, "task" => task.to_owned()).set(state as u8 as f64);
    }

    fn status(&self, task: &str) -> Option<TaskStatus> {
        self.lock().get(task).map(|seen| seen.status.clone())
    }

    fn wait_for(&self, task: &str, what: String) -> Option<TaskState> {
        let mut states = self.lock();
        let status = &mut states.get_mut(task)?.status;
        status.waits_for = what;
        Some(status.state)
    }

    fn restarts(&self, task: &str) -> Arc<Notify> {
        self.lock().get(task).map(|seen| seen.restart.clone()).unwrap_or_default()
    }
}

impl ObservedTask {
    fn restart(&self) -> bool {
        let is_due = matches!(self.status.state, TaskState::Retrying | TaskState::Stopped);
        if is_due {
            self.restart.notify_one();
        }
        is_due
    }
}

/// The runtime's clock, which tests set forward.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// The handle by which a task reports its state.
#[derive(Debug, Clone)]
pub struct TaskHandle {
    name: Arc<str>,
    states: TaskStates,
    /// Position that the last attempt has reached.
    position: Arc<AtomicU64>,
}

impl TaskHandle {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reports that the task's servers have answered. A task that had failed is shown as retrying until it is
    /// [`Self::well`]: otherwise a failure after the first answers would look like work, and be retried without pauses.
    fn begun(&self) {
        if self.states.status(&self.name).is_none_or(|status| status.fault.is_none()) {
            self.well();
        }
    }

    /// Reports that the task has done some of its work: the next failure is a new one.
    pub fn well(&self) {
        self.states.set(&self.name, TaskState::Running, None, false);
    }

    /// Records the position that the attempt has reached.
    pub fn reached(&self, position: Lsn) {
        self.position.store(position.as_u64(), Ordering::Relaxed);
    }

    /// Reports that another process holds the task's lease and works.
    pub fn standby(&self) {
        self.states.set(&self.name, TaskState::Standby, None, false);
    }

    /// Reports that an operator paused the task: it waits, and works when it is resumed.
    pub fn paused(&self) {
        self.states.set(&self.name, TaskState::Paused, None, false);
    }

    /// Names the server or lease that the attempt waits for. A standby that gets so far is none any more.
    pub fn waits_for(&self, what: impl Into<String>) {
        let state = self.states.wait_for(&self.name, what.into());
        if matches!(state, Some(TaskState::Standby | TaskState::Paused)) {
            self.waiting();
        }
    }

    /// Names the thing that a part of the work waits for, though the task runs and is in order; `None` ends that.
    pub fn work_waits_for(&self, what: Option<String>) {
        if let Some(task) = self.states.lock().get_mut(&*self.name) {
            task.status.work_waits_for = what;
        }
    }

    /// Reports that the task has lost its lease and waits for it again, without its supervisor.
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
    /// Tasks that have neither ended nor stopped.
    at_work: watch::Sender<usize>,
}

impl Supervisor {
    /// Creates a group whose tasks stop when `cancel` is cancelled. Groups that share `states` are shown together.
    pub fn new(states: TaskStates, cancel: CancellationToken, retry_budget: Duration) -> Self {
        let at_work = watch::Sender::new(0);
        Self { tasks: JoinSet::new(), names: Vec::new(), states, cancel, retry_budget, at_work }
    }

    /// Runs `attempt` again and again until it ends well or is cancelled. A stopped task waits for a restart.
    pub fn spawn<F, R>(&mut self, name: &str, attempt: F)
    where
        F: Fn(TaskHandle, CancellationToken) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), Fault>> + Send + 'static,
    {
        let handle = self.states.handle(name);
        self.names.push(name.to_owned());
        let supervision = Supervision {
            handle,
            cancel: self.cancel.clone(),
            retry_budget: self.retry_budget,
            pauses: Pauses::default(),
            repeats: RepeatedFaults::default(),
            fault_log: FaultLog::default(),
        };
        let at_work = AtWork::of(&self.at_work);
        self.tasks.spawn(supervision.run(attempt, at_work));
    }

    /// Runs attempts as [`Self::spawn`] does. Each attempt gets a clone of `context`.
    pub fn spawn_with<C, F, R>(&mut self, name: &str, context: C, attempt: F)
    where
        C: Clone + Send + Sync + 'static,
        F: Fn(C, TaskHandle, CancellationToken) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), Fault>> + Send + 'static,
    {
        self.spawn(name, move |handle: TaskHandle, cancel: CancellationToken| {
            attempt(context.clone(), handle, cancel)
        });
    }

    /// Whether each of the group's tasks has stopped.
    pub fn are_stopped(&self) -> bool {
        let states = self.states.snapshot();
        self.names
            .iter()
            .all(|name| states.get(name).is_some_and(|status| status.state == TaskState::Stopped))
    }

    /// Resolves when each task has ended or stopped.
    pub async fn finished(&self) {
        _ = self.at_work.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Whether each task has ended or stopped.
    pub fn is_finished(&self) -> bool {
        *self.at_work.borrow() == 0
    }

    /// Cancels the group, waits until `deadline` and aborts tasks that have not ended by then. Returns whether all
    /// ended.
    pub async fn stop(&mut self, deadline: tokio::time::Instant) -> bool {
        self.cancel.cancel();
        let joined = async { while self.tasks.join_next().await.is_some() {} };
        let ended = tokio::time::timeout_at(deadline, joined).await.is_ok();
        self.tasks.shutdown().await;
        ended
    }
}

/// Counts a task that has neither ended nor stopped.
struct AtWork(watch::Sender<usize>);

impl AtWork {
    fn of(count: &watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count.clone())
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Number of attempts in a row that ended with the same code at the same position.
#[derive(Debug, Default)]
struct RepeatedFaults {
    last: Option<(Code, u64)>,
    count: u32,
}

impl RepeatedFaults {
    fn count(&mut self, code: Code, position: u64) -> u32 {
        let this = Some((code, position));
        self.count = if self.last == this { self.count + 1 } else { 1 };
        self.last = this;
        self.count
    }
}

/// Time of the last log line of each code, and how often the code came since.
#[derive(Debug, Default)]
struct FaultLog(HashMap<Code, (tokio::time::Instant, u32)>);

impl FaultLog {
    /// Counts a fault; returns how often its code came since its last log line, this time included. `None`: no new line
    /// yet.
    fn again(&mut self, code: Code) -> Option<u32> {
        let now = tokio::time::Instant::now();
        let (at, count) = self.0.entry(code).or_insert((now, 0));
        *count += 1;
        if *count > 1 && now.duration_since(*at) < LOG_INTERVAL {
            return None;
        }
        let came = if now == *at { 1 } else { *count - 1 };
        (*at, *count) = (now, 1);
        Some(came)
    }
}

/// Reason for which a pause ends before its time.
enum Resumed {
    Cancelled,
    Restarted,
}

/// One task's attempts.
struct Supervision {
    handle: TaskHandle,
    cancel: CancellationToken,
    retry_budget: Duration,
    pauses: Pauses,
    repeats: RepeatedFaults,
    fault_log: FaultLog,
}

impl Supervision {
    async fn run<F, R>(mut self, attempt: F, at_work: AtWork)
    where
        F: Fn(TaskHandle, CancellationToken) -> R,
        R: Future<Output = Result<(), Fault>> + Send + 'static,
    {
        let _watched = self.handle.watched();
        let (count, mut at_work) = (at_work.0.clone(), Some(at_work));
        let restart = self.handle.states.restarts(self.handle.name());
        loop {
            let Err(fault) = one_attempt(&self.handle, &attempt, &self.cancel).await else { return };
            if self.cancel.is_cancelled() {
                tracing::info!(task = self.handle.name(), %fault, "stopped");
                return;
            }
            let pause = self.failed(&fault);
            if pause.is_none() {
                at_work = None;
            }
            let paused = async {
                tokio::select! {
                    () = self.cancel.cancelled() => Some(Resumed::Cancelled),
                    () = restart.notified() => Some(Resumed::Restarted),
                    () = tokio::time::sleep(pause.unwrap_or_default()), if pause.is_some() => None,
                }
            };
            match self.handle.clone().turning(paused).await {
                Some(Resumed::Cancelled) => return,
                Some(Resumed::Restarted) => self.restarted(),
                None => {}
            }
            at_work.get_or_insert_with(|| AtWork::of(&count));
        }
    }

    /// Shows the fault that ended an attempt. Returns the pause before the next attempt; `None` when the task stops.
    fn failed(&mut self, fault: &Fault) -> Option<Duration> {
        let (code, task) = (fault.code(), self.handle.name().to_owned());
        counter!(names::FAULTS, "task" => task.clone(), "code" => code.as_str()).increment(1);
        let position = self.handle.position.load(Ordering::Relaxed);
        let repeats = self.repeats.count(code, position);
        if code.stops_after().is_some_and(|most| repeats >= most) {
            let remedy =
                format!("the task does not try again by itself; after the repair: anabranch restart {task}");
            tracing::error!(task, %fault, "stopped: {remedy}");
            let shown = Some((code, format!("{fault}; stopped: {remedy}")));
            self.handle.states.set(&task, TaskState::Stopped, shown, true);
            return None;
        }
        counter!(names::RETRIES, "code" => code.as_str()).increment(1);
        let down = self.handle.states.status(&task).and_then(|status| status.down_since);
        if down.is_none() {
            self.pauses = Pauses::default();
        }
        let lasting = down.is_some_and(|since| now().duration_since(since) > self.retry_budget);
        self.handle.states.set(&task, TaskState::Retrying, Some((code, fault.to_string())), lasting);
        let pause = self.pauses.following();
        match self.fault_log.again(code) {
            Some(times) => {
                let pause_ms = pause.as_millis() as u64;
                tracing::warn!(task, %fault, times, pause_ms, lasting, "the attempt failed and is tried again");
            }
            None => tracing::debug!(task, %fault, "the attempt failed and is tried again"),
        }
        Some(pause)
    }

    fn restarted(&mut self) {
        (self.pauses, self.repeats) = (Pauses::default(), RepeatedFaults::default());
        let task = self.handle.name();
        tracing::info!(task, "restarted as asked");
        self.handle.states.set(task, TaskState::Retrying, None, false);
    }
}

/// Runs one attempt in a separate task, so that a panic becomes a fault and does not end the process.
async fn one_attempt<R>(
    handle: &TaskHandle,
    attempt: impl Fn(TaskHandle, CancellationToken) -> R,
    cancel: &CancellationToken,
) -> Result<(), Fault>
where
    R: Future<Output = Result<(), Fault>> + Send + 'static,
{
    let mut task = JoinSet::new();
    // On the heap: an attempt is large, and each future around it would move it over the stack once more.
    let work = Box::pin(attempt(handle.clone(), cancel.clone()));
    let handle_of_work = handle.clone();
    task.spawn(async move { handle_of_work.turning(work).await });
    match task.join_next().await {
        Some(Ok(result)) => result,
        Some(Err(error)) if error.is_panic() => {
            Err(Fault::new(Code::Internal, format!("task {}", handle.name()), "it panicked (see the log)"))
        }
        _ => Err(Fault::new(Code::Internal, format!("task {}", handle.name()), "it was aborted")),
    }
}

#[cfg(test)]
mod tests;
