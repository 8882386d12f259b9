//! One reconciliation on twins without faults: the conditions that hold it, the limits of its repairs, and its progress
//! in short windows.

#![expect(clippy::unwrap_used, reason = "the whole file is a test")]

use std::collections::{BTreeSet, HashMap};
use std::num::{NonZeroU64, NonZeroUsize};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_connectors::memory::{Group, MemoryStore, ScriptedRow};
use anabranch_pipeline::composition::{EitherStore, ProjectionLanes};
use anabranch_pipeline::config::reconcile::{Mode, PressureLimits, ReconcileSettings};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{LaneStore as _, Lanes};
use anabranch_pipeline::reconcile::{
    Checkpoint, LaneWait, Reconciliation, SourceKey, SourceTable, StoreReport, StoreState, Verdict,
};
use anabranch_pipeline::records::{Cell, Flush, LaneId, Outcome, Progress};
use anabranch_schemas::change::Value;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::process::Process;
use crate::replay::NOBODY;
use crate::script;
use crate::spot_checks::{minutes, owner, run, sides, stage};
use crate::stage::Stage;

/// Limit of the lag of replicas and lanes.
const LIMIT: Duration = Duration::from_secs(5);
/// Longest time for which lanes may stand still.
const LANE_WAIT: Duration = Duration::from_secs(30);
/// Rows read in a second, where time is to pass.
const RATE: u64 = 20;

/// Inserts users who were born on the first of January.
pub fn insert(stage: &Stage, shard: usize, users: Range<u64>) {
    let row = |user| vec![Value::UInt(user), Value::Date { year: 1992, month: 1, day: 1 }];
    let rows =
        users.map(|user| ScriptedRow { table: script::table(shard), before: None, after: Some(row(user)) });
    stage.sources[0].commit(Group::Rows(vec![rows.collect()]));
}

/// A stage with users in two tables of a source, all of them derived, and its tasks.
pub async fn filled(users: u64) -> (Arc<Stage>, Vec<JoinHandle<()>>) {
    let stage = stage();
    let tasks = run(&stage, None);
    (0..2).for_each(|shard| insert(&stage, shard, 0..users));
    minutes(1.0).await;
    assert_eq!(stage.found().len() as u64, 2 * users);
    (stage, tasks)
}

pub fn settings() -> ReconcileSettings {
    let limits = PressureLimits {
        rows_per_second: None,
        running_threads: NonZeroU64::new(10).unwrap(),
        replica_lag: LIMIT,
        lane_lag: LIMIT,
    };
    let memory = NonZeroUsize::new(1 << 20).unwrap();
    ReconcileSettings { mode: Mode::Repair, memory, gate_keys: u64::MAX, gate_share: 1.0, limits }
}

fn throttled(rows_per_second: u64) -> ReconcileSettings {
    let limits = PressureLimits { rows_per_second: NonZeroU64::new(rows_per_second), ..settings().limits };
    ReconcileSettings { limits, ..settings() }
}

/// State that outlives a window.
struct Saved<'s>(&'s mut StoreState);

impl Checkpoint for Saved<'_> {
    async fn store(&mut self, state: &StoreState) -> Result<(), Fault> {
        *self.0 = state.clone();
        Ok(())
    }
}

/// Lanes that refuse the first two requests each.
struct Refused<'a> {
    lanes: ProjectionLanes<'a, Process<'a>>,
    asked: Mutex<HashMap<LaneId, u32>>,
}

impl Lanes for Refused<'_> {
    type Store = EitherStore<MemoryStore, MemoryStore>;

    async fn progress(&self, source: &str) -> Result<Vec<(LaneId, Progress)>, Fault> {
        self.lanes.progress(source).await
    }

    async fn is_paused(&self, lane: &LaneId) -> bool {
        self.lanes.is_paused(lane).await
    }

    fn store(&self, lane: &LaneId) -> Result<Self::Store, Fault> {
        let mut asked = self.asked.lock().unwrap();
        let times = asked.entry(lane.clone()).or_default();
        *times += 1;
        match *times {
            ..=2 => {
                Err(Fault::new(Code::TargetUnreachable, format!("lane {lane}"), "its progress is locked"))
            }
            _ => self.lanes.store(lane),
        }
    }

    async fn ask_for_position(&self, source: &str) {
        self.lanes.ask_for_position(source).await;
    }
}

