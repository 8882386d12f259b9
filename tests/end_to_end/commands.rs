//! The commands as an operator uses them: their output and exit codes, which agree with one another.
//!
//! A few rows are enough here. Commands that need no server are tested beside the binary.

use std::ops::RangeInclusive;
use std::process::Command;
use std::time::{Duration, Instant};

use anabranch_pipeline::failpoints;
use anabranch_tests::{Daemon, Finished, Installation, Plan, until};
use serde_json::Value as Json;

use crate::STANDARD;

/// Inserts one user a transaction into the source's first table, born as many days after 1990-01-01 as its id says.
async fn insert(installation: &Installation<'_>, source: usize, ids: RangeInclusive<u64>) {
    let place = installation.audits[0].topology.tables_of(source).next().unwrap();
    let table = place.quoted();
    let user = |id: u64| {
        format!(
            "INSERT INTO {table} (user_id, user_name, birthday) \
             VALUES ({id}, 'user{id}', DATE_ADD('1990-01-01', INTERVAL {id} DAY))"
        )
    };
    let sql: Vec<String> = ids.map(user).collect();
    installation.execute(["source-a", "source-b"][source], sql.join(";")).await;
}

fn rows(status: &Json) -> u64 {
    status["lanes"].as_array().unwrap().iter().filter_map(|lane| lane["rows"].as_u64()).sum()
}

async fn until_applied(daemon: &Daemon, count: u64) {
    until(&format!("{count} rows are applied"), async || {
        daemon.status().await.is_some_and(|status| rows(&status) == count)
    })
    .await;
}

