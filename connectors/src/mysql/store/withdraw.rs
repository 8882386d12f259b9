//! Withdrawal of shards: finds the tables with their rows before the flush's transaction, and deletes the rows in it.
//!
//! A statement such as `DROP DATABASE` withdraws every table that the configuration could mean. Most of them never had
//! a row, and a DELETE for each of them in each derived table costs a statement. The lane removes most of them in parts
//! (`lane/withdrawn.rs`). What it cannot defer goes in the flush. For that the lane queries each of its tables
//! for the first existing shard at or after a withdrawn one, then from the next withdrawn shard on: the cost is that of
//! the existing shards. After [`ROUNDS_MAX`] rounds a table is queried for the rest of the list at once. Only the lane
//! writes its tables, and the fence refuses the flush if another process of the lane came in between: so the found rows
//! still exist.
//!
//! The sweep of a source table withdraws one shard, most of whose rows are newer and stay. A DELETE locks each of them
//! for nothing. So for one shard each table is queried for a row that is old enough.
//!
//! A statement may withdraw thousands of shards, few of which have rows. When the lane is first asked which of so many
//! may have rows, it takes a [`Census`]: the shards in each of its tables. It adds the shards that it writes, and drops
//! the census when it loads its progress again. The census may name too many shards, and never too few, so a lane with
//! a census queries its tables no more, but for the old rows of one shard.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anabranch_pipeline::records::Flush;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;

use super::layout::{FlushLayout, OccupiedTable};
use crate::mysql::connection::{push_number, quote_identifier, quote_table};

/// Tables that one statement queries.
const TABLES_MAX: usize = 100;
/// Shards that one statement looks up in each of its tables.
const SHARDS_MAX: usize = 500;
/// Queries of a table for its next shard. Such a query costs the server about 25 µs, a shard in a list 6 µs (MariaDB
/// 10.11).
const ROUNDS_MAX: u32 = 16;

/// Shards of one table above which a census costs more than a search for each of a statement's thousands of shards.
const CENSUS_MAX: u32 = 2_000;

/// Shards of which rows may exist in a lane's tables, as far as the lane knows.
#[derive(Debug, Default)]
pub(super) enum PresentShards {
    #[default]
    Unknown,
    /// The shards are too many to be listed.
    Many,
    Shards(HashMap<ShardId, Tables>),
}

/// A set of tables by their index: one bit for each.
#[derive(Debug, Default)]
pub(super) struct Tables(Vec<u64>);

impl Tables {
    fn insert(&mut self, table: u32) {
        let (word, bit) = (table as usize / 64, table % 64);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << bit;
    }

    fn contains(&self, table: u32) -> bool {
        self.0.get(table as usize / 64).is_some_and(|word| word & (1 << (table % 64)) != 0)
    }
}

impl PresentShards {
    /// Adds the shards that a flush writes.
    pub(super) fn add(&mut self, flush: &Flush) {
        if let Self::Shards(shards) = self {
            for (table, shard, ..) in flush.claims() {
                shards.entry(shard).or_default().insert(table);
            }
        }
    }

    /// Whether rows of a shard may exist in one table.
    pub(super) fn may_have_in(&self, table: u32, shard: ShardId) -> bool {
        match self {
            Self::Unknown | Self::Many => true,
            Self::Shards(shards) => shards.get(&shard).is_some_and(|tables| tables.contains(table)),
        }
    }

    pub(super) fn may_have(&self, shard: ShardId) -> bool {
        match self {
            Self::Unknown | Self::Many => true,
            Self::Shards(shards) => shards.contains_key(&shard),
        }
    }
}

/// Lists the shards in the tables of a lane: it returns statements and takes their rows, as [`Search`] does.
#[derive(Debug)]
pub(super) struct Census {
    /// Tables that may have more shards, each with the last shard that was found.
    open: BTreeMap<u32, Option<u64>>,
    shards: HashMap<ShardId, Tables>,
    rounds: u32,
}

impl Census {
    pub(super) fn of(layout: &FlushLayout<'_>) -> Self {
        let open = layout.owned.iter().map(|index| (*index, None)).collect();
        Self { open, shards: HashMap::new(), rounds: 0 }
    }

