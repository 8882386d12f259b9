//! Rows that no binlog holds any more, and derived rows that nobody says: brought in and taken out by a refresh, while
//! changes go on.

use std::time::Duration;

use anabranch_demo::{Pace, WorkloadOptions};
use anabranch_tests::{Installation, Plan, seed, until};

use crate::STANDARD;

/// Nothing that was written so far can be read from the binlogs.
async fn forget_the_past(installation: &Installation<'_>) {
    for source in ["source-a", "source-b"] {
        let mut admin = installation.admin(source).await;
        admin.execute("begin a file", "FLUSH BINARY LOGS").await.unwrap();
        // A file is kept until all of its transactions are safe in the tables.
        until("the older files are purged", async || {
            let files = admin.rows::<(String, u64)>("list files", "SHOW BINARY LOGS").await.unwrap();
            let (last, _) = files.last().unwrap();
            admin.execute("purge", format!("PURGE BINARY LOGS TO '{last}'")).await.unwrap();
            files.len() == 1
        })
        .await;
    }
}

/// Rows that differ.
async fn wrong(installation: &Installation<'_>) -> u64 {
    installation.compare().await.differences.total()
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_no_binlog_holds_come_by_a_refresh_and_rows_of_nobody_go_while_changes_go_on() {
    let installation = Installation::prepare(STANDARD.turn().await, &Plan::both()).await;
    let mut workloads = installation.workloads(WorkloadOptions::new(seed("refresh")));
    for workload in &mut workloads {
        workload.insert_rows(3_000).await.unwrap();
    }
    forget_the_past(&installation).await;
    installation.command(&["setup"]).await.expect_success();
    let daemon = installation.run();
    let missing = installation.compare().await.differences.total();
    assert!(missing > 3_000, "{missing} rows are in no binlog");

    let running = workloads.iter_mut().map(|w| w.run_for(Pace::of(300), Duration::from_secs(2)));
    let running = futures::future::join_all(running);
    let ask = async {
        for projection in ["birthday", "mapping"] {
            let done = installation.command(&["refresh", "--projection", projection]).await;
            assert!(done.expect_success().stdout.contains("refreshes all tables of its source"));
        }
    };
    let (ended, ()) = tokio::join!(running, ask);
    ended.into_iter().for_each(|ended| _ = ended.unwrap());
    until("equal after a refresh", async || wrong(&installation).await == 0).await;
    until("every lane is through", async || {
        let status = installation.command(&["status", "--json"]).await.json();
        status["lanes"].as_array().unwrap().iter().all(|lane| lane["refreshed_rows"].is_null())
    })
    .await;

    // Of one table: what is missing comes back, and what nobody says goes.
    installation
        .execute(
            "target",
            "DELETE FROM birthday_00.birthday_0103; INSERT INTO birthday_00.birthday_0105 (shard_id, user_id, birthday, lsn) \
             SELECT DISTINCT shard_id, 4000000000, '01-05', 1 FROM birthday_00.birthday_0101",
        )
        .await;
    assert!(installation.compare().await.differences.total() > 0);
    let refused =
        installation.command(&["refresh", "--projection", "birthday", "--table", "user_00.user_000"]).await;
    assert!(refused.exit_code != 0 && refused.stderr.contains("belongs to one source"), "{refused:?}");
    for (number, source) in installation.configuration.sources.iter().enumerate() {
        for place in installation.audits[0].topology.places_of(number) {
            let table = place.name();
            let arguments = ["refresh", "--projection", "birthday", "--source", source, "--table", &table];
            until("the refresh before it is through", async || {
                installation.command(&arguments).await.exit_code == 0
            })
            .await;
        }
    }
    until("equal after refreshes of tables", async || wrong(&installation).await == 0).await;

    // Of one key: a row in a wrong table that is newer than everything.
    let planted = "INSERT INTO birthday_00.birthday_0107 (shard_id, user_id, birthday, lsn) \
        SELECT shard_id, user_id, '01-07', ~0 FROM birthday_00.birthday_0103 LIMIT 1";
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
    assert!(refused.exit_code != 0 && refused.stderr.contains("no user id"), "{refused:?}");
    for (number, source) in installation.configuration.sources.iter().enumerate() {
        for place in installation.audits[0].topology.places_of(number) {
            let (table, key) = (place.name(), user.to_string());
            let arguments =
                ["refresh", "--projection", "birthday", "--source", source, "--table", &table, "--key", &key];
            until("the refresh before it is through", async || {
                installation.command(&arguments).await.exit_code == 0
            })
            .await;
        }
    }
    until("equal after refreshes of a key", async || wrong(&installation).await == 0).await;
    let log = daemon.log();
    assert!(log.contains("the refresh is through"), "{log}");
}
