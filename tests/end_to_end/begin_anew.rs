//! A source whose server was restored without its past stops by name, and begins anew by one command. The other source
//! and rows that are still right stay untouched. A replica that lacks transactions is read on with their tables alone.
//! A server that was restored in part begins anew on the word of a person only. A damaged binlog is left behind in the
//! same way, and a command that is killed at any of its steps is repeated.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;

use anabranch_demo::{FORGET_BINLOG, SHOW_BINLOG_END, WorkloadOptions};
use anabranch_pipeline::failpoints;
use anabranch_tests::{Finished, Installation, Plan, Turn, blocking, seed, until};
use mysql_async::Row;
use serde_json::json;

use crate::STANDARD;
use crate::fail_over::{REPLICATED, catch_up, progress, replace, standby};
use crate::faults::{expect_stopped, insert, until_derived};

const TABLE: &str = "user_00.user_000";

async fn begin_anew(installation: &Installation<'_>, more: &[&str]) -> Finished {
    let mut arguments = vec!["begin-anew", "--source", "source-a"];
    arguments.extend(more);
    installation.command(&arguments).await
}

async fn expect_refused(installation: &Installation<'_>, more: &[&str], why: &str) {
    let refused = begin_anew(installation, more).await;
    assert_eq!(refused.exit_code, 1, "{refused:?}");
    assert!(refused.stderr.contains("[begin-anew-refused]") && refused.stderr.contains(why), "{refused:?}");
}

