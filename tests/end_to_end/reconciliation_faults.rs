//! Faults around a reconciliation: a target that was set back, progress that is ahead, a lagging replica, a window that
//! is too short, a broken checkpoint. Each ends with the right verdict and the right store.

use std::time::Duration;

use anabranch_demo::{Pace, RedisServer, Workload, WorkloadOptions};
use anabranch_pipeline::lookup::encode;
use anabranch_tests::{Daemon, Installation, Plan, seed, until, until_some};
use serde_json::Value as Json;

use crate::STANDARD;
use crate::fail_over::{REPLICATED, catch_up, standby};
use crate::reconciliations::{CACHED, drift, reconcile, store};

/// An installation of users, streaming and up to date, with these settings of reconciliations.
async fn installed(
    prepared: Installation<'static>,
    reconcile: &str,
) -> (Installation<'static>, Workload, Daemon) {
    let mut installation = prepared;
    let text = installation.configuration_text();
    let text = text.replacen("[[sources]]", &format!("[reconcile]\n{reconcile}\n[[sources]]"), 1);
    installation.write_configuration_text(&text);
    installation.command(&["setup"]).await.expect_success();
    let daemon = installation.run();
    let mut workload = installation.workload(WorkloadOptions::new(seed("faults of the reconciliation")));
    workload.insert_rows(1_000).await.unwrap();
    installation.expect_equal().await;
    (installation, workload, daemon)
}

/// An installation as [`installed`] makes it. Its reconciliations wait long for lanes, which a busy machine slows.
async fn small(reconcile: &str) -> (Installation<'static>, Workload, Daemon) {
    let prepared = Installation::prepare(STANDARD.turn().await, &Plan::small()).await;
    installed(prepared, &format!("lane_wait_seconds = 20\n{reconcile}")).await
}

/// Derived tables with rows, and the table of the lanes' progress.
async fn tables(installation: &Installation<'_>) -> Vec<String> {
    let rows = installation.derived_where("birthday\\_%", "birthday", "1").await;
    let mut tables: Vec<String> = rows.into_iter().map(|(table, _)| table).collect();
    tables.sort();
    tables.dedup();
    tables.push("anabranch.progress".to_owned());
    tables
}

fn kept(table: &str) -> String {
    format!("kept.{}", table.replace('.', "_"))
}

async fn back_up(installation: &Installation<'_>) {
    let copies = tables(installation).await.into_iter().map(|table| {
        let kept = kept(&table);
        format!("CREATE TABLE {kept} LIKE {table}; INSERT INTO {kept} SELECT * FROM {table};")
    });
    let copies: String = copies.collect();
    installation
        .execute("target", format!("DROP DATABASE IF EXISTS kept; CREATE DATABASE kept; {copies}"))
        .await;
}

/// Replaces rows and, with `has_progress`, progress by their backup.
async fn restore(installation: &Installation<'_>, has_progress: bool) {
    let known =
        "SELECT CONCAT('kept.', table_name) FROM information_schema.tables WHERE table_schema = 'kept'";
    let known: Vec<String> = installation.admin("target").await.rows("list copies", known).await.unwrap();
    let tables = tables(installation).await.into_iter();
    let restored = tables.filter(|table| has_progress || !table.ends_with("progress")).map(|table| {
        let kept = kept(&table);
        // A table without a copy was empty at the backup.
        let is_known = known.contains(&kept);
        let copied =
            if is_known { format!("INSERT INTO {table} SELECT * FROM {kept};") } else { String::new() };
        format!("DELETE FROM {table}; {copied}")
    });
    let restored: String = restored.collect();
    installation.execute("target", format!("START TRANSACTION; {restored} COMMIT")).await;
}

async fn wrong(installation: &Installation<'_>) -> u64 {
    installation.compare().await.differences.total()
}

