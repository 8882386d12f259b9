//! Decides where groups begin and end and whether they commit; releases their rows into batches only after that.
//!
//! A [`GroupReader`] is a state machine: it takes a [`GroupEvent`] and returns an [`Effect`], which the stream carries
//! out. It knows no connection and no table map, and does not wait; it writes to disk only withheld rows that do not
//! fit in memory.
//!
//! An ordinary group's rows leave at their own positions, so that a large group is sent, and resumed, in parts. Rows of
//! an XA branch leave at the position of `XA COMMIT`; until then the resume point stays before the branch.

use std::collections::BTreeSet;

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::records::BatchBuilder;
use anabranch_schemas::change::TableIdentity;
use anabranch_schemas::lsn::{Lsn, ReadEnd, ResumePoint};
use anabranch_schemas::shard::ShardId;

use super::beginning::StreamStart;
use super::cursor::{Cursor, Moment};
use super::follows::FailOverStart;
use super::group::Group;
use super::pending::PendingRows;
use super::withheld::{MEMORY_BYTES_MAX, RowStorage, Withheld, WithholdError};
use super::xa::Branches;
use crate::mysql::source::decode::gtid::{Flavor, GroupStart, Gtid, Gtids};
use crate::mysql::source::decode::xid::Xid;
use crate::mysql::source::server::tables::CapturedTables;
use crate::spill::Spill;

/// The meaning of a binlog event for groups.
#[derive(Debug)]
pub enum GroupEvent {
    /// The stream is at a position between two groups.
    Between,
    /// A new file begins. If a group was open in the old file, a crash of the server cut it off, so it never committed.
    NewFile,
    /// The groups before this position; `None` = the event does not list them.
    Before(Option<Gtids>),
    /// The first event of a group, with its size in bytes.
    Begin {
        start: GroupStart,
        event_bytes: u32,
    },
    BeginTransaction,
    BeginXaBranch,
    /// A compressed transaction of MySQL: its events follow.
    Payload,
    Savepoint(String),
    RollBackTo(String),
    /// A logged statement; outside of a transaction it is a group of its own.
    Statement,
    Commit,
    RollBack,
    /// The event that ends an XA branch's group: the branch waits for its decision, unless it was committed in one
    /// phase.
    Prepare {
        xid: Xid,
        is_one_phase: bool,
    },
    /// `XA COMMIT` or `XA ROLLBACK` decides a branch.
    Decide {
        xid: Xid,
        is_commit: bool,
    },
    /// The source committed a branch whose rows the stream did not read: these tables are read again instead.
    DecideUnread(Vec<TableIdentity<'static>>),
}

/// The action that the stream owes after an event.
#[derive(Debug)]
#[must_use]
pub enum Effect {
    Nothing,
    /// The next stream may resume here: everything before this position of the present file is complete.
    Enter {
        resume: ResumePoint,
        position: u64,
    },
    /// A group has ended: [`GroupReader::release`] is due.
    Release,
    /// A rollback to a savepoint that is not in the log undid rows of these tables.
    Undone(BTreeSet<ShardId>),
    /// The source committed a branch whose rows the stream did not read. [`GroupEvent::DecideUnread`] is due.
    Unread(Xid),
}

/// A group that has ended, with its rows that are not in a batch yet.
#[derive(Debug)]
struct Release {
    rows: Withheld,
    /// The position that all rows get; `None` = each row keeps its own.
    at: Option<Lsn>,
    /// Position of the group's last event.
    end: Lsn,
    gtid: Option<Gtid>,
    committed_at_us: u64,
}

/// A position between groups, after the last group whose rows are all in a batch. The batch gets it as a resume point
/// later: writing its GTID set as text for every group of a busy source would cost more than decoding its rows.
#[derive(Debug, Default)]
struct GroupEnd {
    position: u64,
    /// Commit time of the last group; 0 = there was no group since, or its time is unknown.
    committed_at_us: u64,
}

/// The groups of one stream.
#[derive(Debug)]
pub struct GroupReader {
    flavor: Flavor,
    gtids: Option<Gtids>,
    sent: Lsn,
    /// GTID of the group that was sent in part.
    partial: Option<String>,
    is_by_gtid: bool,
    /// A file after that of the start is read, and so from its beginning.
    has_new_file: bool,
    follows: Option<FailOverStart>,
    /// The batch has a resume point: it may get positions only after one.
    has_entry: bool,
    group: Group,
    /// Number of events so far of the compressed transaction that is being read.
    payload: Option<u64>,
    /// Rows of the open group.
    withheld: Withheld,
    spill: Spill,
    branches: Branches,
    /// The group that ended last, while some of its rows are not in a batch.
    releasing: Option<Release>,
    ended: Option<GroupEnd>,
}

impl GroupReader {
    /// Creates the groups of a new stream; rows that do not fit in memory go to `spill`.
    pub fn new(flavor: Flavor, beginning: StreamStart, spill: Spill) -> Self {
        Self {
            flavor,
            gtids: beginning.gtids,
            sent: beginning.sent,
            partial: beginning.partial,
            is_by_gtid: beginning.is_by_gtid,
            has_new_file: false,
            follows: beginning.follows,
            has_entry: false,
            group: Group::default(),
            payload: None,
            withheld: Withheld::default(),
            spill,
            branches: Branches::default(),
            releasing: None,
            ended: None,
        }
    }

