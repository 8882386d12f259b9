//! Every code that a server's answer can have, on the product's supervisor: a server refuses calls with it for ten
//! minutes, and then answers again.
//!
//! No task tries too often meanwhile. A task stops only by a code that stops tasks. After the refusal the other tasks
//! recover by themselves, the stopped ones by a restart, and the derived rows equal the source's within a minute. Each
//! process believes that it holds its leases, and there is no other fault. Lanes run on targets of rows, and on targets
//! of documents where a target refuses.

#![expect(clippy::unwrap_used, reason = "the whole file is a test")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anabranch_connectors::memory::{
    Group, MemoryCache, MemoryMapping, Refused, ScriptedRow, StoreKind, Weather,
};
use anabranch_pipeline::composition;
use anabranch_pipeline::deliver::Shared;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::lookup::{Drain, drain};
use anabranch_pipeline::records::TimeToLive;
use anabranch_pipeline::supervise::{Ready, Supervisor, TaskHandle, TaskState, TaskStates, under_lease};
use anabranch_schemas::birthday::Layout;
use anabranch_schemas::change::Value;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::process::{Process, ProcessLeases};
use crate::script;
use crate::stage::{SOURCE_NAMES, Stage, lane_id, lanes_of, limits};

const MINUTE: Duration = Duration::from_secs(60);
/// Most attempts of a task in a minute, once its pauses have grown (`retry.rs`: 38 to 58 s).
const ATTEMPTS_A_MINUTE: u32 = 2;
/// Time of a refusal.
const REFUSED_FOR: Duration = Duration::from_secs(600);
/// Minutes at its end in which attempts are counted.
const COUNTED_MINUTES: u32 = 2;
/// Longest time until the derived rows equal the source's: the longest pause, and time to work.
const BACK_WITHIN: Duration = MINUTE;
/// Longest time until every task runs: a task without work shows that it is well some seconds after its attempt began.
const RUNNING_WITHIN: Duration = Duration::from_secs(75);
const TIME: TimeToLive = TimeToLive { full: MINUTE, empty: MINUTE };

/// The servers that can answer a code; none for a code that arises in a process of its own or in a command.
pub fn servers(code: Code) -> &'static [Refused] {
    match code {
        Code::ConfigUnreadable
        | Code::ConfigInvalid
        | Code::FileUnwritable
        | Code::ReconcileRefused
        | Code::HistoryBroken
        | Code::ReplayRefused
        | Code::BeginAnewRefused
        | Code::RemoveRefused
        | Code::RefreshRefused
        | Code::DispatchRefused
        | Code::ListenFailed => &[],
        // Any call can show a defect.
        Code::Internal => &[
            Refused::Source,
            Refused::Log,
            Refused::Appends,
            Refused::Target,
            Refused::Flushes,
            Refused::Cache,
        ],
        _ => match code.as_str().split('-').next().unwrap() {
            "source" | "binlog" => &[Refused::Source],
            "log" | "lease" => &[Refused::Log, Refused::Appends],
            "target" => &[Refused::Target, Refused::Flushes],
            "cache" => &[Refused::Cache],
            // Codes in answers to a request of the HTTP API or to a command. `uuids-exhausted` also stops a task: its
            // clock is wrong, and `uuids.rs` has a test of that.
            "lookup" | "search" | "route" | "method" | "tokens" | "token" | "operator" | "too" | "timed"
            | "body" | "content" | "uuids" | "count" | "key" | "code" | "flux" | "plan" => &[],
            // The coupon day has twins of its own, and a year on them.
            "coupon" => &[],
            kind => {
                panic!("no server of the run answers {code}: say which one does, or that none does ({kind})")
            }
        },
    }
}

/// The stores on which the refusals of a server are run.
pub fn kinds(server: Refused) -> &'static [StoreKind] {
    match server {
        Refused::Target | Refused::Flushes => &[StoreKind::Rows, StoreKind::Documents],
        _ => &[StoreKind::Rows],
    }
}

/// Runs a world to its end.
pub fn in_virtual_time(world: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O");
    runtime.block_on(world);
}

/// The tasks of one source, and a drain, under the product's supervisor.
pub struct Tasks {
    pub stage: Arc<Stage>,
    pub mapping: MemoryMapping,
    pub states: TaskStates,
    supervisor: Supervisor,
    attempts: BTreeMap<String, Arc<AtomicU32>>,
}

