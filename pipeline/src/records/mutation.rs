//! Mutations that a projection asks of a target: versioned changes of claims, and their compaction.
//!
//! A claim is one row of one derived table, stated by one shard. A flush keeps only the last mutation of each (table,
//! claim), *after* projecting: 0101 → 0102 → 0103 in one window must delete in two tables.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use anabranch_schemas::change::{Action, Change, TableIdentity};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;

use super::{Cell, Progress, Refresh};

/// Action on one claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MutationAction {
    /// Writes the row with these value columns, unless the stored version is newer.
    Upsert(Arc<[Cell]>),
    /// Removes the row, unless the stored version is newer.
    Delete,
}

/// One versioned mutation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mutation {
    /// Index into the projection's list of derived tables.
    pub table: u32,
    pub shard: ShardId,
    /// Key columns beside the shard.
    pub key: Box<[Cell]>,
    pub lsn: Lsn,
    pub action: MutationAction,
}

impl Mutation {
    /// Whether the mutation is of this row: table, shard, key.
    pub fn is_of(&self, (table, shard, key): &(u32, ShardId, Box<[Cell]>)) -> bool {
        (self.table, self.shard, &self.key) == (*table, *shard, key)
    }
}

/// One mutation of a finished flush.
#[derive(Debug, Clone, Copy)]
pub struct OrderedMutation<'f> {
    pub table: u32,
    pub shard: ShardId,
    pub key: &'f [Cell],
    pub lsn: Lsn,
    pub action: &'f MutationAction,
}

impl OrderedMutation<'_> {
    /// A copy that outlives the flush.
    pub fn to_owned(&self) -> Mutation {
        let Self { table, shard, lsn, .. } = *self;
        Mutation { table, shard, key: self.key.into(), lsn, action: self.action.clone() }
    }
}

/// Source rows that were read as they are: for them, only the claims that the flush writes remain in the lane's tables.
/// Versions do not count there: a stored claim above the watermark has no source row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacement {
    /// Low watermark of the rows.
    pub low: Lsn,
    /// Index of the key column of a derived row that holds the key of its source row.
    pub column: usize,
    pub rows: BTreeSet<(ShardId, Cell)>,
}

impl Replacement {
    /// Whether a derived row of this key belongs to one of the source rows.
    pub fn covers(&self, shard: ShardId, key: &[Cell]) -> bool {
        key.get(self.column).is_some_and(|cell| self.rows.contains(&(shard, cell.clone())))
    }
}

/// Work of a statement for a table, in rows of one (MariaDB 10.11: 50 µs, and 7 µs a row).
pub(crate) const TABLE_WORK: usize = 8;

/// A source table that left by a retention rule: its rows up to the position keep standing, whatever the table of that
/// name holds afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retirement {
    pub table: TableIdentity<'static>,
    pub at: Lsn,
}

/// Position up to which rows of each retired shard keep standing: that of its last retirement.
pub type RetiredShards = BTreeMap<ShardId, Lsn>;

/// A request to read source tables again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reread {
    Table(ShardId),
    /// Every table of the lane's entity.
    Every,
    /// More tables than the progress row lists: `Every` stands before it.
    Unlisted,
}

/// Key of a derived row: table, shard, key columns.
type DerivedKey = (u32, ShardId, Box<[Cell]>);

/// The work of one transaction: withdrawals first, then the replacement, then mutations, then progress.
#[derive(Debug, Default)]
pub struct Flush {
    /// Shards to withdraw: every claim that is not above the Lsn is removed, in all tables of the lane.
    pub withdrawals: Vec<(ShardId, Lsn)>,
    /// Tables to which the withdrawals apply; `None` = all tables of the lane.
    pub withdrawn_tables: Option<Range<u32>>,
    /// Source tables that left by a retention rule. The store keeps them with the lane's progress.
    pub retirements: Vec<Retirement>,
    /// The source rows that a refresh of keys has read.
    pub replacement: Option<Replacement>,
    mutations: HashMap<DerivedKey, (Lsn, MutationAction), foldhash::quality::RandomState>,
    /// Shards of the mutations, and perhaps more.
    owners: HashSet<ShardId, foldhash::quality::RandomState>,
    /// Tables to be read again from the first chunk on: chunks of them that were read before say too little.
    pub(crate) rereads: Vec<Reread>,
    /// The progress row to store; `revision` is one above the stored one.
    pub progress: Progress,
}

