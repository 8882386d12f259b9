//! A user that moves between shards ends in exactly one derived table, whatever the order in which the two logs arrive,
//! and a column that is renamed table by table leaves no change out.

use anabranch_demo::Connection;
use anabranch_tests::{Daemon, Installation, Plan};

use crate::STANDARD;
use crate::reconciliations::reconcile;

/// Tables on `source-a`, with columns of type DATE, DATETIME and text.
const A_DATE: &str = "user_00.user_000";
const A_DATETIME: &str = "user_01.user_000";
const A_TEXT: &str = "user_02.user_000";
/// A table on `source-b`.
const B_TEXT: &str = "user_07.user_000";
const B_DATE: &str = "user_05.user_000";

fn insert(table: &str, user: u64, birthday: &str) -> String {
    format!(
        "INSERT INTO {table} (user_id, user_name, birthday) VALUES ({user}, 'name-{user}', '{birthday}');"
    )
}

fn delete(table: &str, user: u64) -> String {
    format!("DELETE FROM {table} WHERE user_id = {user};")
}

async fn prepare<'g>() -> Installation<'g> {
    Installation::set_up(STANDARD.turn().await, &Plan::small()).await
}

async fn is_only_in(installation: &Installation<'_>, user: u64, month_day: &str) {
    let rows = installation.derived(user).await;
    let days: Vec<&str> = rows.iter().map(|(_, day)| day.as_str()).collect();
    assert_eq!(days, [month_day], "user {user}: {rows:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_that_moves_to_another_server_is_in_one_table_in_either_order() {
    let installation = prepare().await;
    let _daemon = installation.run();
    let on = async |server: &str, sql: &str| installation.execute(server, sql).await;

    // With the same birthday, with another one, and back again.
    for (user, new) in [(1, "1990-01-31"), (2, "1990-02-28")] {
        let [first, second] = ["01-31", &new[5..]];
        on("source-a", &insert(A_DATE, user, "1990-01-31")).await;
        is_only_in(&installation, user, first).await;
        on("source-b", &insert(B_TEXT, user, new)).await;
        on("source-a", &delete(A_DATE, user)).await;
        is_only_in(&installation, user, second).await;
        on("source-b", &delete(B_TEXT, user)).await;
        on("source-a", &insert(A_TEXT, user, "1990-01-31")).await;
        is_only_in(&installation, user, first).await;
    }
    installation.expect_equal().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_that_moves_inside_a_server_is_in_one_table_in_either_order() {
    let installation = prepare().await;
    let _daemon = installation.run();
    let on_a = async |sql: &str| installation.execute("source-a", sql).await;

    on_a(&(insert(A_DATE, 1, "2000-02-29") + &insert(A_DATE, 2, "2000-02-29"))).await;
    on_a(&format!("BEGIN; {} {} COMMIT", insert(A_DATETIME, 1, "2000-02-29"), delete(A_DATE, 1))).await;
    on_a(&format!("BEGIN; {} {} COMMIT", delete(A_DATE, 2), insert(A_TEXT, 2, "2000-12-31"))).await;
    is_only_in(&installation, 1, "02-29").await;
    is_only_in(&installation, 2, "12-31").await;

    // There and back within one transaction, each time with the insert first.
    let [there, back] = [insert(A_TEXT, 1, "2000-03-01"), insert(A_DATETIME, 1, "2000-02-28")];
    on_a(&format!("BEGIN; {there} {} {back} {} COMMIT", delete(A_DATETIME, 1), delete(A_TEXT, 1))).await;
    is_only_in(&installation, 1, "02-28").await;

    // A new name stays in the same table; a new id is another user.
    on_a("UPDATE user_02.user_000 SET user_name = 'else' WHERE user_id = 2").await;
    is_only_in(&installation, 2, "12-31").await;
    on_a("UPDATE user_02.user_000 SET user_id = 3 WHERE user_id = 2").await;
    is_only_in(&installation, 3, "12-31").await;
    assert_eq!(installation.derived(2).await, []);
    installation.expect_equal().await;
}

async fn replay(installation: &Installation<'_>, mut daemon: Daemon, source: &str) -> Daemon {
    daemon.kill();
    let arguments = ["replay", "--projection", "birthday", "--source", source, "--from", "earliest"];
    installation.command(&arguments).await.expect_success();
    let daemon = installation.run();
    daemon.until_ready().await;
    daemon
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_replayed_later_puts_nobody_back() {
    let installation = prepare().await;
    let daemon = installation.run();
    let on = async |server: &str, sql: &str| installation.execute(server, sql).await;
    on("source-a", &insert(A_DATE, 9, "1999-09-09")).await;
    on("source-b", &insert(B_DATE, 9, "1999-09-09")).await;
    installation.drained().await;

    // User 1 moves from a to b, 2 from b to a, 3 there and back, with a change of birthday on the way.
    on("source-a", &(insert(A_DATE, 1, "1990-01-01") + &insert(A_TEXT, 3, "1990-03-03"))).await;
    on("source-b", &insert(B_TEXT, 2, "1990-02-02")).await;
    on("source-b", &(insert(B_DATE, 1, "1990-11-01") + &insert(B_DATE, 3, "1990-03-03"))).await;
    on("source-a", &(delete(A_DATE, 1) + &delete(A_TEXT, 3) + &insert(A_DATE, 2, "1990-02-02"))).await;
    on("source-b", &(delete(B_TEXT, 2) + &delete(B_DATE, 3))).await;
    on("source-a", &insert(A_DATETIME, 3, "1990-03-04")).await;
    installation.expect_equal().await;

    let daemon = replay(&installation, daemon, "source-a").await;
    installation.expect_equal().await;
    let replayed = daemon.metric("anabranch_lane_rows_total", &["source=\"source-a\""]).await;
    assert!(replayed > 0.0, "nothing was replayed");
    let _daemon = replay(&installation, daemon, "source-b").await;
    installation.expect_equal().await;
    for (user, day) in [(1, "11-01"), (2, "02-02"), (3, "03-04")] {
        is_only_in(&installation, user, day).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn truncate_and_drop_withdraw_the_claims_of_one_shard_only() {
    let installation = prepare().await;
    let _daemon = installation.run();
    let on = async |server: &str, sql: &str| installation.execute(server, sql).await;
    // User 1 is in two shards, as in the middle of a move.
    on("source-a", &(insert(A_DATE, 1, "1990-05-05") + &insert(A_DATE, 2, "1990-05-05"))).await;
    on("source-a", &(insert(A_DATETIME, 1, "1990-05-05") + &insert(A_TEXT, 3, "1990-05-05"))).await;
    on("source-b", &insert(B_DATE, 4, "1990-05-05")).await;
    assert_eq!(installation.derived(1).await.len(), 2);

    on("source-a", &format!("TRUNCATE TABLE {A_DATE}")).await;
    assert_eq!(installation.derived(1).await.len(), 1);
    assert_eq!(installation.derived(2).await, []);
    on("source-a", &insert(A_DATE, 2, "1990-06-06")).await;
    is_only_in(&installation, 2, "06-06").await;

    on("source-a", &format!("DROP TABLE {A_DATETIME}")).await;
    assert_eq!(installation.derived(1).await, []);
    for (user, day) in [(2, "06-06"), (3, "05-05"), (4, "05-05")] {
        is_only_in(&installation, user, day).await;
    }
}

/// Names of the column while its rename is rolled out.
const OLD: &str = "birthday";
const NEW: &str = "birth_date";

/// Writes a user into a table, under the name that its column has at that moment.
async fn write(connection: &mut Connection, table: &str, user: u64) {
    let day = user % 28 + 1;
    for name in [OLD, NEW] {
        let sql = format!(
            "REPLACE INTO {table} (user_id, user_name, {name}) VALUES ({user}, 'name', '1990-02-{day:02}')"
        );
        if connection.execute("write a user", sql).await.is_ok() {
            return;
        }
    }
    panic!("{table} has neither {OLD} nor {NEW}");
}

/// The tables that are renamed have columns of three types; others keep the old name.
#[tokio::test(flavor = "multi_thread")]
async fn a_column_that_is_renamed_table_by_table_beside_changes_leaves_no_change_out() {
    const TABLES: [&str; 3] = [A_DATE, A_DATETIME, A_TEXT];
    let mut installation = prepare().await;
    let columns =
        format!("sharding_column = \"user_name\"\ncolumns = {{ {OLD} = [\"{OLD}\", \"{NEW}\"] }}\n");
    let text = installation.configuration_text().replace("sharding_column = \"user_name\"\n", &columns);
    assert!(text.contains(NEW), "{text}");
    installation.write_configuration_text(&format!("{text}\n[reconcile]\nlane_wait_seconds = 20\n"));
    let daemon = installation.run();
    daemon.until_loaded(&["source-a", "source-b"]).await;
    let rename = async |from: &str, to: &str| {
        for table in TABLES {
            let sql = format!("ALTER TABLE {table} RENAME COLUMN {from} TO {to}");
            installation.execute("source-a", sql).await;
        }
    };
    let changing = async {
        let mut connection = installation.admin("source-a").await;
        for user in 1..=150 {
            write(&mut connection, TABLES[user as usize % TABLES.len()], user).await;
            installation.execute("source-b", insert(B_DATE, 1_000 + user, "1990-03-01")).await;
        }
    };
    tokio::join!(changing, rename(OLD, NEW));
    installation.drained().await;
    is_only_in(&installation, 150, "02-11").await;
    assert!(daemon.metric("anabranch_source_rereads_total", &[]).await == 0.0, "a table was read again");
    let (_, report) = reconcile(&installation, &[]).await;
    assert_eq!(report["verdict"], "clean", "{report}");

    // A refresh reads each table under its own name.
    let arguments = ["refresh", "--projection", "birthday", "--source", "source-a"];
    installation.command(&arguments).await.expect_success();
    daemon.until_loaded(&["source-a"]).await;
    rename(NEW, OLD).await;
    installation.expect_equal().await;
    assert!(daemon.metric("anabranch_source_rereads_total", &[]).await == 0.0, "a table was read again");
}
