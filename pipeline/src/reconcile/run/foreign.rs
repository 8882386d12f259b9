//! The report of derived rows that belong to no table of a source; the reconciliation leaves them where they are.

use std::collections::{BTreeMap, BTreeSet};

use anabranch_schemas::shard::ShardId;
use futures::future::join_all;

use super::Reconciliation;
use crate::ports::{DerivedRows, Lanes, RowSource};
use crate::reconcile::foreign::{Foreign, UnownedRows, shard_text, table_text};
use crate::reconcile::report::StoreReport;
use crate::reconcile::scan::SourceTable;
use crate::records::Progress;
use crate::retry::again;

impl<S: RowSource + 'static, D: DerivedRows + 'static, L: Lanes> Reconciliation<'_, S, D, L> {
    /// Reports rows that belong to no table of a source. A table that was made since the reconciliation began is left
    /// to the next one, and so are rows of a dropped table that a lane is still to remove. A table that no pattern
    /// captures any more keeps its rows.
    pub(super) async fn report_foreign(
        &self,
        mut unowned: UnownedRows,
        tables: &BTreeMap<ShardId, SourceTable>,
        report: &mut StoreReport,
    ) {
        unowned.forget(|shard| tables.contains_key(shard) || self.uncaptured.contains(shard));
        if unowned.rows() > 0 {
            let (present, lanes) = (self.present().await, self.lane_progress().await);
            let is_owed = |shard| lanes.iter().any(|lane| lane.withdrawals.contains(shard));
            unowned.forget(|shard| present.contains(shard) || is_owed(*shard));
        }
        if unowned.rows() == 0 {
            return;
        }
        let derived = self.sides.projection.tables();
        let listed = unowned.first().map(|(table, shard, key)| Foreign {
            table: table_text(&derived[table as usize].derived),
            shard: shard_text(shard),
            key_hash: (self.hash_foreign)(shard, key),
        });
        report.add_foreign(unowned.rows(), listed);
        let reason = unowned.reason(&report.store);
        report.set_incomplete(reason);
    }

    /// Returns the progress of the lanes of all sources, as far as their targets answer.
    async fn lane_progress(&self) -> Vec<Progress> {
        let asked = self.sides.primaries.keys().map(|source| again(|| self.lanes.progress(source)));
        let known = join_all(asked).await.into_iter().flatten().flatten();
        known.map(|(_, progress)| progress).collect()
    }

    /// Returns the shards of all tables that sources have at this moment, as far as they answer.
    async fn present(&self) -> BTreeSet<ShardId> {
        let asked = self.sides.primaries.values().map(|source| again(|| source.tables()));
        let known = join_all(asked).await.into_iter().flatten().flatten();
        known.map(|table| table.shard).collect()
    }
}
