//! A reading that goes on where the reading of another server stopped, and how it learns that it must not.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::envelope::ServerIdentity;

use super::cursor::Cursor;
use crate::mysql::source::decode::gtid::{Gtid, Gtids};

/// A reading that goes on from another server's.
#[derive(Debug)]
pub struct FailOverStart {
    pub before: ServerIdentity,
    pub present: ServerIdentity,
    /// Part of the group after those that were read whole was sent, and nobody said its GTID.
    pub has_open_group: bool,
    /// The groups that were read whole and come again; `None` = none comes again.
    pub read: Option<Gtids>,
}

impl FailOverStart {
    /// Whether the group was read whole from the server before.
    pub fn has_read(&self, gtid: &Gtid) -> bool {
        self.read.as_ref().is_some_and(|read| read.has(gtid))
    }

    /// The first group after those that were read whole: it must not have begun here when an open group is to come
    /// again. `gtids` are those before it.
    pub fn check(&self, gtids: Option<&Gtids>, first: &Gtid, at: &Cursor) -> Result<(), Fault> {
        let is_continued = gtids.is_some_and(|gtids| gtids.are_continued_by(first));
        if !self.has_open_group || !first.is_by(&self.present) || is_continued {
            return Ok(());
        }
        let found = format!("server {} lacks the transaction that was being read", name(&self.present));
        Err(diverged(at.fault(Code::SourceDiverged, found), &self.before, at.source()))
    }

    /// What a fault of the connection means: a server that refuses the set of another one has not its transactions.
    pub fn refused(&self, fault: Fault, at: &Cursor) -> Fault {
        if fault.code() != Code::BinlogGtidUnknown {
            return fault;
        }
        let found = format!("server {} has other transactions", name(&self.present));
        diverged(at.fault(Code::SourceDiverged, found).caused_by(fault), &self.before, at.source())
    }
}

pub(super) fn diverged(fault: Fault, before: &ServerIdentity, source: &str) -> Fault {
    let needed = format!("every transaction that was read from {}", name(before));
    fault
        .needs(needed)
        .remedy(format!("set the source's `url` to a server that has them; else {}", begin_anew(source)))
}

/// What reads the tables again and goes on at the server's end.
pub(super) fn begin_anew(source: &str) -> String {
    format!("`anabranch --config FILE begin-anew --source {source}`")
}

pub(super) fn name(server: &ServerIdentity) -> String {
    format!("{}:{}", server.flavor, server.id)
}