    /// Takes in one event, which ends at `at`, and returns its effect.
    pub fn on(&mut self, event: GroupEvent, moment: Moment, at: &Cursor) -> Result<Effect, Fault> {
        match event {
            GroupEvent::Between => return Ok(self.enter(at)),
            GroupEvent::NewFile => {
                self.group = Group::default();
                self.withheld = Withheld::default();
                self.has_new_file = true;
                // Otherwise a quiet source could resume from a file that was purged meanwhile.
                return Ok(self.enter(at));
            }
            GroupEvent::Before(gtids) => {
                self.gtids = gtids;
                return Ok(self.enter(at));
            }
            GroupEvent::Begin { start, event_bytes } => return self.begin(start, event_bytes, at),
            GroupEvent::BeginTransaction => self.group.begin_transaction(),
            GroupEvent::BeginXaBranch => self.group.begin_xa_branch(),
            GroupEvent::Payload => self.payload = Some(0),
            GroupEvent::Savepoint(name) => self.withheld.set_savepoint(&name),
            GroupEvent::RollBackTo(name) => return self.roll_back_to(&name, at),
            GroupEvent::Statement if self.group.is_transaction() => {}
            GroupEvent::Statement | GroupEvent::Commit => return Ok(self.commit(moment)),
            GroupEvent::RollBack => {
                self.withheld = std::mem::take(&mut self.withheld).rolled_back();
                return Ok(self.commit(moment));
            }
            GroupEvent::Prepare { xid, is_one_phase } => {
                if !is_one_phase {
                    self.encode(at)?;
                    let rows = std::mem::take(&mut self.withheld);
                    self.branches.prepare(xid, self.place(self.group.start(), at), rows);
                }
                return Ok(self.commit(moment));
            }
            GroupEvent::Decide { xid, is_commit } => return Ok(self.decide(xid, is_commit, moment)),
            GroupEvent::DecideUnread(tables) => {
                let mut rows = Withheld::default();
                tables.into_iter().for_each(|table| rows.reread(table));
                return Ok(self.end(rows, Some(moment.lsn), moment));
            }
        }
        Ok(Effect::Nothing)
    }

    /// Counts an event within a compressed transaction, or checks that the transaction before the event was whole.
    pub fn check_payload(&mut self, is_inner: bool, at: &Cursor) -> Result<(), Fault> {
        match (&mut self.payload, is_inner) {
            (Some(events), true) => *events += 1,
            (None, false) => {}
            (None, true) => return Err(at.corrupt("an event of a compressed transaction outside of one")),
            (Some(0), false) => return Err(at.corrupt("a compressed transaction is empty")),
            (Some(_), false) => return Err(at.corrupt("a compressed transaction has no end")),
        }
        Ok(())
    }

    /// Whether the groups before the present position are known.
    pub fn knows_gtids(&self) -> bool {
        self.gtids.is_some()
    }

