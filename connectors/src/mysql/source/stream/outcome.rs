//! Where groups begin, end and are decided; only then their rows are released into batches.
//!
//! An ordinary group's rows leave at their own positions, so that a large one is sent, and resumed, in parts. Those of
//! an XA branch leave at the position of `XA COMMIT`; until then reading resumes before the branch.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::records::BatchBuilder;
use anabranch_schemas::lsn::{Lsn, ReadEnd, ResumePoint};

use super::group::Group;
use crate::mysql::source::decode::gtid::{GroupStart, Gtid, Gtids};
use crate::mysql::source::decode::position;
use super::MysqlStream;
use super::transport::Events;
use super::withheld::Withheld;
use crate::mysql::source::decode::xid::Xid;

/// A group that has ended and whose rows are on their way into batches.
#[derive(Debug)]
pub struct Release {
    rows: Withheld,
    /// The position that all rows get; `None` = their own.
    at: Option<Lsn>,
    /// The group's last event.
    end: Lsn,
    gtid: Option<Gtid>,
    committed_at_us: u64,
}

/// A place between groups after the last one whose rows are all in a batch, not yet given to it as a resume point:
/// writing its GTID set as text for every group of a busy source would cost more than decoding its rows.
#[derive(Debug, Default)]
pub struct GroupEnd {
    pub(super) position: u64,
    /// Commit time of the last group; 0 = there was none since, or its time is unknown.
    committed_at_us: u64,
}

impl<E: Events> MysqlStream<E> {
    /// Gives the place between two groups as a resume point, when the groups before it are known.
    pub(super) fn enter(&mut self, batch: &mut BatchBuilder) -> Result<(), Fault> {
        if self.gtids.is_none() || self.is_by_gtid && !self.has_entry {
            return Ok(());
        }
        self.has_entry = true;
        batch.group_complete(self.resume_point(self.position.end), 0);
        batch.event_complete(self.lsn()?);
        Ok(())
    }

    pub(super) fn begin_group(
        &mut self,
        start: GroupStart,
        event_bytes: u32,
        batch: &mut BatchBuilder,
    ) -> Result<(), Fault> {
        if self.group.is_open() {
            return Err(self.corrupt("a group begins before the one before it has ended"));
        }
        if let Some(follows) = self.follows.take_if(|follows| !follows.has_read(&start.gtid)) {
            self.check_follows(&follows, &start.gtid)?;
        }
        self.maps.statement_ended();
        let position = self.position.end.saturating_sub(u64::from(event_bytes));
        self.group = Group::begin(self.flavor, start, position);
        if !self.has_entry {
            let flavor = self.flavor;
            self.gtids.get_or_insert_with(|| Gtids::empty(flavor));
            batch.group_complete(self.resume_point(position), 0);
            let place = position::lsn(self.position.epoch, &self.position.file, position);
            batch.event_complete(place.map_err(|error| self.no_lsn(&error))?);
            self.has_entry = true;
        }
        Ok(())
    }

    pub(super) fn commit_group(
        &mut self,
        lsn: Lsn,
        timestamp_seconds: u32,
        batch: &mut BatchBuilder,
    ) -> Result<(), Fault> {
        let rows = std::mem::take(&mut self.withheld);
        self.end_group(rows, None, lsn, timestamp_seconds, batch)
    }

    pub(super) fn roll_group_back(
        &mut self,
        lsn: Lsn,
        timestamp_seconds: u32,
        batch: &mut BatchBuilder,
    ) -> Result<(), Fault> {
        self.withheld = std::mem::take(&mut self.withheld).rolled_back();
        self.commit_group(lsn, timestamp_seconds, batch)
    }

    /// A server that does not log the savepoint does not say which rows are undone.
    pub(super) fn roll_back_to(&mut self, savepoint: &str, lsn: Lsn) -> Result<(), Fault> {
        if self.withheld.rollback_to(savepoint) || self.withheld.is_empty() {
            return Ok(());
        }
        let shards = self.withheld.shards().map_err(|error| self.cannot_withhold(error))?;
        for shard in shards {
            let Some(table) = self.tables.shared(shard) else { continue };
            let found = "captured rows are undone to a savepoint that is not in the log";
            let fault = self.fault(Code::BinlogRolledBackRows, found).needs("a refresh of this source");
            self.read_again(&table, fault, lsn)?;
        }
        Ok(())
    }

