//! The tables that a lane is to read again, and why some of them could not be read.

use anabranch_pipeline::deliver::UnreadTable;
use anabranch_pipeline::records::{LaneId, Refresh};
use serde::{Deserialize, Serialize};

use super::{LaneObservation, Observatory};

/// Tables of a lane that are shown, at most.
const TABLES_SHOWN_MAX: usize = 5;

/// A table that waits to be read again and could not be read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OwedTableView {
    pub shard: String,
    /// `database.table`; `None` = only the shard id is known.
    pub table: Option<String>,
    pub code: String,
    /// The fault as one line, with its remedy.
    pub fault: String,
}

impl OwedTableView {
    fn of(unread: &UnreadTable) -> Self {
        Self {
            shard: unread.shard.to_string(),
            table: unread.table.clone(),
            code: unread.code.as_str().to_owned(),
            fault: unread.fault.clone(),
        }
    }
}

impl Observatory {
    /// Records the tables that lanes of this process could not read.
    pub fn unread_seen(&self, unread: impl Iterator<Item = (LaneId, Vec<UnreadTable>)>) {
        let mut all = self.lock();
        all.lanes.values_mut().for_each(|lane| lane.unread.clear());
        for (id, tables) in unread {
            if let Some(lane) = all.lanes.get_mut(&id) {
                lane.unread = tables;
            }
        }
    }
}

impl LaneObservation {
    fn refresh(&self) -> Option<&Refresh> {
        self.progress.as_ref()?.refresh.as_ref()
    }

    /// Returns the number of tables that wait to be read again; 1 when all tables do and none is listed.
    pub(super) fn owed_tables(&self) -> usize {
        let waiting = |refresh: &Refresh| refresh.rereads.len().max(usize::from(refresh.every_waits));
        self.refresh().map_or(0, waiting)
    }

    /// Returns some of the tables that could not be read and still wait.
    pub(super) fn owed_table_views(&self) -> Vec<OwedTableView> {
        let Some(refresh) = self.refresh() else { return Vec::new() };
        let waits = |unread: &&UnreadTable| refresh.rereads.contains_key(&unread.shard);
        self.unread.iter().filter(waits).take(TABLES_SHOWN_MAX).map(OwedTableView::of).collect()
    }
}
