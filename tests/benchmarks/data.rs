//! A binlog to read: row changes in small and large transactions mixed.
//!
//! A tenth of the changes are transactions of one row, the others of 100. `users.rs`, `devices.rs`, `recharges.rs`
//! and `unchanged.rs` define the changed rows; each has several writers with tables of their own.

use std::collections::VecDeque;
use std::fmt;

use anabranch_demo::{Connection, Endpoint};
use anabranch_pipeline::ports::SourceConnector;
use anabranch_schemas::lsn::Lsn;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::site::{SOURCE, Site};

/// Rows of a large transaction.
pub const LARGE: u64 = 100;
/// One change in this number is a transaction of its own.
const SMALL_SHARE: u64 = 10;
/// Statements of a packet, as round trips are not measured.
const PACKET_STATEMENTS: usize = 100;

/// Changes of one writer in its tables.
pub trait Changes: Send + 'static {
    /// Appends one transaction that changes this number of rows; returns its number of changes in the binlog.
    fn transaction(&mut self, random: &mut StdRng, rows: u64, sql: &mut String) -> u64;
}

/// A binlog file from its beginning to `end`.
#[derive(Debug, Clone)]
pub struct Data {
    pub what: &'static str,
    pub rows: u64,
    pub transactions: u64,
    pub file: String,
    pub end: u64,
    pub end_lsn: Lsn,
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, rows, transactions, .. } = self;
        write!(
            f,
            "binlog: {rows} row changes in {transactions} transactions, {} MB, {what}",
            self.end / 1_000_000
        )
    }
}

/// Writes about this number of changes into a new binlog.
pub async fn write<C: Changes>(
    site: &Site<'_>,
    what: &'static str,
    amount: (u64, u64),
    changes: Vec<C>,
) -> Data {
    site.source("RESET MASTER").await;
    append(site, what, amount, changes).await
}

/// Writes about this number of changes after the binlog's present end, and makes the server durable again.
pub async fn append<C: Changes>(
    site: &Site<'_>,
    what: &'static str,
    (rows, seed): (u64, u64),
    changes: Vec<C>,
) -> Data {
    eprintln!("writing {rows} row changes of {what}, seed {seed}");
    // Writing is not measured.
    site.source("SET GLOBAL sync_binlog = 0; SET GLOBAL innodb_flush_log_at_trx_commit = 0").await;
    let endpoint = Endpoint::admin(site.installation.stack(), SOURCE).expect("a server of the stack");
    let rows = rows / changes.len() as u64;
    let mut writers = Vec::new();
    for (number, changes) in (0..).zip(changes) {
        let connection = endpoint.connect(&[]).await.expect("it answers");
        let random = StdRng::seed_from_u64(seed.wrapping_mul(1_000).wrapping_add(number));
        writers.push(tokio::spawn(write_all(connection, random, rows, changes)));
    }
    let (mut rows, mut transactions) = (0, 0);
    for writer in writers {
        let written = writer.await.expect("the statements are right");
        rows += written.0;
        transactions += written.1;
    }
    site.source("SET GLOBAL sync_binlog = 1; SET GLOBAL innodb_flush_log_at_trx_commit = 1").await;
    let mut admin = site.installation.admin(SOURCE).await;
    let status: Option<(String, u64, String, String)> =
        admin.first("look at the binlog", "SHOW MASTER STATUS").await.expect("it answers");
    let (file, end, _, _) = status.expect("the binlog is on");
    let end_lsn = site.connector(&site.source_config()).head().await.expect("it answers");
    assert!(file.ends_with("000001"), "the scan reads one file: {file}");
    Data { what, rows, transactions, file, end, end_lsn }
}

/// Writes all changes; returns the numbers of changes and transactions.
async fn write_all<C: Changes>(
    mut connection: Connection,
    mut random: StdRng,
    rows: u64,
    mut changes: C,
) -> (u64, u64) {
    let mut sizes = sizes(&mut random, rows);
    let (mut written, transactions) = (0, sizes.len() as u64);
    while !sizes.is_empty() {
        let mut packet = String::new();
        for size in sizes.drain(..sizes.len().min(PACKET_STATEMENTS)) {
            written += changes.transaction(&mut random, size, &mut packet);
        }
        connection.execute("write changes", packet).await.expect("the statements are right");
    }
    (written, transactions)
}

fn sizes(random: &mut StdRng, rows: u64) -> VecDeque<u64> {
    let large = (rows - rows / SMALL_SHARE) / LARGE;
    let small = rows - large * LARGE;
    let (mut small_left, mut large_left) = (small, large);
    let mut sizes = VecDeque::new();
    while small_left + large_left > 0 {
        let is_small = random.random_range(0..small_left + large_left) < small_left;
        sizes.push_back(if is_small { 1 } else { LARGE });
        *(if is_small { &mut small_left } else { &mut large_left }) -= 1;
    }
    sizes
}

/// Rows of one table, from the oldest that was not deleted to the next new one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Range {
    pub low: u64,
    pub high: u64,
}

impl Range {
    /// Whether more rows are left than the largest transactions take.
    pub fn is_filled(self) -> bool {
        self.high - self.low > 2 * LARGE
    }

    /// The first of `rows` consecutive rows, at random.
    pub fn any(self, random: &mut StdRng, rows: u64) -> u64 {
        random.random_range(self.low..self.high - rows)
    }
}