    /// Returns the statements of the next round; none = the census is over.
    pub(super) fn ask(&mut self, layout: &FlushLayout<'_>) -> Vec<String> {
        self.rounds += 1;
        if self.rounds > CENSUS_MAX {
            return Vec::new();
        }
        let question = |(index, last): (u32, Option<u64>)| {
            let table = name(layout, index);
            let after = last.map_or(String::new(), |last| format!(" WHERE `shard_id` > {last}"));
            format!("SELECT {index},MIN(`shard_id`) FROM {table}{after}")
        };
        in_statements(self.open.iter().map(|(index, last)| (*index, *last)), question)
    }

    /// Takes one row of an answer.
    pub(super) fn answer(&mut self, table: u32, shard: Option<u64>) {
        match (shard, self.open.get_mut(&table)) {
            (Some(number), Some(last)) => {
                *last = Some(number);
                if let Some(shard) = ShardId::from_u64(number) {
                    self.shards.entry(shard).or_default().insert(table);
                }
            }
            _ => drop(self.open.remove(&table)),
        }
    }

    pub(super) fn into_present(self) -> PresentShards {
        if self.open.is_empty() { PresentShards::Shards(self.shards) } else { PresentShards::Many }
    }
}

/// Searches withdrawn shards in the tables of a lane: it returns statements and takes their rows.
#[derive(Debug)]
pub(super) struct Search {
    /// Withdrawn shards, in rising order.
    shards: Vec<ShardId>,
    /// The version of the only withdrawn shard: rows above it stay.
    version: Option<Lsn>,
    /// Tables that may have more shards, each with the index in the list from which it is queried next.
    open: BTreeMap<u32, usize>,
    occupied: BTreeSet<OccupiedTable>,
    rounds: u32,
}

impl Search {
    /// Begins a search; with a census it is over without a query, but for one shard.
    pub(super) fn of(layout: &FlushLayout<'_>, flush: &Flush, present: &PresentShards) -> Self {
        let shards: BTreeSet<ShardId> = flush.withdrawals.iter().map(|(shard, _)| *shard).collect();
        let shards: Vec<ShardId> = shards.into_iter().collect();
        let tables = || layout.owned.iter().copied().filter(|table| flush.withdraws_from(*table));
        let (mut open, mut occupied) = (BTreeMap::new(), BTreeSet::new());
        if let [(shard, version)] = flush.withdrawals[..] {
            open.extend(tables().filter(|table| present.may_have_in(*table, shard)).map(|table| (table, 0)));
            return Self { shards, version: Some(version), open, occupied, rounds: 0 };
        }
        if let PresentShards::Shards(with_rows) = present {
            for shard in &shards {
                let of_shard = with_rows.get(shard).into_iter();
                occupied.extend(of_shard.flat_map(|of_shard| {
                    tables()
                        .filter(|table| of_shard.contains(*table))
                        .map(|table| OccupiedTable { table, shard: *shard })
                }));
            }
        } else if !shards.is_empty() {
            open.extend(tables().map(|table| (table, 0)));
        }
        Self { shards, version: None, open, occupied, rounds: 0 }
    }

    /// Begins a search for shards in all tables of the lane.
    pub(super) fn of_shards(layout: &FlushLayout<'_>, shards: BTreeSet<ShardId>) -> Self {
        let shards: Vec<ShardId> = shards.into_iter().collect();
        let tables = layout.owned.iter().filter(|_| !shards.is_empty());
        let open = tables.map(|table| (*table, 0)).collect();
        Self { shards, version: None, open, occupied: BTreeSet::new(), rounds: 0 }
    }

    /// Statements of the next round; none = the search is over. Each row is a table's index and a shard or NULL.
    pub(super) fn ask(&mut self, layout: &FlushLayout<'_>) -> Vec<String> {
        self.rounds += 1;
        if let Some(version) = self.version {
            return self.old_rows(layout, version);
        }
        if self.rounds <= ROUNDS_MAX {
            return self.nexts(layout);
        }
        let lists = self.lists(layout);
        // A list is the last query: shards that it does not return have no rows.
        self.open.clear();
        lists
    }

