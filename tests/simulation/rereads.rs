//! A table whose rows changed unseen is compared with its derived rows: nothing is written where nothing differs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anabranch_connectors::memory::{Group, Refused, ScriptedRow};
use anabranch_pipeline::deliver::Shared;
use anabranch_pipeline::error::Code;
use anabranch_pipeline::ports::LaneStore;
use anabranch_pipeline::records::{Cell, Scope};
use anabranch_schemas::birthday::Layout;
use anabranch_schemas::change::{Row, Value};
use anabranch_schemas::lsn::Lsn;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::script;
use crate::stage::{Stage, lanes_of, limits};

/// Time in which the lanes do all that there is.
const WHILE: Duration = Duration::from_secs(60);
/// Users of the table: some chunks.
const USERS: u64 = 60;
/// Users of whom each lane has more than one repair takes.
const MANY: u64 = 600;

/// User → day and version of each derived row.
type Derived = BTreeMap<(usize, u64), (String, Lsn)>;

fn row(user: u64, day: u8) -> Row<'static> {
    vec![Value::UInt(user), Value::Date { year: 1990, month: 1, day }]
}

/// A change of a user in the first table: the day before, and the day after.
fn change(user: u64, before: Option<u8>, after: Option<u8>) -> ScriptedRow {
    change_in(0, user, before, after)
}

fn change_in(table: usize, user: u64, before: Option<u8>, after: Option<u8>) -> ScriptedRow {
    let (before, after) = (before.map(|day| row(user, day)), after.map(|day| row(user, day)));
    ScriptedRow { table: script::table(table), before, after }
}

fn write(stage: &Stage, user: u64, before: Option<u8>, after: Option<u8>) {
    stage.sources[0].commit(Group::Rows(vec![vec![change(user, before, after)]]));
}

/// Runs the reader and the lanes of the first source until they have nothing more to do.
async fn run(stage: &Stage) {
    run_for(stage, WHILE).await;
}

async fn run_for(stage: &Stage, time: Duration) {
    let (cancel, shared) = (CancellationToken::new(), Shared::new(2));
    let reader = stage.read(0, &cancel);
    let lanes = futures::future::join_all(lanes_of(0).map(|lane| stage.deliver(lane, &shared, &cancel)));
    timeout(time, async { tokio::join!(reader, lanes) }).await.expect_err("none of them ends");
    let owed = stage.progress(0).into_iter().filter(|(_, progress)| progress.refresh.is_some());
    assert_eq!(owed.map(|(lane, _)| lane.to_string()).collect::<Vec<_>>(), [""; 0]);
}

/// A source whose first table has users, and whose lanes have loaded it.
async fn loaded(users: u64, flush_rows: usize) -> Stage {
    let stage = Stage::calm(Layout::ByUser, limits(1_000, flush_rows, Duration::from_secs(3_600)));
    (1..=users).for_each(|user| write(&stage, user, None, Some(1)));
    run(&stage).await;
    assert_eq!(derived(&stage).len() as u64, users);
    stage
}

fn derived(stage: &Stage) -> Derived {
    let found = stage.found_with_versions().into_iter();
    found.map(|((target, _, _, user, day), version)| ((target, user), (day, version))).collect()
}

/// Rows that the lanes have written.
async fn written(stage: &Stage) -> u64 {
    let mut rows = 0;
    for lane in lanes_of(0) {
        rows += stage.store(lane).load().await.expect("the weather is calm").rows;
    }
    rows
}

