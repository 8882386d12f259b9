//! Exact lookup over HTTP: the real daemon, in turn with a bare echo server of the same framework in a process of its
//! own. A bare server that asks Redis too shows which part of the difference is Redis'.
//!
//! One client measures both. It keeps its connections, and each sends its next request when the answer has come (closed
//! loop). It shares the machine with the servers; its CPU is stated. A code is either in Redis, or Redis is empty and
//! every code is asked for once, so each request reads its mapping table and fills Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anabranch_stack::Companion;
use anabranch_tests::{Daemon, until};
use axum::Router;
use axum::extract::{Path, State};
use axum::routing::get;
use hdrhistogram::Histogram;
use serde_json::{Value as Json, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::http::Client;
use crate::meter::{Measured, Meter, median, until_idle};
use crate::report::{Line, Report};
use crate::site::{REDIS, Site, TARGET};
use crate::{Scale, cache};

const BAR: f64 = 0.50;
const CACHED_AIM: f64 = 20_000.0;
const CACHED_P99_MS: f64 = 5.0;
const MISSED_AIM: f64 = 5_000.0;
const CONNECTIONS: usize = 32;
/// Mapping tables from which codes are taken, and the number of codes of each.
const TABLES: u32 = 512;
const TABLE_CODES: u64 = 400;
/// Variables of a bare server that asks Redis.
const REDIS_URL: &str = "ANABRANCH_BARE_REDIS_URL";
const REDIS_CA_FILE: &str = "ANABRANCH_BARE_REDIS_CA_FILE";
const REDIS_PREFIX: &str = "ANABRANCH_BARE_REDIS_PREFIX";
const WARM_UP: Duration = Duration::from_millis(500);

/// Results of one run of the client.
pub struct Run {
    pub requests: u64,
    pub latencies: Histogram<u64>,
    pub measured: Measured,
}

impl Run {
    pub fn rate(&self) -> f64 {
        self.requests as f64 / self.measured.seconds
    }

    pub fn millis(&self, quantile: f64) -> f64 {
        self.latencies.value_at_quantile(quantile) as f64 / 1e3
    }
}

/// Measures lookups; the site must have codes in its mapping tables, and in Redis.
pub async fn measure(site: &Site<'_>, daemon: &Daemon, scale: &Scale, report: &mut Report) {
    let codes = codes(site).await;
    report.note(&format!("lookup: {} codes, {CONNECTIONS} connections", codes.len()));
    let echo = BareServer::start(site, "echo", &[]);
    let redis_settings = [
        (REDIS_URL.to_owned(), site.installation.server(REDIS).admin_url()),
        (REDIS_CA_FILE.to_owned(), site.installation.stack().ca_file().display().to_string()),
        (REDIS_PREFIX.to_owned(), cache::prefix(&site.config())),
    ];
    let asking = BareServer::start(site, "asking", &redis_settings);
    let port = site.installation.configuration.http_port;
    let mut redis = cache::admin(site).await;
    let mut probe = Client::connect(port).await;
    let seconds = Duration::from_secs(scale.lookup_seconds);
    let servers = [daemon.pid(), site.pid(REDIS), site.pid(TARGET)];
    let (mut echoes, mut askings, mut hits, mut misses) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        until_cached(&mut probe, &codes[0]).await;
        until_idle(&servers).await;
        echoes.push(run(echo.port, &codes, Order::Again, seconds, &[echo.companion.pid()]).await);
        // Asks once for each code, so that Redis holds them all again after the round before.
        run(port, &codes, Order::Once, Duration::MAX, &servers).await;
        until_idle(&servers).await;
        let bare = [asking.companion.pid(), site.pid(REDIS)];
        askings.push(run(asking.port, &codes, Order::Again, seconds, &bare).await);
        hits.push(run(port, &codes, Order::Again, seconds, &servers).await);
        cache::empty(&mut redis).await;
        misses.push(run(port, &codes, Order::Once, seconds, &servers).await);
    }
    let for_comparison = line("bare server that asks Redis", &echoes, &askings, None, 0.0);
    report.add(Line { bar: "for comparison".to_owned(), passes: None, ..for_comparison });
    report.add(line("lookup, in Redis", &echoes, &hits, Some(CACHED_P99_MS), CACHED_AIM));
    report.add(line("lookup, not in Redis", &echoes, &misses, None, MISSED_AIM));
}

