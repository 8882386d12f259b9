//! Tables that the source does not list: in a refresh of all tables, and in a repair of keys.
//!
//! A lost grant hides a table. The refresh cannot read it, and its derived rows may be stale. So the lane asks the
//! store which tables with likely names have claims and are not listed, and asks the source for each of them by its
//! name. A table that the source does not prove absent becomes an entry of `rereads`, and the lane reads it once it is
//! listed.
//!
//! The lane asks after each list, before it goes on with the list's tables. So every table whose turn is over was read,
//! has an entry, or was absent: a grant that comes back later, or another list after a restart, leaves none out.
//!
//! - A table that is proved absent becomes none: no reading would find it. A reconciliation reports its rows.
//! - The lane asks once it has removed the claims of all withdrawn tables. A withdrawal answers no record of every
//!   table from above it: other rows of the table may have changed unseen since.
//! - A table that was withdrawn while the source was asked has nothing to be read.
//! - A lane that had no rows when it began has no such claims.
//! - A store of documents cannot say of which tables it has claims, so a hidden table is not noticed there.
//! - If there are more than a progress row lists, every table is read once more at the end, after a rest.
//!
//! A repair of keys asks for its own unlisted tables in the same way, in any store. A table that is proved absent has
//! no rows of these keys. Any other one becomes an entry, and the repair leaves its claims as they are.

use std::collections::BTreeSet;
use std::time::Duration;

use anabranch_schemas::change::{Entity, TableIdentity};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use futures::FutureExt;
use tokio::time::Instant;

use super::changed_claims::ChangedClaims;
use super::{Phase, Refresher, Step};
use crate::deliver::lane::unless;
use crate::error::{Class, Fault};
use crate::ports::{LaneStore, RowSource};
use crate::records::{Progress, Refresh, Scope};

/// Hidden tables that wait with an entry of their own, at most: the progress row lists no more.
const HIDDEN_MAX: usize = 1_000;
/// Pause before every table is read again, as more of them are hidden.
const EVERY_AGAIN: Duration = Duration::from_secs(600);

impl<'a, S: RowSource> Refresher<'a, S> {
    /// Returns the step with which unlisted tables are asked for; `None` if that was done since the last list, or is
    /// not needed.
    pub(super) fn next_unlisted(&self, refresh: &Refresh, progress: &Progress) -> Option<Step> {
        let is_needed = refresh.scope == Scope::Source && self.tables.is_some() && !self.are_unlisted_owed;
        let had_no_rows = refresh.empty_in_epoch == Some(progress.position.epoch());
        (is_needed && !had_no_rows && self.empty.knows_claims()).then_some(Step::Unlisted(None))
    }

    /// Returns the refresh with an entry for each unlisted table that waits; `None` if there is nothing to store: none
    /// waits, the source must be asked first, or the lane ends. `hidden` are the tables that it was asked for and that
    /// it does not prove absent.
    pub(super) async fn owe_unlisted(
        &mut self,
        hidden: Option<BTreeSet<ShardId>>,
        progress: &Progress,
        store: &mut impl LaneStore,
    ) -> Result<Option<Refresh>, Fault> {
        let Some(refresh) = &progress.refresh else { return Ok(None) };
        let Some(hidden) = hidden else {
            match self.ask_for_unlisted(refresh, progress, store).await? {
                Some(phase) => self.phase = phase,
                None => self.are_unlisted_owed = true,
            }
            return Ok(None);
        };
        // The source was asked for no more than these.
        let is_cut_off = hidden.len() > HIDDEN_MAX;
        // The feed may have withdrawn or retired some meanwhile.
        let with_claims = Box::pin(store.shards_with_rows(hidden));
        let Some(mut with_claims) = unless(&self.cancel, with_claims).await? else { return Ok(None) };
        with_claims.retain(|shard| !self.retired.contains(shard));
        self.are_unlisted_owed = true;
        if with_claims.is_empty() {
            return Ok(None);
        }
        if let Some(owed) = owes(refresh, progress, &with_claims).filter(|_| !is_cut_off) {
            tracing::warn!(
                lane = %self.id, tables = with_claims.len(),
                "the source hides tables with derived rows: the lane reads them again once it lists them"
            );
            return Ok(Some(owed));
        }
        tracing::warn!(
            lane = %self.id, listed = HIDDEN_MAX, pause_seconds = EVERY_AGAIN.as_secs(),
            "the source hides more tables with derived rows than the lane can list: after this refresh it reads every \
             table again, after a pause"
        );
        Ok(Some(Refresh { hides_more: true, ..refresh.clone() }))
    }

