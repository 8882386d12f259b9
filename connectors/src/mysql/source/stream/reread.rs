//! Tables whose rows changed as row events do not show: the reading says which, and each lane reads them again.
//!
//! The record stands at the end of the group and depends on nothing but the group, so that a reading which begins
//! again says the same.

use anabranch_pipeline::config::UnseenChanges;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::change::TableIdentity;
use anabranch_schemas::lsn::Lsn;

use super::MysqlStream;
use crate::mysql::source::server::tables::CapturedTable;
use super::transport::Events;
use super::withheld::Withheld;
use crate::mysql::source::decode::xid::Xid;

impl<E: Events> MysqlStream<E> {
    /// Has a table read again for the reason that `fault` says, or stops with it where the configuration wants that.
    pub(super) fn read_again(&mut self, table: &CapturedTable, fault: Fault, lsn: Lsn) -> Result<(), Fault> {
        self.note_reread(fault, table.unseen_changes == UnseenChanges::Stop, lsn)?;
        if table.unseen_changes == UnseenChanges::Reread {
            self.withheld.reread(table.identity.clone());
        }
        Ok(())
    }

    /// The same of every captured table: what changed is not known.
    pub(super) fn read_every_table_again(&mut self, fault: Fault, lsn: Lsn) -> Result<(), Fault> {
        let mut rows = std::mem::take(&mut self.withheld);
        let added = self.add_every_table(&mut rows, fault, lsn);
        self.withheld = rows;
        added
    }

    /// A branch is committed whose rows this reading has not seen.
    pub(super) fn unread_branch(&mut self, xid: &Xid, lsn: Lsn) -> Result<Withheld, Fault> {
        let found =
            format!("XA COMMIT {xid}, whose rows stand before the place where the source's history begins");
        let fault = self.fault(Code::BinlogXaUnread, found).needs(
            "a history that begins before the branch was prepared, or without undecided branches (XA RECOVER)",
        );
        let mut rows = Withheld::default();
        self.add_every_table(&mut rows, fault, lsn)?;
        Ok(rows)
    }

    fn add_every_table(&mut self, rows: &mut Withheld, fault: Fault, lsn: Lsn) -> Result<(), Fault> {
        let stops = self.tables.entities().any(|entity| entity.unseen_changes == UnseenChanges::Stop);
        self.note_reread(fault, stops, lsn)?;
        let every = self.tables.entities().map(|entity| TableIdentity::every(entity.entity));
        every.for_each(|table| rows.reread(table));
        Ok(())
    }

    /// What was sent before is neither logged nor stopped at again.
    fn note_reread(&mut self, fault: Fault, stops: bool, lsn: Lsn) -> Result<(), Fault> {
        if lsn <= self.sent {
            return Ok(());
        }
        if stops {
            return Err(fault);
        }
        if self.last_warning.is_due() {
            tracing::warn!(source = self.source, %fault, "rows changed unseen: their table is read again");
        }
        Ok(())
    }
}
