//! Notes of a lane that refreshes: the claims that its feed changed after a watermark.

use std::collections::{BTreeSet, HashMap, HashSet};

use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;

use crate::records::{Cell, Flush};

/// Noted claims, at most; each takes some hundred bytes.
const NOTES_MAX: usize = 200_000;

/// Claims of some tables that changed since a chunk of them began to be read, each with its last position.
#[derive(Debug, Default)]
pub(super) struct ChangedClaims {
    /// The lane's epoch; positions of another epoch are incomparable.
    pub epoch: u16,
    pub shards: BTreeSet<ShardId>,
    claims: HashMap<(u32, ShardId, Box<[Cell]>), Lsn, foldhash::quality::RandomState>,
    /// Tables that were withdrawn as a whole, each with the position of the withdrawal.
    withdrawn: HashMap<ShardId, Lsn>,
    /// No change above this position was applied before noting began.
    pub floor: Lsn,
}

/// Source rows of which a claim changed after a watermark.
pub(super) struct Changed<'n> {
    keys: HashSet<(ShardId, &'n Cell)>,
    tables: HashSet<ShardId>,
}

impl Changed<'_> {
    pub(super) fn has(&self, shard: ShardId, key: &Cell) -> bool {
        self.tables.contains(&shard) || self.keys.contains(&(shard, key))
    }
}

impl ChangedClaims {
    pub(super) fn new(epoch: u16, shards: BTreeSet<ShardId>, floor: Lsn) -> Self {
        Self { epoch, shards, floor, ..Self::default() }
    }

    pub(super) fn record(&mut self, flush: &Flush) {
        for (shard, lsn) in flush.withdrawals.iter().filter(|(shard, _)| self.shards.contains(shard)) {
            let withdrawn = self.withdrawn.entry(*shard).or_default();
            *withdrawn = (*withdrawn).max(*lsn);
        }
        for (table, shard, key, lsn) in flush.claims().filter(|(_, shard, ..)| self.shards.contains(shard)) {
            if self.claims.len() <= NOTES_MAX {
                self.claims.insert((table, shard, key.into()), lsn);
            }
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.claims.len() > NOTES_MAX
    }

    /// Returns the source rows of which a claim changed after the watermark.
    pub(super) fn changed(&self, column: usize, low: Lsn) -> Changed<'_> {
        let claims = self.claims.iter().filter(|(_, lsn)| **lsn > low);
        let keys = claims.filter_map(|((_, shard, key), _)| Some((*shard, key.get(column)?))).collect();
        let tables = self.withdrawn.iter().filter(|(_, lsn)| **lsn > low).map(|(shard, _)| *shard).collect();
        Changed { keys, tables }
    }

    /// Whether the feed withdrew a table as a whole since noting began.
    pub(super) fn was_withdrawn(&self, shard: ShardId) -> bool {
        self.withdrawn.contains_key(&shard)
    }

    pub(super) fn has_changed(&self, table: u32, shard: ShardId, key: &[Cell], low: Lsn) -> bool {
        self.withdrawn.get(&shard).is_some_and(|lsn| *lsn > low)
            || (!self.claims.is_empty())
                && self.claims.get(&(table, shard, key.into())).is_some_and(|lsn| *lsn > low)
    }
}
