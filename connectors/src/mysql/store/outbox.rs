//! The outbox of mapping tables: as SQL in each flush, and as a port for the drain.
//!
//! A flush adds the values that it touches as rows of up to [`ROW_BYTES`]. The values of a withdrawal are not known
//! beforehand, so the server packs those that it is about to remove.

use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{CacheRecord, OUTBOX_RETENTION, Outbox, OutboxBacklog, OutboxRow};
use anabranch_pipeline::records::{Cell, OrderedMutation};
use anabranch_schemas::serial::{STORED_BYTES_MAX, StoredCode};
use mysql_async::Row;

use super::MysqlTarget;
use super::progress::literal;
use crate::mysql::connection::{push_bytes, quote_table};
use crate::mysql::pool::Pool;

pub(super) const OUTBOX_TABLE: &str = "outbox";
pub(super) const CACHE_TABLE: &str = "cache";
/// Bytes of one row's values: some ten thousand codes.
const ROW_BYTES: usize = 256 * 1024;
/// Values in a row that the server packs: [`PACKED_BYTES_MAX`] bytes at most.
const WITHDRAWN_CODES: usize = 1000;
/// Bytes that the server must be allowed to pack into one text; it would cut a longer one.
pub(super) const PACKED_BYTES_MAX: usize = WITHDRAWN_CODES * (STORED_BYTES_MAX + 1);
/// Rows removed by one statement, so that no lock is held for long.
const FORGOTTEN_ROWS: usize = 10_000;

/// The outbox into which the flushes of one projection write touched values.
#[derive(Debug, Clone)]
pub(super) struct OutboxText {
    table: String,
    projection: String,
}

impl OutboxText {
    pub(super) fn new(target: &MysqlTarget, projection: &str) -> Self {
        let table = quote_table(&target.0.control_database, OUTBOX_TABLE);
        Self { table, projection: literal(projection) }
    }

    /// Returns the statement that stores the values of the rows that `condition` finds in a mapping table.
    pub(super) fn withdrawn(&self, mapping_table: &str, condition: &str) -> String {
        let Self { table, projection } = self;
        format!(
            "INSERT INTO {table} (`projection`, `codes`, `written_at`) \
             SELECT {projection}, GROUP_CONCAT(`code` SEPARATOR ''), UTC_TIMESTAMP(6) FROM \
             (SELECT CONCAT(CHAR(LENGTH(`value`)), `value`) AS `code`, \
             FLOOR((ROW_NUMBER() OVER (ORDER BY `value`) - 1) / {WITHDRAWN_CODES}) AS `pack` \
             FROM {mapping_table} WHERE {condition} AND `value` <> '' GROUP BY `value`) AS `withdrawn` GROUP BY `pack`"
        )
    }

