//! The tables with the most changes, as the readers of this process count them.

use anabranch_pipeline::capture::BusyTable;
use serde::{Deserialize, Serialize};

use super::Observatory;

/// Tables that are shown, at most.
pub(super) const TABLES_SHOWN_MAX: usize = 10;

/// One table and the number of its changes in the last minute.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BusiestView {
    pub source: String,
    /// `database.table`
    pub table: String,
    pub changes_per_minute: f64,
}

impl Observatory {
    /// Records the busiest tables of some sources, and keeps the busiest of them all.
    pub fn busiest_seen<'s>(&self, tables: impl Iterator<Item = (&'s str, BusyTable)>) {
        let view = |(source, BusyTable { table, changes_per_minute }): (&str, BusyTable)| {
            let source = source.to_owned();
            BusiestView { source, table, changes_per_minute }
        };
        let mut busiest: Vec<BusiestView> = tables.map(view).collect();
        busiest.sort_by(|one, other| other.changes_per_minute.total_cmp(&one.changes_per_minute));
        busiest.truncate(TABLES_SHOWN_MAX);
        self.lock().busiest = busiest;
    }
}
