//! Statements that were to write a captured table and have no rows of it: a foreign key may have changed rows there.
//!
//! A server opens the tables that a foreign key may change (`CASCADE`, `SET NULL`) as it opens those that a statement
//! names, so their maps are in the binlog; what InnoDB then changes is not. A hint and no error: such a statement need
//! not have changed a row, and one whose trigger or join writes a captured table, but found nothing there, looks the
//! same.

use std::sync::Arc;

use anabranch_pipeline::records::BatchBuilder;

use super::last_warning::LastWarning;
use super::maps::MappedTable;

/// What one reading has met.
#[derive(Debug, Default)]
pub(super) struct Unseen {
    /// Belongs to the event that was taken last.
    tables: Vec<Arc<MappedTable>>,
    last_warning: LastWarning,
}

impl Unseen {
    pub(super) fn record(&mut self, table: &Arc<MappedTable>) {
        self.tables.push(Arc::clone(table));
    }

    /// Counts what the last event has ended, unless it is read again, and tells of one a minute.
    pub(super) fn hand_over(&mut self, source: &str, is_new: bool, batch: &mut BatchBuilder) {
        let Some(table) = self.tables.first().filter(|_| is_new) else { return self.tables.clear() };
        batch.pass_unseen(self.tables.len() as u64);
        if self.last_warning.is_due() {
            tracing::warn!(
                source,
                table = table.name(),
                "a statement names this captured table and logged no rows of it: a foreign key may have changed rows \
                 that the binlog does not show; the next reconciliation repairs them"
            );
        }
        self.tables.clear();
    }
}
