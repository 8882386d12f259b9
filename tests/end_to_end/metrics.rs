//! `/metrics` as a monitoring server reads it: well-formed, described on its page, few series.

use std::process::Stdio;

use anabranch_pipeline::metrics::{Kind, Metric};
use anabranch_tests::{Installation, Plan, until};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

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
    let scrape = daemon.metrics().await;
    println!("{} bytes, {} lines", scrape.len(), scrape.lines().count());
    for line in scrape.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        check_sample(line);
    }
    for begun in ["anabranch_retries_total{code=\"source-unreachable\"} 0", "anabranch_cache_fills_total 0"] {
        assert!(scrape.contains(begun), "{begun}: {scrape}");
    }
    check_with_promtool(&scrape).await;
}

/// The sample is of a described metric, and its labels are those that the metric declares.
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

/// Where the program is on the PATH, as it comes with Prometheus.
async fn check_with_promtool(scrape: &str) {
    let program = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut program = match program {
        Ok(program) => program,
        Err(error) => return println!("skipped: promtool cannot be run ({error})"),
    };
    let mut input = program.stdin.take().unwrap();
    input.write_all(scrape.as_bytes()).await.unwrap();
    drop(input);
    let output = program.wait_with_output().await.unwrap();
    assert!(output.status.success() && output.stderr.is_empty() && output.stdout.is_empty(), "{output:?}");
}