    /// Takes one row of an answer.
    pub(super) fn answer(&mut self, table: u32, shard: Option<u64>) {
        let Some(number) = shard else {
            self.open.remove(&table);
            return;
        };
        let found = ShardId::from_u64(number).filter(|shard| self.shards.binary_search(shard).is_ok());
        self.occupied.extend(found.map(|shard| OccupiedTable { table, shard }));
        let next = self.shards.partition_point(|shard| shard.as_u64() <= number);
        if next == self.shards.len() {
            self.open.remove(&table);
        } else if let Some(place) = self.open.get_mut(&table) {
            *place = next;
        }
    }

    /// Returns the occupied tables in the order of locks: by table, then by shard.
    pub(super) fn into_found(self) -> Vec<OccupiedTable> {
        self.occupied.into_iter().collect()
    }

    /// Queries each table for a row of the only shard that is not above its version. Without the index a server may
    /// read a whole small table.
    fn old_rows(&self, layout: &FlushLayout<'_>, version: Lsn) -> Vec<String> {
        let question = |(index, place): (u32, usize)| {
            let (table, shard) = (name(layout, index), self.shards[place]);
            let by_shard = quote_identifier(layout.tables[index as usize].derived.shape.shard_index);
            format!(
                "SELECT {index},(SELECT `shard_id` FROM {table} FORCE INDEX ({by_shard}) \
                 WHERE `shard_id` = {shard} AND `lsn` <= {} LIMIT 1)",
                version.as_u64()
            )
        };
        in_statements(self.open.iter().map(|(index, place)| (*index, *place)), question)
    }

    /// Queries the next shards: the server answers a MIN over the head of an index by one lookup.
    fn nexts(&self, layout: &FlushLayout<'_>) -> Vec<String> {
        let question = |(index, place): (u32, usize)| {
            let (table, shard) = (name(layout, index), self.shards[place]);
            format!("SELECT {index},MIN(`shard_id`) FROM {table} WHERE `shard_id` >= {shard}")
        };
        in_statements(self.open.iter().map(|(index, place)| (*index, *place)), question)
    }

    /// Queries the rest of the list. The subquery's LIMIT keeps the server from joining the whole table with the list:
    /// it looks up each shard in the index that begins with the shard.
    fn lists(&self, layout: &FlushLayout<'_>) -> Vec<String> {
        let open: Vec<u32> = self.open.keys().copied().collect();
        let first = self.open.values().min().copied().unwrap_or_default();
        let mut statements = Vec::new();
        for shards in self.shards[first..].chunks(SHARDS_MAX) {
            let list = list(shards);
            for tables in open.chunks(TABLES_MAX) {
                let questions = tables.iter().map(|index| {
                    let table = name(layout, *index);
                    format!("SELECT {index},`s` FROM `l` WHERE (SELECT 1 FROM {table} WHERE `shard_id` = `l`.`s` LIMIT 1)")
                });
                let questions = questions.collect::<Vec<_>>().join(" UNION ALL ");
                statements.push(format!("{list} {questions}"));
            }
        }
        statements
    }
}

/// Joins one query for each table, up to [`TABLES_MAX`] of them in a statement.
fn in_statements<T>(tables: impl Iterator<Item = T>, question: impl Fn(T) -> String) -> Vec<String> {
    let questions: Vec<String> = tables.map(question).collect();
    questions.chunks(TABLES_MAX).map(|questions| questions.join(" UNION ALL ")).collect()
}

fn name(layout: &FlushLayout<'_>, index: u32) -> String {
    let table = &layout.tables[index as usize].derived;
    quote_table(&table.database, &table.table)
}

/// Returns a list `l` of shards (`s`) as SQL.
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

#[cfg(test)]
mod tests {
    use anabranch_pipeline::projections::ProjectedTable;
    use anabranch_pipeline::records::{DerivedTable, RetiredShards, TableShape};
    use proptest::prelude::*;

    use super::*;

    static SHAPE: TableShape = TableShape {
        definition: "",
        key_columns: &["user_id"],
        shard_index: "PRIMARY",
        shard_order: &[0],
        value_columns: &[],
    };