#[tokio::test(start_paused = true)]
async fn a_table_that_equals_its_derived_rows_is_not_written_again() {
    // A rate cuts what a lane reads at once.
    for flush_rows in [10, 11] {
        let stage = loaded(USERS, flush_rows).await;
        let (before, rows) = (derived(&stage), written(&stage).await);
        stage.sources[0].commit(Group::Unseen(vec![vec![change(3, Some(1), Some(1))]]));
        run(&stage).await;
        assert_eq!((derived(&stage), written(&stage).await), (before, rows), "{flush_rows}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_what_differs_is_written_beside_changes() {
    let stage = loaded(USERS, 10).await;
    let before = derived(&stage);
    let unseen =
        vec![change(3, Some(1), None), change(4, Some(1), Some(2)), change(USERS + 1, None, Some(3))];
    stage.sources[0].commit(Group::Unseen(vec![unseen]));
    (10..30).for_each(|user| write(&stage, user, Some(1), Some(4)));
    write(&stage, 40, Some(1), None);
    // A row that people wrote, and one that they removed.
    let (removed, stored) = stage.targets[0].rows().pop_first().expect("it has rows");
    stage.tamper(0, |rows| {
        rows.remove(&removed);
        rows.insert((removed.0, removed.1, [Cell::UInt(USERS + 9)].into()), stored);
    });
    run(&stage).await;
    let after = derived(&stage);
    for ((target, user), (day, version)) in &after {
        let (expected, is_changed) = match *user {
            4 => ("01-02", true),
            10..30 => ("01-04", true),
            user if user == USERS + 1 => ("01-03", true),
            user => ("01-01", removed.2[0] == Cell::UInt(user)),
        };
        assert_eq!(day, expected, "user {user}");
        let was = before.get(&(*target, *user)).map(|(_, version)| *version);
        assert_eq!(was != Some(*version), is_changed, "user {user} is written");
    }
    let users: BTreeSet<u64> = after.into_keys().map(|(_, user)| user).collect();
    let expected: BTreeSet<u64> = (1..=USERS + 1).filter(|user| ![3, 40].contains(user)).collect();
    assert_eq!(users, expected);
}

#[tokio::test(start_paused = true)]
async fn a_table_in_which_more_differs_than_a_repair_takes_is_read_as_a_whole() {
    let stage = loaded(MANY + 5, 100).await;
    let before = derived(&stage);
    let unseen = (1..=MANY).map(|user| change(user, Some(1), (user % 2 == 0).then_some(2)));
    stage.sources[0].commit(Group::Unseen(vec![unseen.collect()]));
    run(&stage).await;
    for ((target, user), (day, version)) in &derived(&stage) {
        assert!(*user > MANY || user % 2 == 0, "user {user} is gone");
        assert_eq!(day, if *user > MANY { "01-01" } else { "01-02" }, "user {user}");
        assert!(before[&(*target, *user)].1 < *version, "the sweep counts on the version of user {user}");
    }
    assert_eq!(derived(&stage).len() as u64, MANY / 2 + 5);
}

/// Rows of more tables change unseen in one transaction than a progress row lists: each lane reads every table instead.
#[tokio::test(start_paused = true)]
async fn more_tables_at_once_than_a_progress_row_lists_are_read_with_all_others() {
    const TABLES: usize = 1_100;
    let each = |before: Option<u8>, after: Option<u8>| -> Vec<ScriptedRow> {
        (0..TABLES).map(|table| change_in(table, table as u64 + 1, before, after)).collect()
    };
    let stage = Stage::calm(Layout::ByUser, limits(100_000, 100, Duration::from_secs(3_600)));
    stage.sources[0].commit(Group::Rows(vec![each(None, Some(1))]));
    run_for(&stage, 10 * WHILE).await;
    assert_eq!(derived(&stage).len(), TABLES);

    stage.sources[0].commit(Group::Unseen(vec![each(Some(1), Some(2))]));
    let (cancel, shared) = (CancellationToken::new(), Shared::new(2));
    timeout(WHILE, stage.read(0, &cancel)).await.expect_err("a reader does not end");
    // The lanes pass all records while no table can be read.
    stage.weather.refuse(Some((Refused::Source, Code::SourceUnreachable)));
    let lanes = futures::future::join_all(lanes_of(0).map(|lane| stage.deliver(lane, &shared, &cancel)));
    _ = timeout(Duration::from_millis(500), lanes).await;
    stage.weather.refuse(None);
    for (lane, progress) in stage.progress(0) {
        let owed = progress.refresh.expect("rows changed unseen");
        assert_eq!((owed.scope, owed.every_waits), (Scope::Source, true), "{lane}");
    }
    run_for(&stage, 10 * WHILE).await;
    assert!(derived(&stage).values().all(|(day, _)| day == "01-02"));
    assert_eq!(derived(&stage).len(), TABLES);
}
