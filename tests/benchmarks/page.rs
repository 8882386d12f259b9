//! The live page in a real browser: first paint, bytes, console, the time until it names a killed server, and memory.
//!
//! Each round opens the page in a new browser with an empty cache, while all is current. Then each server is killed in
//! turn; the time runs from before the signal until the page shows the server's code. The daemon's memory grows with
//! the same changes without a page, for ten minutes at most, and then with one; the tab's own memory is measured after
//! a collection of its garbage. A machine that can have no browser prints `skipped:`.

use std::fs;
use std::time::{Duration, Instant};

use anabranch_demo::browser::Browser;
use anabranch_demo::{Pace, WorkloadOptions};
use anabranch_tests::{Daemon, blocking, browser};
use serde_json::{Value as Json, json};

use crate::Scale;
use crate::meter::median;
use crate::report::{Line, Report};
use crate::site::{SOURCE, Site, TARGET};

const BAR_PAINT_SECONDS: f64 = 1.0;
const BAR_BYTES: u64 = 300_000;
const BAR_SAID_SECONDS: f64 = 5.0;
const BAR_MORE_MEGABYTES: f64 = 10.0;
/// Servers that are killed, with the code that the page shows of each.
const KILLED: [(&str, &str); 3] =
    [(SOURCE, "source-unreachable"), (TARGET, "target-unreachable"), ("nats", "log-unreachable")];
const ALL_CURRENT: &str = "document.getElementById('sentence').textContent.startsWith('All is current')";
/// Longest wait for the page, far above each bar.
const WAIT_MAX: Duration = Duration::from_secs(120);
/// Longest time without a page. A daemon that grows over a longer time with the page is compared all the same: its
/// growth in this time is the smaller one.
const WITHOUT_PAGE_MAX: Duration = Duration::from_secs(600);
const CHANGES_A_SECOND: u32 = 100;
const ROWS: u64 = 2_000;
const MEGABYTE: f64 = 1e6;

pub async fn measure(mut site: Site<'_>, scale: &Scale, report: &mut Report) {
    let Some(first) = browser().await else {
        return report.note("page: this machine can have no browser, so the figure is left out");
    };
    drop(first);
    let _ = site.new_log("page").await;
    site.installation.command(&["setup"]).await.expect_success();
    let daemon = site.installation.run();
    daemon.until_ready().await;
    // Its servers are killed in between.
    let mut workload = site.installation.workload(WorkloadOptions::new(scale.seed).tolerating_crashes());
    workload.insert_rows(ROWS).await.expect("the source takes them");
    site.installation.drained().await;

    report.add(opened(&site, scale).await);
    report.add(killed(&site).await);
    let time = Duration::from_secs(60 * scale.page_minutes);
    let pace = Pace::of(CHANGES_A_SECOND);
    let before = resident_megabytes(&daemon);
    workload.run_for(pace, time.min(WITHOUT_PAGE_MAX)).await.expect("the source takes them");
    let without = resident_megabytes(&daemon);
    let page = open(&site).await;
    let tab_before = page.page_bytes().await.expect("the page is there");
    workload.run_for(pace, time).await.expect("the source takes them");
    let with = resident_megabytes(&daemon);
    let tab = (page.page_bytes().await.expect("the page is there") as f64 - tab_before as f64) / MEGABYTE;
    report.add(memory(scale, (without - before, with - without), (tab_before as f64 / MEGABYTE, tab)));
}

/// Opens the page in a new browser; returns it when the page shows that all is current.
async fn open(site: &Site<'_>) -> Browser {
    let page = browser().await.expect("the browser was started before");
    let address = format!("http://127.0.0.1:{}/", site.installation.configuration.http_port);
    page.open(&address).await.expect("the daemon runs");
    until(&page, ALL_CURRENT).await;
    page
}

async fn until(page: &Browser, expression: &str) {
    let came = page.until(expression, WAIT_MAX).await.expect("the page is there");
    assert!(came.is_some(), "`{expression}` is not true of the page within {WAIT_MAX:?}");
}