    /// Returns the refresh that follows one that has no table left.
    pub(super) fn end(&mut self, ended: &Refresh) -> Option<Refresh> {
        self.changes = ChangedClaims::default();
        if ended.hides_more {
            self.tables = None;
            self.not_before = Instant::now() + EVERY_AGAIN;
            return Some(Refresh::with_every_table(Some(ended.clone())));
        }
        tracing::info!(lane = %self.id, rows = ended.rows, "the refresh is complete");
        ended.after_scope()
    }

    /// Returns the refresh after a chunk, with an entry for each of the tables that the source may hide.
    pub(super) fn owe_hidden(
        &mut self,
        after: Refresh,
        hidden: &BTreeSet<ShardId>,
        progress: &Progress,
    ) -> Refresh {
        // The feed may have withdrawn or retired some meanwhile: nothing of them waits to be read.
        let hidden: BTreeSet<ShardId> =
            hidden.iter().copied().filter(|shard| !self.has_left(*shard, progress)).collect();
        if hidden.is_empty() {
            return after;
        }
        tracing::warn!(
            lane = %self.id, tables = hidden.len(),
            "the source hides tables with keys to repair: the lane reads these tables again once it lists them"
        );
        self.changes = ChangedClaims::default();
        after_repair(&after, &hidden, progress.position)
    }

    /// Whether the feed has withdrawn or retired the table that is being read.
    pub(super) fn has_left(&self, shard: ShardId, progress: &Progress) -> bool {
        self.retired.contains(&shard)
            || self.changes.was_withdrawn(shard)
            || progress.withdrawals.contains(shard)
    }

    /// Returns the phase in which the source is asked for unlisted tables with claims; `None` if there are none.
    async fn ask_for_unlisted(
        &mut self,
        refresh: &Refresh,
        progress: &Progress,
        store: &mut impl LaneStore,
    ) -> Result<Option<Phase<'a>>, Fault> {
        let Some(tables) = self.tables.as_ref() else { return Ok(None) };
        let mut unlisted = BTreeSet::new();
        self.source.visit_likely_tables(self.entity, &mut |table| {
            let is_listed = tables.binary_search_by_key(&table.shard, |listed| listed.shard).is_ok();
            let is_known = refresh.rereads.contains_key(&table.shard) || self.retired.contains(&table.shard);
            let is_open = refresh.wants(table.shard) && !progress.withdrawals.contains(table.shard);
            if is_open && !is_listed && !is_known {
                unlisted.insert(table.shard);
            }
        });
        if unlisted.is_empty() {
            return Ok(None);
        }
        let with_claims = Box::pin(store.shards_with_rows(unlisted));
        // The lane ends, and it has nothing to store.
        let Some(with_claims) = unless(&self.cancel, with_claims).await? else {
            return Ok(Some(Phase::Resting));
        };
        if with_claims.is_empty() {
            return Ok(None);
        }
        let asked = likely(self.source, self.entity, &with_claims);
        let epoch = progress.position.epoch();
        Ok(Some(Phase::Asking(hidden(self.source, asked, HIDDEN_MAX, epoch).boxed())))
    }
}

/// Returns the refresh with an entry for each of these tables; `None` if the progress row has no room for them.
fn owes(refresh: &Refresh, progress: &Progress, hidden: &BTreeSet<ShardId>) -> Option<Refresh> {
    let mut owed = refresh.clone();
    for shard in hidden.iter().filter(|shard| !progress.withdrawals.contains(**shard)) {
        owed = Refresh::with_reread(Some(owed), *shard, progress.position);
        // Without its entry the table is one of all that are to be read.
        if !owed.rereads.contains_key(shard) {
            return None;
        }
    }
    Some(owed)
}

