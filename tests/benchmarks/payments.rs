//! Payment documents: everything below a recharge over HTTP, and the audit of places in the lanes' projection.
//!
//! **Over HTTP**, the real daemon runs in turn with bare queries of the target. Each recharge has 20 documents below
//! it, on two levels; finding them takes three queries. Bare clients send the same three queries over a kept connection
//! and know the identifiers beforehand. Both sides have as many clients, each sends its next question when the answer
//! has come (closed loop), and all clients share one thread.
//!
//! **The audit** involves no server. A projection with two lanes projects the same changes for one lane and for the
//! other. Only the first lane audits; both own 50 tables with as many rows. Passes of the two alternate.

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::time::{Duration, Instant};

use anabranch_demo::{Connection, Endpoint};
use anabranch_pipeline::config::Config;
use anabranch_pipeline::projections::{Defects, LaneScope, Projection};
use anabranch_pipeline::records::Flush;
use anabranch_schemas::change::{Action, Change, Entity, TableIdentity};
use anabranch_schemas::flux::id::FluxId;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use hdrhistogram::Histogram;
use serde_json::{Value as Json, json};

use crate::Scale;
use crate::http::Client;
use crate::lookup::{Run, record};
use crate::meter::{Meter, median, until_idle};
use crate::recharges::{Document, PARTITIONS, Recharge, insert};
use crate::report::{Line, Report};
use crate::site::{RELATIONS, SOURCE, Site, TARGET};

const P99_MS: f64 = 10.0;
const CONNECTIONS: usize = 4;
/// Recharges whose documents are written in one transaction.
const TRANSACTION_RECHARGES: usize = 20;
/// Most rows of an answer, as the daemon asks for.
const ROWS_MAX: usize = 10_001;

const AUDIT_BAR: f64 = 0.95;
/// Passes of each lane over all changes in a round.
const PASSES: usize = 10;
/// Distance of the numbers of a partition's recharges, so that both months and the tables without a month have some.
const DISTANCE: u32 = 70;
/// Changes of a flush.
const FLUSH_CHANGES: usize = 5_000;
/// The lane that audits, and the other one.
const AUDITED: LaneScope = LaneScope::COUNTS_DEFECTS;
const UNAUDITED: LaneScope = LaneScope { target: 0, lane: 1 };
/// The settings of payment documents as the demo has them, for one source.
const AUDIT_SETTINGS: &str = r#"
name = "audit"
[log]
url = "tls://u:p@127.0.0.1:1"
[[sources]]
name = "source"
url = "mysql://u:p@127.0.0.1:2"
flux = { region = "singapore", side = "fail_over" }
[[targets]]
name = "target"
url = "mysql://u:p@127.0.0.1:3"
[[entities]]
entity = "flux"
level = "composite"
tables = "flux_00_{db}.composite_{partition:02}_{month:02}"
columns = { amount = "amount", created = "created" }
[[entities]]
entity = "flux"
level = "atom"
tables = "flux_00_{db}.atom_{partition:02}_{month:02}"
columns = { amount = "amount", created = "created" }
[[projections]]
name = "relations"
kind = "flux_relations"
targets = ["target"]
lanes = 2
[flux.kinds]
"01" = ["recharge", "atom"]
"02" = ["capture", "atom"]
"03" = ["refund", "atom"]
"05" = "recharge-clearing"
"06" = "refund-clearing"
"#;

/// A question for all documents below a recharge.
struct Question {
    id: String,
    /// The daemon's queries, each with its number of rows.
    queries: Vec<(String, usize)>,
}

/// A row of the index: id, shard, parent, amount and time.
type IndexRow = (Vec<u8>, u64, Option<Vec<u8>>, Option<Vec<u8>>, Option<Vec<u8>>);

impl Question {
    fn new(documents: &[Document]) -> Self {
        let id = documents[0].id;
        let table = format!("flux_relations.flux_relation_{:02}", id.parts().partition);
        let (mut queries, mut parents) = (Vec::new(), BTreeSet::from([id.to_string()]));
        while !parents.is_empty() {
            let list: Vec<String> = parents.iter().map(|parent| format!("'{parent}'")).collect();
            let is_child = |document: &&Document| {
                document.parent.as_ref().is_some_and(|parent: &FluxId| parents.contains(&parent.to_string()))
            };
            let children: BTreeSet<String> =
                documents.iter().filter(is_child).map(|document| document.id.to_string()).collect();
            let sql = format!(
                "SELECT id, shard_id, parent_id, amount, created FROM {table} WHERE parent_id IN ({}) \
                 ORDER BY id, shard_id LIMIT {ROWS_MAX}",
                list.join(",")
            );
            queries.push((sql, children.len()));
            parents = children;
        }
        Self { id: id.to_string(), queries }
    }

    fn rows(&self) -> usize {
        self.queries.iter().map(|(_, rows)| rows).sum()
    }
}

