//! A server's binlog in memory: groups in commit order, laid out in files.
//!
//! Two servers of one history hold the same groups at different offsets. A GTID set is written as its last group,
//! `<server>-<number>`, because there is one domain and numbers have no gaps; the empty set is empty text.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{BinlogPoint, BinlogStart, Located};
use anabranch_schemas::change::{Row, TableIdentity, Value};
use anabranch_schemas::envelope::ServerIdentity;
use anabranch_schemas::lsn::{Lsn, ReadEnd, ResumePoint, binlog_file_number};
use anabranch_schemas::shard::ShardId;

/// Added to a server's origin by a reset: more than any test has servers.
const RESET: u64 = 1000;
/// Offset of the first group in a file.
const FILE_HEADER_BYTES: u64 = 4;
/// Size of the event that begins a group and names its GTID.
const GTID_BYTES: u64 = 42;
const EVENT_BYTES_MIN: u64 = 40;

/// One row change. Without `before` it is an insert, without `after` a delete; without both it withdraws the table.
#[derive(Debug, Clone)]
pub struct ScriptedRow {
    pub table: TableIdentity<'static>,
    pub before: Option<Row<'static>>,
    pub after: Option<Row<'static>>,
}

/// Events, each with the rows that share its position; an empty transaction moves the position only.
pub type Transaction = Vec<Vec<ScriptedRow>>;

