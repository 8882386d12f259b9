//! A source goes on at a server that lacks transactions which were read: only the tables of these are read again.

use std::time::Duration;

use anabranch_connectors::memory::{Group, Refused, ScriptedRow};
use anabranch_pipeline::capture::{BeginAnew, Touched};
use anabranch_pipeline::deliver::{Rewind, rewind};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{Located, Log, SourceConnector};
use anabranch_pipeline::records::Progress;
use anabranch_schemas::birthday::Layout;
use anabranch_schemas::change::Value;
use anabranch_schemas::lsn::Lsn;

use crate::anew::{LANE, progress, restored, run, stage, users};
use crate::script;
use crate::stage::{SOURCE_NAMES, Stage, lane_id, lanes_of, limits};

/// Makes the request as the command does, with the progress of the targets that answer.
async fn ask(stage: &Stage, request: &str, is_rehearsal: bool) -> Result<Touched, Fault> {
    let source = SOURCE_NAMES[0];
    let are_all = !stage.targets.iter().any(|target| target.is_down());
    let answering = stage.targets.iter().filter(|target| !target.is_down());
    let lanes: Vec<Progress> = answering.flat_map(|target| target.progress(source).into_values()).collect();
    ask_with(stage, request, (&lanes, are_all), is_rehearsal).await
}

async fn ask_with(
    stage: &Stage,
    request: &str,
    (lanes, are_all): (&[Progress], bool),
    is_rehearsal: bool,
) -> Result<Touched, Fault> {
    let source = SOURCE_NAMES[0];
    let command = BeginAnew {
        source,
        generation: 0,
        connector: &stage.sources[0],
        log: &stage.log,
        registers: &stage.registers,
        request,
        who: "ann@db-1".to_owned(),
        at_ms: 7,
    };
    command.run_touched(lanes, are_all, is_rehearsal).await
}

/// The text with which a request is refused.
fn refused(asked: Result<Touched, Fault>) -> String {
    let fault = asked.expect_err("it is refused");
    assert_eq!(fault.code(), Code::BeginAnewRefused, "{fault}");
    fault.to_string()
}

fn group(table: usize, user: u64, before: Option<u8>, after: Option<u8>) -> Group {
    let row = |day| vec![Value::UInt(user), Value::Date { year: 1990, month: 1, day }];
    let table = script::table(table);
    Group::Rows(vec![vec![ScriptedRow { table, before: before.map(row), after: after.map(row) }]])
}

fn names(tables: &[usize]) -> Vec<String> {
    tables.iter().map(|table| format!("user_00.user_{table:03}")).collect()
}

/// Commits a group for each user that comes to, or leaves, a table of source 0.
fn write(stage: &Stage, changes: &[(usize, u64, Option<u8>, Option<u8>)]) {
    for (table, user, before, after) in changes {
        stage.sources[0].commit(group(*table, *user, *before, *after));
    }
}

/// Two tables are read; then the server is replaced by one that lacks the newest two transactions of table 0, and has
/// one of table 1 that was never read.
async fn diverged() -> Stage {
    let stage = stage();
    write(&stage, &[(0, 1, None, Some(1)), (0, 2, None, Some(1)), (1, 3, None, Some(1))]);
    assert_eq!(run(&stage).await, None);
    write(&stage, &[(0, 4, None, Some(1)), (0, 1, Some(1), None)]);
    assert_eq!(run(&stage).await, None);
    assert_eq!(users(&stage), [2, 3, 4]);
    stage.sources[0].lose_newest(2);
    write(&stage, &[(1, 5, None, Some(1))]);
    assert_eq!(run(&stage).await, Some(Code::SourceDiverged));
    stage
}

/// Epochs of the versions of a user's derived rows.
fn epochs(stage: &Stage, user: u64) -> Vec<u16> {
    let rows = stage.found_with_versions().into_iter().filter(|((_, _, _, of, _), _)| *of == user);
    rows.map(|(_, version)| version.epoch()).collect()
}

