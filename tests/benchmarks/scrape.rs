//! `/metrics` of a daemon with 100 sources, 3 projections and 2 lanes each: 600 lanes. And whether tables make series.
//!
//! All sources are one real server under 100 names, which the configuration allows: each source has a reader, a stream
//! and lanes of its own, and so every sample that needs an answer of a server is there. Its tables are empty, as 100
//! sources would claim the same derived rows. The daemon needs some 1,500 open files.
//!
//! The second part writes a row into each of 1,000 captured tables of one source, and counts the series before and
//! after.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anabranch_tests::{Daemon, Installation, Plan, Turn};
use serde_json::{Value as Json, json};

use crate::http::{Client, EventStream};
use crate::report::{Line, Report};
use crate::site::{DATABASES, SOURCE, Site, TABLES_OF_MANY, TARGET, TOKEN};

const SOURCES: usize = 100;
const PROJECTIONS: usize = 3;
const LANES: usize = 2;
const ALL_LANES: usize = SOURCES * PROJECTIONS * LANES;
const SCRAPES: usize = 200;
/// Between two scrapes, so that they meet all phases of the daemon's own polls.
const PAUSE: Duration = Duration::from_millis(53);
const BAR_MS: f64 = 50.0;
const BAR_BYTES: usize = 1_000_000;
/// Connections to each server: a lane has one to the target, and at first one to the source.
const CONNECTIONS_MAX: u32 = 5_000;
/// Bytes that a stream reserves: 100 streams must fit the 10 GB that the stack's NATS may use.
const STREAM_BYTES: (&str, &str) = ("max_bytes = 500000000", "max_bytes = 50000000");
/// Longest wait for the first reading of all lanes.
const WAIT_MAX: Duration = Duration::from_secs(600);
/// Tables that are written before the series are counted, so that each series of both lanes has begun.
const FIRST_TABLES: u32 = 100;

/// Scrapes a daemon with very many lanes.
pub async fn measure(turn: Turn<'_>, report: &mut Report) {
    let small = Plan::both();
    let plan =
        Plan { is_lunar: true, databases: 1, lanes: LANES as u32, has_passwords_in_file: true, ..small };
    let mut installation = Installation::prepare(turn, &plan).await;
    installation.configuration.tokens = vec![TOKEN.to_owned()];
    let text = with_sources(&installation.configuration_text());
    installation.write_configuration_text(&text);
    for server in [SOURCE, TARGET] {
        installation.execute(server, format!("SET GLOBAL max_connections = {CONNECTIONS_MAX}")).await;
    }
    installation.command(&["setup"]).await.expect_success();
    let daemon = installation.run();
    let began = Instant::now();
    until_current(&daemon).await;
    report.note(&format!("scrape: {ALL_LANES} lanes are current after {} s", began.elapsed().as_secs()));
    report.add(scraped(&daemon, installation.configuration.http_port).await);
    drop(daemon);
    for server in [SOURCE, TARGET] {
        installation.execute(server, "SET GLOBAL max_connections = DEFAULT").await;
    }
}

/// Returns the configuration with its source under further names.
fn with_sources(text: &str) -> String {
    let begin = text.find("[[sources]]\n").expect("there is a source");
    let end = begin + text[begin..].find("\n[[").expect("targets follow") + 1;
    let name = format!("name = \"{SOURCE}\"");
    let mut all = text[..end].to_owned();
    for number in 1..SOURCES {
        all.push_str(&text[begin..end].replace(&name, &format!("name = \"{SOURCE}-{number:02}\"")));
    }
    all.push_str(&text[end..]);
    let smaller = all.replace(STREAM_BYTES.0, STREAM_BYTES.1);
    assert_ne!(all, smaller, "the size of streams stands in the configuration");
    smaller
}

