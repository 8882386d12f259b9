//! A lane knows the epoch that a log server forgets: no epoch gets a second server, or the lane stops by name.

#![expect(clippy::unwrap_used, reason = "the whole file is a test")]

use std::pin::pin;
use std::time::Duration;

use anabranch_connectors::memory::Group;
use anabranch_pipeline::deliver::{Rewind, Shared, rewind};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{
    BinlogPoint, LaneStore, Located, Log, LogWriter, Registers, SourceConnector,
};
use anabranch_pipeline::records::{Flush, Progress};
use anabranch_schemas::birthday::Layout;
use anabranch_schemas::envelope::{Envelope, ServerIdentity};
use anabranch_schemas::lsn::Lsn;
use bytes::Bytes;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::stage::{LaneAt, SOURCE_NAMES, Stage, lane_id, limits};

const LANE: LaneAt = (0, 0, 0);
/// Time in which a quiet reader or lane checks its source and stores its progress.
const WHILE: Duration = Duration::from_secs(5);

fn stage() -> Stage {
    Stage::calm(Layout::ByDay, limits(100, 10, Duration::from_secs(3600)))
}

fn commit(stage: &Stage) {
    stage.sources[0].commit(Group::Rows(Vec::new()));
}

/// Runs one attempt of the reader, and one of a lane beside it, for some time; returns the lane's fault if it ended.
async fn run(stage: &Stage) -> Option<Fault> {
    let (cancel, shared) = (CancellationToken::new(), Shared::new(2));
    tokio::select! {
        biased;
        ended = stage.read(0, &cancel) => panic!("the reader ended: {ended:?}"),
        ended = timeout(WHILE, stage.deliver(LANE, &shared, &cancel)) => ended.ok().map(|ended| ended.unwrap_err()),
    }
}

async fn progress(stage: &Stage) -> Progress {
    stage.store(LANE).load().await.unwrap()
}

/// Stores progress as a flush does that was under way while everything else was lost.
async fn store(stage: &Stage, change: impl FnOnce(&mut Progress)) {
    let mut flush = Flush::new(progress(stage).await);
    change(&mut flush.progress);
    flush.progress.revision += 1;
    flush.progress.highest_position = flush.progress.highest_position.max(flush.progress.position);
    stage.store(LANE).commit(&flush).await.unwrap();
}

