//! `check` on a set-up in which everything is wrong at once: it names each fault, with its code and its remedy.
//!
//! The conformance tests show each fault by itself.

use anabranch_schemas::sql::flux_table;
use anabranch_stack::ServerSpec;
use anabranch_tests::{Installation, Plan, until};
use serde_json::Value as Json;

use crate::STANDARD;
use crate::relations::with_sites;

#[tokio::test(flavor = "multi_thread")]
async fn check_names_everything_that_is_wrong_with_its_remedy_and_is_ok_when_repaired() {
    let mut installation = Installation::prepare(STANDARD.turn().await, &Plan::small()).await;
    let fresh = installation.command(&["check", "--json"]).await;
    let codes = codes(&fresh.json());
    assert!(codes.contains(&("log-stream-missing".to_owned(), "setup".to_owned())), "{fresh:?}");
    assert!(codes.iter().any(|(code, _)| code == "target-table-missing"), "{fresh:?}");
    installation.command(&["setup"]).await.expect_success();
    installation.command(&["check"]).await.expect_success();

    installation
        .execute(
            "source-b",
            "SET GLOBAL binlog_format = STATEMENT; SET GLOBAL binlog_row_image = MINIMAL; \
             SET GLOBAL binlog_row_metadata = MINIMAL",
        )
        .await;
    installation
        .execute(
            "target",
            "DROP TABLE birthday_00.birthday_0101; ALTER TABLE birthday_01.birthday_0102 DROP COLUMN lsn",
        )
        .await;
    let right = installation.environment_mut().clone();
    for (name, value) in installation.environment_mut() {
        if name == "ANABRANCH_SOURCE_A_URL" {
            *value = value.replace('@', "wrong@");
        }
    }
    let check = installation.command(&["check"]).await;
    assert_eq!(check.exit_code, 1, "{check:?}");
    for (code, words) in [
        ("source-access-denied", ["source source-a", ""]),
        ("source-format-not-row", ["STATEMENT", "SET GLOBAL binlog_format = ROW"]),
        ("source-image-not-full", ["MINIMAL", "SET GLOBAL binlog_row_image = FULL"]),
        ("source-metadata-not-full", ["MINIMAL", "SET GLOBAL binlog_row_metadata = FULL"]),
        ("target-table-missing", ["`birthday_00`.`birthday_0101`", "setup"]),
        ("target-table-shape", ["`birthday_01`.`birthday_0102`", "ADD COLUMN `lsn`"]),
    ] {
        let line = check.stderr.lines().find(|line| line.contains(&format!("[{code}]"))).unwrap_or_default();
        assert!(words.iter().all(|word| line.contains(word)), "{code}: {check:?}");
    }
    assert!(check.stdout.contains("ok log"), "{check:?}");

    *installation.environment_mut() = right;
    installation
        .execute(
            "source-b",
            "SET GLOBAL binlog_format = ROW; SET GLOBAL binlog_row_image = FULL; SET GLOBAL binlog_row_metadata = FULL",
        )
        .await;
    installation.execute("target", "DROP TABLE birthday_01.birthday_0102").await;
    installation.command(&["setup"]).await.expect_success();
    installation.command(&["check"]).await.expect_success();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_fault_is_warned_of_by_check_in_text_and_json() {
    let mut installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let text = installation.configuration_text();
    // With this setting at its default a source has to keep its binlogs for the standard time.
    installation.write_configuration_text(&text.replace("retention_min_seconds = 0\n", ""));
    installation.execute("source-b", "SET GLOBAL binlog_expire_logs_seconds = 60").await;
    let text = installation.command(&["check"]).await;
    let json = installation.command(&["check", "--json"]).await;
    installation.execute("source-b", "SET GLOBAL binlog_expire_logs_seconds = 0").await;
    let text = text.expect_success();
    let reported = "source source-b: binlogs are kept for 60 s; needed: ";
    assert!(text.stderr.contains(reported), "{text:?}");
    let warnings = json.json()["warnings"].clone();
    let warnings: Vec<&str> = warnings.as_array().unwrap().iter().filter_map(Json::as_str).collect();
    assert!(warnings.iter().any(|warning| warning.starts_with(reported)), "{warnings:?}");
    assert!(!warnings.iter().any(|warning| warning.contains("source-a")), "{warnings:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_one_source_is_shown_by_run_and_the_other_source_is_captured() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    installation.execute("source-a", "SET GLOBAL binlog_row_image = MINIMAL").await;
    let daemon = installation.run();
    let view = daemon.until_view("sources", ("source", "source-a"), |view| view["state"] == "retrying").await;
    let sql = "INSERT INTO user_05.user_000 (user_id, user_name, birthday) VALUES (1, 'n', '1990-01-01')";
    installation.execute("source-b", sql).await;
    until("the other source is derived", async || {
        let mut target = installation.admin("target").await;
        let rows = target.first::<u64>("count", "SELECT COUNT(*) FROM birthday_00.birthday_0101").await;
        rows.unwrap() == Some(1)
    })
    .await;
    installation.execute("source-a", "SET GLOBAL binlog_row_image = FULL").await;
    assert_eq!(view["code"], "source-image-not-full", "{view}");
    assert!(view["fault"].as_str().unwrap().contains("remedy"), "{view}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_cannot_serve_is_refused_by_set_up_check_and_run() {
    let mut installation = Installation::prepare(STANDARD.turn().await, &Plan::small()).await;
    for (spec, code) in [
        (ServerSpec::nats_without_jetstream("nats-plain"), "log-without-jetstream"),
        (ServerSpec::nats_old("nats-old"), "log-server-too-old"),
    ] {
        let name = spec.name.clone();
        anabranch_tests::blocking(|| installation.stack().add(spec)).unwrap();
        installation.configuration.log = name.clone();
        installation.write_configuration();
        let url = installation.server(&name).url();
        installation
            .environment_mut()
            .push((format!("ANABRANCH_{}_URL", name.to_ascii_uppercase().replace('-', "_")), url));
        for command in ["setup", "check"] {
            let finished = installation.command(&[command]).await;
            assert_eq!(finished.exit_code, 1, "{command}: {finished:?}");
            assert!(finished.stderr.contains(&format!("[{code}]")), "{command}: {finished:?}");
        }
        let daemon = installation.run();
        let is_reported = |view: &Json| view["state"] == "retrying" && view["code"] == code;
        daemon.until_view("tasks", ("task", "reader/source-a"), is_reported).await;
        drop(daemon);
        installation.server(&name).stop().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_two_sources_of_one_region_and_side_have_is_refused_by_name() {
    let mut installation = Installation::prepare(STANDARD.turn().await, &Plan::small()).await;
    for source in ["source-a", "source-b"] {
        let table = flux_table("flux_00_0", "atom_05_00");
        installation.execute(source, format!("CREATE DATABASE IF NOT EXISTS flux_00_0; {table}")).await;
    }
    let documents = r#"
[[entities]]
entity = "flux"
level = "atom"
tables = "flux_00_{db}.atom_{partition:02}_{month:02}"
"#;
    let text = with_sites(installation.configuration_text() + documents);
    installation.write_configuration_text(&text);
    installation.command(&["setup"]).await.expect_success();
    let check = installation.command(&["check"]).await.expect_success();
    assert!(!check.stdout.contains("tables of payment documents"), "nothing to compare: {check:?}");
    installation.write_configuration_text(&text.replace("fail_over", "main"));
    let check = installation.command(&["check"]).await;
    assert_eq!(check.exit_code, 2, "{check:?}");
    let expected = "source source-b: source source-a of its region and side has 1 of its tables in 1 databases, too: \
                    flux_00_0.atom_05_00";
    let is_named = |line: &str| line.contains("[config-invalid]") && line.contains(expected);
    assert!(check.stderr.lines().any(is_named), "{check:?}");
}

/// Code of each fault, and last word of its remedy.
fn codes(report: &Json) -> Vec<(String, String)> {
    let faults = report["faults"].as_array().unwrap().iter();
    let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
    faults
        .map(|fault| {
            let remedy = text(&fault["remedy"]);
            (text(&fault["code"]), remedy.split_whitespace().last().unwrap_or_default().to_owned())
        })
        .collect()
}