    /// Forgets the domains that a new file does not list any more: an operator deleted them (`DELETE_DOMAIN_ID`). The
    /// list counts only if it comes after all groups that were read. That of the first file, which the server sends
    /// also to a stream that starts further on, does not, and no list does that a stream by GTID set gets.
    pub fn forget_deleted_domains(&mut self, listed: &Gtids) {
        if let Some(gtids) = &mut self.gtids
            && self.has_new_file
            && !self.is_by_gtid
        {
            gtids.keep_known_domains(|domain| listed.domains().any(|(listed, ..)| listed == domain));
        }
    }

    /// Whether changes at this position were not sent before.
    pub fn is_new(&self, lsn: Lsn) -> bool {
        lsn > self.sent
    }

    /// Whether the stream keeps rows at this position. It keeps all rows of a branch, whose decision may be above
    /// `sent`.
    pub fn wants(&self, lsn: Lsn) -> bool {
        self.is_new(lsn) || self.group.is_xa_branch()
    }

    /// Whether a group that has ended has rows that are not released yet.
    pub fn is_releasing(&self) -> bool {
        self.releasing.is_some()
    }

    /// Moves the resume point to `position`; returns `false` within a group, or while no batch has a resume point.
    pub fn pass(&mut self, position: u64) -> bool {
        let is_between_groups = !self.group.is_open() && self.releasing.is_none();
        if !is_between_groups || !self.has_entry {
            return false;
        }
        self.ended.get_or_insert_default().position = position;
        true
    }

    /// Withholds rows of the open group.
    pub fn push(&mut self, rows: PendingRows, at: &Cursor) -> Result<(), Fault> {
        if self.withheld.push(rows) { self.encode(at) } else { Ok(()) }
    }

    /// Notes that the open group has written into the marker table.
    pub fn note_retention(&mut self) {
        self.withheld.note_retention();
    }

    /// Whether deletions of the open group that come now are those of a retention rule.
    pub fn is_retention(&self) -> bool {
        self.withheld.is_retention()
    }

    /// Withholds a withdrawal of this table in the open group.
    pub fn withdraw(&mut self, lsn: Lsn, table: &TableIdentity<'static>, at: &Cursor) -> Result<(), Fault> {
        let room = self.room();
        self.withheld.withdraw(lsn, table, &room).map_err(|error| cannot_withhold(error, at))
    }

    /// Withholds the record that this table is retired in the open group.
    pub fn retire(&mut self, lsn: Lsn, table: &TableIdentity<'static>, at: &Cursor) -> Result<(), Fault> {
        let room = self.room();
        self.withheld.retire(lsn, table, &room).map_err(|error| cannot_withhold(error, at))
    }

    /// Notes that the table is read again at the end of the open group.
    pub fn reread(&mut self, table: TableIdentity<'static>) {
        self.withheld.reread(table);
    }

    /// Translates a fault of the connection: a server that refuses the GTID set of another one lacks its transactions.
    pub fn refused(&self, fault: Fault, at: &Cursor) -> Fault {
        match &self.follows {
            Some(follows) => follows.refused(fault, at),
            None => fault,
        }
    }

    /// Makes the present position a resume point if the groups before it are known.
    fn enter(&mut self, at: &Cursor) -> Effect {
        if self.gtids.is_none() || self.is_by_gtid && !self.has_entry {
            return Effect::Nothing;
        }
        self.has_entry = true;
        Effect::Enter { resume: self.resume_point(at.end(), at), position: at.end() }
    }

    fn begin(&mut self, start: GroupStart, event_bytes: u32, at: &Cursor) -> Result<Effect, Fault> {
        if self.group.is_open() {
            return Err(at.corrupt("a group begins before the one before it has ended"));
        }
        if let Some(follows) = self.follows.take_if(|follows| !follows.has_read(&start.gtid)) {
            follows.check(self.gtids.as_ref(), &start.gtid, at)?;
        }
        let position = at.end().saturating_sub(u64::from(event_bytes));
        let flavor = self.flavor;
        self.group = Group::begin(flavor, start, position);
        if self.has_entry {
            return Ok(Effect::Nothing);
        }
        self.gtids.get_or_insert_with(|| Gtids::empty(flavor));
        self.has_entry = true;
        Ok(Effect::Enter { resume: self.resume_point(position, at), position })
    }

