//! An older daemon beside the present one, as in an upgrade: lanes first, readers last, back again, and the wrong
//! order.
//!
//! `ANABRANCH_OLDER_DAEMON` is the path of the older `anabranch`. It is one from before codec version 2, such as commit
//! 12f214e5. `tests/README.md` says how to build it. The older daemon refuses settings that it does not know, so both
//! read a configuration without them. It derives birthdays only: lanes of devices note with how many fields their
//! changes were captured, and the older daemon refuses that word, so these lanes have no way back to it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anabranch_demo::{Pace, Workload, WorkloadOptions};
use anabranch_tests::{Daemon, Installation, Plan, seed, until};
use serde_json::Value as Json;

use crate::STANDARD;
use crate::faults::{insert, is_derived, until_derived};
use crate::reconciliations::reconcile;

const VARIABLE: &str = "ANABRANCH_OLDER_DAEMON";
const READER: &[&str] = &["reader"];
const LANES: &[&str] = &["projector"];
/// The roles of a daemon that is started without a role.
const EVERY_ROLE: &[&str] = &[];
const TABLE: &str = "user_00.user_000";
/// A table on `source-b`.
const OTHER: &str = "user_07.user_000";
/// A user whose birthday changes unseen, by a swap of tables.
const SWAPPED: u64 = 9_000_900;

/// The steps in their order: the older daemon alone, lanes first, readers too, back to the older daemon, and at last
/// readers before lanes.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "it needs an older binary, which ANABRANCH_OLDER_DAEMON names"]
async fn an_older_daemon_beside_the_present_one_loses_nothing_in_either_order() {
    let older = older();
    let mut installation = Installation::prepare(STANDARD.turn().await, &Plan::small()).await;
    // The older daemon does not know this setting.
    installation.configuration.limits.retain(|line| !line.starts_with("rebalance_interval_ms"));
    installation.write_configuration();
    installation.use_binary(Some(&older));
    installation.command(&["setup"]).await.expect_success();
    let mut workloads = installation.workloads(WorkloadOptions::new(seed("older daemon")));
    for workload in &mut workloads {
        workload.insert_rows(1_000).await.unwrap();
    }
    let mut daemon = start(&mut installation, Some(&older), EVERY_ROLE);
    changes_are_followed(&installation, 9_000_100).await;
    end(&mut daemon);

    // The new version makes the control table that it needs for operations. No older table changes.
    installation.use_binary(None);
    installation.command(&["setup"]).await.expect_success();
    lanes_first(&mut installation, &older, &mut workloads).await;

    let mut daemon = start(&mut installation, None, EVERY_ROLE);
    changes_are_followed(&installation, 9_000_300).await;
    end(&mut daemon);
    // The streams have no record of version 2, and no lane owes anything: then the older daemon goes on.
    no_lane_reads_tables(&installation).await;
    let mut daemon = start(&mut installation, Some(&older), EVERY_ROLE);
    changes_are_followed(&installation, 9_000_400).await;
    end(&mut daemon);

    readers_first(&mut installation, &older).await;
    let daemon = start(&mut installation, None, EVERY_ROLE);
    changes_are_followed(&installation, 9_000_600).await;
    daemon.until_ready().await;
    installation.command(&["check"]).await.expect_success();
    let (ended, report) = reconcile(&installation, &[]).await;
    assert_eq!((ended.exit_code, &report["verdict"]), (0, &Json::from("clean")), "{report}");
}

/// The path of the older binary.
fn older() -> PathBuf {
    let path = std::env::var_os(VARIABLE).map(PathBuf::from);
    let path = path.unwrap_or_else(|| panic!("set {VARIABLE} to the path of an older anabranch"));
    assert!(path.is_absolute() && path.is_file(), "{VARIABLE} is no absolute path of a file: {path:?}");
    path
}

/// Starts a daemon of another binary, or of the one under test, with these roles and a port of its own.
fn start(installation: &mut Installation<'_>, binary: Option<&Path>, roles: &[&str]) -> Daemon {
    installation.use_another_http_port();
    installation.use_binary(binary);
    let arguments: Vec<&str> = roles.iter().flat_map(|&role| ["--role", role]).collect();
    installation.run_with(&arguments, &[])
}

/// Ends a daemon in order.
fn end(daemon: &mut Daemon) {
    let ended = daemon.terminate();
    assert_eq!(ended.and_then(|status| status.code()), Some(0), "{}", daemon.log());
}

