//! What stands for source rows that a flush replaces: found before its transaction, and undone in it.
//!
//! Nobody but the lane writes its tables, and the fence refuses it when another process of it came in between; so what
//! was found still stands. A row that the flush writes only loses a version that is too high: columns of others stay.

use std::collections::HashSet;

use anabranch_pipeline::deliver::{Cell, Flush, MutationAction, OrderedMutation, Replacement};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use mysql_async::{Row, Value};

use super::select::{Select, push_condition};
use super::statements::{Layout, push_cell};
use crate::mysql::connection::{quote_identifier, quote_table};

/// Of one statement: each is a lookup of its own.
const TABLES_MAX: usize = 100;

/// A row as it was found.
#[derive(Debug)]
pub(super) struct Standing {
    table: u32,
    shard: ShardId,
    key: Box<[Cell]>,
    /// A hand may have written any number.
    version: u64,
}

/// Statements that find every row of the lane's tables for what is replaced.
pub(super) fn selects(layout: &Layout<'_>, replacement: &Replacement) -> Vec<String> {
    let by_shard: Vec<&(ShardId, Cell)> = replacement.rows.iter().collect();
    let mut selects = Vec::new();
    for of_shard in by_shard.chunk_by(|one, next| one.0 == next.0) {
        let shard = of_shard[0].0;
        selects.extend(layout.owned.chunks(TABLES_MAX).map(|tables| {
            let mut sql = String::new();
            for index in tables {
                sql.push_str(if sql.is_empty() { "" } else { " UNION ALL " });
                let table = &layout.tables[*index as usize].derived;
                Select { number: Some(*index), table, columns: &["lsn"], index: None }.push(&mut sql);
                let column = table.shape.key_columns[replacement.column];
                push_condition(&mut sql, shard, column, of_shard.iter().map(|(_, key)| key));
            }
            sql
        }));
    }
    selects
}

impl Standing {
    /// `None` = the row is not one of [`selects`].
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

/// What the flush must undo of what stands.
#[derive(Debug, Default)]
pub(super) struct Undoing<'s> {
    /// Rows that it does not write, by versions that are not too high any more.
    pub(super) deletes: Vec<OrderedMutation<'s>>,
    /// Statements that take versions away which are too high.
    pub(super) lowers: Vec<String>,
}

impl<'s> Undoing<'s> {
    pub(super) fn of(flush: &Flush, standing: &'s [Standing], layout: &Layout<'_>) -> Self {
        let Some(replacement) = &flush.replacement else { return Self::default() };
        let written: HashSet<(u32, ShardId, &[Cell])> =
            flush.claims().map(|(table, shard, key, _)| (table, shard, key)).collect();
        let mut undoing = Self::default();
        let mark = replacement.mark;
        for row in standing {
            let Standing { table, shard, ref key, version } = *row;
            if version > mark.as_u64() {
                undoing.lowers.push(lower(layout, row, mark));
            }
            if !written.contains(&(table, shard, key)) {
                let action = &MutationAction::Delete;
                undoing.deletes.push(OrderedMutation { table, shard, key, lsn: mark, action });
            }
        }
        undoing
    }
}

fn lower(layout: &Layout<'_>, row: &Standing, mark: Lsn) -> String {
    let table = &layout.tables[row.table as usize].derived;
    let mut sql = format!(
        "UPDATE {} SET `lsn` = {} WHERE `shard_id` = {}",
        quote_table(&table.database, &table.table),
        mark.as_u64(),
        row.shard
    );
    for (column, cell) in table.shape.key_columns.iter().zip(&*row.key) {
        sql.push_str(&format!(" AND {} = ", quote_identifier(column)));
        push_cell(&mut sql, cell);
    }
    sql
}
