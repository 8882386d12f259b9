//! Where groups begin, end and are decided; only then their rows are released into batches.
//!
//! A [`GroupReader`] is a machine: it is told what an event says of groups, and answers what is to be done. It knows no
//! connection and no table map, and waits for nothing; only withheld rows that have no room in memory reach a disk.
//! The stream carries out what it answers.
//!
//! An ordinary group's rows leave at their own positions, so that a large one is sent, and resumed, in parts. Those of
//! an XA branch leave at the position of `XA COMMIT`; until then reading resumes before the branch.

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

/// What an event says of groups.
#[derive(Debug)]
pub enum GroupEvent {
    /// A reading stands at a place between two groups.
    Between,
    /// A new file begins. A group that was open in the old one was cut off by a crash of the server and never happened.
    NewFile,
    /// The groups before this place; `None` = the event does not say them.
    Before(Option<Gtids>),
    /// The first event of a group, and its bytes.
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
    /// A statement is a group of its own, unless it is in a transaction.
    Statement,
    Commit,
    RollBack,
    /// The event that ends an XA branch's group: the branch waits for its decision, unless it was committed in one
    /// phase.
    Prepare {
        xid: Xid,
        is_one_phase: bool,
    },
    /// `XA COMMIT` and `XA ROLLBACK`.
    Decide {
        xid: Xid,
        is_commit: bool,
    },
    /// A branch was committed whose rows were not read: these tables are read again in their place.
    DecideUnread(Vec<TableIdentity<'static>>),
}

/// What is to be done after an event.
#[derive(Debug)]
#[must_use]
pub enum Effect {
    Nothing,
    /// Reading may resume here: at this position of the present file everything before is complete.
    Enter {
        resume: ResumePoint,
        position: u64,
    },
    /// A group has ended: [`GroupReader::release`] is due.
    Release,
    /// Rows of these tables are undone to a savepoint that is not in the log.
    Undone(BTreeSet<ShardId>),
    /// A branch is committed whose rows were not read. [`GroupEvent::DecideUnread`] is due.
    Unread(Xid),
}

/// A group that has ended and whose rows are on their way into batches.
#[derive(Debug)]
struct Release {
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
struct GroupEnd {
    position: u64,
    /// Commit time of the last group; 0 = there was none since, or its time is unknown.
    committed_at_us: u64,
}

/// The groups of one reading.
#[derive(Debug)]
pub struct GroupReader {
    flavor: Flavor,
    gtids: Option<Gtids>,
    sent: Lsn,
    /// GTID of the group of which a part was sent, and the rest was not.
    partial: Option<String>,
    is_by_gtid: bool,
    follows: Option<FailOverStart>,
    /// A resume point was given to the batch: only then may positions be.
    has_entry: bool,
    group: Group,
    /// Events so far of the compressed transaction that is being read.
    payload: Option<u64>,
    /// Rows of the open group.
    withheld: Withheld,
    spill: Spill,
    branches: Branches,
    /// The last group has ended, and not all of its rows are in a batch.
    releasing: Option<Release>,
    ended: Option<GroupEnd>,
}

impl GroupReader {
    /// Rows that have no room in memory go to `spill`.
    pub fn new(flavor: Flavor, beginning: StreamStart, spill: Spill) -> Self {
        Self {
            flavor,
            gtids: beginning.gtids,
            sent: beginning.sent,
            partial: beginning.partial,
            is_by_gtid: beginning.is_by_gtid,
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

    /// Takes in what an event says. `at` is its place.
    pub fn on(&mut self, event: GroupEvent, moment: Moment, at: &Cursor) -> Result<Effect, Fault> {
        match event {
            GroupEvent::Between => return Ok(self.enter(at)),
            GroupEvent::NewFile => {
                self.group = Group::default();
                self.withheld = Withheld::default();
                // So that a quiet source does not resume from a file that is purged meanwhile.
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

    /// Counts an event within a compressed transaction, or checks that the one before it was whole.
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

    /// Whether the groups before the present place are known.
    pub fn knows_gtids(&self) -> bool {
        self.gtids.is_some()
    }

    /// Whether what stands at this position was not sent before.
    pub fn is_new(&self, lsn: Lsn) -> bool {
        lsn > self.sent
    }

    /// Whether rows at this position are wanted: a branch may be decided above what was sent, wherever its rows stand.
    pub fn wants(&self, lsn: Lsn) -> bool {
        self.is_new(lsn) || self.group.is_xa_branch()
    }

    /// Whether rows of a group that has ended are still to be released.
    pub fn is_releasing(&self) -> bool {
        self.releasing.is_some()
    }

    /// Moves the resume point to a place between groups; `false` within one, or when no batch has a resume point yet.
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

    /// The open group removes what this table claims.
    pub fn withdraw(&mut self, lsn: Lsn, table: &TableIdentity<'static>, at: &Cursor) -> Result<(), Fault> {
        let room = self.room();
        self.withheld.withdraw(lsn, table, &room).map_err(|error| cannot_withhold(error, at))
    }

    /// The table is to be read again at the end of the open group.
    pub fn reread(&mut self, table: TableIdentity<'static>) {
        self.withheld.reread(table);
    }

    /// What a fault of the connection means: a server that refuses the set of another one has not its transactions.
    pub fn refused(&self, fault: Fault, at: &Cursor) -> Fault {
        match &self.follows {
            Some(follows) => follows.refused(fault, at),
            None => fault,
        }
    }

    /// The place between two groups is a resume point when the groups before it are known.
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

    /// A server that does not log the savepoint does not say which rows are undone.
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

    /// Gives the last place between groups to the batch: before a batch is handed out, and before the file changes.
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

    /// Where encoded rows of the open group may be.
    fn room(&self) -> RowStorage {
        let memory_bytes = MEMORY_BYTES_MAX.saturating_sub(self.branches.memory_bytes());
        RowStorage { memory_bytes, spill: self.spill.clone() }
    }

    /// Where reading starts again from a place between two groups: there, or before the oldest undecided branch. Then
    /// the point says too where what was read ends.
    fn resume_point(&self, position: u64, at: &Cursor) -> ResumePoint {
        let place = self.place(position, at);
        let partial = self.partial.clone();
        let Some(oldest) = self.branches.oldest() else { return ResumePoint { partial, ..place } };
        let file_number = at.file_number();
        let read_end = Some(ReadEnd { file_number, position, gtid_set: place.gtid_set });
        ResumePoint { read_end, partial, ..oldest.clone() }
    }

    /// A place in the present file after the groups read so far.
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