/// Measures the relations of recharges over HTTP; the site must be empty.
pub async fn measure_http(site: &Site<'_>, scale: &Scale, report: &mut Report) {
    site.installation.command(&["setup"]).await.expect_success();
    let daemon = site.installation.run();
    daemon.until_ready().await;
    let questions = write_recharges(site, scale.recharges as u32).await;
    site.installation.drained().await;
    let (rows, queries) = (questions[0].rows(), questions[0].queries.len());
    report.note(&format!(
        "relations-http: {} recharges with {rows} documents below each, {queries} queries, {CONNECTIONS} clients",
        questions.len()
    ));
    let seconds = Duration::from_secs(scale.lookup_seconds);
    let endpoint = Endpoint::admin(site.installation.stack(), TARGET).expect("a server of the stack");
    let port = site.installation.configuration.http_port;
    let servers = [daemon.pid(), site.pid(TARGET)];
    let (mut bare, mut products) = (Vec::new(), Vec::new());
    // The first round opens the daemon's connections and fills the target's memory; it is thrown away.
    for round in 0..=scale.rounds {
        until_idle(&servers).await;
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(endpoint.connect(&[]).await.expect("it answers"));
        }
        bare.push(run(connections, &questions, seconds, &servers, ask_target).await);
        until_idle(&servers).await;
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            clients.push(Client::connect(port).await);
        }
        check_answer(&mut clients[0], &questions[0]).await;
        products.push(run(clients, &questions, seconds, &servers, ask_daemon).await);
        if round == 0 {
            bare.clear();
            products.clear();
        }
    }
    report.add(http_line(&bare, &products));
}

/// Writes recharges into the source; returns a question for each.
async fn write_recharges(site: &Site<'_>, recharges: u32) -> Vec<Question> {
    let of =
        |number: u32| Recharge::with_twenty((number % PARTITIONS) as u8, number / PARTITIONS).documents();
    let recharges: Vec<Vec<Document>> = (0..recharges).map(of).collect();
    let mut source = site.installation.admin(SOURCE).await;
    for some in recharges.chunks(TRANSACTION_RECHARGES) {
        let mut sql = "BEGIN;".to_owned();
        insert(&some.concat(), &mut sql);
        sql.push_str("COMMIT");
        source.execute("write recharges", sql).await.expect("the statements are right");
    }
    recharges.iter().map(|documents| Question::new(documents)).collect()
}

async fn check_answer(client: &mut Client, question: &Question) {
    let answer = client.relations(&question.id).await;
    let body: Json = serde_json::from_slice(answer.body).expect("it is JSON");
    let documents = body["documents"].as_array().map_or(0, Vec::len);
    assert_eq!((answer.status, documents), (200, question.rows()), "{body}");
}

async fn ask_daemon(client: &mut Client, question: &Question) {
    let answer = client.relations(&question.id).await;
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(answer.body));
}

async fn ask_target(connection: &mut Connection, question: &Question) {
    for (sql, expected) in &question.queries {
        let rows: Vec<IndexRow> = connection.rows("read the index", sql).await.expect("it answers");
        assert_eq!(rows.len(), *expected, "{sql}");
    }
}

/// Asks with all clients until the time is over. Each client begins with another recharge.
async fn run<C>(
    clients: Vec<C>,
    questions: &[Question],
    seconds: Duration,
    servers: &[u32],
    ask: impl AsyncFn(&mut C, &Question),
) -> Run {
    let ask = &ask;
    let meter = Meter::start(servers);
    let ends = Instant::now() + seconds;
    let stride = questions.len() / clients.len();
    let loops = clients.into_iter().enumerate().map(|(number, mut client)| async move {
        let mut latencies = Histogram::<u64>::new(3).expect("three digits are allowed");
        let first = number * stride;
        for question in questions.iter().cycle().skip(first) {
            let sent = Instant::now();
            if sent >= ends {
                break;
            }
            ask(&mut client, question).await;
            record(&mut latencies, sent.elapsed());
        }
        latencies
    });
    let mut latencies = Histogram::new(3).expect("three digits are allowed");
    for of_one in futures::future::join_all(loops).await {
        latencies.add(of_one).expect("both have three digits");
    }
    Run { requests: latencies.len(), latencies, measured: meter.stop() }
}

