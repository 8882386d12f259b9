//! The number of changes of each table in one batch.
//!
//! Changes of one event belong to one table, so most of them only raise a number: the map is touched when the table
//! changes. A batch bounds the map, because it has no more tables than changes.

use std::collections::HashMap;

use anabranch_schemas::change::TableIdentity;
use anabranch_schemas::shard::ShardId;

/// Counts of changes by table.
#[derive(Debug, Default)]
pub struct TableCounts {
    /// Name and changes of each table, without the changes of `run`.
    counts: HashMap<ShardId, (String, u64)>,
    /// The table of the newest changes, and the number of changes since another table's.
    run: Option<(ShardId, u64)>,
}

impl TableCounts {
    /// Counts one change of a table. An action on every table of an entity is a change of none.
    pub fn add(&mut self, table: &TableIdentity<'_>) {
        if let Some((shard, changes)) = &mut self.run
            && *shard == table.shard
        {
            *changes += 1;
            return;
        }
        if table.is_every() {
            return;
        }
        self.end_run();
        self.counts.entry(table.shard).or_insert_with(|| (format!("{}.{}", table.database, table.table), 0));
        self.run = Some((table.shard, 1));
    }

    fn end_run(&mut self) {
        let Some((shard, changes)) = self.run.take() else { return };
        if let Some((_, counted)) = self.counts.get_mut(&shard) {
            *counted += changes;
        }
    }

    /// Returns shard, name (`database.table`) and number of changes of each table.
    pub fn into_counts(mut self) -> impl Iterator<Item = (ShardId, String, u64)> {
        self.end_run();
        self.counts.into_iter().map(|(shard, (table, changes))| (shard, table, changes))
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use anabranch_schemas::change::Entity;

    use super::*;

    #[test]
    fn changes_are_counted_by_table_in_any_order() {
        let table = |number: u32| TableIdentity {
            entity: Entity::User,
            shard: ShardId::of("s", "d", "t", number),
            database: Cow::Borrowed("d"),
            table: Cow::Owned(format!("t{number}")),
        };
        let mut counts = TableCounts::default();
        for number in [1, 1, 2, 1, 1, 2, 3] {
            counts.add(&table(number));
        }
        counts.add(&TableIdentity::every(Entity::User));
        let mut counted: Vec<_> = counts.into_counts().map(|(_, table, changes)| (table, changes)).collect();
        counted.sort();
        let expected = [("d.t1", 4), ("d.t2", 2), ("d.t3", 1)];
        assert_eq!(counted, expected.map(|(table, changes)| (table.to_owned(), changes)));
        assert_eq!(TableCounts::default().into_counts().count(), 0);
    }
}