    /// The event that ends an XA branch's group: it waits for its decision, unless it was committed in one phase.
    pub(super) fn prepare_branch(
        &mut self,
        body: &[u8],
        lsn: Lsn,
        timestamp_seconds: u32,
        batch: &mut BatchBuilder,
    ) -> Result<(), Fault> {
        let (xid, is_one_phase) = Xid::from_prepare(body).map_err(|error| self.malformed(error))?;
        if !is_one_phase {
            self.encode_withheld()?;
            let rows = std::mem::take(&mut self.withheld);
            self.branches.prepare(xid, self.place(self.group.start()), rows);
        }
        self.commit_group(lsn, timestamp_seconds, batch)
    }

    /// `XA COMMIT` and `XA ROLLBACK`.
    pub(super) fn decide_branch(
        &mut self,
        xid: &Xid,
        is_commit: bool,
        lsn: Lsn,
        timestamp_seconds: u32,
        batch: &mut BatchBuilder,
    ) -> Result<(), Fault> {
        let counts = is_commit && lsn > self.sent;
        let rows = match self.branches.decide(xid) {
            Some(rows) if counts => rows,
            None if counts => self.unread_branch(xid, lsn)?,
            _ => Withheld::default(),
        };
        self.end_group(rows, Some(lsn), lsn, timestamp_seconds, batch)
    }

    fn end_group(
        &mut self,
        rows: Withheld,
        at: Option<Lsn>,
        end: Lsn,
        timestamp_seconds: u32,
        batch: &mut BatchBuilder,
    ) -> Result<(), Fault> {
        let group = std::mem::take(&mut self.group);
        self.payload = None;
        let committed_at_us = group.committed_at_us(timestamp_seconds);
        self.has_entry = true;
        self.releasing = Some(Release { rows, at, end, gtid: group.into_gtid(), committed_at_us });
        self.release(batch)
    }

    /// Adds rows of the group that ended last, until all are in a batch or the batch is full.
    pub(super) fn release(&mut self, batch: &mut BatchBuilder) -> Result<(), Fault> {
        let Some(mut release) = self.releasing.take() else { return Ok(()) };
        let added = batch.added();
        let is_done = release
            .rows
            .release(release.at, release.end, self.sent, &self.tables, batch)
            .map_err(|error| self.cannot_withhold(error))?;
        if !is_done {
            if batch.added() > added {
                self.partial = release.gtid.as_ref().map(Gtid::to_string);
            }
            self.releasing = Some(release);
            return Ok(());
        }
        let flavor = self.flavor;
        let gtids = self.gtids.get_or_insert_with(|| Gtids::empty(flavor));
        if let Some(gtid) = release.gtid {
            self.partial.take_if(|partial| *partial == gtid.to_string());
            gtids.append(gtid);
        }
        batch.event_complete(release.end);
        self.ended = Some(GroupEnd { position: self.position.end, committed_at_us: release.committed_at_us });
        Ok(())
    }

    /// Gives the last place between groups to the batch: before a batch is handed out, and before the file changes.
    pub(super) fn settle(&mut self, batch: &mut BatchBuilder) {
        if let Some(ended) = self.ended.take() {
            batch.group_complete(self.resume_point(ended.position), ended.committed_at_us);
        }
        self.partial.iter().for_each(|gtid| batch.group_in_part(gtid));
    }

    /// Where reading starts again from a place between two groups: there, or before the oldest undecided branch. Then
    /// the point says too where what was read ends.
    fn resume_point(&self, position: u64) -> ResumePoint {
        let place = self.place(position);
        let partial = self.partial.clone();
        let Some(oldest) = self.branches.oldest() else { return ResumePoint { partial, ..place } };
        let file_number = self.position.file_number;
        let read_end = Some(ReadEnd { file_number, position, gtid_set: place.gtid_set });
        ResumePoint { read_end, partial, ..oldest.clone() }
    }

    /// A place in the present file after the groups read so far.
    fn place(&self, position: u64) -> ResumePoint {
        let gtid_set = self.gtids.as_ref().map(ToString::to_string).unwrap_or_default();
        ResumePoint { file: self.position.file.clone(), position, gtid_set, ..ResumePoint::default() }
    }
}
