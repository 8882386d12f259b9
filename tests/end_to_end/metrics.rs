//! `/metrics` as a monitoring server reads it: well-formed, described on its page, few series.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anabranch_demo::WorkloadOptions;
use anabranch_pipeline::metrics::{Kind, Metric};
use anabranch_pipeline::wall_clock;
use anabranch_stack::{Layout, ServerSpec, StackError};
use anabranch_tests::{Daemon, Installation, Plan, WAIT_MAX, blocking, http, seed, until};
use serde_json::Value as Json;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::Instant;

use crate::STANDARD;
use crate::documents::GROUND;

#[tokio::test(flavor = "multi_thread")]
async fn a_scrape_passes_promtool_and_shows_only_what_the_page_describes() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let daemon = installation.run();
    daemon.until_ready().await;
    daemon.until_loaded(&["source-a", "source-b"]).await;
    until("the lags are known", async || {
        daemon.metrics().await.contains("anabranch_lane_lag_seconds{projection=")
    })
    .await;
    until("each server's certificate has an end", async || {
        let scrape = daemon.metrics().await;
        let ends = |server: &str| {
            let series = format!("anabranch_certificate_ends_timestamp_seconds{{{server}}} ");
            scrape.lines().any(|line| {
                line.strip_prefix(&series)
                    .is_some_and(|end| end.parse::<f64>().unwrap() > wall_clock::now_ms() as f64 / 1000.0)
            })
        };
        [("source", "source-a"), ("source", "source-b"), ("target", "target"), ("log", "log")]
            .iter()
            .all(|(kind, name)| ends(&format!("dependency=\"{kind}\",name=\"{name}\"")))
    })
    .await;
    let began = Instant::now();
    let scrape = daemon.metrics().await;
    println!("{} bytes, {} lines, {:?}", scrape.len(), scrape.lines().count(), began.elapsed());
    for line in scrape.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        check_sample(line);
    }
    for begun in ["anabranch_retries_total{code=\"source-unreachable\"} 0", "anabranch_cache_fills_total 0"] {
        assert!(scrape.contains(begun), "{begun}: {scrape}");
    }
    check_with_promtool(&scrape).await;
}

/// The token of an operator, who may list operations.
const OPERATOR: &str = "token-of-ann-who-is-on-call";
/// The labels of the pool that serves the list of operations.
const POOL: [&str; 3] = ["dependency=\"target\"", "name=\"target\"", "pool=\"operations\""];

#[tokio::test(flavor = "multi_thread")]
async fn what_is_full_shows_in_its_own_series() {
    let mut installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    // A reader with one small message in flight waits for the log after each.
    installation
        .configuration
        .limits
        .extend(["in_flight_messages = 1".to_owned(), "batch_bytes = 1024".to_owned()]);
    let operator = format!("operators = [{{ name = \"ann\", token = \"{OPERATOR}\" }}]");
    let with_operator = installation.configuration_text_with_http(&operator);
    installation.write_configuration_text(&with_operator);
    let daemon = installation.run();
    daemon.until_loaded(&["source-a", "source-b"]).await;
    let began = now_seconds();
    installation.workload(WorkloadOptions::new(seed("saturation"))).insert_rows(2_000).await.unwrap();
    installation.drained().await;
    until_plausible(&daemon, began).await;
    for source in ["source=\"source-a\"", "source=\"source-b\""] {
        until("the reader has waited for the log", async || {
            daemon.metric("anabranch_log_wait_seconds_count", &[source]).await > 0.0
        })
        .await;
    }
    until("lanes have waited for messages", async || {
        daemon.metric("anabranch_lane_wait_seconds_sum", &[]).await > 0.0
    })
    .await;
    // MariaDB has no commit times, and each of its flushes is counted here.
    until("flushes have a time since the reading", async || {
        daemon.metric("anabranch_lane_read_to_visible_seconds_sum", &[]).await > 0.0
    })
    .await;

    // One connection serves the list: while the table is locked, a second list waits for it.
    let pool = async |name: &str| daemon.metric(&format!("anabranch_pool_{name}"), &POOL).await;
    assert_eq!((pool("connections_max").await, pool("connections_in_use").await), (1.0, 0.0));
    let mut admin = installation.admin("target").await;
    admin.execute("lock the operations", "LOCK TABLES anabranch.operations WRITE").await.unwrap();
    let list = || daemon.ask("GET", "/v1/operations", Some(OPERATOR), "");
    let watch = async {
        until("one list waits for the connection of the other", async || {
            pool("connections_in_use").await == 1.0 && pool("waiting").await == 1.0
        })
        .await;
        admin.execute("unlock the operations", "UNLOCK TABLES").await.unwrap();
    };
    let (first, second, ()) = tokio::join!(list(), list(), watch);
    assert_eq!((first.0, second.0), (200, 200), "{} {}", first.1, second.1);
    until("the connection is free again", async || {
        pool("connections_in_use").await == 0.0 && pool("waiting").await == 0.0
    })
    .await;
}

