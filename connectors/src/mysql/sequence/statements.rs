//! The SQL of counters and request keys. From callers it takes only numbers, dates and digests.

use anabranch_pipeline::config::FluxIdentifierConfig;
use anabranch_pipeline::records::{DAYS_AFTER_MAX, DAYS_BEFORE_MAX, GivenOnce, RangeRequest, RequestKey};
use anabranch_schemas::flux::counter::{Counter, SLOTS};
use anabranch_schemas::flux::id::{SEQUENCES, Side};
use anabranch_schemas::flux::table::PARTITIONS;
use jiff::civil::{Date, date};

use super::date_literal;
use crate::mysql::connection::{push_bytes, quote_table};

/// The date of a row that no day has taken yet.
pub(super) const UNUSED: Date = date(1000, 1, 1);
/// Keys that one sweep examines.
const SWEPT: u32 = 500;

/// Names of the tables, and settings that the statements use.
#[derive(Debug)]
pub(super) struct Statements {
    region: u8,
    /// Tables of counters by user partition, quoted.
    counters: Vec<String>,
    requests: String,
    keys_max: u64,
    keys_kept_seconds: u64,
}

/// Returns the table of a user partition's counters.
pub(super) fn counter_table(partition: u32) -> String {
    format!("flux_sequence_{partition:02}")
}

pub(super) const REQUEST_TABLE: &str = "flux_request";

/// Returns the expression for a server's name: each server of MySQL has a uuid, those of MariaDB a number.
pub(super) fn name(version: &str) -> &'static str {
    match version.contains("MariaDB") {
        true => "CONCAT('mariadb:', @@GLOBAL.server_id)",
        false => "CONCAT('mysql:', @@server_uuid)",
    }
}

/// Selects the server's name and its own date.
pub(super) fn server(name: &str) -> String {
    format!("SELECT {name}, UTC_DATE()")
}

/// The condition under which an answered commit survives a power cut. MariaDB waits for its disk with 3 as well.
const DURABLE: &str = "@@innodb_flush_log_at_trx_commit IN (1, 3) AND (@@log_bin = 0 OR @@sync_binlog = 1)";

/// Selects the setting that breaks this condition, with its value; no row if none does.
pub(super) fn volatile_setting() -> String {
    format!(
        "SELECT IF(@@innodb_flush_log_at_trx_commit IN (1, 3), CONCAT('sync_binlog = ', @@sync_binlog), \
         CONCAT('innodb_flush_log_at_trx_commit = ', @@innodb_flush_log_at_trx_commit)) FROM DUAL WHERE NOT ({DURABLE})"
    )
}

pub(super) fn side(digit: u8) -> Option<Side> {
    match digit {
        0 => Some(Side::Main),
        1 => Some(Side::FailOver),
        _ => None,
    }
}

impl Statements {
    pub(super) fn of(config: &FluxIdentifierConfig) -> Self {
        let quoted = |partition| quote_table(&config.database, &counter_table(partition));
        Self {
            region: config.region.digit(),
            counters: (0..PARTITIONS).map(quoted).collect(),
            requests: quote_table(&config.database, REQUEST_TABLE),
            keys_max: config.request_keys_max.get(),
            keys_kept_seconds: config.request_keys_kept.as_secs(),
        }
    }

    fn table(&self, counter: &Counter) -> &str {
        &self.counters[usize::from(counter.ring.partition())]
    }

    /// Returns the condition for the row of a counter, whichever day it counts for.
    fn row(counter: &Counter) -> String {
        let (ring, slot) = (counter.ring, counter.slot());
        format!("`region` = {} AND `side` = {} AND `slot` = {slot}", ring.region(), ring.side())
    }

    /// The UPDATE allots; the SELECT returns the number of changed rows and the first number + 1. In the first
    /// assignment the columns have their old values.
    pub(super) fn next_range(&self, request: &RangeRequest, name: &str) -> String {
        let RangeRequest { counter, server, known, least, wanted } = request;
        let (table, row, day) = (self.table(counter), Self::row(counter), date_literal(counter.date));
        let next = format!("IF(`date` = {day}, `next`, 0)");
        let mut sql = format!(
            "UPDATE {table} SET `next` = LEAST(LAST_INSERT_ID({next} + 1) - 1 + {wanted}, {SEQUENCES}), \
             `date` = {day} WHERE {row} AND `date` <= {day} AND {next} >= {known} AND {next} + {least} <= {SEQUENCES} \
             AND DATEDIFF({day}, UTC_DATE()) BETWEEN -{DAYS_BEFORE_MAX} AND {DAYS_AFTER_MAX} AND {DURABLE} \
             AND {name} = "
        );
        push_bytes(&mut sql, server.as_bytes());
        sql.push_str("; SELECT ROW_COUNT(), LAST_INSERT_ID()");
        sql
    }

    /// Selects the server and the row of a counter.
    pub(super) fn read_counter(&self, counter: &Counter, name: &str) -> String {
        let (table, row) = (self.table(counter), Self::row(counter));
        format!("{}; SELECT `date`, `next` FROM {table} WHERE {row}", server(name))
    }

