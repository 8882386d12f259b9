//! How tables that wait to be read again step aside for the others, and how a lane takes in their records.
//!
//! A table that cannot be read is tried again later. A table of which rows changed unseen while it was read or compared
//! rests: a foreign key may change rows of it many times a second, and each reading would be followed by the next one.
//! A record of any other table is looked at at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anabranch_schemas::change::TableIdentity;
use anabranch_schemas::shard::ShardId;
use tokio::time::Instant;

use super::changed_claims::ChangedClaims;
use super::unlisted::likely;
use super::{Phase, Refresher, Step};
use crate::error::{Class, Code, Fault};
use crate::ports::RowSource;
use crate::records::{Progress, Refresh, Reread, Scope, TableRefresh};

/// First pause before a failed read is tried again; it doubles each time, up to the longest.
const FAILED: Duration = Duration::from_secs(1);
const FAILED_MAX: Duration = Duration::from_secs(60);
/// Pause before tables that wait to be read again and could not be read are tried again.
const SET_ASIDE: Duration = Duration::from_secs(10);
/// Shortest and longest pause between two readings of a table of which rows changed unseen meanwhile. In between the
/// pause is as long as the reading was, with the comparison before it. So such a table is read or compared half of the
/// time at most, unless a reading takes longer than the longest pause.
const REST_MIN: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(600);

/// Tables that wait to be read again and are not begun now.
#[derive(Debug, Default)]
pub(super) struct Aside {
    /// Tables that cannot be read now: the others go first.
    unreadable: BTreeSet<ShardId>,
    /// The time at which the unreadable tables are tried again, once no other table is left.
    again_at: Option<Instant>,
    /// Tables of which rows changed unseen while they were read, each with the time from which on it may be read.
    resting: BTreeMap<ShardId, Instant>,
    /// The table that is read or compared at present, and when that began.
    begun: Option<(ShardId, Instant)>,
    /// The time until which the lane waits, as all tables that wait are aside.
    until: Option<Instant>,
    /// Tables for whose absence the source was asked, and when.
    asked: BTreeMap<ShardId, Instant>,
    /// Tables that were unreadable and that a warning in the log names.
    warned_of: BTreeSet<ShardId>,
}

impl Aside {
    /// Returns the tables that are not begun now.
    pub(super) fn tables(&mut self) -> BTreeSet<ShardId> {
        let now = Instant::now();
        self.resting.retain(|_, until| *until > now);
        self.unreadable.iter().chain(self.resting.keys()).copied().collect()
    }

    /// Notes that a comparison of a table begins, or that its first chunk is read. A reading that follows a comparison
    /// of the table continues it.
    pub(super) fn begun(&mut self, shard: ShardId) {
        if self.begun.is_none_or(|(begun, _)| begun != shard) {
            self.begun = Some((shard, Instant::now()));
        }
    }

    /// Notes tables that cannot be read now: the others go first.
    pub(super) fn step_aside(&mut self, tables: impl IntoIterator<Item = ShardId>) {
        self.unreadable.extend(tables);
    }

    /// Notes tables for whose absence the source was asked.
    pub(super) fn asked_for(&mut self, tables: impl IntoIterator<Item = ShardId>) {
        let now = Instant::now();
        self.asked.extend(tables.into_iter().map(|shard| (shard, now)));
    }

    /// Returns the tables for whose absence the source was asked a short while ago. A later record of them changes
    /// nothing: rows of a hidden table may change many times a second.
    pub(super) fn asked(&mut self) -> BTreeSet<ShardId> {
        self.asked.retain(|_, at| at.elapsed() < SET_ASIDE);
        self.asked.keys().copied().collect()
    }

    /// Notes that the present table needs no rest.
    pub(super) fn ended(&mut self) {
        self.begun = None;
    }

    /// Returns the time at which the next work may begin, if other pauses end at `paused_until`.
    pub(super) fn not_before(&self, paused_until: Instant) -> Instant {
        self.until.map_or(paused_until, |until| until.max(paused_until))
    }

    /// Notes that rows of a table were read: a warning names the table again if it cannot be read later.
    pub(super) fn was_read(&mut self, shard: ShardId) {
        self.warned_of.remove(&shard);
    }

