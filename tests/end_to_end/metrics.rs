//! `/metrics` as a monitoring server reads it: well-formed, described on its page, few series.

use std::process::Stdio;
use std::time::Duration;

use anabranch_demo::WorkloadOptions;
use anabranch_pipeline::metrics::{Kind, Metric};
use anabranch_pipeline::wall_clock;
use anabranch_stack::{Layout, ServerSpec, StackError};
use anabranch_tests::{Installation, Plan, WAIT_MAX, blocking, seed, until};
use serde_json::Value as Json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::Instant;

use crate::STANDARD;

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
    installation.workload(WorkloadOptions::new(seed("saturation"))).insert_rows(2_000).await.unwrap();
    installation.drained().await;
    for source in ["source=\"source-a\"", "source=\"source-b\""] {
        until("the reader has waited for the log", async || {
            daemon.metric("anabranch_log_wait_seconds_count", &[source]).await > 0.0
        })
        .await;
    }
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

/// Metrics without series in this small installation: of a reader that needs an older file, a schedule, rules of
/// placement, caches and indexes. Spot checks begin a minute after a change.
const ABSENT: [&str; 8] = [
    "anabranch_source_binlog_purge_seconds",
    "anabranch_reconcile_next_timestamp_seconds",
    "anabranch_reconcile_misplaced_rows",
    "anabranch_cache_lookups_total",
    "anabranch_cache_delay_seconds",
    "anabranch_cache_believed",
    "anabranch_search_",
    "anabranch_spot_check_",
];
const SCRAPE_INTERVAL: Duration = Duration::from_secs(1);
/// Values of Grafana's variables.
const VARIABLES: [(&str, &str); 3] = [("$__rate_interval", "10s"), ("$projection", ".*"), ("$source", ".*")];

#[tokio::test(flavor = "multi_thread")]
async fn each_panel_of_the_dashboards_is_answered_with_series() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
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
    let daemon = installation.run();
    daemon.until_ready().await;
    installation.workload(WorkloadOptions::new(seed("dashboards"))).insert_rows(200).await.unwrap();
    installation.expect_equal().await;
    installation.command(&["reconcile", "--now"]).await.expect_success();
    daemon.ask("GET", "/v1/serials/0", None, "").await;

    let mut unanswered = panels();
    assert!(unanswered.len() > 40, "the dashboards were not found");
    let deadline = Instant::now() + WAIT_MAX;
    while !unanswered.is_empty() {
        assert!(Instant::now() < deadline, "no series: {unanswered:#?}");
        tokio::time::sleep(SCRAPE_INTERVAL).await;
        let mut left = Vec::new();
        for (title, query) in unanswered {
            if !is_answered(prometheus.port(), &query).await {
                left.push((title, query));
            }
        }
        unanswered = left;
    }
}

/// Title and query of each panel, without those that ask for absent metrics.
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
                if !ABSENT.iter().any(|name| query.contains(name)) {
                    panels.push((panel["title"].to_string(), query));
                }
            }
        }
    }
    panels
}

/// Whether Prometheus has series for the query now; an invalid query fails the test.
async fn is_answered(port: u16, query: &str) -> bool {
    let path = format!("/api/v1/query?query={}", percent_encoded(query));
    let request = format!("GET {path} HTTP/1.0\r\nHost: prometheus\r\nConnection: close\r\n\r\n");
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let answer: Json = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
    assert_eq!(answer["status"], "success", "{query}: {answer}");
    !answer["data"]["result"].as_array().unwrap().is_empty()
}

fn percent_encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}