/// Content of the binlog under one GTID.
#[derive(Debug, Clone)]
pub enum Group {
    Rows(Transaction),
    /// The rows of an XA branch that is prepared and not decided.
    Prepare {
        branch: u64,
        rows: Transaction,
    },
    CommitBranch(u64),
    RollBackBranch(u64),
    /// A change that tables show and row events do not, such as a statement by text: reading ends there.
    Statement(Transaction),
    /// A change that tables show and row events do not, for which the reader orders a reread of its tables.
    Unseen(Transaction),
    /// The table leaves by a retention rule; later rows of it make a table of the same name.
    Retire(TableIdentity<'static>),
    /// The table is dropped; later rows of it make a table of the same name.
    Drop(TableIdentity<'static>),
}

impl Group {
    /// Returns the number of events that have an end of their own.
    fn events(&self) -> usize {
        match self {
            Self::Rows(rows) | Self::Prepare { rows, .. } => rows.len().max(1),
            Self::CommitBranch(_)
            | Self::RollBackBranch(_)
            | Self::Statement(_)
            | Self::Unseen(_)
            | Self::Retire(_)
            | Self::Drop(_) => 1,
        }
    }
}

#[derive(Debug, Clone)]
struct Committed {
    /// The server that committed it first.
    origin: u64,
    group: Arc<Group>,
}

/// File and offsets of a group.
#[derive(Debug)]
struct GroupLayout {
    file: u32,
    start: u64,
    /// End position of each event.
    ends: Vec<u64>,
}

/// One server with its history.
#[derive(Debug)]
pub(super) struct Server {
    number: u64,
    /// Number in its GTIDs; it differs from server to server, and changes at a reset.
    origin: u64,
    /// Content of its tables before its binlog began.
    base: Vec<Arc<Group>>,
    /// Tables of the server before it, which may have more groups.
    earlier: BTreeMap<ShardId, TableIdentity<'static>>,
    history: Vec<Committed>,
    laid: Vec<GroupLayout>,
    /// Kept files: number → the first group in it.
    files: BTreeMap<u32, usize>,
    end: u64,
}

impl Server {
    pub fn first() -> Self {
        Self {
            number: 1,
            origin: 1,
            base: Vec::new(),
            earlier: BTreeMap::new(),
            history: Vec::new(),
            laid: Vec::new(),
            files: BTreeMap::from([(1, 0)]),
            end: FILE_HEADER_BYTES,
        }
    }

    /// Makes a server with another identity and the first `groups` groups of this one, in files of its own.
    pub fn successor(&self, number: u64, groups: usize) -> Self {
        let (base, earlier) = (self.base.clone(), self.likely_tables());
        let mut server = Self { number, origin: number, base, earlier, ..Self::first() };
        for (index, committed) in self.history[..groups].iter().enumerate() {
            server.add(committed.clone());
            // Some servers have more files than the one before them, and some fewer.
            if number % 2 == 1 && (index as u64 + number).is_multiple_of(9) {
                server.rotate();
            }
        }
        server
    }

    /// Removes the binlog, which counts from the beginning, as after RESET MASTER.
    pub fn reset(&mut self) {
        *self = Self { number: self.number, origin: self.origin + RESET, ..Self::first() };
    }

    /// Restores the server from a backup that lacks the newest groups; its binlog counts from the beginning. Prepared
    /// branches are gone.
    pub fn restore(&mut self, lost: usize) {
        let (kept, earlier) = (self.history.len().saturating_sub(lost), self.likely_tables());
        let kept = self.history.drain(..kept).map(|committed| committed.group);
        let base = self.base.drain(..).chain(kept).collect();
        *self = Self { number: self.number, origin: self.origin + RESET, base, earlier, ..Self::first() };
        // The server commits a transaction of its own before any reader connects.
        self.commit(Group::Rows(Vec::new()));
    }

    /// Returns the XA branches that are prepared in its binlog and not decided.
    pub fn undecided(&self) -> BTreeSet<u64> {
        self.undecided_before(self.history.len())
    }

    /// Adds the groups that another server has and this one, its replica, lacks.
    pub fn rejoin(&mut self, other: &Self) {
        for committed in &other.history[self.history.len()..] {
            self.add(committed.clone());
        }
    }

    pub fn identity(&self) -> ServerIdentity {
        ServerIdentity { flavor: "memory".to_owned(), id: self.number.to_string() }
    }

    pub fn commit(&mut self, group: Group) {
        self.add(Committed { origin: self.origin, group: Arc::new(group) });
    }

    fn add(&mut self, committed: Committed) {
        let (file, start) = (self.last_file(), self.end);
        let mut end = start + GTID_BYTES;
        let ends = (0..committed.group.events() as u64)
            .map(|event| {
                // Sizes differ from server to server, as they do with other checksums and versions.
                end += EVENT_BYTES_MIN + (event * 7 + self.number * 13 + start) % 50;
                end
            })
            .collect();
        self.laid.push(GroupLayout { file, start, ends });
        self.history.push(committed);
        self.end = end;
    }

    pub fn rotate(&mut self) {
        let next = self.last_file() + 1;
        self.files.insert(next, self.history.len());
        self.end = FILE_HEADER_BYTES;
    }

    /// Removes the files that no reader needs to resume from these points; the last file stays.
    pub fn purge<'p>(&mut self, needed: impl IntoIterator<Item = &'p ResumePoint>) {
        let next = |point: &ResumePoint| self.first_group_after(&point.gtid_set).unwrap_or(0);
        let first = needed.into_iter().map(next).min().unwrap_or(self.history.len());
        let file = self.laid.get(first).map_or(self.last_file(), |laid| laid.file);
        self.files.retain(|number, _| *number >= file);
    }

    /// Returns the GTID of a group, which is also the set of all groups up to it.
    pub fn gtid(&self, group: usize) -> String {
        format!("{}-{}", self.history[group].origin, group + 1)
    }

    pub fn groups(&self) -> usize {
        self.history.len()
    }

    pub fn group(&self, index: usize) -> Option<&Arc<Group>> {
        self.history.get(index).map(|committed| &committed.group)
    }

    /// Whether the events within a group have positions of their own. MariaDB 11.4 and later write none, nor does every
    /// second server here: all rows of a group are then at its end.
    pub fn has_positions(&self) -> bool {
        !self.number.is_multiple_of(2)
    }

    /// Returns the position of one event of a group.
    pub fn lsn(&self, epoch: u16, group: usize, event: usize) -> Lsn {
        let laid = &self.laid[group];
        let event = if self.has_positions() { event } else { laid.ends.len() - 1 };
        Lsn::new(epoch, laid.file, laid.ends[event]).expect("a script is short")
    }

    /// Returns the end of the last file, even if the file has no group.
    pub fn head(&self, epoch: u16) -> Lsn {
        Lsn::new(epoch, self.last_file(), self.end).expect("a script is short")
    }

    /// Whether a reader or lane at this point has nothing more to read.
    pub fn is_reached(&self, server: &ServerIdentity, position: Lsn, resume: &ResumePoint) -> bool {
        let at_end = *server == self.identity() && position == self.head(position.epoch());
        at_end || self.first_group_after(resume.read_gtids()) == Some(self.history.len())
    }

    /// Returns the beginning of the oldest file.
    pub fn oldest(&self, epoch: u16) -> Lsn {
        let first = self.files.keys().next().expect("there is always a file");
        Lsn::new(epoch, *first, FILE_HEADER_BYTES).expect("a script is short")
    }

    pub fn first_group(&self) -> usize {
        *self.files.values().next().expect("there is always a file")
    }

    pub fn first_file(&self) -> u32 {
        *self.files.keys().next().expect("there is always a file")
    }

    fn last_file(&self) -> u32 {
        *self.files.keys().next_back().expect("there is always a file")
    }

    /// Returns the file of a reader that has read up to this group.
    pub fn file_before(&self, group: usize) -> u32 {
        let begun = self.files.iter().rev().find(|(_, first)| **first <= group);
        // As on every server, a file that is being read is not removed under its reader.
        let read = || self.laid.get(group).map_or(self.first_file(), |laid| laid.file);
        begun.map_or_else(read, |(number, _)| *number)
    }

    /// Returns the resume point before this group, in the file that a reader has reached.
    pub fn resume_point(&self, group: usize, file: u32) -> ResumePoint {
        let before = group.checked_sub(1).map(|before| &self.laid[before]);
        let position = match (self.laid.get(group), before) {
            (Some(laid), _) if laid.file == file => laid.start,
            (_, Some(before)) if before.file == file => *before.ends.last().expect("a group has an event"),
            _ => FILE_HEADER_BYTES,
        };
        let gtid_set = group.checked_sub(1).map(|last| self.gtid(last)).unwrap_or_default();
        ResumePoint { file: format!("memory.{file:06}"), position, gtid_set, ..ResumePoint::default() }
    }

    /// Resume point before the group of the oldest undecided branch, for a reader that has read up to `read`.
    pub fn resume_before(&self, prepared: usize, read: ResumePoint) -> ResumePoint {
        let file_number = binlog_file_number(&read.file).unwrap_or_default();
        let read_end = Some(ReadEnd { file_number, position: read.position, gtid_set: read.gtid_set });
        ResumePoint { read_end, ..self.resume_point(prepared, self.file_before(prepared)) }
    }

    /// Returns the position before the group, in this epoch.
    pub fn position_of(&self, epoch: u16, group: usize) -> Lsn {
        let file = self.file_before(group);
        Lsn::new(epoch, file, self.resume_point(group, file).position).expect("a script is short")
    }

    /// Returns the group after a GTID set; `None` when this server does not hold the set.
    fn first_group_after(&self, gtid_set: &str) -> Option<usize> {
        if gtid_set.is_empty() {
            return Some(0);
        }
        let (origin, number) = gtid_set.split_once('-')?;
        let (origin, number): (u64, usize) = (origin.parse().ok()?, number.parse().ok()?);
        let last = self.history.get(number.checked_sub(1)?)?;
        (last.origin == origin).then_some(number)
    }

    /// Returns the first group to read, and the position up to which changes are dropped, for a reader of this epoch.
    pub fn start_at(&self, entry: BinlogStart, epoch: u16) -> Result<(usize, Lsn), Fault> {
        let purged = |group: usize| {
            if group < self.first_group() {
                return Err(self.fault(Code::BinlogPurged, "the group is in a file that was purged"));
            }
            Ok(group)
        };
        match entry {
            BinlogStart::Earliest => Ok((self.first_group(), self.oldest(epoch))),
            BinlogStart::Latest => Ok((self.history.len(), self.head(epoch))),
            BinlogStart::Gtid(set) => {
                let group = self.first_group_after(&set).ok_or_else(|| {
                    self.fault(Code::BinlogGtidUnknown, "the set is not one of this server")
                })?;
                Ok((purged(group)?, Lsn::ZERO))
            }
            BinlogStart::Resume { resume, position, server } => {
                let same = server == self.identity();
                let code = if same { Code::SourceServerChanged } else { Code::SourceDiverged };
                let lacks = || self.fault(code, "this server does not hold what was read");
                let group = self.first_group_after(&resume.gtid_set).ok_or_else(lacks)?;
                for read in [Some(resume.read_gtids()), resume.partial.as_deref()].into_iter().flatten() {
                    self.first_group_after(read).ok_or_else(lacks)?;
                }
                let file = binlog_file_number(&resume.file).unwrap_or_default();
                if same && epoch == position.epoch() && file >= self.first_file() {
                    return Ok((self.at(file, resume.position)?, position));
                }
                Ok((purged(group)?, position))
            }
        }
    }

    /// Returns the group that begins at an offset of a file.
    fn at(&self, file: u32, position: u64) -> Result<usize, Fault> {
        let begins = |laid: &GroupLayout| (laid.file, laid.start) >= (file, position);
        let group = self.laid.iter().position(begins).unwrap_or(self.laid.len());
        let ends_before = match group.checked_sub(1).map(|before| &self.laid[before]) {
            Some(before) if before.file == file => *before.ends.last().expect("a group has an event"),
            _ => FILE_HEADER_BYTES,
        };
        if ends_before != position {
            return Err(self.fault(Code::BinlogEventCorrupt, "no group begins there"));
        }
        Ok(group)
    }

    /// Whether the server still has the group after the point and all later ones.
    pub fn holds(&self, resume: &ResumePoint) -> bool {
        self.first_group_after(&resume.gtid_set).is_some_and(|group| group >= self.first_group())
    }

    /// Whether an XA branch is prepared before the point and undecided at it: a reader from there misses its rows.
    pub fn splits_branch(&self, resume: &ResumePoint) -> bool {
        !self.undecided_before(self.first_group_after(&resume.gtid_set).unwrap_or(0)).is_empty()
    }

    fn undecided_before(&self, groups: usize) -> BTreeSet<u64> {
        let mut undecided = BTreeSet::new();
        for committed in &self.history[..groups] {
            match &*committed.group {
                Group::Rows(_)
                | Group::Statement(_)
                | Group::Unseen(_)
                | Group::Retire(_)
                | Group::Drop(_) => continue,
                Group::Prepare { branch, .. } => undecided.insert(*branch),
                Group::CommitBranch(branch) | Group::RollBackBranch(branch) => undecided.remove(branch),
            };
        }
        undecided
    }

    /// Finds the start of the group of a position or after a GTID set; for a time the oldest: there are no clocks here.
    pub fn locate(&self, place: &BinlogPoint, epoch: u16) -> Result<Located, Fault> {
        let group = match place {
            BinlogPoint::Earliest | BinlogPoint::Time { .. } => self.first_group(),
            BinlogPoint::Latest => self.history.len(),
            BinlogPoint::Gtid(set) => self
                .first_group_after(set)
                .ok_or_else(|| self.fault(Code::BinlogGtidUnknown, "the set is not one of this server"))?,
            BinlogPoint::Lsn(lsn) if lsn.epoch() != epoch => {
                return Err(self.fault(Code::BinlogPurged, "the server was another one before"));
            }
            BinlogPoint::Lsn(lsn) => {
                let ends_below =
                    |group: &usize| self.lsn(epoch, *group, self.laid[*group].ends.len() - 1) < *lsn;
                (0..self.laid.len()).take_while(ends_below).count()
            }
        };
        if group < self.first_group() {
            return Err(self.fault(Code::BinlogPurged, "the place is in a file that was purged"));
        }
        let resume = self.resume_point(group, self.file_before(group));
        let start = self.position_of(epoch, group);
        let position = match place {
            BinlogPoint::Lsn(lsn) => Lsn::from_u64(lsn.as_u64() - 1).unwrap_or(start).max(start),
            _ => start,
        };
        Ok(Located { position, resume, server: self.identity() })
    }

    /// Returns every captured table that the history names, without those that left.
    pub fn tables(&self) -> BTreeMap<ShardId, TableIdentity<'static>> {
        self.named(BTreeMap::new(), false)
    }