async fn status(installation: &Installation<'_>) -> Json {
    installation.command(&["status", "--json"]).await.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_tell_one_story_from_set_up_to_an_orderly_stop() {
    let installation = Installation::prepare(STANDARD.turn().await, &Plan::small()).await;
    let missing = installation.command(&["check"]).await;
    assert_eq!(missing.exit_code, 1, "{missing:?}");
    for expected in [
        "[log-stream-missing] stream",
        "[target-table-missing] target target",
        "anabranch --config FILE setup",
    ] {
        assert!(missing.stderr.contains(expected), "{expected}: {missing:?}");
    }
    let first = installation.command(&["setup"]).await.expect_success();
    assert!(first.stdout.contains("source-a: created"), "{first:?}");
    assert!(first.stdout.contains("target target: created 3 databases"), "{first:?}");
    let second = installation.command(&["setup"]).await.expect_success();
    assert!(!second.stdout.contains("created"), "{second:?}");
    installation.command(&["check"]).await.expect_success();

    // Without a daemon no change is applied, and the status shows that.
    let idle = status(&installation).await;
    let shown = (idle["daemon"].as_bool(), idle["lanes"][0]["state"].as_str());
    assert_eq!(shown, (Some(false), Some("new")), "{idle}");

    let mut daemon = installation.run();
    daemon.until_loaded(&["source-a", "source-b"]).await;
    insert(&installation, 0, 1..=300).await;
    insert(&installation, 1, 301..=400).await;
    until_applied(&daemon, 400).await;
    daemon.until_ready().await;
    until("every task runs", async || {
        let busy = status(&installation).await;
        busy["daemon"] == true
            && busy["tasks"].as_array().unwrap().iter().all(|task| task["state"] == "running")
    })
    .await;
    until("the lag is known", async || {
        daemon.metrics().await.contains("anabranch_lane_lag_seconds{projection=\"birthday\"")
    })
    .await;
    tail_agrees(&installation).await;
    for server in ["source-a", "target"] {
        keeps_its_connections(&installation, server).await;
    }

    let taken = installation.command(&["run"]).await;
    assert_eq!(taken.exit_code, 1, "{taken:?}");
    let port = installation.configuration.http_port.to_string();
    assert!(taken.stderr.contains("error: [listen-failed]") && taken.stderr.contains(&port), "{taken:?}");

    assert_eq!(daemon.terminate().and_then(|status| status.code()), Some(0));
    let after = status(&installation).await;
    assert_eq!((after["daemon"].as_bool(), rows(&after)), (Some(false), 400), "{after}");
}

/// Checks that the daemon, which asks each server once a second, keeps its connections: new ones would fill the log. A
/// stall of the machine may cost a connection once, so any three seconds without a new one will do.
async fn keeps_its_connections(installation: &Installation<'_>, server: &str) {
    let mut admin = installation.admin(server).await;
    let mut counter = async |name: &str| -> u64 {
        let sql = format!("SHOW GLOBAL STATUS LIKE '{name}'");
        let counter = admin.first::<(String, String)>("read a counter", sql).await.unwrap();
        counter.unwrap().1.parse().unwrap()
    };
    let (mut connections, mut since) = (counter("CONNECTIONS").await, counter("UPTIME").await);
    until(&format!("three seconds without a new connection to {server}"), async || {
        let (now, uptime_seconds) = (counter("CONNECTIONS").await, counter("UPTIME").await);
        if now != connections {
            (connections, since) = (now, uptime_seconds);
        }
        uptime_seconds >= since + 3
    })
    .await;
}

/// `tail` shows every change once, finds a position, and filters.
async fn tail_agrees(installation: &Installation<'_>) {
    let tail = async |arguments: &[&str]| {
        let arguments = [&["tail", "--no-follow"], arguments].concat();
        installation.command(&arguments).await.expect_success().json_lines()
    };
    assert_eq!(tail(&[]).await.len(), 400);
    let source = tail(&["--source", "source-a"]).await;
    let positions: Vec<_> = source.iter().map(position).collect();
    assert_eq!(positions.len(), 300);
    assert!(positions.is_sorted());
    for place in [0, 1, 150, 299] {
        let from = tail(&["--source", "source-a", "--from", source[place]["lsn"].as_str().unwrap()]).await;
        let expected = positions.iter().filter(|position| **position >= positions[place]).count();
        assert_eq!(from.len(), expected, "from {}", source[place]["lsn"]);
    }
    let one = tail(&["--user-id", "7"]).await;
    assert_eq!((one.len(), &one[0]["action"]), (1, &Json::from("insert")));
    assert_eq!(one[0]["after"]["birthday"]["date"], "1990-01-08");
    assert_eq!(tail(&["--limit", "3"]).await.len(), 3);
    assert_eq!(tail(&["--from", "latest"]).await.len(), 0);
    assert_eq!(tail(&["--table", "user_00.user_999"]).await.len(), 0);
}

/// The parts of an Lsn as numbers, to be compared.
fn position(change: &Json) -> [u64; 3] {
    let mut parts = change["lsn"].as_str().unwrap().split(':').map(|part| part.parse().unwrap());
    std::array::from_fn(|_| parts.next().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_refuses_the_password_is_down_alone_and_is_seen() {
    let plan = Plan { has_passwords_in_file: true, ..Plan::small() };
    let mut installation = Installation::set_up(STANDARD.turn().await, &plan).await;
    spoil_password(&mut installation, "source-b");
    let checked = installation.command(&["check"]).await;
    assert_eq!(checked.exit_code, 1, "{checked:?}");
    assert!(checked.stderr.contains("error: [source-access-denied] source source-b"), "{checked:?}");
    assert!(checked.stdout.contains("ok source source-a"), "{checked:?}");

    let mut daemon = installation.run();
    daemon.until_loaded(&["source-a"]).await;
    insert(&installation, 0, 1..=50).await;
    until_applied(&daemon, 50).await;
    until("the other source is down by name", async || {
        let answer = daemon.readiness().await;
        answer.is_some_and(|(code, reasons)| {
            code == 503 && reasons.contains("\"code\":\"source-access-denied\"")
        })
    })
    .await;
    let retries = |task: &Json| task["state"] == "retrying";
    daemon.until_view("tasks", ("task", "reader/source-b"), retries).await;
    let shown = installation.command(&["status"]).await;
    assert_eq!(shown.exit_code, 1, "{shown:?}");
    assert!(shown.stdout.contains("source-b  retrying"), "{shown:?}");
    assert_eq!(daemon.terminate().and_then(|status| status.code()), Some(0));

    spoil_password(&mut installation, "source-a");
    let json = installation.command(&["--log-format", "json", "check"]).await;
    assert!(json.stderr.contains(r#"{"code":"source-access-denied","class":"definite""#), "{json:?}");
    let bundle = crate::secrets::bundle(&installation).await;
    assert!(bundle.contains(":***@127.0.0.1"), "the configuration is in it: {bundle}");
    assert!(bundle.contains("source-access-denied"), "what is wrong is in it: {bundle}");
    let bundle = Finished { exit_code: 0, stdout: bundle, stderr: String::new() };
    no_secret_in(&installation, &[checked, shown, json, bundle]);
}

const WRONG_PASSWORD: &str = "certainly-not-this-one";

fn spoil_password(installation: &mut Installation<'_>, server: &str) {
    let file = installation.configuration_file();
    let text = std::fs::read_to_string(file).unwrap();
    let spoiled = text.replace(installation.server(server).password(), WRONG_PASSWORD);
    assert_ne!(spoiled, text);
    installation.write_configuration_text(&spoiled);
}

fn no_secret_in(installation: &Installation<'_>, answers: &[Finished]) {
    let servers = installation.stack().servers();
    let secrets = servers.iter().map(|server| server.password()).chain([WRONG_PASSWORD]);
    for secret in secrets {
        for answer in answers {
            let found = answer.stdout.contains(secret) || answer.stderr.contains(secret);
            assert!(!found, "a secret in {answer:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lag_grows_while_a_target_is_frozen_and_a_second_signal_ends_at_once() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let mut loading = installation.run();
    loading.until_loaded(&["source-a"]).await;
    insert(&installation, 0, 1..=10).await;
    until_applied(&loading, 10).await;
    loading.kill();
    installation.free_leases().await;
    // A lane that is not committing ends at once when it is asked to stop. So a lane waits at the beginning of its
    // commit until the target is frozen, however long that takes.
    insert(&installation, 0, 11..=20).await;
    let failpoint = "lane-before-commit";
    let mut daemon = installation.run_with(&[], &[("ANABRANCH_FAILPOINT", failpoint)]);
    daemon.until_failpoint(failpoint).await;
    daemon.until_view("lanes", ("source", "source-a"), |lane| lane["lag_seconds"].is_number()).await;
    let target = installation.server("target");
    target.pause().unwrap();
    daemon.resume();
    for seconds in [2.0, 4.0] {
        daemon
            .until_view("lanes", ("source", "source-a"), |lane| {
                lane["lag_seconds"].as_f64().is_some_and(|lag| lag > seconds)
            })
            .await;
    }
    let ended = Command::new("kill").args(["-TERM", &daemon.pid().to_string()]).status().unwrap();
    assert!(ended.success());
    until("the daemon stops in order", async || {
        daemon.log_of_this_run().contains("stopping: readers, then lanes")
    })
    .await;
    assert!(daemon.is_running(), "it waits for the frozen target");
    let (code, reasons) = daemon.readiness().await.expect("HTTP is served until the lanes have ended");
    assert!(code == 503 && reasons.contains("it was asked to stop"), "{reasons}");
    let asked_again = Instant::now();
    assert_eq!(daemon.terminate().and_then(|status| status.code()), Some(143));
    assert!(asked_again.elapsed() < Duration::from_secs(6), "an orderly stop would take 10 s");
    target.resume().unwrap();
    let daemon = installation.run();
    until_applied(&daemon, 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_daemon_stands_by_and_is_ready_and_takes_over() {
    let mut installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let mut first = installation.run();
    first.until_ready().await;
    // A task without its lease, such as a watch, would be left to the second daemon.
    until_all_tasks_are(&first, "running").await;
    installation.configuration.http_port = anabranch_demo::daemon::free_port().unwrap();
    installation.write_configuration();
    let second = installation.run();
    // The second daemon sees the state, and does not work.
    second.until_view("lanes", ("source", "source-a"), |lane| lane["state"] == "current").await;
    second.until_view("lanes", ("source", "source-b"), |lane| lane["state"] == "current").await;
    second.until_ready().await;
    first.until_ready().await;
    first.until_loaded(&["source-a", "source-b"]).await;
    until_all_tasks_are(&second, "standby").await;
    assert_eq!(second.metric("anabranch_task_state", &["task=\"reader/source-a\""]).await, 4.0);
    insert(&installation, 0, 1..=10).await;
    until_applied(&first, 10).await;
    first.kill();
    insert(&installation, 0, 11..=20).await;
    until_applied(&second, 20).await;
    second.until_ready().await;
    second.until_view("tasks", ("task", "reader/source-a"), |task| task["state"] == "running").await;
}

/// Waits until two readers, four lanes and two watches are in this state.
async fn until_all_tasks_are(daemon: &Daemon, state: &str) {
    until(&format!("all tasks are {state}"), async || {
        let Some(status) = daemon.status().await else { return false };
        let tasks = status["tasks"].as_array().unwrap().iter();
        tasks.filter(|task| task["state"] == state).count() == 8
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_daemons_that_share_the_work_are_both_ready() {
    let mut installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let one = installation.run();
    installation.configuration.http_port = anabranch_demo::daemon::free_port().unwrap();
    installation.write_configuration();
    let other = installation.run();
    one.until_ready().await;
    other.until_ready().await;
    one.until_loaded(&["source-a"]).await;
    insert(&installation, 0, 1..=10).await;
    until_applied(&one, 10).await;
    one.until_ready().await;
    other.until_ready().await;
}

/// The measured rate times its window is the number of rows that were inserted meanwhile, on each source.
#[tokio::test(flavor = "multi_thread")]
async fn a_plan_measures_exactly_the_rows_that_were_inserted_between_its_two_looks() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::payments()).await;
    let insert = async |source: usize, numbers: RangeInclusive<u32>| {
        let table = installation.audits[0].topology.tables_of(source).next().unwrap().quoted();
        let row = |number: u32| format!("('20160606110310010050524{number:08}')");
        let rows: Vec<String> = numbers.map(row).collect();
        let sql = format!("INSERT INTO {table} (id) VALUES {}", rows.join(", "));
        installation.execute(["source-a", "source-b"][source], sql).await;
    };
    insert(0, 1..=1_000).await;
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/plans/flux.toml");
    let measure = ["plan", file, "--measure", "--measure-seconds", "1", "--json"];
    let point = failpoints::MEASURING[0];
    let mut plan = installation.start(&measure, &[("ANABRANCH_FAILPOINT", point)]);
    until("both sources were looked at", async || plan.log_of_this_run().matches(point).count() == 2).await;
    let inserted = [37_u32, 500];
    insert(0, 2_001..=2_000 + inserted[0]).await;
    insert(1, 2_001..=2_000 + inserted[1]).await;
    plan.resume();
    let ended = plan.wait();
    let log = plan.log_of_this_run();
    assert!(ended.is_some_and(|status| status.success()), "{log}");
    let view: Json = serde_json::from_str(&log[log.find('{').unwrap()..]).unwrap();
    let measured = &view["measured"];

    let servers = measured["servers"].as_array().unwrap();
    assert_eq!(servers.len(), inserted.len(), "{measured}");
    for (server, rows) in servers.iter().zip(inserted) {
        assert_eq!(server["inserted_rows"], rows, "{server}");
        let figure = |name: &str| server[name].as_f64().unwrap();
        let (seconds, a_second) = (figure("window_seconds"), figure("inserted_rows_per_second"));
        assert!(seconds >= 1.0 && (a_second * seconds - f64::from(rows)).abs() < 1e-6, "{server}");
    }
    // The sources have other entities too, so no figure of the file is derived from the rate.
    let kept = measured["kept"][0].as_str().unwrap();
    assert!(kept.starts_with("[flux] recharges_per_day: the figure of the file stands"), "{kept}");
}
