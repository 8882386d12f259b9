//! A lane that waits: for a direct feed until the stream links after all, and for answers until it is stopped. A replay
//! from nothing and the history that it needs.

#![expect(clippy::unwrap_used, reason = "the whole file is a test")]

use std::collections::BTreeSet;
use std::future::pending;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use anabranch_connectors::memory::{
    Group, MemoryLog, MemoryRegisters, MemorySource, MemoryStore, MemoryTarget, ScriptedRow, StoreKind,
    Weather,
};
use anabranch_pipeline::deliver::{self, Lane, RewindSource, Shared};
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::{
    BinlogPoint, BinlogStart, ClaimsPage, LaneStore, Log, LogWriter, ShardPage, SourceConnector,
};
use anabranch_pipeline::records::{DerivedRow, Flush, LaneId, Mutation, Progress};
use anabranch_schemas::change::Entity;
use anabranch_schemas::envelope::Envelope;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{script, stage};

const SOURCE: &str = "source-a";
const WAIT_MAX: Duration = Duration::from_secs(60);

fn lsn(number: u64) -> Lsn {
    Lsn::new(1, 1, number * 16).unwrap()
}

/// Begins a stream with one position message at 6, after 5.
async fn begin(log: &MemoryLog, origin: bool) {
    let mut writer = log.writer(SOURCE, None).await.unwrap();
    let envelope = Envelope { origin, previous: lsn(5), position: lsn(6), ..Envelope::default() };
    writer.append(envelope, Bytes::new()).await.unwrap();
    writer.acknowledged().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_waits_for_a_direct_feed_goes_on_when_the_stream_links() {
    let calm = Weather::calm;
    let (log, source) = (MemoryLog::new(calm(), 8), MemorySource::new(calm()));
    let id = LaneId { projection: "p".into(), target: "t".into(), source: SOURCE.into(), lane: 0 };
    let mut store = MemoryTarget::new(calm(), StoreKind::Rows).lane(id.clone(), Arc::default());
    let limits = stage::limits(1024, 10, WAIT_MAX);
    // No direct feed is ever free.
    let shared = Shared::new(0);
    let lane = Lane {
        id: &id,
        log: &log,
        source: &source,
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
    begin(&log, false).await;
    let (applied, mut positions) = watch::channel(Lsn::ZERO);
    let cancel = CancellationToken::new();
    let script = async {
        sleep(WAIT_MAX).await;
        assert_eq!(*positions.borrow(), Lsn::ZERO, "it has no beginning yet");
        log.wipe(SOURCE);
        begin(&log, true).await;
        let is_there = timeout(WAIT_MAX, positions.wait_for(|position| *position == lsn(6))).await.is_ok();
        assert!(is_there, "it still waits");
        cancel.cancel();
    };
    let running = deliver::run(lane, &mut store, |_, _| {}, &applied, &cancel);
    let (ended, ()) = tokio::join!(running, script);
    ended.unwrap();
}

/// A target that answers the first question and no other.
struct Silent(MemoryStore, bool);

impl LaneStore for Silent {
    async fn load(&mut self) -> Result<Progress, Fault> {
        match std::mem::replace(&mut self.1, true) {
            false => self.0.load().await,
            true => pending().await,
        }
    }

    async fn commit(&mut self, _: &Flush) -> Result<(), Fault> {
        pending().await
    }

    async fn shards_with_rows(&mut self, _: BTreeSet<ShardId>) -> Result<BTreeSet<ShardId>, Fault> {
        pending().await
    }

    async fn withdrawn_claims(
        &mut self,
        _: &[(ShardId, Lsn)],
        _: &ClaimsPage,
        _: NonZeroUsize,
    ) -> Result<(Vec<Mutation>, Option<ClaimsPage>), Fault> {
        pending().await
    }

    async fn rows_of_shard(
        &mut self,
        _: &ShardPage,
        _: NonZeroUsize,
        _: &mut (dyn FnMut(DerivedRow<'_>) + Send),
    ) -> Result<Option<ShardPage>, Fault> {
        pending().await
    }

    fn is_atomic(&self) -> bool {
        self.0.is_atomic()
    }
}

/// The target is silent while a lane checks its progress, or removes its rows.
#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_no_question_of_a_lane() {
    for is_emptied in [false, true] {
        let (log, source) = (MemoryLog::new(Weather::calm(), 8), MemorySource::new(Weather::calm()));
        let id = LaneId { projection: "p".into(), target: "t".into(), source: SOURCE.into(), lane: 0 };
        let mut store = MemoryTarget::new(Weather::calm(), StoreKind::Rows).lane(id.clone(), Arc::default());
        if is_emptied {
            let table = script::table(0);
            source.commit(Group::Rows(vec![vec![ScriptedRow { table, before: None, after: None }]]));
            let progress = Progress { revision: 1, highest_position: lsn(9), ..Progress::default() };
            store.commit(&Flush::new(progress)).await.unwrap();
        }
        let limits = stage::limits(1024, 10, WAIT_MAX);
        let lane = Lane {
            id: &id,
            log: &log,
            source: &source,
            replica_slot: 1,
            start: &BinlogStart::Earliest,
            entity: Entity::User,
            fields: Entity::User.required_fields(),
            source_column: 0,
            row_weight: 1,
            tables: 1,
            shared: &Shared::new(1),
            limits: &limits,
        };
        let cancel = CancellationToken::new();
        let stop = async {
            sleep(WAIT_MAX).await;
            cancel.cancel();
        };
        let (mut store, applied) = (Silent(store, false), watch::Sender::new(Lsn::ZERO));
        let running = deliver::run(lane, &mut store, |_, _| {}, &applied, &cancel);
        let both = async { tokio::join!(running, stop).0 };
        timeout(2 * WAIT_MAX, both).await.expect("it stops").unwrap();
    }
}

/// The history before the configured GTID set is not needed: its binlog may be purged.
#[tokio::test(start_paused = true)]
async fn a_replay_from_nothing_needs_the_history_from_the_configured_start_on() {
    let (log, source) = (MemoryLog::new(Weather::calm(), 8), MemorySource::new(Weather::calm()));
    let group = || Group::Rows(Vec::new());
    for _ in 0..2 {
        source.commit(group());
        source.rotate();
    }
    let oldest = source.locate(BinlogPoint::Gtid("1-1".to_owned()), 1).await.unwrap();
    source.purge([&oldest.resume]);
    let mut writer = log.writer(SOURCE, None).await.unwrap();
    let envelope = Envelope { position: lsn(6), server: oldest.server, ..Envelope::default() };
    writer.append(envelope, Bytes::new()).await.unwrap();
    writer.acknowledged().await.unwrap();
    let registers = MemoryRegisters::new(Weather::calm());
    let nothing = async |start: BinlogStart| {
        let past = RewindSource {
            source: SOURCE,
            connector: &source,
            log: &log,
            registers: &registers,
            start: &start,
        };
        past.nothing(false).await.is_ok()
    };
    assert!(!nothing(BinlogStart::Earliest).await, "the first file is gone");
    assert!(nothing(BinlogStart::Gtid("1-1".to_owned())).await);
    assert!(!nothing(BinlogStart::Gtid(String::new())).await, "what is behind the set is gone");
}
