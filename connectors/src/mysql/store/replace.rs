//! Replacement of derived rows: finds the existing rows before the flush's transaction, and undoes them in it.
//!
//! Only the lane writes its tables, and the fence refuses the flush if another process of it came in between: so the
//! found rows still exist. A row that the flush writes only loses a version that is too high: columns of others stay.

use std::collections::HashSet;

use anabranch_pipeline::records::{Cell, Flush, MutationAction, OrderedMutation, Replacement};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use mysql_async::{Row, Value};

use super::cells::push_cell;
use super::layout::{FlushLayout, StoredVersion};
use super::select::Select;
use crate::mysql::connection::{push_number, quote_identifier, quote_table};

/// Tables that one statement queries: each is joined with the list of replaced rows.
const TABLES_MAX: usize = 100;

/// Returns statements that find all existing rows of the replaced source rows in the lane's tables.
///
/// A row may be in any table, so each table is queried for all keys. A join with a list of them costs a lookup a key,
/// and each statement holds the list once. A SELECT for each table and shard took twenty seconds for a hundred keys.
pub(super) fn selects(layout: &FlushLayout<'_>, replacement: &Replacement) -> Vec<String> {
    if replacement.rows.is_empty() {
        return Vec::new();
    }
    let mut list = String::new();
    for (shard, key) in &replacement.rows {
        // Without the type, numbers above the signed range would turn the list into decimals.
        list.push_str(if list.is_empty() {
            "WITH `l` (`s`,`k`) AS (SELECT CAST("
        } else {
            " UNION ALL SELECT CAST("
        });
        push_number(&mut list, shard.as_u64());
        list.push_str(" AS UNSIGNED),");
        match key {
            Cell::UInt(number) => {
                list.push_str("CAST(");
                push_number(&mut list, *number);
                list.push_str(" AS UNSIGNED)");
            }
            key => push_cell(&mut list, key),
        }
    }
    list.push(')');
    let statements = layout.owned.chunks(TABLES_MAX).map(|tables| {
        let mut sql = list.clone();
        for (place, index) in tables.iter().enumerate() {
            sql.push_str(if place == 0 { " " } else { " UNION ALL " });
            let table = &layout.tables[*index as usize].derived;
            let column = table.shape.key_columns[replacement.column];
            let columns: &[&str] = &["lsn"];
            Select { number: Some(*index), table, columns, expression: None, index: None }
                .push_joined(&mut sql, column);
        }
        sql
    });
    statements.collect()
}

impl StoredVersion {
    /// Parses a row; `None` = it is not one of [`selects`].
    pub(super) fn from_row(row: Row) -> Option<Self> {
        let columns = row.columns();
        let cell = |(value, is_number): (Value, bool)| match value {
            Value::Bytes(bytes) if is_number => {
                Some(Cell::UInt(std::str::from_utf8(&bytes).ok()?.parse().ok()?))
            }
            Value::Bytes(bytes) => Some(Cell::Bytes(bytes.into())),
            _ => None,
        };
        let kinds = columns.iter().map(|column| column.column_type().is_numeric_type());
        let mut cells = row.unwrap().into_iter().zip(kinds).map(cell).collect::<Option<Vec<Cell>>>()?;
        let [Cell::UInt(table), Cell::UInt(shard), .., Cell::UInt(version)] = cells[..] else { return None };
        cells.pop();
        Some(Self {
            table: u32::try_from(table).ok()?,
            shard: ShardId::from_u64(shard)?,
            key: cells.drain(2..).collect(),
            version,
        })
    }
}

/// Changes that remove existing rows, or their versions, before the flush writes.
#[derive(Debug, Default)]
pub(super) struct Undoing<'s> {
    /// Deletes of rows that the flush does not write, up to the low watermark; `lowers` precedes them.
    pub(super) deletes: Vec<OrderedMutation<'s>>,
    /// Statements that lower versions which are too high, each with its table.
    pub(super) lowers: Vec<(u32, String)>,
}

impl<'s> Undoing<'s> {
    pub(super) fn of(flush: &Flush, stored_versions: &'s [StoredVersion], layout: &FlushLayout<'_>) -> Self {
        let Some(replacement) = &flush.replacement else { return Self::default() };
        let written: HashSet<(u32, ShardId, &[Cell])> =
            flush.claims().map(|(table, shard, key, _)| (table, shard, key)).collect();
        let mut undoing = Self::default();
        let low = replacement.low;
        for row in stored_versions {
            let StoredVersion { table, shard, ref key, version } = *row;
            // A row of a retired table has no source row by design.
            if layout.retired.get(&shard).is_some_and(|at| version <= at.as_u64()) {
                continue;
            }
            if version > low.as_u64() {
                undoing.lowers.push((table, lower(layout, row, low)));
            }
            if !written.contains(&(table, shard, key)) {
                let action = &MutationAction::Delete;
                undoing.deletes.push(OrderedMutation { table, shard, key, lsn: low, action });
            }
        }
        undoing
    }
}

fn lower(layout: &FlushLayout<'_>, row: &StoredVersion, low: Lsn) -> String {
    let table = &layout.tables[row.table as usize].derived;
    let mut sql = format!(
        "UPDATE {} SET `lsn` = {} WHERE `shard_id` = {}",
        quote_table(&table.database, &table.table),
        low.as_u64(),
        row.shard
    );
    for (column, cell) in table.shape.key_columns.iter().zip(&*row.key) {
        sql.push_str(&format!(" AND {} = ", quote_identifier(column)));
        push_cell(&mut sql, cell);
    }
    sql
}
