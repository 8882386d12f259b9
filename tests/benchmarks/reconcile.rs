//! Both sides of a reconciliation's unit are read and cancelled out, in turn with the two streams of rows alone.
//!
//! The limit reads the same columns of all source tables and all derived tables whole, one statement a table, over one
//! connection to each server, with the same client library, and throws the rows away. It has no chunks, asks for no
//! snapshot's position, and decodes and compares nothing. Both sides are equal, so a scan must find no candidate.

use std::collections::BTreeMap;
use std::sync::Arc;

use anabranch_connectors::mysql::connection::{async_options, quote_identifier, quote_table};
use anabranch_connectors::mysql::source::MysqlSource;
use anabranch_connectors::mysql::store::{MysqlRows, MysqlTarget};
use anabranch_pipeline::config::{ColumnNames, Config, EntityConfig};
use anabranch_pipeline::ports::RowSource;
use anabranch_pipeline::projections::Projection;
use anabranch_pipeline::reconcile::{PlacementAudit, Rules, Sides, SourceTable, Unit};
use anabranch_pipeline::throttle::Pace;
use anabranch_schemas::change::Entity;
use anabranch_schemas::shard::ShardId;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;

use crate::contest::{Contest, Hand};
use crate::meter::{Measured, Meter, resident_bytes_max};
use crate::report::Report;
use crate::site::{SOURCE, Site, TARGET};
use crate::{Scale, apply, arrivals, capture};

const BAR: f64 = 0.70;
/// Memory of a scan, the default of the configuration.
const MEMORY_BYTES: usize = 192 << 20;

pub async fn measure(site: &mut Site<'_>, scale: &Scale, report: &mut Report) {
    let data = arrivals::write(site, scale).await;
    let log = site.new_log("reconcile").await;
    capture::append(site, &log, &data).await;
    let config = Arc::new(site.config());
    site.installation.command(&["setup"]).await.expect_success();
    apply::product(site, &config, &log, data.end_lsn).await;
    site.delete_log().await;
    for is_audited in [false, true] {
        let entities = config.entities.iter().cloned();
        let entities: Vec<_> = match is_audited {
            true => entities.map(EntityConfig::with_sharding_column).collect(),
            false => entities.collect(),
        };
        let (sides, unit) = open(site, &entities, is_audited).await;
        let streams = streams(&config, &entities, &sides.projection, &unit);
        let (mut products, mut hand) = (Vec::new(), Hand::new("both streams, thrown away".to_owned()));
        let (mut rows, mut memory) = ([0; 2], 0);
        // The first run finds cold servers and is thrown away.
        for round in 0..=scale.rounds {
            let (by_hand, streamed) = by_hand(site, &config, &streams).await;
            let product = product(site, &sides, &unit, scale.seed ^ u64::from(round)).await;
            rows = product.rows;
            assert_eq!((streamed, rows[0]), (rows, data.rows), "both sides were read whole");
            memory = memory.max(product.resident_bytes_max);
            if round > 0 {
                hand.runs.push(by_hand);
                products.push(product.measured);
            }
        }
        report.note(&format!(
            "reconcile: {} and {} rows, {} MB resident at most while scanning",
            rows[0],
            rows[1],
            memory / 1_000_000
        ));
        let contest = Contest {
            figure: match (site.entity, is_audited) {
                (Entity::User, false) => "reconcile, TLS",
                (Entity::User, true) => "reconcile and audit, TLS",
                (Entity::SerialCode, false) => "reconcile devices, TLS",
                (Entity::SerialCode, true) => "reconcile and audit devices, TLS",
                (Entity::Flux, false) => "reconcile payment documents, TLS",
                (Entity::Flux, true) => "reconcile and audit payment documents, TLS",
            },
            unit: "rows",
            count: rows.iter().sum(),
            servers: "source and target",
            bar: BAR,
            products,
            hands: vec![hand],
        };
        report.add(contest.line());
    }
}

