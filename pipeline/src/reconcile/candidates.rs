//! Source rows whose derived rows may differ: the differences that a unit's sketch lists, grouped by source row.
//!
//! A user whose birthday changed is two elements, and so is a device with a new code: both are checked at once. A unit
//! may list millions of differences, so they come in batches, in the order of shards.

use std::collections::{BTreeMap, BTreeSet};

use anabranch_schemas::shard::ShardId;
use xxhash_rust::xxh3::xxh3_64;

use crate::projections::Projection;
use crate::records::{Cell, CellRef};
use crate::sketch::{Difference, RowKey, are_of_one_row, assemble, order};

/// The shard and key of a source row, which may be deleted by now.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceKey {
    pub shard: ShardId,
    /// See [`Projection::source_key`].
    pub key: Cell,
}

/// Source rows, each with the derived tables in which its rows are to be checked.
pub type CandidateBatch = BTreeMap<SourceKey, BTreeSet<u32>>;

/// A listed difference that cannot be read: a part of a key is missing.
#[derive(Debug, PartialEq, Eq)]
pub struct Garbled;

/// All differences that one unit lists.
#[derive(Debug)]
pub struct Candidates {
    difference: Difference,
    /// Each derived row's shard, the hash of its source key, and the index of its first part in `parts`.
    rows: Vec<(ShardId, u64, u32)>,
    /// Numbers of elements; the parts of one row follow one another.
    parts: Vec<u32>,
    projection: Projection,
}

impl Candidates {
    pub fn new(difference: Difference, projection: &Projection) -> Result<Self, Garbled> {
        let count = u32::try_from(difference.len()).map_err(|_| Garbled)?;
        let mut parts: Vec<u32> = (0..count).collect();
        let element = |part: &u32| difference.element(*part as usize);
        parts.sort_unstable_by(|one, other| order(element(one), element(other)));
        let mut rows = Vec::new();
        let mut begin = 0;
        for group in parts.chunk_by(|one, other| are_of_one_row(element(one), element(other))) {
            let row = assemble(group.iter().map(element)).ok_or(Garbled)?;
            let source = source_key(projection, &row).ok_or(Garbled)?;
            rows.push((row.shard, hash(source.key.borrowed()), begin));
            begin += group.len() as u32;
        }
        rows.sort_unstable();
        Ok(Self { difference, rows, parts, projection: projection.clone() })
    }

    /// Returns all candidates in batches of about `rows` derived rows; a source row is in one batch only.
    pub fn windows(&self, rows: usize) -> impl Iterator<Item = CandidateBatch> {
        let mut begin = 0;
        std::iter::from_fn(move || {
            let mut end = (begin + rows.max(1)).min(self.rows.len());
            while end < self.rows.len() && self.of_one_source_row(end - 1, end) {
                end += 1;
            }
            let of_window = &self.rows[begin..end];
            begin = end;
            (!of_window.is_empty()).then(|| self.window(of_window))
        })
    }

    fn of_one_source_row(&self, one: usize, other: usize) -> bool {
        let of = |row: usize| (self.rows[row].0, self.rows[row].1);
        of(one) == of(other)
    }

    fn window(&self, rows: &[(ShardId, u64, u32)]) -> CandidateBatch {
        let mut window = CandidateBatch::new();
        for (_, _, begin) in rows {
            let parts =
                self.parts[*begin as usize..].iter().map(|part| self.difference.element(*part as usize));
            let mut parts = parts.peekable();
            let first = *parts.peek().expect("a row has a part");
            let row = assemble(parts.take_while(|part| are_of_one_row(first, part)));
            let row = row.expect("it was put together before");
            let source = source_key(&self.projection, &row).expect("it was found before");
            window.entry(source).or_default().insert(row.table);
        }
        window
    }
}

fn source_key(projection: &Projection, row: &RowKey) -> Option<SourceKey> {
    let key: Vec<_> = row.key.iter().map(Cell::borrowed).collect();
    let key = projection.source_key(&key)?.to_owned();
    ((row.table as usize) < projection.tables().len()).then_some(SourceKey { shard: row.shard, key })
}

/// Hashes a key so that derived rows of one source row sort together; a collision only makes a batch larger.
pub(super) fn hash(key: CellRef<'_>) -> u64 {
    match key {
        CellRef::Null => 0,
        CellRef::Int(number) => xxh3_64(&number.to_le_bytes()),
        CellRef::UInt(number) => xxh3_64(&number.to_le_bytes()),
        CellRef::Bytes(bytes) => xxh3_64(bytes),
    }
}
