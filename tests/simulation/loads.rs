//! A lane that begins at the stream's end and reads its tables: no message that it takes holds an earlier change, so it
//! must not use a chunk from before that end.

#![expect(clippy::unwrap_used, reason = "the whole file is a test")]

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_connectors::memory::{
    Group, MemoryLog, MemorySource, MemoryStream, MemoryTarget, ScriptedRow, SnapshotView,
};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{
    BinlogPoint, BinlogStart, LaneStore, Located, RowSource, SourceConnector, SourcePressure, TableVisibility,
};
use anabranch_pipeline::projections::{Defects, LaneScope};
use anabranch_pipeline::records::{
    Cell, Chunk, Condition, Flush, Mutation, MutationAction, Progress, Refresh, ScanCursor, Scope,
};
use anabranch_schemas::birthday::Layout;
use anabranch_schemas::change::{Entity, TableIdentity, Value};
use anabranch_schemas::codec;
use anabranch_schemas::envelope::{CapturedFields, Envelope};
use anabranch_schemas::lsn::{FIRST_EPOCH, Lsn};
use anabranch_schemas::shard::ShardId;
use anabranch_schemas::timeline::Timeline;
use tokio::time::sleep;

use crate::one_lane::{self, OneLane, WAIT_MAX, append_changes, end, progress_at, project, twins};
use crate::{script, stage};

/// A source whose first chunk is an older one, as a snapshot is while a commit waits for an acknowledgement.
pub struct StaleSource {
    pub source: MemorySource,
    pub old: Mutex<Option<Chunk>>,
    /// A missing grant hides the first table.
    pub is_hidden: AtomicBool,
    /// The grant of every table is missing with it.
    pub hides_all: bool,
    /// The connection breaks once, as this table is read. Then the grant is there again.
    pub breaks_at: Mutex<Option<ShardId>>,
    /// A table that the source lists and of which it returns no chunk, and no proof that it is absent.
    pub unreadable: Mutex<Option<ShardId>>,
}

impl StaleSource {
    /// A source of which everything can be read.
    pub fn new(source: MemorySource) -> Self {
        let is_hidden = AtomicBool::new(false);
        let (old, breaks_at, unreadable) = Default::default();
        Self { source, old, is_hidden, hides_all: false, breaks_at, unreadable }
    }

    fn hides(&self, table: &TableIdentity<'_>) -> bool {
        self.is_hidden.load(Ordering::Relaxed) && (self.hides_all || *table == script::table(0))
    }
}

impl SourceConnector for StaleSource {
    type Source = MemoryStream;

    fn captured(&self) -> CapturedFields {
        self.source.captured()
    }

    async fn check(&self) -> Vec<Fault> {
        self.source.check().await
    }

    async fn open(
        &self,
        entry: BinlogStart,
        latest: &Timeline,
        replica_slot: u32,
    ) -> Result<MemoryStream, Fault> {
        self.source.open(entry, latest, replica_slot).await
    }

    async fn locate(&self, place: BinlogPoint, epoch: u16) -> Result<Located, Fault> {
        self.source.locate(place, epoch).await
    }

    async fn shards(&self) -> Result<Vec<ShardId>, Fault> {
        self.source.shards().await
    }

    async fn head(&self) -> Result<Lsn, Fault> {
        self.source.head().await
    }
}

