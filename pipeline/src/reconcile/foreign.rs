//! Derived rows that belong to no table of a source: a reconciliation reports them, and a person has them removed.
//!
//! No lane owns such a row, so no repair reaches it, and it never ends a reconciliation. A removal asks the sources for
//! their tables after each read of derived rows. A lane writes a row only after the commit that made its table, so a
//! row whose table no source has at that moment was no lane's when it was read. A row that a lane writes over it later
//! has another version, and the store removes only the version that was read.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::Arc;

use anabranch_schemas::shard::ShardId;
use serde::{Deserialize, Serialize};

use crate::error::Fault;
use crate::ports::{ForeignRow, ForeignRows};
use crate::projections::Projection;
use crate::records::{Cell, CellRef, DerivedTable};
use crate::retry::again;

/// Foreign rows that a report lists one by one, at most.
pub(super) const LISTED_MAX: usize = 100;
/// Shards that a report's reason names, at most.
const SHARDS_NAMED: usize = 10;
/// Rows that are read before the sources are asked for their tables again.
const STEP_ROWS: NonZeroUsize = NonZeroUsize::new(2_000).expect("it is not 0");

/// The shard that would own a row, and the number that the store holds for it.
type Owner = (Option<ShardId>, Option<u64>);

/// Derived rows of a unit that belong to none of its tables: all are counted, the first ones are kept.
#[derive(Debug, Default)]
pub struct UnownedRows {
    rows: BTreeMap<Owner, u64>,
    first: BTreeSet<(u32, Owner, Box<[Cell]>)>,
}

impl UnownedRows {
    pub(super) fn count(&mut self, table: u32, owner: Owner, key: &[CellRef<'_>]) {
        *self.rows.entry(owner).or_default() += 1;
        let is_full = self.first.len() >= LISTED_MAX;
        if is_full && self.first.last().is_some_and(|(of, by, _)| (*of, *by) < (table, owner)) {
            return;
        }
        self.first.insert((table, owner, key.iter().map(|cell| CellRef::to_owned(*cell)).collect()));
        self.cut();
    }

    pub(super) fn append(&mut self, other: Self) {
        for (owner, rows) in other.rows {
            *self.rows.entry(owner).or_default() += rows;
        }
        self.first.extend(other.first);
        self.cut();
    }

    fn cut(&mut self) {
        while self.first.len() > LISTED_MAX {
            self.first.pop_last();
        }
    }

    /// Leaves out the rows of shards for which `is_known` returns true.
    pub(super) fn forget(&mut self, is_known: impl Fn(&ShardId) -> bool) {
        let is_foreign = |(owner, _): &Owner| !owner.as_ref().is_some_and(&is_known);
        self.rows.retain(|owner, _| is_foreign(owner));
        self.first.retain(|(_, owner, _)| is_foreign(owner));
    }

    pub fn rows(&self) -> u64 {
        self.rows.values().sum()
    }

    /// Returns the first rows: table, the stored number of the shard, key.
    pub(super) fn first(&self) -> impl Iterator<Item = (u32, Option<u64>, &[Cell])> {
        self.first.iter().map(|(table, (_, shard), key)| (*table, *shard, &**key))
    }

    /// Returns the sentence that says why the reconciliation of a store is incomplete.
    pub(super) fn reason(&self, store: &str) -> String {
        let named = self.rows.iter().take(SHARDS_NAMED);
        let named: Vec<String> =
            named.map(|((_, shard), rows)| format!("{} ({rows})", shard_text(*shard))).collect();
        let more = if self.rows.len() > named.len() { ", …" } else { "" };
        format!(
            "{} derived rows of {} tables that no source has: shard_id {}{more}; check whether a grant or a pattern \
             hides a table, then `anabranch reconcile remove-foreign --store {store} --dry-run` lists the rows that \
             would be removed",
            self.rows(),
            self.rows.len(),
            named.join(", ")
        )
    }
}

/// A derived row that belongs to no table of a source, as reports show it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Foreign {
    /// The derived table (`database.table`), or the index.
    pub table: String,
    /// The stored shard id, or `none`.
    pub shard: String,
    /// The hash of the derived row's key, as in [`super::Drifted`].
    pub key_hash: String,
}

