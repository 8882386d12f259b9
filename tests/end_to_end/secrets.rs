//! Passwords and personal data stay out of logs, metrics, status and the log's payload.

use anabranch_tests::{Installation, Plan, blocking, until};
use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use futures::StreamExt;

use crate::STANDARD;

/// Values of columns that are not captured.
const PHONE: &str = "+49-marker-phone";
const NAME: &str = "marker-name";
const ADDRESS: &str = "marker-address";
/// A value of the captured column: in the log, but in no output for people or monitoring.
const BIRTHDAY: &str = "marker-birthday";
/// Part of a statement whose effect no row event shows.
const STATEMENT: &str = "marker-statement";

#[tokio::test(flavor = "multi_thread")]
async fn no_password_and_no_row_value_is_shown_and_no_other_column_is_in_the_log() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let daemon = installation.run_with(&[], &[("ANABRANCH_LOG", "trace")]);
    for (server, table) in [("source-a", "user_02.user_000"), ("source-b", "user_07.user_000")] {
        let sql = format!(
            "INSERT INTO {table} (user_id, user_name, birthday, phone, address)
               VALUES (1, '{NAME}', '{BIRTHDAY}', '{PHONE}', '{ADDRESS}'),
                      (2, '{NAME}', '1990-02-02', '{PHONE}', '{ADDRESS}');
             UPDATE {table} SET phone = '{PHONE}-2', birthday = '{BIRTHDAY}' WHERE user_id = 2;
             DELETE FROM {table} WHERE user_id = 1"
        );
        installation.execute(server, sql).await;
    }
    installation.drained().await;
    daemon.until_loaded(&["source-a", "source-b"]).await;
    // The bundle has the newest report, whatever becomes of the reconciliation below.
    installation.command(&["reconcile", "--now"]).await;
    let mut shown = Vec::new();
    shown.push(("metrics", daemon.metrics().await));
    // Faults could leak values: servers that go away, a target that refuses, a statement.
    for server in ["target", "nats"] {
        blocking(|| installation.server(server).kill()).unwrap();
        let status = installation.command(&["status"]).await;
        shown.push(("status while a server is down", status.stdout + &status.stderr));
        blocking(|| installation.server(server).restart()).unwrap();
    }
    installation.execute("target", "ALTER TABLE birthday_00.birthday_0303 DROP COLUMN birthday").await;
    for day in ["1990-03-02", "1990-03-03"] {
        let sql = format!(
            "UPDATE user_07.user_000 SET user_name = '{NAME}-2', birthday = '{day}' WHERE user_id = 2"
        );
        installation.execute("source-b", sql).await;
    }
    let sql = format!(
        "SET SESSION binlog_format = STATEMENT; UPDATE user_02.user_000 SET user_name = '{STATEMENT}'"
    );
    installation.execute("source-a", sql).await;
    // The reader names the table that is read again, and no part of the statement.
    until("the table is read again", async || {
        daemon.metric("anabranch_source_rereads_total", &[]).await > 0.0
    })
    .await;
    for command in [&["status"][..], &["status", "--json"], &["check"], &["check", "--json"], &["setup"]] {
        let finished = installation.command(command).await;
        shown.push(("a command", finished.stdout + &finished.stderr));
    }
    installation.command(&["reconcile", "--now"]).await;
    let archive = bundle(&installation).await;
    // In this order: version, changes of state, list of reconciliations, report of the newest one.
    for content in ["\"commit\"", "\"events\"", "\"is_signature_right\"", "\"rows_derived\""] {
        assert!(archive.contains(content), "{content} is not in {archive}");
    }
    shown.push(("the bundle", archive));
    shown.push(("metrics at the end", daemon.metrics().await));
    shown.push(("status over HTTP", daemon.status().await.unwrap().to_string()));
    shown.push(("readiness", daemon.readiness().await.unwrap().1));
    shown.push(("the log", daemon.log()));
    assert!(daemon.log().contains("committed"), "the log is not at trace level");

    let mut secrets: Vec<String> =
        [PHONE, NAME, ADDRESS, BIRTHDAY, STATEMENT, "1990-02-02", "1990-03-0"].map(str::to_owned).to_vec();
    for server in installation.stack().servers() {
        secrets.extend([server.password().to_owned(), server.admin_password().to_owned()]);
    }
    for (place, text) in &shown {
        assert!(!text.is_empty(), "{place} is empty");
        for secret in &secrets {
            let lines: Vec<&str> = text.lines().filter(|line| line.contains(secret.as_str())).collect();
            assert!(lines.is_empty(), "{secret} is in {place}: {lines:?}");
        }
    }
    payloads_hold_captured_columns_only(&installation).await;
}

/// All files of an archive for support, as one text.
pub async fn bundle(installation: &Installation<'_>) -> String {
    let file = installation.configuration_file().with_extension("tar.gz");
    installation.command(&["bundle", file.to_str().unwrap()]).await.expect_success();
    let listed = std::process::Command::new("tar").arg("-tzf").arg(&file).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    for part in [
        "about.json",
        "configuration.toml",
        "check.json",
        "status.json",
        "metrics.txt",
        "readiness.json",
        "changes-of-state.json",
        "/reconciliations.json",
        "newest-reconciliation.json",
    ] {
        assert!(listed.contains(part), "{part} is not in {listed}");
    }
    let read = std::process::Command::new("tar").arg("-xzOf").arg(&file).output().unwrap();
    std::fs::remove_file(file).unwrap();
    String::from_utf8(read.stdout).unwrap()
}

async fn payloads_hold_captured_columns_only(installation: &Installation<'_>) {
    let jetstream = installation.jetstream().await;
    let mut has_birthday = false;
    for source in ["source-a", "source-b"] {
        let stream =
            jetstream.get_stream(format!("{}_{source}", installation.configuration.name)).await.unwrap();
        let config = pull::OrderedConfig { deliver_policy: DeliverPolicy::All, ..Default::default() };
        let count = stream.get_info().await.unwrap().state.messages as usize;
        let messages = stream.create_consumer(config).await.unwrap().messages().await.unwrap();
        let messages: Vec<_> = messages.take(count).collect().await;
        for message in messages {
            let message = message.unwrap();
            let headers = format!("{:?}", message.headers);
            let contains = |text: &str| {
                headers.contains(text)
                    || message.payload.windows(text.len()).any(|window| window == text.as_bytes())
            };
            has_birthday |= contains(BIRTHDAY);
            for value in [PHONE, NAME, ADDRESS, STATEMENT] {
                assert!(!contains(value), "{value} is in a message of {source}");
            }
        }
    }
    assert!(has_birthday, "the payloads were not looked into: the captured column is not there either");
}