    /// Lets a table rest that was read or compared, and of which rows changed unseen meanwhile.
    pub(super) fn rest(&mut self, shard: ShardId) {
        let begun = self.begun.take().filter(|(begun, _)| *begun == shard);
        let took = begun.map_or(REST_MIN, |(_, begun_at)| begun_at.elapsed());
        self.resting.insert(shard, Instant::now() + took.clamp(REST_MIN, REST_MAX));
    }

    /// Returns the time until which the lane waits, as every table of `refresh` that waits is aside; `None` if the
    /// unreadable ones are tried again now.
    fn wait(&mut self, refresh: &Refresh) -> Option<Instant> {
        self.until = self.end_of_wait(refresh);
        self.until
    }

    fn end_of_wait(&mut self, refresh: &Refresh) -> Option<Instant> {
        let now = Instant::now();
        let rested_at = self.resting.values().min().copied();
        if refresh.rereads.keys().all(|shard| self.resting.contains_key(shard)) {
            return rested_at;
        }
        let again_at = *self.again_at.get_or_insert(now + SET_ASIDE);
        if again_at <= now {
            self.again_at = None;
            self.unreadable.clear();
            return None;
        }
        Some(rested_at.map_or(again_at, |rested_at| rested_at.min(again_at)))
    }

    /// Takes in a record: an ALTER may have brought a column of the table back, and a table that is not aside may wait.
    fn note(&mut self, reread: &Reread) {
        self.until = None;
        match reread {
            Reread::Every => {
                self.unreadable.clear();
                self.resting.clear();
            }
            Reread::Table(shard) => _ = self.unreadable.remove(shard),
            Reread::Unlisted => {}
        }
    }
}

impl<'a, S: RowSource> Refresher<'a, S> {
    /// Takes in the records of a flush, after which the lane has this refresh. A comparison begins anew with its table,
    /// and so does every reading with a record of all tables. The reading of a single table goes on: its end leaves the
    /// table's entry.
    pub(super) fn note_rereads(&mut self, rereads: &[Reread], refresh: Option<&Refresh>) {
        let compared = self.comparisons.running_shard();
        let has_ended = self.comparisons.begin_anew(rereads, refresh);
        if let Some(shard) = compared.filter(|_| has_ended) {
            self.aside.rest(shard);
        }
        if has_ended || rereads.contains(&Reread::Every) {
            self.phase = Phase::Resting;
            self.changes = ChangedClaims::default();
            self.empty.forget();
            self.are_unlisted_owed = false;
        }
        if rereads.contains(&Reread::Unlisted) {
            tracing::warn!(
                lane = %self.id,
                "more tables are to be read again than a progress row lists, so the lane reads every table: there is \
                 nothing to do, and `status --watch` shows how far it is"
            );
        }
        for reread in rereads {
            self.aside.note(reread);
            // A table of the name that is there again is listed, unless the source hides it.
            if let Reread::Table(shard) = reread {
                self.retired.remove(shard);
            }
        }
    }

