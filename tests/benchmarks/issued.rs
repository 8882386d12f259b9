//! Identifiers of payment documents over HTTP, in hundreds: `POST /v1/flux/identifiers` in turn with `POST /v1/uuids`
//! of the same daemon.
//!
//! One client measures both, with requests of a hundred. It keeps its connections, and each sends its next request when
//! the answer has come (closed loop). The orders go round all 100 user partitions, as payments of many users do. The
//! counters are on the target, whose disk takes each lease before its first number is used. An identifier has 31 digits
//! and a uuid 19, so its answers are half as long again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::{Value as Json, json};
use tokio::task::JoinSet;

use crate::Scale;
use crate::http::Client;
use crate::lookup::{Run, record};
use crate::meter::{Meter, median, until_idle};
use crate::report::{Line, Report};
use crate::site::{Site, TARGET, TOKEN};

const BAR: f64 = 0.80;
const CONNECTIONS: usize = 32;
/// Identifiers of a request.
const HUNDRED: usize = 100;
const PARTITIONS: u64 = 100;
/// The accounts of the counters, as the documents have them.
const GRANTS: &str = include_str!("../../deploy/grants/mariadb-flux-sequence.sql");

/// The kind of number that a client asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Uuids,
    Identifiers,
}

impl Kind {
    const fn path(self) -> &'static str {
        match self {
            Self::Uuids => "/v1/uuids",
            Self::Identifiers => "/v1/flux/identifiers",
        }
    }

    fn body(self, number: u64) -> String {
        let partition = number % PARTITIONS;
        match self {
            Self::Uuids => format!("{{\"count\":{HUNDRED}}}"),
            Self::Identifiers => format!(
                "{{\"kind\":\"recharge\",\"partition\":{partition},\"business\":1,\"count\":{HUNDRED}}}"
            ),
        }
    }

    /// Checks that an answer has as many as were asked for.
    fn check(self, answer: &[u8]) {
        let list = match self {
            Self::Uuids => "uuids",
            Self::Identifiers => "identifiers",
        };
        let answer: Json = serde_json::from_slice(answer).expect("it is JSON");
        assert_eq!(answer[list].as_array().map(Vec::len), Some(HUNDRED), "{answer}");
    }
}

/// Measures identifiers over HTTP; the site must be empty.
pub async fn measure(mut site: Site<'_>, scale: &Scale, report: &mut Report) {
    configure(&mut site).await;
    site.installation.command(&["setup"]).await.expect_success();
    let daemon = site.installation.run();
    daemon.until_ready().await;
    let port = site.installation.configuration.http_port;
    anabranch_tests::until("the daemon has a machine number", async || {
        Client::connect(port).await.post(Kind::Uuids.path(), &Kind::Uuids.body(0)).await.status == 200
    })
    .await;
    let seconds = Duration::from_secs(scale.lookup_seconds);
    let servers = [daemon.pid(), site.pid(TARGET)];
    let (mut uuids, mut identifiers) = (Vec::new(), Vec::new());
    // In the first round the ranges grow to their size; it is thrown away.
    for round in 0..=scale.rounds {
        until_idle(&servers).await;
        uuids.push(run(port, Kind::Uuids, seconds, &servers).await);
        until_idle(&servers).await;
        identifiers.push(run(port, Kind::Identifiers, seconds, &servers).await);
        if round == 0 {
            uuids.clear();
            identifiers.clear();
        }
    }
    report.add(line(&uuids, &identifiers));
}