async fn opened(site: &Site<'_>, scale: &Scale) -> Line {
    let (mut paints, mut sentences, mut bytes, mut console) = (Vec::new(), Vec::new(), 0, Vec::new());
    for _ in 0..scale.rounds {
        let began = Instant::now();
        let page = open(site).await;
        sentences.push(began.elapsed().as_secs_f64());
        until(&page, "!document.getElementById('history-said').textContent.includes('not read yet')").await;
        let paint = page.first_paint().await.expect("the page is there").expect("it is painted");
        paints.push(paint.as_secs_f64());
        bytes = page.received_bytes().await.expect("the page is there").max(bytes);
        console.extend(page.console().await.expect("the page is there"));
    }
    let paint = median(paints.iter().copied());
    let most = paints.iter().copied().fold(0.0, f64::max);
    Line {
        figure: "page, opened",
        measured: format!(
            "first paint {paint:.2} s (at most {most:.2}), {} kB, {} messages on the console",
            bytes / 1000,
            console.len()
        ),
        limit: format!("with a browser's start: {:.1} s", median(sentences.iter().copied())),
        ratio: "-".to_owned(),
        cpu: "-".to_owned(),
        bar: format!("≤ {BAR_PAINT_SECONDS} s, {} kB, none", BAR_BYTES / 1000),
        passes: Some(most <= BAR_PAINT_SECONDS && bytes <= BAR_BYTES && console.is_empty()),
        detail: json!({ "paint_seconds": paints, "sentence_seconds": sentences, "bytes": bytes, "console": console }),
    }
}

/// Kills each server while the page is open.
async fn killed(site: &Site<'_>) -> Line {
    let page = open(site).await;
    let mut times = Vec::new();
    for (name, code) in KILLED {
        let server = site.installation.server(name);
        let began = Instant::now();
        blocking(|| server.kill()).expect("it ends");
        until(&page, &format!("document.getElementById('verdict').innerText.includes('{code}')")).await;
        times.push((name, began.elapsed().as_secs_f64()));
        blocking(|| server.restart()).expect("it starts");
        until(&page, ALL_CURRENT).await;
    }
    let most = times.iter().map(|(_, seconds)| *seconds).fold(0.0, f64::max);
    let each: Vec<String> = times.iter().map(|(name, seconds)| format!("{name} {seconds:.1} s")).collect();
    let detail: Json = times.iter().map(|(name, seconds)| ((*name).to_owned(), json!(seconds))).collect();
    Line {
        figure: "page, server killed",
        measured: each.join(", "),
        limit: "-".to_owned(),
        ratio: "-".to_owned(),
        cpu: "-".to_owned(),
        bar: format!("≤ {BAR_SAID_SECONDS} s"),
        passes: Some(most <= BAR_SAID_SECONDS),
        detail,
    }
}

/// The line of the growth without a page and with one, and of the tab's memory and its growth.
fn memory(scale: &Scale, (without, with): (f64, f64), (tab_before, tab): (f64, f64)) -> Line {
    let more = with - without;
    Line {
        figure: "page, memory",
        measured: format!("daemon {with:+.1} MB, tab {tab:+.1} MB in {} minutes", scale.page_minutes),
        limit: format!("without a page: daemon {without:+.1} MB; tab at first {tab_before:.1} MB"),
        ratio: "-".to_owned(),
        cpu: "-".to_owned(),
        bar: format!("≤ {BAR_MORE_MEGABYTES} MB more"),
        passes: Some(more <= BAR_MORE_MEGABYTES && tab <= BAR_MORE_MEGABYTES),
        detail: json!({
            "daemon_megabytes_with": with, "daemon_megabytes_without": without,
            "tab_megabytes_before": tab_before, "tab_megabytes_more": tab, "minutes": scale.page_minutes,
        }),
    }
}

fn resident_megabytes(daemon: &Daemon) -> f64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap_or_default();
    let kibibytes = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    kibibytes.expect("the daemon runs") * 1024.0 / MEGABYTE
}