impl Flush {
    /// Returns a flush without work; `progress` is the lane's.
    pub fn new(progress: Progress) -> Self {
        Self { progress, ..Self::default() }
    }

    /// Adds a mutation; it replaces an earlier one of the same table and claim.
    pub fn push(&mut self, mutation: Mutation) {
        self.owners.insert(mutation.shard);
        self.mutations
            .insert((mutation.table, mutation.shard, mutation.key), (mutation.lsn, mutation.action));
    }

    /// Withdraws all claims of a shard. Earlier mutations of the shard become deletes: the withdrawal finds no row of
    /// them, and a writer that was cut off may have sent them so that they arrive late.
    pub fn withdraw(&mut self, shard: ShardId, lsn: Lsn) {
        // A statement may withdraw thousands of shards, and few have mutations here.
        if self.owners.contains(&shard) {
            let kept = self.retired_before(shard, lsn);
            let of_shard = self.mutations.iter_mut().filter(|((_, owner, _), (version, _))| {
                *owner == shard && kept.is_none_or(|kept| *version > kept)
            });
            of_shard.for_each(|(_, mutation)| *mutation = (lsn, MutationAction::Delete));
        }
        self.withdrawals.push((shard, lsn));
    }

    /// Leaves the withdrawals to later transactions, as far as progress has room for them. Those of a replay stay, and
    /// those of a shard that this flush retires: a retirement keeps the rows that stand at its own commit. Withdrawals
    /// that were left before come back when other parts of progress need their room.
    pub(crate) fn defer_withdrawals(&mut self) {
        let has_any = !self.withdrawals.is_empty() || !self.progress.withdrawals.is_empty();
        if !has_any || self.progress.is_replaying() {
            return;
        }
        let room = self.progress.withdrawals_room();
        let without_room = self.progress.withdrawals.take_beyond(room);
        let retired: BTreeSet<ShardId> = self.retirements.iter().map(|retired| retired.table.shard).collect();
        let withdrawals = std::mem::take(&mut self.withdrawals).into_iter();
        let (of_retired, others): (Vec<_>, Vec<_>) =
            withdrawals.partition(|(shard, _)| retired.contains(shard));
        self.withdrawals = of_retired;
        self.withdrawals.extend(self.progress.withdrawals.add(others, room));
        self.withdrawals.extend(without_room);
    }

    /// Adds a retirement. It takes the place of an earlier one of its shard that no withdrawal may lie behind, so many
    /// deletions of a retention job are one.
    fn retire(&mut self, table: &TableIdentity<'_>, at: Lsn) {
        let is_withdrawn = self.withdrawals.iter().any(|(shard, _)| *shard == table.shard);
        let earlier = self.retirements.iter_mut().find(|retired| retired.table.shard == table.shard);
        match earlier.filter(|_| !is_withdrawn) {
            Some(earlier) => earlier.at = earlier.at.max(at),
            None => self.retirements.push(Retirement { table: table.clone().into_owned(), at }),
        }
    }

    /// Returns the position of this flush's last retirement of a shard before `lsn`.
    fn retired_before(&self, shard: ShardId, lsn: Lsn) -> Option<Lsn> {
        let of_shard = self.retirements.iter().filter(|retired| retired.table.shard == shard);
        of_shard.map(|retired| retired.at).filter(|at| *at < lsn).max()
    }

    /// Returns the versions that the withdrawals remove: for each shard those above the first position, if there is
    /// one, up to the second. Rows of a retired table keep standing. `retired` are the shards that were retired before
    /// this flush; a withdrawal that is not above such a position comes from a replay, or from a sweep of a table that
    /// left meanwhile, and removes nothing.
    pub fn withdrawn_versions(&self, retired: &RetiredShards) -> BTreeMap<(ShardId, Option<Lsn>), Lsn> {
        let mut versions = BTreeMap::new();
        for (shard, lsn) in &self.withdrawals {
            let before = retired.get(shard).copied();
            if before.is_some_and(|before| before >= *lsn) {
                continue;
            }
            let above = before.max(self.retired_before(*shard, *lsn));
            let version = versions.entry((*shard, above)).or_insert(*lsn);
            *version = (*version).max(*lsn);
        }
        versions
    }