/// Waits until the lanes of a source have this number of beginnings.
async fn lanes_begun(installation: &Installation<'_>, source: &str, number: u64) -> u64 {
    let sql = format!(
        "SELECT COUNT(*) FROM anabranch.progress WHERE source = '{source}' AND refresh LIKE 'beginning:{number}%'"
    );
    installation.admin("target").await.first("look at progress", sql).await.unwrap().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_restored_without_its_past_stops_its_source_until_it_begins_anew() {
    restored_without_its_past(STANDARD.turn().await).await;
}

pub async fn restored_without_its_past(turn: Turn<'static>) {
    let mut installation = Installation::set_up(turn, &Plan::small()).await;
    let unknown = installation.command(&["begin-anew", "--source", "source-x"]).await;
    assert_eq!(unknown.exit_code, 2, "{unknown:?}");
    expect_refused(&installation, &["--confirm", "source-a"], "no reader has read it yet").await;
    let mut daemon = installation.run();
    insert(&installation, "source-a", TABLE, 9_000_001).await;
    insert(&installation, "source-b", "user_05.user_000", 9_000_002).await;
    until_derived(&installation, 9_000_001).await;
    until_derived(&installation, 9_000_002).await;
    installation.drained().await;
    expect_refused(&installation, &["--confirm", "source-a"], "nothing stops its reader").await;
    daemon.kill();

    let before = progress(&installation).await;
    let restore = format!("SET SESSION sql_log_bin = 0; DELETE FROM {TABLE}; {FORGET_BINLOG}");
    installation.execute("source-a", restore).await;
    expect_refused(&installation, &["--confirm", "source-a"], "its tables have no row").await;
    let unlogged = format!(
        "SET SESSION sql_log_bin = 0; INSERT INTO {TABLE} (user_id, user_name, birthday) VALUES (9000003, 'n', '1990-01-01')"
    );
    installation.execute("source-a", unlogged).await;
    installation.free_leases().await;
    let mut daemon = installation.run();
    let fault = expect_stopped(&installation, &daemon, "source-server-changed", "source source-a").await;
    assert!(fault.contains("reset or restored") && fault.contains("begin-anew --source source-a"), "{fault}");

    let rehearsed = begin_anew(&installation, &["--dry-run"]).await.expect_success();
    for part in [
        "would begin anew (beginning 1)",
        "[source-server-changed]",
        "read up to  1:",
        "goes on at  2:",
        "birthday",
    ] {
        assert!(rehearsed.stdout.contains(part), "no {part}: {rehearsed:?}");
    }
    expect_refused(&installation, &["--confirm", "source-b"], "its name was not confirmed").await;
    expect_the_address_of_another_source_to_be_refused(&mut installation).await;
    assert_eq!(progress(&installation).await, before);
    until_derived(&installation, 9_000_001).await;

    // The daemon is killed as soon as its reader has begun.
    let arguments = ["--confirm", "source-a", "--id", "one", "--json"];
    let begun = begin_anew(&installation, &arguments).await.expect_success().json();
    assert_eq!((&begun["beginning"], &begun["repeated"]), (&1.into(), &false.into()), "{begun}");
    daemon.kill();
    installation.free_leases().await;
    let daemon = installation.run();
    until_derived(&installation, 9_000_003).await;
    until("what the server lacks is swept", async || installation.derived(9_000_001).await.is_empty()).await;
    insert(&installation, "source-a", TABLE, 9_000_004).await;
    insert(&installation, "source-b", "user_05.user_000", 9_000_005).await;
    until_derived(&installation, 9_000_004).await;
    until_derived(&installation, 9_000_005).await;
    installation.expect_equal().await;

    let repeated = begin_anew(&installation, &arguments).await.expect_success().json();
    assert_eq!((&repeated["beginning"], &repeated["repeated"]), (&1.into(), &true.into()), "{repeated}");
    let lanes = before.len() as u64;
    assert_eq!(lanes_begun(&installation, "source-a", 1).await, lanes);
    assert_eq!(lanes_begun(&installation, "source-b", 1).await, 0);
    daemon.until_ready().await;
    expect_the_signed_history_to_have_it(&installation).await;
}

/// The source changes while a lane has no progress, or a damaged one: the lane reads all tables, and sweeps.
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_whose_progress_is_lost_or_damaged_goes_on_at_the_streams_end_and_reads_all_tables() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let mut daemon = installation.run();
    for user in 9_000_001..=9_000_020 {
        insert(&installation, "source-a", TABLE, user).await;
    }
    until_derived(&installation, 9_000_020).await;
    daemon.until_loaded(&["source-a"]).await;
    let lost = ["--lost-progress", "--confirm", "source-a"];
    expect_refused(&installation, &lost, "each of its lanes has its progress").await;
    let damages = [
        ("DELETE FROM anabranch.progress", "[target-progress-lost]"),
        ("UPDATE anabranch.progress SET position = position + 16", "[target-progress-corrupt]"),
    ];
    for ((damage, code), gone) in damages.into_iter().zip(9_000_001..) {
        daemon.kill();
        installation.free_leases().await;
        let of_lanes = "projection = 'birthday' AND source = 'source-a'";
        installation.execute("target", format!("{damage} WHERE {of_lanes}")).await;
        let delete = format!("DELETE FROM {TABLE} WHERE user_id = {gone}");
        installation.execute("source-a", delete).await;
        insert(&installation, "source-a", TABLE, gone + 100).await;
        daemon = installation.run();
        until("the lane says so", async || daemon.log_of_this_run().contains(code)).await;
        let rehearsed = begin_anew(&installation, &["--lost-progress", "--dry-run"]).await.expect_success();
        assert!(rehearsed.stdout.contains("source-a/0 would go on at 1:"), "{rehearsed:?}");
        begin_anew(&installation, &lost).await.expect_success();
        until_derived(&installation, gone + 100).await;
        until("a row that left is swept", async || installation.derived(gone).await.is_empty()).await;
        installation.expect_equal().await;
    }
    let operations = installation.command(&["operations", "--json"]).await.expect_success().json_lines();
    let is_it =
        |row: &serde_json::Value| row.to_string().contains("begin-anew --source source-a --lost-progress");
    assert!(operations.iter().filter(|row| is_it(row)).count() >= 2, "{operations:?}");
}

