//! Rows that no binlog holds any more, and derived rows that no source row claims: a refresh adds and removes them
//! while changes go on.

use std::time::Duration;

use anabranch_demo::{Pace, WorkloadOptions};
use anabranch_schemas::shard::ShardId;
use anabranch_tests::{Installation, Plan, Turn, seed, until};

use crate::STANDARD;

/// Purges the binlogs of a source, so that none holds the rows written so far.
pub async fn forget_the_past(installation: &Installation<'_>, source: &str) {
    let mut admin = installation.admin(source).await;
    admin.execute("begin a file", "FLUSH BINARY LOGS").await.unwrap();
    // The server keeps a file until all of its transactions are safe in the tables.
    until("the older files are purged", async || {
        let files = admin.rows::<mysql_async::Row>("list files", "SHOW BINARY LOGS").await.unwrap();
        let last: String = files.last().unwrap().get(0).unwrap();
        admin.execute("purge", format!("PURGE BINARY LOGS TO '{last}'")).await.unwrap();
        files.len() == 1
    })
    .await;
}

/// Number of rows that differ.
async fn wrong(installation: &Installation<'_>) -> u64 {
    installation.compare().await.differences.total()
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_no_binlog_holds_come_by_a_refresh_and_rows_of_nobody_go_while_changes_go_on() {
    refreshed_beside_changes(STANDARD.turn().await).await;
}

pub async fn refreshed_beside_changes(turn: Turn<'static>) {
    let installation = Installation::prepare(turn, &Plan::both()).await;
    let mut workloads = installation.workloads(WorkloadOptions::new(seed("refresh")));
    for workload in &mut workloads {
        workload.insert_rows(3_000).await.unwrap();
    }
    for source in ["source-a", "source-b"] {
        forget_the_past(&installation, source).await;
    }
    // No operator asks for the load: the binlogs do not begin with the sources.
    installation.command(&["setup"]).await.expect_success();
    let mut daemon = installation.run();
    let running = workloads.iter_mut().map(|w| w.run_for(Pace::of(300), Duration::from_secs(2)));
    futures::future::join_all(running).await.into_iter().for_each(|ended| _ = ended.unwrap());
    until("equal after the initial load", async || wrong(&installation).await == 0).await;
    until("every lane is through", async || {
        let status = installation.command(&["status", "--json"]).await.json();
        status["lanes"].as_array().unwrap().iter().all(|lane| lane["refreshed_rows"].is_null())
    })
    .await;

    // Changes that were made without a daemon are gone from the binlogs.
    daemon.kill();
    installation.free_leases().await;
    for workload in &mut workloads {
        workload.run_for(Pace::of(300), Duration::from_secs(1)).await.unwrap();
    }
    for source in ["source-a", "source-b"] {
        forget_the_past(&installation, source).await;
    }
    let mut daemon = installation.run();
    until("the remedy is told", async || {
        let log = daemon.log();
        log.contains("[binlog-purged]") && log.contains("refresh --projection NAME --source source-a")
    })
    .await;
    for projection in ["birthday", "mapping"] {
        let done = installation.command(&["refresh", "--projection", projection]).await;
        assert!(done.expect_success().stdout.contains("refreshes all tables of its source"));
    }
    daemon.kill();
    installation.free_leases().await;
    let daemon = installation.run();
    until("equal after a refresh", async || wrong(&installation).await == 0).await;
    until("every lane is through", async || {
        let status = installation.command(&["status", "--json"]).await.json();
        status["lanes"].as_array().unwrap().iter().all(|lane| lane["refreshed_rows"].is_null())
    })
    .await;

    rows_of_tables_are_refreshed(&installation).await;
    rows_of_a_key_are_refreshed(&installation).await;
    let log = daemon.log();
    assert!(log.contains("the refresh is complete"), "{log}");
    rows_that_a_condition_finds_are_refreshed(&installation).await;
}

/// A refresh of tables: missing rows come back, and unclaimed ones go.
async fn rows_of_tables_are_refreshed(installation: &Installation<'_>) {
    installation
        .execute(
            "target",
            "INSERT INTO birthday_00.birthday_0105 (shard_id, user_id, birthday, lsn) SELECT DISTINCT shard_id, \
             4000000000, '01-05', 1 FROM birthday_00.birthday_0101; DELETE FROM birthday_00.birthday_0101",
        )
        .await;
    assert!(installation.compare().await.differences.total() > 0);
    let refused =
        installation.command(&["refresh", "--projection", "birthday", "--table", "user_00.user_000"]).await;
    assert!(refused.exit_code != 0 && refused.stderr.contains("belongs to one source"), "{refused:?}");
    for (number, source) in installation.configuration.sources.iter().enumerate() {
        for place in installation.audits[0].topology.tables_of(number) {
            let table = place.name();
            let arguments = ["refresh", "--projection", "birthday", "--source", source, "--table", &table];
            until("the refresh before it is through", async || {
                installation.command(&arguments).await.exit_code == 0
            })
            .await;
        }
    }
    until("equal after refreshes of tables", async || wrong(installation).await == 0).await;
}

/// A refresh of a key: a row in a wrong table goes, though it is newer than every change.
async fn rows_of_a_key_are_refreshed(installation: &Installation<'_>) {
    let planted = "INSERT INTO birthday_00.birthday_0107 (shard_id, user_id, birthday, lsn) \
        SELECT shard_id, user_id, '01-07', ~0 FROM birthday_00.birthday_0101 LIMIT 1";
    installation.execute("target", planted).await;
    let user = "SELECT user_id FROM birthday_00.birthday_0107 WHERE lsn = ~0";
    let user: u64 = installation.admin("target").await.rows("the user", user).await.unwrap()[0];
    let no_user = [
        "refresh",
        "--projection",
        "birthday",
        "--source",
        "source-a",
        "--table",
        "user_00.user_000",
        "--key",
        "x",
    ];
    let refused = installation.command(&no_user).await;
    assert!(refused.exit_code != 0 && refused.stderr.contains("not a user id"), "{refused:?}");
    let shard = "SELECT shard_id FROM birthday_00.birthday_0107 WHERE lsn = ~0";
    let shard: u64 = installation.admin("target").await.rows("the shard", shard).await.unwrap()[0];
    for (number, source) in installation.configuration.sources.iter().enumerate() {
        for place in installation.audits[0].topology.tables_of(number) {
            let (table, key) = (place.name(), user.to_string());
            let (database, name) = table.split_once('.').unwrap();
            if ShardId::of(source, database, name, 0).as_u64() == shard {
                let arguments = [
                    "refresh",
                    "--projection",
                    "birthday",
                    "--source",
                    source,
                    "--table",
                    &table,
                    "--key",
                    &key,
                ];
                installation.command(&arguments).await.expect_success();
            }
        }
    }
    until("equal after refreshes of a key", async || wrong(installation).await == 0).await;
}

/// A refresh by condition in all tables of all sources: missing rows come back, planted rows of these users go, and
/// those of other users stay.
async fn rows_that_a_condition_finds_are_refreshed(installation: &Installation<'_>) {
    let refresh = async |conditions: &[&str]| {
        let conditions = conditions.iter().flat_map(|condition| ["--where", condition]);
        let arguments: Vec<&str> =
            ["refresh", "--projection", "birthday"].into_iter().chain(conditions).collect();
        installation.command(&arguments).await
    };
    for (condition, expected) in [
        ("nobody = 1", "it has no column nobody"),
        ("user_id = 1 OR 1=1", "is not of type bigint"),
        ("birthday > yesterday", "is not of type date"),
        ("birthday = '2000-01-01' OR '1'", "is not a value"),
        ("1 = 1 OR user_id = 1", "has no column 1"),
        ("user_id", "none of the operators"),
    ] {
        let refused = refresh(&[condition]).await;
        assert!(refused.exit_code != 0 && refused.stderr.contains(expected), "{condition}: {refused:?}");
    }
    // More users are born on this day than chance gives, so each third of them has some.
    let users = "SELECT DISTINCT user_id FROM birthday_00.birthday_0101 ORDER BY user_id";
    let users: Vec<u64> = installation.admin("target").await.rows("users", users).await.unwrap();
    let (from, to) = (users[users.len() / 3], users[users.len() * 2 / 3]);
    let meant = format!("user_id >= {from} AND user_id < {to}");
    // Planted rows are newer than every change: only rows that the users claim may be left.
    let spoil = format!(
        "INSERT INTO birthday_00.birthday_0107 (shard_id, user_id, birthday, lsn) \
         SELECT shard_id, user_id, '01-07', ~0 FROM birthday_00.birthday_0101 WHERE {meant}; \
         DELETE FROM birthday_00.birthday_0101"
    );
    installation.execute("target", &spoil).await;
    let left = users.iter().filter(|user| !(from..to).contains(user)).count() as u64;
    assert!(wrong(installation).await > left && left > 0);
    until("no other refresh is under way", async || {
        let asked = refresh(&[&format!("user_id >= {from}"), &format!("user_id < {to}")]).await;
        asked.exit_code == 0
    })
    .await;
    until("those that are meant are right", async || wrong(installation).await == left).await;
    // A text that begins with a blank sorts before one that begins with a digit.
    for condition in ["birthday >= 1000-01-01", "birthday < 1000-01-01"] {
        until("the others too", async || refresh(&[condition]).await.exit_code == 0).await;
    }
    until("equal", async || wrong(installation).await == 0).await;
}
