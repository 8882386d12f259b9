//! Reads derived rows, for their comparison with the source.
//!
//! Every page is one statement over the index in which the rows of a shard are adjacent. No other part of the table is
//! read, no read view outlives the statement, nothing is locked. The index covers the selected columns, except those of
//! the relation index of payment documents: there each row costs a look-up in the primary key too. Rows are visited as
//! they arrive, without a copy. The connections are the reader's own, so lookups and lanes never wait for it.

use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{DerivedRowQuery, DerivedRows, ShardPage};
use anabranch_pipeline::projections::Assignment;
use anabranch_pipeline::records::{Cell, CellRef, Claimed, DerivedRow, DerivedTable, ScanCursor, Stray};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use mysql_async::prelude::Queryable;
use mysql_async::{Row, Value};
use tokio::time::Instant;

use super::MysqlTarget;
use super::cells::push_cell;
use super::select::{Select, push_condition};
use crate::mysql::connection::quote_identifier;
use crate::mysql::keyset::after_key;
use crate::mysql::pool::Pool;
use crate::scan_cursor;

/// Visitor of a row's shard, key and values.
pub(super) type Visit<'v> = dyn FnMut(u64, &[CellRef<'_>], &[CellRef<'_>]) + 'v;
/// Address of a row in a derived table: shard and key.
type RowAddress = (u64, Box<[Cell]>);

/// Limit of a page of a table that is not in memory, on a busy server.
pub(super) const TIMEOUT: Duration = Duration::from_secs(120);
/// Keys in a statement: the server weighs each as a range, and its text stays small.
const STATEMENT_KEYS: usize = 200;
/// Statements of a page of a shard's rows, at most; the lane waits for them.
const SHARD_STATEMENTS: usize = 32;
/// Time after which such a page has no further statement. So a page takes that and one statement's limit at most.
const SHARD_PAGE: Duration = Duration::from_millis(50);
/// Rows of a statement for such a page whose index does not cover the columns: each may cost a read of its own.
const UNCOVERED_ROWS: usize = 500;
/// Columns of the widest derived table without the shard.
const CELLS_MAX: usize = 8;

/// The derived tables of one projection on one target. Clones share the connections.
#[derive(Debug, Clone)]
pub struct MysqlRows {
    pub(super) target: MysqlTarget,
    pub(super) assignment: Arc<Assignment>,
    pub(super) pool: Pool,
    /// Set once a call has seen that the target has the table of retired source tables.
    pub(super) has_retired: Arc<OnceLock<()>>,
}

/// A part of a table's rows, in the order of shards.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) first: u64,
    /// `None` = to the end, shards that no lane writes included.
    pub(super) last: Option<u64>,
    /// The part begins after this row.
    pub(super) after: Option<(u64, Box<[Cell]>)>,
}

impl MysqlRows {
    pub(super) fn new(target: MysqlTarget, assignment: Arc<Assignment>, pool: Pool) -> Self {
        Self { target, assignment, pool, has_retired: Arc::default() }
    }

    pub(super) fn table(&self, table: u32) -> Result<&DerivedTable, Fault> {
        let known = self.assignment.projection.tables().get(table as usize);
        let known = known.filter(|known| known.target == self.assignment.target);
        known
            .map(|known| &known.derived)
            .ok_or_else(|| self.fault(Code::Internal, "the number of a table that is not on this target"))
    }

    fn fault(&self, code: Code, found: impl Into<String>) -> Fault {
        let subject = format!("{}, projection {}", self.target.subject(), self.assignment.name);
        Fault::new(code, subject, found)
    }

    pub(super) fn odd(&self, table: &DerivedTable) -> Fault {
        let subject = format!("{}, table {}.{}", self.target.subject(), table.database, table.table);
        Fault::new(Code::TargetTableShape, subject, "a row with columns of other types")
            .needs("the columns that set-up makes")
    }

    /// Parses the position that a page of this table returned.
    pub(super) fn place(
        &self,
        table: &DerivedTable,
        after: Option<&ScanCursor>,
    ) -> Result<Option<RowAddress>, Fault> {
        let read = |after| {
            let place =
                scan_cursor::decode(after).filter(|(_, key)| key.len() == table.shape.key_columns.len());
            place.ok_or_else(|| self.fault(Code::Internal, "a position that is not one of its tables"))
        };
        after.map(read).transpose()
    }