    /// Adds an action on a whole table of the lane's entity: an action without row images.
    pub fn take_table(&mut self, change: &Change<'_, '_>) {
        let (table, lsn) = (change.table, change.lsn);
        let refresh = self.progress.refresh.take();
        self.progress.refresh = match change.action {
            Action::Reread if table.is_every() => {
                self.rereads.push(Reread::Every);
                Some(Refresh::with_every_table(refresh))
            }
            Action::Reread => {
                let owed = Refresh::with_reread(refresh, table.shard, lsn);
                self.rereads.push(Reread::Table(table.shard));
                if !owed.rereads.contains_key(&table.shard) {
                    // More tables wait than are listed, so every table is to be read.
                    self.rereads.extend([Reread::Every, Reread::Unlisted]);
                }
                Some(owed)
            }
            Action::Retire => {
                if let Some(owed) = self.progress.withdrawals.take(table.shard) {
                    // Later it would find rows of a retired table, which stay.
                    self.withdrawals.push((table.shard, owed));
                }
                self.retire(table, lsn);
                refresh.map(|refresh| refresh.without_reread(table.shard, lsn))
            }
            _ => {
                self.withdraw(table.shard, lsn);
                refresh.map(|refresh| refresh.without_reread(table.shard, lsn))
            }
        };
        self.progress.was_refreshed |= self.progress.refresh.is_some();
    }

    /// Whether the withdrawals apply to a table of the lane.
    pub fn withdraws_from(&self, table: u32) -> bool {
        self.withdrawn_tables.as_ref().is_none_or(|tables| tables.contains(&table))
    }

    /// Keeps the mutations for which `keeps` returns true; it gets table, shard and key.
    pub(crate) fn retain(&mut self, keeps: impl Fn(u32, ShardId, &[Cell]) -> bool) {
        self.mutations.retain(|(table, shard, key), _| keeps(*table, *shard, key));
    }

    /// Keeps about this much work and returns the rest, in later tables; a row is 1. `None` when all of it is kept, as
    /// it always is with a replacement.
    pub(crate) fn cut(&mut self, work: usize) -> Option<Self> {
        if self.replacement.is_some() || self.rows() * (TABLE_WORK + 1) <= work {
            return None;
        }
        let mut rows_of = BTreeMap::<u32, usize>::new();
        for (table, ..) in self.mutations.keys() {
            *rows_of.entry(*table).or_default() += 1;
        }
        let mut before = 0;
        let end = rows_of.into_iter().find_map(|(table, rows)| {
            let is_beyond = before > 0 && before + TABLE_WORK + rows > work;
            before += TABLE_WORK + rows;
            is_beyond.then_some(table)
        })?;
        let rest = self.mutations.extract_if(|(table, ..), _| *table >= end).collect();
        Some(Self { mutations: rest, owners: self.owners.clone(), ..Self::default() })
    }

    /// Yields the claims: table, shard, key and version, in no order.
    pub fn claims(&self) -> impl Iterator<Item = (u32, ShardId, &[Cell], Lsn)> {
        self.mutations.iter().map(|((table, shard, key), (lsn, _))| (*table, *shard, &**key, *lsn))
    }

    pub fn rows(&self) -> usize {
        self.mutations.len()
    }

    pub fn is_empty(&self) -> bool {
        let changes_no_row = self.mutations.is_empty() && self.withdrawals.is_empty();
        changes_no_row && self.retirements.is_empty() && self.replacement.is_none()
    }

    /// Returns the mutations ordered by table, shard and key: every flush locks in one order.
    pub fn ordered(&self) -> Vec<OrderedMutation<'_>> {
        let mut ordered: Vec<OrderedMutation<'_>> = self
            .mutations
            .iter()
            .map(|((table, shard, key), (lsn, action))| OrderedMutation {
                table: *table,
                shard: *shard,
                key,
                lsn: *lsn,
                action,
            })
            .collect();
        ordered.sort_unstable_by(|a, b| (a.table, a.shard, a.key).cmp(&(b.table, b.shard, b.key)));
        ordered
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use anabranch_schemas::change::Entity;

