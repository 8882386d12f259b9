//! The daemon's CPU time a change and the latency while it is scraped each second and 20 pages are open, in turn with
//! the same changes without.
//!
//! A page reads `/v1/events` with the token, so it gets the longest documents, and asks for what the live page asks for
//! by itself. The pages count as opened over the minute before, so their questions are spread evenly. Each second round
//! begins with the observed run, so that a machine that grows slower or faster favours neither. The first run does not
//! count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::Scale;
use crate::http::{self, Client, EventStream};
use crate::latency::{self, Load, PROCESSES};
use crate::load::{Latencies, line};
use crate::meter::median;
use crate::report::{Line, Report};
use crate::site::{Site, TOKEN};

const FIGURE: &str = "scraped, 20 pages open";
const PAGES: u32 = 20;
const SCRAPE_EVERY: Duration = Duration::from_secs(1);
/// Requests of each page beside its stream, and their intervals, as `history.js` and `series.js` have them.
const QUESTIONS: [(&str, Duration); 2] =
    [("/v1/reconciliations", Duration::from_secs(10)), ("/v1/series", Duration::from_secs(60))];
/// Most CPU time of a change, over the time without scraper and pages.
const MOST: f64 = 1.03;
/// Place of the daemon among the measured processes.
const DAEMON: usize = 0;

pub async fn measure(mut site: Site<'_>, scale: &Scale, report: &mut Report) {
    site.installation.configuration.tokens = vec![TOKEN.to_owned()];
    let runs = 2 * u64::from(scale.rounds) + 1;
    let (daemon, users_a_table) = latency::started(&mut site, "observed", runs, scale).await;
    let port = site.installation.configuration.http_port;
    let mut load = Load::begin(&site, &daemon, users_a_table, scale).await;
    load.run(false).await;
    let before = daemon.resident_bytes_max() / 1_000_000;
    let (mut alone, mut observed, mut seen) = (Vec::new(), Vec::new(), Seen::default());
    for round in 0..scale.rounds {
        for is_observed in [round % 2 == 1, round % 2 == 0] {
            if !is_observed {
                alone.push(load.run(false).await);
                continue;
            }
            let audience = Audience::open(port).await;
            observed.push(load.run(false).await);
            seen.add(audience.close().await.as_ref());
        }
    }
    load.finish().await;
    let most = daemon.resident_bytes_max() / 1_000_000;
    report.note(&format!("observed: {seen:?}; memory {before} MB after the first run, {most} MB at the end"));
    report.add(compared(&observed, &alone));
}

/// Compares runs of the same round; the p99 of the runs without scraper and pages is their spread.
fn compared(observed: &[Latencies], alone: &[Latencies]) -> Line {
    let [with, without] = [observed, alone].map(|runs| line(FIGURE, runs, &PROCESSES, None));
    let of_round = |(with, without): (&Latencies, &Latencies)| with.cpu_us(DAEMON) / without.cpu_us(DAEMON);
    let ratio = median(observed.iter().zip(alone).map(of_round));
    let p99 = median(observed.iter().map(Latencies::p99_ms));
    let spread = alone.iter().map(Latencies::p99_ms).fold(0.0, f64::max);
    let cpu = |runs: &[Latencies]| runs.iter().map(|run| run.cpu_us(DAEMON)).collect::<Vec<_>>();
    Line {
        limit: format!("without: {}; daemon {:.0}", without.measured, median(cpu(alone))),
        ratio: format!("CPU {ratio:.3} ×"),
        bar: format!("CPU ≤ {MOST} ×, p99 ≤ {spread:.1} ms"),
        passes: Some(ratio <= MOST && p99 <= spread),
        detail: json!({
            "cpu_ratio": ratio, "with": with.detail, "without": without.detail,
            "daemon_cpu_us_with": cpu(observed), "daemon_cpu_us_without": cpu(alone),
        }),
        ..with
    }
}

/// Counts of what the scraper and the pages received.
#[derive(Debug, Default)]
struct Seen {
    scrapes: AtomicU64,
    documents: AtomicU64,
    answers: AtomicU64,
    bytes: AtomicU64,
}

impl Seen {
    fn add(&mut self, other: &Self) {
        for (own, other) in [
            (&mut self.scrapes, &other.scrapes),
            (&mut self.documents, &other.documents),
            (&mut self.answers, &other.answers),
            (&mut self.bytes, &other.bytes),
        ] {
            *own.get_mut() += other.load(Ordering::Relaxed);
        }
    }

    fn count(&self, what: &AtomicU64, bytes: usize) {
        what.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// A scraper and open pages.
struct Audience {
    tasks: JoinSet<()>,
    seen: Arc<Seen>,
}

impl Audience {
    /// Starts to scrape and opens the pages; each of them has its first document.
    async fn open(port: u16) -> Self {
        let seen = Arc::new(Seen::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(scrape(port, Arc::clone(&seen)));
        for page in 0..PAGES {
            let mut stream = EventStream::open(port).await;
            stream.next().await;
            tasks.spawn(read(stream, Arc::clone(&seen)));
            for (path, every) in QUESTIONS {
                tasks.spawn(ask(port, path, (every * page / PAGES, every), Arc::clone(&seen)));
            }
        }
        Self { tasks, seen }
    }

    /// Closes the pages and ends the scraper; returns what they received.
    async fn close(mut self) -> Arc<Seen> {
        assert!(self.tasks.try_join_next().is_none(), "the scraper or a page has failed");
        self.tasks.shutdown().await;
        let least = u64::from(PAGES);
        assert!(self.seen.documents.load(Ordering::Relaxed) >= least, "each page is live: {:?}", self.seen);
        self.seen
    }
}

/// Scrapes over a kept connection, as Prometheus does, until the task is aborted.
async fn scrape(port: u16, seen: Arc<Seen>) {
    let mut client = Client::connect(port).await;
    let mut ticks = tokio::time::interval(SCRAPE_EVERY);
    loop {
        ticks.tick().await;
        let answer = client.get(&["/metrics"]).await;
        assert_eq!(answer.status, 200);
        seen.count(&seen.scrapes, answer.body.len());
    }
}

/// Reads a page's stream until the task is aborted.
async fn read(mut stream: EventStream, seen: Arc<Seen>) {
    loop {
        let bytes = stream.next().await;
        seen.count(&seen.documents, bytes);
    }
}

/// Asks again and again until the task is aborted, each time over a new connection: the daemon closes silent ones.
async fn ask(port: u16, path: &'static str, (first, every): (Duration, Duration), seen: Arc<Seen>) {
    let mut ticks = tokio::time::interval_at(Instant::now() + first, every);
    loop {
        ticks.tick().await;
        let answer = http::ask_once(port, path).await;
        seen.count(&seen.answers, answer.len());
    }
}
