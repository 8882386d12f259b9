//! Tables without rows are finished many at a time, so thousands of them cost a read and a commit for some dozens.
//!
//! Once a table was empty, the lane reads the first rows of the next tables together before their chunks. A table
//! without one has nothing to write. If the store has no claim of it either, there is nothing to sweep. Such tables
//! that follow one another are finished by one commit.
//!
//! The lane asks for two tables first, and for twice as many while all of them are empty. A table with rows ends that:
//! the next one is read by chunks alone. So a database of full tables costs no further read.
//!
//! Why that is right:
//!
//! - The read counts under the rules of a chunk: it is of the lane's server and epoch, not older than what the lane had
//!   applied, and the lane has passed its high watermark. So no claim from below the low watermark has a source row,
//!   and a sweep would remove all of them. There are none.
//! - Each table was empty at a position of its own between the two watermarks. The feed has the changes of all of them
//!   from the low watermark on.
//! - Rows that the table gets later have higher versions. The feed writes them, or a record has the table read again:
//!   its entry in `rereads` stays.
//! - Only the lane writes its tables. If another process of the lane came in between, the commit is refused.
//! - A record of every table and another epoch forget what was found. It is in memory alone.
//!
//! These tables are read by themselves:
//!
//! - one that has an entry in `rereads`, or claims in the store;
//! - tables that cannot be read together, so that the fault is that of one table;
//! - those of a store without transactions, as rows of a flush that was cut off may still come. A lane that had no rows
//!   when it began needs no sweep, so its tables are finished together in every store.

use std::collections::BTreeSet;

use anabranch_schemas::change::TableIdentity;
use anabranch_schemas::codec::{self, CodecError};
use anabranch_schemas::shard::ShardId;
use futures::{FutureExt, TryFutureExt};

use super::changed_claims::ChangedClaims;
use super::plan::Work;
use super::read::Read;
use super::{Phase, Refresher, Step};
use crate::deliver::lane::unless;
use crate::deliver::window::LaneWindow;
use crate::error::{Code, Fault};
use crate::ports::{LaneStore, RowSource};
use crate::records::{Chunk, Progress, Refresh, Scope};

/// Tables whose first rows are read together, and which one commit finishes, at most: the target looks for claims of
/// each of them in every derived table.
const TABLES_MAX: usize = 50;
/// Tables that are read together after one with rows: a single one is read by chunks.
const TABLES_FIRST: usize = 1;

/// Tables that were found empty, and are not finished yet.
#[derive(Debug)]
pub(super) struct EmptyTables {
    /// The store says of which tables it has claims.
    is_atomic: bool,
    /// The present read, or the one that waits, is of first rows.
    is_asking: bool,
    /// Tables whose first rows are read together next, at most.
    next: usize,
    /// The last table whose first row was asked for in this epoch.
    until: Option<ShardId>,
    epoch: u16,
    /// Tables up to that one that have neither rows nor claims.
    found: BTreeSet<ShardId>,
}

impl EmptyTables {
    pub(super) fn new(is_atomic: bool) -> Self {
        let next = TABLES_FIRST;
        Self { is_atomic, is_asking: false, next, until: None, epoch: 0, found: BTreeSet::new() }
    }

    /// Forgets which tables were asked for: they are asked for again.
    pub(super) fn forget(&mut self) {
        *self = Self::new(self.is_atomic);
    }

    /// Whether the store says of which tables it has claims.
    pub(super) fn knows_claims(&self) -> bool {
        self.is_atomic
    }

    pub(super) fn is_asking(&self) -> bool {
        self.is_asking
    }

    /// Notes whether the tables that were read last are all empty.
    fn note(&mut self, are_empty: bool) {
        self.next = if are_empty { TABLES_MAX.min(self.next * 2) } else { TABLES_FIRST };
    }

    /// Notes whether a table has rows, from its first chunk.
    pub(super) fn note_chunk(&mut self, refresh: &Refresh, read: &Read) {
        if refresh.scope == Scope::Source && refresh.table.is_none() && read.keys.is_none() {
            self.note(read.chunk.rows == 0);
        }
    }
}

/// Whether claims of a table that is read in this epoch are to be swept.
fn is_swept(refresh: &Refresh, epoch: u16) -> bool {
    refresh.empty_in_epoch != Some(epoch)
}

/// Returns the tables of which a chunk has no row.
fn without_rows(tables: &BTreeSet<ShardId>, chunk: &Chunk) -> Result<BTreeSet<ShardId>, CodecError> {
    let (mut empty, mut rows) = (tables.clone(), codec::decode(&chunk.payload)?);
    while let Some(row) = rows.next()? {
        empty.remove(&row.table.shard);
    }
    Ok(empty)
}

