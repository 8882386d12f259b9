//! The limit of applying: a program written by hand for exactly this work.
//!
//! Its rows are in memory, already projected, sorted by table and key, and compacted within each transaction. Four
//! connections own a quarter of the tables each and send one packet a transaction: `BEGIN`, multi-row statements of up
//! to 1,000 rows, `COMMIT`. It reads no log, stores no progress and compares no version. The measurement includes the
//! writing of the SQL, and not the preparation of the rows.

use std::fmt::Write as _;
use std::sync::Arc;

use anabranch_connectors::mysql::store::{MysqlLane, MysqlTarget};
use anabranch_connectors::nats::{NatsLog, TailFrom};
use anabranch_demo::Endpoint;
use anabranch_pipeline::config::Config;
use anabranch_pipeline::ports::LogReader;
use anabranch_pipeline::projections::{Defects, LaneScope, ProjectedTable, Projection};
use anabranch_pipeline::records::{Cell, Flush, MutationAction, OrderedMutation, Progress, TableShape};
use anabranch_schemas::change::Entity;
use anabranch_schemas::codec;
use anabranch_schemas::lsn::Lsn;

use crate::meter::{Measured, Meter};
use crate::site::{SOURCE, Site, TARGET};

const STATEMENT_ROWS: usize = 1_000;
/// Rows of a DELETE, a join with a list of keys: `IN` and `OR` cost the server three times as much a row.
const DELETE_ROWS: usize = 300;
const SESSION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";

/// One derived row: an upsert, or a deletion.
#[derive(Debug, Clone)]
struct Row {
    table: u32,
    shard: u64,
    key: Box<[Cell]>,
    lsn: u64,
    is_delete: bool,
    /// Value columns; `None` = those of its table.
    values: Option<Arc<[Cell]>>,
}

/// The transactions of each connection.
#[derive(Debug)]
pub struct Work {
    shape: &'static TableShape,
    names: Vec<String>,
    /// The value columns of each table as SQL, where all rows of a table have the same: that is so for every entity but
    /// payment documents.
    values: Vec<String>,
    connections: Vec<Vec<Vec<Row>>>,
}

impl Work {
    pub fn rows(&self) -> usize {
        self.connections.iter().flatten().map(Vec::len).sum()
    }
}

/// Reads the log once and projects it for tables of a target server.
pub async fn prepare(config: &Config, log: &NatsLog, end: Lsn, flush_rows: usize) -> Work {
    let target = MysqlTarget::new(config, TARGET).expect("it is configured");
    let ids = target.lane_ids();
    let lanes: Vec<_> = ids.iter().filter_map(|id| target.lane(id)).collect();
    let projection = lanes[0].projection();
    let scopes: Vec<LaneScope> = lanes.iter().map(MysqlLane::scope).collect();
    let mut connections = vec![Vec::new(); lanes.len()];
    let mut values = vec![String::new(); projection.tables().len()];
    project(log, end, flush_rows, projection, &scopes, |lane, flush| {
        connections[lane].push(rows(flush, projection.entity(), &mut values));
    })
    .await;
    let tables = projection.tables();
    let name = |table: &ProjectedTable| format!("`{}`.`{}`", table.derived.database, table.derived.table);
    let names = tables.iter().map(name).collect();
    Work { shape: tables[0].derived.shape, names, values, connections }
}

/// Reads the log once and hands each lane's flushes to `take`.
pub async fn project(
    log: &NatsLog,
    end: Lsn,
    flush_rows: usize,
    projection: &Projection,
    scopes: &[LaneScope],
    mut take: impl FnMut(usize, &Flush),
) {
    let mut flushes: Vec<Flush> = scopes.iter().map(|_| Flush::new(Progress::default())).collect();
    let mut reader = log.tail(SOURCE, TailFrom::First).await.expect("the stream is there");
    let mut defects = Defects::default();
    let mut position = Lsn::ZERO;
    while position < end {
        let message = reader.next().await.expect("the stream is whole");
        position = message.entry.envelope.position;
        if message.entry.envelope.changes > 0 {
            let mut changes = codec::decode(&message.payload).expect("it was written by us");
            while let Some(change) = changes.next().expect("it was written by us") {
                for (scope, flush) in scopes.iter().zip(&mut flushes) {
                    projection.project(&change, *scope, flush, &mut defects);
                }
            }
        }
        for (lane, flush) in flushes.iter_mut().enumerate() {
            if flush.rows() >= flush_rows || position >= end {
                take(lane, &std::mem::replace(flush, Flush::new(Progress::default())));
            }
        }
    }
}