    /// Selects at most `limit` rows of a part, with these columns and the expression after the key, by the index of its
    /// shards.
    pub(super) fn part_sql(
        &self,
        table: &DerivedTable,
        values: &[&str],
        expression: Option<&str>,
        part: Part,
        limit: usize,
    ) -> String {
        let Part { first, last, after } = part;
        let index = Some(table.shape.shard_index);
        let key =
            table.shape.shard_order.iter().map(|place| quote_identifier(table.shape.key_columns[*place]));
        let order: Vec<String> = std::iter::once("`shard_id`".to_owned()).chain(key).collect();
        let mut sql = String::new();
        Select { number: None, table, columns: values, expression, index }.push(&mut sql);
        match after {
            None => sql.push_str(&format!("`shard_id` >= {first}")),
            Some((shard, key)) => {
                let values = table.shape.shard_order.iter().map(|place| {
                    let mut literal = String::new();
                    push_cell(&mut literal, &key[*place]);
                    literal
                });
                let values: Vec<String> = std::iter::once(shard.to_string()).chain(values).collect();
                sql.push_str(&after_key(&order, &values));
            }
        }
        if let Some(last) = last {
            sql.push_str(&format!(" AND `shard_id` <= {last}"));
        }
        sql + &format!(" ORDER BY {} LIMIT {limit}", order.join(","))
    }

    /// Selects the rows of these keys, each with its table's number in front. `sought` is sorted. `columns` follow the
    /// key; `None` = the value columns of each table, without rows of retired source tables.
    async fn rows_sql(&self, sought: &[DerivedRowQuery], columns: Option<&[&str]>) -> Result<String, Fault> {
        let mut sql = String::new();
        for of_table in sought.chunk_by(|one, next| one.table == next.table) {
            let table = self.table(of_table[0].table)?;
            sql.push_str(if sql.is_empty() { "" } else { " UNION ALL " });
            let (is_of_values, index) = (columns.is_none(), Some(table.shape.shard_index));
            let columns = columns.unwrap_or(table.shape.value_columns);
            let retired = if is_of_values { self.retired_expression(of_table[0].table).await? } else { None };
            Select { number: Some(of_table[0].table), table, columns, expression: None, index }
                .push(&mut sql);
            sql.push_str(if retired.is_some() { "(" } else { "" });
            // The source's key follows the shard directly.
            let column = table.shape.key_columns[table.shape.shard_order[0]];
            for (number, of_shard) in of_table.chunk_by(|one, next| one.shard == next.shard).enumerate() {
                sql.push_str(if number > 0 { " OR " } else { "" });
                push_condition(
                    &mut sql,
                    of_shard[0].shard,
                    column,
                    of_shard.iter().map(|sought| &sought.key),
                );
            }
            if let Some(retired) = retired {
                sql.push_str(&format!(") AND NOT {retired}"));
            }
        }
        Ok(sql)
    }

