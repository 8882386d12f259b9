//! Derived rows of unknown shards: finds them between the known shards, and removes them while they are the ones that
//! were read.
//!
//! Rows of a shard are adjacent, so the gaps between known shards are ranges of an index, and no other row is read.
//! Rows of retired source tables are no foreign ones. A row that a lane has written since has another version, and
//! stays. The same transaction stores the values of removed mapping rows in the outbox, as a lane's flush does.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::time::Duration;

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::{ForeignRow, ForeignRows};
use anabranch_pipeline::records::{CellRef, ScanCursor};
use anabranch_schemas::shard::ShardId;
use mysql_async::prelude::Queryable;
use mysql_async::{Row, TxOpts};

use super::cells::push_cell;
use super::outbox::{CACHE_TABLE, OutboxText, PACKED_BYTES_MAX};
use super::progress::literal;
use super::rows::{MysqlRows, Part, cells, without_expression};
use crate::mysql::connection::{quote_identifier, quote_table};
use crate::scan_cursor;

/// Limit of a transaction of few rows, which may wait for a lane's.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Rows in a transaction: the server weighs each condition as a range, and a lane waits for its locks.
const STATEMENT_ROWS: usize = 60;

impl ForeignRows for MysqlRows {
    async fn foreign(
        &self,
        table: u32,
        known: &BTreeSet<ShardId>,
        after: Option<&ScanCursor>,
        limit: NonZeroUsize,
    ) -> Result<(Vec<ForeignRow>, Option<ScanCursor>), Fault> {
        let derived = self.table(table)?;
        let keys = derived.shape.key_columns.len();
        let mut after = self.place(derived, after)?;
        let retired = self.retired_expression(table).await?;
        let (mut rows, mut read, mut last_read): (Vec<ForeignRow>, usize, _) = (Vec::new(), 0, None);
        for (first, last) in gaps(known) {
            if after.as_ref().is_some_and(|(shard, _)| last.is_some_and(|last| last < *shard)) {
                continue;
            }
            let after = after.take().filter(|(shard, _)| *shard >= first);
            let part = Part { first, last, after };
            let sql = self.part_sql(derived, &["lsn"], retired.as_deref(), part, limit.get() - read);
            let take = |row: &Row| {
                let mut note = |shard, key: &[CellRef<'_>], values: &[CellRef<'_>]| {
                    let (values, is_retired) = without_expression(values, retired.is_some());
                    let [CellRef::UInt(lsn)] = values else { return None };
                    read += 1;
                    last_read = Some(scan_cursor::after_row(shard, key));
                    if is_retired {
                        return Some(());
                    }
                    let key = key.iter().map(|cell| CellRef::to_owned(*cell)).collect();
                    let (owner, version) = (ShardId::from_u64(shard), (*lsn, 0));
                    rows.push(ForeignRow { table, shard: Some(shard), owner, key, version });
                    Some(())
                };
                let mut is_noted = None;
                cells(row, 0, keys, &mut |shard, key, values| is_noted = note(shard, key, values))?;
                is_noted
            };
            self.read(sql, take).await?.map_err(|()| self.odd(derived))?;
            if read == limit.get() {
                return Ok((rows, last_read));
            }
        }
        Ok((rows, None))
    }

    async fn remove(&self, rows: &[ForeignRow]) -> Result<u64, Fault> {
        let mut removed = 0;
        for rows in rows.chunks(STATEMENT_ROWS) {
            removed += self.remove_some(rows).await?;
        }
        if self.assignment.is_cached && removed > 0 {
            self.target.0.touched.notify_waiters();
        }
        Ok(removed)
    }
}

impl MysqlRows {
    async fn remove_some(&self, rows: &[ForeignRow]) -> Result<u64, Fault> {
        let derived = self.table(rows[0].table)?;
        let table = quote_table(&derived.database, &derived.table);
        let condition = condition(derived.shape.key_columns, rows);
        let notes = self.notes(&table, &condition);
        let mut connection = self.pool.connection().await?;
        let work = async {
            // A transaction that is dropped before its end is rolled back.
            let mut transaction = connection.start_transaction(TxOpts::default()).await?;
            for note in notes {
                transaction.query_drop(note).await?;
            }
            transaction.query_drop(format!("DELETE FROM {table} WHERE {condition}")).await?;
            let removed = transaction.affected_rows();
            transaction.commit().await?;
            Ok(removed)
        };
        self.pool.within(TIMEOUT, work).await
    }

    /// Returns the statements that report the removal of mapping rows to their cache.
    fn notes(&self, table: &str, condition: &str) -> Vec<String> {
        let (target, projection) = (&self.target, &self.assignment.name);
        if self.assignment.is_cached {
            return vec![
                format!("SET SESSION group_concat_max_len = {PACKED_BYTES_MAX}"),
                OutboxText::new(target, projection).withdrawn(table, condition),
            ];
        }
        if self.assignment.projection.is_cached() {
            let cache = quote_table(&target.0.control_database, CACHE_TABLE);
            return vec![format!("DELETE FROM {cache} WHERE `projection` = {}", literal(projection))];
        }
        Vec::new()
    }
}

/// Returns the ranges between the known shards, in order; the last one has no end.
fn gaps(known: &BTreeSet<ShardId>) -> Vec<(u64, Option<u64>)> {
    let (mut gaps, mut first) = (Vec::new(), 0);
    for shard in known.iter().map(|shard| shard.as_u64()) {
        if first < shard {
            gaps.push((first, Some(shard - 1)));
        }
        first = shard + 1;
    }
    gaps.push((first, None));
    gaps
}

/// Returns the condition, in brackets, for these rows as they were read.
fn condition(key_columns: &[&str], rows: &[ForeignRow]) -> String {
    let of_row = |row: &ForeignRow| {
        let mut sql = format!("(`shard_id` = {}", row.shard.unwrap_or_default());
        for (column, cell) in key_columns.iter().zip(&row.key) {
            sql.push_str(&format!(" AND {} = ", quote_identifier(column)));
            push_cell(&mut sql, cell);
        }
        sql + &format!(" AND `lsn` = {})", row.version.0)
    };
    let rows: Vec<String> = rows.iter().map(of_row).collect();
    format!("({})", rows.join(" OR "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_all_that_is_beside_the_known_shards() {
        let known = |shards: &[u64]| shards.iter().map(|shard| ShardId::from_u64(*shard).unwrap()).collect();
        assert_eq!(gaps(&known(&[])), [(0, None)]);
        assert_eq!(gaps(&known(&[0, 1, 7])), [(2, Some(6)), (8, None)]);
        assert_eq!(gaps(&known(&[u64::MAX >> 1])), [(0, Some((u64::MAX >> 1) - 1)), (1 << 63, None)]);
    }
}
