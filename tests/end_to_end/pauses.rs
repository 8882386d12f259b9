//! Lanes that an operator pauses stop in every process and later continue where they stopped; all others run on.

use anabranch_tests::{Daemon, Installation, Plan, Turn, until};
use async_nats::jetstream::stream::Config;
use serde_json::Value as Json;

use crate::STANDARD;
use crate::faults::{insert, is_derived, until_derived};
use crate::refresh::forget_the_past;

const PAUSE: [&str; 3] = ["pause", "--projection", "birthday"];
const RESUME: [&str; 3] = ["resume", "--projection", "birthday"];
const TABLE: &str = "user_00.user_000";
const RUNBOOK: &str = include_str!("../../deploy/RUNBOOK.md");

#[tokio::test(flavor = "multi_thread")]
async fn paused_lanes_stop_in_every_process_and_go_on_where_they_stopped() {
    paused_and_resumed(STANDARD.turn().await).await;
}

pub async fn paused_and_resumed(turn: Turn<'static>) {
    let mut installation = Installation::set_up(turn, &Plan::small()).await;
    let mut daemon = installation.run();
    daemon.until_loaded(&["source-a", "source-b"]).await;
    insert(&installation, "source-a", TABLE, 1).await;
    until_derived(&installation, 1).await;

    let of_source = [&PAUSE[..], &["--source", "source-a", "--reason", "new disks"]].concat();
    let paused = installation.command(&of_source).await.expect_success();
    let expected = "paused within seconds: birthday/target/source-a/0, birthday/target/source-a/1\n";
    assert_eq!(paused.stdout, expected);
    until_paused(&daemon, "source-a").await;
    insert(&installation, "source-a", TABLE, 2).await;
    insert(&installation, "source-b", "user_07.user_000", 3).await;
    until_derived(&installation, 3).await;
    assert!(!is_derived(&installation, 2).await, "a paused lane moves nothing, and others go on");

    // A pause is no fault, and every view shows it.
    daemon.until_ready().await;
    let status = installation.command(&["status"]).await.expect_success();
    let reported = "birthday/target/source-a/1: paused for 0 min by ";
    assert!(status.stdout.contains(reported) && status.stdout.contains(": new disks"), "{status:?}");
    let state = daemon.metric("anabranch_task_state", &["task=\"lane/birthday/target/source-a/0\""]).await;
    assert_eq!(state, 5.0);
    let report = installation.command(&["reconcile", "--now", "--json"]).await;
    assert_eq!(report.exit_code, 3, "it is incomplete: {report:?}");
    assert!(report.stdout.contains("is paused, and has not reached the position"), "{report:?}");

    // No process works on the paused lanes, neither the next daemon nor one beside it.
    daemon.kill();
    installation.free_leases().await;
    let daemon = installation.run();
    installation.use_another_http_port();
    let second = installation.run();
    for daemon in [&daemon, &second] {
        until_paused(daemon, "source-a").await;
    }
    assert!(!is_derived(&installation, 2).await);

    let resume = [&RESUME[..], &["--source", "source-a"]].concat();
    let resumed = installation.command(&resume).await.expect_success();
    assert!(resumed.stdout.starts_with("resumed within seconds: birthday/target/source-a/0"), "{resumed:?}");
    until_derived(&installation, 2).await;
    let again = installation.command(&resume).await.expect_success();
    assert!(again.stdout.starts_with("not paused: "), "{again:?}");
    installation.expect_equal().await;
    drop(second);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_was_paused_for_too_long_reads_its_tables_again_by_the_commands_of_the_runbook() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let daemon = installation.run();
    daemon.until_loaded(&["source-a", "source-b"]).await;
    for user in [1, 2] {
        insert(&installation, "source-a", TABLE, user).await;
        until_derived(&installation, user).await;
    }
    let of_source = ["--source", "source-a"];
    installation.command(&[&PAUSE[..], &of_source].concat()).await.expect_success();
    until_paused(&daemon, "source-a").await;

    // The log and the binlogs lose the changes of the pause; the tables have their rows.
    let stream = format!("{}_source-a", installation.configuration.name);
    let jetstream = installation.jetstream().await;
    let mut stream = jetstream.get_stream(stream).await.unwrap();
    let before = stream.info().await.unwrap().state.last_sequence;
    installation.execute("source-a", format!("DELETE FROM {TABLE} WHERE user_id = 1")).await;
    insert(&installation, "source-a", TABLE, 3).await;
    forget_the_past(&installation, "source-a").await;
    insert(&installation, "source-a", TABLE, 4).await;
    until("the log has messages that the lanes lack", async || {
        stream.info().await.unwrap().state.last_sequence > before + 1
    })
    .await;
    let config = stream.cached_info().config.clone();
    for max_messages in [1, config.max_messages] {
        jetstream.update_stream(Config { max_messages, ..config.clone() }).await.unwrap();
    }

    installation.command(&[&RESUME[..], &of_source].concat()).await.expect_success();
    let is_purged = |task: &Json| task["state"] == "retrying" && task["code"] == "binlog-purged";
    let task = daemon.until_view("tasks", ("task", "lane/birthday/target/source-a/0"), is_purged).await;
    let fault = task["fault"].as_str().unwrap();
    assert!(fault.contains("refresh --projection birthday --source source-a"), "{fault}");
    assert!(!is_derived(&installation, 3).await, "the lane reads nothing by itself");

    let commands = commands_after_too_long_a_pause();
    assert_eq!(commands.len(), 2, "{commands:?}");
    for command in &commands {
        let arguments: Vec<&str> = command.split(' ').collect();
        installation.command(&arguments).await.expect_success();
    }
    for user in [3, 4] {
        until_derived(&installation, user).await;
    }
    daemon.until_loaded(&["source-a"]).await;
    daemon.until_ready().await;
    assert!(!is_derived(&installation, 1).await, "a row that left meanwhile is gone");
    installation.expect_equal().await;
}