/// Puts the counters on the target, and adds them to the configuration.
async fn configure(site: &mut Site<'_>) {
    let server = site.installation.server(TARGET);
    let lines: Vec<&str> = GRANTS.lines().filter(|line| !line.starts_with("--")).collect();
    let password = server.password().to_owned();
    let grants = lines.join("\n").replace("{client_host}", "127.0.0.1");
    let grants = grants.replace("{setup_password}", &password).replace("{sequence_password}", &password);
    site.target(grants).await;
    site.installation.configuration.tokens = vec![TOKEN.to_owned()];
    let account = |user: &str| format!("mysql://{user}:{password}@127.0.0.1:{}", server.port());
    let keys = format!(
        "[flux]\nregion = \"singapore\"\nsequence_url = \"{}\"\nsequence_setup_url = \"{}\"\n\
         sequence_ca_file = \"{}\"\n",
        account("anabranch_sequence"),
        account("anabranch_sequence_setup"),
        site.installation.stack().ca_file().display()
    );
    let text = site.installation.configuration_text();
    let with_keys = text.replace("[flux]\n", &keys);
    assert_ne!(text, with_keys, "a site of payments has the section");
    site.installation.write_configuration_text(&with_keys);
}

async fn run(port: u16, kind: Kind, seconds: Duration, servers: &[u32]) -> Run {
    let next = Arc::new(AtomicU64::new(0));
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(Client::connect(port).await);
    }
    kind.check(clients[0].post(kind.path(), &kind.body(0)).await.body);
    let meter = Meter::start(servers);
    let ends = Instant::now() + seconds;
    let mut workers = JoinSet::new();
    for mut client in clients {
        let next = Arc::clone(&next);
        workers.spawn(async move {
            let mut latencies = Histogram::new(3).expect("three digits are allowed");
            loop {
                let sent = Instant::now();
                if sent >= ends {
                    return latencies;
                }
                let body = kind.body(next.fetch_add(1, Ordering::Relaxed));
                let answer = client.post(kind.path(), &body).await;
                assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(answer.body));
                record(&mut latencies, sent.elapsed());
            }
        });
    }
    let mut latencies = Histogram::<u64>::new(3).expect("three digits are allowed");
    while let Some(of_one) = workers.join_next().await {
        latencies.add(of_one.expect("every request is answered")).expect("both have three digits");
    }
    Run { requests: latencies.len(), latencies, measured: meter.stop() }
}

fn line(uuids: &[Run], identifiers: &[Run]) -> Line {
    let rate = |runs: &[Run]| median(runs.iter().map(Run::rate));
    let ratio = median(identifiers.iter().zip(uuids).map(|(run, limit)| run.rate() / limit.rate()));
    let text = |runs: &[Run]| {
        let at = |quantile| median(runs.iter().map(|run| run.millis(quantile)));
        format!("{:.0} requests/s, p50 {:.2} ms, p99 {:.2} ms", rate(runs), at(0.5), at(0.99))
    };
    let cpu = |runs: &[Run]| {
        let own = runs.iter().map(|run| run.measured.own_cpu_seconds * 1e6 / run.requests as f64);
        let servers = runs.iter().map(|run| run.measured.server_cpu_seconds * 1e6 / run.requests as f64);
        (median(own), median(servers))
    };
    let ((own, servers), (uuids_own, uuids_servers)) = (cpu(identifiers), cpu(uuids));
    let one = |run: &Run| -> Json {
        json!({
            "requests_per_second": run.rate(), "p50_ms": run.millis(0.5), "p99_ms": run.millis(0.99),
            "max_ms": run.millis(1.0),
        })
    };
    Line {
        figure: "identifiers-http",
        measured: text(identifiers),
        limit: format!("uuids {}", text(uuids)),
        ratio: format!("{:.0} %", ratio * 100.0),
        cpu: format!("client {own:.0}, servers {servers:.0} (uuids: {uuids_own:.0}, {uuids_servers:.0})"),
        bar: format!("≥ {:.0} %", BAR * 100.0),
        passes: Some(ratio >= BAR),
        detail: json!({
            "ratio": ratio, "connections": CONNECTIONS, "identifiers_a_request": HUNDRED,
            "runs": identifiers.iter().map(one).collect::<Vec<_>>(),
            "uuids": uuids.iter().map(one).collect::<Vec<_>>(),
        }),
    }
}