    /// Returns the captured tables that may exist by their usual names: also those that were dropped, and those of
    /// lost groups. Rows of retired tables stand, so these have no usual name.
    pub fn likely_tables(&self) -> BTreeMap<ShardId, TableIdentity<'static>> {
        self.named(self.earlier.clone(), true)
    }

    fn named(
        &self,
        mut tables: BTreeMap<ShardId, TableIdentity<'static>>,
        keeps_dropped: bool,
    ) -> BTreeMap<ShardId, TableIdentity<'static>> {
        let history = self.history.iter().map(|committed| &committed.group);
        for group in self.base.iter().chain(history) {
            match &**group {
                Group::Rows(rows)
                | Group::Statement(rows)
                | Group::Unseen(rows)
                | Group::Prepare { rows, .. } => {
                    for row in rows.iter().flatten() {
                        tables.entry(row.table.shard).or_insert_with(|| row.table.clone());
                    }
                }
                Group::Drop(_) if keeps_dropped => {}
                Group::Retire(table) | Group::Drop(table) => _ = tables.remove(&table.shard),
                Group::CommitBranch(_) | Group::RollBackBranch(_) => {}
            }
        }
        tables
    }

    /// Returns the rows of a table after the first `groups` groups, by their first column.
    ///
    /// A chunk replays the whole history, so only the rows that are left at the end are copied.
    pub fn rows(&self, shard: ShardId, groups: usize) -> BTreeMap<u64, Row<'static>> {
        let mut rows: BTreeMap<u64, &Row<'static>> = BTreeMap::new();
        let mut branches: BTreeMap<u64, &Transaction> = BTreeMap::new();
        let history = self.history[..groups].iter().map(|committed| &committed.group);
        for group in self.base.iter().chain(history) {
            match &**group {
                Group::Rows(changes) | Group::Statement(changes) | Group::Unseen(changes) => {
                    apply(changes, shard, &mut rows);
                }
                Group::Prepare { branch, rows: changes } => _ = branches.insert(*branch, changes),
                Group::CommitBranch(branch) => {
                    if let Some(changes) = branches.remove(branch) {
                        apply(changes, shard, &mut rows);
                    }
                }
                Group::RollBackBranch(branch) => _ = branches.remove(branch),
                Group::Retire(table) | Group::Drop(table) if table.shard == shard => rows.clear(),
                Group::Retire(_) | Group::Drop(_) => {}
            }
        }
        rows.into_iter().map(|(key, row)| (key, row.clone())).collect()
    }

    /// Returns the end of the first `groups` groups.
    pub fn end_of(&self, epoch: u16, groups: usize) -> Lsn {
        match groups.checked_sub(1) {
            Some(last) => self.lsn(epoch, last, self.laid[last].ends.len() - 1),
            None => self.oldest(epoch),
        }
    }

    pub fn fault(&self, code: Code, found: &str) -> Fault {
        Fault::new(code, format!("server {}", self.number), found)
    }
}

/// Applies the changes of a transaction to the rows of one table.
fn apply<'h>(transaction: &'h Transaction, shard: ShardId, rows: &mut BTreeMap<u64, &'h Row<'static>>) {
    for row in transaction.iter().flatten().filter(|row| row.table.shard == shard) {
        match (&row.before, &row.after) {
            (None, None) => rows.clear(),
            (before, after) => {
                before.iter().for_each(|before| _ = rows.remove(&key(before)));
                rows.extend(after.iter().map(|after| (key(after), after)));
            }
        }
    }
}

/// Returns a row's key: keys of these tables are numbers.
fn key(row: &Row<'_>) -> u64 {
    match row.first() {
        Some(Value::UInt(key)) => *key,
        other => unreachable!("a scripted row begins with {other:?}"),
    }
}