async fn expect_verdict(installation: &Installation<'_>, arguments: &[&str], verdict: &str) -> Json {
    let (_, report) = reconcile(installation, arguments).await;
    assert_eq!(report["verdict"], verdict, "{report}");
    report
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_is_restored_under_the_daemon_ends_equal_and_progress_that_runs_ahead_is_found_by_the_reconciliation()
 {
    let prepared = Installation::prepare(STANDARD.turn().await, &Plan::small()).await;
    // Two reconciliations wait in vain, so the wait is short.
    let (installation, mut workload, mut daemon) = installed(prepared, "lane_wait_seconds = 5").await;
    // Tables and progress are yesterday's: the lanes begin there.
    back_up(&installation).await;
    workload.run_for(Pace::of(200), Duration::from_secs(1)).await.unwrap();
    installation.expect_equal().await;
    restore(&installation, true).await;
    workload.insert_rows(10).await.unwrap();
    until("the lanes have gone on from yesterday", async || wrong(&installation).await == 0).await;
    expect_verdict(&installation, &[], "clean").await;

    // Tables are yesterday's under today's progress, and one is empty.
    back_up(&installation).await;
    workload.insert_rows(60).await.unwrap();
    installation.expect_equal().await;
    restore(&installation, false).await;
    installation.execute("target", "TRUNCATE birthday_00.birthday_0103").await;
    let lost = wrong(&installation).await;
    // Not all sixty users have a birthday.
    assert!(lost > 30, "{lost}");
    let report = expect_verdict(&installation, &[], "repaired").await;
    let birthdays = store(&report, "birthday");
    assert_eq!((drift(birthdays), birthdays["left"].as_u64()), (lost, Some(0)), "{birthdays}");
    installation.expect_equal().await;

    // Progress is set forward or deleted by hand: that lane stops, and its missing changes are not judged.
    back_up(&installation).await;
    for (damage, code) in [
        (
            "UPDATE anabranch.progress SET position = position + 16, revision = revision + 1",
            "target-progress-corrupt",
        ),
        ("DELETE FROM anabranch.progress", "target-progress-lost"),
    ] {
        let of_lane = "projection = 'birthday' AND source = 'source-a' AND lane = 0";
        installation.execute("target", format!("{damage} WHERE {of_lane}")).await;
        workload.insert_rows(20).await.unwrap();
        until("the lane says so", async || daemon.log_of_this_run().contains(&format!("[{code}]"))).await;
        let report = expect_verdict(&installation, &[], "incomplete").await;
        assert_eq!(
            (drift(store(&report, "birthday")), &store(&report, "birthday")["repaired"]),
            (0, &Json::from(0))
        );
        daemon.kill();
        installation.free_leases().await;
        let put_back =
            format!("REPLACE INTO anabranch.progress SELECT * FROM kept.anabranch_progress WHERE {of_lane}");
        installation.execute("target", put_back).await;
        daemon = installation.run();
        until("equal", async || wrong(&installation).await == 0).await;
    }
    expect_verdict(&installation, &[], "clean").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_old_or_empty_replica_says_is_no_word_against_the_stores() {
    let mut installation = Installation::prepare(REPLICATED.turn().await, &Plan::small()).await;
    let replica = standby(&installation, "reconciliation-replica").await;
    let ca_file = installation.stack().ca_file().display().to_string();
    let variables = installation.stack().env();
    installation.environment_mut().extend(variables);
    let of_source = "name = \"source-a\"\n";
    let text = installation.configuration_text().replacen(
        of_source,
        &format!(
            "{of_source}replica_url = \"${{ANABRANCH_RECONCILIATION_REPLICA_URL}}\"\nreplica_ca_file = \"{ca_file}\"\n"
        ),
        1,
    );
    assert!(text.contains("replica_url"), "{text}");
    installation.write_configuration_text(&format!("{text}\n[reconcile]\nlane_wait_seconds = 5\n"));
    installation.command(&["setup"]).await.expect_success();
    let _daemon = installation.run();
    let mut workload = installation.workload(WorkloadOptions::new(seed("an old replica")));
    workload.insert_rows(600).await.unwrap();
    installation.expect_equal().await;
    catch_up(&installation, "reconciliation-replica", "source-a").await;
    expect_verdict(&installation, &[], "clean").await;
    let checked = installation.command(&["check"]).await.expect_success();
    assert!(checked.stdout.contains("ok replica of source source-a"), "{checked:?}");

    // Replica and target both lack a row: they agree, and both are wrong.
    installation.execute("reconciliation-replica", "STOP REPLICA").await;
    let user = 77_000_001;
    let insert = "INSERT INTO user_00.user_000 (user_id, user_name, birthday)";
    installation.execute("source-a", format!("{insert} VALUES ({user}, 'x', '1990-01-03')")).await;
    until("it has arrived", async || installation.derived(user).await.len() == 1).await;
    let delete = format!("DELETE FROM birthday_00.birthday_0103 WHERE user_id = {user}");
    installation.execute("target", delete).await;
    let report = expect_verdict(&installation, &[], "incomplete").await;
    assert!(report.to_string().contains("the replica of source source-a lags"), "{report}");
    assert_eq!(store(&report, "birthday")["repaired"], 0);

    // The replica has all transactions, and was emptied: its missing rows are read from the source itself.
    let places = installation.audits[0].topology.tables_of(0);
    let empty: Vec<String> = places.map(|place| format!("DELETE FROM {}", place.name())).collect();
    installation
        .execute("reconciliation-replica", format!("SET SESSION sql_log_bin = 0; {}", empty.join("; ")))
        .await;
    installation.execute("reconciliation-replica", "START REPLICA").await;
    catch_up(&installation, "reconciliation-replica", "source-a").await;
    let report = expect_verdict(&installation, &[], "repaired").await;
    let birthdays = store(&report, "birthday");
    assert_eq!((drift(birthdays), &birthdays["confirmed"]), (1, &Json::from(1)), "{birthdays}");
    installation.expect_equal().await;
    anabranch_tests::blocking(|| replica.stop()).unwrap();
    let checked = installation.command(&["check"]).await;
    let reported = "[source-unreachable] replica of source source-a: a reconciliation cannot read it";
    assert!(checked.exit_code == 3 && checked.stderr.contains(reported), "{checked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reconciliation_whose_window_is_too_short_is_paused_and_goes_on_and_the_third_time_somebody_is_told()
 {
    // A thousand rows need so many windows that the reconciliation is still under way when a busy machine looks.
    let schedule = "schedule = \"*/6 * * * * *\"\nwindow_hours = 0.0008\nrows_per_second = 50\n";
    let (mut installation, _, mut daemon) = small(schedule).await;
    let status =
        async || installation.command(&["reconcile", "status", "--json"]).await.expect_success().json();
    until("it is told", async || daemon.log().contains("the window is too short for a reconciliation")).await;
    assert!(
        daemon.log().contains("the window has ended: the reconciliation continues in the next one"),
        "{}",
        daemon.log()
    );
    assert!(daemon.metric("anabranch_reconcile_windows", &[]).await >= 3.0);
    let underway = status().await["underway"].clone();
    assert!(underway["windows"].as_u64().unwrap() >= 3, "{underway}");
    let shown = installation.command(&["reconcile", "status"]).await.expect_success().stdout;
    assert!(shown.contains("windows"), "{shown}");
    daemon.kill();
    installation.free_leases().await;
    installation.write_configuration();
    let _daemon = installation.run_with(&["--role", "reader", "--role", "projector"], &[]);
    let report = expect_verdict(&installation, &[], "clean").await;
    assert_eq!(report["id"], underway["id"], "the same reconciliation");
}

/// Life of planted entries: longer than the test.
const PLANTED_SECONDS: u32 = 600;

/// Plants codes of no device, so that the cache takes longer than a window, and its tables do not.
async fn plant_codes_of_nobody(installation: &Installation<'_>, codes: u32) {
    let mut redis = RedisServer::admin(installation.stack(), "redis").unwrap().connect().await.unwrap();
    let mut scan = redis::cmd("SCAN");
    scan.arg(0).arg("MATCH").arg("*}e:*").arg("COUNT").arg(1_000);
    let (_, keys): (String, Vec<Vec<u8>>) = redis.one("look", &scan).await.unwrap();
    let key = String::from_utf8(keys[0].clone()).unwrap();
    let prefix = key.split('{').next().unwrap();
    for number in 0..codes {
        let code = format!("NOBODY{number}");
        let key = format!("{prefix}{{{:08x}}}e:{code}", crc32fast::hash(code.as_bytes()));
        let mut set = redis::cmd("SET");
        set.arg(key).arg(encode(&[])).arg("EX").arg(PLANTED_SECONDS);
        redis.one::<()>("plant", &set).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cache_that_no_window_is_long_enough_for_goes_on_in_the_next_reconciliation_and_its_tables_are_compared_in_each()
 {
    let plan = Plan { has_cache: true, ..Plan::serials() };
    let mut installation = Installation::set_up(CACHED.turn().await, &plan).await;
    // The planted entries do not live too long. Otherwise each step would remove them, and a window may end between the
    // removal and the count (`docs/limits.md`).
    let text = installation.configuration_text();
    let (before, life) = text.split_once("empty_time_to_live_seconds = ").expect("the cache has a life");
    let (_, after) = life.split_once('\n').expect("more lines follow");
    let text = format!("{before}empty_time_to_live_seconds = {PLANTED_SECONDS}\n{after}");
    {
        let _filling = installation.run();
        for workload in &mut installation.workloads(WorkloadOptions::new(seed("long cache"))) {
            workload.insert_rows(40).await.unwrap();
        }
        installation.expect_equal().await;
    }
    installation.free_leases().await;
    plant_codes_of_nobody(&installation, 4_000).await;
    let schedule = "[reconcile]\nlane_wait_seconds = 5\nschedule = \"*/12 * * * * *\"\nwindow_hours = 0.0025\n\
                    rows_per_second = 300\n";
    installation.write_configuration_text(&text.replacen(
        "[[sources]]",
        &format!("{schedule}\n[[sources]]"),
        1,
    ));
    let _daemon = installation.run();
    let reconciliations = async || -> Vec<Json> {
        let status = installation.command(&["reconcile", "status", "--json"]).await.expect_success().json();
        let mut reports = Vec::new();
        for reconciliation in status["reconciliations"].as_array().unwrap().iter().rev() {
            let id = reconciliation["id"].as_str().unwrap();
            reports.push(installation.command(&["reconcile", "show", id, "--json"]).await.json());
        }
        reports
    };
    let cache = |report: &Json| report["stores"].as_array().unwrap().last().unwrap().clone();
    let is_through = |report: &Json| cache(report)["incomplete"] == serde_json::json!([]);
    until("the cache was read to its end", async || reconciliations().await.iter().any(is_through)).await;
    let reports = reconciliations().await;
    let first_through = reports.iter().position(is_through).unwrap();
    assert!(first_through > 0, "one window was enough: {reports:?}");
    let entries: u64 =
        reports[..=first_through].iter().map(|report| cache(report)["rows_derived"].as_u64().unwrap()).sum();
    assert!((4_000..5_500).contains(&entries), "{entries}: {reports:?}");
    for report in &reports[..first_through] {
        let cache = cache(report);
        assert!(
            cache["incomplete"][0].as_str().unwrap().contains("the next reconciliation continues there"),
            "{cache}"
        );
    }
    for report in &reports {
        let mapping = store(report, "mapping");
        assert!(
            mapping["rows_source"].as_u64() > Some(0) && mapping["incomplete"] == serde_json::json!([]),
            "{report}"
        );
    }
}

/// Frees the lease of a killed reconciliation; the daemon beside it keeps its own.
async fn free_reconciliation(installation: &Installation<'_>) {
    let bucket = format!("{}_leases", installation.configuration.name);
    let leases = installation.jetstream().await.get_key_value(bucket).await.unwrap();
    leases.purge("reconciliation").await.unwrap();
}

/// Waits until the metrics show how far the reconciliation has come that is under way and stands still.
async fn until_progress_is_shown(daemon: &Daemon, underway: &Json) {
    let rows_of = |store: &Json| {
        ["rows_source", "rows_derived"].iter().filter_map(|side| store[*side].as_u64()).sum::<u64>()
    };
    let done = underway["done"].as_array().unwrap().iter();
    let rows: u64 = done.chain([&underway["current"]]).map(rows_of).sum();
    let share = underway["share"].as_f64().unwrap();
    assert!(rows > 0 && share > 0.0 && share < 1.0, "a part of its tables was read: {underway}");
    let shown = async |name: &str| daemon.metric(&format!("anabranch_reconcile_{name}"), &[]).await;
    until("the metrics show the progress", async || {
        let figures = [shown("underway").await, shown("share_ratio").await, shown("underway_rows").await];
        figures == [1.0, share, rows as f64]
    })
    .await;
}

/// A reconciliation by hand, beside the schedule.
#[tokio::test(flavor = "multi_thread")]
async fn a_reconciliation_by_hand_drops_no_paused_one_and_is_none_of_the_schedule() {
    let (installation, _, daemon) = small("").await;
    let armed = [("ANABRANCH_FAILPOINT", "reconciliation-after-checkpoint")];
    let status =
        async || installation.command(&["reconcile", "status", "--json"]).await.expect_success().json();
    let cut_off = async |arguments: &[&str]| {
        let mut reconciliation = installation.start(&[&["reconcile", "--now"], arguments].concat(), &armed);
        reconciliation.until_failpoint("reconciliation-after-checkpoint").await;
        reconciliation.kill();
        free_reconciliation(&installation).await;
    };
    cut_off(&[]).await;
    let paused = status().await["underway"].clone();
    until_progress_is_shown(&daemon, &paused).await;
    let of_store = ["--store", "birthday", "--mode", "report"];
    let (_, report) = reconcile(&installation, &of_store).await;
    assert_eq!((&report["verdict"], &report["is_whole"]), (&"clean".into(), &false.into()), "{report}");
    assert_eq!(status().await["underway"]["id"], paused["id"], "the whole one waits for its next window");

    cut_off(&of_store).await;
    let other = installation.command(&["reconcile", "--now", "--mode", "report"]).await;
    assert!(other.exit_code != 0 && other.stderr.contains("--store birthday --mode report"), "{other:?}");
    assert!(other.stderr.contains("--abandon"), "{other:?}");
    let (_, report) = reconcile(&installation, &["--mode", "report", "--abandon"]).await;
    assert_eq!(report["verdict"], "clean", "{report}");
    let (_, report) = reconcile(&installation, &[]).await;
    assert_eq!((&report["id"], &report["is_whole"]), (&paused["id"], &true.into()), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reconciliation_that_loses_its_lease_takes_it_again_and_ends() {
    // The reconciliation takes so long that its lease ends before it, on a busy machine too.
    let (installation, _, _daemon) = small("rows_per_second = 100\n").await;
    let mut reconciliation = installation.start(&["reconcile", "--now"], &[]);
    let bucket = format!("{}_leases", installation.configuration.name);
    let leases = installation.jetstream().await.get_key_value(bucket).await.unwrap();
    let is_held =
        async || leases.entry("reconciliation").await.unwrap().is_some_and(|entry| !entry.value.is_empty());
    until("the reconciliation holds its lease", is_held).await;
    // The lease is gone, as after a pause of the process beyond the lease's life.
    leases.purge("reconciliation").await.unwrap();
    until("it holds it again", is_held).await;
    assert!(reconciliation.wait().is_some_and(|ended| ended.success()), "{}", reconciliation.log());
    let status = installation.command(&["reconcile", "status", "--json"]).await.expect_success().json();
    assert_eq!(status["reconciliations"].as_array().map(Vec::len), Some(1), "{status}");
}

/// Keeps sixteen connections of a source busy, without end.
async fn keep_busy(installation: &Installation<'_>) {
    let connections = (0..16).map(async |_| {
        let mut admin = installation.admin("source-a").await;
        loop {
            admin.execute("be busy", "DO SLEEP(1)").await.unwrap();
        }
    });
    futures::future::join_all(connections).await;
}

/// Returns a reconciliation that has paused for a busy source, which is busy no longer.
async fn paused_reconciliation(installation: &Installation<'_>) -> Daemon {
    let has_paused = |started: &Daemon| started.log_of_this_run().contains("the reconciliation pauses");
    let pausing = until_some("a reconciliation pauses", async || {
        let started = installation.start(&["reconcile", "--now"], &[]);
        // A reconciliation may end before the source is busy.
        until("it pauses or ends", async || has_paused(&started) || !started.is_running()).await;
        has_paused(&started).then_some(started)
    });
    tokio::select! {
        paused = pausing => paused,
        () = keep_busy(installation) => unreachable!("it has no end"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reconciliation_waits_for_a_busy_source_passes_its_gate_by_word_only_and_begins_again_without_its_checkpoint()
 {
    let (installation, _, _daemon) = small("running_threads = 12\ngate_keys = 5\n").await;
    let mut paused = paused_reconciliation(&installation).await;
    assert!(paused.wait().is_some_and(|ended| ended.success()), "{}", paused.log());
    let report = installation.command(&["reconcile", "show", "--json"]).await.expect_success().json();
    assert_eq!(report["verdict"], "clean", "{report}");

    let days = (1..=31).step_by(2).map(|day| format!("DELETE FROM birthday_00.birthday_01{day:02} LIMIT 2"));
    installation.execute("target", days.collect::<Vec<_>>().join(";")).await;
    let lost = wrong(&installation).await;
    assert!(lost > 5, "{lost}");
    let report = expect_verdict(&installation, &[], "failed").await;
    let birthdays = store(&report, "birthday");
    assert_eq!((&birthdays["is_gate_closed"], &birthdays["repaired"]), (&Json::from(true), &Json::from(0)));
    assert_eq!(wrong(&installation).await, lost);
    let report = expect_verdict(&installation, &["--open-gate"], "repaired").await;
    assert_eq!(store(&report, "birthday")["confirmed"], lost, "{report}");
    installation.expect_equal().await;

    let lose = "DELETE FROM birthday_00.birthday_0105 ORDER BY user_id LIMIT 3";
    installation.execute("target", lose).await;
    let armed = [("ANABRANCH_FAILPOINT", "reconciliation-after-checkpoint")];
    let mut cut_off = installation.start(&["reconcile", "--now"], &armed);
    cut_off.until_failpoint("reconciliation-after-checkpoint").await;
    cut_off.kill();
    let registers = format!("{}_registers", installation.configuration.name);
    let registers = installation.jetstream().await.get_key_value(registers).await.unwrap();
    let register = registers.get("reconciliation").await.unwrap().expect("it has a checkpoint");
    registers.put("reconciliation", register.slice(..register.len() - 20)).await.unwrap();
    let (ended, report) = reconcile(&installation, &[]).await;
    assert_eq!(report["verdict"], if drift(store(&report, "birthday")) > 0 { "repaired" } else { "clean" });
    assert!(ended.stderr.contains("cannot be read: it begins again"), "{ended:?}");
    let birthdays = store(&report, "birthday");
    assert_eq!(birthdays["tables"], 10, "all were read: {birthdays}");
    installation.expect_equal().await;
}