    /// Waits while no waiting table exists, can be read and has rested: a lost grant hides a table, an ALTER brings its
    /// column back. Unlisted ones are asked for first: a proof that a table is absent ends its wait.
    pub(super) fn wait_for_set_aside(&mut self, refresh: &Refresh, progress: &Progress) -> Phase<'a> {
        if let Some(proving) = self.ask_for_absent(refresh, progress) {
            return proving;
        }
        self.warn_of_unlisted(refresh);
        if self.aside.wait(refresh).is_none() {
            self.tables = None;
        }
        Phase::Resting
    }

    /// Names in the log, once, the waiting tables that the source does not list. A table without a usual name has only
    /// its shard id.
    fn warn_of_unlisted(&mut self, refresh: &Refresh) {
        let Some(tables) = &self.tables else { return };
        let is_listed = |shard| tables.binary_search_by_key(&shard, |table| table.shard).is_ok();
        let is_new = |shard: &ShardId| !is_listed(*shard) && !self.aside.warned_of.contains(shard);
        let unlisted: BTreeSet<ShardId> = refresh.rereads.keys().copied().filter(is_new).collect();
        let Some(first) = unlisted.first() else { return };
        let named = likely(self.source, self.entity, &unlisted);
        let name_of = |shard: ShardId| named.iter().find(|table| table.shard == shard).map(full_name);
        for shard in &unlisted {
            let name = name_of(*shard);
            let fault = unlisted_fault(*shard, name.as_deref(), 0);
            self.unread.note(*shard, name, &fault);
        }
        let first = named.first().map_or(*first, |table| table.shard);
        let fault = unlisted_fault(first, name_of(first).as_deref(), unlisted.len() - 1);
        tracing::warn!(
            lane = %self.id, %fault,
            "a table cannot be read now: its derived rows stay as they are until it can"
        );
        self.aside.warned_of.extend(unlisted);
    }

    /// Returns the refresh in which a table that cannot be read now leaves its turn, and waits to be read again.
    pub(super) fn owe(&mut self, refresh: &Refresh, shard: ShardId, progress: &Progress) -> Refresh {
        let after = refresh.after_table(shard);
        // It left before its turn was given up: nothing of it is there to be read, and no entry would ever end.
        if self.has_left(shard, progress) {
            return after;
        }
        // All tables are read anew when more wait than are listed.
        self.empty.forget();
        Refresh::with_reread(Some(after), shard, progress.position)
    }

    /// Returns the phase after a failed read. A first load skips a table that cannot be read by keys, which capture
    /// does not need. Any other table that cannot be read steps aside: it waits to be read again, and its claims stay.
    pub(super) fn failed(&mut self, fault: Fault, progress: &Progress) -> Phase<'a> {
        if self.first_rows_failed() && fault.class() != Class::Transient {
            return Phase::Resting;
        }
        let is_first = progress.refresh.as_ref().is_some_and(|refresh| refresh.empty_in_epoch.is_some());
        if let (true, Code::SourceTableUnkeyed, Some(shard)) =
            (is_first, fault.code(), self.changes.shards.first())
        {
            tracing::warn!(
                lane = %self.id, %fault,
                "a table cannot be loaded: derived rows of it appear only as its rows change"
            );
            return Phase::Waiting(Step::Gone(*shard));
        }
        if let Some(shard) = self.changes.shards.first()
            && fault.code() == Code::SourceTableMissing
            && self.retired.contains(shard)
            && self.changes.shards.len() == 1
        {
            // It left by a retention rule, and the feed has passed that: nothing of it waits to be read any more.
            self.tables = None;
            let is_begun = progress.refresh.as_ref().is_some_and(|refresh| refresh.table.is_some());
            return match is_begun || !self.is_reread {
                true => Phase::Waiting(Step::Gone(*shard)),
                false => Phase::Resting,
            };
        }
        let pause = FAILED.saturating_mul(1 << self.failures.min(6)).min(FAILED_MAX);
        self.failures += 1;
        self.not_before = Instant::now() + pause;
        let shard = self.changes.shards.first().copied();
        let listed = self.tables.iter().flatten().find(|table| Some(table.shard) == shard);
        let name = listed.map(full_name);
        // A table that was dropped meanwhile is no longer listed.
        self.tables = None;
        if let (Some(refresh), Some(shard)) = (&progress.refresh, shard)
            && fault.class() != Class::Transient
            && let Some(step) = step_aside(refresh, shard, self.is_reread)
        {
            self.unread.note(shard, name, &fault);
            if self.aside.warned_of.insert(shard) {
                tracing::warn!(
                    lane = %self.id, %fault,
                    "a table cannot be read now: its derived rows stay as they are until it can"
                );
            }
            self.aside.unreadable.insert(shard);
            self.aside.ended();
            self.comparisons.was_unreadable(shard);
            self.not_before = Instant::now();
            return step;
        }
        match fault.class() {
            Class::Transient => {
                tracing::warn!(lane = %self.id, %fault, "a refresh failed and is tried again")
            }
            _ => {
                tracing::error!(lane = %self.id, %fault, "the refresh cannot continue; the lane applies changes")
            }
        }
        Phase::Resting
    }
}

fn full_name(table: &TableIdentity<'_>) -> String {
    format!("{}.{}", table.database, table.table)
}

/// Returns the fault of a waiting table that the source does not list, and of `more` others.
fn unlisted_fault(shard: ShardId, name: Option<&str>, more: usize) -> Fault {
    let thing = name.map_or_else(|| format!("shard {shard}"), |name| format!("table {name}"));
    let thing = match more {
        0 => thing,
        more => format!("{thing} and {more} more"),
    };
    let name = name.unwrap_or("DATABASE.TABLE");
    Fault::new(Code::SourceTableMissing, thing, "the source does not list it")
        .needs("SELECT on its database for the capture account, or a table of that name")
        .remedy(format!("if it is gone for good, `anabranch --config FILE remove --table {name}`"))
}

