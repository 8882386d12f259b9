//! The ports of a reconciliation beside the rows of sources: derived rows, their lanes, and a history.

use std::collections::BTreeSet;
use std::future::Future;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;

use anabranch_schemas::shard::ShardId;

use super::LaneStore;
use crate::error::Fault;
use crate::records::{Cell, Claimed, DerivedRow, LaneId, PastReconciliation, Progress, ScanCursor};

/// A search in one derived table: all rows that the source row of this key could have there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DerivedRowQuery {
    /// Index into the projection's list of derived tables.
    pub table: u32,
    pub shard: ShardId,
    /// Key of the source row, see [`crate::projections::Projection::source_key`].
    pub key: Cell,
}

/// A place among the derived rows of a shard in the tables of one lane, see [`LaneStore::rows_of_shard`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardPage {
    pub shard: ShardId,
    /// The first table that is read; an index into the projection's list of derived tables.
    pub table: u32,
    /// The row of that table after which the page begins; `None` = its first row of the shard.
    pub after: Option<ScanCursor>,
}

/// A place among the claims of withdrawn shards in the tables of one lane, see [`LaneStore::withdrawn_claims`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimsPage {
    /// The first table in which claims are looked for; an index into the projection's list of derived tables.
    pub table: u32,
    /// The row of that table after which the page begins; `None` = its first row of these shards.
    pub after: Option<ScanCursor>,
}

/// The derived tables of one projection on one target. Reads lock nothing and keep no snapshot.
pub trait DerivedRows: Send + Sync {
    /// Visits at most `limit` rows of a table whose shard lies in `shards`, after `after`, in an order of the store's
    /// own. Returns where the next page begins; `None` = there are no more. A row that is stored throughout all pages
    /// is visited once; a row that comes or goes meanwhile may be. After an error some rows of the page may have been
    /// visited. Rows that no lane can have written are visited too, each in one of the ranges that cover all shards.
    fn page(
        &self,
        table: u32,
        shards: RangeInclusive<ShardId>,
        after: Option<&ScanCursor>,
        limit: NonZeroUsize,
        visit: &mut (dyn FnMut(DerivedRow<'_>) + Send),
    ) -> impl Future<Output = Result<Option<ScanCursor>, Fault>> + Send;

    /// Visits every row that the sought source rows claim; sees everything that was committed before the call.
    fn rows(
        &self,
        sought: &[DerivedRowQuery],
        visit: &mut (dyn FnMut(Claimed<'_>) + Send),
    ) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// A derived row whose owner is no known shard, as it was read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ForeignRow {
    /// Index into the projection's list of derived tables.
    pub table: u32,
    /// Number of its shard, as the row says it; `None` = the row says none.
    pub shard: Option<u64>,
    /// The shard that would own the row; `None` = no lane can have written it.
    pub owner: Option<ShardId>,
    pub key: Box<[Cell]>,
    /// Version in the store's own numbers; any later write over the row has another one.
    pub version: (u64, u64),
}

/// The same derived tables, for the removal of rows that belong to no known shard.
pub trait ForeignRows: Send + Sync {
    /// Returns at most `limit` rows of a table after `after` whose owner is none of the `known` shards, and where the
    /// next page begins; `None` = there are no more. A page may be empty although others follow.
    fn foreign(
        &self,
        table: u32,
        known: &BTreeSet<ShardId>,
        after: Option<&ScanCursor>,
        limit: NonZeroUsize,
    ) -> impl Future<Output = Result<(Vec<ForeignRow>, Option<ScanCursor>), Fault>> + Send;

    /// Removes the rows of one table that have not changed since they were read; returns how many. After an error some
    /// may be gone.
    fn remove(&self, rows: &[ForeignRow]) -> impl Future<Output = Result<u64, Fault>> + Send;
}

/// The lanes of one projection, as another task sees them.
pub trait Lanes: Send + Sync {
    type Store: LaneStore;

    /// Returns the stored progress of every lane of a source, on all targets; all must answer.
    fn progress(&self, source: &str) -> impl Future<Output = Result<Vec<(LaneId, Progress)>, Fault>> + Send;

    /// Whether an operator has paused the lane: it does not move before it is resumed.
    fn is_paused(&self, lane: &LaneId) -> impl Future<Output = bool> + Send;

    /// Returns the store through which a lane can be asked for work. A commit there fences the lane's process, which
    /// restarts and finds the request.
    fn store(&self, lane: &LaneId) -> Result<Self::Store, Fault>;

    /// Asks the reader of a quiet source to append its position, see
    /// [`Log::ask_for_position`](super::Log::ask_for_position).
    fn ask_for_position(&self, source: &str) -> impl Future<Output = ()> + Send;
}

/// Records of past reconciliations, in the order of their numbers. A record never changes.
pub trait History: Send + Sync {
    /// Returns the number of the newest reconciliation, without its report; `None` = the history is empty.
    fn newest_number(&self) -> impl Future<Output = Result<Option<u64>, Fault>> + Send;

    /// Returns at most this many of the newest reconciliations, the newest first.
    fn newest(
        &self,
        reconciliations: usize,
    ) -> impl Future<Output = Result<Vec<PastReconciliation>, Fault>> + Send;

    /// Returns at most this many reconciliations after this number, the oldest first.
    fn after(
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
