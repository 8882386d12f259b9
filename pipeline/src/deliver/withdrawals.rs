//! A lane removes the claims of dropped and truncated tables in parts, with other changes in between.
//!
//! The commit that passes such a statement only stores its withdrawals in progress ([`PendingWithdrawals`]). Afterwards
//! the lane looks for claims of these tables, some rows at a time, and deletes what it finds under the fence. Each part
//! begins after the rows of the one before it, so rows of tables that exist again are passed once. Once nothing is
//! left, the same commit takes the withdrawals off the list. So a lane that is cut off begins with the first derived
//! table again, and finds less there.
//!
//! Why changes in between do no harm:
//!
//! - A delete has the position below the withdrawal as its version, so a row of a table that exists again stays, also
//!   if the same statement wrote it.
//! - A row that this table writes over an older one gets its own, higher version.
//! - No chunk of a table is written, compared or swept while claims of it are to be removed. So every row of a chunk
//!   comes after the removal, as it would if the withdrawal were carried out at once.
//! - Until the end the lane counts as behind the position of the withdrawal, for all who wait for it.
//!
//! A store without transactions does not come here, as rows of a flush that was cut off may still come.
//!
//! [`PendingWithdrawals`]: crate::records::PendingWithdrawals

use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use metrics::{Gauge, gauge};
use tokio_util::sync::CancellationToken;

use super::lane::unless;
use super::refresh::Refresher;
use super::window::LaneWindow;
use crate::error::Fault;
use crate::metrics as names;
use crate::ports::{ClaimsPage, LaneStore, RowSource};
use crate::records::{Flush, LaneId, PendingWithdrawals, Progress};

/// Rows at which one part looks, and of which one commit deletes claims, at most: some ten milliseconds, for which
/// changes wait.
const PART_ROWS: NonZeroUsize = NonZeroUsize::new(1_000).expect("it is not 0");
/// Tables whose claims are looked for together, at most: the target looks for each of them in every derived table.
const SHARDS_MAX: usize = 50;

/// A removal that has begun. It is in memory alone.
#[derive(Debug)]
struct Removal {
    withdrawals: Vec<(ShardId, Lsn)>,
    /// The place with which the next part begins.
    page: ClaimsPage,
}

impl Removal {
    fn of(pending: &PendingWithdrawals) -> Self {
        Self { withdrawals: pending.oldest(SHARDS_MAX), page: ClaimsPage::default() }
    }
}

/// A lane's removal of withdrawn claims, within one attempt of the lane.
pub(super) struct Withdrawals<'a> {
    id: &'a LaneId,
    /// Ends the reads of claims, which may take long.
    cancel: CancellationToken,
    /// The metric of the tables of which claims are to be removed.
    tables: Gauge,
    /// The removal that has begun.
    removal: Option<Removal>,
}

impl Drop for Withdrawals<'_> {
    /// Ends the metric with the attempt: the process that runs the lane next may be another one.
    fn drop(&mut self) {
        self.tables.set(0.0);
    }
}

impl<'a> Withdrawals<'a> {
    pub(super) fn new(id: &'a LaneId, cancel: &CancellationToken) -> Self {
        let labels = id.labels();
        let tables = gauge!(names::REFRESH_WITHDRAWALS, &labels);
        Self { id, cancel: cancel.clone(), tables, removal: None }
    }

    /// Whether the lane is to remove claims now. It waits while it replays, as a refresh does.
    pub(super) fn are_due(progress: &Progress) -> bool {
        !progress.withdrawals.is_empty() && progress.position > Lsn::ZERO && !progress.is_replaying()
    }

    /// Whether claims of one of these tables are to be removed. No step of a refresh is written for them meanwhile.
    pub(super) fn hold_back(progress: &Progress, shards: &BTreeSet<ShardId>) -> bool {
        shards.iter().any(|shard| progress.withdrawals.contains(*shard))
    }

    /// Sets the metric. `progress` is the lane's with its uncommitted work.
    pub(super) fn measure(&self, progress: &Progress) {
        self.tables.set(progress.withdrawals.len() as f64);
    }

    /// Removes a part of the claims, once they are due. The window must be empty: everything that it held is committed,
    /// and noted. A part without a claim needs no commit, unless it is the last one. `refresher` commits, and reads its
    /// next chunk meanwhile.
    pub(super) async fn remove<S: RowSource>(
        &mut self,
        window: &mut LaneWindow,
        store: &mut impl LaneStore,
        refresher: &mut Refresher<'_, S>,
    ) -> Result<(), Fault> {
        let mut flush = Flush::new(window.progress().clone());
        let begun = self.removal.take();
        let Removal { withdrawals, page } = begun.unwrap_or_else(|| Removal::of(&flush.progress.withdrawals));
        let found = unless(&self.cancel, store.withdrawn_claims(&withdrawals, &page, PART_ROWS)).await?;
        // The lane ends: the next process begins with the first derived table.
        let Some((claims, next)) = found else { return Ok(()) };
        claims.into_iter().for_each(|claim| flush.push(claim));
        if let Some(page) = next {
            self.removal = Some(Removal { withdrawals, page });
            if flush.is_empty() {
                return Ok(());
            }
        } else {
            flush.progress.withdrawals.settle(&withdrawals);
            tracing::info!(
                lane = %self.id, tables = withdrawals.len(), left = flush.progress.withdrawals.len(),
                "the rows of tables that were dropped or truncated are removed"
            );
        }
        refresher.commit(window, store, flush).await
    }
}
