//! Heirs of captured tables: the shards to which documents pass that a retention job deletes row by row.
//!
//! A job deletes some rows of a table and leaves others, so the table itself cannot be retired. Its deleted rows pass
//! to a shard of their own, which is retired as a table that was dropped is. An heir has the names of its table and an
//! id of its own, so no source row claims under it. It takes the deletions of thirty days: its rows are due together.

use std::collections::HashMap;

use anabranch_schemas::change::TableIdentity;
use anabranch_schemas::shard::ShardId;

/// Seconds whose deletions pass to one heir.
const PERIOD_SECONDS: u32 = 30 * 24 * 3600;

/// Heirs that a stream has needed so far: one for each table and thirty days.
#[derive(Debug, Default)]
pub struct Heirs(HashMap<ShardId, Heir>);

#[derive(Debug)]
struct Heir {
    identity: TableIdentity<'static>,
    /// Shard of the captured table.
    table: ShardId,
}

impl Heirs {
    /// Returns the heir of a table for rows that were deleted at this time, in seconds of the epoch.
    ///
    /// The period depends on the binlog alone, so a stream that reads the event again finds the same heir.
    pub fn of(
        &mut self,
        source: &str,
        generation: u32,
        table: &TableIdentity<'static>,
        seconds: u32,
    ) -> &TableIdentity<'static> {
        let identity = table.heir(source, generation, seconds / PERIOD_SECONDS);
        &self.0.entry(identity.shard).or_insert(Heir { identity, table: table.shard }).identity
    }

    /// Returns an heir with the shard of its table; `None` for a shard that is no heir's.
    pub fn get(&self, shard: ShardId) -> Option<(&TableIdentity<'static>, ShardId)> {
        self.0.get(&shard).map(|heir| (&heir.identity, heir.table))
    }
}

#[cfg(test)]
mod tests {
    use anabranch_schemas::change::Entity;

    use super::*;

    #[test]
    fn an_heir_has_the_names_of_its_table_and_an_id_of_its_own_for_thirty_days() {
        let table = |name: &'static str| TableIdentity {
            entity: Entity::Flux,
            shard: ShardId::of("s", "flux_00_0", name, 2),
            database: "flux_00_0".into(),
            table: name.into(),
        };
        let mut heirs = Heirs::default();
        let mut of = |name, seconds| heirs.of("s", 2, &table(name), seconds).clone();
        let refund = of("refund_05", PERIOD_SECONDS);
        assert_eq!((&*refund.database, &*refund.table), ("flux_00_0", "refund_05"));
        assert_ne!(refund.shard, table("refund_05").shard);
        assert_eq!(of("refund_05", 2 * PERIOD_SECONDS - 1), refund);
        let others = [of("refund_05", 2 * PERIOD_SECONDS).shard, of("refund_06", PERIOD_SECONDS).shard];
        assert!(!others.contains(&refund.shard) && others[0] != others[1]);
        assert_eq!(heirs.get(refund.shard), Some((&refund, table("refund_05").shard)));
        assert_eq!(heirs.get(table("refund_05").shard), None, "a table is not its own heir");
    }
}
