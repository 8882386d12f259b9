//! Tables whose rows changed without row events: the stream records them, and each lane reads them again.
//!
//! The record is at the end of the group and depends on the group alone, so a stream that reads the group again makes
//! the same one.

use std::collections::BTreeSet;

use anabranch_pipeline::config::UnseenChanges;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::change::TableIdentity;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;

use super::MysqlStream;
use super::maps::MappedTable;
use super::transport::Events;
use crate::mysql::source::decode::xid::Xid;
use crate::mysql::source::server::tables::CapturedTable;

impl<E: Events> MysqlStream<E> {
    /// Has a table read again for the reason in `fault`; returns the fault if the configuration stops the source
    /// instead.
    pub(super) fn read_again(&mut self, table: &CapturedTable, fault: Fault, lsn: Lsn) -> Result<(), Fault> {
        self.note_reread(fault, table.unseen_changes == UnseenChanges::Stop, lsn)?;
        if table.unseen_changes == UnseenChanges::Reread {
            self.groups.reread(table.identity.clone());
        }
        Ok(())
    }

    /// Returns why row events of the table do not show every change, although its columns fit; `None` if they do.
    pub(super) fn unshown(&self, mapped: &MappedTable) -> Option<Fault> {
        let how = self.tables.unfit(mapped.table.identity.shard)?;
        Some(how.fault(mapped.name(), &mapped.quoted()))
    }

    /// Has the child of a foreign key read again: the statement that ends at this position may have changed rows of it.
    pub(super) fn read_child_again(&mut self, child: &MappedTable, lsn: Lsn) -> Result<(), Fault> {
        self.cascaded += u64::from(self.groups.is_new(lsn));
        let found = format!(
            "a statement opened captured {} for writing and logged no rows of it: a foreign key (CASCADE, SET NULL) \
             may have changed some",
            child.name()
        );
        let fault = self
            .cursor
            .fault(Code::BinlogStatement, found)
            .needs("changes of the table that are logged as row events")
            .remedy("change the child's rows before the parent's, or drop the foreign key");
        self.read_again(&child.table, fault, lsn)
    }

    /// Has every captured table read again, as it is not known which rows changed.
    pub(super) fn read_every_table_again(&mut self, fault: Fault, lsn: Lsn) -> Result<(), Fault> {
        for table in self.every_table(fault, lsn)? {
            self.groups.reread(table);
        }
        Ok(())
    }

    /// Has tables read again if rows of theirs are undone and the binlog does not show which.
    pub(super) fn read_undone_again(&mut self, shards: BTreeSet<ShardId>, lsn: Lsn) -> Result<(), Fault> {
        for shard in shards {
            let Some(table) = self.tables.shared(shard) else { continue };
            let found =
                "a transaction rolled captured rows back to a savepoint that the binlog does not have";
            let fault = self.cursor.fault(Code::BinlogRolledBackRows, found);
            self.read_again(&table, fault.needs("a refresh of this source"), lsn)?;
        }
        Ok(())
    }

    /// Returns the tables to read again in place of a committed branch whose rows this stream has not read.
    pub(super) fn read_in_place_of(
        &mut self,
        xid: &Xid,
        lsn: Lsn,
    ) -> Result<Vec<TableIdentity<'static>>, Fault> {
        let found = format!(
            "XA COMMIT {xid}: the rows of this branch are before the position at which the source's history begins"
        );
        let fault = self.cursor.fault(Code::BinlogXaUnread, found).needs(
            "a history that begins before the branch was prepared, or at a moment without undecided branches (XA \
             RECOVER)",
        );
        self.every_table(fault, lsn)
    }

    fn every_table(&mut self, fault: Fault, lsn: Lsn) -> Result<Vec<TableIdentity<'static>>, Fault> {
        let stops = self.tables.entities().any(|entity| entity.unseen_changes == UnseenChanges::Stop);
        self.note_reread(fault, stops, lsn)?;
        Ok(self.tables.entities().map(|entity| TableIdentity::every(entity.entity)).collect())
    }

    /// Logs the fault, or returns it if `stops`; does neither for a group that was sent before.
    fn note_reread(&mut self, fault: Fault, stops: bool, lsn: Lsn) -> Result<(), Fault> {
        if !self.groups.is_new(lsn) {
            return Ok(());
        }
        if stops {
            return Err(fault);
        }
        if self.last_warning.is_due() {
            tracing::warn!(source = self.cursor.source(), %fault, "rows changed without row events in the binlog: the lanes read their table again");
        }
        Ok(())
    }
}