    fn census(with_rows: &[BTreeSet<u64>], layout: &FlushLayout<'_>) -> PresentShards {
        let mut census = Census::of(layout);
        while !census.ask(layout).is_empty() {
            for (index, last) in census.open.clone() {
                let from = last.map_or(0, |last| last + 1);
                census.answer(index, with_rows[index as usize].range(from..).next().copied());
            }
        }
        census.into_present()
    }

    /// Answers as a server that holds these shards in each table would.
    fn found(
        with_rows: &[BTreeSet<u64>],
        withdrawn: &BTreeSet<u64>,
        has_census: bool,
    ) -> (Vec<(u32, u64)>, usize) {
        let table = |index: usize| {
            let derived = DerivedTable { database: "d".into(), table: format!("t{index}"), shape: &SHAPE };
            ProjectedTable { derived, target: 0, lane: 0 }
        };
        let tables: Vec<_> = (0..with_rows.len()).map(table).collect();
        let owned: Vec<u32> = (0..).take(with_rows.len()).collect();
        let retired = RetiredShards::new();
        let layout = FlushLayout {
            tables: &tables,
            owned: &owned,
            outbox: None,
            stored_versions: &[],
            withdrawn: &[],
            retired: &retired,
        };
        let mut flush = Flush::default();
        for shard in withdrawn {
            flush.withdraw(ShardId::from_u64(*shard).unwrap(), Lsn::ZERO);
        }
        let present = if has_census { census(with_rows, &layout) } else { PresentShards::Unknown };
        let (mut search, mut questions) = (Search::of(&layout, &flush, &present), 0);
        loop {
            let open = search.open.clone();
            let statements = search.ask(&layout);
            if statements.is_empty() {
                break;
            }
            questions += open.len();
            for (index, place) in open {
                let of_table = &with_rows[index as usize];
                if statements[0].starts_with("WITH") {
                    for shard in of_table.intersection(withdrawn) {
                        search.answer(index, Some(*shard));
                    }
                } else {
                    let from = search.shards[place].as_u64();
                    search.answer(index, of_table.range(from..).next().copied());
                }
            }
        }
        let occupied = search.into_found().into_iter();
        (occupied.map(|found| (found.table, found.shard.as_u64())).collect(), questions)
    }

    #[test]
    fn a_table_is_asked_once_more_than_shards_stand_in_it() {
        let withdrawn: BTreeSet<u64> = (0..5_000).map(|shard| shard * 2).collect();
        let with_rows = [BTreeSet::new(), BTreeSet::from([7, 8]), BTreeSet::from([9_998])];
        let (found, questions) = found(&with_rows, &withdrawn, false);
        assert_eq!(found, [(1, 8), (2, 9_998)]);
        assert_eq!(questions, 1 + 3 + 1, "the last one ends with the last withdrawn shard");
    }

    proptest! {
        #[test]
        fn whatever_stands_the_withdrawn_shards_are_found_where_they_stand(
            with_rows in prop::collection::vec(prop::collection::btree_set(0..200u64, 0..60), 1..4),
            withdrawn in prop::collection::btree_set(0..200u64, 0..60),
        ) {
            let expected: Vec<(u32, u64)> = (0u32..).zip(&with_rows)
                .flat_map(|(table, of)| of.intersection(&withdrawn).map(move |shard| (table, *shard)))
                .collect();
            prop_assert_eq!(&found(&with_rows, &withdrawn, false).0, &expected);
            prop_assert_eq!(&found(&with_rows, &withdrawn, true).0, &expected, "with a census");
        }
    }

    #[test]
    fn a_census_of_too_many_shards_is_given_up_and_every_shard_is_looked_for() {
        let crowded = [BTreeSet::from([7]), (0..u64::from(CENSUS_MAX) + 1).collect()];
        let withdrawn = BTreeSet::from([7, u64::from(CENSUS_MAX), 9_000]);
        let found = found(&crowded, &withdrawn, true).0;
        assert_eq!(found, [(0, 7), (1, 7), (1, u64::from(CENSUS_MAX))]);
    }
}
