//! A lane that waits for a direct feed of its source sees when the stream serves it after all.

#![expect(clippy::unwrap_used, reason = "the whole file is a test")]

use std::sync::Arc;
use std::time::Duration;

use anabranch_connectors::memory::{MemoryLog, MemorySource, MemoryTarget, Weather};
use anabranch_pipeline::deliver::{self, Lane, LaneId};
use anabranch_pipeline::ports::{Entry, Log, LogWriter};
use anabranch_schemas::envelope::Envelope;
use anabranch_schemas::lsn::Lsn;
use bytes::Bytes;
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::stage;

const SOURCE: &str = "source-a";
const PATIENCE: Duration = Duration::from_secs(60);

fn lsn(number: u64) -> Lsn {
    Lsn::new(1, 1, number * 16).unwrap()
}

/// A stream of one mark at 6, behind 5.
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
    let mut store = MemoryTarget::new(calm()).lane(id.clone(), Arc::default());
    let limits = stage::limits(1024, 10, PATIENCE);
    // Other lanes have all of them, for ever.
    let feeds = Arc::new(Semaphore::new(0));
    let lane = Lane {
        id: &id,
        log: &log,
        source: &source,
        seat: 1,
        start: &Entry::Earliest,
        feeds: &feeds,
        limits: &limits,
    };
    begin(&log, false).await;
    let (applied, mut positions) = watch::channel(Lsn::ZERO);
    let cancel = CancellationToken::new();
    let script = async {
        sleep(PATIENCE).await;
        assert_eq!(*positions.borrow(), Lsn::ZERO, "it has no beginning yet");
        log.wipe(SOURCE);
        begin(&log, true).await;
        let is_there = timeout(PATIENCE, positions.wait_for(|position| *position == lsn(6))).await.is_ok();
        assert!(is_there, "it still waits");
        cancel.cancel();
    };
    let running = deliver::run(lane, &mut store, |_, _| {}, &applied, &cancel);
    let (ended, ()) = tokio::join!(running, script);
    ended.unwrap();
}