/// Waits until every lane has read its tables and has nothing left to do.
async fn until_current(daemon: &Daemon) {
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        let status = daemon.status().await.unwrap_or_default();
        let lanes = status["lanes"].as_array().into_iter().flatten();
        let is_through = |lane: &&Json| lane["state"] == "current" && lane["refreshed_rows"].is_null();
        let current = lanes.filter(is_through).count();
        if current == ALL_LANES {
            return;
        }
        assert!(daemon.is_running(), "the daemon ended: {}", daemon.log());
        assert!(Instant::now() < deadline, "{current} of {ALL_LANES} lanes are current");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn scraped(daemon: &Daemon, port: u16) -> Line {
    let mut client = Client::connect(port).await;
    let (mut times, mut bytes, mut samples) = (Vec::new(), 0, 0);
    for _ in 0..SCRAPES {
        tokio::time::sleep(PAUSE).await;
        let asked = Instant::now();
        let answer = client.get(&["/metrics"]).await;
        times.push(asked.elapsed().as_secs_f64() * 1e3);
        assert_eq!(answer.status, 200);
        bytes = bytes.max(answer.body.len());
        samples = series(&String::from_utf8_lossy(answer.body)).len();
    }
    times.sort_by(f64::total_cmp);
    let at = |percent: usize| times[(SCRAPES * percent).div_ceil(100) - 1];
    let (p50, p99, most) = (at(50), at(99), at(100));
    let status = client.get(&["/v1/status"]).await.body.len();
    let event = EventStream::open(port).await.next().await;
    let memory = daemon.resident_bytes_max() / 1_000_000;
    Line {
        figure: "scrape, 600 lanes",
        measured: format!("p50 {p50:.1} ms, p99 {p99:.1} ms, max {most:.1} ms; {} kB", bytes / 1000),
        limit: format!("{samples} series; status {} kB, event {} kB", status / 1000, event / 1000),
        ratio: "-".to_owned(),
        cpu: "-".to_owned(),
        bar: format!("p99 ≤ {BAR_MS} ms, ≤ {} kB", BAR_BYTES / 1000),
        passes: Some(p99 <= BAR_MS && bytes <= BAR_BYTES),
        detail: json!({
            "p50_ms": p50, "p99_ms": p99, "max_ms": most, "bytes": bytes, "series": samples,
            "status_bytes": status, "event_bytes": event, "resident_megabytes_max": memory,
        }),
    }
}

/// Returns the series of a scrape: names with labels, without values.
fn series(metrics: &str) -> BTreeSet<&str> {
    let samples = metrics.lines().filter(|line| !line.starts_with('#'));
    samples.filter_map(|line| Some(line.rsplit_once(' ')?.0)).collect()
}

/// Counts the series that captured tables add.
pub async fn measure_tables(mut site: Site<'_>, report: &mut Report) {
    let _ = site.new_log("tables").await;
    site.installation.command(&["setup"]).await.expect_success();
    let daemon = site.installation.run();
    daemon.until_ready().await;
    let tables = DATABASES * TABLES_OF_MANY;
    write(&site, 0..FIRST_TABLES).await;
    let before = daemon.metrics().await;
    write(&site, FIRST_TABLES..tables).await;
    let after = daemon.metrics().await;
    let changes = daemon.metric("anabranch_source_changes_total", &[]).await;
    assert!(changes >= f64::from(tables), "each table was captured: {changes} changes");
    let (old, new) = (series(&before), series(&after));
    let added: Vec<&str> = new.difference(&old).copied().collect();
    // The beginning of every captured database's name.
    let names_a_table = new.iter().any(|sample| sample.contains("user_0"));
    report.note(&format!("scrape: {tables} tables added these series: {added:?}"));
    report.add(Line {
        figure: "series, 1,000 tables",
        measured: format!("{} series, {} new", new.len(), added.len()),
        limit: format!("{FIRST_TABLES} tables: {} series", old.len()),
        ratio: "-".to_owned(),
        cpu: "-".to_owned(),
        bar: "none new".to_owned(),
        passes: Some(added.is_empty() && !names_a_table),
        detail: json!({ "series_before": old.len(), "series_after": new.len(), "added": added }),
    });
}

/// Writes a user into each of these tables, and waits until all are derived.
async fn write(site: &Site<'_>, tables: std::ops::Range<u32>) {
    let mut connection = site.installation.admin(SOURCE).await;
    for first in tables.clone().step_by(FIRST_TABLES as usize) {
        let mut sql = String::new();
        for number in first..(first + FIRST_TABLES).min(tables.end) {
            let (database, table) = (number / TABLES_OF_MANY, number % TABLES_OF_MANY);
            sql.push_str(&format!(
                "INSERT INTO user_{database:02}.user_{table:03} (user_id, user_name, birthday)
                 VALUES ({number} + 1, 'user-{number}', DATE '1990-01-01' + INTERVAL {number} DAY);"
            ));
        }
        connection.execute("write a user into each table", sql).await.expect("the server takes it");
    }
    site.installation.drained().await;
}