/// Continues the reconciliation until its end, or that of the window.
async fn reconciliation(
    stage: &Arc<Stage>,
    settings: &ReconcileSettings,
    saved: &mut StoreState,
    window: &CancellationToken,
) {
    let (sides, process) = (sides(stage), stage.comparing());
    let lanes = ProjectionLanes { connectors: &process, projection: "birthday" };
    let hash_key = |_: &SourceTable, key: &SourceKey| format!("{key:?}");
    let reconciliation = Reconciliation {
        sides: &sides,
        lanes: &lanes,
        settings,
        lane_wait: LaneWait::new(LANE_WAIT),
        hash_key: &hash_key,
        hash_foreign: &|shard, key| format!("{shard:?}:{key:?}"),
        uncaptured: &BTreeSet::new(),
    };
    let mut state = saved.clone();
    reconciliation.run(&mut state, &mut Saved(saved), window).await.unwrap();
}

/// Runs a reconciliation in a window without end.
pub async fn whole_reconciliation(stage: &Arc<Stage>, settings: &ReconcileSettings) -> StoreReport {
    let mut state = StoreState::new("birthday", 7);
    reconciliation(stage, settings, &mut state, &CancellationToken::new()).await;
    state.report
}

/// Deletes `lost` derived rows and reconciles; returns outcome, whether the gate closed, rows repaired and rows left.
async fn of_lost(lost: usize, gate_keys: u64, gate_share: f64) -> (Outcome, bool, u64, u64) {
    let (stage, tasks) = filled(500).await;
    stage.tamper(owner(&stage).1, |rows| {
        let all: Vec<_> = rows.keys().take(lost).cloned().collect();
        all.iter().for_each(|row| _ = rows.remove(row));
    });
    let report =
        whole_reconciliation(&stage, &ReconcileSettings { gate_keys, gate_share, ..settings() }).await;
    let stands = stage.found().len();
    assert_eq!(stands as u64, 1_000 - lost as u64 + report.repaired, "{report:?}");
    tasks.into_iter().for_each(|task| task.abort());
    (report.outcome(), report.is_gate_closed, report.repaired, report.left)
}

#[tokio::test(start_paused = true)]
async fn more_drift_than_the_gate_lets_pass_is_told_and_left() {
    // The gate counts keys.
    assert_eq!(of_lost(40, 40, 1.0).await, (Outcome::Repaired, false, 40, 0));
    assert_eq!(of_lost(41, 40, 1.0).await, (Outcome::Failed, true, 0, 41));
    // The gate takes the share of the rows that were read, for more than a hundred keys.
    assert_eq!(of_lost(100, 1_000, 0.05).await, (Outcome::Repaired, false, 100, 0));
    assert_eq!(of_lost(101, 1_000, 0.102).await, (Outcome::Repaired, false, 101, 0));
    assert_eq!(of_lost(101, 1_000, 0.1).await, (Outcome::Failed, true, 0, 101));
}

/// Little memory makes both sides be read in slices, so the derived rows of one source row are in several slices.
#[tokio::test(start_paused = true)]
async fn a_row_that_several_slices_list_is_counted_once() {
    let (stage, tasks) = filled(1).await;
    let (users, lane, shard) = (100, owner(&stage), script::table(0).shard);
    let tables: Vec<u32> = stage.owned(lane).iter().copied().take(2).collect();
    stage.tamper(lane.1, |rows| {
        for (user, of) in (NOBODY..NOBODY + users).flat_map(|user| tables.iter().map(move |of| (user, *of))) {
            let values = [Cell::Bytes(b"01-01".as_slice().into())].into();
            rows.insert((of, shard, [Cell::UInt(user)].into()), (Lsn::MAX, values));
        }
    });
    let memory = NonZeroUsize::new(1 << 13).unwrap();
    let report =
        whole_reconciliation(&stage, &ReconcileSettings { memory, gate_keys: users, ..settings() }).await;
    assert_eq!((report.of(Verdict::Orphan), report.drift.len()), (users, 100), "{report:?}");
    assert_eq!((report.outcome(), report.confirmed), (Outcome::Repaired, users), "{report:?}");
    assert_eq!(stage.found().len(), 2, "of both tables");
    tasks.into_iter().for_each(|task| task.abort());
}

