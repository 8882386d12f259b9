//! The binlog that is read: 2 million row changes of users in 40 tables, small and large transactions mixed.
//!
//! A tenth of the changes are transactions of one row, the others of 100; 55 % insert, 33 % update the birthday (so
//! the user moves to another derived table), 12 % delete.

use std::collections::VecDeque;
use std::fmt;
use std::fmt::Write as _;

use anabranch_demo::{Connection, Endpoint};
use anabranch_pipeline::ports::SourceConnector;
use anabranch_schemas::lsn::Lsn;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::Scale;
use crate::site::{DATABASES, SOURCE, Site, TABLES};

const LARGE: u64 = 100;
/// One change in ten is a transaction of its own.
const SMALL_SHARE: u64 = 10;
/// Statements a packet: round trips are not what is measured.
const PACKET_STATEMENTS: usize = 100;

/// A binlog file from its beginning to `end`.
#[derive(Debug, Clone)]
pub struct Data {
    pub rows: u64,
    pub transactions: u64,
    pub file: String,
    pub end: u64,
    pub end_lsn: Lsn,
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, transactions, megabytes) = (self.rows, self.transactions, self.end / 1_000_000);
        write!(f, "binlog: {rows} row changes in {transactions} transactions, {megabytes} MB, 40 tables")
    }
}

/// Writes the changes and makes the servers durable again.
pub async fn write(site: &Site<'_>, scale: &Scale) -> Data {
    eprintln!("writing {} row changes, seed {}", scale.rows, scale.seed);
    // The writing itself is not measured.
    site.source("SET GLOBAL sync_binlog = 0; SET GLOBAL innodb_flush_log_at_trx_commit = 0; RESET MASTER")
        .await;
    let endpoint = Endpoint::admin(site.installation.stack(), SOURCE).expect("a server of the stack");
    let rows = scale.rows / u64::from(DATABASES);
    let mut writers = Vec::new();
    for database in 0..DATABASES {
        let connection = endpoint.connect(&[]).await.expect("it answers");
        let writer = Writer::new(database, scale.seed, rows);
        writers.push(tokio::spawn(writer.run(connection)));
    }
    let mut transactions = 0;
    for writer in writers {
        transactions += writer.await.expect("the statements are right");
    }
    site.source("SET GLOBAL sync_binlog = 1; SET GLOBAL innodb_flush_log_at_trx_commit = 1").await;
    let mut admin = site.installation.admin(SOURCE).await;
    let status: Option<(String, u64, String, String)> =
        admin.first("look at the binlog", "SHOW MASTER STATUS").await.expect("it answers");
    let (file, end, _, _) = status.expect("the binlog is on");
    let end_lsn = site.connector(&site.source_config()).head().await.expect("it answers");
    assert!(file.ends_with("000001"), "the scan reads one file: {file}");
    Data { rows: rows * u64::from(DATABASES), transactions, file, end, end_lsn }
}

/// Users of one table: numbers from the oldest that was not deleted to the next that will be made.
type Range = (u64, u64);

struct Writer {
    database: u32,
    random: StdRng,
    ranges: Vec<Range>,
    sizes: VecDeque<u64>,
}

impl Writer {
    fn new(database: u32, seed: u64, rows: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed.wrapping_mul(1_000).wrapping_add(u64::from(database)));
        let small = rows / SMALL_SHARE;
        let large = (rows - small) / LARGE;
        let small = rows - large * LARGE;
        let (mut small_left, mut large_left) = (small, large);
        let mut sizes = VecDeque::new();
        while small_left + large_left > 0 {
            let is_small = random.random_range(0..small_left + large_left) < small_left;
            sizes.push_back(if is_small { 1 } else { LARGE });
            *(if is_small { &mut small_left } else { &mut large_left }) -= 1;
        }
        Self { database, random, ranges: vec![(0, 0); TABLES as usize], sizes }
    }

    async fn run(mut self, mut connection: Connection) -> u64 {
        let transactions = self.sizes.len() as u64;
        while !self.sizes.is_empty() {
            let mut packet = String::new();
            for size in self.sizes.drain(..self.sizes.len().min(PACKET_STATEMENTS)).collect::<Vec<_>>() {
                self.statement(size, &mut packet);
            }
            connection.execute("write users", packet).await.expect("the statements are right");
        }
        transactions
    }

    fn statement(&mut self, size: u64, sql: &mut String) {
        let table = self.random.random_range(0..TABLES);
        let (low, high) = self.ranges[table as usize];
        let kind = self.random.random_range(0..100);
        let name = format!("user_{:02}.user_{table:03}", self.database);
        // So that numbers of two tables differ and lie together in each.
        let base = (u64::from(self.database * TABLES + table) + 1) * 1_000_000_000;
        // Enough users must be left for the largest statement.
        let has_users = high - low > 2 * LARGE;
        if kind < 55 || !has_users {
            let (first, last) = (base + high, base + high + size - 1);
            write!(
                sql,
                "INSERT INTO {name} (user_id, user_name, birthday, phone, address, lunar_birthday, birthday_type) \
                 SELECT seq, CONCAT('user-', seq), DATE '1950-01-01' + INTERVAL (seq * 7919 % 20000) DAY, \
                 CONCAT('1380', seq % 10000000), CONCAT('No. ', seq % 500, ' Zhongshan Road, Nanjing'), '08-15', 'solar' \
                 FROM user_{:02}.seq_{first}_to_{last};",
                self.database
            )
            .expect("writing to a String cannot fail");
            self.ranges[table as usize].1 += size;
        } else if kind < 88 {
            let first = base + self.random.random_range(low..high - size);
            let last = first + size - 1;
            let days = self.random.random_range(1..300);
            write!(sql, "UPDATE {name} SET birthday = birthday + INTERVAL {days} DAY WHERE user_id BETWEEN {first} AND {last};")
                .expect("writing to a String cannot fail");
        } else {
            let (first, last) = (base + low, base + low + size - 1);
            write!(sql, "DELETE FROM {name} WHERE user_id BETWEEN {first} AND {last};")
                .expect("writing to a String cannot fail");
            self.ranges[table as usize].0 += size;
        }
    }
}