#[tokio::test(start_paused = true)]
async fn only_the_tables_of_lost_transactions_are_read_again() {
    let stage = diverged().await;
    let before = progress(&stage).await;
    let rehearsed = ask(&stage, "r", true).await.unwrap();
    assert_eq!(rehearsed.crossing.tables(), ["user_00.user_000"]);
    assert_eq!(run(&stage).await, Some(Code::SourceDiverged), "a rehearsal writes nothing");
    let touched = ask(&stage, "r", false).await.unwrap();
    assert_eq!((&touched, touched.is_repeated), (&rehearsed, false));
    assert!(touched.why.unwrap().contains("source-diverged") && touched.crossing.end == before.position);
    // The reader dies after it has registered the new epoch, and before its first message is stored.
    stage.weather.refuse(Some((Refused::Appends, Code::LogUnreachable)));
    assert_eq!(run(&stage).await, Some(Code::LogUnreachable));
    stage.weather.refuse(None);
    assert_eq!(run(&stage).await, None);
    assert_eq!(users(&stage), [1, 2, 3, 5]);
    assert_eq!(
        (epochs(&stage, 3), epochs(&stage, 5)),
        (vec![1], vec![2]),
        "table 1 is read on by its binlog"
    );
    let lane = progress(&stage).await;
    assert_eq!((lane.beginning, lane.position.epoch(), lane.refresh), (0, 2, None));
    assert!(ask(&stage, "r", false).await.unwrap().is_repeated, "also after it has taken effect");
    write(&stage, &[(0, 6, None, Some(1)), (1, 3, Some(1), None)]);
    assert_eq!(run(&stage).await, None);
    assert_eq!(users(&stage), [1, 2, 5, 6]);
}

/// The lane has not seen the lost transactions. It follows the stream through them, and through the rereads.
#[tokio::test(start_paused = true)]
async fn a_lane_that_was_away_takes_the_rereads_when_it_comes_to_them() {
    let stage = stage();
    write(&stage, &[(0, 1, None, Some(1)), (1, 3, None, Some(1))]);
    assert_eq!(run(&stage).await, None);
    stage.targets[1].set_down(true);
    write(&stage, &[(0, 4, None, Some(1)), (0, 1, Some(1), None)]);
    assert_eq!(run(&stage).await, None);
    stage.targets[1].set_down(false);
    stage.sources[0].lose_newest(2);
    ask(&stage, "r", false).await.unwrap();
    assert_eq!(run(&stage).await, None);
    assert_eq!(users(&stage), [1, 3]);
}

/// The server is replaced once more before the reader came: the request was for another server.
#[tokio::test(start_paused = true)]
async fn a_request_is_for_one_server() {
    let stage = diverged().await;
    ask(&stage, "one", false).await.unwrap();
    stage.sources[0].fail_over_lagging(2);
    assert_eq!(run(&stage).await, Some(Code::SourceDiverged));
    assert_eq!(ask(&stage, "two", false).await.unwrap().crossing.tables(), ["user_00.user_000"]);
    assert_eq!(run(&stage).await, None);
    assert_eq!(users(&stage), [1, 2, 3]);
}

/// Messages with room for one record.
fn stage_of_small_messages() -> Stage {
    Stage::calm(Layout::ByUser, limits(40, 10, Duration::from_secs(3600)))
}

/// A reread fills the first message, so this has the position of the stream's end. That end and the common message
/// are of two servers.
#[tokio::test(start_paused = true)]
async fn rereads_that_fill_a_message_keep_the_server_of_the_end() {
    let stage = stage_of_small_messages();
    write(&stage, &[(0, 1, None, Some(1)), (1, 3, None, Some(1))]);
    assert_eq!(run(&stage).await, None);
    stage.sources[0].fail_over();
    write(&stage, &[(0, 4, None, Some(1))]);
    assert_eq!(run(&stage).await, None);
    let end = stage.log.last(SOURCE_NAMES[0]).unwrap().envelope;
    stage.sources[0].lose_newest(1);
    assert_eq!(run(&stage).await, Some(Code::SourceDiverged));
    let crossing = ask(&stage, "r", false).await.unwrap().crossing;
    assert_eq!((crossing.common.epoch(), crossing.end), (1, end.position));
    let messages = stage.log.messages(SOURCE_NAMES[0]);
    assert_eq!(run(&stage).await, None);
    assert!(stage.log.messages(SOURCE_NAMES[0]) > messages + 1, "the rereads have a message of their own");
    assert_eq!(users(&stage), [1, 3]);
    let lane = progress(&stage).await;
    assert_eq!((lane.position.epoch(), lane.refresh), (3, None));
}

