//! Log to search documents, catching up: the lanes as the daemon runs them, in turn with a bulk loader written by hand.
//!
//! Both begin with an index that set-up has just made, and write the same documents over as many connections. The
//! loader has its requests in memory, as they go over the wire. It reads no log, stores no progress and compares no
//! version.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anabranch_connectors::nats::NatsLog;
use anabranch_connectors::search::{SearchLane, SearchTarget};
use anabranch_demo::{DemoError, JsonClient};

use anabranch_pipeline::config::Config;
use anabranch_pipeline::projections::{LaneScope, Projection};
use anabranch_pipeline::records::{Cell, Flush, MutationAction, OrderedMutation};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::search::index_of;
use anabranch_tests::Search;
use reqwest::Method;
use serde_json::{Map, Value as Json, json};

use crate::contest::{Contest, Hand};
use crate::devices::Devices;
use crate::meter::{Measured, Meter};
use crate::report::Report;
use crate::site::{SEARCH, SOURCE, Site};
use crate::{Scale, apply, by_hand, capture, data};

const BAR: f64 = 0.80;
/// Connections of the loader, as many as the product's: two lanes with two requests under way each.
const CONNECTIONS: usize = 4;
/// Documents of a request that the loader tries; the faster size is the limit.
const REQUEST_DOCUMENTS: [usize; 2] = [1_000, 5_000];
/// Pause before a request is sent again that a busy server refused.
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// Most rows of a lane's flush: within it only the last change of a document is written.
const FLUSH_ROWS: usize = 20_000;

/// The requests of each connection, and the number of documents that they leave.
struct Work {
    connections: Vec<Vec<String>>,
    remaining: u64,
}

pub async fn measure(site: &mut Site<'_>, scale: &Scale, report: &mut Report) {
    let amount = (scale.documents, scale.seed);
    let data = data::write(site, Devices::WHAT, amount, Devices::writers()).await;
    report.note(&data.to_string());
    let log = site.new_log("documents").await;
    capture::append(site, &log, &data).await;
    let config = Arc::new(site.config());
    let (mut works, mut hands) = (Vec::new(), Vec::new());
    for documents in REQUEST_DOCUMENTS {
        works.push(prepare(&config, &log, data.end_lsn, documents).await);
        hands.push(Hand::new(format!("{documents} documents a request")));
    }
    let mut products = Vec::new();
    // The first run finds a machine that has compiled nothing yet, and is thrown away.
    for round in 0..=scale.rounds {
        for (work, hand) in works.iter().zip(&mut hands) {
            let target = empty(site, &config).await;
            hand.runs.push(run(site, &target, work).await);
        }
        let target = empty(site, &config).await;
        products.push(product(site, &config, &target, &log, data.end_lsn).await);
        assert_eq!(count(site).await, works[0].remaining, "the same documents stand");
        if round == 0 {
            products.clear();
            hands.iter_mut().for_each(|hand| hand.runs.clear());
        }
    }
    site.delete_log().await;
    let contest = Contest {
        figure: "documents, TLS",
        unit: "rows",
        count: data.rows,
        servers: "search",
        bar: BAR,
        products,
        hands,
    };
    report.add(contest.line());
}

/// Makes a fresh index.
async fn empty(site: &Site<'_>, config: &Config) -> SearchTarget {
    Search::of(site.installation.stack()).clear().await;
    let target = SearchTarget::new(config, SEARCH).expect("it is configured");
    target.setup().await.expect("indexes can be made");
    target
}

async fn count(site: &Site<'_>) -> u64 {
    Search::of(site.installation.stack()).count("serials").await
}

fn lanes(target: &SearchTarget) -> Vec<SearchLane> {
    let ids = target.lane_ids();
    ids.iter().map(|id| target.lane(id).expect("it is configured")).collect()
}

async fn product(
    site: &Site<'_>,
    config: &Arc<Config>,
    target: &SearchTarget,
    log: &NatsLog,
    end: Lsn,
) -> Measured {
    let lanes = lanes(target).into_iter();
    let lanes = lanes.map(|lane| (lane.id().clone(), lane.projection().clone(), lane.scope(), lane));
    apply::run_lanes(config, log, end, &[site.pid(SEARCH)], lanes.collect()).await
}

