//! A source row that changes while it is checked. A transaction may delete it and insert it again as it was, as REPLACE
//! does: both reads of the source agree, and a lane may be half way between them. Or it moves between both reads and
//! back before the next ones: it differs in the same way each time, and only the second read shows it.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anabranch_connectors::memory::{
    Group, MemoryRows, MemorySource, MemoryTarget, ScriptedRow, SnapshotView,
};
use anabranch_pipeline::composition::ProjectionLanes;
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::{DerivedRowQuery, DerivedRows};
use anabranch_pipeline::reconcile::{
    CandidateBatch, LaneWait, Recheck, Sides, SourceKey, SourceTable, Verdict,
};
use anabranch_pipeline::records::{Cell, Claimed, DerivedRow, ScanCursor};
use anabranch_schemas::birthday::Layout;
use anabranch_schemas::change::Value;
use anabranch_schemas::shard::ShardId;
use tokio::time::sleep;

use crate::daemon::Daemon;
use crate::script;
use crate::stage::{SOURCE_NAMES, Stage, limits};

const WAIT_MAX: Duration = Duration::from_secs(60);

/// The birthday of the row, and the birthday to which it moves.
const DAYS: [u8; 2] = [3, 4];

/// Derived rows that change when they are queried.
struct Disturbed {
    rows: MemoryRows,
    by: Disturbance,
}

enum Disturbance {
    Nothing,
    /// A lane has deleted them and not inserted them again, in the given number of first queries.
    HalfWay(AtomicUsize),
    /// The source row has moved, and moves back after the second read.
    ThereAndBack(MemorySource),
}