fn server(number: &str) -> ServerIdentity {
    ServerIdentity { flavor: "memory".to_owned(), id: number.to_owned() }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_comes_back_gets_an_epoch_of_its_own_though_the_log_forgot_the_other() {
    let stage = stage();
    commit(&stage);
    assert!(run(&stage).await.is_none());
    let first = stage.log.messages(SOURCE_NAMES[0]);
    stage.sources[0].fail_over();
    commit(&stage);
    // No lane runs: only the register knows the epoch.
    let cancel = CancellationToken::new();
    timeout(WHILE, stage.read(0, &cancel)).await.unwrap_err();
    assert_eq!(stage.log.last(SOURCE_NAMES[0]).unwrap().envelope.position.epoch(), 2);
    stage.log.roll_back(SOURCE_NAMES[0], stage.log.messages(SOURCE_NAMES[0]) - first);
    assert!(stage.sources[0].fail_back(&[]));
    commit(&stage);
    assert!(run(&stage).await.is_none());
    let lane = progress(&stage).await;
    assert_eq!((lane.position.epoch(), lane.server), (3, server("1")));
    assert_eq!(stage.registers.read("epochs/source-0").await.unwrap().value, "3 memory:1");
    // Now only the lane is left to know it.
    stage.log.wipe(SOURCE_NAMES[0]);
    stage.registers.wipe();
    stage.sources[0].fail_over();
    commit(&stage);
    assert!(run(&stage).await.is_none());
    assert_eq!(progress(&stage).await.position.epoch(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_new_server_tells_its_place_before_its_first_row() {
    let stage = stage();
    commit(&stage);
    assert!(run(&stage).await.is_none());
    stage.sources[0].fail_over();
    assert!(run(&stage).await.is_none());
    let lane = progress(&stage).await;
    assert_eq!((lane.position.epoch(), lane.server), (2, server("2")), "it is quiet");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_gives_a_lanes_epoch_to_another_server_stops_the_lane_until_it_is_deleted() {
    for is_above in [false, true] {
        let stage = stage();
        commit(&stage);
        assert!(run(&stage).await.is_none());
        let above = Lsn::new(1, 9, 160).unwrap();
        let position = if is_above { above } else { progress(&stage).await.position };
        store(&stage, |lane| (lane.position, lane.server, lane.message) = (position, server("7"), None))
            .await;
        for _ in 0..2 {
            let fault = run(&stage).await.expect("it stops");
            assert_eq!(fault.code(), Code::LogEpochReused, "{fault}");
        }
        // The remedy, for a lane that knows no more than its row.
        store(&stage, |lane| (lane.position, lane.server) = (Lsn::new(1, 1, 64).unwrap(), server("7"))).await;
        stage.log.wipe(SOURCE_NAMES[0]);
        commit(&stage);
        assert!(run(&stage).await.is_none());
        assert_eq!(progress(&stage).await.position.epoch(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lane_above_its_streams_epoch_is_not_taken_for_one_that_waits() {
    let stage = stage();
    commit(&stage);
    assert!(run(&stage).await.is_none());
    let later = Lsn::new(2, 1, 160).unwrap();
    store(&stage, |lane| (lane.position, lane.server, lane.message) = (later, server("7"), None)).await;
    let fault = run(&stage).await.expect("it says so");
    assert_eq!(fault.code(), Code::LogEpochLagging, "{fault}");
    stage.log.wipe(SOURCE_NAMES[0]);
    stage.registers.wipe();
    // Set back, the lane does not know the epoch's server.
    store(&stage, |lane| (lane.position, lane.server) = (Lsn::new(1, 1, 64).unwrap(), server("1"))).await;
    assert!(run(&stage).await.is_none());
    assert_eq!(progress(&stage).await.position.epoch(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_is_fed_in_an_epoch_that_is_over_begins_again_in_the_present_one() {
    let stage = stage();
    for _ in 0..3 {
        commit(&stage);
        read_alone(&stage).await;
    }
    let cancel = CancellationToken::new();
    let first = stage.log.messages(SOURCE_NAMES[0]);
    stage.sources[0].fail_over();
    commit(&stage);
    read_alone(&stage).await;
    stage.log.roll_back(SOURCE_NAMES[0], stage.log.messages(SOURCE_NAMES[0]) - first);
    assert!(stage.sources[0].fail_back(&[]));
    // The stream lacks the messages that the lane needs, and the first server is there again.
    stage.log.discard(SOURCE_NAMES[0], first - 1);
    store(&stage, |lane| (lane.position, lane.server) = (Lsn::new(1, 1, 16).unwrap(), server("1"))).await;
    let shared = Shared::new(2);
    let mut lane = pin!(stage.deliver(LANE, &shared, &cancel));
    // The lane has its direct feed before it checks the stream again.
    timeout(Duration::from_millis(100), &mut lane).await.unwrap_err();
    assert_eq!((progress(&stage).await.position.epoch(), progress(&stage).await.message), (1, None));
    let fault = tokio::select! {
        ended = lane => ended.unwrap_err(),
        () = read_alone(&stage) => panic!("it reads on in an epoch that is over"),
    };
    assert!(fault.to_string().contains("direct feed of epoch 1 memory:1"), "{fault}");
    commit(&stage);
    assert!(run(&stage).await.is_none());
    assert_eq!(progress(&stage).await.position.epoch(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_was_further_than_the_stream_is_not_put_back_by_a_fail_over() {
    let stage = stage();
    for _ in 0..3 {
        commit(&stage);
    }
    assert!(run(&stage).await.is_none());
    stage.log.wipe(SOURCE_NAMES[0]);
    stage.sources[0].fail_over();
    commit(&stage);
    // The first message of the new server follows a position before the lane's.
    let Located { position, resume, server } =
        stage.sources[0].locate(BinlogPoint::Gtid("1-1".to_owned()), 2).await.unwrap();
    let mut writer = stage.log.writer(SOURCE_NAMES[0], None).await.unwrap();
    let previous = Lsn::new(1, 1, 16).unwrap();
    let envelope = Envelope { previous, position, resume, server, ..Envelope::default() };
    writer.append(envelope, Bytes::new()).await.unwrap();
    writer.acknowledged().await.unwrap();
    let (cancel, shared) = (CancellationToken::new(), Shared::new(2));
    timeout(WHILE, stage.deliver(LANE, &shared, &cancel)).await.unwrap_err();
    let lane = progress(&stage).await;
    assert_eq!((lane.position.epoch(), lane.resume.gtid_set.as_str()), (2, "2-4"));
}

/// Runs a reader without lanes for some time.
async fn read_alone(stage: &Stage) {
    timeout(WHILE, stage.read(0, &CancellationToken::new())).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_place_is_found_only_in_the_epoch_that_the_present_server_is_read_in() {
    let stage = stage();
    commit(&stage);
    read_alone(&stage).await;
    assert!(stage.past(0).nothing(false).await.is_ok());
    let first = stage.log.messages(SOURCE_NAMES[0]);
    stage.sources[0].fail_over();
    read_alone(&stage).await;
    stage.log.roll_back(SOURCE_NAMES[0], stage.log.messages(SOURCE_NAMES[0]) - first);
    assert!(stage.sources[0].fail_back(&[]));
    let fault = stage.past(0).nothing(false).await.unwrap_err();
    assert!(fault.to_string().contains("in epoch 1 memory:1; needed: epoch 3 memory:1"), "{fault}");
}

#[tokio::test(start_paused = true)]
async fn a_lane_is_set_back_only_within_the_epoch_of_its_position() {
    let stage = stage();
    commit(&stage);
    assert!(run(&stage).await.is_none());
    let Progress { position, resume, server, .. } = progress(&stage).await;
    stage.sources[0].fail_over();
    assert!(run(&stage).await.is_none());
    assert!(position < progress(&stage).await.position);
    let former = Rewind::To(Located { position, resume, server });
    let fault = rewind(&lane_id(LANE), &mut stage.store(LANE), &former, false).await.unwrap_err();
    assert_eq!(fault.code(), Code::ReplayRefused, "{fault}");
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_is_set_back_to_nothing_knows_whose_its_epoch_was() {
    let stage = stage();
    commit(&stage);
    assert!(run(&stage).await.is_none());
    rewind(&lane_id(LANE), &mut stage.store(LANE), &Rewind::ToNothing, false).await.unwrap();
    stage.log.wipe(SOURCE_NAMES[0]);
    stage.registers.wipe();
    assert!(run(&stage).await.is_none());
    assert_eq!(progress(&stage).await.position.epoch(), 1);
}
