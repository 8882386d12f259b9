//! Statements that opened a captured table for writing and logged no rows of it: a foreign key may have changed rows.
//!
//! A server opens the tables that a foreign key may change (`CASCADE`, `SET NULL`) as it opens those that a statement
//! names, so the binlog has their maps; it has no rows of InnoDB's changes there. This is a hint and no error: such a
//! statement need not have changed a row. A statement whose trigger or join writes a captured table, but found no row
//! there, looks the same.

use std::sync::Arc;

use anabranch_pipeline::records::BatchBuilder;

use super::last_warning::LastWarning;
use super::maps::MappedTable;

/// Captured tables without rows in the last event of a stream, and the time of the last warning.
#[derive(Debug, Default)]
pub(super) struct Unseen {
    /// Tables of the event that was taken last.
    tables: Vec<Arc<MappedTable>>,
    last_warning: LastWarning,
}

impl Unseen {
    pub(super) fn record(&mut self, table: &Arc<MappedTable>) {
        self.tables.push(Arc::clone(table));
    }

    /// Counts the tables of the last event if it is new; logs a warning about one of them at most once a minute.
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