impl RowSource for StaleSource {
    async fn tables(&self) -> Result<Vec<TableIdentity<'static>>, Fault> {
        let mut tables = self.source.tables().await?;
        tables.retain(|table| !self.hides(table));
        Ok(tables)
    }

    fn visit_likely_tables(&self, entity: Entity, visit: &mut dyn FnMut(&TableIdentity<'_>)) {
        self.source.visit_likely_tables(entity, visit);
    }

    async fn pressure(&self) -> Result<SourcePressure, Fault> {
        self.source.pressure().await
    }

    async fn replication_end(&self) -> Result<String, Fault> {
        self.source.replication_end().await
    }

    async fn has_replicated(&self, end: &str) -> Result<bool, Fault> {
        self.source.has_replicated(end).await
    }

    async fn chunk(
        &self,
        table: &TableIdentity<'static>,
        after: Option<&ScanCursor>,
        rows: NonZeroUsize,
        epoch: u16,
    ) -> Result<Chunk, Fault> {
        if *self.unreadable.lock().unwrap() == Some(table.shard) {
            sleep(Duration::from_secs(1)).await;
            return Err(Fault::new(Code::SourceGrantMissing, "a table", "the account may not read a column"));
        }
        if self.breaks_at.lock().unwrap().take_if(|shard| *shard == table.shard).is_some() {
            self.is_hidden.store(false, Ordering::Relaxed);
            return Err(Fault::new(Code::SourceUnreachable, "a source", "the connection broke"));
        }
        let old = self.old.lock().unwrap().take();
        match old {
            Some(old) => Ok(old),
            None => self.source.chunk(table, after, rows, epoch).await,
        }
    }

    async fn first_rows(&self, tables: &[TableIdentity<'static>], epoch: u16) -> Result<Chunk, Fault> {
        self.source.first_rows(tables, epoch).await
    }

    async fn page(
        &self,
        table: &TableIdentity<'static>,
        after: Option<&ScanCursor>,
        rows: NonZeroUsize,
        visit: &mut (dyn FnMut(&[Value<'_>]) + Send),
    ) -> Result<Option<ScanCursor>, Fault> {
        self.source.page(table, after, rows, visit).await
    }

    async fn matching(
        &self,
        table: &TableIdentity<'static>,
        condition: &Condition,
        after: Option<&ScanCursor>,
        rows: NonZeroUsize,
        epoch: u16,
    ) -> Result<Chunk, Fault> {
        let old = self.old.lock().unwrap().take();
        match old {
            Some(old) => Ok(old),
            None => self.source.matching(table, condition, after, rows, epoch).await,
        }
    }

    async fn rows(&self, keys: &[(TableIdentity<'static>, Vec<Cell>)], epoch: u16) -> Result<Chunk, Fault> {
        if keys.iter().any(|(table, _)| self.hides(table)) {
            return Err(Fault::new(Code::SourceGrantMissing, "a table", "the account may not read it"));
        }
        self.source.rows(keys, epoch).await
    }

    async fn visibility(&self, database: &str, table: &str) -> Result<TableVisibility, Fault> {
        let tables = self.source.tables().await?;
        let mut named = tables.iter().filter(|known| known.database == database && known.table == table);
        if named.any(|known| self.hides(known)) {
            let fault = Fault::new(Code::SourceGrantMissing, "a table", "the account may not read it");
            return Ok(TableVisibility::Hidden(fault));
        }
        self.source.visibility(database, table).await
    }

    async fn absence(&self, table: &TableIdentity<'static>, epoch: u16) -> Result<Option<Chunk>, Fault> {
        match self.hides(table) || *self.unreadable.lock().unwrap() == Some(table.shard) {
            true => Ok(None),
            false => self.source.absence(table, epoch).await,
        }
    }
}

pub fn insert(user: u64) -> Group {
    insert_into(script::table(0), user)
}

pub fn insert_into(table: TableIdentity<'static>, user: u64) -> Group {
    let day = Value::Date { year: 1990, month: 1, day: 3 };
    let after = Some(vec![Value::UInt(user), day]);
    Group::Rows(vec![vec![ScriptedRow { table, before: None, after }]])
}

pub async fn append(log: &MemoryLog, envelope: Envelope) {
    append_changes(log, envelope, codec::Encoder::default()).await;
}

/// Runs a lane with progress and without rows until it has refreshed `scope`, with the older chunk first. Returns the
/// users that it then has.
async fn refreshed(
    log: &MemoryLog,
    source: MemorySource,
    old: Chunk,
    begun: Located,
    scope: Scope,
    beside: impl AsyncFnOnce(&MemoryTarget),
) -> Vec<Cell> {
    let (id, target) = (one_lane::id("source-0"), one_lane::target());
    let mut store = target.lane(id.clone(), Arc::new([0].into()));
    let progress = Progress { refresh: Some(Refresh::new(scope)), ..progress_at(begun) };
    store.commit(&Flush::new(progress)).await.unwrap();
    let stale = StaleSource { old: Mutex::new(Some(old)), ..StaleSource::new(source) };
    let through = async {
        beside(&target).await;
        sleep(WAIT_MAX).await;
    };
    OneLane::new(&id, log, &stale).run(&mut store, project, through).await.unwrap();
    assert_eq!(target.progress("source-0")[&id].refresh, None, "it is through");
    assert!(stale.old.lock().unwrap().is_none(), "the older one was read");
    users(&target)
}

pub fn users(target: &MemoryTarget) -> Vec<Cell> {
    target.rows().into_keys().map(|(_, _, key)| key[0].clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_begins_at_the_streams_end_takes_no_chunk_from_before_it() {
    let (log, source) = twins();
    source.commit(insert(1));
    let begun = end(&source).await;
    let rows = NonZeroUsize::new(100).unwrap();
    let old = source.chunk(&script::table(0), None, rows, FIRST_EPOCH).await.unwrap();
    // The lane's next group is gone from the binlog, and is in no message either.
    source.rotate();
    source.commit(insert(2));
    let missed = source.head().await.unwrap();
    source.rotate();
    source.commit(Group::Rows(Vec::new()));
    source.purge([]);
    let Located { position, resume, server } = end(&source).await;
    append(&log, Envelope { previous: missed, position, resume, server, ..Envelope::default() }).await;
    assert!(old.low < missed && missed < position);
    let users = refreshed(&log, source, old, begun, Scope::Source, async |_| ()).await;
    assert_eq!(users, [Cell::UInt(1), Cell::UInt(2)]);
}

#[tokio::test(start_paused = true)]
async fn what_a_condition_finds_is_no_older_than_what_the_lane_has_applied() {
    let (log, source) = twins();
    let condition = || Condition::new(vec!["user_id >= 0".parse().unwrap()]).unwrap();
    source.commit(insert(1));
    let rows = NonZeroUsize::new(100).unwrap();
    let old = source.matching(&script::table(0), &condition(), None, rows, FIRST_EPOCH).await.unwrap();
    source.commit(insert(2));
    let begun = end(&source).await;
    let Located { position, resume, server } = begun.clone();
    append(&log, Envelope { origin: true, position, resume, server, ..Envelope::default() }).await;
    // Both rows were applied, and then deleted by hand.
    let users = refreshed(&log, source, old, begun, Scope::Where(None, condition()), async |_| ()).await;
    assert_eq!(users, [Cell::UInt(1), Cell::UInt(2)]);
}

/// Otherwise a later change would set the row back to a state from before the snapshot.
#[tokio::test(start_paused = true)]
async fn a_chunk_is_not_written_before_the_lane_has_all_that_it_may_hold() {
    let (log, source) = twins();
    source.commit(insert(1));
    let begun = end(&source).await;
    source.show(SnapshotView { unseen: 0, below: Some(1) });
    source.commit(insert(2));
    let rows = NonZeroUsize::new(100).unwrap();
    let chunk = source.chunk(&script::table(0), None, rows, FIRST_EPOCH).await.unwrap();
    assert_eq!((chunk.low, chunk.high), (begun.position, source.head().await.unwrap()));
    let high = end(&source).await;
    let message = |Located { position, resume, server }, previous, origin| {
        append(&log, Envelope { previous, origin, position, resume, server, ..Envelope::default() })
    };
    message(begun.clone(), Lsn::ZERO, true).await;
    let low = begun.position;
    let beside = async |target: &MemoryTarget| {
        sleep(WAIT_MAX).await;
        assert!(target.rows().is_empty(), "the lane is at the low watermark");
        message(high, low, false).await;
    };
    let users = refreshed(&log, source.clone(), chunk, begun, Scope::Source, beside).await;
    assert_eq!(users, [Cell::UInt(1), Cell::UInt(2)]);
}

/// An update that leaves a claim as it was is neither written nor noted. A claim that is noted and not written would be
/// in no chunk, and the sweep would take it.
#[tokio::test(start_paused = true)]
async fn a_claim_that_an_update_leaves_as_it_was_gets_the_version_of_the_chunk_on_its_way() {
    let (log, source) = twins();
    // The first derived table, of the first of January, is the lane's.
    let limits = stage::limits(1024, 10, WAIT_MAX);
    let projection = stage::Stage::calm(Layout::ByDay, limits).projection();
    let born = |year| vec![Value::UInt(1), Value::Date { year, month: 1, day: 1 }];
    let commit = |before, after| {
        let row = ScriptedRow { table: script::table(0), before, after: Some(after) };
        source.commit(Group::Rows(vec![vec![row]]));
    };
    commit(None, born(1990));
    let begun = end(&source).await;
    source.show(SnapshotView { unseen: 0, below: Some(1) });
    commit(Some(born(1990)), born(1991));
    let rows = NonZeroUsize::new(100).unwrap();
    let chunk = source.chunk(&script::table(0), None, rows, FIRST_EPOCH).await.unwrap();
    let (low, high) = (begun.position, end(&source).await);
    assert_eq!((chunk.low, chunk.high), (low, high.position));

    let (id, target) = (one_lane::id("source-0"), one_lane::target());
    let mut store = target.lane(id.clone(), Arc::new([0].into()));
    let refresh = Some(Refresh::of_every_table());
    let mut flush = Flush::new(Progress { refresh, ..progress_at(begun.clone()) });
    let (shard, key, action) =
        (script::table(0).shard, [Cell::UInt(1)].into(), MutationAction::Upsert([].into()));
    flush.push(Mutation { table: 0, shard, key, lsn: Lsn::ZERO, action });
    store.commit(&flush).await.unwrap();
    let Located { position, resume, server } = begun;
    append(&log, Envelope { origin: true, position, resume, server, ..Envelope::default() }).await;
    let through = async {
        sleep(WAIT_MAX).await;
        let mut update = codec::Encoder::default();
        update.update(high.position, &script::table(0), &born(1990), &born(1991));
        let Located { position, resume, server } = high;
        let next = Envelope { previous: low, position, resume, server, ..Envelope::default() };
        append_changes(&log, next, update).await;
        sleep(WAIT_MAX).await;
    };
    let stale = StaleSource { old: Mutex::new(Some(chunk)), ..StaleSource::new(source.clone()) };
    let lane = OneLane::new(&id, &log, &stale);
    let ended = lane.run(
        &mut store,
        |change, flush| projection.project(change, LaneScope::COUNTS_DEFECTS, flush, &mut Defects::default()),
        through,
    );
    ended.await.unwrap();
    assert_eq!(target.progress("source-0")[&id].refresh, None, "it is through");
    let versions: Vec<Lsn> = target.rows().into_values().map(|(version, _)| version).collect();
    assert_eq!((users(&target), versions), (vec![Cell::UInt(1)], vec![low]));
}

/// DROP DATABASE withdraws more tables than one transaction takes, and the target has no row of any of them yet.
#[tokio::test(start_paused = true)]
async fn a_chunk_of_a_table_that_went_with_hundreds_of_others_is_not_written() {
    let (log, source) = twins();
    source.commit(insert(1));
    let begun = end(&source).await;
    // The chunk has the rows from before the statement, and a high watermark after it.
    source.show(SnapshotView { unseen: 1, below: Some(0) });
    let gone = ScriptedRow { table: script::table(0), before: None, after: None };
    source.commit(Group::Rows(vec![vec![gone]]));
    let rows = NonZeroUsize::new(100).unwrap();
    let chunk = source.chunk(&script::table(0), None, rows, FIRST_EPOCH).await.unwrap();
    let high = end(&source).await;
    assert_eq!((chunk.low, chunk.high, chunk.rows), (begun.position, high.position, 1));
    let message = |Located { position, resume, server }, previous, changes| {
        let origin = previous == Lsn::ZERO;
        append_changes(
            &log,
            Envelope { previous, origin, position, resume, server, ..Envelope::default() },
            changes,
        )
    };
    message(begun.clone(), Lsn::ZERO, codec::Encoder::default()).await;
    let low = begun.position;
    let beside = async |_: &MemoryTarget| {
        sleep(WAIT_MAX).await;
        let mut withdrawals = codec::Encoder::default();
        for number in 0..300 {
            let name = format!("user_{number:03}");
            let shard = ShardId::of("source-0", "user_00", &name, 0);
            withdrawals
                .withdraw(high.position, &TableIdentity { shard, table: name.into(), ..script::table(0) });
        }
        message(high, low, withdrawals).await;
    };
    let users = refreshed(&log, source.clone(), chunk, begun, Scope::Source, beside).await;
    assert!(users.is_empty(), "{users:?}");
}