impl DerivedRows for Disturbed {
    async fn page(
        &self,
        table: u32,
        shards: RangeInclusive<ShardId>,
        after: Option<&ScanCursor>,
        limit: NonZeroUsize,
        visit: &mut (dyn FnMut(DerivedRow<'_>) + Send),
    ) -> Result<Option<ScanCursor>, Fault> {
        self.rows.page(table, shards, after, limit, visit).await
    }

    async fn rows(
        &self,
        sought: &[DerivedRowQuery],
        visit: &mut (dyn FnMut(Claimed<'_>) + Send),
    ) -> Result<(), Fault> {
        match &self.by {
            Disturbance::Nothing => self.rows.rows(sought, visit).await,
            Disturbance::HalfWay(times) => {
                let left = times.load(Ordering::SeqCst);
                times.store(left.saturating_sub(1), Ordering::SeqCst);
                if left > 0 { Ok(()) } else { self.rows.rows(sought, visit).await }
            }
            Disturbance::ThereAndBack(_) if sought.is_empty() => Ok(()),
            Disturbance::ThereAndBack(source) => {
                source.commit(row(Some(DAYS[0]), DAYS[1]));
                while self.stand(sought).await? {
                    sleep(Duration::from_millis(100)).await;
                }
                let source = source.clone();
                tokio::spawn(async move {
                    sleep(Duration::from_millis(500)).await;
                    source.commit(row(Some(DAYS[1]), DAYS[0]));
                });
                Ok(())
            }
        }
    }
}

impl Disturbed {
    async fn stand(&self, sought: &[DerivedRowQuery]) -> Result<bool, Fault> {
        let mut stand = false;
        self.rows.rows(sought, &mut |_| stand = true).await?;
        Ok(stand)
    }
}

/// A group that writes the row, with the birthday that it had before.
fn row(before: Option<u8>, after: u8) -> Group {
    let row = |day| vec![Value::UInt(1), Value::Date { year: 1990, month: 1, day }];
    Group::Rows(vec![vec![ScriptedRow {
        table: script::table(0),
        before: before.map(row),
        after: Some(row(after)),
    }]])
}

/// The verdict of a reconciliation on a right row.
async fn judged(by: impl Fn(&MemorySource) -> Disturbance) -> Verdict {
    judged_after(async |_, _| (), by).await
}

/// The verdict on the row after an event of the source and its daemon.
async fn judged_after(
    event: impl AsyncFnOnce(&Stage, &mut Option<Daemon>),
    by: impl Fn(&MemorySource) -> Disturbance,
) -> Verdict {
    let stage = Arc::new(Stage::calm(Layout::ByDay, limits(1024, 10, WAIT_MAX)));
    let table = script::table(0);
    stage.sources[0].commit(row(None, DAYS[0]));
    let mut daemon = Some(Daemon::start(&stage, None));
    while stage.found().is_empty() {
        sleep(Duration::from_millis(100)).await;
    }
    event(&stage, &mut daemon).await;
    let projection = stage.projection();
    let sources: BTreeMap<String, Arc<MemorySource>> =
        [(SOURCE_NAMES[0].to_owned(), Arc::new(stage.sources[0].clone()))].into();
    let disturbed = |target: &MemoryTarget| {
        Arc::new(Disturbed { rows: target.derived(projection), by: by(&stage.sources[0]) })
    };
    let sides = Sides {
        projection: projection.clone(),
        replicated: BTreeSet::new(),
        primaries: sources.clone(),
        sources,
        targets: stage.targets.iter().map(disturbed).collect(),
        audit: None,
    };
    let shard = table.shard;
    let tables = [(shard, SourceTable { source: SOURCE_NAMES[0].to_owned(), identity: table })].into();
    let lane_wait = LaneWait::new(WAIT_MAX);
    let process = stage.comparing();
    let lanes = ProjectionLanes { connectors: &process, projection: "birthday" };
    let recheck = Recheck { sides: &sides, lanes: &lanes, tables: &tables, lane_wait: &lane_wait };
    let key = SourceKey { shard, key: Cell::UInt(1) };
    let judged = recheck.judge(CandidateBatch::from([(key.clone(), BTreeSet::new())])).await;
    if let Some(daemon) = daemon {
        daemon.stop().await;
    }
    judged.expect("nothing fails here").verdicts[&key].0
}

async fn judged_half_way(times: usize) -> Verdict {
    judged(|_| Disturbance::HalfWay(AtomicUsize::new(times))).await
}

#[tokio::test(start_paused = true)]
async fn what_is_found_half_way_once_is_no_drift() {
    assert_eq!(judged_half_way(1).await, Verdict::InFlight);
}

#[tokio::test(start_paused = true)]
async fn what_stays_wrong_is_drift() {
    assert_eq!(judged_half_way(usize::MAX).await, Verdict::Missing);
}

#[tokio::test(start_paused = true)]
async fn what_moves_between_two_looks_and_back_each_time_is_no_drift() {
    assert_eq!(judged(|source| Disturbance::ThereAndBack(source.clone())).await, Verdict::Hot);
}

/// The read sees a move that no lane has applied, as none runs; its low watermark is below the move.
#[tokio::test(start_paused = true)]
async fn what_a_look_saw_above_its_low_watermark_is_waited_for() {
    let event = async |stage: &Stage, daemon: &mut Option<Daemon>| {
        daemon.take().expect("it runs").stop().await;
        stage.sources[0].show(SnapshotView { unseen: 0, below: Some(1) });
        stage.sources[0].commit(row(Some(DAYS[0]), DAYS[1]));
    };
    assert_eq!(judged_after(event, |_| Disturbance::Nothing).await, Verdict::Unreadable);
}

/// The lane has applied a move that no read sees, though each is below the high watermark of both.
#[tokio::test(start_paused = true)]
async fn what_lies_above_a_low_watermark_may_be_unseen() {
    let event = async |stage: &Stage, _: &mut Option<Daemon>| {
        stage.sources[0].show(SnapshotView { unseen: 1, below: Some(0) });
        let before = stage.found();
        stage.sources[0].commit(row(Some(DAYS[0]), DAYS[1]));
        while stage.found() == before {
            sleep(Duration::from_millis(100)).await;
        }
    };
    assert_eq!(judged_after(event, |_| Disturbance::Nothing).await, Verdict::Hot);
}