/// Writes the stored number of a shard as reports and the command show it.
pub fn shard_text(shard: Option<u64>) -> String {
    shard.map_or_else(|| "none".to_owned(), |shard| shard.to_string())
}

/// Returns the name of a derived table that reports show.
pub fn table_text(table: &DerivedTable) -> String {
    match table.database.as_str() {
        "" => table.table.clone(),
        database => format!("{database}.{}", table.table),
    }
}

/// The result of a removal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Removed {
    /// Rows that belonged to no table of a source when they were read.
    pub found: u64,
    /// Rows that were removed; others were written over meanwhile, or the run was a rehearsal.
    pub removed: u64,
}

/// Removes derived rows of a projection whose shard is not in the set that `known` returns, if `is_meant` accepts them.
/// With `is_rehearsal` it only reports them to `on_row`. Rows that it removed before an error stay removed.
pub async fn remove_foreign<D: ForeignRows>(
    (projection, targets): (&Projection, &[Arc<D>]),
    known: impl AsyncFn() -> Result<BTreeSet<ShardId>, Fault>,
    is_meant: impl Fn(&ForeignRow) -> bool,
    is_rehearsal: bool,
    mut on_row: impl FnMut(&ForeignRow),
) -> Result<Removed, Fault> {
    let mut removed = Removed::default();
    let mut shards = known().await?;
    for (target, place) in targets.iter().zip(0u32..) {
        for (table, _) in projection.target_tables(place) {
            let mut after = None;
            loop {
                let read = again(|| target.foreign(table, &shards, after.as_ref(), STEP_ROWS)).await?;
                let (mut rows, next) = read;
                rows.retain(&is_meant);
                if !rows.is_empty() {
                    shards = known().await?;
                    rows.retain(|row| row.owner.is_none_or(|owner| !shards.contains(&owner)));
                }
                rows.iter().for_each(&mut on_row);
                removed.found += rows.len() as u64;
                if !is_rehearsal && !rows.is_empty() {
                    removed.removed += target.remove(&rows).await?;
                }
                after = next;
                if after.is_none() {
                    break;
                }
            }
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(rows: impl Iterator<Item = (u32, u64, u64)>) -> UnownedRows {
        let mut unowned = UnownedRows::default();
        rows.for_each(|(table, shard, key)| {
            unowned.count(table, (ShardId::from_u64(shard), Some(shard)), &[CellRef::UInt(key)]);
        });
        unowned
    }

    #[test]
    fn all_foreign_rows_are_counted_and_the_same_ones_listed_in_whichever_order_they_are_read() {
        let rows: Vec<_> = (0..400).map(|key| (key as u32 % 3, 7 + key % 2, key)).collect();
        let (one, other) = (noted(rows.iter().copied()), noted(rows.iter().rev().copied()));
        let mut halves = noted(rows[..150].iter().copied());
        halves.append(noted(rows[150..].iter().copied()));
        for unowned in [&one, &other, &halves] {
            assert_eq!((unowned.rows(), unowned.first().count()), (400, LISTED_MAX));
            assert!(unowned.first().eq(one.first()));
            assert!(
                unowned
                    .reason("s")
                    .starts_with("400 derived rows of 2 tables that no source has: shard_id 7 (200)")
            );
        }
    }

    #[test]
    fn rows_of_a_known_table_are_no_foreign_ones_and_a_stray_of_its_number_is() {
        let mut unowned = noted([(0, 7, 1), (0, 8, 1)].into_iter());
        unowned.count(0, (None, Some(7)), &[CellRef::Bytes(b"odd")]);
        unowned.count(0, (None, None), &[CellRef::Bytes(b"odd")]);
        unowned.forget(|shard| shard.as_u64() == 7);
        assert_eq!(unowned.rows(), 3);
        let shards: Vec<_> = unowned.first().map(|(_, shard, _)| shard_text(shard)).collect();
        assert_eq!(shards, ["none", "7", "8"]);
    }
}
