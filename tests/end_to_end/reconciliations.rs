//! Reconciliations on real servers: differences are found, named and repaired beside the changes, and no unread table
//! is called clean.

use std::collections::BTreeSet;
use std::time::Duration;

use anabranch_demo::{Pace, RedisServer, Workload, WorkloadOptions};
use anabranch_schemas::change::Entity;
use anabranch_stack::ServerSpec;
use anabranch_tests::{Daemon, Finished, Ground, Installation, Plan, Turn, WAIT_MAX, seed, until};
use serde_json::Value as Json;

use crate::STANDARD;

/// An installation with users and devices, streaming and up to date, whose reconciliations wait so many seconds for a
/// lane that stands still.
async fn filled(
    turn: Turn<'static>,
    rows: u64,
    lane_wait: u64,
) -> (Installation<'static>, Vec<Workload>, Daemon) {
    let mut installation = Installation::set_up(turn, &Plan::both()).await;
    let text = installation.configuration_text();
    let text = format!("{text}\n[reconcile]\nlane_wait_seconds = {lane_wait}\n");
    installation.write_configuration_text(&text);
    let daemon = installation.run();
    let mut workloads = installation.workloads(WorkloadOptions::new(seed("reconciliations")));
    for workload in &mut workloads {
        workload.insert_rows(rows).await.unwrap();
    }
    installation.expect_equal().await;
    (installation, workloads, daemon)
}

pub async fn reconcile(installation: &Installation<'_>, arguments: &[&str]) -> (Finished, Json) {
    let reconciliation = installation.command(&[&["reconcile", "--now", "--json"], arguments].concat()).await;
    let report = serde_json::from_str(&reconciliation.stdout).unwrap_or(Json::Null);
    assert!(!report.is_null(), "{reconciliation:?}");
    (reconciliation, report)
}

pub fn store<'r>(report: &'r Json, name: &str) -> &'r Json {
    let stores = report["stores"].as_array().unwrap();
    stores.iter().find(|store| store["store"] == name).unwrap_or_else(|| panic!("{report}"))
}

