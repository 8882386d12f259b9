//! The decisions of a refresh, without I/O: the next work, and whether a chunk can be written.

use std::collections::{BTreeMap, BTreeSet};

use anabranch_schemas::change::TableIdentity;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;

use super::changed_claims::ChangedClaims;
use super::read::Read;
use crate::records::{Cell, Progress, Refresh, ScanCursor, Scope, TableRefresh};

/// Chunks that are thrown away in a row until a key that never stands still is left as it is.
const REPEATED_MAX: u32 = 10;

/// The next work of a refresh.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Lists the source's tables.
    List,
    /// Reads the rows of these keys.
    Keys(BTreeMap<ShardId, Vec<Cell>>),
    /// Reads the rows of a table after a key.
    Chunk {
        table: TableIdentity<'static>,
        after: Option<ScanCursor>,
        /// Low watermark of the table's first chunk; [`Lsn::ZERO`] if this is the first one.
        first: Lsn,
        /// The table was chosen because it waits to be read again; `None` if it was chosen before.
        is_reread: Option<bool>,
    },
    /// The table does not exist any more.
    Gone(ShardId),
    /// Waits, because no table that is left can be read now.
    WaitForSetAside,
    Finished,
}

/// Returns the next work. `tables` are those of the lane's entity; tables that are `set_aside` cannot be read now. The
/// table that is being `compared` goes on before any other that waits: its comparison is in memory alone.
pub(super) fn next(
    refresh: &Refresh,
    tables: Option<&[TableIdentity<'static>]>,
    set_aside: &BTreeSet<ShardId>,
    compared: Option<ShardId>,
) -> Work {
    let Some(tables) = tables else { return Work::List };
    if let Some(keys) = refresh.keys() {
        let keys: BTreeMap<ShardId, Vec<Cell>> = keys.map(|(shard, keys)| (shard, keys.to_vec())).collect();
        return if keys.is_empty() { Work::Finished } else { Work::Keys(keys) };
    }
    if let Some(TableRefresh { shard, after, first, .. }) = &refresh.table {
        return match tables.iter().find(|table| table.shard == *shard) {
            Some(table) => {
                Work::Chunk { table: table.clone(), after: after.clone(), first: *first, is_reread: None }
            }
            None => Work::Gone(*shard),
        };
    }
    match choose(refresh, tables, set_aside, compared) {
        Some((table, is_reread)) => {
            Work::Chunk { table: table.clone(), after: None, first: Lsn::ZERO, is_reread: Some(is_reread) }
        }
        None if refresh.scope == Scope::Rereads && !refresh.rereads.is_empty() => Work::WaitForSetAside,
        None => Work::Finished,
    }
}

/// Returns the table to begin with, and whether it waits to be read again; otherwise its turn has come.
fn choose<'t>(
    refresh: &Refresh,
    tables: &'t [TableIdentity<'static>],
    set_aside: &BTreeSet<ShardId>,
    compared: Option<ShardId>,
) -> Option<(&'t TableIdentity<'static>, bool)> {
    let waits = |table: &&TableIdentity<'_>| {
        // While every table waits, the table's own turn answers its entry too.
        let is_answered_in_turn = refresh.every_waits && refresh.wants(table.shard);
        refresh.reads_rereads()
            && refresh.rereads.contains_key(&table.shard)
            && !set_aside.contains(&table.shard)
            && !is_answered_in_turn
    };
    let in_turn = tables.iter().find(|table| refresh.wants(table.shard));
    if let Some(table) = in_turn.filter(|table| Some(table.shard) == compared && !waits(table)) {
        return Some((table, false));
    }
    let first = tables.iter().filter(waits).min_by_key(|table| Some(table.shard) != compared);
    let waiting = first.map(|table| (table, true));
    waiting.or_else(|| in_turn.map(|table| (table, false)))
}

/// Returns the number of tables that wait to be read again. It is at least 1 while every table does, also before
/// `tables`, those of the lane's entity, are listed.
pub(super) fn waiting_tables(refresh: &Refresh, tables: Option<&[TableIdentity<'static>]>) -> usize {
    if !refresh.every_waits {
        return refresh.rereads.len();
    }
    // A repair goes before every table.
    let waits = |shard| refresh.scope != Scope::Source || refresh.wants(shard);
    let is_counted =
        |table: &&TableIdentity<'_>| waits(table.shard) && !refresh.rereads.contains_key(&table.shard);
    let in_turn = tables.unwrap_or_default().iter().filter(is_counted).count();
    (in_turn + refresh.rereads.len()).max(1)
}

/// Whether a chunk can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Write,
    /// The lane has not passed the chunk's high watermark yet.
    Wait,
    /// The chunk is thrown away and read again, for this reason.
    Again(&'static str),
}

/// Facts by which a chunk is judged, beside the chunk itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Judged<'j> {
    pub(super) refresh: &'j Refresh,
    /// The lane's, with nothing uncommitted.
    pub(super) progress: &'j Progress,
    pub(super) changes: &'j ChangedClaims,
    /// The key column of a derived row that is the key of its source row.
    pub(super) source_column: usize,
    /// Chunks that were thrown away in a row.
    pub(super) repeated: u32,
    /// The chunk is of a table that is compared, of which every change since its entry must be known.
    pub(super) is_compared: bool,
}