/// The commands of the runbook for a lane that was resumed too late; the last one there only shows how far it is.
fn commands_after_too_long_a_pause() -> Vec<String> {
    let (_, section) = RUNBOOK.split_once("\n#### Paused lanes that lose changes\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let (_, afterwards) = section.split_once("**If that fails.**").unwrap();
    let commands = afterwards.lines().filter_map(|line| line.strip_prefix("    anabranch --config FILE "));
    let named = commands.map(|command| command.replace("NAME", "birthday").replace("SOURCE", "source-a"));
    named.filter(|command| !command.contains("--watch")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_paused_or_resumed_is_refused_by_name() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    for (arguments, expected) in [
        (
            &["pause", "--projection", "birthdya"][..],
            "projection birthdya: the configuration has no projection",
        ),
        (&["pause", "--projection", "birthday", "--source", "c"], "needed: one of source-a, source-b"),
    ] {
        let refused = installation.command(arguments).await;
        assert_eq!(refused.exit_code, 2, "{refused:?}");
        assert!(
            refused.stderr.contains("[config-invalid]") && refused.stderr.contains(expected),
            "{refused:?}"
        );
    }
    installation.command(&PAUSE).await.expect_success();
    let already = installation.command(&PAUSE).await.expect_success();
    assert!(already.stdout.starts_with("paused already: "), "{already:?}");
    let alone = installation.command(&[&RESUME[..], &["--source", "source-a"]].concat()).await;
    assert!(alone.stderr.contains("it is paused together with all other sources"), "{alone:?}");
    let ended = installation.command(&[&RESUME[..], &["--json"]].concat()).await.expect_success();
    let ended: Json = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&ended["pauses_ended"], ended["lanes"].as_array().unwrap().len()), (&Json::from(1), 4));
}

async fn until_paused(daemon: &Daemon, source: &str) {
    until(&format!("the lanes of {source} are paused and have given their leases back"), async || {
        let Some(status) = daemon.status().await else { return false };
        let tasks = status["tasks"].as_array().unwrap().iter();
        let is_of_source = |task: &&Json| {
            task["task"].as_str().unwrap().starts_with(&format!("lane/birthday/target/{source}/"))
        };
        tasks.filter(is_of_source).all(|task| task["state"] == "paused")
    })
    .await;
}
