//! The sweep of a table: after its last chunk, claims that are older than its first watermark are removed.

use std::ops::Range;

use anabranch_schemas::lsn::Lsn;

use super::{Phase, Refresher, Step};
use crate::deliver::window::LaneWindow;
use crate::error::Fault;
use crate::failpoints;
use crate::ports::{LaneStore, RowSource};
use crate::records::{Flush, Progress, TABLE_WORK, TableRefresh};

/// Work of a sweep in one derived table: the target examines the rows of one shard in it.
const SWEPT_TABLE_WORK: usize = 2 * TABLE_WORK;
/// Parts of a sweep, at most, as each part is a commit.
const SWEEP_PARTS_MAX: u32 = 16;

/// Whether the sweep of a table comes next.
pub(super) fn is_sweep_due(progress: &Progress) -> bool {
    progress
        .refresh
        .as_ref()
        .and_then(|refresh| refresh.table.as_ref())
        .is_some_and(|table| table.after.is_none())
}

impl<S: RowSource> Refresher<'_, S> {
    /// Returns the derived tables of the first part of a sweep.
    pub(super) fn first_swept(&self) -> Range<u32> {
        let at_once = self.part_work.map_or(u32::MAX, |work| (work / SWEPT_TABLE_WORK) as u32);
        0..at_once.max(self.derived_tables.div_ceil(SWEEP_PARTS_MAX))
    }

    /// Sweeps a table once all of its chunks are written: claims older than the first chunk have no source row.
    pub(super) async fn sweep(
        &mut self,
        window: &mut LaneWindow,
        store: &mut impl LaneStore,
        tables: Range<u32>,
    ) -> Result<(), Fault> {
        let progress = window.progress();
        let Some(refresh) = &progress.refresh else { return Ok(()) };
        let Some(TableRefresh { shard, first, after: None, .. }) = refresh.table else { return Ok(()) };
        let mut flush = Flush::new(progress.clone());
        if let Some(older) = first.as_u64().checked_sub(1) {
            flush.withdraw(shard, Lsn::from_u64(older).expect("below an Lsn lie Lsns only"));
            flush.withdrawn_tables = Some(tables.clone());
        }
        if tables.end < self.derived_tables {
            let next_end = tables.end.saturating_add(tables.end - tables.start);
            self.phase = Phase::Waiting(Step::Sweep(tables.end..next_end));
        } else {
            let left = refresh.after_sweep(shard, first);
            if left.rereads.contains_key(&shard) {
                self.aside.rest(shard);
            } else {
                self.aside.ended();
            }
            self.comparisons.was_read(shard);
            flush.progress.refresh = Some(left);
        }
        self.commit(window, store, flush).await?;
        failpoints::reach("refresh-swept").await;
        Ok(())
    }
}