impl Judged<'_> {
    pub(super) fn verdict(self, read: &Read) -> Verdict {
        let Self { refresh, progress, changes, repeated, is_compared, .. } = self;
        let low = read.chunk.low;
        let is_of_lane = read.chunk.server == progress.server && low.epoch() == progress.position.epoch();
        let first = refresh.table.as_ref().map_or(Lsn::ZERO, |table| table.first);
        let is_owed =
            |shard| refresh.reads_rereads() && refresh.rereads.get(shard).is_some_and(|at| low < *at);
        let is_unowed = |shard| refresh.rereads.get(shard).is_none_or(|at| low < *at);
        match () {
            // Positions of another server cannot be compared with the watermark, whether or not the lane is further.
            () if !is_of_lane => Verdict::Again("the lane reads another server"),
            () if read.found_at.min(low) < changes.floor || low < first => {
                Verdict::Again("the lane had read beyond the chunk's watermark")
            }
            () if read.absent.is_some() && changes.shards.iter().any(is_unowed) => {
                Verdict::Again("the table does not wait any more, or was noted again")
            }
            () if is_compared && changes.shards.iter().any(is_owed) => {
                Verdict::Again("the table changed without row events since")
            }
            () if changes.is_full() => Verdict::Again("too many keys have changed"),
            () if progress.position < read.chunk.high => Verdict::Wait,
            () if repeated < REPEATED_MAX && self.has_changed(read) => Verdict::Again("a key has changed"),
            () => Verdict::Write,
        }
    }

    /// Whether one of the keys that were read has changed after the watermark.
    fn has_changed(self, Read { chunk, keys, .. }: &Read) -> bool {
        let Some(keys) = keys else { return false };
        let changed = self.changes.changed(self.source_column, chunk.low);
        keys.iter().any(|(shard, keys)| keys.iter().any(|key| changed.has(*shard, key)))
    }
}

#[cfg(test)]
mod tests {
    use anabranch_schemas::change::{Action, Change, Entity};

    use super::*;
    use crate::records::{Chunk, Comparison, Condition, Flush};

    fn at(position: u64) -> Lsn {
        Lsn::new(1, 7, position).expect("it is small")
    }