/// Seconds that a throttled reconciliation takes beside this trouble.
async fn seconds_beside(stage: &Arc<Stage>, trouble: impl Future<Output = ()>) -> u64 {
    let settings = throttled(RATE);
    let working = async {
        let began = Instant::now();
        let report = whole_reconciliation(stage, &settings).await;
        assert_eq!(report.outcome(), Outcome::Clean, "{report:?}");
        began.elapsed().as_secs()
    };
    tokio::join!(working, trouble).0
}

#[tokio::test(start_paused = true)]
async fn a_reconciliation_waits_while_a_source_is_busy_or_a_replica_or_its_lanes_are_behind() {
    let (stage, mut tasks) = filled(100).await;
    let pressed = async |threads, lag| {
        stage.sources[0].press(threads, Some(lag));
        minutes(2.0).await;
        stage.sources[0].press(1, None);
    };
    let unheld = 9..15;
    let held = 115..135;
    assert!(unheld.contains(&seconds_beside(&stage, async {}).await));
    assert!(
        unheld.contains(&seconds_beside(&stage, pressed(10, LIMIT)).await),
        "up to the limit it does not wait"
    );
    assert!(held.contains(&seconds_beside(&stage, pressed(11, LIMIT)).await), "a source is busy");
    let lag = LIMIT + Duration::from_secs(1);
    assert!(held.contains(&seconds_beside(&stage, pressed(10, lag)).await), "a replica is behind");
    let frozen = async {
        tasks.drain(..).for_each(|task| task.abort());
        insert(&stage, 0, 0..1);
        minutes(2.0).await;
        tasks = run(&stage, None);
    };
    assert!(held.contains(&seconds_beside(&stage, frozen).await), "lanes are behind");

    // A lasting condition delays it at each part that it reads, and does not end it.
    stage.sources[0].press(11, None);
    let began = Instant::now();
    assert_eq!(whole_reconciliation(&stage, &throttled(1_000)).await.outcome(), Outcome::Clean);
    assert!((60..3_600).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    tasks.into_iter().for_each(|task| task.abort());
}

#[tokio::test(start_paused = true)]
async fn a_reconciliation_whose_windows_are_shorter_than_a_unit_gets_on_in_smaller_units() {
    let (stage, tasks) = filled(100).await;
    let (settings, mut state, mut windows) = (throttled(RATE), StoreState::new("birthday", 7), 0);
    while state.next.is_some() {
        windows += 1;
        assert!(windows < 10, "it never gets on");
        // Longer than one table takes, and shorter than both take.
        let window = CancellationToken::new();
        let closing = async {
            tokio::time::sleep(Duration::from_secs(7)).await;
            window.cancel();
        };
        tokio::join!(reconciliation(&stage, &settings, &mut state, &window), closing);
    }
    let report = state.report;
    assert_eq!((windows, report.outcome()), (3, Outcome::Clean), "{report:?}");
    assert_eq!(
        (report.tables, report.rows_source, report.rows_derived),
        (2, 200, 200),
        "each was counted once"
    );
    tasks.into_iter().for_each(|task| task.abort());
}

#[tokio::test(start_paused = true)]
async fn lanes_that_stand_still_are_waited_for_as_long_as_is_configured() {
    let (stage, mut tasks) = filled(100).await;
    for (still, user, outcome) in [(20, 200, Outcome::Clean), (40, 201, Outcome::Incomplete)] {
        tasks.drain(..).for_each(|task| task.abort());
        insert(&stage, 0, user..user + 1);
        let (settings, mut state, window) =
            (settings(), StoreState::new("birthday", 7), CancellationToken::new());
        let lanes = async {
            tokio::time::sleep(Duration::from_secs(still)).await;
            tasks = run(&stage, None);
        };
        tokio::join!(reconciliation(&stage, &settings, &mut state, &window), lanes);
        assert_eq!((state.report.outcome(), state.report.repaired), (outcome, 0), "{:?}", state.report);
        minutes(1.0).await;
        assert_eq!(stage.found().len() as u64, user + 1);
    }
    tasks.into_iter().for_each(|task| task.abort());
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_cannot_be_asked_for_a_repair_for_a_moment_is_asked_again() {
    let (stage, tasks) = filled(100).await;
    stage.tamper(owner(&stage).1, |rows| {
        rows.pop_first();
    });
    let (sides, settings, process) = (sides(&stage), settings(), stage.comparing());
    let lanes = ProjectionLanes { connectors: &process, projection: "birthday" };
    let lanes = Refused { lanes, asked: Mutex::default() };
    let hash_key = |_: &SourceTable, key: &SourceKey| format!("{key:?}");
    let lane_wait = LaneWait::new(LANE_WAIT);
    let hash_foreign = |shard: Option<u64>, key: &[Cell]| format!("{shard:?}:{key:?}");
    let reconciliation = Reconciliation {
        sides: &sides,
        lanes: &lanes,
        settings: &settings,
        lane_wait,
        hash_key: &hash_key,
        hash_foreign: &hash_foreign,
        uncaptured: &BTreeSet::new(),
    };
    let mut state = StoreState::new("birthday", 7);
    let mut saved = state.clone();
    reconciliation.run(&mut state, &mut Saved(&mut saved), &CancellationToken::new()).await.unwrap();
    let report = state.report;
    assert_eq!((report.outcome(), report.confirmed), (Outcome::Repaired, 1), "{report:?}");
    tasks.into_iter().for_each(|task| task.abort());
}

#[tokio::test(start_paused = true)]
async fn what_was_counted_of_a_unit_that_a_window_cuts_off_is_not_counted_twice() {
    let (stage, mut tasks) = filled(100).await;
    tasks.drain(..).for_each(|task| task.abort());
    insert(&stage, 0, 200..201);
    let (settings, mut state, window) =
        (settings(), StoreState::new("birthday", 7), CancellationToken::new());
    // The unit is scanned at once, and its one candidate waits for the lanes.
    let closing = async {
        tokio::time::sleep(LANE_WAIT / 3).await;
        window.cancel();
    };
    tokio::join!(reconciliation(&stage, &settings, &mut state, &window), closing);
    assert!(state.next.is_some(), "{:?}", state.report);
    let tasks = run(&stage, None);
    reconciliation(&stage, &settings, &mut state, &CancellationToken::new()).await;
    let report = state.report;
    assert_eq!((report.outcome(), report.tables, report.rows_source), (Outcome::Clean, 2, 201), "{report:?}");
    tasks.into_iter().for_each(|task| task.abort());
}

/// A table was dropped, and its lane removes the rows in parts. It does not run here.
#[tokio::test(start_paused = true)]
async fn rows_that_a_lane_is_still_to_remove_are_not_foreign() {
    let (stage, tasks) = filled(20).await;
    tasks.into_iter().for_each(|task| task.abort());
    let (lane, gone) = (owner(&stage), ShardId::from_u64(77).unwrap());
    let table = stage.owned(lane).iter().next().copied().unwrap();
    stage.tamper(lane.1, |rows| {
        let values = [Cell::Bytes(b"01-01".as_slice().into())].into();
        rows.insert((table, gone, [Cell::UInt(1)].into()), (Lsn::MAX, values));
    });
    let foreign = async || whole_reconciliation(&stage, &settings()).await.foreign_rows;
    assert_eq!(foreign().await, 1);
    let mut store = stage.store(lane);
    let before = store.load().await.unwrap();
    let (revision, withdrawals) = (before.revision + 1, "7:1:160=4d".parse().unwrap());
    store.commit(&Flush::new(Progress { revision, withdrawals, ..before })).await.unwrap();
    assert_eq!(foreign().await, 0);
}