/// A lane has a part of a transaction and is set back to before it. Stream and server lose the transaction.
#[tokio::test(start_paused = true)]
async fn lanes_whose_replay_forgets_a_part_of_a_transaction_read_all_tables() {
    let (name, stage) = (SOURCE_NAMES[0], stage_of_small_messages());
    write(&stage, &[(0, 1, None, Some(1))]);
    assert_eq!(run(&stage).await, None);
    let Progress { position, resume, server, .. } = progress(&stage).await;
    let to = Rewind::To(Located { position, resume, server });
    write(&stage, &[(0, 2, None, Some(1))]);
    assert_eq!(run(&stage).await, None);
    let before = stage.log.messages(name);
    stage.targets.iter().for_each(|target| target.set_down(true));
    let row = |user| {
        let after = vec![Value::UInt(user), Value::Date { year: 1990, month: 1, day: 1 }];
        ScriptedRow { table: script::table(0), before: None, after: Some(after) }
    };
    stage.sources[0].commit(Group::Rows(vec![[3, 4, 5].map(row).into()]));
    assert_eq!(run(&stage).await, None);
    let parts = stage.log.messages(name) - before;
    assert!(parts > 1, "{parts}");
    stage.log.roll_back(name, parts - 1);
    stage.targets.iter().for_each(|target| target.set_down(false));
    stage.weather.refuse(Some((Refused::Appends, Code::LogUnreachable)));
    assert_eq!(run(&stage).await, Some(Code::LogUnreachable));
    stage.weather.refuse(None);
    assert_eq!(users(&stage), [1, 2, 3]);
    assert!(progress(&stage).await.resume.partial.is_some());
    for lane in lanes_of(0) {
        rewind(&lane_id(lane), &mut stage.store(lane), &to, false).await.unwrap();
    }
    stage.log.roll_back(name, 1);
    stage.sources[0].lose_newest(1);
    write(&stage, &[(1, 7, None, Some(1))]);
    assert_eq!(run(&stage).await, None, "the server has all that the log has");
    assert_eq!(users(&stage), [1, 2, 7]);
    assert_eq!(progress(&stage).await.refresh, None);
}

/// No lane can read a table that the server does not have. The proof that it is absent ends the wait for it.
#[tokio::test(start_paused = true)]
async fn a_table_that_only_lost_transactions_made_loses_its_rows_and_the_others_are_read() {
    let stage = stage();
    write(&stage, &[(0, 1, None, Some(1)), (0, 2, None, Some(1))]);
    assert_eq!(run(&stage).await, None);
    write(&stage, &[(1, 3, None, Some(1)), (0, 2, Some(1), None)]);
    assert_eq!(run(&stage).await, None);
    stage.sources[0].lose_newest(2);
    let crossing = ask(&stage, "r", false).await.unwrap().crossing;
    let mut tables = crossing.tables();
    tables.sort_unstable();
    assert_eq!((tables, crossing.gone_tables()), (names(&[0, 1]), Vec::new()));
    assert_eq!(run(&stage).await, None);
    assert_eq!(users(&stage), [1, 2]);
    for (lane, progress) in stage.progress(0) {
        assert_eq!((progress.refresh, progress.withdrawals.is_empty()), (None, true), "{lane}");
    }
    // The table comes.
    write(&stage, &[(1, 7, None, Some(1))]);
    assert_eq!(run(&stage).await, None);
    assert_eq!(users(&stage), [1, 2, 7]);
}