/// The record of the operation and the next signed report say who asked, when, why, and what no reader read.
async fn expect_the_signed_history_to_have_it(installation: &Installation<'_>) {
    let operations = installation.command(&["operations", "--json"]).await.expect_success().json_lines();
    let has_why = |row: &serde_json::Value| {
        let before = row["before"].as_str().unwrap_or_default();
        before.contains("read up to 1:") && before.contains("[source-server-changed]")
    };
    assert!(operations.iter().any(has_why), "{operations:?}");

    let report = installation.command(&["reconcile", "--now", "--json"]).await.expect_success().json();
    let gap = &report["gaps"][0];
    assert_eq!((&gap["source"], &gap["is_new"]), (&"source-a".into(), &true.into()), "{report}");
    let record = &gap["record"];
    assert!(record["who"].as_str().unwrap().contains('@') && record["at_ms"].as_u64() > Some(0), "{gap}");
    assert!(record["why"].as_str().unwrap().contains("[source-server-changed]"), "{gap}");
    assert!(record["read"].as_u64() < record["position"].as_u64(), "{gap}");
    let shown = installation.command(&["reconcile", "show"]).await.expect_success().stdout;
    assert!(shown.contains("source source-a began anew: it was read up to 1:"), "{shown}");
    let next = installation.command(&["reconcile", "--now", "--json"]).await.expect_success().json();
    assert_eq!(next["gaps"][0]["is_new"], false, "{next}");

    installation.command(&["reconcile", "verify"]).await.expect_success();
    let forged =
        "UPDATE anabranch.reconciliations SET report = REPLACE(report, '[source-server-changed]', '[other]')";
    installation.execute("target", forged).await;
    let verified = installation.command(&["reconcile", "verify"]).await;
    assert!(verified.exit_code != 0 && verified.stderr.contains("was changed"), "{verified:?}");
}

async fn expect_the_address_of_another_source_to_be_refused(installation: &mut Installation<'_>) {
    let right = installation.configuration_text();
    let wrong = right.replace("${ANABRANCH_SOURCE_A_URL}", "${ANABRANCH_SOURCE_B_URL}");
    installation.write_configuration_text(&wrong);
    expect_refused(installation, &["--confirm", "source-a"], "leads to the server of source source-b").await;
    installation.write_configuration_text(&right);
}

async fn tables_like(installation: &Installation<'_>, server: &str, databases: &str) -> Vec<String> {
    let sql = format!(
        "SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.tables WHERE table_schema LIKE \
         '{databases}'"
    );
    installation.admin(server).await.rows("list tables", sql).await.unwrap()
}

/// Returns how many users the derived tables have. It waits for no lane: those of a stopped source do not move.
async fn derived_users(installation: &Installation<'_>) -> u64 {
    let tables = tables_like(installation, "target", "birthday\\_%").await;
    let counts: Vec<String> = tables.iter().map(|table| format!("(SELECT COUNT(*) FROM {table})")).collect();
    let sql = format!("SELECT CAST({} AS UNSIGNED)", counts.join(" + "));
    installation.admin("target").await.first("count users", sql).await.unwrap().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_restored_in_part_begins_anew_with_an_open_gate_only() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let mut daemon = installation.run();
    let mut workload =
        installation.workload(WorkloadOptions::new(seed("a server that was restored in part")));
    workload.insert_rows(1_000).await.unwrap();
    installation.expect_equal().await;
    let report = installation.command(&["reconcile", "--now", "--json"]).await.expect_success().json();
    let before = report["stores"][0]["rows_of_sources"]["source-a"].as_u64().expect("its rows are counted");
    assert!(before > 300, "{report}");
    daemon.kill();
    let tables = tables_like(&installation, "source-a", "user\\_%").await;
    assert!(!tables.is_empty());
    let halved = tables.iter().map(|table| format!("DELETE FROM {table} WHERE user_id % 2 = 0;"));
    let halved: String = halved.collect();
    installation.execute("source-a", format!("SET SESSION sql_log_bin = 0; {halved} {FORGET_BINLOG}")).await;
    installation.free_leases().await;
    let daemon = installation.run();
    expect_stopped(&installation, &daemon, "source-server-changed", "source source-a").await;

    let (progress_before, users) = (progress(&installation).await, derived_users(&installation).await);
    let why = format!("its tables of user had {before} rows at reconciliation");
    expect_refused(&installation, &["--dry-run"], &why).await;
    expect_refused(&installation, &["--confirm", "source-a"], &why).await;
    let shown = begin_anew(&installation, &["--dry-run"]).await;
    assert!(
        shown.stdout.contains("rows of user: ") && shown.stdout.contains(&format!("{before} at")),
        "{shown:?}"
    );
    begin_anew(&installation, &["--dry-run", "--open-gate"]).await.expect_success();
    assert_eq!(progress(&installation).await, progress_before, "nothing is written");
    assert_eq!(derived_users(&installation).await, users);

    begin_anew(&installation, &["--confirm", "source-a", "--open-gate"]).await.expect_success();
    let refreshing = "SELECT COUNT(*) FROM anabranch.progress WHERE source = 'source-a' AND \
                      (COALESCE(refresh, '') NOT REGEXP '^beginning:1( |$)' \
                      OR refresh NOT REGEXP '^((beginning|fields):[0-9]+ ?)*$')";
    until("its lanes have read all tables", async || {
        let lanes =
            installation.admin("target").await.first::<u64>("look at progress", refreshing).await.unwrap();
        lanes == Some(0)
    })
    .await;
    assert!(derived_users(&installation).await < users, "rows that the server lacks are removed");
    installation.expect_equal().await;
    daemon.until_ready().await;
}

