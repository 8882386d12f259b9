//! The lanes' own part of the lag of payment documents while tables of a month retire: from reading to visible.
//!
//! Recharges arrive in the tables of other months, 1,000 a second, open loop. A table of June is made, filled and
//! dropped every other second; `removal = "retain"` keeps its rows in the index. The limit is the same statements for a
//! table of a database that is not captured, as those cost the source as much. The daemon's histogram says the lag, so
//! a quantile is as exact as its buckets.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anabranch_demo::Endpoint;
use anabranch_tests::Daemon;
use serde_json::json;
use tokio::sync::mpsc;

use crate::Scale;
use crate::load::{self, CHANGES_A_SECOND, Statement, WARM_UP};
use crate::meter::median;
use crate::recharges::{PARTITIONS, Recharge, insert};
use crate::report::{Line, Report};
use crate::site::{SOURCE, Site, TARGET};

const MOST: f64 = 2.0;
const HISTOGRAM: &str = "anabranch_lane_read_to_visible_seconds_bucket";
/// Number of the first recharge that arrives.
const FIRST_RECHARGE: u64 = 1_000_000;
/// A captured database, and one that no pattern of the configuration names.
const CAPTURED: &str = "flux_00_0";
const UNCAPTURED: &str = "other_00";
/// A table whose columns all tables have.
const LIKE: &str = "flux_00_0.composite_00_11";
const RETIRED: &str = "composite_00_05";
/// The digits of a recharge of June before its sequence.
const JUNE: &str = "20250615110310011050000";
const ROWS: u64 = 1_000;
/// Rows that are written at once; with the pause after them they cost the others no more than common changes do.
const ROWS_AT_ONCE: u64 = 20;
const PAUSE: Duration = Duration::from_millis(20);
const EVERY: Duration = Duration::from_secs(2);

pub async fn measure(mut site: Site<'_>, scale: &Scale, report: &mut Report) {
    let _ = site.new_log("retired").await;
    let text = site.installation.configuration_text();
    let level = "level = \"composite\"\n";
    let retained = text.replace(level, &format!("{level}removal = \"retain\"\n"));
    assert_ne!(text, retained, "composites have an entry of their own");
    site.installation.write_configuration_text(&retained);
    site.source(format!("CREATE DATABASE IF NOT EXISTS {UNCAPTURED}")).await;
    site.installation.command(&["setup"]).await.expect_success();
    let daemon = site.installation.run();
    daemon.until_ready().await;
    let changes = (scale.latency_seconds + WARM_UP.as_secs()) * CHANGES_A_SECOND;
    let (mut alone, mut with, mut retired, mut beside_it) = (Vec::new(), Vec::new(), 0, 0);
    for round in 0..u64::from(scale.rounds) {
        let first = 2 * round * changes;
        tokio::select! {
            lag = run(&site, &daemon, first..first + changes) => alone.push(lag),
            () = drop_tables(&site, UNCAPTURED, &mut beside_it) => unreachable!("it has no end"),
        }
        tokio::select! {
            lag = run(&site, &daemon, first + changes..first + 2 * changes) => with.push(lag),
            () = drop_tables(&site, CAPTURED, &mut retired) => unreachable!("it has no end"),
        }
    }
    site.installation.drained().await;
    let sql = format!("SELECT COUNT(*) FROM flux_relations.flux_relation_00 WHERE id LIKE '{JUNE}%'");
    let kept: Option<u64> =
        site.installation.admin(TARGET).await.first("count rows", sql).await.expect("it answers");
    assert!(kept >= Some(retired * ROWS), "{kept:?} rows stand of {retired} tables");
    report.note(&format!("retired: {retired} tables of {ROWS} rows, and {beside_it} that are not captured"));
    report.add(line(&with, &alone));
}

/// Writes the recharges of these numbers; returns the lag of the lanes meanwhile, by bucket.
async fn run(site: &Site<'_>, daemon: &Daemon, numbers: Range<u64>) -> Lag {
    let endpoint = Endpoint::admin(site.installation.stack(), SOURCE).expect("a server of the stack");
    let statement: Statement = Arc::new(|number: u64| {
        let partition = (number % u64::from(PARTITIONS)) as u8;
        let recharge = (FIRST_RECHARGE + number / u64::from(PARTITIONS)) as u32;
        let mut sql = String::new();
        insert(&Recharge::of_ten(partition, recharge).documents()[..1], &mut sql);
        sql
    });
    let (committed, _) = mpsc::unbounded_channel();
    let before = Lag::of(&daemon.metrics().await);
    load::write(&endpoint, (numbers, CHANGES_A_SECOND), &statement, &[], &committed).await;
    Lag::of(&daemon.metrics().await).since(&before)
}

