//! A stream that continues another server's, and how it learns that it must not.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::envelope::ServerIdentity;

use super::cursor::Cursor;
use crate::mysql::source::decode::gtid::{Gtid, Gtids};

/// The start of a stream that continues another server's.
#[derive(Debug)]
pub struct FailOverStart {
    pub before: ServerIdentity,
    pub present: ServerIdentity,
    /// The group after those that were read whole was sent in part, and its GTID is not known.
    pub has_open_group: bool,
    /// The groups that were read whole and come again; `None` = no group comes again.
    pub read: Option<Gtids>,
}

impl FailOverStart {
    /// Whether the group was read whole from the earlier server.
    pub fn has_read(&self, gtid: &Gtid) -> bool {
        self.read.as_ref().is_some_and(|read| read.has(gtid))
    }

    /// Checks the first group after those that were read whole. If an open group must come again, the present server
    /// must not have begun another in its place. `gtids` are the groups before `first`.
    pub fn check(&self, gtids: Option<&Gtids>, first: &Gtid, at: &Cursor) -> Result<(), Fault> {
        let is_continued = gtids.is_some_and(|gtids| gtids.are_continued_by(first));
        if !self.has_open_group || !first.is_by(&self.present) || is_continued {
            return Ok(());
        }
        let found = format!("server {} lacks the transaction that was being read", name(&self.present));
        Err(diverged(at.fault(Code::SourceDiverged, found), &self.before, at.source()))
    }

    /// Translates a fault of the connection: a server that refuses the GTID set of another one lacks its transactions.
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
    fault.needs(needed).remedy(format!(
        "set the source's `url` to a server that has them; else {}, with `--touched` for their tables alone",
        begin_anew(source)
    ))
}

/// Returns the command that reads the tables again and continues at the server's end.
pub(super) fn begin_anew(source: &str) -> String {
    format!("`anabranch --config FILE begin-anew --source {source}`")
}

pub(super) fn name(server: &ServerIdentity) -> String {
    format!("{}:{}", server.flavor, server.id)
}