/// Returns the version of a user's derived row.
async fn version(installation: &Installation<'_>, user: u64) -> String {
    let rows = installation.derived_where("birthday\\_%", "CONCAT(lsn)", &format!("user_id = {user}")).await;
    format!("{rows:?}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_lacks_transactions_is_read_on_and_only_their_tables_are_read_again() {
    const OTHER: &str = "user_01.user_000";
    let mut installation = Installation::set_up(REPLICATED.turn().await, &Plan::small()).await;
    let source = installation.server("source-a");
    let lagging = standby(&installation, "lacking").await;
    let mut daemon = installation.run();
    insert(&installation, "source-a", TABLE, 9_000_001).await;
    insert(&installation, "source-a", OTHER, 9_000_002).await;
    until_derived(&installation, 9_000_001).await;
    until_derived(&installation, 9_000_002).await;
    installation.drained().await;
    let before = version(&installation, 9_000_002).await;
    catch_up(&installation, "lacking", "source-a").await;
    installation.execute("lacking", "STOP REPLICA").await;
    // The replica lacks these two.
    insert(&installation, "source-a", TABLE, 9_000_003).await;
    installation.execute("source-a", format!("DELETE FROM {TABLE} WHERE user_id = 9000001")).await;
    until_derived(&installation, 9_000_003).await;
    installation.drained().await;
    expect_refused(&installation, &["--touched"], "nothing stops its reader").await;
    daemon.kill();
    blocking(|| source.kill()).unwrap();
    installation.execute("lacking", "RESET REPLICA ALL").await;
    replace(&mut installation, "source-a", "lacking");
    // The log has never seen this one.
    insert(&installation, "lacking", OTHER, 9_000_004).await;
    installation.free_leases().await;
    let daemon = installation.run();
    let fault = expect_stopped(&installation, &daemon, "source-diverged", "source source-a").await;
    assert!(fault.contains("begin-anew --source source-a"), "{fault}");

    let rehearsed = begin_anew(&installation, &["--touched", "--dry-run"]).await.expect_success();
    let named = format!("table {TABLE} is read again");
    for part in ["would go on at server", "[source-diverged]", &named] {
        assert!(rehearsed.stdout.contains(part), "no {part}: {rehearsed:?}");
    }
    assert!(!rehearsed.stdout.contains(OTHER), "{rehearsed:?}");
    let arguments = ["--touched", "--confirm", "source-a", "--id", "one", "--json"];
    let begun = begin_anew(&installation, &arguments).await.expect_success().json();
    assert_eq!((&begun["tables"], &begun["repeated"]), (&json!([TABLE]), &false.into()), "{begun}");
    until_derived(&installation, 9_000_001).await;
    until_derived(&installation, 9_000_004).await;
    until("what the server lacks is swept", async || installation.derived(9_000_003).await.is_empty()).await;
    installation.expect_equal().await;
    assert_eq!(version(&installation, 9_000_002).await, before, "another table's row is not written again");
    let repeated = begin_anew(&installation, &arguments).await.expect_success().json();
    assert_eq!(repeated["repeated"], true, "{repeated}");
    assert_eq!(lanes_begun(&installation, "source-a", 1).await, 0, "the source has not begun anew");
    daemon.until_ready().await;
    blocking(|| lagging.stop()).unwrap();
}

/// Flips a bit of the last bytes in the newest binlog of `source-a` that are this text: those of a rows event, as the
/// statement's own text stands before it. The server does not check the event when it sends it.
async fn damage(installation: &Installation<'_>, text: &str) {
    let end = installation.admin("source-a").await.first::<Row>("find the newest", SHOW_BINLOG_END).await;
    let file: String = end.unwrap().unwrap().get(0).unwrap();
    let path = installation.server("source-a").folder().join("db").join(file);
    let bytes = fs::read(&path).unwrap();
    let at = bytes.windows(text.len()).rposition(|part| part == text.as_bytes()).expect("it was logged");
    let binlog = OpenOptions::new().write(true).open(&path).unwrap();
    binlog.write_all_at(&[bytes[at] ^ 0b10], at as u64).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_binlog_stops_its_source_until_it_begins_anew_behind_the_damage() {
    const DAMAGED: &str = "the-name-that-is-damaged";
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let mut daemon = installation.run();
    daemon.until_loaded(&["source-a"]).await;
    insert(&installation, "source-a", TABLE, 9_300_001).await;
    until_derived(&installation, 9_300_001).await;
    installation.drained().await;
    daemon.kill();
    let row = format!(
        "INSERT INTO {TABLE} (user_id, user_name, birthday) VALUES (9300002, '{DAMAGED}', '1990-01-01')"
    );
    installation.execute("source-a", row).await;
    damage(&installation, DAMAGED).await;
    insert(&installation, "source-a", TABLE, 9_300_003).await;
    installation.execute("source-a", format!("DELETE FROM {TABLE} WHERE user_id = 9300001")).await;
    installation.free_leases().await;
    let mut daemon = installation.run();
    let is_stopped =
        |source: &serde_json::Value| source["state"] == "stopped" && source["code"] == "binlog-event-corrupt";
    daemon.until_view("sources", ("source", "source-a"), is_stopped).await;

    let rehearsed = begin_anew(&installation, &["--dry-run"]).await.expect_success();
    assert!(rehearsed.stdout.contains("[binlog-event-corrupt]"), "{rehearsed:?}");
    begin_anew(&installation, &["--confirm", "source-a"]).await.expect_success();
    until_derived(&installation, 9_300_002).await;
    until_derived(&installation, 9_300_003).await;
    until("what is gone is swept", async || installation.derived(9_300_001).await.is_empty()).await;
    insert(&installation, "source-a", TABLE, 9_300_004).await;
    until_derived(&installation, 9_300_004).await;
    installation.expect_equal().await;
    daemon.until_ready().await;
    daemon.kill();
    // The next test gets this server.
    installation.execute("source-a", FORGET_BINLOG).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_killed_at_any_step_is_repeated_and_begins_anew_once() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let mut daemon = installation.run();
    daemon.until_loaded(&["source-a"]).await;
    for (number, name) in failpoints::BEGINNING_ANEW.iter().copied().enumerate() {
        let [lost, present] = [1, 2].map(|row| 9_400_000 + 10 * number as u64 + row);
        insert(&installation, "source-a", TABLE, lost).await;
        until_derived(&installation, lost).await;
        installation.drained().await;
        daemon.kill();
        let restore = format!(
            "SET SESSION sql_log_bin = 0; DELETE FROM {TABLE} WHERE user_id = {lost}; \
             INSERT INTO {TABLE} (user_id, user_name, birthday) VALUES ({present}, 'n', '1990-01-01'); \
             {FORGET_BINLOG}"
        );
        installation.execute("source-a", restore).await;
        installation.free_leases().await;
        daemon = installation.run();
        let is_stopped =
            |view: &serde_json::Value| view["state"] == "stopped" && view["code"] == "source-server-changed";
        daemon.until_view("sources", ("source", "source-a"), is_stopped).await;

        let arguments = ["begin-anew", "--source", "source-a", "--confirm", "source-a", "--id", name];
        let mut killed = installation.start(&arguments, &[("ANABRANCH_FAILPOINT", name)]);
        killed.until_failpoint(name).await;
        killed.kill();
        // While a beginning waits for its reader, a request without the same id repeats it too.
        let mut again = vec!["--confirm", "source-a", "--json"];
        if name != "begin-anew-before-wake" {
            again.extend(["--id", name]);
        }
        let repeated = begin_anew(&installation, &again).await.expect_success().json();
        let is_written = name != "begin-anew-before-register";
        assert_eq!(repeated["repeated"], is_written, "{name}: {repeated}");
        assert_eq!(repeated["beginning"], number + 1, "{name}: {repeated}");
        until_derived(&installation, present).await;
        until("what is gone is swept", async || installation.derived(lost).await.is_empty()).await;
        daemon.until_ready().await;
    }
    installation.expect_equal().await;
}