    use super::*;

    fn lsn(position: u64) -> Lsn {
        Lsn::new(1, 1, position * 16).expect("it is small")
    }

    fn table() -> TableIdentity<'static> {
        TableIdentity {
            entity: Entity::Flux,
            shard: ShardId::of("s", "d", "t", 0),
            database: Cow::Borrowed("d"),
            table: Cow::Borrowed("t"),
        }
    }

    fn take(flush: &mut Flush, position: u64, action: Action<'_>) {
        flush.take_table(&Change { lsn: lsn(position), table: &table(), action });
    }

    /// Documents outlive their table: neither a withdrawal nor a sweep after it reaches them.
    #[test]
    fn rows_of_a_retired_table_are_no_part_of_any_later_withdrawal() {
        let shard = table().shard;
        let retired = RetiredShards::from([(shard, lsn(10))]);
        let withdrawn = |position, retired: &RetiredShards| {
            let mut flush = Flush::default();
            take(&mut flush, position, Action::Withdraw);
            flush.withdrawn_versions(retired)
        };
        assert_eq!(withdrawn(7, &RetiredShards::new()), BTreeMap::from([((shard, None), lsn(7))]));
        assert!(withdrawn(7, &retired).is_empty(), "a replay, or a sweep that the retirement overtook");
        assert!(withdrawn(10, &retired).is_empty());
        assert_eq!(withdrawn(12, &retired), BTreeMap::from([((shard, Some(lsn(10))), lsn(12))]));
    }

    #[test]
    fn a_flush_withdraws_what_was_before_a_retirement_and_what_came_after_it_and_nothing_between() {
        let shard = table().shard;
        let mut flush = Flush::default();
        let write = |flush: &mut Flush, key, position| {
            let action = MutationAction::Upsert([].into());
            flush.push(Mutation {
                table: 0,
                shard,
                key: [Cell::UInt(key)].into(),
                lsn: lsn(position),
                action,
            });
        };
        write(&mut flush, 1, 3);
        take(&mut flush, 5, Action::Withdraw);
        write(&mut flush, 2, 7);
        take(&mut flush, 10, Action::Retire);
        write(&mut flush, 3, 12);
        take(&mut flush, 15, Action::Withdraw);
        let expected = [((shard, None), lsn(5)), ((shard, Some(lsn(10))), lsn(15))];
        assert_eq!(flush.withdrawn_versions(&RetiredShards::new()), BTreeMap::from(expected));
        let kept: Vec<_> = flush.ordered().iter().map(|row| *row.action != MutationAction::Delete).collect();
        assert_eq!(kept, [false, true, false]);
        assert_eq!(flush.retirements, [Retirement { table: table(), at: lsn(10) }]);
    }

    #[test]
    fn a_retirement_ends_what_waits_to_be_read_again_and_is_work_of_its_own() {
        let waits = Refresh::with_reread(None, table().shard, lsn(4));
        let mut flush = Flush::new(Progress { refresh: Some(waits), ..Progress::default() });
        assert!(flush.is_empty());
        take(&mut flush, 5, Action::Retire);
        assert!(!flush.is_empty() && flush.withdrawals.is_empty());
        assert!(flush.progress.refresh.is_some_and(|refresh| refresh.rereads.is_empty()));
    }

    /// A chunk that was read before says too little about any table then.
    #[test]
    fn a_table_that_has_no_room_among_those_that_wait_has_all_tables_read_anew() {
        let numbered = |number| ShardId::from_u64(number).expect("it is small");
        let rereads = (0..999).map(|number| (numbered(number), lsn(4))).collect();
        let refresh = Refresh { rereads, ..Refresh::of_every_table() };
        let mut flush = Flush::new(Progress { refresh: Some(refresh), ..Progress::default() });
        take(&mut flush, 5, Action::Reread);
        assert_eq!(flush.rereads, [Reread::Table(table().shard)]);
        let other = TableIdentity { shard: numbered(1_000), ..table() };
        flush.take_table(&Change { lsn: lsn(6), table: &other, action: Action::Reread });
        assert!(flush.progress.refresh.as_ref().is_some_and(|refresh| refresh.rereads.is_empty()));
        assert!(flush.rereads.contains(&Reread::Every));
    }

    /// A retention job that deletes a million rows retires the heir of their table with each event.
    #[test]
    fn retirements_of_a_shard_are_one_unless_it_was_withdrawn_between_them() {
        let mut flush = Flush::default();
        for position in 5..9 {
            take(&mut flush, position, Action::Retire);
        }
        assert_eq!(flush.retirements, [Retirement { table: table(), at: lsn(8) }]);
        take(&mut flush, 9, Action::Withdraw);
        take(&mut flush, 10, Action::Retire);
        let positions: Vec<Lsn> = flush.retirements.iter().map(|retired| retired.at).collect();
        assert_eq!(positions, [lsn(8), lsn(10)], "what came after the first one was withdrawn");
    }

    /// Progress is stored in a text of 64 KiB.
    #[test]
    fn withdrawals_are_carried_out_at_once_when_tables_to_be_read_again_take_the_room() {
        let owed = |number: u64| ShardId::from_u64(u64::MAX / 2 - number).expect("it has 63 bits");
        let mut flush =
            Flush::new(Progress { position: lsn(5), highest_position: lsn(5), ..Progress::default() });
        flush.withdrawals = (0..900).map(|number| (owed(number), lsn(5))).collect();
        flush.defer_withdrawals();
        assert_eq!((flush.withdrawals.len(), flush.progress.withdrawals.len()), (0, 900));
        let rereads = (0..1_000).map(|number| (owed(number), Lsn::MAX)).collect();
        flush.progress.refresh = Some(Refresh { rereads, ..Refresh::of_every_table() });
        flush.defer_withdrawals();
        let (now, later) = (flush.withdrawals.len(), flush.progress.withdrawals.len());
        assert!(now > 100 && later > 100 && now + later == 900, "{now} now, {later} later");
    }

    #[test]
    fn a_withdrawal_is_left_for_later_unless_the_lane_replays_or_the_table_is_retired() {
        let shard = table().shard;
        let at = |position| Progress { position, highest_position: lsn(5), ..Progress::default() };
        let mut flush = Flush::new(at(lsn(5)));
        take(&mut flush, 5, Action::Withdraw);
        flush.defer_withdrawals();
        assert!(flush.withdrawals.is_empty() && flush.progress.withdrawals.contains(shard));
        take(&mut flush, 8, Action::Retire);
        flush.defer_withdrawals();
        assert_eq!(flush.withdrawals, [(shard, lsn(4))], "rows that the statement itself wrote stay");
        assert!(flush.progress.withdrawals.is_empty(), "the rows of the retirement stay");
        let mut replaying = Flush::new(at(lsn(4)));
        take(&mut replaying, 4, Action::Withdraw);
        replaying.defer_withdrawals();
        assert_eq!(replaying.withdrawals, [(shard, lsn(4))]);
    }

    #[test]
    fn a_flush_is_cut_between_tables_and_nothing_is_lost() {
        let mut rest = Flush::default();
        for (table, rows) in [(0, 3), (2, 30), (3, 1), (5, 2), (9, 1)] {
            for key in 0..rows {
                let (shard, key) = (ShardId::of("s", "d", "t", 0), [Cell::UInt(key)].into());
                rest.push(Mutation { table, shard, key, lsn: Lsn::ZERO, action: MutationAction::Delete });
            }
        }
        let mut parts = Vec::new();
        loop {
            let tail = rest.cut(20);
            let mut tables: Vec<_> = rest.claims().map(|(table, ..)| table).collect();
            tables.sort_unstable();
            tables.dedup();
            parts.push((tables, rest.rows()));
            let Some(tail) = tail else { break };
            rest = tail;
        }
        assert_eq!(parts, [(vec![0], 3), (vec![2], 30), (vec![3, 5], 3), (vec![9], 1)]);
    }
}
