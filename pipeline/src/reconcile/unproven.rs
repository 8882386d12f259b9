//! Source tables without a verdict: code that relies on a reconciliation leaves their rows out.

use std::collections::BTreeSet;

use anabranch_schemas::shard::ShardId;
use serde::{Deserialize, Serialize};

/// Tables that a report lists, at most; with more it says that all are unproven.
const SHARDS_MAX: usize = 1_000;

/// Source tables that were not compared with the derived stores, or not to the end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unproven {
    /// Whether no table is proven, or more are unproven than are listed.
    pub is_all: bool,
    pub shards: BTreeSet<ShardId>,
}

impl Unproven {
    pub fn add(&mut self, shards: impl IntoIterator<Item = ShardId>) {
        if !self.is_all {
            self.shards.extend(shards);
        }
        if self.shards.len() > SHARDS_MAX {
            self.add_all();
        }
    }

    pub fn add_all(&mut self) {
        self.is_all = true;
        self.shards.clear();
    }

    /// Returns whether every table has a verdict.
    pub fn is_empty(&self) -> bool {
        !self.is_all && self.shards.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_tables_to_be_listed_are_all_of_them() {
        let shard = |number: usize| ShardId::from_u64(number as u64).unwrap();
        let mut unproven = Unproven::default();
        assert!(unproven.is_empty());
        unproven.add((0..SHARDS_MAX).map(shard));
        assert_eq!((unproven.is_all, unproven.shards.len()), (false, SHARDS_MAX));
        unproven.add([shard(SHARDS_MAX)]);
        assert_eq!((unproven.is_all, unproven.shards.len()), (true, 0));
        unproven.add([shard(1)]);
        assert!(unproven.shards.is_empty() && !unproven.is_empty());
    }
}