/// Opens the connectors of a reconciliation.
pub async fn open(
    site: &Site<'_>,
    entities: &[EntityConfig],
    is_audited: bool,
) -> (Sides<MysqlSource, MysqlRows>, Unit) {
    let config = &site.config();
    let source = Arc::new(MysqlSource::new(&config.sources[0], entities, config.limits.heartbeat));
    let target = MysqlTarget::new(config, TARGET).expect("it is configured");
    let rows = target.rows(site.projection(), 4).expect("it has tables there");
    let lane = target.lane(&target.lane_ids()[0]).expect("it has lanes");
    let tables = RowSource::tables(&*source).await.expect("the source answers");
    let tables: BTreeMap<_, _> = tables
        .into_iter()
        .map(|identity| (identity.shard, SourceTable { source: SOURCE.to_owned(), identity }))
        .collect();
    let highest = ShardId::from_u64(u64::MAX >> 1).expect("63 bits");
    let lowest = ShardId::from_u64(0).expect("63 bits");
    let of_source = || BTreeMap::from([(SOURCE.to_owned(), Arc::clone(&source))]);
    let sides = Sides {
        replicated: Default::default(),
        projection: lane.projection().clone(),
        sources: of_source(),
        primaries: of_source(),
        targets: vec![Arc::new(rows)],
        audit: is_audited
            .then(|| PlacementAudit::new(Rules::of(site.entity, entities, &config.flux_places), 1)),
    };
    (sides, Unit { shards: lowest..=highest, tables })
}

/// One statement for each table: of the source, and of the target.
fn streams(
    config: &Config,
    entities: &[EntityConfig],
    projection: &Projection,
    unit: &Unit,
) -> [Vec<String>; 2] {
    let select = |columns: Vec<&str>, (database, table): (&str, &str)| {
        let columns: Vec<String> = columns.into_iter().map(quote_identifier).collect();
        format!("SELECT {} FROM {}", columns.join(","), quote_table(database, table))
    };
    let entity = entities.iter().find(|known| known.entity == projection.entity()).expect("it is configured");
    let captured: Vec<&str> = entity.columns.iter().map(ColumnNames::first).collect();
    let source = unit
        .tables
        .values()
        .map(|table| select(captured.clone(), (&table.identity.database, &table.identity.table)));
    assert_eq!(config.targets.len(), 1, "all tables are on one");
    let target = projection.tables().iter().map(|table| {
        let shape = table.derived.shape;
        let columns = shape.key_columns.iter().chain(shape.value_columns).copied();
        let columns = std::iter::once("shard_id").chain(columns).collect();
        select(columns, (&table.derived.database, &table.derived.table))
    });
    [source.collect(), target.collect()]
}

/// Reads all streams; returns the cost and the number of rows of each side.
async fn by_hand(site: &Site<'_>, config: &Config, streams: &[Vec<String>; 2]) -> (Measured, [u64; 2]) {
    let (source, target) = (&config.sources[0], &config.targets[0]);
    let mut connections = Vec::new();
    for (url, ca_file) in [(&source.url, &source.ca_file), (&target.url, &target.ca_file)] {
        let options = async_options(url, ca_file.as_deref());
        connections.push(Conn::new(options).await.expect("it answers"));
    }
    let meter = Meter::start(&[site.pid(SOURCE), site.pid(TARGET)]);
    let mut scans = Vec::new();
    for (mut connection, statements) in connections.into_iter().zip(streams.clone()) {
        // A task may run on any core, as the product's do.
        scans.push(tokio::spawn(async move {
            let mut rows = 0;
            for statement in statements {
                let mut result = connection.query_iter(statement).await.expect("the account may read");
                while result.next().await.expect("the rows come").is_some() {
                    rows += 1;
                }
            }
            rows
        }));
    }
    let mut rows = [0; 2];
    for (rows, stream) in rows.iter_mut().zip(scans) {
        *rows = stream.await.expect("no panic");
    }
    (meter.stop(), rows)
}

/// Result of one scan of a unit.
pub struct Product {
    pub measured: Measured,
    /// Number of rows of the source, and of derived rows.
    pub rows: [u64; 2],
    /// Peak memory of this process during the scan, in bytes.
    pub resident_bytes_max: u64,
}

/// Reads and compares a unit whose sides are equal.
pub async fn product(
    site: &Site<'_>,
    sides: &Sides<MysqlSource, MysqlRows>,
    unit: &Unit,
    seed: u64,
) -> Product {
    // Resets the process's peak of resident memory.
    std::fs::write("/proc/self/clear_refs", "5").expect("a process may reset its own watermark");
    let meter = Meter::start(&[site.pid(SOURCE), site.pid(TARGET)]);
    let pace = Pace::unbounded();
    let scanned = sides.scan(unit, seed, MEMORY_BYTES, &pace).next().await.expect("both sides can be read");
    let scanned = scanned.expect("it was not read before");
    let measured = meter.stop();
    assert_eq!(scanned.rows_expected, scanned.rows_derived, "both sides were read");
    assert!(scanned.candidates.windows(1).next().is_none(), "both sides are equal");
    let rows = [scanned.rows_source, scanned.rows_derived];
    let resident_bytes_max = resident_bytes_max(std::process::id()).expect("this process runs");
    Product { measured, rows, resident_bytes_max }
}