/// Inserts, updates and deletes a user, and moves one to a table of the other source; then the stores equal the
/// sources.
async fn changes_are_followed(installation: &Installation<'_>, first: u64) {
    let (updated, deleted, moved) = (first, first + 1, first + 2);
    for user in [updated, deleted, moved] {
        insert(installation, "source-a", TABLE, user).await;
    }
    let on_a = async |sql: String| installation.execute("source-a", sql).await;
    on_a(format!("UPDATE {TABLE} SET birthday = '1990-02-03' WHERE user_id = {updated}")).await;
    on_a(format!("DELETE FROM {TABLE} WHERE user_id = {deleted}")).await;
    insert(installation, "source-b", OTHER, moved).await;
    on_a(format!("DELETE FROM {TABLE} WHERE user_id = {moved}")).await;
    installation.expect_equal().await;
    for (user, days) in [(updated, &["02-03"][..]), (deleted, &[]), (moved, &["01-01"])] {
        let rows = installation.derived(user).await;
        let found: Vec<&str> = rows.iter().map(|(_, day)| day.as_str()).collect();
        assert_eq!(found, days, "user {user}: {rows:?}");
    }
}

/// Present lanes follow an older reader, and each of the two daemons is killed once beside changes.
async fn lanes_first(installation: &mut Installation<'_>, older: &Path, workloads: &mut [Workload]) {
    let mut reader = start(installation, Some(older), READER);
    let mut lanes = start(installation, None, LANES);
    let running =
        workloads.iter_mut().map(|workload| workload.run_for(Pace::of(100), Duration::from_secs(10)));
    let killing = async {
        follows(installation, 9_000_210).await;
        lanes.kill();
        lanes = start(installation, None, LANES);
        follows(installation, 9_000_211).await;
        reader.kill();
        reader = start(installation, Some(older), READER);
        follows(installation, 9_000_212).await;
    };
    let (ended, ()) = tokio::join!(futures::future::join_all(running), killing);
    ended.into_iter().for_each(|ended| _ = ended.unwrap());
    changes_are_followed(installation, 9_000_220).await;
    end(&mut reader);
    end(&mut lanes);
}

/// Inserts a user and waits until the user is derived.
async fn follows(installation: &Installation<'_>, user: u64) {
    insert(installation, "source-a", TABLE, user).await;
    until_derived(installation, user).await;
}

/// Expects that no progress row says of a lane what only the present version understands: that it owes a table.
async fn no_lane_reads_tables(installation: &Installation<'_>) {
    let sql = "SELECT CONCAT(projection, ' ', source, ' ', lane, ': ', refresh) FROM anabranch.progress \
               WHERE refresh <> ''";
    let rows: Vec<String> = installation.admin("target").await.rows("look at progress", sql).await.unwrap();
    assert_eq!(rows, Vec::<String>::new());
}

/// A present reader writes a record of version 2. The older lanes of its source stop by name, and store nothing of it.
/// Present lanes read the table again.
async fn readers_first(installation: &mut Installation<'_>, older: &Path) {
    let mut reader = start(installation, None, READER);
    let mut lanes = start(installation, Some(older), LANES);
    let user =
        format!("INSERT INTO {TABLE} (user_id, user_name, birthday) VALUES ({SWAPPED}, 'n', '1990-05-06')");
    installation.execute("source-a", user).await;
    changes_are_followed(installation, 9_000_500).await;
    let swap = format!(
        "CREATE TABLE user_00.copy LIKE {TABLE}; INSERT INTO user_00.copy SELECT * FROM {TABLE};
         UPDATE user_00.copy SET birthday = '1990-01-01' WHERE user_id = {SWAPPED};
         RENAME TABLE {TABLE} TO user_00.old, user_00.copy TO {TABLE}; DROP TABLE user_00.old"
    );
    installation.execute("source-a", swap).await;
    for lane in 0..2 {
        let task = format!("lane/birthday/target/source-a/{lane}");
        let is_reported = |view: &Json| view["state"] == "stopped" && view["code"] == "log-version-unknown";
        lanes.until_view("tasks", ("task", &task), is_reported).await;
    }
    // The other source goes on, and changes of the first one wait in the log.
    insert(installation, "source-b", OTHER, 9_000_510).await;
    until_derived(installation, 9_000_510).await;
    insert(installation, "source-a", TABLE, 9_000_511).await;
    assert!(!is_derived(installation, 9_000_511).await && !is_derived(installation, SWAPPED).await);
    end(&mut lanes);

    let mut lanes = start(installation, None, LANES);
    for user in [9_000_511, SWAPPED] {
        until_derived(installation, user).await;
    }
    until("no lane has a table to read again", async || {
        lanes.metric("anabranch_refresh_rereads", &[]).await == 0.0
    })
    .await;
    assert!(reader.metric("anabranch_source_rereads_total", &[]).await > 0.0);
    installation.expect_equal().await;
    end(&mut reader);
    end(&mut lanes);
}
