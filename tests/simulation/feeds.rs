//! A lane that waits: for a direct feed until the stream links after all, and for answers until it is stopped. A replay
//! from nothing and the history that it needs.

#![expect(clippy::unwrap_used, reason = "the whole file is a test")]

use std::collections::BTreeSet;
use std::future::pending;
use std::num::NonZeroUsize;
use std::sync::Arc;

use anabranch_connectors::memory::{Group, MemoryLog, MemoryRegisters, MemoryStore, ScriptedRow, Weather};
use anabranch_pipeline::deliver::RewindSource;
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::{
    BinlogPoint, BinlogStart, ClaimsPage, LaneStore, Log, LogWriter, ShardPage, SourceConnector,
};
use anabranch_pipeline::records::{DerivedRow, Flush, Mutation, Progress};
use anabranch_schemas::envelope::Envelope;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use bytes::Bytes;
use tokio::time::{sleep, timeout};

use crate::one_lane::{self, OneLane, WAIT_MAX, twins};
use crate::script;

const SOURCE: &str = "source-a";

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
    let ((log, source), id) = (twins(), one_lane::id(SOURCE));
    let mut store = one_lane::target().lane(id.clone(), Arc::default());
    // No direct feed is ever free.
    let lane = OneLane { direct_feeds: 0, ..OneLane::new(&id, &log, &source) };
    begin(&log, false).await;
    let mut positions = lane.applied.subscribe();
    let script = async {
        sleep(WAIT_MAX).await;
        assert_eq!(*positions.borrow(), Lsn::ZERO, "it has no beginning yet");
        log.wipe(SOURCE);
        begin(&log, true).await;
        let is_there = timeout(WAIT_MAX, positions.wait_for(|position| *position == lsn(6))).await.is_ok();
        assert!(is_there, "it still waits");
    };
    lane.run(&mut store, |_, _| {}, script).await.unwrap();
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
        let ((log, source), id) = (twins(), one_lane::id(SOURCE));
        let mut store = one_lane::target().lane(id.clone(), Arc::default());
        if is_emptied {
            let table = script::table(0);
            source.commit(Group::Rows(vec![vec![ScriptedRow { table, before: None, after: None }]]));
            let progress = Progress { revision: 1, highest_position: lsn(9), ..Progress::default() };
            store.commit(&Flush::new(progress)).await.unwrap();
        }
        let (lane, mut store) = (OneLane::new(&id, &log, &source), Silent(store, false));
        let running = lane.run(&mut store, |_, _| {}, sleep(WAIT_MAX));
        timeout(2 * WAIT_MAX, running).await.expect("it stops").unwrap();
    }
}

/// The history before the configured GTID set is not needed: its binlog may be purged.
#[tokio::test(start_paused = true)]
async fn a_replay_from_nothing_needs_the_history_from_the_configured_start_on() {
    let (log, source) = twins();
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