    /// Returns the statements that store the values of these mutations.
    pub(super) fn touched(&self, mutations: &[OrderedMutation<'_>]) -> Vec<String> {
        let mut rows = vec![Vec::new()];
        let mut before: Option<&[u8]> = None;
        for mutation in mutations {
            let Some(Cell::Bytes(value)) = mutation.key.first() else { continue };
            // An empty value is a manual write: no lookup asks for it, and a row of the outbox cannot hold it.
            if value.is_empty() {
                continue;
            }
            // Mutations come in the order of table and shard: most repetitions are adjacent, the others are harmless.
            if before.replace(value) == Some(&**value) {
                continue;
            }
            if rows.last().is_some_and(|row: &Vec<u8>| row.len() + value.len() >= ROW_BYTES) {
                rows.push(Vec::new());
            }
            let row = rows.last_mut().expect("there is always one");
            row.push(u8::try_from(value.len()).expect("a stored value has at most 255 bytes"));
            row.extend_from_slice(value);
        }
        rows.retain(|row| !row.is_empty());
        rows.iter().map(|row| self.insert(row)).collect()
    }

    fn insert(&self, codes: &[u8]) -> String {
        let Self { table, projection } = self;
        let mut sql =
            format!("INSERT INTO {table} (`projection`, `codes`, `written_at`) VALUES ({projection}, ");
        push_bytes(&mut sql, codes);
        sql.push_str(", UTC_TIMESTAMP(6))");
        sql
    }
}

/// Parses the values of a row; `None` when no flush wrote it.
fn codes(mut bytes: &[u8]) -> Option<Vec<StoredCode>> {
    let mut codes = Vec::new();
    while let [length, rest @ ..] = bytes {
        let (value, tail) = rest.split_at_checked(usize::from(*length))?;
        codes.push(StoredCode::from_stored(value)?);
        bytes = tail;
    }
    Some(codes)
}

const _: () = assert!(STORED_BYTES_MAX <= u8::MAX as usize, "a value's length is one byte");

/// The outbox of one projection on one target.
#[derive(Debug, Clone)]
pub struct MysqlOutbox {
    target: MysqlTarget,
    pool: Pool,
    outbox: String,
    cache: String,
    projection: String,
}

impl MysqlOutbox {
    pub(super) fn new(target: &MysqlTarget, projection: &str) -> Self {
        let control = &target.0.control_database;
        Self {
            target: target.clone(),
            // One connection: statements run one after another.
            pool: target.pool(1).shown(target.name(), "outbox"),
            outbox: quote_table(control, OUTBOX_TABLE),
            cache: quote_table(control, CACHE_TABLE),
            projection: literal(projection),
        }
    }

    async fn run(&self, sql: String) -> Result<(), Fault> {
        self.pool.rows(sql).await.map(drop)
    }

    fn odd(&self, found: &str) -> Fault {
        Fault::new(Code::TargetTableShape, format!("{}, table {}", self.target.subject(), self.outbox), found)
            .needs("rows that lanes wrote")
            .remedy(format!(
                "DELETE FROM {}; then DELETE FROM {}: the cache is emptied",
                self.outbox, self.cache
            ))
    }
}

impl Outbox for MysqlOutbox {
    async fn pending(&self, rows: usize) -> Result<Vec<OutboxRow>, Fault> {
        let Self { outbox, projection, .. } = self;
        let sql = format!(
            "SELECT `id`, `codes` FROM {outbox} WHERE `projection` = {projection} AND `drained_at` IS NULL \
             ORDER BY `id` LIMIT {rows}"
        );
        let row = |row: Row| {
            let (id, bytes): (u64, Vec<u8>) =
                mysql_async::from_row_opt(row).map_err(|_| self.odd("a row has columns of other types"))?;
            let codes = codes(&bytes).ok_or_else(|| self.odd("a row whose codes cannot be read"))?;
            Ok(OutboxRow { id, codes })
        };
        self.pool.rows(sql).await?.into_iter().map(row).collect()
    }

    fn touched(&self) -> impl Future<Output = ()> + Send {
        self.target.0.touched.notified()
    }

    async fn drained(&self, ids: &[u64], incarnation: &str) -> Result<(), Fault> {
        let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
        let Self { outbox, cache, projection, .. } = self;
        let (ids, incarnation) = (ids.join(","), literal(incarnation));
        // The lock keeps another round from beginning between the check and the change.
        self.run(format!(
            "UPDATE {outbox} SET `drained_at` = UTC_TIMESTAMP(6) WHERE `id` IN ({ids}) AND EXISTS (SELECT 1 FROM {cache} \
             WHERE `projection` = {projection} AND `incarnation` = {incarnation} LOCK IN SHARE MODE)"
        ))
        .await
    }

    async fn repeat(&self) -> Result<(), Fault> {
        let Self { outbox, projection, .. } = self;
        self.run(format!(
            "UPDATE {outbox} SET `drained_at` = NULL WHERE `projection` = {projection} AND `drained_at` IS NOT NULL"
        ))
        .await
    }