/// The server dropped a table, and is replaced by one that lacks the drop before the reader came to it.
#[tokio::test(start_paused = true)]
async fn a_table_that_one_server_dropped_is_read_again_from_the_next_which_has_it() {
    let (name, stage) = (SOURCE_NAMES[0], stage_of_small_messages());
    write(&stage, &[(0, 1, None, Some(1)), (1, 3, None, Some(1))]);
    assert_eq!(run(&stage).await, None);
    write(&stage, &[(1, 4, None, Some(1))]);
    assert_eq!(run(&stage).await, None);
    assert_eq!(users(&stage), [1, 3, 4]);
    stage.sources[0].lose_newest(1);
    write(&stage, &[(0, 5, None, Some(1))]);
    let before_drop = stage.sources[0].head().await.unwrap().in_epoch(2).unwrap();
    // A row that finds its message full begins the next one, which has the drop too.
    write(&stage, &[(0, 7, None, Some(1))]);
    stage.sources[0].commit(Group::Drop(script::table(1)));
    let crossing = ask(&stage, "r", false).await.unwrap().crossing;
    assert_eq!((crossing.tables(), crossing.gone_tables()), (names(&[1]), Vec::new()));
    // The stream keeps the crossing and the first row, and loses the drop before a lane has it.
    stage.targets.iter().for_each(|target| target.set_down(true));
    assert_eq!(run(&stage).await, None);
    while stage.log.last(name).unwrap().envelope.position > before_drop {
        stage.log.roll_back(name, 1);
    }
    assert_eq!(stage.log.last(name).unwrap().envelope.position, before_drop);
    stage.sources[0].fail_over_lagging(2);
    stage.targets.iter().for_each(|target| target.set_down(false));
    write(&stage, &[(0, 6, None, Some(1))]);
    assert_eq!(run(&stage).await, None);
    assert_eq!(users(&stage), [1, 3, 5, 6]);
    for (lane, progress) in stage.progress(0) {
        assert_eq!(progress.refresh, None, "{lane}");
    }
}

/// No lane can ask for a table without a usual name, and would wait for it without end. Here that is a retired one.
#[tokio::test(start_paused = true)]
async fn an_absent_table_without_a_usual_name_is_withdrawn() {
    let stage = stage();
    write(&stage, &[(0, 1, None, Some(1)), (1, 3, None, Some(1))]);
    assert_eq!(run(&stage).await, None);
    write(&stage, &[(1, 4, None, Some(1))]);
    assert_eq!(run(&stage).await, None);
    stage.sources[0].lose_newest(1);
    stage.sources[0].commit(Group::Retire(script::table(1)));
    let crossing = ask(&stage, "r", true).await.unwrap().crossing;
    assert_eq!((crossing.tables(), crossing.gone_tables()), (Vec::new(), names(&[1])));
}

/// Rows that a retention job deleted pass to an heir of their table, which no server lists.
#[tokio::test(start_paused = true)]
async fn the_table_of_an_heir_is_read_again_and_no_lane_waits_for_the_heir() {
    let stage = stage();
    write(&stage, &[(0, 1, None, Some(1)), (0, 2, None, Some(1))]);
    assert_eq!(run(&stage).await, None);
    let heir = script::table(0).heir(SOURCE_NAMES[0], 0, 1);
    write(&stage, &[(0, 2, Some(1), None)]);
    stage.sources[0].commit(Group::Retire(heir));
    assert_eq!(run(&stage).await, None);
    assert_eq!(users(&stage), [1]);
    stage.sources[0].lose_newest(2);
    assert_eq!(ask(&stage, "r", false).await.unwrap().crossing.tables(), ["user_00.user_000"]);
    assert_eq!(run(&stage).await, None);
    assert_eq!(users(&stage), [1, 2]);
    for (lane, progress) in stage.progress(0) {
        assert_eq!(progress.refresh, None, "{lane}");
    }
}

