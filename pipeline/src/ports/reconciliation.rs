//! What a reconciliation needs beside the rows of sources: derived rows, their lanes, and a history.

use std::collections::BTreeSet;
use std::future::Future;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;

use anabranch_schemas::shard::ShardId;

use super::LaneStore;
use crate::error::Fault;
use crate::records::{Cell, ChunkKey, Claimed, DerivedRow, LaneId, PastReconciliation, Progress};

/// Rows that are looked for in one derived table: all that the source row of this key could have there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sought {
    /// Index into the projection's list of derived tables.
    pub table: u32,
    pub shard: ShardId,
    /// Key of the source row, see [`crate::projections::Projection::source_key`].
    pub key: Cell,
}

/// The derived tables of one projection on one target, read as they stand. Nothing is locked, and no snapshot kept.
pub trait DerivedRows: Send + Sync {
    /// Visits at most `limit` rows of a table whose shard lies in `shards`, in an order of the store's own, behind
    /// `after`. Where the next page begins; `None` = there are no more. What stands through all pages is visited once;
    /// what comes or goes meanwhile may be or not. After an error some rows of the page may have been visited. Rows
    /// that no lane can have written are visited too: each in one of the ranges that all shards are cut into.
    fn page(
        &self,
        table: u32,
        shards: RangeInclusive<ShardId>,
        after: Option<&ChunkKey>,
        limit: NonZeroUsize,
        visit: &mut (dyn FnMut(DerivedRow<'_>) + Send),
    ) -> impl Future<Output = Result<Option<ChunkKey>, Fault>> + Send;

    /// Visits every row that stands for what is sought; all that was committed before the call is seen.
    fn rows(
        &self,
        sought: &[Sought],
        visit: &mut (dyn FnMut(Claimed<'_>) + Send),
    ) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// A derived row of a shard that nobody knows, as it was read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ForeignRow {
    /// Index into the projection's list of derived tables.
    pub table: u32,
    /// The number that stands for its shard; `None` = it says none.
    pub shard: Option<u64>,
    /// The shard that would own it; `None` = no lane can have written it.
    pub owner: Option<ShardId>,
    pub key: Box<[Cell]>,
    /// What tells it from whatever is written over it, in the store's own numbers.
    pub version: (u64, u64),
}

/// The same derived tables, for who removes what belongs to nobody.
pub trait ForeignRows: Send + Sync {
    /// At most `limit` rows of a table whose owner is none of these shards, behind `after`, and where it goes on;
    /// `None` = there are no more. A page may be empty though others follow.
    fn foreign(
        &self,
        table: u32,
        known: &BTreeSet<ShardId>,
        after: Option<&ChunkKey>,
        limit: NonZeroUsize,
    ) -> impl Future<Output = Result<(Vec<ForeignRow>, Option<ChunkKey>), Fault>> + Send;

    /// Removes each of these rows of one table that is still what was read; how many. After an error some may be gone.
    fn remove(&self, rows: &[ForeignRow]) -> impl Future<Output = Result<u64, Fault>> + Send;
}

/// The lanes of one projection, seen from beside them.
pub trait Lanes: Send + Sync {
    type Store: LaneStore;

    /// Stored progress of every lane of a source, on all targets; all must answer.
    fn progress(&self, source: &str) -> impl Future<Output = Result<Vec<(LaneId, Progress)>, Fault>> + Send;

    /// Whether somebody has paused the lane: it does not move before it is resumed.
    fn is_paused(&self, lane: &LaneId) -> impl Future<Output = bool> + Send;

    /// What a lane can be asked through: a commit there fences its owner, which begins again with what was asked.
    fn store(&self, lane: &LaneId) -> Result<Self::Store, Fault>;

    /// Has a quiet source's position told to its lanes, see [`Log::ask_for_position`].
    fn ask_for_position(&self, source: &str) -> impl Future<Output = ()> + Send;
}

/// What reconciliations have left behind, in the order of their numbers; never changed.
pub trait History: Send + Sync {
    /// The newest one's number, without its report; `None` = there is none.
    fn newest_number(&self) -> impl Future<Output = Result<Option<u64>, Fault>> + Send;

    /// At most so many of the newest, the newest first.
    fn newest(
        &self,
        reconciliations: usize,
    ) -> impl Future<Output = Result<Vec<PastReconciliation>, Fault>> + Send;

    /// At most so many after this number, the oldest first.
    fn behind(
        &self,
        number: u64,
        reconciliations: usize,
    ) -> impl Future<Output = Result<Vec<PastReconciliation>, Fault>> + Send;

    fn numbered(&self, number: u64)
    -> impl Future<Output = Result<Option<PastReconciliation>, Fault>> + Send;

    fn named(&self, id: &str) -> impl Future<Output = Result<Option<PastReconciliation>, Fault>> + Send;

    /// Adds a reconciliation. Its number must be free; after an error the outcome is unknown.
    fn append(&self, reconciliation: &PastReconciliation) -> impl Future<Output = Result<(), Fault>> + Send;
}