fn now_seconds() -> f64 {
    wall_clock::now_ms() as f64 / 1000.0
}

/// Waits until sizes, commits, flushes and leases are those of a daemon that has taken changes of both sources since
/// `began`.
async fn until_plausible(daemon: &Daemon, began: f64) {
    for source in ["source-a", "source-b"] {
        let label = format!("source=\"{source}\"");
        until("stream and binlog have a size", async || {
            let stream = daemon.metric("anabranch_log_stream_bytes", &[&label]).await;
            let limit = daemon.metric("anabranch_log_stream_max_bytes", &[&label]).await;
            let binlog = daemon.metric("anabranch_source_binlog_kept_bytes", &[&label]).await;
            0.0 < stream && stream < limit && binlog > 1_000.0
        })
        .await;
        until("the newest commits have their times", async || {
            let read = daemon.metric("anabranch_source_committed_timestamp_seconds", &[&label]).await;
            let derived = daemon.metric("anabranch_lane_committed_timestamp_seconds", &[&label]).await;
            // MariaDB has whole seconds.
            [read, derived].iter().all(|at| (began - 1.0..now_seconds() + 1.0).contains(at))
        })
        .await;
        let held = daemon.metric("anabranch_lease_held", &[&format!("task=\"reader/{source}\"")]).await;
        assert_eq!(held, 1.0, "the lease of the reader of {source}");
    }
    let fill =
        async |part: &str| daemon.metric(&format!("anabranch_lane_flush_fill_ratio_{part}"), &[]).await;
    let (count, sum) = (fill("count").await, fill("sum").await);
    assert!(count > 0.0 && 0.0 < sum && sum <= 2.0 * count, "{count} flushes with a fill of {sum}");
}

/// Checks that the sample's metric is described and declares its labels.
fn check_sample(line: &str) {
    let (series, _) = line.rsplit_once(' ').expect("a value");
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    let family = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| {
        let histogram = Metric::named(name.strip_suffix(suffix)?)?;
        (histogram.kind == Kind::Histogram).then_some(histogram)
    });
    let metric = Metric::named(name).or(family).unwrap_or_else(|| panic!("{name} is on no page"));
    for label in labels.split(',').filter_map(|label| label.split_once("=\"")) {
        assert!(metric.labels.contains(&label.0) || label.0 == "le", "{line}");
    }
}

/// Runs `promtool`, which comes with Prometheus, where the machine can have it.
async fn check_with_promtool(scrape: &str) {
    let layout = Layout::find().unwrap();
    let Some(promtool) = blocking(|| anabranch_stack::promtool(&layout)).unwrap() else { return };
    let mut program = Command::new(promtool.file)
        .args(["check", "metrics"])
        .envs(promtool.environment)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = program.stdin.take().unwrap();
    input.write_all(scrape.as_bytes()).await.unwrap();
    drop(input);
    let output = program.wait_with_output().await.unwrap();
    assert!(output.status.success() && output.stderr.is_empty() && output.stdout.is_empty(), "{output:?}");
}

/// A schedule that is due once a year, and spot checks soon after a change.
const RECONCILE: &str =
    "[reconcile]\nschedule = \"30 2 1 1 *\"\nspot_check_after_seconds = [1, 2, 3]\n\n[[sources]]";
/// The token of an application, which may look devices up.
const APPLICATION: &str = "token-of-the-dashboards";
/// Puts a user into a table of another name too.
const MISPLACE: &str = "INSERT INTO user_00.user_000 (user_id, user_name, birthday) \
                        SELECT user_id, user_name, '1990-01-01' FROM user_01.user_000 ORDER BY user_id LIMIT 1";