pub fn drift(store: &Json) -> u64 {
    let kinds = ["missing", "stale", "orphan", "wrong_partition", "in_two_partitions", "lasting"];
    kinds.iter().filter_map(|kind| store["verdicts"][kind].as_u64()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reconciliation_finds_what_is_wrong_beside_the_changes_and_repairs_it() {
    repaired_beside_changes(STANDARD.turn().await).await;
}

pub async fn repaired_beside_changes(turn: Turn<'static>) {
    let (installation, mut workloads, _daemon) = filled(turn, 3_000, 20).await;
    let (ended, report) = reconcile(&installation, &[]).await;
    assert_eq!((ended.exit_code, &report["verdict"]), (0, &Json::from("clean")), "{report}");

    // Differences of each kind: missing; in a wrong table; twice; of no user, in the far future; missing mapping rows,
    // more than the changes beside the reconciliation repair by chance; and one that no source row claims.
    let target = installation.configuration.targets[0].clone();
    installation
        .execute(
            &target,
            "DELETE FROM birthday_00.birthday_0103 LIMIT 10; \
             UPDATE birthday_00.birthday_0105 SET is_sent = 1; \
             INSERT INTO birthday_00.birthday_0107 (shard_id, user_id, birthday, lsn) \
             SELECT shard_id, user_id, '01-07', lsn FROM birthday_00.birthday_0105 ORDER BY user_id LIMIT 2; \
             DELETE FROM birthday_00.birthday_0105 ORDER BY user_id LIMIT 1; \
             INSERT INTO birthday_00.birthday_0109 (shard_id, user_id, birthday, lsn) \
             SELECT shard_id, 4000000000, '01-09', 9000000000000000000 FROM birthday_00.birthday_0101 LIMIT 1; \
             DELETE FROM serial_code_15.mapping_000 LIMIT 30; \
             INSERT INTO serial_code_15.mapping_001 (value, shard_id, uuid, kind, lsn) \
             SELECT value, shard_id, '123', kind, lsn FROM serial_code_15.mapping_001 LIMIT 1",
        )
        .await;
    let before = installation.compare().await.differences.total();
    assert!(before >= 7, "{before} rows differ");
    let running = workloads.iter_mut().map(|w| w.run_for(Pace::of(200), Duration::from_secs(4)));
    let (ended, (over, report)) =
        tokio::join!(futures::future::join_all(running), reconcile(&installation, &[]));
    ended.into_iter().for_each(|ended| _ = ended.unwrap());
    assert_eq!((over.exit_code, &report["verdict"]), (0, &Json::from("repaired")), "{report}");
    for (name, least) in [("birthday", 4), ("mapping", 3)] {
        let store = store(&report, name);
        let found = drift(store);
        assert!(found >= least, "{store}");
        assert_eq!((&store["repaired"], &store["confirmed"]), (&found.into(), &found.into()), "{store}");
        assert_eq!(store["left"], 0);
        assert_eq!(store["drift"].as_array().unwrap().len() as u64, found);
    }
    installation.expect_equal().await;

    // A user and a device are in two tables, one of which is not theirs: the stores follow the tables, and the
    // reconciliation names the wrong ones. It finds the rule of devices by itself.
    for name in ["birthday", "mapping"] {
        assert_eq!(store(&report, name)["placement"]["misplaced"], serde_json::json!({}), "{report}");
    }
    let devices = installation.audits.iter().find(|audit| audit.topology.entity == Entity::SerialCode);
    let places = devices.unwrap().topology.tables_of(0).map(|place| place.name());
    let places: Vec<String> = places.take(2).collect();
    let [foreign, home] = &places[..] else { panic!("{places:?}") };
    installation
        .execute(
            &installation.configuration.sources[0],
            format!(
                "INSERT INTO user_00.user_000 (user_id, user_name, birthday) \
                 SELECT user_id, user_name, '1990-01-01' FROM user_01.user_000 ORDER BY user_id LIMIT 1; \
                 INSERT INTO {foreign} SELECT * FROM {home} WHERE imei1 IS NOT NULL ORDER BY uuid LIMIT 1"
            ),
        )
        .await;
    installation.expect_equal().await;
    let (_, report) = reconcile(&installation, &[]).await;
    assert_eq!(report["verdict"], "clean", "{report}");
    let placement = &store(&report, "birthday")["placement"];
    assert_eq!(placement["misplaced"], serde_json::json!({"user_00.user_000": 1}), "{placement}");
    assert_eq!(
        placement["doubles"][0]["tables"],
        serde_json::json!(["user_00.user_000", "user_01.user_000"])
    );
    assert_eq!(placement["share_of_keys"], 1.0);
    let placement = &store(&report, "mapping")["placement"];
    assert!(placement["rows"].as_u64().unwrap() > 2_000, "{placement}");
    assert_eq!(placement["misplaced"], serde_json::json!({foreign: 1}), "{placement}");
    let in_order = BTreeSet::from([foreign, home]);
    assert_eq!(placement["doubles"][0]["tables"], serde_json::json!(in_order), "{placement}");

    the_history_is_sealed(&installation, &target, &report).await;
}

/// The history has the same report, and a change of it is found.
async fn the_history_is_sealed(installation: &Installation<'_>, target: &str, report: &Json) {
    let shown = installation.command(&["reconcile", "show", "--json"]).await.expect_success().json();
    assert_eq!(shown, *report);
    let status = installation.command(&["reconcile", "status", "--json"]).await.expect_success().json();
    assert_eq!(status["underway"], Json::Null);
    let past = status["reconciliations"].as_array().unwrap();
    assert_eq!((&past[0]["id"], past.len()), (&report["id"], 3));
    let verified = installation.command(&["reconcile", "verify"]).await.expect_success();
    let said = "reconciliations, unsigned: reconcile.signing_key is not set";
    assert!(verified.stdout.contains(said), "{verified:?}");
    let forge = "UPDATE anabranch.reconciliations SET report = REPLACE(report, '0', '1')";
    installation.execute(target, forge).await;
    let broken = installation.command(&["reconcile", "verify"]).await;
    assert!(broken.exit_code == 1 && broken.stderr.contains("history-broken"), "{broken:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_called_clean_that_was_not_read() {
    // One reconciliation waits in vain, so its wait is short.
    let (installation, mut workloads, daemon) = filled(STANDARD.turn().await, 1_000, 5).await;
    let incomplete = async |why: &str| {
        let (ended, report) = reconcile(&installation, &["--store", "birthday"]).await;
        assert_eq!((ended.exit_code, &report["verdict"]), (3, &Json::from("incomplete")), "{report}");
        assert!(report.to_string().contains(why), "{why} is not in {report}");
        report
    };
    // A table cannot be read any more, and the binlog has no event of that.
    let source = installation.configuration.sources[0].clone();
    let place = installation.audits[0].topology.tables_of(0).next().unwrap().name();
    let (database, table) = place.split_once('.').unwrap();
    let rename = |from: &str, to: &str| {
        format!("SET SESSION sql_log_bin = 0; RENAME TABLE `{database}`.`{from}` TO `{database}`.`{to}`")
    };
    installation.execute(&source, rename(table, "hidden")).await;
    let report = incomplete("that no source has").await;
    assert_eq!(drift(store(&report, "birthday")), 0, "rows of a table that is not seen are not judged");
    installation.execute(&source, rename("hidden", table)).await;
    installation.expect_equal().await;

    // Lanes stand still, so differences may be changes on their way.
    drop(daemon);
    let target = installation.configuration.targets[0].clone();
    // One day may have no user, so half a month is deleted.
    let days = (1..=31).step_by(2).map(|day| format!("DELETE FROM birthday_00.birthday_01{day:02}"));
    installation.execute(&target, days.collect::<Vec<_>>().join(";")).await;
    for workload in &mut workloads {
        workload.insert_rows(50).await.unwrap();
    }
    let report = incomplete("has not reached the position").await;
    assert_eq!(store(&report, "birthday")["repaired"], 0);
    let _daemon = installation.run();
    installation.drained().await;
    let (_, report) = reconcile(&installation, &["--store", "birthday"]).await;
    assert_eq!(report["verdict"], "repaired", "{report}");
    installation.expect_equal().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_that_are_not_shown_are_told_by_name_though_they_have_no_derived_rows() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let source = installation.configuration.sources[0].clone();
    let account = "'anabranch_capture'@'127.0.0.1'";
    let grant = |pattern: &str| format!("GRANT SELECT ON `{pattern}`.* TO {account}");
    let revoke = |pattern: &str| format!("REVOKE SELECT ON `{pattern}`.* FROM {account}");
    let ended = async |verdict: &str, whys: &[&str]| {
        let (_, report) = reconcile(&installation, &["--store", "birthday"]).await;
        let reasons = &store(&report, "birthday")["incomplete"];
        assert_eq!(
            (&report["verdict"], reasons.as_array().unwrap().len()),
            (&verdict.into(), whys.len()),
            "{report}"
        );
        whys.iter().for_each(|why| assert!(reasons.to_string().contains(why), "{why}: {reasons}"));
    };
    // The first reconciliation does not know which tables there should be.
    installation.execute(&source, revoke("user\\_%")).await;
    ended("incomplete", &[&format!("source {source} shows no table of user")]).await;
    installation.execute(&source, grant("user\\_%")).await;
    installation
        .execute(&source, "CREATE DATABASE user_77; CREATE TABLE user_77.user_000 LIKE user_00.user_000")
        .await;
    ended("clean", &[]).await;

    installation.execute(&source, format!("{}; {}", grant("user\\_0%"), revoke("user\\_%"))).await;
    for _ in 0..2 {
        ended("incomplete", &["table user_77.user_000 of source"]).await;
    }
    installation.execute(&source, grant("user\\_%")).await;
    ended("clean", &[]).await;
    installation.execute(&source, "DROP DATABASE user_77").await;
    ended("clean", &[]).await;
    installation.execute(&source, revoke("user\\_0%")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_source_does_not_empty_the_stores_and_an_empty_store_is_filled_on_the_word_of_a_person() {
    let (installation, _, _daemon) = filled(STANDARD.turn().await, 2_000, 20).await;
    let target = installation.configuration.targets[0].clone();
    let source = installation.configuration.sources[0].clone();
    let place = installation.audits[0].topology.tables_of(0).next().unwrap().name();
    let (database, table) = place.split_once('.').unwrap();
    let rows = async || installation.derived_where("birthday\\_%", "birthday", "1").await.len();
    let before = rows().await;
    installation
        .execute(
            &source,
            format!(
                "SET SESSION sql_log_bin = 0, sql_mode = 'ALLOW_INVALID_DATES'; CREATE TABLE `{database}`.kept LIKE `{database}`.`{table}`; \
                 INSERT INTO `{database}`.kept SELECT * FROM `{database}`.`{table}`; DELETE FROM `{database}`.`{table}`"
            ),
        )
        .await;
    let (ended, report) = reconcile(&installation, &["--store", "birthday"]).await;
    assert_eq!((ended.exit_code, &report["verdict"]), (1, &Json::from("failed")), "{report}");
    assert_eq!(store(&report, "birthday")["is_gate_closed"], true);
    assert_eq!(rows().await, before, "nothing was taken away");
    installation
        .execute(
            &source,
            format!(
                "SET SESSION sql_log_bin = 0, sql_mode = 'ALLOW_INVALID_DATES'; INSERT INTO `{database}`.`{table}` SELECT * FROM `{database}`.kept; \
                 DROP TABLE `{database}`.kept"
            ),
        )
        .await;
    let (_, report) = reconcile(&installation, &["--store", "birthday"]).await;
    assert_eq!(report["verdict"], "clean", "{report}");

    // Now the stores lack rows that the source has.
    let days = (1..=31).step_by(2).map(|day| format!("DELETE FROM birthday_00.birthday_01{day:02}"));
    installation.execute(&target, days.collect::<Vec<_>>().join(";")).await;
    let (ended, report) = reconcile(&installation, &["--mode", "report"]).await;
    assert_eq!((ended.exit_code, &report["verdict"]), (1, &Json::from("failed")), "{report}");
    assert_eq!(store(&report, "birthday")["repaired"], 0);
    let (_, report) = reconcile(&installation, &["--open-gate"]).await;
    assert_eq!(report["verdict"], "repaired", "{report}");
    until("equal again", async || installation.compare().await.differences.total() == 0).await;
}

/// Commits transactions on tables that are not captured, without end.
async fn write_elsewhere(installation: &Installation<'_>) {
    let sources = installation.configuration.sources.iter().enumerate();
    let writers = sources.map(async |(number, source)| {
        let place = installation.audits[0].topology.tables_of(number).next().unwrap().name();
        let table = format!("{}.elsewhere", place.split_once('.').unwrap().0);
        let mut admin = installation.admin(source).await;
        admin.execute("create", format!("CREATE TABLE {table} (number INT)")).await.unwrap();
        loop {
            admin.execute("insert", format!("INSERT INTO {table} VALUES (1)")).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    futures::future::join_all(writers).await;
}

/// A regular position message would come long after every wait of this test.
#[tokio::test(flavor = "multi_thread")]
async fn refreshes_and_reconciliations_of_sources_that_write_other_tables_only_do_not_wait_for_the_next_position_message()
 {
    let mut installation = Installation::prepare(STANDARD.turn().await, &Plan::small()).await;
    installation.configuration.limits = vec!["position_interval_ms = 3600000".to_owned()];
    installation.write_configuration_text(&installation.configuration_text());
    installation.command(&["setup"]).await.expect_success();
    let daemon = installation.run();
    let mut workloads = installation.workloads(WorkloadOptions::new(seed("elsewhere")));
    for workload in &mut workloads {
        workload.insert_rows(300).await.unwrap();
    }
    installation.expect_equal().await;
    let target = installation.configuration.targets[0].clone();
    let of_january = |verb: &str| -> Vec<String> {
        (1..=31).step_by(2).map(|day| format!("{verb} FROM birthday_00.birthday_01{day:02}")).collect()
    };
    let count = format!(
        "SELECT CAST(SUM(n) AS UNSIGNED) FROM ({}) c",
        of_january("SELECT COUNT(*) n").join(" UNION ALL ")
    );
    let rows = async || -> u64 { installation.admin(&target).await.rows("count", &count).await.unwrap()[0] };
    let lose_rows = of_january("DELETE").join(";");
    let before = rows().await;
    let work = async {
        installation.execute(&target, &lose_rows).await;
        installation.command(&["refresh", "--projection", "birthday"]).await.expect_success();
        // Lanes with nothing to commit do not notice the request.
        for workload in &mut workloads {
            workload.insert_rows(1).await.unwrap();
        }
        until("refreshed", async || {
            let status = installation.command(&["status", "--json"]).await.json();
            let is_through = |lane: &Json| lane["refreshed_rows"].is_null();
            daemon.log().contains("the refresh is complete")
                && status["lanes"].as_array().unwrap().iter().all(is_through)
        })
        .await;
        assert!(before > 0);
        until("the rows are back", async || rows().await >= before).await;
        installation.execute(&target, &lose_rows).await;
        let reconciliation = tokio::time::timeout(WAIT_MAX, reconcile(&installation, &[])).await;
        let (_, report) = reconciliation.expect("it does not wait for the next position message");
        assert_eq!(report["verdict"], "repaired", "{report}");
    };
    tokio::select! {
        () = work => {}
        () = write_elsewhere(&installation) => unreachable!("it has no end"),
    }
}

pub static CACHED: Ground = Ground::of(|| {
    vec![
        ServerSpec::mariadb_source("source-a"),
        ServerSpec::mariadb_source("source-b"),
        ServerSpec::mariadb_target("target"),
        ServerSpec::nats("nats"),
        ServerSpec::redis("redis"),
    ]
});

#[tokio::test(flavor = "multi_thread")]
async fn wrong_entries_of_the_cache_are_found_and_removed() {
    let plan = Plan { has_cache: true, ..Plan::serials() };
    let installation = Installation::set_up(CACHED.turn().await, &plan).await;
    let _daemon = installation.run();
    for workload in &mut installation.workloads(WorkloadOptions::new(seed("cached reconciliation"))) {
        workload.insert_rows(500).await.unwrap();
    }
    installation.expect_equal().await;
    let (_, report) = reconcile(&installation, &[]).await;
    assert_eq!(report["verdict"], "clean", "{report}");
    let cache = report["stores"].as_array().unwrap().last().unwrap().clone();
    assert!(cache["rows_derived"].as_u64().unwrap() > 500, "{report}");

    let mut redis = RedisServer::admin(installation.stack(), "redis").unwrap().connect().await.unwrap();
    let mut scan = redis::cmd("SCAN");
    scan.arg(0).arg("MATCH").arg("*}e:*").arg("COUNT").arg(100);
    let (_, keys): (String, Vec<Vec<u8>>) = redis.one("look", &scan).await.unwrap();
    redis.one::<u64>("let live for ever", redis::cmd("PERSIST").arg(&keys[0])).await.unwrap();
    redis.one::<()>("damage", redis::cmd("SET").arg(&keys[1]).arg("x").arg("KEEPTTL")).await.unwrap();
    let (ended, report) = reconcile(&installation, &["--mode", "report"]).await;
    assert_eq!((ended.exit_code, &report["verdict"]), (1, &Json::from("failed")), "{report}");
    let name = cache["store"].as_str().unwrap();
    assert_eq!(drift(store(&report, name)), 2, "{report}");
    let (_, report) = reconcile(&installation, &[]).await;
    assert_eq!(report["verdict"], "repaired", "{report}");
    assert_eq!((drift(store(&report, name)), &store(&report, name)["confirmed"]), (2, &Json::from(2)));
    installation.expect_equal().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reconciliation_by_hand_is_shown_by_every_daemon_and_before_the_first_one_its_age_can_be_alerted_on()
 {
    const ENDED: &str = "anabranch_reconcile_ended_timestamp_seconds";
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let daemon = installation.run();
    let samples = async |daemon: &Daemon| {
        let text = daemon.metrics().await;
        let sample = |line: &str| Some(line.strip_prefix(ENDED)?.trim_start().parse::<f64>().unwrap());
        text.lines().filter_map(sample).collect::<Vec<_>>()
    };
    until("the history is told to have no reconciliation", async || samples(&daemon).await == [0.0]).await;

    let (_, report) = reconcile(&installation, &[]).await;
    assert_eq!(report["verdict"], "clean", "{report}");
    let ended = report["ended_at_ms"].as_f64().unwrap() / 1000.0;
    until("the reconciliation is shown", async || {
        let verdict = daemon.metric("anabranch_reconcile_verdict", &["verdict=\"clean\""]).await;
        verdict == 1.0 && samples(&daemon).await == [ended]
    })
    .await;
    drop(daemon);
    let next = installation.run();
    until("the next process shows it too", async || samples(&next).await == [ended]).await;
}