/// Reads the log once; each document always takes the same connection.
async fn prepare(config: &Config, log: &NatsLog, end: Lsn, documents: usize) -> Work {
    let target = SearchTarget::new(config, SEARCH).expect("it is configured");
    let lanes = lanes(&target);
    let projection = lanes[0].projection();
    let scopes: Vec<LaneScope> = lanes.iter().map(SearchLane::scope).collect();
    let mut connections: Vec<Vec<String>> = vec![Vec::new(); CONNECTIONS];
    let mut remaining = HashMap::new();
    by_hand::project(log, end, FLUSH_ROWS, projection, &scopes, |lane, flush: &Flush| {
        let mut parts = vec![Vec::new(); CONNECTIONS];
        for mutation in flush.ordered() {
            let (id, document) = document(projection, lane, &mutation);
            let connection = crc32fast::hash(id.as_bytes()) as usize % CONNECTIONS;
            remaining.insert(id.clone(), *mutation.action != MutationAction::Delete);
            parts[connection].push(format!("{{\"index\":{{\"_id\":\"{id}\"}}}}\n{document}\n"));
        }
        for (requests, part) in connections.iter_mut().zip(parts) {
            requests.extend(part.chunks(documents).map(<[String]>::concat));
        }
    })
    .await;
    let remaining = remaining.values().filter(|stands| **stands).count() as u64;
    Work { connections, remaining }
}

/// Id and body of a document, as the product writes them.
fn document(projection: &Projection, lane: usize, mutation: &OrderedMutation<'_>) -> (String, Json) {
    let text = |cell: &Cell| match cell {
        Cell::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("every field is text: {other:?}"),
    };
    let shape = projection.tables()[mutation.table as usize].derived.shape;
    let mut id = mutation.shard.as_u64().to_string();
    mutation
        .key
        .iter()
        .for_each(|cell| write!(id, "-{}", text(cell)).expect("writing to a String cannot fail"));
    let lsn = mutation.lsn.as_u64();
    let MutationAction::Upsert(values) = mutation.action else {
        let withdrawn_at = 1_700_000_000_000_u64;
        let stone = json!({ "source": SOURCE, "lsn": lsn, "withdrawn": true, "withdrawn_at": withdrawn_at });
        return (id, stone);
    };
    let mut fields = Map::new();
    fields.insert("shard_id".to_owned(), mutation.shard.as_u64().to_string().into());
    fields.insert("source".to_owned(), SOURCE.into());
    fields.insert("lane".to_owned(), lane.into());
    fields.insert("lsn".to_owned(), lsn.into());
    fields.insert("withdrawn".to_owned(), false.into());
    let names = shape.key_columns.iter().chain(shape.value_columns);
    let cells = mutation.key.iter().chain(values.iter());
    for (name, cell) in names.zip(cells).filter(|(_, cell)| **cell != Cell::Null) {
        fields.insert((*name).to_owned(), text(cell).into());
    }
    (id, fields.into())
}

async fn run(site: &Site<'_>, target: &SearchTarget, work: &Work) -> Measured {
    let server = JsonClient::search_admin(site.installation.stack(), SEARCH).expect("a server of the stack");
    let lanes = lanes(target);
    let index = index_of(&lanes[0].projection().tables()[0].derived.table);
    let path = format!("{index}/_bulk?filter_path=errors");
    let meter = Meter::start(&[site.pid(SEARCH)]);
    let runs = work.connections.iter().map(async |requests| {
        for request in requests {
            let send = async || server.send("load by hand", Method::POST, &path, request.clone()).await;
            let mut answer = send().await;
            // The server's memory is full: the loader waits, as any loader does.
            while matches!(&answer, Err(DemoError::Http { reason, .. }) if reason.starts_with("429")) {
                tokio::time::sleep(BUSY_PAUSE).await;
                answer = send().await;
            }
            assert_eq!(answer.expect("it takes them")["errors"], false);
        }
    });
    futures::future::join_all(runs).await;
    let measured = meter.stop();
    assert_eq!(count(site).await, work.remaining, "the same documents stand");
    measured
}