    fn table(number: u64) -> TableIdentity<'static> {
        let shard = ShardId::from_u64(number).expect("it has less than 63 bits");
        TableIdentity {
            entity: Entity::User,
            shard,
            database: "users".into(),
            table: number.to_string().into(),
        }
    }

    /// The number of the table whose first chunk comes next, and whether it waits to be read again.
    fn begun(work: Work) -> Option<(u64, bool)> {
        match work {
            Work::Chunk { table, after: None, first: Lsn::ZERO, is_reread } => {
                Some((table.shard.as_u64(), is_reread?))
            }
            _ => None,
        }
    }

    #[test]
    fn waiting_tables_go_before_those_whose_turn_it_is_and_those_that_cannot_be_read_step_aside() {
        let (tables, none) = ([table(1), table(2), table(3)], BTreeSet::new());
        let all = Refresh::new(Scope::Source);
        assert_eq!(next(&all, None, &none, None), Work::List);
        assert_eq!(begun(next(&all, Some(&tables), &none, None)), Some((1, false)));
        let waiting = Refresh::with_reread(Some(all), tables[2].shard, Lsn::MAX);
        assert_eq!(begun(next(&waiting, Some(&tables), &none, None)), Some((3, true)));
        let aside = BTreeSet::from([tables[2].shard]);
        assert_eq!(begun(next(&waiting, Some(&tables), &aside, None)), Some((1, false)));
        let alone = Refresh::with_reread(None, tables[2].shard, Lsn::MAX);
        assert_eq!(next(&alone, Some(&tables), &aside, None), Work::WaitForSetAside);
    }

    /// A lost grant hides it, or it is gone without a trace in the binlog. A proof of that, or `remove --table`, ends
    /// the wait.
    #[test]
    fn a_waiting_table_that_the_source_does_not_list_lets_the_others_go_first_and_keeps_waiting() {
        let (tables, none) = ([table(1), table(2)], BTreeSet::new());
        let hidden = Refresh::with_reread(None, table(9).shard, Lsn::MAX);
        assert_eq!(next(&hidden, Some(&tables), &none, None), Work::WaitForSetAside);
        let both = Refresh::with_reread(Some(hidden.clone()), tables[1].shard, Lsn::MAX);
        assert_eq!(begun(next(&both, Some(&tables), &none, None)), Some((2, true)));
        let all = Refresh { rereads: hidden.rereads, ..Refresh::new(Scope::Source) };
        assert_eq!(begun(next(&all, Some(&tables), &none, None)), Some((1, false)));
        let read = Refresh { done: Some(tables[1].shard), ..all };
        assert_eq!(next(&read, Some(&tables), &none, None), Work::Finished);
        let left = read.after_scope().expect("it still waits");
        assert_eq!((&left.scope, left.rereads.len()), (&Scope::Rereads, 1));
        let forgotten = Refresh { rereads: BTreeMap::new(), ..left };
        assert_eq!(next(&forgotten, Some(&tables), &none, None), Work::Finished);
        assert_eq!(forgotten.after_scope(), None);
    }

    #[test]
    fn tables_wait_until_they_are_read_also_where_a_lane_cannot_list_them() {
        let tables = [table(1), table(2), table(3)];
        let listed = Some(tables.as_slice());
        let every = Refresh::with_every_table(None);
        assert_eq!((waiting_tables(&every, None), waiting_tables(&every, listed)), (1, 3));
        let begun = every.after_table(tables[0].shard);
        assert_eq!(waiting_tables(&begun, listed), 2);
        let aside = Refresh::with_reread(Some(begun.after_table(tables[2].shard)), table(9).shard, Lsn::MAX);
        assert_eq!(waiting_tables(&aside, listed), 1, "the source does not list it");
        let last = every.after_table(tables[2].shard);
        assert_eq!(waiting_tables(&last, listed), 1, "the refresh is not over");
        let keys = Refresh::new(Scope::Keys([(tables[0].shard, [Cell::UInt(7)].into())].into()));
        assert_eq!(waiting_tables(&Refresh::with_every_table(Some(keys.clone())), listed), 3);
        assert_eq!(waiting_tables(&keys, listed), 0);
        assert_eq!(waiting_tables(&Refresh::new(Scope::Source), listed), 0, "a person asked for it");
    }

    #[test]
    fn a_table_that_is_compared_goes_on_though_another_one_waits_too() {
        let (tables, none) = ([table(1), table(2), table(3)], BTreeSet::new());
        let [first, .., last] = tables.each_ref().map(|table| table.shard);
        let both = Refresh::with_reread(Some(Refresh::with_reread(None, last, Lsn::MAX)), first, Lsn::MAX);
        let chosen = |aside: &BTreeSet<ShardId>, compared| begun(next(&both, Some(&tables), aside, compared));
        assert_eq!(chosen(&none, None), Some((1, true)));
        assert_eq!(chosen(&none, Some(last)), Some((3, true)));
        assert_eq!(chosen(&BTreeSet::from([last]), Some(last)), Some((1, true)), "it cannot be read now");
        assert_eq!(chosen(&none, Some(tables[1].shard)), Some((1, true)), "it is not owed any more");
        let all = Refresh::with_reread(Some(Refresh::of_every_table()), last, Lsn::MAX);
        assert_eq!(begun(next(&all, Some(&tables), &none, None)), Some((3, true)));
        assert_eq!(
            begun(next(&all, Some(&tables), &none, Some(first))),
            Some((1, false)),
            "its turn has begun"
        );
        let every = Refresh::with_every_table(Some(all));
        assert_eq!(begun(next(&every, Some(&tables), &none, None)), Some((1, false)), "its turn comes");
        let passed = every.after_table(first).after_table(tables[1].shard).after_table(last);
        assert_eq!(begun(next(&passed, Some(&tables), &none, None)), Some((3, true)));
    }

    #[test]
    fn a_table_that_does_not_exist_any_more_is_left_and_a_refresh_without_keys_is_over() {
        let (tables, none) = ([table(1)], BTreeSet::new());
        let one = Refresh::new(Scope::Table(table(2).shard));
        assert_eq!(next(&one, Some(&tables), &none, None), Work::Finished);
        let keys = Refresh::new(Scope::Keys([].into()));
        assert_eq!(next(&keys, Some(&tables), &none, None), Work::Finished);
        let keys = Refresh::new(Scope::Keys([(table(1).shard, [Cell::UInt(7)].into())].into()));
        assert!(matches!(next(&keys, Some(&tables), &none, None), Work::Keys(keys) if keys.len() == 1));
    }

    #[test]
    fn repairs_go_before_tables_that_wait_to_be_read_again() {
        let (tables, none) = ([table(1), table(2)], BTreeSet::new());
        let comparison: Comparison = "user_id >= 7".parse().expect("it compares a column");
        let condition = Condition::new(vec![comparison]).expect("it has a comparison");
        let keys = Scope::Keys([(tables[0].shard, [Cell::UInt(7)].into())].into());
        let [found, named] = [Scope::Where(None, condition), keys]
            .map(|scope| Refresh::with_reread(Some(Refresh::new(scope)), tables[1].shard, Lsn::MAX));
        assert_eq!(begun(next(&found, Some(&tables), &none, None)), Some((1, false)));
        assert!(matches!(next(&named, Some(&tables), &none, None), Work::Keys(_)));
    }

    /// The name may be gone for ever: nothing else would end the wait.
    #[test]
    fn a_withdrawal_ends_the_wait_for_its_table_and_leaves_later_records_and_repairs() {
        let (tables, none) = ([table(1)], BTreeSet::new());
        let after = |refresh: &Refresh| {
            let mut flush = Flush::new(Progress { refresh: Some(refresh.clone()), ..Progress::default() });
            flush.take_table(&Change { lsn: at(320), table: &table(9), action: Action::Withdraw });
            flush.progress.refresh.expect("a withdrawal ends no refresh")
        };
        let waiting = |position| Refresh::with_reread(None, table(9).shard, at(position));
        assert_eq!(next(&waiting(160), Some(&tables), &none, None), Work::WaitForSetAside);
        assert_eq!(next(&after(&waiting(160)), Some(&tables), &none, None), Work::Finished);
        assert_eq!(after(&waiting(320)).rereads, BTreeMap::new());
        assert_eq!(after(&waiting(480)), waiting(480), "rows of the next table of that name");
        let repair = Refresh::new(Scope::Keys([(table(9).shard, [Cell::UInt(7)].into())].into()));
        assert_eq!(after(&repair), repair, "a replay meets the withdrawal once more");
    }

    #[test]
    fn the_absence_of_a_table_counts_while_its_entry_stands_at_or_below_the_watermark() {
        let shard = table(1).shard;
        let progress = Progress { position: at(480), ..Progress::default() };
        let changes = ChangedClaims::new(1, [shard].into(), Lsn::ZERO);
        let verdict = |refresh: &Refresh| {
            let (low, server, payload) = (at(320), progress.server.clone(), Default::default());
            let chunk = Chunk { low, high: low, server, payload, rows: 0, next: None };
            let read = Read { absent: Some("users.1".to_owned()), ..Read::of_chunk(chunk) };
            let (progress, changes) = (&progress, &changes);
            let judged =
                Judged { refresh, progress, changes, source_column: 0, repeated: 0, is_compared: false };
            judged.verdict(&read)
        };
        let waiting = |position| Refresh::with_reread(None, shard, at(position));
        assert_eq!(verdict(&waiting(320)), Verdict::Write);
        let again = Verdict::Again("the table does not wait any more, or was noted again");
        assert_eq!(verdict(&waiting(480)), again, "a later reading is owed");
        let ended = waiting(160).without_reread(shard, at(160));
        assert_eq!(verdict(&ended), again, "it was withdrawn or retired meanwhile");
    }

    #[test]
    fn a_chunk_from_before_the_first_one_or_before_a_record_of_a_compared_table_is_read_again() {
        let shard = table(1).shard;
        let progress = Progress { position: at(480), ..Progress::default() };
        let changes = ChangedClaims::new(1, [shard].into(), Lsn::ZERO);
        let verdict = |refresh: &Refresh, position, is_compared| {
            let (low, server, payload) = (at(position), progress.server.clone(), Default::default());
            let chunk = Chunk { low, high: low, server, payload, rows: 0, next: None };
            let (progress, changes) = (&progress, &changes);
            let judged = Judged { refresh, progress, changes, source_column: 0, repeated: 0, is_compared };
            judged.verdict(&Read::of_chunk(chunk))
        };
        let waiting = Refresh::with_reread(None, shard, at(320));
        let again = Verdict::Again("the table changed without row events since");
        assert_eq!(verdict(&waiting, 160, true), again);
        assert_eq!(verdict(&waiting, 320, true), Verdict::Write);
        assert_eq!(verdict(&waiting, 160, false), Verdict::Write, "the sweep leaves the entry");
        let begun = TableRefresh { shard, first: at(320), chunks: 1, after: None, is_reread: true };
        let begun = Refresh { table: Some(begun), ..waiting };
        let again = Verdict::Again("the lane had read beyond the chunk's watermark");
        assert_eq!(verdict(&begun, 160, false), again);
        assert_eq!(verdict(&begun, 320, false), Verdict::Write);
    }
}
