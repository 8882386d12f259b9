//! A source row that a transaction deletes and inserts again as it was, as REPLACE does: both looks at the source agree,
//! and between them a lane may be half way.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anabranch_connectors::memory::{
    Group, Keeping, MemoryRows, MemorySource, MemoryTarget, ScriptedRow, Weather,
};
use anabranch_pipeline::deliver::{Cell, Claimed};
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::{ChunkKey, DerivedRows, Sought};
use anabranch_pipeline::reconcile::{Patience, Recheck, Sides, SourceKey, SourceTable, Verdict, Window};
use anabranch_schemas::birthday::Layout;
use anabranch_schemas::change::Value;
use anabranch_schemas::shard::ShardId;

use crate::daemon::Daemon;
use crate::script;
use crate::stage::{SOURCE_NAMES, Stage, limits};

const PATIENCE: Duration = Duration::from_secs(60);

/// Derived rows that a lane has deleted, and not inserted again, when they are asked for the first times.
struct HalfWay {
    rows: MemoryRows,
    times: AtomicUsize,
}

impl DerivedRows for HalfWay {
    async fn page(
        &self,
        table: u32,
        shards: RangeInclusive<ShardId>,
        after: Option<&ChunkKey>,
        limit: NonZeroUsize,
        visit: &mut (dyn FnMut(Claimed<'_>) + Send),
    ) -> Result<Option<ChunkKey>, Fault> {
        self.rows.page(table, shards, after, limit, visit).await
    }

    async fn rows(
        &self,
        sought: &[Sought],
        visit: &mut (dyn FnMut(Claimed<'_>) + Send),
    ) -> Result<(), Fault> {
        let left = self.times.load(Ordering::SeqCst);
        self.times.store(left.saturating_sub(1), Ordering::SeqCst);
        if left > 0 { Ok(()) } else { self.rows.rows(sought, visit).await }
    }
}

/// What a night says of a row that is right, when it finds its derived row gone so often.
async fn judged(times: usize) -> Verdict {
    let limits = limits(1024, 10, PATIENCE);
    let stage = Arc::new(Stage::new(Weather::calm(), Keeping::Rows, Layout::ByDay, limits, false));
    let birthday = Value::Date { year: 1990, month: 1, day: 3 };
    let (table, after) = (script::table(0), Some(vec![Value::UInt(1), birthday]));
    let row = ScriptedRow { table: table.clone(), before: None, after };
    stage.sources[0].commit(Group::Rows(vec![vec![row]]));
    let daemon = Daemon::start(&stage, None);
    while stage.found().is_empty() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let projection = stage.projection();
    let sources: BTreeMap<String, Arc<MemorySource>> =
        [(SOURCE_NAMES[0].to_owned(), Arc::new(stage.sources[0].clone()))].into();
    let half_way = |target: &MemoryTarget| {
        Arc::new(HalfWay { rows: target.derived(projection), times: AtomicUsize::new(times) })
    };
    let sides = Sides {
        projection: projection.clone(),
        replicated: BTreeSet::new(),
        primaries: sources.clone(),
        sources,
        targets: stage.targets.iter().map(half_way).collect(),
        audit: None,
    };
    let shard = table.shard;
    let tables = [(shard, SourceTable { source: SOURCE_NAMES[0].to_owned(), identity: table })].into();
    let patience = Patience::new(PATIENCE);
    let recheck = Recheck { sides: &sides, lanes: &*stage, tables: &tables, patience: &patience };
    let key = SourceKey { shard, key: Cell::UInt(1) };
    let judged = recheck.judge(Window::from([(key.clone(), BTreeSet::new())])).await;
    daemon.stop().await;
    judged.expect("nothing fails here").verdicts[&key].0
}

#[tokio::test(start_paused = true)]
async fn what_is_found_half_way_once_is_no_drift() {
    assert_eq!(judged(1).await, Verdict::InFlight);
}

#[tokio::test(start_paused = true)]
async fn what_stays_wrong_is_drift() {
    assert_eq!(judged(usize::MAX).await, Verdict::Missing);
}