/// Makes, fills and drops a table of June, until the task is aborted. No identifier is written twice.
async fn drop_tables(site: &Site<'_>, database: &str, dropped: &mut u64) {
    let table = format!("{database}.{RETIRED}");
    let mut connection = site.installation.admin(SOURCE).await;
    let mut ticks = tokio::time::interval(EVERY);
    // A run that ended in the middle of a table may have left it with rows.
    let rows = format!("SELECT CAST(COALESCE(MAX(RIGHT(id, 8)), 0) AS UNSIGNED) + 1 FROM {table}");
    let make = format!("CREATE TABLE IF NOT EXISTS {table} LIKE {LIKE}");
    connection.execute("make a table", &make).await.expect("the server takes it");
    let left: Option<u64> = connection.first("look for rows", rows).await.expect("it answers");
    let mut next = left.unwrap_or(1).max(*dropped * 2 * ROWS + 1);
    loop {
        ticks.tick().await;
        connection.execute("make a table", &make).await.expect("the server takes it");
        for first in (next..next + ROWS).step_by(ROWS_AT_ONCE as usize) {
            let fill = format!(
                "INSERT INTO {table} (id, parent_id, amount, created)
                 SELECT CONCAT('{JUNE}', LPAD(seq, 8, '0')), NULL, '1.0000', '2025-06-15 00:00:00.250'
                 FROM flux_00_0.seq_{first}_to_{}",
                first + ROWS_AT_ONCE - 1
            );
            connection.execute("fill a table", fill).await.expect("the server takes it");
            tokio::time::sleep(PAUSE).await;
        }
        next += ROWS;
        let drop = format!("DROP TABLE {table}");
        connection.execute("drop a table", drop).await.expect("the server takes it");
        *dropped += 1;
    }
}

/// Flushes by the upper bound of their bucket, in microseconds.
#[derive(Debug, Default)]
struct Lag(BTreeMap<u64, f64>);

impl Lag {
    /// Reads the cumulative buckets of the daemon's metrics.
    fn of(metrics: &str) -> Self {
        let mut lag = Self::default();
        for sample in metrics.lines().filter_map(|line| line.strip_prefix(HISTOGRAM)) {
            let bound = sample.split_once("le=\"").and_then(|(_, rest)| rest.split_once('"'));
            let bound = bound.and_then(|(bound, _)| bound.parse::<f64>().ok());
            let count = sample.rsplit_once(' ').and_then(|(_, count)| count.parse::<f64>().ok());
            let (bound, count) = bound.zip(count).expect("a bucket has a bound and a count");
            // An endless bound becomes the greatest number.
            *lag.0.entry((bound * 1e6).round() as u64).or_default() += count;
        }
        lag
    }

    fn since(mut self, before: &Self) -> Self {
        for (bound, count) in &mut self.0 {
            *count -= before.0.get(bound).copied().unwrap_or_default();
        }
        self
    }

    /// Returns a quantile in milliseconds, as if flushes were spread evenly within a bucket.
    fn millis(&self, quantile: f64) -> f64 {
        let all = self.0.values().last().copied().unwrap_or_default();
        assert!(all > 0.0, "lanes have flushed");
        let (mut below, mut lower) = (0.0, 0);
        for (upper, count) in &self.0 {
            if *count >= all * quantile {
                if *upper == u64::MAX {
                    break;
                }
                let part = (all * quantile - below) / (count - below).max(1.0);
                return (lower as f64 + part * (upper - lower) as f64) / 1e3;
            }
            (below, lower) = (*count, *upper);
        }
        lower as f64 / 1e3
    }
}

fn line(with: &[Lag], alone: &[Lag]) -> Line {
    let at = |runs: &[Lag], quantile| median(runs.iter().map(|run| run.millis(quantile)));
    let text = |runs: &[Lag]| format!("p50 {:.1} ms, p99 {:.1} ms", at(runs, 0.5), at(runs, 0.99));
    let ratio = at(with, 0.99) / at(alone, 0.99);
    Line {
        figure: "lanes' lag beside retired tables",
        measured: text(with),
        limit: format!("without: {}", text(alone)),
        ratio: format!("{ratio:.1} ×"),
        cpu: "-".to_owned(),
        bar: format!("p99 ≤ {MOST} ×"),
        passes: Some(ratio <= MOST),
        detail: json!({
            "ratio": ratio,
            "p99_ms": with.iter().map(|run| run.millis(0.99)).collect::<Vec<_>>(),
            "without_p99_ms": alone.iter().map(|run| run.millis(0.99)).collect::<Vec<_>>(),
        }),
    }
}