/// Codes of 15 characters that need no escapes.
async fn codes(site: &Site<'_>) -> Arc<[String]> {
    let select = |table| {
        format!(
            "(SELECT DISTINCT value FROM serial_code_15.mapping_{table:03} WHERE kind = 1 LIMIT {TABLE_CODES})"
        )
    };
    let mut codes: Vec<String> = Vec::new();
    let mut target = site.installation.admin(TARGET).await;
    let tables: Vec<u32> = (0..TABLES).collect();
    for some in tables.chunks(64) {
        let selects: Vec<String> = some.iter().map(|table| select(*table)).collect();
        let found: Vec<Vec<u8>> =
            target.rows("list codes", selects.join(" UNION ALL ")).await.expect("it answers");
        codes.extend(found.into_iter().map(|code| String::from_utf8(code).expect("they are digits")));
    }
    // Scatters the codes, so that neighbours in a table do not follow one another.
    codes.sort_unstable_by_key(|code| crc32fast::hash(code.as_bytes()));
    codes.into()
}

async fn until_cached(probe: &mut Client, code: &str) {
    let probe = tokio::sync::Mutex::new(probe);
    until("the cache answers", async || {
        let mut probe = probe.lock().await;
        let answer = probe.lookup(code).await;
        let text = String::from_utf8_lossy(answer.body);
        text.contains("\"from\":\"cache\"")
    })
    .await;
}

/// Order in which codes are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// All codes, and then again from the first one.
    Again,
    /// Each code once; the run ends with the last one.
    Once,
}

async fn run(port: u16, codes: &Arc<[String]>, order: Order, seconds: Duration, servers: &[u32]) -> Run {
    let next = Arc::new(AtomicUsize::new(0));
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(Client::connect(port).await);
    }
    let warm_up = if order == Order::Again { WARM_UP } else { Duration::ZERO };
    let begins = Instant::now() + warm_up;
    let ends = begins.checked_add(seconds).unwrap_or(begins + Duration::from_secs(3_600));
    let mut workers = JoinSet::new();
    for mut client in clients {
        let (next, codes) = (Arc::clone(&next), Arc::clone(codes));
        workers.spawn(async move {
            let mut latencies = Histogram::new(3).expect("three digits are allowed");
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let sent = Instant::now();
                if sent >= ends || order == Order::Once && number >= codes.len() {
                    return latencies;
                }
                let answer = client.lookup(&codes[number % codes.len()]).await;
                assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(answer.body));
                if sent >= begins {
                    record(&mut latencies, sent.elapsed());
                }
            }
        });
    }
    tokio::time::sleep_until(begins.into()).await;
    let meter = Meter::start(servers);
    let mut latencies = Histogram::new(3).expect("three digits are allowed");
    while let Some(of_one) = workers.join_next().await {
        latencies.add(of_one.expect("every request is answered")).expect("both have three digits");
    }
    Run { requests: latencies.len(), latencies, measured: meter.stop() }
}

pub fn record(histogram: &mut Histogram<u64>, latency: Duration) {
    histogram.record(latency.as_micros() as u64).expect("it grows");
}