/// The log and the server lose the same transaction while the lanes are set back to before it: they have rows of it
/// that nothing else tells of. They go on by the stream, or by the binlog where the stream lacks what they need.
#[tokio::test(start_paused = true)]
async fn lanes_that_are_replayed_when_another_server_comes_read_all_tables() {
    let name = SOURCE_NAMES[0];
    for is_direct in [false, true] {
        let stage = stage();
        write(&stage, &[(0, 1, None, Some(1))]);
        assert_eq!(run(&stage).await, None);
        let Progress { position, resume, server, .. } = progress(&stage).await;
        let to = Rewind::To(Located { position, resume, server });
        for user in [2, 3] {
            write(&stage, &[(1, user, None, Some(1))]);
            assert_eq!(run(&stage).await, None);
        }
        let messages = stage.log.messages(name);
        write(&stage, &[(0, 4, None, Some(1))]);
        assert_eq!(run(&stage).await, None);
        assert_eq!(users(&stage), [1, 2, 3, 4]);
        for lane in lanes_of(0) {
            rewind(&lane_id(lane), &mut stage.store(lane), &to, false).await.unwrap();
        }
        stage.log.roll_back(name, stage.log.messages(name) - messages);
        if is_direct {
            stage.log.discard(name, messages - 1);
        }
        stage.sources[0].lose_newest(1);
        assert_eq!(run(&stage).await, None, "the server has all that the log has");
        assert_eq!(users(&stage), [1, 2, 3], "by the binlog: {is_direct}");
        let lane = progress(&stage).await;
        assert_eq!((lane.position.epoch(), lane.refresh), (2, None));
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_log_does_not_tell_is_refused_by_name() {
    let name = SOURCE_NAMES[0];
    let fresh = stage();
    assert!(refused(ask(&fresh, "r", false).await).contains("its stream is empty"));
    write(&fresh, &[(0, 1, None, Some(1))]);
    assert_eq!(run(&fresh).await, None);
    assert!(refused(ask(&fresh, "r", false).await).contains("nothing stops its reader"));
    let found = refused(ask(&restored().await, "r", false).await);
    assert!(found.contains("stops with source-server-changed"), "{found}");

    let away = diverged().await;
    away.targets[1].set_down(true);
    assert!(refused(ask(&away, "r", false).await).contains("a target does not answer"));

    let retained = diverged().await;
    retained.log.discard(name, retained.log.messages(name) - 1);
    let found = refused(ask(&retained, "r", false).await);
    assert!(
        found.contains("no longer has what lies beyond") && found.contains("without `--touched`"),
        "{found}"
    );

    let replayed = diverged().await;
    let place = replayed.log.first_at(name, Lsn::ZERO).await.unwrap().unwrap().envelope;
    assert!(place.position < progress(&replayed).await.position);
    let to = Rewind::To(Located { position: place.position, resume: place.resume, server: place.server });
    rewind(&lane_id(LANE), &mut replayed.store(LANE), &to, false).await.unwrap();
    assert!(refused(ask(&replayed, "r", false).await).contains("a lane is replayed"));

    let every = stage();
    write(&every, &[(0, 1, None, Some(1))]);
    assert_eq!(run(&every).await, None);
    // The commit of an unread branch has every table read again.
    every.sources[0].commit(Group::CommitBranch(7));
    assert_eq!(run(&every).await, None);
    every.sources[0].lose_newest(1);
    assert!(refused(ask(&every, "r", false).await).contains("has every table read again"));
}

#[tokio::test(start_paused = true)]
async fn a_purged_binlog_and_a_table_that_was_retired_are_refused_by_name() {
    let purged = diverged().await;
    purged.sources[0].rotate();
    purged.sources[0].purge([]);
    let found = refused(ask(&purged, "r", false).await);
    assert!(found.contains("purged its binlog after that"), "{found}");

    let retired = stage();
    write(&retired, &[(0, 1, None, Some(1)), (1, 3, None, Some(1))]);
    assert_eq!(run(&retired).await, None);
    retired.sources[0].commit(Group::Retire(script::table(0)));
    assert_eq!(run(&retired).await, None);
    retired.sources[0].lose_newest(1);
    let found = refused(ask(&retired, "r", false).await);
    assert!(found.contains("user_00.user_000 left by a retention rule"), "{found}");
}

/// The server is replaced once more while lanes have the first message of a crossing, which has the rereads alone.
#[tokio::test(start_paused = true)]
async fn a_part_of_a_crossing_hinders_no_further_one() {
    let stage = diverged().await;
    let lanes = |highest_change: Lsn| -> Vec<Progress> {
        let lanes = stage.targets.iter().flat_map(|target| target.progress(SOURCE_NAMES[0]).into_values());
        lanes.map(|lane| Progress { highest_change, ..lane }).collect()
    };
    let part = lanes(Lsn::new(2, 0, 0).unwrap());
    assert_eq!(ask_with(&stage, "r", (&part, true), true).await.unwrap().crossing.tables(), names(&[0]));
    let further = lanes(Lsn::new(2, 1, 64).unwrap());
    let found = refused(ask_with(&stage, "r", (&further, true), true).await);
    assert!(found.contains("a lane is at 2:1:64"), "{found}");
}
