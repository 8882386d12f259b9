//! A reading that goes on where the reading of another server stopped, and how it learns that it must not.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::envelope::ServerIdentity;

use super::MysqlStream;
use super::transport::Events;
use crate::mysql::source::decode::gtid::{Gtid, Gtids};

/// A reading that goes on from another server's.
#[derive(Debug)]
pub struct Follows {
    before: ServerIdentity,
    /// Part of the group after those that were read whole was sent, and nobody said its GTID.
    has_open_group: bool,
    /// The groups that were read whole and come again; `None` = none comes again.
    read: Option<Gtids>,
}

impl Follows {
    pub(super) fn new(before: ServerIdentity, has_open_group: bool, read: Option<Gtids>) -> Self {
        Self { before, has_open_group, read }
    }

    /// Whether the group was read whole from the server before.
    pub(super) fn has_read(&self, gtid: &Gtid) -> bool {
        self.read.as_ref().is_some_and(|read| read.has(gtid))
    }
}

impl<E: Events> MysqlStream<E> {
    /// The first group after those that were read whole: it must not have begun here when an open group is to come
    /// again.
    pub(super) fn check_follows(&self, follows: &Follows, first: &Gtid) -> Result<(), Fault> {
        let is_continued = self.gtids.as_ref().is_some_and(|gtids| gtids.are_continued_by(first));
        if !follows.has_open_group || !first.is_by(&self.server) || is_continued {
            return Ok(());
        }
        let found = format!("server {} lacks the transaction that was being read", name(&self.server));
        Err(diverged(self.fault(Code::SourceDiverged, found), &follows.before, &self.source))
    }

    /// A server that refuses the set of another one has not its transactions.
    pub(super) fn refused(&self, fault: Fault) -> Fault {
        match &self.follows {
            Some(follows) if fault.code() == Code::BinlogGtidUnknown => {
                let found = format!("server {} has other transactions", name(&self.server));
                diverged(
                    self.fault(Code::SourceDiverged, found).caused_by(fault),
                    &follows.before,
                    &self.source,
                )
            }
            _ => fault,
        }
    }
}

pub(super) fn diverged(fault: Fault, before: &ServerIdentity, source: &str) -> Fault {
    let needed = format!("every transaction that was read from {}", name(before));
    fault.needs(needed).remedy(format!("a server that has them; else {}", begin_anew(source)))
}

/// What reads the tables again and goes on at the server's end.
pub(super) fn begin_anew(source: &str) -> String {
    format!("`anabranch --config FILE begin-anew --source {source}`")
}

pub(super) fn name(server: &ServerIdentity) -> String {
    format!("{}:{}", server.flavor, server.id)
}