fn line(figure: &'static str, echoes: &[Run], runs: &[Run], p99_ms: Option<f64>, aim: f64) -> Line {
    let rate = |runs: &[Run]| median(runs.iter().map(Run::rate));
    let ratio = median(runs.iter().zip(echoes).map(|(run, echo)| run.rate() / echo.rate()));
    let at = |quantile| median(runs.iter().map(|run| run.millis(quantile)));
    let cpu = |runs: &[Run], of: fn(&Measured) -> f64| {
        median(runs.iter().map(|run| of(&run.measured) * 1e6 / run.requests as f64))
    };
    let own: fn(&Measured) -> f64 = |run| run.own_cpu_seconds;
    let servers: fn(&Measured) -> f64 = |run| run.server_cpu_seconds;
    let reaches_aim = rate(runs) >= aim && p99_ms.is_none_or(|limit| at(0.99) < limit);
    // Lookups in Redis are judged by the ratio, others by the aim.
    let passes = if p99_ms.is_some() { ratio >= BAR } else { reaches_aim };
    let bar = match p99_ms {
        Some(limit) => format!("≥ {:.0} % (aim {aim:.0}/s, p99 < {limit} ms)", BAR * 100.0),
        None => format!("≥ {aim:.0}/s"),
    };
    let one = |run: &Run| -> Json {
        json!({
            "requests_per_second": run.rate(), "p50_ms": run.millis(0.5), "p90_ms": run.millis(0.9),
            "p99_ms": run.millis(0.99), "p999_ms": run.millis(0.999), "max_ms": run.millis(1.0),
        })
    };
    Line {
        figure,
        measured: format!("{:.0}/s, p50 {:.2} ms, p99 {:.2} ms", rate(runs), at(0.5), at(0.99)),
        limit: format!("echo server {:.0}/s", rate(echoes)),
        ratio: format!("{:.0} %", ratio * 100.0),
        cpu: format!(
            "client {:.0}, servers {:.0} (echo: {:.0}, {:.0})",
            cpu(runs, own),
            cpu(runs, servers),
            cpu(echoes, own),
            cpu(echoes, servers)
        ),
        bar,
        passes: Some(passes),
        detail: json!({
            "ratio": ratio, "reaches_aim": reaches_aim, "connections": CONNECTIONS,
            "runs": runs.iter().map(one).collect::<Vec<_>>(), "echo": echoes.iter().map(one).collect::<Vec<_>>(),
        }),
    }
}

/// A server without any part of the product, in a process of its own as the daemon.
struct BareServer {
    companion: Companion,
    port: u16,
}

impl BareServer {
    fn start(site: &Site<'_>, name: &str, environment: &[(String, String)]) -> Self {
        let port = anabranch_demo::daemon::free_port().expect("a port is free");
        let program = std::env::current_exe().expect("it runs");
        let stack = site.installation.stack();
        let output = stack.folder().join(format!("{name}.log"));
        let arguments = ["--bare".to_owned(), port.to_string()];
        let start = || stack.companion_with(&program, &arguments, environment, &output);
        let companion = anabranch_tests::blocking(start);
        let listens = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
        let deadline = Instant::now() + Duration::from_secs(10);
        while !listens() {
            assert!(Instant::now() < deadline, "the {name} server does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { companion: companion.expect("it starts"), port }
    }
}

/// Serves [`BareServer`]'s requests: answers the code, or its entry in Redis if the environment names one.
pub async fn bare(port: u16) {
    const PATH: &str = "/v1/serials/{code}";
    let router = match std::env::var(REDIS_URL) {
        Err(_) => Router::new().route(PATH, get(async |Path(code): Path<String>| code)),
        Ok(url) => {
            let of = |name| std::env::var(name).expect("it is given with the address");
            let (redis, prefix) = (cache::connect(&url, of(REDIS_CA_FILE).as_ref()).await, of(REDIS_PREFIX));
            let ask = async |State((mut redis, prefix)): State<(_, String)>, Path(code): Path<String>| {
                let [entry, _] = cache::keys(&prefix, code.as_bytes());
                let entry: Vec<u8> =
                    redis::cmd("GET").arg(entry).query_async(&mut redis).await.expect("Redis answers");
                assert!(!entry.is_empty(), "{code} is not in Redis");
                entry
            };
            Router::new().route(PATH, get(ask)).with_state((redis, prefix))
        }
    };
    let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("the port is free");
    axum::serve(listener, router).await.expect("it only ends with the process");
}
