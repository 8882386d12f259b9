//! A source begins anew after it lost its history: the operator's steps, and the parts that each of them keeps.

#![expect(clippy::unwrap_used, reason = "the whole file is a test")]

use std::sync::atomic::Ordering;
use std::time::Duration;

use anabranch_connectors::memory::{Group, Refused, ScriptedRow};
use anabranch_pipeline::capture::{BeginAnew, Gap, gap_records};
use anabranch_pipeline::deliver::{Shared, request_refresh};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{LaneStore, Log, Registers, SourceConnector};
use anabranch_pipeline::records::{Cell, Progress, Scope};
use anabranch_schemas::beginning::Registered;
use anabranch_schemas::birthday::Layout;
use anabranch_schemas::change::Value;
use anabranch_schemas::lsn::ResumePoint;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::script;
use crate::stage::{LaneAt, SOURCE_NAMES, Stage, lane_id, lanes_of, limits};

/// Pause between two attempts of an operator.
const ASK_INTERVAL: Duration = Duration::from_millis(500);

/// Begins the source anew as the command does, with the progress of the targets that answer.
async fn ask(stage: &Stage, source: usize, request: &str, is_rehearsal: bool) -> Result<Gap, Fault> {
    let are_all = !stage.targets.iter().any(|target| target.is_down());
    let lanes: Vec<Progress> = stage
        .targets
        .iter()
        .filter(|target| !target.is_down())
        .flat_map(|target| target.progress(SOURCE_NAMES[source]).into_values())
        .collect();
    let command = BeginAnew {
        source: SOURCE_NAMES[source],
        generation: 0,
        connector: &stage.sources[source],
        log: &stage.log,
        registers: &stage.registers,
        request,
        who: "ann@db-1".to_owned(),
        at_ms: 7,
    };
    command.run(&lanes, are_all, is_rehearsal).await
}

/// Makes a source lose its newest transactions, and perhaps its binlog; returns whether it did. Each of its lanes'
/// `points` must have transactions of it: a source that was read without any looks like itself afterwards.
pub fn strike(
    stage: &Stage,
    number: usize,
    points: &[ResumePoint],
    may_fail_over: bool,
    random: &mut StdRng,
) -> bool {
    let (source, end) = (&stage.sources[number], stage.log.last(SOURCE_NAMES[number]));
    let has_transactions = |point: &ResumePoint| !point.read_gtids().is_empty();
    if !points.iter().all(has_transactions) || !end.is_some_and(|end| has_transactions(&end.envelope.resume))
    {
        return false;
    }
    let (lost, is_restored) = (random.random_range(0..6), !may_fail_over || random.random_ratio(2, 3));
    stage.log_line(|| format!("source {number} loses {lost} groups, and its binlog: {is_restored}"));
    match is_restored {
        true => source.restore(lost),
        false => source.lose_newest(lost),
    }
    stage.disasters[number].fetch_add(1, Ordering::SeqCst);
    true
}

/// Whether the source has begun anew after its latest disaster, by its register.
pub async fn is_known(stage: &Stage, source: usize) -> bool {
    let disasters = stage.disasters[source].load(Ordering::SeqCst);
    let register = stage.registers.read(&format!("epochs/{}", SOURCE_NAMES[source])).await;
    let registered = register.ok().and_then(|register| register.value.parse::<Registered>().ok());
    let beginning = registered.and_then(|registered| registered.beginning);
    disasters == 0 || beginning.is_some_and(|beginning| beginning.request == request(source, disasters))
}

fn request(source: usize, disasters: u64) -> String {
    format!("{source}-{disasters}")
}

/// Begins a source anew as an operator does after it lost its history. Each process asks with the same id, one after
/// the other: the command reads for a while, and a second one would end that stream.
pub async fn begin_anew(stage: &Stage, source: usize) {
    let request = request(source, stage.disasters[source].load(Ordering::SeqCst));
    if let Ok(_operator) = stage.operators[source].try_lock() {
        match ask(stage, source, &request, false).await {
            Ok(gap) => stage.log_line(|| format!("source {source} begins anew: {gap:?}")),
            Err(fault) => stage.log_line(|| format!("begin-anew of source {source}: {fault}")),
        }
    }
    tokio::time::sleep(ASK_INTERVAL).await;
}

pub const LANE: LaneAt = (0, 0, 0);
/// Time in which a quiet reader or lane checks its source and stores its progress.
const WHILE: Duration = Duration::from_secs(20);

pub fn stage() -> Stage {
    Stage::calm(Layout::ByUser, limits(100, 10, Duration::from_secs(3600)))
}

