//! What the statements of a flush are made of beside the flush: the lane's tables, and what was found to stand.

use anabranch_pipeline::projections::ProjectedTable;
use anabranch_pipeline::records::Cell;
use anabranch_schemas::shard::ShardId;

use super::outbox::OutboxText;

/// What a lane writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlushLayout<'l> {
    /// Those of the projection.
    pub(super) tables: &'l [ProjectedTable],
    /// Indexes of the lane's own in `tables`.
    pub(super) owned: &'l [u32],
    /// Where touched values are noted, if there is a cache.
    pub(super) outbox: Option<&'l OutboxText>,
    /// What was found of what the flush replaces.
    pub(super) standing: &'l [StoredVersion],
    /// Where rows were found of what the flush withdraws.
    pub(super) withdrawn: &'l [Occupied],
}

/// A row as it was found.
#[derive(Debug)]
pub(super) struct StoredVersion {
    pub(super) table: u32,
    pub(super) shard: ShardId,
    pub(super) key: Box<[Cell]>,
    /// A hand may have written any number.
    pub(super) version: u64,
}

/// A derived table that has rows of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Occupied {
    /// Index into the projection's list of derived tables.
    pub(super) table: u32,
    pub(super) shard: ShardId,
}
