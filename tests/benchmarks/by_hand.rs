//! The limit of applying: what one would write by hand for exactly this work.
//!
//! The rows lie in memory, already projected, sorted by table and key, and compacted within each transaction; four
//! connections own a quarter of the tables each and send one packet a transaction: `BEGIN`, multi-row statements of up
//! to 1,000 rows, `COMMIT`. No log is read, no progress is stored, no version is compared. Making that work is not
//! part of the measurement; writing its SQL is.

use std::fmt::Write as _;

use anabranch_connectors::mysql::target::MysqlTarget;
use anabranch_connectors::nats::{NatsLog, TailFrom};
use anabranch_demo::Endpoint;
use anabranch_pipeline::config::Config;
use anabranch_pipeline::deliver::{Cell, Flush, MutationAction, OrderedMutation, Progress};
use anabranch_pipeline::ports::LogReader;
use anabranch_pipeline::projections::Defects;
use anabranch_schemas::codec::v1;
use anabranch_schemas::lsn::Lsn;

use crate::meter::{Measured, Meter};
use crate::site::{SOURCE, Site, TARGET};

const STATEMENT_ROWS: usize = 1_000;
/// A join with a list of keys is the cheapest DELETE by far: `IN` and `OR` cost the server three times as much a row.
const DELETE_ROWS: usize = 300;
const SESSION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";

/// One derived row: an upsert, or a deletion.
#[derive(Debug, Clone, Copy)]
struct Row {
    table: u32,
    shard: u64,
    user_id: u64,
    lsn: u64,
    is_delete: bool,
}

/// For each connection its transactions.
#[derive(Debug)]
pub struct Work {
    names: Vec<String>,
    /// Month and day of each table, as its rows hold it.
    days: Vec<String>,
    connections: Vec<Vec<Vec<Row>>>,
}

impl Work {
    pub fn rows(&self) -> usize {
        self.connections.iter().flatten().map(Vec::len).sum()
    }
}

/// Reads the log once and projects it.
pub async fn prepare(config: &Config, log: &NatsLog, end: Lsn, flush_rows: usize) -> Work {
    let target = MysqlTarget::new(config, TARGET).expect("it is configured");
    let ids = target.lane_ids();
    let lanes: Vec<_> = ids.iter().filter_map(|id| target.lane(id)).collect();
    let projection = lanes[0].projection().clone();
    let mut flushes: Vec<Flush> = lanes.iter().map(|_| Flush::new(Progress::default())).collect();
    let mut connections = vec![Vec::new(); lanes.len()];
    let mut days = vec![String::new(); projection.tables().len()];
    let mut reader = log.tail(SOURCE, TailFrom::First).await.expect("the stream is there");
    let mut defects = Defects::default();
    let mut position = Lsn::ZERO;
    while position < end {
        let message = reader.next().await.expect("the stream is whole");
        position = message.entry.envelope.position;
        if message.entry.envelope.changes > 0 {
            let mut changes = v1::decode(&message.payload).expect("it was written by us");
            while let Some(change) = changes.next().expect("it was written by us") {
                for (lane, flush) in lanes.iter().zip(&mut flushes) {
                    projection.project(&change, lane.scope(), flush, &mut defects);
                }
            }
        }
        for (flush, transactions) in flushes.iter_mut().zip(&mut connections) {
            if flush.rows() >= flush_rows || position >= end {
                let flush = std::mem::replace(flush, Flush::new(Progress::default()));
                transactions.push(rows(&flush, &mut days));
            }
        }
    }
    let names = projection
        .tables()
        .iter()
        .map(|table| format!("`{}`.`{}`", table.derived.database, table.derived.table))
        .collect();
    Work { names, days, connections }
}

fn rows(flush: &Flush, days: &mut [String]) -> Vec<Row> {
    let row = |mutation: &OrderedMutation<'_>, days: &mut [String]| {
        let Some(Cell::UInt(user_id)) = mutation.key.first() else { panic!("a user id is a number") };
        let is_delete = match mutation.action {
            MutationAction::Delete => true,
            MutationAction::Upsert(values) => {
                if let Some(Cell::Bytes(day)) = values.first() {
                    days[mutation.table as usize] = String::from_utf8_lossy(day).into_owned();
                }
                false
            }
        };
        let (shard, lsn) = (mutation.shard.as_u64(), mutation.lsn.as_u64());
        Row { table: mutation.table, shard, user_id: *user_id, lsn, is_delete }
    };
    flush.ordered().iter().map(|mutation| row(mutation, days)).collect()
}

pub async fn run(site: &Site<'_>, work: &Work) -> Measured {
    let endpoint = Endpoint::admin(site.installation.stack(), TARGET).expect("a server of the stack");
    let mut connections = Vec::new();
    for _ in &work.connections {
        connections.push(endpoint.connect(&[SESSION]).await.expect("it answers"));
    }
    let meter = Meter::start(Some(site.pid(TARGET)));
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
        let (name, day) = (&work.names[of_table[0].table as usize], &work.days[of_table[0].table as usize]);
        let (deletes, upserts): (Vec<&Row>, Vec<&Row>) = of_table.iter().partition(|row| row.is_delete);
        for rows in deletes.chunks(DELETE_ROWS) {
            write!(sql, "DELETE {name} FROM (SELECT 0 AS s,0 AS u").expect(STRING);
            for row in rows {
                write!(sql, " UNION ALL SELECT {},{}", row.shard, row.user_id).expect(STRING);
            }
            write!(
                sql,
                ") AS l STRAIGHT_JOIN {name} FORCE INDEX (PRIMARY) ON {name}.shard_id=l.s AND {name}.user_id=l.u;"
            )
            .expect(STRING);
        }
        for rows in upserts.chunks(STATEMENT_ROWS) {
            write!(sql, "INSERT INTO {name} (shard_id,user_id,birthday,lsn) VALUES ").expect(STRING);
            for row in rows {
                write!(sql, "({},{},'{day}',{}),", row.shard, row.user_id, row.lsn).expect(STRING);
            }
            sql.pop();
            sql.push_str(" ON DUPLICATE KEY UPDATE birthday=VALUES(birthday),lsn=VALUES(lsn);");
        }
    }
    sql.push_str("COMMIT");
    sql
}

const STRING: &str = "writing to a String cannot fail";
