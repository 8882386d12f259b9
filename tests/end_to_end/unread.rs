//! Rows that no row event of the binlog shows: they come from the tables, at a first start, by a reread of the table,
//! and after a stop by a refresh.

use anabranch_tests::{Daemon, Installation, Plan, Turn, until};

use crate::STANDARD;
use crate::faults::{insert, is_derived, until_derived};

const TABLE: &str = "user_00.user_000";
const OTHER: &str = "user_01.user_000";

async fn stopped_tasks(daemon: &Daemon) -> Vec<String> {
    let status = daemon.status().await.expect("it answers");
    let tasks = status["tasks"].as_array().expect("a list").iter();
    tasks.filter(|task| task["state"] == "stopped").map(|task| task["task"].to_string()).collect()
}

/// After a restored dump, a clone, RESET MASTER or a late start of the log, the binlog begins with file 000001.
#[tokio::test(flavor = "multi_thread")]
async fn a_filled_server_whose_binlog_begins_with_its_first_file_is_loaded() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let rows: Vec<String> = (1..=100).map(|user| format!("({user}, 'name', '1990-01-01')")).collect();
    let unlogged = format!(
        "SET SESSION sql_log_bin = 0; INSERT INTO {TABLE} (user_id, user_name, birthday) VALUES {}",
        rows.join(",")
    );
    installation.execute("source-a", unlogged).await;
    let daemon = installation.run();
    until_derived(&installation, 100).await;
    installation.expect_equal().await;
    daemon.until_view("lanes", ("source", "source-a"), |lane| lane["state"] == "current").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn history_from_before_a_captured_column_was_added_ends_in_a_reading_of_the_table() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let older = format!(
        "ALTER TABLE {TABLE} DROP COLUMN birthday;
         INSERT INTO {TABLE} (user_id, user_name) VALUES (1, 'name'), (2, 'name');
         ALTER TABLE {TABLE} ADD COLUMN birthday DATE NULL;
         UPDATE {TABLE} SET birthday = '1990-01-01'"
    );
    installation.execute("source-a", older).await;
    let daemon = installation.run();
    until_derived(&installation, 1).await;
    insert(&installation, "source-a", OTHER, 3).await;
    until_derived(&installation, 3).await;
    installation.expect_equal().await;
    assert_eq!(stopped_tasks(&daemon).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stops_a_reader_is_left_behind_by_a_refresh() {
    stop_and_refresh(STANDARD.turn().await).await;
}

/// The last step of an online schema change, and a change by text.
fn unseen_changes() -> [String; 2] {
    [
        format!(
            "CREATE TABLE user_00.copy LIKE {TABLE}; INSERT INTO user_00.copy SELECT * FROM {TABLE} WHERE user_id > 5;
             RENAME TABLE {TABLE} TO user_00.old, user_00.copy TO {TABLE}; DROP TABLE user_00.old"
        ),
        format!(
            "SET SESSION binlog_format = STATEMENT; UPDATE {TABLE} SET birthday = '1992-07-08' WHERE user_id = 7"
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_whose_rows_changed_unseen_is_read_again_and_the_source_goes_on() {
    read_again(STANDARD.turn().await).await;
}

pub async fn read_again(turn: Turn<'static>) {
    let installation = Installation::set_up(turn, &Plan::small()).await;
    let mut daemon = installation.run();
    for user in 1..=20 {
        insert(&installation, "source-a", TABLE, user).await;
    }
    until_derived(&installation, 20).await;
    daemon.until_loaded(&["source-a"]).await;
    for (number, what) in unseen_changes().into_iter().enumerate() {
        installation.execute("source-a", &what).await;
        insert(&installation, "source-a", OTHER, 100 + number as u64).await;
        until_derived(&installation, 100 + number as u64).await;
        until("the table is read again", async || installation.compare().await.differences.total() == 0)
            .await;
    }
    assert_eq!(installation.derived(3).await, [], "it is in no table any more");
    // A table that cannot be read: others continue, also after a restart, and it is read once it can be.
    let unfit = format!(
        "ALTER TABLE {TABLE} RENAME COLUMN birthday TO born;
         INSERT INTO {TABLE} (user_id, user_name, born) VALUES (30, 'name', '1990-01-01')"
    );
    installation.execute("source-a", &unfit).await;
    insert(&installation, "source-a", OTHER, 103).await;
    until_derived(&installation, 103).await;
    daemon.kill();
    let daemon = installation.run();
    insert(&installation, "source-a", OTHER, 104).await;
    until_derived(&installation, 104).await;
    let waits = |metrics: &str| {
        metrics.lines().any(|line| line.starts_with("anabranch_refresh_rereads{") && line.ends_with(" 1"))
    };
    until("a lane says that it owes a table", async || waits(&daemon.metrics().await)).await;
    let is_named = |lane: &serde_json::Value| {
        let owed = &lane["owed"][0];
        lane["owed_tables"] == 1 && owed["table"] == TABLE && owed["code"] == "source-column-missing"
    };
    daemon.until_view("lanes", ("source", "source-a"), is_named).await;
    let shown = installation.command(&["status"]).await.stdout;
    assert!(
        shown.contains(
            "1 table waits to be read again; derived rows stand until then\n  [source-column-missing]"
        ),
        "{shown}"
    );
    let traced = installation.command(&["trace", "30"]).await.stdout;
    assert!(traced.contains(&format!("is to read {TABLE} again")), "{traced}");
    installation.execute("source-a", format!("ALTER TABLE {TABLE} RENAME COLUMN born TO birthday")).await;
    until_derived(&installation, 30).await;
    installation.expect_equal().await;
    assert_eq!(stopped_tasks(&daemon).await, Vec::<String>::new());
}

/// Each table that does not fit, with the statement that makes it fit again.
const UNFIT: [(&str, &str); 2] =
    [("ADD SYSTEM VERSIONING", "DROP SYSTEM VERSIONING"), ("ENGINE = MyISAM", "ENGINE = InnoDB")];

#[tokio::test(flavor = "multi_thread")]
async fn a_versioned_table_and_one_without_transactions_stop_no_other_and_are_read_again() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let mut daemon = installation.run();
    insert(&installation, "source-a", TABLE, 1).await;
    until_derived(&installation, 1).await;
    daemon.until_loaded(&["source-a"]).await;
    for (number, (unfit, fit)) in UNFIT.into_iter().enumerate() {
        let user = 10 * (number as u64 + 1);
        installation.execute("source-a", format!("ALTER TABLE {TABLE} {unfit}")).await;
        for other in [user, user + 1] {
            insert(&installation, "source-a", TABLE, other).await;
        }
        let changes = format!(
            "UPDATE {TABLE} SET birthday = '1991-02-03' WHERE user_id = 1; DELETE FROM {TABLE} WHERE user_id = {user}"
        );
        installation.execute("source-a", changes).await;
        // The present rows of such a table can be read, while it is so and after a restart too.
        until("the table is read again", async || installation.compare().await.differences.total() == 0)
            .await;
        daemon.kill();
        daemon = installation.run();
        insert(&installation, "source-a", OTHER, 100 + user).await;
        insert(&installation, "source-a", TABLE, user + 2).await;
        until_derived(&installation, 100 + user).await;
        until_derived(&installation, user + 2).await;
        installation.execute("source-a", format!("ALTER TABLE {TABLE} {fit}")).await;
        insert(&installation, "source-a", TABLE, user + 3).await;
        until_derived(&installation, user + 3).await;
        installation.expect_equal().await;
        assert_eq!(stopped_tasks(&daemon).await, Vec::<String>::new());
    }
}

/// Statements that hide the database `user_00` from the capture account and leave `user_01`, and that show it again.
pub fn grants_that_hide_and_show() -> (String, String) {
    let account = "'anabranch_capture'@'127.0.0.1'";
    let grant = |pattern: &str| format!("GRANT SELECT ON `{pattern}`.* TO {account}");
    let revoke = |pattern: &str| format!("REVOKE SELECT ON `{pattern}`.* FROM {account}");
    (
        format!("{}; {}", grant("user\\_01"), revoke("user\\_%")),
        format!("{}; {}", grant("user\\_%"), revoke("user\\_01")),
    )
}

/// The server lists no table of a database whose grant is missing.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_a_lost_grant_hides_from_a_refresh_or_a_repair_is_read_once_the_grant_is_back() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let daemon = installation.run();
    insert(&installation, "source-a", TABLE, 1).await;
    insert(&installation, "source-a", OTHER, 2).await;
    until_derived(&installation, 1).await;
    until_derived(&installation, 2).await;
    daemon.until_loaded(&["source-a"]).await;

    let (hide, show) = grants_that_hide_and_show();
    let owed = async || daemon.metric("anabranch_refresh_rereads", &[]).await;
    // A repair of a key in the table.
    installation.execute("source-a", &hide).await;
    let refresh = ["refresh", "--projection", "birthday", "--source", "source-a"];
    let repair = [&refresh[..], &["--table", TABLE, "--key", "1"]].concat();
    installation.command(&repair).await.expect_success();
    until("a lane owes the table of the repair", async || owed().await > 0.0).await;
    assert!(is_derived(&installation, 1).await, "the repair removed nothing");
    installation.execute("source-a", &show).await;
    until("no lane owes a table", async || owed().await == 0.0).await;
    assert!(is_derived(&installation, 1).await);

    // A refresh of all tables.
    let unlogged = format!("SET SESSION sql_log_bin = 0; DELETE FROM {TABLE} WHERE user_id = 1");
    installation.execute("source-a", unlogged).await;
    installation.execute("source-a", &hide).await;
    installation.command(&refresh).await.expect_success();
    until("a lane owes the hidden table", async || owed().await > 0.0).await;
    let is_named = |lane: &serde_json::Value| {
        let owed = &lane["owed"][0];
        owed["table"] == TABLE && owed["code"] == "source-table-missing"
    };
    daemon.until_view("lanes", ("source", "source-a"), is_named).await;
    assert!(is_derived(&installation, 1).await, "its rows stay as they are");
    installation.execute("source-a", &show).await;
    until("no lane owes a table", async || owed().await == 0.0).await;
    assert!(!is_derived(&installation, 1).await);
    installation.expect_equal().await;
}

/// With `unseen_changes = "stop"` the source stops, and a refresh ends the stop.
pub async fn stop_and_refresh(turn: Turn<'static>) {
    let mut installation = Installation::set_up(turn, &Plan::small()).await;
    installation.stop_at_unseen_changes();
    let daemon = installation.run();
    for user in 1..=20 {
        insert(&installation, "source-a", TABLE, user).await;
    }
    until_derived(&installation, 20).await;
    // While a lane still reads its tables, the reader would pass the unseen change without a stop.
    daemon.until_loaded(&["source-a"]).await;
    for (number, what) in unseen_changes().into_iter().enumerate() {
        installation.execute("source-a", &what).await;
        insert(&installation, "source-a", OTHER, 100 + number as u64).await;
        let stopped = |task: &serde_json::Value| task["state"] == "stopped";
        let reader = daemon.until_view("tasks", ("task", "reader/source-a"), stopped).await;
        let reported = reader["fault"].to_string();
        assert!(
            reported.contains("refresh --projection") && reported.contains("restart --all"),
            "{reported}"
        );
        let refresh = ["refresh", "--projection", "birthday", "--source", "source-a"];
        installation.command(&refresh).await.expect_success();
        installation.command(&["restart", "--all"]).await.expect_success();
        until_derived(&installation, 100 + number as u64).await;
        installation.expect_equal().await;
        assert_eq!(stopped_tasks(&daemon).await, Vec::<String>::new());
    }
    assert_eq!(installation.derived(3).await, [], "it is in no table any more");
}
