//! Inputs of a flush's statements besides the flush: the lane's tables, and the rows that exist in them.

use anabranch_pipeline::projections::ProjectedTable;
use anabranch_pipeline::records::{Cell, RetiredShards};
use anabranch_schemas::shard::ShardId;

use super::outbox::OutboxText;

/// Tables that a lane writes, and rows found in them.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlushLayout<'l> {
    /// Tables of the projection.
    pub(super) tables: &'l [ProjectedTable],
    /// Indexes of the lane's own tables in `tables`.
    pub(super) owned: &'l [u32],
    /// The outbox for touched values, if there is a cache.
    pub(super) outbox: Option<&'l OutboxText>,
    /// Existing rows that the flush replaces.
    pub(super) stored_versions: &'l [StoredVersion],
    /// Tables with rows that the flush withdraws.
    pub(super) withdrawn: &'l [OccupiedTable],
    /// Shards that were retired before the flush: their rows up to the position stay.
    pub(super) retired: &'l RetiredShards,
}

/// A derived row that was found.
#[derive(Debug)]
pub(super) struct StoredVersion {
    pub(super) table: u32,
    pub(super) shard: ShardId,
    pub(super) key: Box<[Cell]>,
    /// The stored version; a manual write may have stored any number.
    pub(super) version: u64,
}

/// A derived table that has rows of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OccupiedTable {
    /// Index into the projection's list of derived tables.
    pub(super) table: u32,
    pub(super) shard: ShardId,
}
