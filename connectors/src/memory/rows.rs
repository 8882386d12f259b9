//! Reads the rows of a target in memory.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::ops::{Bound, RangeInclusive};

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{DerivedRowQuery, DerivedRows, ForeignRow, ForeignRows};
use anabranch_pipeline::projections::Projection;
use anabranch_pipeline::records::{Cell, CellRef, Claimed, DerivedRow, ScanCursor};
use anabranch_schemas::shard::ShardId;

use super::store::StoredRow;
use super::{LOST, MemoryTarget, Refused, UNHEARD};
use crate::scan_cursor;

/// Derived rows of one projection on one target.
#[derive(Debug, Clone)]
pub struct MemoryRows {
    target: MemoryTarget,
    projection: Projection,
}

/// A row with its claim.
pub(super) type Row = ((u32, ShardId, Box<[Cell]>), StoredRow);

impl MemoryTarget {
    pub fn derived(&self, projection: &Projection) -> MemoryRows {
        MemoryRows { target: self.clone(), projection: projection.clone() }
    }

    /// Returns the rows that exist when the query reaches the server.
    pub(super) async fn ask(&self, question: impl FnOnce(&Self) -> Vec<Row>) -> Result<Vec<Row>, Fault> {
        let weather = self.weather();
        let broken = || Fault::new(Code::TargetUnreachable, "target", "the connection broke");
        weather.answer(Refused::Target)?;
        if weather.strikes_in(LOST) {
            return Err(broken());
        }
        weather.pause().await;
        if self.is_down() {
            return Err(broken());
        }
        let rows = question(self);
        weather.pause().await;
        if weather.strikes_in(UNHEARD) { Err(broken()) } else { Ok(rows) }
    }
}

impl DerivedRows for MemoryRows {
    async fn page(
        &self,
        table: u32,
        shards: RangeInclusive<ShardId>,
        after: Option<&ScanCursor>,
        limit: NonZeroUsize,
        visit: &mut (dyn FnMut(DerivedRow<'_>) + Send),
    ) -> Result<Option<ScanCursor>, Fault> {
        let from = from(table, *shards.start(), after);
        let page = |target: &MemoryTarget| {
            let later = target.rows_from(from);
            let is_meant = |row: &Row| row.0.0 == table && row.0.1 <= *shards.end();
            later.into_iter().take_while(is_meant).take(limit.get()).collect()
        };
        let rows = self.target.ask(page).await?;
        let mut next = None;
        for row in &rows {
            let is_retired = self.target.is_retired(row.0.1, row.1.0);
            show(row, &mut |claimed| {
                next = Some(scan_cursor::after_row(claimed.shard.as_u64(), claimed.key));
                visit(match is_retired {
                    true => DerivedRow::Retired(claimed),
                    false => DerivedRow::Claimed(claimed),
                });
            });
        }
        Ok(next.filter(|_| rows.len() == limit.get()))
    }

    async fn rows(
        &self,
        sought: &[DerivedRowQuery],
        visit: &mut (dyn FnMut(Claimed<'_>) + Send),
    ) -> Result<(), Fault> {
        let is_sought = |((table, shard, key), (version, _)): &Row| {
            if self.target.is_retired(*shard, *version) {
                return false;
            }
            let key: Vec<CellRef<'_>> = key.iter().map(Cell::borrowed).collect();
            let of_source = self.projection.source_key(&key);
            let is_meant = |sought: &DerivedRowQuery| sought.table == *table && sought.shard == *shard;
            sought.iter().any(|sought| is_meant(sought) && Some(sought.key.borrowed()) == of_source)
        };
        let found = |target: &MemoryTarget| target.rows().into_iter().filter(is_sought).collect();
        self.target.ask(found).await?.iter().for_each(|row| show(row, visit));
        Ok(())
    }
}

impl ForeignRows for MemoryRows {
    async fn foreign(
        &self,
        table: u32,
        known: &BTreeSet<ShardId>,
        after: Option<&ScanCursor>,
        limit: NonZeroUsize,
    ) -> Result<(Vec<ForeignRow>, Option<ScanCursor>), Fault> {
        let from = from(table, ShardId::from_u64(0).expect("63 bits"), after);
        let page = |target: &MemoryTarget| {
            let later = target.rows_from(from).into_iter().take_while(|row| row.0.0 == table);
            let is_foreign = |row: &Row| !known.contains(&row.0.1) && !target.is_retired(row.0.1, row.1.0);
            later.filter(is_foreign).take(limit.get()).collect()
        };
        let foreign = |((table, shard, key), (lsn, _)): Row| ForeignRow {
            table,
            shard: Some(shard.as_u64()),
            owner: Some(shard),
            key,
            version: (lsn.as_u64(), 0),
        };
        let rows: Vec<ForeignRow> = self.target.ask(page).await?.into_iter().map(foreign).collect();
        let last = rows.last().filter(|_| rows.len() == limit.get());
        let next = last.map(|row| {
            let key: Vec<CellRef<'_>> = row.key.iter().map(Cell::borrowed).collect();
            scan_cursor::after_row(row.shard.unwrap_or_default(), &key)
        });
        Ok((rows, next))
    }

    async fn remove(&self, rows: &[ForeignRow]) -> Result<u64, Fault> {
        let mut removed = 0;
        let remove = |target: &MemoryTarget| {
            target.tamper(|stored| {
                for row in rows {
                    let Some(owner) = row.owner else { continue };
                    let claim = (row.table, owner, row.key.clone());
                    if stored.get(&claim).is_some_and(|(lsn, _)| lsn.as_u64() == row.version.0) {
                        stored.remove(&claim);
                        removed += 1;
                    }
                }
            });
            Vec::new()
        };
        self.target.ask(remove).await?;
        Ok(removed)
    }
}

/// Returns the bound at which a page of a table begins.
fn from(table: u32, first: ShardId, after: Option<&ScanCursor>) -> Bound<(u32, ShardId, Box<[Cell]>)> {
    match after.map(|after| scan_cursor::decode(after).expect("a place that a page gave")) {
        None => Bound::Included((table, first, Box::default())),
        Some((shard, key)) => {
            let shard = ShardId::from_u64(shard).expect("a shard of this store");
            Bound::Excluded((table, shard, key))
        }
    }
}

fn show(((table, shard, key), (_, values)): &Row, visit: &mut dyn FnMut(Claimed<'_>)) {
    let key: Vec<CellRef<'_>> = key.iter().map(Cell::borrowed).collect();
    let values: Vec<CellRef<'_>> = values.iter().map(Cell::borrowed).collect();
    visit(Claimed { table: *table, shard: *shard, key: &key, values: &values });
}