/// Returns the refresh that follows a repair of keys, with an entry for each of these tables.
fn after_repair(repair: &Refresh, hidden: &BTreeSet<ShardId>, at: Lsn) -> Refresh {
    let first = repair.after_scope().unwrap_or_else(|| Refresh::new(Scope::Rereads));
    hidden.iter().fold(first, |owed, shard| Refresh::with_reread(Some(owed), *shard, at))
}

/// Returns those of these unlisted tables that the source does not prove absent. A table without a usual name cannot be
/// asked for, and counts as absent.
pub(super) async fn hidden_of<S: RowSource>(
    source: &S,
    entity: Entity,
    unlisted: &BTreeSet<ShardId>,
    epoch: u16,
) -> Result<BTreeSet<ShardId>, Fault> {
    let asked = if unlisted.is_empty() { Vec::new() } else { likely(source, entity, unlisted) };
    // A table that was not asked for would count as one without rows.
    hidden(source, asked, usize::MAX, epoch).await
}

/// Returns the tables of these shards that have a usual name.
pub(super) fn likely<S: RowSource>(
    source: &S,
    entity: Entity,
    shards: &BTreeSet<ShardId>,
) -> Vec<TableIdentity<'static>> {
    let mut tables = Vec::with_capacity(shards.len());
    source.visit_likely_tables(entity, &mut |table| {
        if shards.contains(&table.shard) {
            tables.push(table.clone().into_owned());
        }
    });
    tables
}

/// Returns those of the tables that the source does not prove absent. It ends at the first one beyond `most` of them.
///
/// No query asks for all at once: a source refuses a statement for one of its tables, and says nothing of the others.
async fn hidden<S: RowSource>(
    source: &S,
    tables: Vec<TableIdentity<'static>>,
    most: usize,
    epoch: u16,
) -> Result<BTreeSet<ShardId>, Fault> {
    let mut hidden = BTreeSet::new();
    for table in tables {
        if hidden.len() > most {
            break;
        }
        match source.absence(&table, epoch).await {
            Ok(Some(_)) => {}
            Err(fault) if fault.class() == Class::Transient => return Err(fault),
            Ok(None) | Err(_) => _ = hidden.insert(table.shard),
        }
    }
    Ok(hidden)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::Cell;

    #[test]
    fn hidden_tables_are_listed_as_far_as_a_progress_row_has_room() {
        let hidden = |tables: u64| (0..tables).filter_map(ShardId::from_u64).collect::<BTreeSet<_>>();
        let progress = Progress { position: Lsn::MAX, ..Progress::default() };
        let every = Refresh::with_every_table(None);
        let owed = owes(&every, &progress, &hidden(1_000)).expect("there is room");
        assert_eq!(owed.rereads.len(), HIDDEN_MAX);
        assert_eq!(owed.after_scope().map(|left| left.scope), Some(Scope::Rereads));
        assert_eq!(owes(&every, &progress, &hidden(1_500)), None);
    }

    #[test]
    fn a_repair_of_keys_in_hidden_tables_ends_and_the_lane_owes_these_tables() {
        let shard = |number| ShardId::from_u64(number).expect("it is small");
        let keys = [7, 8, 9].map(|number| (shard(number), vec![Cell::UInt(1)]));
        let repair = Refresh { done: Some(shard(9)), ..Refresh::new(Scope::Keys(keys.into())) };
        let owed = |refresh: &Refresh| after_repair(refresh, &[shard(7), shard(9)].into(), Lsn::MAX);
        let both = Refresh::with_reread(None, shard(7), Lsn::MAX);
        let both = Refresh::with_reread(Some(both), shard(9), Lsn::MAX);
        assert_eq!(owed(&repair), both);
        let earlier = Refresh::with_reread(Some(repair.clone()), shard(5), Lsn::MAX);
        assert_eq!(owed(&earlier), Refresh::with_reread(Some(both.clone()), shard(5), Lsn::MAX));
        let every = Refresh { rereads: both.rereads, ..Refresh::with_every_table(None) };
        assert_eq!(owed(&Refresh { every_waits: true, ..repair }), every);
    }
}
