//! Where rows stand of the shards that a flush withdraws: found before its transaction, and deleted in it.
//!
//! A statement such as `DROP DATABASE` withdraws every table that the configuration could mean, most of which never had
//! a row. A DELETE for each of them and each derived table costs a statement; a lookup in an index costs a fiftieth of
//! that. Nobody but the lane writes its tables, and the fence refuses the flush when another process of it came in
//! between; so what was found still stands.

use std::collections::{BTreeMap, BTreeSet};

use anabranch_pipeline::deliver::Flush;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;

use super::statements::Layout;
use crate::mysql::connection::{push_number, quote_table};

/// Of one statement: each is asked for the whole list of shards.
const TABLES_MAX: usize = 100;
/// Of one statement, so that one with the most tables ends within a second.
const SHARDS_MAX: usize = 500;

/// A derived table that has rows of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Occupied {
    /// Index into the projection's list of derived tables.
    pub(super) table: u32,
    pub(super) shard: ShardId,
}

/// The version up to which each withdrawn shard loses its rows: the highest, when a flush withdraws a shard twice.
pub(super) fn versions(flush: &Flush) -> BTreeMap<ShardId, Lsn> {
    let mut versions = BTreeMap::new();
    for (shard, lsn) in &flush.withdrawals {
        let version = versions.entry(*shard).or_insert(*lsn);
        *version = (*version).max(*lsn);
    }
    versions
}

/// Statements that find which of the lane's tables have rows of a withdrawn shard. Each row is a table's index and a
/// shard.
///
/// The subquery has a LIMIT, which keeps the server from joining the whole table with the list: it looks each shard up
/// in the index that begins with the shard.
pub(super) fn selects(layout: &Layout<'_>, flush: &Flush) -> Vec<String> {
    let shards: BTreeSet<ShardId> = flush.withdrawals.iter().map(|(shard, _)| *shard).collect();
    let shards: Vec<ShardId> = shards.into_iter().collect();
    let owned = layout.owned.iter().copied().filter(|index| flush.withdraws_from(*index));
    let owned: Vec<u32> = owned.collect();
    let mut statements = Vec::new();
    for shards in shards.chunks(SHARDS_MAX) {
        let list = list(shards);
        for tables in owned.chunks(TABLES_MAX) {
            let mut sql = list.clone();
            for (place, index) in tables.iter().enumerate() {
                sql.push_str(if place == 0 { " SELECT " } else { " UNION ALL SELECT " });
                push_number(&mut sql, u64::from(*index));
                let table = &layout.tables[*index as usize].derived;
                let table = quote_table(&table.database, &table.table);
                sql.push_str(&format!(
                    ",`s` FROM `l` WHERE (SELECT 1 FROM {table} WHERE `shard_id` = `l`.`s` LIMIT 1)"
                ));
            }
            statements.push(sql);
        }
    }
    statements
}

/// A list `l` of shards (`s`).
fn list(shards: &[ShardId]) -> String {
    let mut list = String::from("WITH `l` (`s`) AS (");
    for (place, shard) in shards.iter().enumerate() {
        list.push_str(if place == 0 { "SELECT CAST(" } else { " UNION ALL SELECT CAST(" });
        push_number(&mut list, shard.as_u64());
        list.push_str(" AS UNSIGNED)");
    }
    list.push(')');
    list
}