/// Gives a user of source 0 a birthday, or takes it away.
fn write(stage: &Stage, user: u64, before: Option<u8>, after: Option<u8>) {
    let row = |day| vec![Value::UInt(user), Value::Date { year: 1990, month: 1, day }];
    let row = ScriptedRow { table: script::table(0), before: before.map(row), after: after.map(row) };
    stage.sources[0].commit(Group::Rows(vec![vec![row]]));
}

/// Runs all lanes of source 0, and its reader, for some time; returns the code of the reader's fault, if any.
pub async fn run(stage: &Stage) -> Option<Code> {
    let (cancel, shared) = (CancellationToken::new(), Shared::new(2));
    let lanes = futures::future::join_all(lanes_of(0).map(|lane| {
        let (stage, shared, cancel) = (stage, &shared, &cancel);
        async move {
            while stage.deliver(lane, shared, cancel).await.is_err() {
                tokio::time::sleep(ASK_INTERVAL).await;
            }
        }
    }));
    let reader = async { stage.read(0, &cancel).await.err().map(|fault| fault.code()) };
    let both = async { tokio::join!(reader, timeout(WHILE, lanes)).0 };
    timeout(WHILE + ASK_INTERVAL, both).await.unwrap_or_default()
}

pub async fn progress(stage: &Stage) -> Progress {
    stage.store(LANE).load().await.unwrap()
}

/// Users in the derived tables, in order.
pub fn users(stage: &Stage) -> Vec<u64> {
    let mut users: Vec<u64> = stage.found().into_iter().map(|(_, _, _, user, _)| user).collect();
    users.sort_unstable();
    users
}

/// Four users are read; then the server is restored to two of them, and its binlog counts from the beginning.
pub async fn restored() -> Stage {
    let stage = stage();
    (1..=4).for_each(|user| write(&stage, user, None, Some(1)));
    assert_eq!(run(&stage).await, None);
    assert_eq!(users(&stage), [1, 2, 3, 4]);
    stage.sources[0].restore(2);
    assert_eq!(run(&stage).await, Some(Code::SourceServerChanged));
    stage
}