fn rows(flush: &Flush, entity: Entity, of_tables: &mut [String]) -> Vec<Row> {
    let row = |mutation: &OrderedMutation<'_>| {
        let OrderedMutation { table, shard, key, lsn, action } = *mutation;
        let mut own = None;
        if let MutationAction::Upsert(values) = action {
            let of_table = &mut of_tables[table as usize];
            if entity == Entity::Flux {
                own = Some(Arc::clone(values));
            } else if of_table.is_empty() {
                values.iter().for_each(|value| push(of_table, value));
            }
        }
        let is_delete = *action == MutationAction::Delete;
        Row { table, shard: shard.as_u64(), key: key.into(), lsn: lsn.as_u64(), is_delete, values: own }
    };
    flush.ordered().iter().map(row).collect()
}

pub async fn run(site: &Site<'_>, work: &Work) -> Measured {
    let endpoint = Endpoint::admin(site.installation.stack(), TARGET).expect("a server of the stack");
    let mut connections = Vec::new();
    for _ in &work.connections {
        connections.push(endpoint.connect(&[SESSION]).await.expect("it answers"));
    }
    let meter = Meter::start(&[site.pid(TARGET)]);
    let runs = work.connections.iter().zip(&mut connections).map(async |(transactions, connection)| {
        for rows in transactions {
            connection.execute("apply by hand", transaction(work, rows)).await.expect("it takes them");
        }
    });
    futures::future::join_all(runs).await;
    meter.stop()
}

fn transaction(work: &Work, rows: &[Row]) -> String {
    let mut sql = String::with_capacity(rows.len() * 64);
    sql.push_str("BEGIN;");
    for of_table in rows.chunk_by(|a, b| a.table == b.table) {
        let table = of_table[0].table as usize;
        let (name, values) = (&work.names[table], &work.values[table]);
        let (deletes, upserts): (Vec<&Row>, Vec<&Row>) = of_table.iter().partition(|row| row.is_delete);
        for rows in deletes.chunks(DELETE_ROWS) {
            delete(&mut sql, work.shape, name, rows);
        }
        for rows in upserts.chunks(STATEMENT_ROWS) {
            upsert(&mut sql, work.shape, name, values, rows);
        }
    }
    sql.push_str("COMMIT");
    sql
}

/// Appends a DELETE of these rows. The first part of its list has no rows and names the columns.
fn delete(sql: &mut String, shape: &TableShape, name: &str, rows: &[&Row]) {
    write!(sql, "DELETE {name} FROM (SELECT 0 AS s").expect(STRING);
    for (cell, column) in rows[0].key.iter().zip(shape.key_columns) {
        let typed = if matches!(cell, Cell::Bytes(_)) { "x''" } else { "0" };
        write!(sql, ",{typed} AS `{column}`").expect(STRING);
    }
    sql.push_str(" FROM DUAL WHERE FALSE");
    for row in rows {
        write!(sql, " UNION ALL SELECT {}", row.shard).expect(STRING);
        row.key.iter().for_each(|cell| push(sql, cell));
    }
    write!(sql, ") AS l STRAIGHT_JOIN {name} FORCE INDEX (PRIMARY) ON {name}.shard_id=l.s").expect(STRING);
    for column in shape.key_columns {
        write!(sql, " AND {name}.`{column}`=l.`{column}`").expect(STRING);
    }
    sql.push(';');
}

fn upsert(sql: &mut String, shape: &TableShape, name: &str, values: &str, rows: &[&Row]) {
    write!(sql, "INSERT INTO {name} (shard_id").expect(STRING);
    for column in shape.key_columns.iter().chain(shape.value_columns) {
        write!(sql, ",`{column}`").expect(STRING);
    }
    sql.push_str(",lsn) VALUES ");
    for row in rows {
        write!(sql, "({}", row.shard).expect(STRING);
        row.key.iter().for_each(|cell| push(sql, cell));
        row.values.iter().flat_map(|own| &**own).for_each(|cell| push(sql, cell));
        write!(sql, "{values},{}),", row.lsn).expect(STRING);
    }
    sql.pop();
    sql.push_str(" ON DUPLICATE KEY UPDATE ");
    for column in shape.value_columns {
        write!(sql, "`{column}`=VALUES(`{column}`),").expect(STRING);
    }
    sql.push_str("lsn=VALUES(lsn);");
}

/// Appends `,cell`. Plain text is as short as possible, as the server's parsing costs time.
fn push(sql: &mut String, cell: &Cell) {
    match cell {
        Cell::Null => sql.push_str(",NULL"),
        Cell::Int(number) => write!(sql, ",{number}").expect(STRING),
        Cell::UInt(number) => write!(sql, ",{number}").expect(STRING),
        Cell::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) if text.bytes().all(is_plain) => {
                write!(sql, ",'{text}'").expect(STRING);
            }
            _ => {
                sql.push_str(",x'");
                bytes.iter().for_each(|byte| write!(sql, "{byte:02x}").expect(STRING));
                sql.push('\'');
            }
        },
    }
}

/// Returns whether a byte stands for itself between quotes.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-.: ".contains(&byte)
}

const STRING: &str = "writing to a String cannot fail";