    /// Rolls back to a savepoint. If the server did not log it, no event says which rows are undone.
    fn roll_back_to(&mut self, savepoint: &str, at: &Cursor) -> Result<Effect, Fault> {
        if self.withheld.rollback_to(savepoint) || self.withheld.is_empty() {
            return Ok(Effect::Nothing);
        }
        self.withheld.shards().map(Effect::Undone).map_err(|error| cannot_withhold(error, at))
    }

    fn commit(&mut self, moment: Moment) -> Effect {
        let rows = std::mem::take(&mut self.withheld);
        self.end(rows, None, moment)
    }

    fn decide(&mut self, xid: Xid, is_commit: bool, moment: Moment) -> Effect {
        let counts = is_commit && self.is_new(moment.lsn);
        let rows = match self.branches.decide(&xid) {
            Some(rows) if counts => rows,
            None if counts => return Effect::Unread(xid),
            _ => Withheld::default(),
        };
        self.end(rows, Some(moment.lsn), moment)
    }

    fn end(&mut self, rows: Withheld, at: Option<Lsn>, moment: Moment) -> Effect {
        let group = std::mem::take(&mut self.group);
        self.payload = None;
        let committed_at_us = group.committed_at_us(moment.seconds);
        self.has_entry = true;
        self.releasing =
            Some(Release { rows, at, end: moment.lsn, gtid: group.into_gtid(), committed_at_us });
        Effect::Release
    }

    /// Adds rows of the group that ended last, until all are in a batch or the batch is full.
    pub fn release(
        &mut self,
        tables: &CapturedTables,
        at: &Cursor,
        batch: &mut BatchBuilder,
    ) -> Result<(), Fault> {
        let Some(mut release) = self.releasing.take() else { return Ok(()) };
        let added = batch.added();
        let is_done = release
            .rows
            .release(release.at, release.end, self.sent, tables, batch)
            .map_err(|error| cannot_withhold(error, at))?;
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
        self.ended = Some(GroupEnd { position: at.end(), committed_at_us: release.committed_at_us });
        Ok(())
    }

    /// Gives the batch the last position between groups. The stream calls it before it returns a batch and before the
    /// file changes.
    pub fn settle(&mut self, at: &Cursor, batch: &mut BatchBuilder) {
        if let Some(ended) = self.ended.take() {
            batch.group_complete(self.resume_point(ended.position, at), ended.committed_at_us);
        }
        self.partial.iter().for_each(|gtid| batch.group_in_part(gtid));
    }

    fn encode(&mut self, at: &Cursor) -> Result<(), Fault> {
        let room = self.room();
        self.withheld.encode(&room).map_err(|error| cannot_withhold(error, at))
    }

    /// Returns the room for encoded rows of the open group.
    fn room(&self) -> RowStorage {
        let memory_bytes = MEMORY_BYTES_MAX.saturating_sub(self.branches.memory_bytes());
        RowStorage { memory_bytes, spill: self.spill.clone() }
    }

    /// Returns the resume point for a position between two groups: there, or before the oldest undecided branch. In the
    /// second case the point also has the end of the groups that were read.
    fn resume_point(&self, position: u64, at: &Cursor) -> ResumePoint {
        let place = self.place(position, at);
        let partial = self.partial.clone();
        let Some(oldest) = self.branches.oldest() else { return ResumePoint { partial, ..place } };
        let file_number = at.file_number();
        let read_end = Some(ReadEnd { file_number, position, gtid_set: place.gtid_set });
        ResumePoint { read_end, partial, ..oldest.clone() }
    }

    /// Returns a position of the present file, with the groups read so far, as a resume point.
    fn place(&self, position: u64, at: &Cursor) -> ResumePoint {
        let gtid_set = self.gtids.as_ref().map(ToString::to_string).unwrap_or_default();
        ResumePoint { file: at.file().to_owned(), position, gtid_set, ..ResumePoint::default() }
    }
}

fn cannot_withhold(error: WithholdError, at: &Cursor) -> Fault {
    error.into_fault(|code, found| at.fault(code, found))
}

#[cfg(test)]
mod tests;