    /// Visits rows of a shard in some of the tables, as [`anabranch_pipeline::ports::LaneStore::rows_of_shard`] does.
    pub(super) async fn of_shard(
        &self,
        tables: &[u32],
        page: &ShardPage,
        limit: NonZeroUsize,
        visit: &mut (dyn FnMut(DerivedRow<'_>) + Send),
    ) -> Result<Option<ShardPage>, Fault> {
        let (mut page, mut left, began) = (page.clone(), limit.get(), Instant::now());
        for number in 0..SHARD_STATEMENTS {
            if number > 0 && began.elapsed() >= SHARD_PAGE {
                break;
            }
            let Some(table) = tables.iter().copied().find(|table| *table >= page.table) else {
                return Ok(None);
            };
            let rows = if self.is_covered(table)? { left } else { left.min(UNCOVERED_ROWS) };
            let Some(limit) = NonZeroUsize::new(rows) else { break };
            let after = page.after.as_ref().filter(|_| table == page.table);
            let mut take = |row: DerivedRow<'_>| {
                left = left.saturating_sub(1);
                visit(row);
            };
            let next = self.page(table, page.shard..=page.shard, after, limit, &mut take).await?;
            let table = if next.is_some() { table } else { table + 1 };
            page = ShardPage { table, after: next, ..page };
        }
        Ok(Some(page))
    }

    /// Whether the index by which a table's pages are read has all their columns.
    fn is_covered(&self, table: u32) -> Result<bool, Fault> {
        let shape = self.table(table)?.shape;
        Ok(shape.shard_index == "PRIMARY" || shape.value_columns.is_empty())
    }

    /// Visits each row that the sought source rows claim, with the row's version in place of its values.
    pub async fn versions(
        &self,
        sought: &[DerivedRowQuery],
        visit: &mut (dyn FnMut(Claimed<'_>, Lsn) + Send),
    ) -> Result<(), Fault> {
        let mut show = |row: Claimed<'_>| {
            if let [CellRef::UInt(version)] = row.values
                && let Ok(version) = Lsn::from_u64(*version)
            {
                visit(Claimed { values: &[], ..row }, version);
            }
        };
        self.visit_rows(sought, Some(&["lsn"]), &mut show).await
    }

    /// Visits each row that the sought source rows claim; `columns` are its values, `None` = its value columns.
    async fn visit_rows(
        &self,
        sought: &[DerivedRowQuery],
        columns: Option<&[&str]>,
        visit: &mut (dyn FnMut(Claimed<'_>) + Send),
    ) -> Result<(), Fault> {
        let mut sought = sought.to_vec();
        sought.sort_unstable();
        sought.dedup();
        for some in sought.chunks(STATEMENT_KEYS) {
            let (sql, derived) = (self.rows_sql(some, columns).await?, self.table(some[0].table)?);
            let keys = derived.shape.key_columns.len();
            let take = |row: &Row| {
                let table = u32::try_from(number(row.as_ref(0)?)?).ok()?;
                let mut show = |shard, key: &[CellRef<'_>], values: &[CellRef<'_>]| {
                    // A row that no lane writes is never sought.
                    if let Some(shard) = ShardId::from_u64(shard) {
                        visit(Claimed { table, shard, key, values });
                    }
                };
                cells(row, 1, keys, &mut show)
            };
            self.read(sql, take).await?.map_err(|()| self.odd(derived))?;
        }
        Ok(())
    }

    /// Visits each row of a statement; returns their number and the last one. The inner `Err` = a row has other types.
    pub(super) async fn read(
        &self,
        sql: String,
        mut take: impl FnMut(&Row) -> Option<()>,
    ) -> Result<Result<(usize, Option<Row>), ()>, Fault> {
        let mut connection = self.pool.connection().await?;
        let work = async {
            let mut rows = connection.query_iter(sql).await?;
            let (mut count, mut last) = (0, None);
            while let Some(row) = rows.next().await? {
                if take(&row).is_none() {
                    return Ok(Err(()));
                }
                count += 1;
                last = Some(row);
            }
            Ok(Ok((count, last)))
        };
        self.pool.within(TIMEOUT, work).await
    }
}

impl DerivedRows for MysqlRows {
    async fn page(
        &self,
        table: u32,
        shards: RangeInclusive<ShardId>,
        after: Option<&ScanCursor>,
        limit: NonZeroUsize,
        visit: &mut (dyn FnMut(DerivedRow<'_>) + Send),
    ) -> Result<Option<ScanCursor>, Fault> {
        let derived = self.table(table)?;
        let keys = derived.shape.key_columns.len();
        let after = self.place(derived, after)?;
        let (first, last) = (shards.start().as_u64(), shards.end().as_u64());
        // Only rows that no lane wrote lie above the last shard: the page includes them.
        let last = ShardId::from_u64(last + 1).map(|_| last);
        let retired = self.retired_expression(table).await?;
        let part = Part { first, last, after };
        let sql = self.part_sql(derived, derived.shape.value_columns, retired.as_deref(), part, limit.get());
        let take = |row: &Row| {
            let mut show = |shard, key: &[CellRef<'_>], values: &[CellRef<'_>]| {
                let (values, is_retired) = without_expression(values, retired.is_some());
                visit(match ShardId::from_u64(shard) {
                    Some(shard) if is_retired => DerivedRow::Retired(Claimed { table, shard, key, values }),
                    Some(shard) => DerivedRow::Claimed(Claimed { table, shard, key, values }),
                    None => DerivedRow::Stray(Stray { table, shard: Some(shard), key }),
                });
            };
            cells(row, 0, keys, &mut show)
        };
        let (count, last) = self.read(sql, take).await?.map_err(|()| self.odd(derived))?;
        let Some(last) = last.filter(|_| count == limit.get()) else { return Ok(None) };
        let mut next = None;
        cells(&last, 0, keys, &mut |shard, key, _| next = Some(scan_cursor::after_row(shard, key)));
        Ok(next)
    }

    async fn rows(
        &self,
        sought: &[DerivedRowQuery],
        visit: &mut (dyn FnMut(Claimed<'_>) + Send),
    ) -> Result<(), Fault> {
        self.visit_rows(sought, None, visit).await
    }
}

/// Returns the values of a row without the expression for retired source tables, if the row has it, and its value.
pub(super) fn without_expression<'v, 'c>(
    values: &'v [CellRef<'c>],
    has_expression: bool,
) -> (&'v [CellRef<'c>], bool) {
    match values {
        [values @ .., CellRef::UInt(said)] if has_expression => (values, *said == 1),
        values => (values, false),
    }
}

/// Visits shard, key and values of a row: column `first` is the shard, and the key columns follow. Returns `None` when
/// the columns have other types than set-up gave them.
pub(super) fn cells(row: &Row, first: usize, keys: usize, visit: &mut Visit<'_>) -> Option<()> {
    let shard = number(row.as_ref(first)?)?;
    let mut cells = [CellRef::Null; CELLS_MAX];
    let count = row.len() - first - 1;
    for (place, cell) in cells.get_mut(..count)?.iter_mut().enumerate() {
        let column = first + 1 + place;
        *cell = match row.as_ref(column)? {
            Value::NULL => CellRef::Null,
            value if row.columns_ref()[column].column_type().is_numeric_type() => {
                CellRef::UInt(number(value)?)
            }
            Value::Bytes(bytes) => CellRef::Bytes(bytes),
            _ => return None,
        };
    }
    let (key, values) = cells[..count].split_at(keys);
    visit(shard, key, values);
    Some(())
}

/// Parses a text of digits.
fn number(value: &Value) -> Option<u64> {
    let Value::Bytes(digits) = value else { return None };
    std::str::from_utf8(digits).ok()?.parse().ok()
}