impl Tasks {
    pub fn start(kind: StoreKind) -> Self {
        let limits = limits(100, 10, Duration::from_secs(3600));
        let stage = Stage::new(Weather::calm(), kind, Layout::ByDay, limits, false);
        let weather = stage.weather.clone();
        let states = TaskStates::default();
        let supervisor = Supervisor::new(states.clone(), CancellationToken::new(), MINUTE);
        let mapping = MemoryMapping::new(weather.clone());
        let stage = Arc::new(stage);
        let mut process =
            Self { stage: stage.clone(), mapping, states, supervisor, attempts: BTreeMap::new() };
        process.spawn("reader", move |handle, cancel| {
            let stage = stage.clone();
            async move {
                let shared = Shared::new(2);
                let process = Process::new(&stage, stage.fields(), &shared, ProcessLeases::Believed);
                composition::read(&process, SOURCE_NAMES[0], &handle, &cancel).await
            }
        });
        let shared = Arc::new(Shared::new(2));
        for lane in lanes_of(0) {
            let (stage, shared) = (process.stage.clone(), shared.clone());
            process.spawn(&format!("lane {}", lane_id(lane)), move |handle, cancel| {
                let (stage, shared) = (stage.clone(), shared.clone());
                async move {
                    let process = Process::new(&stage, stage.fields(), &shared, ProcessLeases::Believed);
                    composition::apply(&process, &lane_id(lane), &handle, &cancel).await
                }
            });
        }
        let (cache, mapping) = (MemoryCache::new(weather), process.mapping.clone());
        process.spawn("drain", move |handle, cancel| {
            let (cache, mapping) = (cache.clone(), mapping.clone());
            async move {
                let work = async |ready: Ready| {
                    let work =
                        Drain { cache: &cache, outbox: &mapping, mapping: &mapping, time_to_live: TIME };
                    drain(work, |_| ready.report(), &cancel).await
                };
                under_lease(&ProcessLeases::Believed, &handle, &cancel, work).await
            }
        });
        process
    }

    /// Spawns a task and counts its attempts.
    fn spawn<R>(
        &mut self,
        name: &str,
        attempt: impl Fn(TaskHandle, CancellationToken) -> R + Send + Sync + 'static,
    ) where
        R: Future<Output = Result<(), Fault>> + Send + 'static,
    {
        let attempts = Arc::new(AtomicU32::new(0));
        self.attempts.insert(name.to_owned(), attempts.clone());
        self.supervisor.spawn(name, move |handle: TaskHandle, cancel: CancellationToken| {
            attempts.fetch_add(1, Ordering::Relaxed);
            attempt(handle, cancel)
        });
    }

    /// Inserts a user who was born on the first of January.
    pub fn insert(&self, user: u64) {
        let row = vec![Value::UInt(user), Value::Date { year: 1992, month: 1, day: 1 }];
        let row = ScriptedRow { table: script::table(0), before: None, after: Some(row) };
        self.stage.sources[0].commit(Group::Rows(vec![vec![row]]));
    }

    pub fn attempts(&self) -> BTreeMap<String, u32> {
        self.attempts.iter().map(|(name, count)| (name.clone(), count.load(Ordering::Relaxed))).collect()
    }

    pub fn in_state(&self, state: TaskState) -> Vec<String> {
        let states = self.states.snapshot();
        states.into_iter().filter(|(_, status)| status.state == state).map(|(name, _)| name).collect()
    }

    /// Waits until this number of users is derived and every task runs.
    pub async fn equal(&self, users: usize, what: &str) {
        let began = Instant::now();
        loop {
            let (found, states) = (self.stage.found().len(), self.states.snapshot());
            let limit = if found == users { RUNNING_WITHIN } else { BACK_WITHIN };
            if found == users && self.in_state(TaskState::Running).len() == self.attempts.len() {
                return;
            }
            assert!(began.elapsed() < limit, "{what}: {found} of {users} derived rows, {states:?}");
            sleep(Duration::from_millis(200)).await;
        }
    }
}

/// One refusal, from its beginning until its tasks have recovered.
async fn refused(kind: StoreKind, server: Refused, code: Code) {
    let what = format!("{code} of {server:?}, {kind:?}");
    let process = Tasks::start(kind);
    process.insert(1);
    process.equal(1, &what).await;
    process.stage.weather.refuse(Some((server, code)));
    process.insert(2);
    // The flush makes the drain ask its servers; it touches no code.
    process.mapping.flush(Vec::new());
    sleep(REFUSED_FOR - COUNTED_MINUTES * MINUTE).await;
    let before = process.attempts();
    sleep(COUNTED_MINUTES * MINUTE).await;
    for (task, attempts) in process.attempts() {
        let late = attempts - before[&task];
        let most = COUNTED_MINUTES * ATTEMPTS_A_MINUTE;
        assert!(late <= most, "{what}: {late} attempts of {task} in {COUNTED_MINUTES} minutes");
    }
    let stopped = process.in_state(TaskState::Stopped);
    assert_eq!(!stopped.is_empty(), code.stops(), "{what}: {stopped:?}");
    let failing = process.in_state(TaskState::Retrying);
    assert!(!stopped.is_empty() || !failing.is_empty(), "{what}: no task met it");
    process.stage.weather.refuse(None);
    process.insert(3);
    assert!(stopped.iter().all(|task| process.states.restart(task)), "{what}: {stopped:?}");
    process.equal(3, &what).await;
}

#[test]
fn whatever_a_server_answers_its_tasks_are_back_when_it_answers_again() {
    for code in Code::ALL {
        for server in servers(*code) {
            for kind in kinds(*server) {
                in_virtual_time(refused(*kind, *server, *code));
            }
        }
    }
}