fn http_line(bare: &[Run], products: &[Run]) -> Line {
    let at = |runs: &[Run], quantile| median(runs.iter().map(|run| run.millis(quantile)));
    let rate = |runs: &[Run]| median(runs.iter().map(Run::rate));
    let ratio = |quantile| {
        let of = |(product, bare): (&Run, &Run)| product.millis(quantile) / bare.millis(quantile);
        median(products.iter().zip(bare).map(of))
    };
    let text = |runs: &[Run]| {
        format!("{:.0}/s, p50 {:.2} ms, p99 {:.2} ms", rate(runs), at(runs, 0.5), at(runs, 0.99))
    };
    let cpu = |runs: &[Run]| {
        let own = runs.iter().map(|run| run.measured.own_cpu_seconds * 1e6 / run.requests as f64);
        let servers = runs.iter().map(|run| run.measured.server_cpu_seconds * 1e6 / run.requests as f64);
        (median(own), median(servers))
    };
    let ((own, servers), (bare_own, bare_servers)) = (cpu(products), cpu(bare));
    let one = |run: &Run| -> Json {
        json!({
            "requests_per_second": run.rate(), "p50_ms": run.millis(0.5), "p90_ms": run.millis(0.9),
            "p99_ms": run.millis(0.99), "p999_ms": run.millis(0.999), "max_ms": run.millis(1.0),
        })
    };
    Line {
        figure: "relations-http",
        measured: text(products),
        limit: format!("bare queries {}", text(bare)),
        ratio: format!("p50 {:.1} ×, p99 {:.1} ×", ratio(0.5), ratio(0.99)),
        cpu: format!("client {own:.0}, servers {servers:.0} (bare: {bare_own:.0}, {bare_servers:.0})"),
        bar: format!("p99 < {P99_MS} ms"),
        passes: Some(at(products, 0.99) < P99_MS),
        detail: json!({
            "p50_ratio": ratio(0.5), "p99_ratio": ratio(0.99), "connections": CONNECTIONS,
            "runs": products.iter().map(one).collect::<Vec<_>>(),
            "bare": bare.iter().map(one).collect::<Vec<_>>(),
        }),
    }
}

/// Measures the projection of payment documents with the audit of their places and without.
pub fn measure_audit(scale: &Scale, report: &mut Report) {
    let config = Config::parse(AUDIT_SETTINGS).unwrap_or_else(|faults| panic!("{faults:?}"));
    let relations = config.projections.iter().find(|known| known.name == RELATIONS).expect("it is there");
    let projection = Projection::new(relations);
    let documents = audited_documents(scale.audited);
    let mut tables = BTreeMap::new();
    for (database, table) in documents.iter().map(Document::table) {
        let shard = ShardId::of(SOURCE, &database, &table, 0);
        let name = (database.clone(), table.clone());
        let identity =
            TableIdentity { entity: Entity::Flux, shard, database: database.into(), table: table.into() };
        tables.insert(name, identity);
    }
    let change = |(number, document): (u64, &Document)| Change {
        lsn: Lsn::from_u64(number).expect("it is small"),
        table: &tables[&document.table()],
        action: Action::Insert { after: document.row() },
    };
    let changes: Vec<Change<'_, '_>> = (1..).zip(&documents).map(change).collect();
    let count = (changes.len() * PASSES) as f64;
    let (mut rates, mut ratios, mut costs) = (Vec::new(), Vec::new(), Vec::new());
    // The first round finds cold caches and is thrown away.
    for round in 0..=scale.rounds {
        let (mut audited, mut unaudited) = (0.0, 0.0);
        for _ in 0..PASSES {
            audited += project(&projection, &changes, AUDITED);
            unaudited += project(&projection, &changes, UNAUDITED);
        }
        if round > 0 {
            rates.push(count / audited);
            ratios.push(unaudited / audited);
            costs.push((audited - unaudited) * 1e9 / count);
        }
    }
    let (rate, ratio, cost) = (median(rates), median(ratios), median(costs));
    report.add(Line {
        figure: "flux-audit",
        measured: format!("{:.2} M rows/s", rate / 1e6),
        limit: format!("without audit {:.2} M rows/s", rate / ratio / 1e6),
        ratio: format!("{:.1} %", ratio * 100.0),
        cpu: format!("{:.3}", 1e6 / rate),
        bar: format!("≥ {:.0} %", AUDIT_BAR * 100.0),
        passes: Some(ratio >= AUDIT_BAR),
        detail: json!({
            "ratio": ratio, "rows_per_second": rate, "audit_ns_a_row": cost, "rows": changes.len(),
            "tables": tables.len(),
        }),
    });
}

/// Returns about this number of documents. Every user partition has as many, and neighbours are of different ones.
fn audited_documents(count: u64) -> Vec<Document> {
    let each = Recharge::of_ten(0, 0).documents().len() as u64;
    let numbers = (count / each / u64::from(PARTITIONS)) as u32;
    let mut documents = Vec::new();
    for number in 0..numbers {
        let of = |partition| Recharge::of_ten(partition as u8, number * DISTANCE).documents();
        let recharges: Vec<Vec<Document>> = (0..PARTITIONS).map(of).collect();
        for index in 0..each as usize {
            documents.extend(recharges.iter().map(|of_recharge| of_recharge[index]));
        }
    }
    documents
}

/// Projects all changes for one lane; returns the seconds. No document is odd, so no defect is counted.
fn project(projection: &Projection, changes: &[Change<'_, '_>], scope: LaneScope) -> f64 {
    let mut defects = Defects::default();
    let begun = Instant::now();
    for some in black_box(changes).chunks(FLUSH_CHANGES) {
        let mut flush = Flush::default();
        for change in some {
            projection.project(change, scope, &mut flush, &mut defects);
        }
        black_box(flush.rows());
    }
    let seconds = begun.elapsed().as_secs_f64();
    assert!(defects.is_empty(), "{defects:?}");
    seconds
}