impl<'a, S: RowSource> Refresher<'a, S> {
    /// Returns the phase in which the next tables are finished, as they are empty, or asked for their first rows;
    /// `None` if the work is to be done as it is.
    pub(super) fn next_empty(
        &mut self,
        work: &Work,
        refresh: &Refresh,
        progress: &Progress,
    ) -> Option<Phase<'a>> {
        self.empty.is_asking = false;
        let Work::Chunk { table, after: None, is_reread: Some(false), .. } = work else { return None };
        let epoch = progress.position.epoch();
        if self.empty.epoch != epoch {
            self.empty.forget();
            self.empty.epoch = epoch;
        }
        // It has rows, or claims.
        if self.comparisons.running_shard() == Some(table.shard) {
            return None;
        }
        if self.empty.found.contains(&table.shard) {
            return Some(Phase::Waiting(Step::Empty));
        }
        let was_asked = self.empty.until.is_some_and(|until| table.shard <= until);
        let is_finishable = self.empty.is_atomic || !is_swept(refresh, epoch);
        let is_single = self.empty.next == TABLES_FIRST;
        if is_single || was_asked || !is_finishable || refresh.scope != Scope::Source {
            return None;
        }
        let is_next = |table: &&TableIdentity<'static>| {
            refresh.wants(table.shard) && !refresh.rereads.contains_key(&table.shard)
        };
        let tables = self.tables.iter().flatten().filter(is_next);
        let tables: Vec<TableIdentity<'static>> = tables.take(self.empty.next).cloned().collect();
        // The table in turn may be an entry of `rereads` that waits: its own work comes first.
        if tables.first().is_none_or(|first| first.shard != table.shard) {
            return None;
        }
        let shards = tables.iter().map(|table| table.shard).collect();
        self.changes = ChangedClaims::new(epoch, shards, progress.highest_change);
        self.empty.is_asking = true;
        let source = self.source;
        let first_rows = async move { source.first_rows(&tables, epoch).await };
        Some(Phase::Querying(first_rows.map_ok(Read::of_chunk).boxed()))
    }

    /// Notes which of the tables that were asked for are empty and need no sweep. The window must be empty.
    pub(super) async fn take_first_rows(
        &mut self,
        read: &Read,
        window: &LaneWindow,
        store: &mut impl LaneStore,
    ) -> Result<(), Fault> {
        let Some(refresh) = &window.progress().refresh else { return Ok(()) };
        let mut empty = without_rows(&self.changes.shards, &read.chunk).map_err(|error| {
            let lane = format!("lane {}", self.id);
            Fault::new(Code::Internal, lane, "first rows cannot be read").caused_by(error)
        })?;
        self.empty.note(read.chunk.rows == 0);
        if is_swept(refresh, read.chunk.low.epoch()) && !empty.is_empty() {
            // On the heap: every step of the lane would have room for it on its stack.
            let with_claims = Box::pin(store.shards_with_rows(empty.clone()));
            // The lane ends, and it has nothing to store.
            let Some(with_claims) = unless(&self.cancel, with_claims).await? else { return Ok(()) };
            empty.retain(|shard| !with_claims.contains(shard));
        }
        self.repeated = 0;
        self.empty.until = self.changes.shards.last().copied();
        self.empty.found = empty;
        Ok(())
    }

    /// Returns the refresh after the empty tables that come next.
    pub(super) fn after_empty(&self, refresh: &Refresh, progress: &Progress) -> Refresh {
        let is_of_epoch = self.empty.epoch == progress.position.epoch() && refresh.table.is_none();
        let next = self.tables.iter().flatten().map(|table| table.shard);
        let next = next.filter(|shard| is_of_epoch && refresh.wants(*shard));
        let last = next.take_while(|shard| self.empty.found.contains(shard)).last();
        // Entries in `rereads` stay: they are from after the read.
        last.map_or_else(|| refresh.clone(), |last| refresh.after_table(last))
    }

    /// Notes that a read failed; returns whether it was of first rows. Each of these tables is then read by itself.
    pub(super) fn first_rows_failed(&mut self) -> bool {
        if self.empty.is_asking {
            self.empty.until = self.changes.shards.last().copied();
            self.empty.note(false);
        }
        self.empty.is_asking
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_tables_are_asked_for_together_only_while_all_are_empty() {
        let mut empty = EmptyTables::new(true);
        let mut after = |are_empty: &[bool]| {
            for are_empty in are_empty {
                empty.note(*are_empty);
            }
            empty.next
        };
        assert_eq!(after(&[]), 1);
        assert_eq!(after(&[true]), 2);
        assert_eq!(after(&[true, true, true, true]), 32);
        assert_eq!(after(&[true, true]), TABLES_MAX);
        assert_eq!(after(&[false]), 1, "a table has rows");
        assert_eq!(after(&[true, false, true]), 2);
    }
}
