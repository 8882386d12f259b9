//! Work of a lane beside its feed: the refresh, and the removal of claims of withdrawn tables.

use anabranch_schemas::change::Change;
use tokio_util::sync::CancellationToken;

use super::lane::Lane;
use super::refresh::Refresher;
use super::window::LaneWindow;
use super::withdrawals::Withdrawals;
use crate::error::Fault;
use crate::ports::{LaneStore, Log, RowSource};
use crate::records::Flush;

/// Work of a lane beside its feed.
pub(super) struct WorkBeside<'a, S> {
    pub(super) refresher: Refresher<'a, S>,
    pub(super) withdrawals: Withdrawals<'a>,
}

impl<'a, S: RowSource> WorkBeside<'a, S> {
    /// Returns work of which nothing has begun.
    pub(super) fn new<L: Log>(
        lane: &Lane<'a, S, L>,
        store: &impl LaneStore,
        cancel: &CancellationToken,
    ) -> Self {
        let withdrawals = Withdrawals::new(lane.id, cancel);
        Self { refresher: Refresher::new(lane, store, cancel), withdrawals }
    }

    /// Removes some claims of withdrawn tables, then writes a step of the refresh. The window must be empty: everything
    /// that it held is committed, and noted.
    pub(super) async fn write(
        &mut self,
        window: &mut LaneWindow,
        store: &mut impl LaneStore,
        project: impl FnMut(&Change<'_, '_>, &mut Flush),
    ) -> Result<(), Fault> {
        let Self { refresher, withdrawals } = self;
        if Withdrawals::are_due(window.progress()) {
            // On the heap: it is rare, and every step of the lane would have room for it on its stack.
            Box::pin(withdrawals.remove(window, store, refresher)).await?;
        }
        let progress = window.progress();
        // A withdrawal from before a record of every table would hide that the table has later claims.
        let waits = refresher.asks_for_unlisted() && !progress.withdrawals.is_empty();
        if waits || Withdrawals::hold_back(progress, refresher.shards()) {
            return Ok(());
        }
        refresher.write(window, store, project).await
    }
}
