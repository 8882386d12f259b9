//! One lane of one derived table on twins without faults: its set-up, and the messages that it takes. The lanes of
//! whole worlds are in `stage.rs`.

#![expect(clippy::unwrap_used, reason = "the whole file is a test")]

use std::time::Duration;

use anabranch_connectors::memory::{MemoryLog, MemorySource, MemoryTarget, StoreKind, Weather};
use anabranch_pipeline::deliver::{self, Lane, Shared};
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::{
    BinlogPoint, BinlogStart, LaneStore, Located, Log, LogWriter, RowSource, SourceConnector,
};
use anabranch_pipeline::records::{Cell, Flush, LaneId, Mutation, MutationAction, Progress};
use anabranch_schemas::change::{Action, Change, Entity, Value};
use anabranch_schemas::codec;
use anabranch_schemas::envelope::Envelope;
use anabranch_schemas::lsn::{FIRST_EPOCH, Lsn};
use bytes::Bytes;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::stage;

/// Virtual time after which a lane has nothing more to do.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

/// The inputs of a lane that differ between tests.
pub struct OneLane<'a, S> {
    pub id: &'a LaneId,
    pub log: &'a MemoryLog,
    pub source: &'a S,
    /// Direct feeds that are free.
    pub direct_feeds: usize,
    /// The lane's position.
    pub applied: watch::Sender<Lsn>,
}

impl<'a, S: SourceConnector + RowSource> OneLane<'a, S> {
    pub fn new(id: &'a LaneId, log: &'a MemoryLog, source: &'a S) -> Self {
        Self { id, log, source, direct_feeds: 1, applied: watch::Sender::new(Lsn::ZERO) }
    }

    /// Runs the lane beside a script, whose end cancels it; returns how the lane ended.
    pub async fn run(
        &self,
        store: &mut impl LaneStore,
        project: impl FnMut(&Change<'_, '_>, &mut Flush) + Send,
        script: impl Future<Output = ()>,
    ) -> Result<(), Fault> {
        let (limits, shared) = (stage::limits(1024, 10, WAIT_MAX), Shared::new(self.direct_feeds));
        let lane = Lane {
            id: self.id,
            log: self.log,
            source: self.source,
            replica_slot: 1,
            start: &BinlogStart::Earliest,
            entity: Entity::User,
            fields: Entity::User.required_fields(),
            source_column: 0,
            row_weight: 1,
            tables: 1,
            shared: &shared,
            limits: &limits,
        };
        let cancel = CancellationToken::new();
        let stop = async {
            script.await;
            cancel.cancel();
        };
        let running = deliver::run(lane, store, project, &self.applied, &cancel);
        tokio::join!(running, stop).0
    }
}

pub fn id(source: &str) -> LaneId {
    LaneId { projection: "p".into(), target: "t".into(), source: source.into(), lane: 0 }
}

/// The log and the source.
pub fn twins() -> (MemoryLog, MemorySource) {
    (MemoryLog::new(Weather::calm(), 8), MemorySource::new(Weather::calm()))
}

pub fn target() -> MemoryTarget {
    MemoryTarget::new(Weather::calm(), StoreKind::Rows)
}

/// The first progress of a lane that has everything up to a point.
pub fn progress_at(Located { position, resume, server }: Located) -> Progress {
    Progress {
        revision: 1,
        position,
        highest_position: position,
        highest_change: position,
        resume,
        server,
        ..Progress::default()
    }
}

/// The projection: one row without values for each inserted user.
pub fn project(change: &Change<'_, '_>, flush: &mut Flush) {
    if let Action::Withdraw = change.action {
        return flush.withdraw(change.table.shard, change.lsn);
    }
    if let Action::Reread = change.action {
        return flush.take_table(change);
    }
    let Action::Insert { after } = &change.action else { panic!("{:?}", change.action) };
    let Value::UInt(user) = after[0] else { panic!("{after:?}") };
    flush.push(Mutation {
        table: 0,
        shard: change.table.shard,
        key: [Cell::UInt(user)].into(),
        lsn: change.lsn,
        action: MutationAction::Upsert([].into()),
    });
}

/// The end of the binlog.
pub async fn end(source: &MemorySource) -> Located {
    let head = source.head().await.unwrap();
    // `locate` may return an earlier position.
    Located { position: head, ..source.locate(BinlogPoint::Lsn(head), FIRST_EPOCH).await.unwrap() }
}

/// Appends a message to the stream of `source-0`.
pub async fn append_changes(log: &MemoryLog, envelope: Envelope, mut changes: codec::Encoder) {
    let (changes, payload) = match changes.is_empty() {
        true => (0, Bytes::new()),
        false => (changes.changes(), changes.finish()),
    };
    let end = log.end("source-0").await.unwrap();
    let mut writer = log.writer("source-0", end.as_ref()).await.unwrap();
    writer.append(Envelope { changes, ..envelope }, payload).await.unwrap();
    writer.acknowledged().await.unwrap();
}