/// Returns the phase in which an unreadable table leaves the work to the others; `None` if it alone was requested. A
/// table that changed unseen since its first chunk begins anew: its key may be another one.
///
/// `is_reread` says whether its first chunk was asked for because it waits. A table whose turn has come must leave its
/// turn too, or it would be chosen again at once.
fn step_aside<'a>(refresh: &Refresh, shard: ShardId, is_reread: bool) -> Option<Phase<'a>> {
    let is_reread = refresh.table.as_ref().map_or(is_reread, |table| table.is_reread);
    let is_below = |table: &TableRefresh| refresh.rereads.get(&shard).is_some_and(|at| table.first < *at);
    let is_outdated = refresh.table.as_ref().is_some_and(is_below);
    match refresh.scope {
        _ if !refresh.reads_rereads() => None,
        _ if is_reread && refresh.table.is_some() => Some(Phase::Waiting(Step::Gone(shard))),
        Scope::Table(_) if is_outdated => Some(Phase::Waiting(Step::Gone(shard))),
        _ if is_reread => Some(Phase::Resting),
        Scope::Source => Some(Phase::Waiting(Step::Owed(shard))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use anabranch_schemas::lsn::Lsn;

    use super::*;

    #[test]
    fn a_table_that_cannot_be_read_leaves_its_turn_also_when_it_waits_already() {
        let shard = ShardId::from_u64(7).expect("it has less than 63 bits");
        let waits = |scope| Refresh::with_reread(Some(Refresh::new(scope)), shard, Lsn::MAX);
        let aside = |refresh: &Refresh, is_reread| step_aside(refresh, shard, is_reread);
        let all = waits(Scope::Source);
        assert!(matches!(aside(&all, true), Some(Phase::Resting)), "the others go first");
        assert!(matches!(aside(&all, false), Some(Phase::Waiting(Step::Owed(_)))), "its turn is over");
        assert!(matches!(aside(&waits(Scope::Rereads), true), Some(Phase::Resting)));
        assert!(aside(&waits(Scope::Table(shard)), false).is_none(), "it alone was asked for");
        assert!(aside(&waits(Scope::Keys([].into())), true).is_none(), "a repair is tried again");
        let first = Lsn::ZERO;
        let begun = TableRefresh { shard, first, chunks: 1, after: None, is_reread: false };
        let begun = Refresh { table: Some(begun), ..waits(Scope::Table(shard)) };
        let gone = aside(&begun, false);
        assert!(matches!(gone, Some(Phase::Waiting(Step::Gone(_)))), "its key may be another");
    }

    #[tokio::test(start_paused = true)]
    async fn a_table_that_changes_unseen_while_it_is_read_rests_and_others_go_first() {
        let [changing, hidden] = [7, 9].map(|number| ShardId::from_u64(number).expect("it is small"));
        let alone = Refresh::with_reread(None, changing, Lsn::MAX);
        let both = Refresh::with_reread(Some(alone.clone()), hidden, Lsn::MAX);
        let mut aside = Aside::default();
        aside.begun(changing);
        tokio::time::advance(3 * REST_MIN).await;
        aside.begun(changing);
        tokio::time::advance(REST_MIN).await;
        aside.rest(changing);
        let rested = Instant::now();
        aside.note(&Reread::Table(changing));
        assert_eq!(aside.tables(), BTreeSet::from([changing]), "a further change does not end the rest");
        assert_eq!(
            aside.wait(&alone),
            Some(rested + 4 * REST_MIN),
            "as long as the comparison and the reading took"
        );
        assert_eq!(aside.not_before(rested), rested + 4 * REST_MIN);
        aside.note(&Reread::Table(hidden));
        assert_eq!(aside.not_before(rested), rested, "a record of another table is looked at at once");
        aside.unreadable.insert(hidden);
        assert_eq!(aside.wait(&both), Some(rested + 4 * REST_MIN), "the first of both");
        tokio::time::advance(4 * REST_MIN).await;
        assert_eq!(aside.tables(), BTreeSet::from([hidden]));
        assert_eq!(aside.wait(&both), Some(rested + SET_ASIDE));
        tokio::time::advance(SET_ASIDE).await;
        assert_eq!((aside.wait(&both), aside.tables()), (None, BTreeSet::new()), "both are tried again");
    }
}