/// This metric has series only while a reader needs an older file than the newest.
const BINLOG_PURGE: &str = "anabranch_source_binlog_purge_seconds";
/// Gives the binlog an age at which it is purged, and begins a new file.
const BEGIN_FILE: &str = "SET GLOBAL binlog_expire_logs_seconds = 86400; FLUSH BINARY LOGS";
const SCRAPE_INTERVAL: Duration = Duration::from_secs(1);
/// Values of Grafana's variables.
const VARIABLES: [(&str, &str); 3] = [("$__rate_interval", "10s"), ("$projection", ".*"), ("$source", ".*")];

#[tokio::test(flavor = "multi_thread")]
async fn each_panel_of_the_dashboards_is_answered_with_series() {
    let mut installation = Installation::prepare(GROUND.turn().await, &Plan::everything()).await;
    let text = installation.configuration_text_with_http(&format!("tokens = [\"{APPLICATION}\"]"));
    installation.write_configuration_text(&text.replacen("[[sources]]", RECONCILE, 1));
    installation.command(&["setup"]).await.expect_success();
    let port = installation.configuration.http_port;
    let prometheus = match blocking(|| installation.stack().add(ServerSpec::prometheus("prometheus", port))) {
        Ok(prometheus) => prometheus,
        Err(
            missing @ (StackError::ProgramMissing { .. }
            | StackError::ProgramFailed { .. }
            | StackError::ProgramNotRun { .. }),
        ) => return println!("skipped: {missing}"),
        Err(error) => panic!("{error}"),
    };
    let mut daemon = installation.run();
    daemon.until_ready().await;
    for workload in &mut installation.workloads(WorkloadOptions::new(seed("dashboards"))) {
        workload.insert_rows(200).await.unwrap();
    }
    installation.execute("source-a", MISPLACE).await;
    installation.expect_equal().await;
    installation.command(&["reconcile", "--now"]).await.expect_success();
    daemon.ask("GET", "/v1/serials/0", Some(APPLICATION), "").await;
    let (of_late_readers, others): (Vec<_>, Vec<_>) =
        panels().into_iter().partition(|(_, query)| query.contains(BINLOG_PURGE));
    assert!(!of_late_readers.is_empty() && others.len() > 40, "the dashboards were not found");
    until_answered(prometheus.port(), others).await;
    until("the misplaced user is shown", async || {
        daemon.metric("anabranch_reconcile_misplaced_rows", &["store=\"birthday\""]).await == 1.0
    })
    .await;

    // No reader runs when the new file begins, so the stream ends in the file before it.
    assert_eq!(daemon.terminate().and_then(|status| status.code()), Some(0), "{}", daemon.log());
    installation.execute("source-a", BEGIN_FILE).await;
    let _without_readers = installation.run_with(&["--role", "projector"], &[]);
    until_answered(prometheus.port(), of_late_readers).await;
    installation.execute("source-a", "SET GLOBAL binlog_expire_logs_seconds = 0").await;
}

/// Waits until Prometheus has answered each query with series once.
async fn until_answered(port: u16, mut unanswered: Vec<(String, String)>) {
    let deadline = Instant::now() + WAIT_MAX;
    while !unanswered.is_empty() {
        assert!(Instant::now() < deadline, "no series: {unanswered:#?}");
        tokio::time::sleep(SCRAPE_INTERVAL).await;
        let mut left = Vec::new();
        for (title, query) in unanswered {
            if !is_answered(port, &query).await {
                left.push((title, query));
            }
        }
        unanswered = left;
    }
}

/// Title and query of each panel.
fn panels() -> Vec<(String, String)> {
    let dashboards = [
        include_str!("../../deploy/grafana/overview.json"),
        include_str!("../../deploy/grafana/lanes.json"),
        include_str!("../../deploy/grafana/reconciliation.json"),
    ];
    let mut panels = Vec::new();
    for dashboard in dashboards {
        let dashboard: Json = serde_json::from_str(dashboard).unwrap();
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let query = target["expr"].as_str().unwrap();
                let query = VARIABLES
                    .iter()
                    .fold(query.to_owned(), |query, (name, value)| query.replace(name, value));
                panels.push((panel["title"].to_string(), query));
            }
        }
    }
    panels
}

/// Whether Prometheus has series for the query now; an invalid query fails the test.
async fn is_answered(port: u16, query: &str) -> bool {
    let path = format!("/api/v1/query?query={}", percent_encoded(query));
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let (_, body) = http::get(address, &path).await.expect("Prometheus answers");
    let answer: Json = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
    assert_eq!(answer["status"], "success", "{query}: {answer}");
    !answer["data"]["result"].as_array().unwrap().is_empty()
}

fn percent_encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}
