//! Grants that the account of a source loses for a while: tables are hidden meanwhile, and are read once they are back.
//!
//! Each lane must have rows of a hidden table, or it could not notice the table (`docs/limits.md`). So a grant is lost
//! only while all lanes have everything that their source committed, and rows are damaged then. A table that loses all
//! rows by an event has its grant back before.

use anabranch_connectors::memory::Group;
use anabranch_pipeline::ports::SourceConnector;
use anabranch_pipeline::records::{Progress, Scope};
use anabranch_schemas::shard::ShardId;
use rand::RngExt;
use rand::seq::IteratorRandom;

use super::{DAEMONS, World};
use crate::refresh::refresh_hidden;
use crate::script::{SOURCES, TARGETS};
use crate::stage::{LANES, lanes_of};

/// A branch that no source ever prepares: its reader has all tables read again.
const UNREAD_BRANCH: u64 = u64::MAX;

impl World {
    /// Takes grants of a source away, or gives them back. At times all tables are to be read again then.
    pub(super) async fn grant_fault(&mut self) {
        let source = self.random.random_range(0..SOURCES);
        if self.random.random_ratio(1, 4) {
            self.stage.log_line(|| format!("source {source} decides a branch that no reader has read"));
            self.stage.sources[source].commit(Group::CommitBranch(UNREAD_BRANCH));
        }
        if !self.stage.sources[source].hidden().is_empty() {
            return self.restore_grants(source);
        }
        self.wait(1..2000).await;
        if !self.may_lose_grants(source) {
            return;
        }
        self.lose_grants(source).await;
        if self.random.random() {
            // The lanes list the tables anew, in the middle of what they read.
            self.wait(1..150).await;
            self.restore_grants(source);
            self.daemons = (0..DAEMONS).map(|_| self.start()).collect();
        }
    }

    /// Hides a table, or all tables of a database, and has each lane of the source read all tables.
    async fn lose_grants(&mut self, source: usize) {
        let known = self.stage.sources[source].shards().await.expect("it always knows");
        let hidden: Vec<ShardId> = match self.random.random_ratio(1, 4) {
            true => known,
            false => known.into_iter().choose(&mut self.random).into_iter().collect(),
        };
        self.stage.log_line(|| format!("source {source} loses the grants of {hidden:?}"));
        self.stage.sources[source].hide(hidden.iter().copied());
        for lane in lanes_of(source) {
            refresh_hidden(&self.stage, lane, &hidden, &mut self.random).await;
        }
    }

    /// Whether every lane of the source would notice a hidden table, and none has a repair that only its own request
    /// completes.
    fn may_lose_grants(&self, source: usize) -> bool {
        let lanes = self.stage.progress(source);
        let is_ready = |progress: &Progress| {
            let scope = progress.refresh.as_ref().map(|refresh| &refresh.scope);
            let is_repaired = matches!(scope, Some(Scope::Keys(_) | Scope::Where(..)));
            let has_everything = self.stage.sources[source].is_reached(progress) && !progress.is_replaying();
            has_everything && progress.withdrawals.is_empty() && !is_repaired
        };
        let are_up = !self.stage.targets.iter().any(|target| target.is_down());
        are_up
            && lanes.len() == TARGETS * LANES as usize
            && lanes.iter().all(|(_, progress)| is_ready(progress))
    }

    /// Gives all grants of a source back.
    pub(super) fn restore_grants(&self, source: usize) {
        let hidden = self.stage.sources[source].hidden();
        if !hidden.is_empty() {
            self.stage.log_line(|| format!("source {source} has the grants of {hidden:?} again"));
            self.stage.sources[source].hide([]);
        }
    }

    /// Gives the grants of a source back before one of its hidden tables loses all rows.
    pub(super) fn restore_emptied(&self, groups: &[(usize, Group)]) {
        for (source, group) in groups {
            let hidden = self.stage.sources[*source].hidden();
            let Group::Rows(events) = group else { continue };
            let is_emptied = events
                .iter()
                .flatten()
                .any(|row| row.before.is_none() && row.after.is_none() && hidden.contains(&row.table.shard));
            if is_emptied {
                self.restore_grants(*source);
            }
        }
    }
}