async fn register(stage: &Stage) -> Registered {
    stage.registers.read("epochs/source-0").await.unwrap().value.parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_restored_source_begins_anew_and_what_it_lost_is_swept() {
    let stage = restored().await;
    let before = progress(&stage).await;
    let rehearsed = ask(&stage, 0, "r", true).await.unwrap();
    assert_eq!(register(&stage).await.beginning, None, "a rehearsal writes nothing");
    let gap = ask(&stage, 0, "r", false).await.unwrap();
    assert_eq!((&gap, gap.is_repeated), (&rehearsed, false));
    assert_eq!(gap.read.unwrap().0, before.position);
    let head = stage.sources[0].head().await.unwrap().in_epoch(2).unwrap();
    assert_eq!(gap.beginning.position, head, "the place is the server's end");
    let registered = register(&stage).await;
    assert_eq!((registered.epoch, registered.beginning.as_ref().unwrap().number), (2, 1));
    // The same request writes nothing again, even after it has taken effect; another one does not while it waits.
    assert!(ask(&stage, 0, "r", false).await.unwrap().is_repeated);
    assert!(ask(&stage, 0, "another", false).await.unwrap().is_repeated);
    assert_eq!(run(&stage).await, None);
    assert_eq!(users(&stage), [1, 2]);
    assert!(ask(&stage, 0, "r", false).await.unwrap().is_repeated);
    assert!(refused(ask(&stage, 0, "another", false).await).contains("nothing stops its reader"));
    assert_eq!(register(&stage).await, registered);
    let lane = progress(&stage).await;
    assert_eq!((lane.beginning, lane.position.epoch(), lane.refresh), (1, 2, None));
    write(&stage, 9, None, Some(1));
    assert_eq!(run(&stage).await, None);
    assert_eq!(users(&stage), [1, 2, 9]);
}

/// Most rows of a restored server stand in the stores as they are. To write them anew would cost as much as a load.
#[tokio::test(start_paused = true)]
async fn rows_that_a_restored_source_still_has_are_not_written_again() {
    let stage = restored().await;
    let (before, written) = (stage.found_with_versions(), progress(&stage).await.rows);
    ask(&stage, 0, "r", false).await.unwrap();
    assert_eq!(run(&stage).await, None);
    let after = stage.found_with_versions();
    assert_eq!(users(&stage), [1, 2]);
    assert!(after.iter().all(|row| before.contains(row)), "{after:?} keep their versions of {before:?}");
    let lane = progress(&stage).await;
    assert_eq!((lane.rows, lane.refresh), (written, None));
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_was_away_begins_anew_without_the_first_message_and_keeps_its_repairs() {
    let stage = restored().await;
    let keys = Scope::Keys([(script::table(0).shard, vec![Cell::UInt(1)])].into());
    ask(&stage, 0, "r", false).await.unwrap();
    let cancel = CancellationToken::new();
    for user in 5..8 {
        write(&stage, user, None, Some(1));
        timeout(WHILE, stage.read(0, &cancel)).await.unwrap_err();
    }
    request_refresh(&lane_id(LANE), &mut stage.store(LANE), keys.clone()).await.unwrap();
    // Retention removes the older messages, and the first one of the new beginning.
    let name = SOURCE_NAMES[0];
    stage.log.discard(name, stage.log.messages(name) - 1);
    let end = stage.log.end(name).await.unwrap().unwrap().envelope;
    assert_eq!(end.beginning, 1);
    let shared = Shared::new(2);
    // No table can be read for some time.
    stage.weather.refuse(Some((Refused::Source, Code::SourceUnreachable)));
    timeout(ASK_INTERVAL, stage.deliver(LANE, &shared, &cancel)).await.unwrap_err();
    stage.weather.refuse(None);
    let lane = progress(&stage).await;
    let refresh = lane.refresh.clone().unwrap();
    assert_eq!((lane.beginning, lane.position, lane.highest_change), (1, end.position, end.position));
    assert_eq!((refresh.scope, refresh.every_waits, refresh.rereads.len()), (keys, true, 0));
    assert_eq!(run(&stage).await, None);
    assert_eq!(users(&stage), [1, 2, 5, 6, 7]);
}

/// The text with which a request is refused.
fn refused(asked: Result<Gap, Fault>) -> String {
    let fault = asked.expect_err("it is refused");
    assert_eq!(fault.code(), Code::BeginAnewRefused, "{fault}");
    fault.to_string()
}

#[tokio::test(start_paused = true)]
async fn what_begin_anew_refuses() {
    let fresh = stage();
    assert!(refused(ask(&fresh, 0, "r", false).await).contains("no reader has read it yet"));
    write(&fresh, 1, None, Some(1));
    assert_eq!(run(&fresh).await, None);
    assert!(refused(ask(&fresh, 0, "r", false).await).contains("its binlog can be read on"));
    // All rows are lost with the history.
    fresh.sources[0].restore(1);
    assert!(refused(ask(&fresh, 0, "r", false).await).contains("its tables have no row"));
    write(&fresh, 2, None, Some(1));
    fresh.registers.wipe();
    fresh.targets[1].set_down(true);
    assert!(refused(ask(&fresh, 0, "r", false).await).contains("some targets do not answer"));
    fresh.targets[1].set_down(false);
    ask(&fresh, 0, "r", false).await.unwrap();
    assert_eq!(run(&fresh).await, None);
    assert_eq!(users(&fresh), [2]);
}

#[tokio::test(start_paused = true)]
async fn claims_of_a_table_that_the_server_does_not_list_stand() {
    let stage = stage();
    let row = |table, user| {
        let after = Some(vec![Value::UInt(user), Value::Date { year: 1990, month: 1, day: 1 }]);
        Group::Rows(vec![vec![ScriptedRow { table: script::table(table), before: None, after }]])
    };
    for (table, user) in [(0, 1), (0, 2), (1, 3)] {
        stage.sources[0].commit(row(table, user));
    }
    assert_eq!(run(&stage).await, None);
    // The other table was created by a lost group.
    stage.sources[0].restore(2);
    ask(&stage, 0, "r", false).await.unwrap();
    assert_eq!(run(&stage).await, None);
    assert_eq!(users(&stage), [1, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_is_lost_again_before_its_reader_came_begins_anew_again() {
    let stage = restored().await;
    ask(&stage, 0, "one", false).await.unwrap();
    write(&stage, 5, None, Some(1));
    stage.sources[0].restore(0);
    ask(&stage, 0, "two", false).await.unwrap();
    assert_eq!(run(&stage).await, None);
    assert_eq!((users(&stage), progress(&stage).await.beginning), (vec![1, 2, 5], 2));
    // The reader has set the register since, and both requests are on record.
    let gaps = gap_records(&stage.registers, SOURCE_NAMES[0]).await.unwrap();
    let known: Vec<_> = gaps.iter().map(|gap| (gap.request.as_str(), gap.who.as_str(), gap.at_ms)).collect();
    assert_eq!(known, [("one", "ann@db-1", 7), ("two", "ann@db-1", 7)]);
    assert!(gaps.iter().all(|gap| gap.why.starts_with('[')), "{gaps:?}");
    assert!(gaps.iter().all(|gap| gap.read.is_some_and(|read| read < gap.position)), "{gaps:?}");
}

/// The stream is lost before a lane has begun anew. Later it loses the beginning together with the register; the lanes
/// know both.
#[tokio::test(start_paused = true)]
async fn a_beginning_outlives_the_log() {
    let stage = restored().await;
    ask(&stage, 0, "r", false).await.unwrap();
    stage.log.wipe(SOURCE_NAMES[0]);
    assert_eq!(run(&stage).await, None);
    stage.registers.wipe();
    stage.log.wipe(SOURCE_NAMES[0]);
    write(&stage, 7, None, Some(1));
    assert_eq!(run(&stage).await, None);
    let end = stage.log.last(SOURCE_NAMES[0]).unwrap().envelope;
    assert_eq!((end.beginning, register(&stage).await.beginning.unwrap().number), (1, 1));
    assert_eq!(users(&stage), [1, 2, 7]);
}

/// Register and stream are lost as well: only lanes know the epoch that is over.
#[tokio::test(start_paused = true)]
async fn a_beginning_has_an_epoch_above_the_one_that_lanes_alone_know() {
    let stage = restored().await;
    assert_eq!(progress(&stage).await.position.epoch(), 1);
    stage.registers.wipe();
    stage.log.wipe(SOURCE_NAMES[0]);
    let gap = ask(&stage, 0, "r", false).await.unwrap();
    assert_eq!(gap.beginning.position.epoch(), 2);
    assert_eq!(run(&stage).await, None);
    assert_eq!((users(&stage), progress(&stage).await.beginning), (vec![1, 2], 1));
}

/// The log loses its newest messages, and the server loses their transaction: only lanes know it.
#[tokio::test(start_paused = true)]
async fn a_source_begins_anew_for_what_a_lane_has_and_neither_its_server_nor_the_log() {
    let stage = stage();
    (1..3).for_each(|user| write(&stage, user, None, Some(1)));
    assert_eq!(run(&stage).await, None);
    let messages = stage.log.messages(SOURCE_NAMES[0]);
    write(&stage, 3, None, Some(1));
    assert_eq!(run(&stage).await, None);
    stage.log.roll_back(SOURCE_NAMES[0], stage.log.messages(SOURCE_NAMES[0]) - messages);
    stage.sources[0].lose_newest(1);
    assert_eq!(run(&stage).await, None, "the reader goes on");
    assert_eq!(users(&stage), [1, 2, 3]);
    let cancel = CancellationToken::new();
    let both = async { tokio::join!(stage.read(0, &cancel), ask(&stage, 0, "r", false)) };
    let (read, gap) = timeout(WHILE, both).await.unwrap();
    assert!(gap.unwrap().why.unwrap().contains("does not hold what was read"));
    assert_eq!(read.unwrap_err().code(), Code::LeaseLost, "the reader learns of it");
    assert_eq!(run(&stage).await, None);
    assert_eq!(users(&stage), [1, 2]);
}

/// Events take long to arrive, so what stops the reader comes long after the shortest probe.
#[tokio::test(start_paused = true)]
async fn a_source_that_is_read_slowly_begins_anew_for_what_stops_its_reader_and_for_nothing_else() {
    let stage = stage();
    write(&stage, 1, None, Some(1));
    assert_eq!(run(&stage).await, None);
    write(&stage, 2, None, Some(1));
    stage.weather.slow_down(Duration::from_secs(60));
    assert!(refused(ask(&stage, 0, "r", false).await).contains("nothing stops its reader"));
    stage.weather.slow_down(Duration::from_secs(3_600));
    let cut_off = refused(ask(&stage, 0, "r", false).await);
    assert!(cut_off.contains("within 30 minutes, and the server's end was at 1:"), "{cut_off}");
    assert_eq!(register(&stage).await.beginning, None);

    let by_text = vec![Value::UInt(3), Value::Date { year: 1990, month: 1, day: 1 }];
    let by_text = ScriptedRow { table: script::table(0), before: None, after: Some(by_text) };
    stage.sources[0].commit(Group::Statement(vec![vec![by_text]]));
    stage.weather.slow_down(Duration::from_secs(60));
    let gap = ask(&stage, 0, "r", false).await.unwrap();
    assert!(gap.why.unwrap().starts_with("[binlog-statement]"));
    stage.weather.slow_down(Duration::ZERO);
    assert_eq!(run(&stage).await, None);
    assert_eq!(users(&stage), [1, 2, 3]);
}
