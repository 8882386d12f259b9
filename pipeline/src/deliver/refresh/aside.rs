//! How a table that cannot be read steps aside for the others.

use std::time::Duration;

use anabranch_schemas::shard::ShardId;
use tokio::time::Instant;

use super::{Phase, Refresher, Step};
use crate::error::{Class, Code, Fault};
use crate::ports::RowSource;
use crate::records::{Progress, Refresh, Scope};

/// First pause before a failed read is tried again; it doubles each time, up to the longest.
const FAILED: Duration = Duration::from_secs(1);
const FAILED_MAX: Duration = Duration::from_secs(60);
/// Pause before tables that wait to be read again and could not be read are tried again.
const SET_ASIDE: Duration = Duration::from_secs(10);

impl<'a, S: RowSource> Refresher<'a, S> {
    /// Waits while no waiting table exists and can be read: a lost grant hides a table, an ALTER brings its column
    /// back.
    pub(super) fn wait_for_set_aside(&mut self) -> Phase<'a> {
        self.set_aside.clear();
        self.tables = None;
        self.not_before = Instant::now() + SET_ASIDE;
        Phase::Resting
    }

    /// Returns the phase after a failed read. A first load skips a table that cannot be read by keys, which capture
    /// does not need. Any other table that cannot be read steps aside: it waits to be read again, and its claims stay.
    pub(super) fn failed(&mut self, fault: Fault, progress: &Progress) -> Phase<'a> {
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
        // A table that was dropped meanwhile is no longer listed.
        self.tables = None;
        let shard = self.changes.shards.first().copied();
        if let (Some(refresh), Some(shard)) = (&progress.refresh, shard)
            && fault.class() != Class::Transient
            && let Some(step) = step_aside(refresh, shard, self.is_reread)
        {
            if self.warned_of.insert(shard) {
                tracing::warn!(
                    lane = %self.id, %fault,
                    "a table cannot be read now: its derived rows stay as they are until it can"
                );
            }
            self.set_aside.insert(shard);
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

/// Returns the phase in which an unreadable table leaves the work to the others; `None` if it alone was requested.
/// `is_reread` says whether its first chunk was asked for because it waits. A table whose turn has come must leave its
/// turn too, or it would be chosen again at once.
fn step_aside<'a>(refresh: &Refresh, shard: ShardId, is_reread: bool) -> Option<Phase<'a>> {
    let is_reread = refresh.table.as_ref().map_or(is_reread, |table| table.is_reread);
    match refresh.scope {
        _ if !refresh.reads_rereads() => None,
        _ if is_reread && refresh.table.is_some() => Some(Phase::Waiting(Step::Gone(shard))),
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
    }
}