    pub(super) fn given(&self, key: &RequestKey) -> String {
        let mut sql =
            format!("SELECT `first_identifier`, `count` FROM {} WHERE `request_key` = ", self.requests);
        push_bytes(&mut sql, key.bytes());
        sql
    }

    /// Stores a key unless it exists, if there is room, and selects the stored one.
    pub(super) fn remember(&self, key: &RequestKey, given: &GivenOnce) -> String {
        let (table, max) = (&self.requests, self.keys_max);
        let mut sql = format!(
            "INSERT IGNORE INTO {table} (`request_key`, `first_identifier`, `count`, `asked_at`) SELECT "
        );
        push_bytes(&mut sql, key.bytes());
        sql.push_str(&format!(
            ", '{}', {}, UTC_TIMESTAMP(6) FROM DUAL WHERE ({}) < {max}; {}",
            given.first,
            given.count,
            self.kept(),
            self.given(key)
        ));
        sql
    }

    /// Selects an upper limit of the number of keys: an insert of an existing key takes a number too.
    fn kept(&self) -> String {
        format!("SELECT COALESCE(MAX(`number`) - MIN(`number`) + 1, 0) FROM {} AS `kept`", self.requests)
    }

    /// Removes some of the oldest keys, if they are old enough.
    pub(super) fn sweep(&self) -> String {
        let (table, seconds) = (&self.requests, self.keys_kept_seconds);
        format!(
            "SET @oldest = (SELECT MIN(`number`) FROM {table}); DELETE FROM {table} WHERE `number` BETWEEN @oldest AND \
             @oldest + {} AND `asked_at` < UTC_TIMESTAMP(6) - INTERVAL {seconds} SECOND",
            SWEPT - 1
        )
    }

    /// Selects every counter of the region, and the number of keys.
    pub(super) fn status(&self) -> String {
        let region = self.region;
        let of_table = |(partition, table): (usize, &String)| {
            format!("SELECT {partition}, `side`, `date`, `next` FROM {table} WHERE `region` = {region}")
        };
        let tables: Vec<String> = self.counters.iter().enumerate().map(of_table).collect();
        format!("{}; {}", tables.join(" UNION ALL "), self.kept())
    }

    /// Selects the number of existing counters; set-up creates [`Self::rows_needed`].
    pub(super) fn rows(&self) -> String {
        let region = self.region;
        let of_table =
            |table: &String| format!("SELECT COUNT(*) AS `rows` FROM {table} WHERE `region` = {region}");
        let tables: Vec<String> = self.counters.iter().map(of_table).collect();
        format!("SELECT SUM(`rows`) FROM ({}) AS `counted`", tables.join(" UNION ALL "))
    }

    /// Returns the number of rows that [`Self::rows`] should count.
    pub(super) fn rows_needed() -> u32 {
        PARTITIONS * 2 * u32::from(SLOTS)
    }

    /// Raises counters, in one transaction for each table.
    pub(super) fn raise(&self, numbers: &[(Counter, u32)]) -> Vec<String> {
        let of_table = |table: &String| {
            let own = numbers.iter().filter(|(counter, _)| self.table(counter) == table);
            let updates: Vec<String> = own.map(|(counter, number)| raise(table, counter, *number)).collect();
            (!updates.is_empty()).then(|| format!("START TRANSACTION; {}; COMMIT", updates.join("; ")))
        };
        self.counters.iter().filter_map(of_table).collect()
    }

    /// Inserts the region's missing rows.
    pub(super) fn fill(&self) -> String {
        let (region, unused) = (self.region, date_literal(UNUSED));
        let row = |side, slot| format!("({region}, {side}, {slot}, {unused}, 0)");
        let rows: Vec<String> = (0..2).flat_map(|side| (0..SLOTS).map(move |slot| row(side, slot))).collect();
        let of_table = |table: &String| {
            format!(
                "INSERT IGNORE INTO {table} (`region`, `side`, `slot`, `date`, `next`) VALUES {}",
                rows.join(", ")
            )
        };
        self.counters.iter().map(of_table).collect::<Vec<_>>().join("; ")
    }

    /// Returns statements that need every privilege of the daemon, and touch no row.
    pub(super) fn probes(&self) -> Vec<(&'static str, String)> {
        let requests = &self.requests;
        let columns = "`request_key`, `first_identifier`, `count`, `asked_at`";
        let counters = self.counters.iter();
        let mut probes: Vec<(&'static str, String)> = counters
            .map(|table| ("SELECT, UPDATE", format!("UPDATE {table} SET `next` = `next` WHERE FALSE")))
            .collect();
        probes.push((
            "SELECT, INSERT, DELETE",
            format!(
                "INSERT IGNORE INTO {requests} ({columns}) SELECT {columns} FROM {requests} AS `nothing` WHERE FALSE; \
                 DELETE FROM {requests} WHERE FALSE"
            ),
        ));
        probes
    }
}

fn raise(table: &str, counter: &Counter, number: u32) -> String {
    let (row, day) = (Statements::row(counter), date_literal(counter.date));
    format!(
        "UPDATE {table} SET `next` = GREATEST(IF(`date` = {day}, `next`, 0), {number}), `date` = {day} WHERE {row} \
         AND `date` <= {day}"
    )
}