    async fn forget(&self) -> Result<(), Fault> {
        let Self { outbox, projection, .. } = self;
        self.run(format!(
            "DELETE FROM {outbox} WHERE `projection` = {projection} \
             AND `drained_at` < UTC_TIMESTAMP(6) - INTERVAL {} SECOND LIMIT {FORGOTTEN_ROWS}",
            OUTBOX_RETENTION.as_secs()
        ))
        .await
    }

    async fn record(&self) -> Result<Option<CacheRecord>, Fault> {
        let Self { cache, projection, .. } = self;
        let sql =
            format!("SELECT `incarnation`, `time_to_live_ms` FROM {cache} WHERE `projection` = {projection}");
        let Some(row) = self.pool.rows(sql).await?.into_iter().next() else { return Ok(None) };
        let (incarnation, time_to_live): (String, u64) =
            mysql_async::from_row_opt(row).map_err(|_| self.odd("a record of other types"))?;
        Ok(Some(CacheRecord { incarnation, time_to_live: Duration::from_millis(time_to_live) }))
    }

    async fn begin(&self, before: Option<&str>, record: &CacheRecord) -> Result<(), Fault> {
        let Some(before) = before else {
            let Self { cache, projection, .. } = self;
            let (incarnation, time_to_live) = (literal(&record.incarnation), record.time_to_live.as_millis());
            let insert = format!(
                "INSERT INTO {cache} (`projection`, `incarnation`, `time_to_live_ms`) \
                 VALUES ({projection}, {incarnation}, {time_to_live}) \
                 ON DUPLICATE KEY UPDATE `incarnation` = {cache}.`incarnation`"
            );
            return self.run(insert).await;
        };
        self.settle(before, &record.incarnation).await
    }

    async fn settle(&self, round: &str, incarnation: &str) -> Result<(), Fault> {
        let Self { cache, projection, .. } = self;
        let (round, incarnation) = (literal(round), literal(incarnation));
        self.run(format!(
            "UPDATE {cache} SET `incarnation` = {incarnation} \
             WHERE `projection` = {projection} AND `incarnation` = {round}"
        ))
        .await
    }

    async fn set_time_to_live(&self, time_to_live: Duration) -> Result<(), Fault> {
        let Self { cache, projection, .. } = self;
        let time_to_live = time_to_live.as_millis();
        self.run(format!(
            "UPDATE {cache} SET `time_to_live_ms` = {time_to_live} WHERE `projection` = {projection}"
        ))
        .await
    }

    async fn backlog(&self) -> Result<Option<OutboxBacklog>, Fault> {
        let Self { outbox, projection, .. } = self;
        // A row may be some microseconds ahead without a set clock: the statement has its time before its snapshot.
        let sql = format!(
            "SELECT `id`, (SELECT MAX(`id`) FROM {outbox}), \
             ABS(TIMESTAMPDIFF(MICROSECOND, `written_at`, UTC_TIMESTAMP(6))) FROM {outbox} \
             WHERE `projection` = {projection} AND `drained_at` IS NULL ORDER BY `id` LIMIT 1"
        );
        let Some(row) = self.pool.rows(sql).await?.into_iter().next() else { return Ok(None) };
        let (oldest, newest, age): (u64, u64, u64) =
            mysql_async::from_row_opt(row).map_err(|_| self.odd("a row has columns of other types"))?;
        Ok(Some(OutboxBacklog { oldest, newest, age: Duration::from_micros(age) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_as_they_are_written() {
        let text = OutboxText { table: "`t`".into(), projection: "'p'".into() };
        assert_eq!(
            text.insert(b"\x01a\x02bc"),
            "INSERT INTO `t` (`projection`, `codes`, `written_at`) VALUES ('p', x'0161026263', UTC_TIMESTAMP(6))"
        );
        let exact = |code: &[u8]| StoredCode::exact(code).unwrap();
        assert_eq!(codes(b"\x01a\x02bc"), Some(vec![exact(b"a"), exact(b"bc")]));
        assert_eq!(codes(b""), Some(vec![]));
        assert_eq!((codes(b"\x02a"), codes(b"\x00")), (None, None));
    }
}
