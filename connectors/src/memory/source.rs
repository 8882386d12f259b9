//! A source in memory: servers of one history, of which one is read at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{BinlogPoint, BinlogStart, ChangeSource, Filled, Located, SourceConnector};
use anabranch_pipeline::records::{BatchBuilder, Progress};
use anabranch_schemas::change::{Entity, Row, TableIdentity, Value};
use anabranch_schemas::envelope::{CapturedFields, ServerIdentity};
use anabranch_schemas::lsn::{FIRST_EPOCH, Lsn, ResumePoint};
use anabranch_schemas::shard::ShardId;
use anabranch_schemas::timeline::Timeline;
use tokio::sync::Notify;

use super::binlog::Server;
pub use super::binlog::{Group, ScriptedRow, Transaction};
use super::{Refused, SnapshotView, Weather, lock};

/// Frequency, in a thousand calls, with which the connection breaks.
pub(super) const BROKEN: u32 = 4;
/// Frequency, in a thousand events, with which nothing more has arrived for now.
const DELAYED: u32 = 80;

#[derive(Debug)]
pub(super) struct State {
    /// The server that is read.
    pub(super) primary: Server,
    /// The previous primary, which still replicates.
    former: Option<Server>,
    /// Number of servers so far.
    servers: u64,
    /// Number of fail-overs so far.
    switches: u16,
    /// The number of the reader in each replica slot; a later reader ends it.
    replica_slots: BTreeMap<u32, u64>,
    streams: u64,
    /// Load that the server reports: its statements, and its lag behind the server that it replicates.
    pub(super) running_threads: u64,
    pub(super) replica_lag: Option<Duration>,
    /// Relation of every snapshot to the binlog; `None` = as the weather decides.
    pub(super) snapshot_view: Option<SnapshotView>,
    /// Tables that the account may not read now, on any server.
    pub(super) hidden: BTreeSet<ShardId>,
}

/// A source whose binlog grows while it is read.
#[derive(Debug, Clone)]
pub struct MemorySource {
    pub(super) state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    pub(super) weather: Weather,
    /// Number of captured fields of a user.
    fields: usize,
}

impl MemorySource {
    pub fn new(weather: Weather) -> Self {
        let state = State {
            primary: Server::first(),
            former: None,
            servers: 1,
            switches: 0,
            replica_slots: BTreeMap::new(),
            streams: 0,
            running_threads: 1,
            replica_lag: None,
            snapshot_view: None,
            hidden: BTreeSet::new(),
        };
        let fields = Entity::User.required_fields();
        Self { state: Arc::new(Mutex::new(state)), changed: Arc::default(), weather, fields }
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let outcome = change(&mut lock(&self.state));
        self.changed.notify_waiters();
        outcome
    }

    pub fn commit(&self, group: Group) {
        self.change(|state| state.primary.commit(group));
    }

    /// Sets the number of running statements and the replication lag that the server reports.
    pub fn press(&self, running_threads: u64, replica_lag: Option<Duration>) {
        self.change(|state| (state.running_threads, state.replica_lag) = (running_threads, replica_lag));
    }

    /// Returns the same source with so many captured fields of a user; processes may differ in that for a while.
    #[must_use]
    pub fn capturing(&self, fields: usize) -> Self {
        Self { fields, ..self.clone() }
    }

    /// Returns the captured fields of a row.
    pub(super) fn captured_part<'r>(&self, row: &'r Row<'static>) -> &'r [Value<'static>] {
        &row[..row.len().min(self.fields)]
    }

    /// Sets the relation of all further snapshots to the binlog.
    pub fn show(&self, snapshot_view: SnapshotView) {
        self.change(|state| state.snapshot_view = Some(snapshot_view));
    }

    /// Begins a new binlog file.
    pub fn rotate(&self) {
        self.change(|state| state.primary.rotate());
    }

    /// Removes the files that no reader needs to resume from these points.
    pub fn purge<'p>(&self, needed: impl IntoIterator<Item = &'p ResumePoint>) {
        self.change(|state| state.primary.purge(needed));
    }

    /// Lets a replica take over that holds everything.
    pub fn fail_over(&self) {
        self.replace(|primary, number| primary.successor(number, primary.groups()));
    }

    /// Lets a replica take over that lacks the newest groups.
    pub fn fail_over_lagging(&self, groups: usize) {
        self.replace(|primary, number| primary.successor(number, primary.groups().saturating_sub(groups)));
    }

    /// Lets the former primary, which has replicated meanwhile, take over again; returns `false` when none holds
    /// everything after these points.
    pub fn fail_back(&self, needed: &[ResumePoint]) -> bool {
        self.change(|state| {
            let holds = |former: &mut Server| {
                former.rejoin(&state.primary);
                needed.iter().all(|point| former.holds(point))
            };
            let Some(former) = state.former.take_if(holds) else { return false };
            state.former = Some(std::mem::replace(&mut state.primary, former));
            state.switched();
            true
        })
    }

    /// Removes the binlog, which counts from the beginning.
    pub fn reset(&self) {
        self.change(|state| {
            state.primary.reset();
            state.replica_slots.clear();
        });
    }

    /// Restores the server: it lacks the newest groups, and its binlog counts from the beginning.
    pub fn restore(&self, lost: usize) {
        self.change(|state| {
            state.primary.restore(lost);
            state.former = None;
            state.replica_slots.clear();
        });
    }

    /// Lets a replica take over for good that lacks the newest groups, and rolls back the branches prepared there.
    pub fn lose_newest(&self, groups: usize) {
        self.fail_over_lagging(groups);
        self.change(|state| {
            state.former = None;
            for branch in state.primary.undecided() {
                state.primary.commit(Group::RollBackBranch(branch));
            }
            // The replica has a transaction that the others lack.
            state.primary.commit(Group::Rows(Vec::new()));
        });
    }

    fn replace(&self, next: impl FnOnce(&Server, u64) -> Server) {
        self.change(|state| {
            state.servers += 1;
            let next = next(&state.primary, state.servers);
            state.former = Some(std::mem::replace(&mut state.primary, next));
            state.switched();
        });
    }

    /// Whether the binlog still holds everything after this point.
    pub fn holds(&self, resume: &ResumePoint) -> bool {
        lock(&self.state).primary.holds(resume)
    }

    /// Whether an XA branch is prepared before this point and undecided at it.
    pub fn splits_branch(&self, resume: &ResumePoint) -> bool {
        lock(&self.state).primary.splits_branch(resume)
    }

    /// Whether the lane holds everything up to the present end.
    pub fn is_reached(&self, progress: &Progress) -> bool {
        let Progress { server, position, resume, .. } = progress;
        lock(&self.state).primary.is_reached(server, *position, resume)
    }

    /// Returns the present end, in the epoch of a reader that saw every fail-over.
    pub fn end(&self) -> Lsn {
        let state = lock(&self.state);
        state.primary.head(state.switches + 1)
    }
}

impl State {
    fn switched(&mut self) {
        self.switches += 1;
        self.replica_slots.clear();
    }
}

impl SourceConnector for MemorySource {
    type Source = MemoryStream;

    fn captured(&self) -> CapturedFields {
        CapturedFields::new([(Entity::User, self.fields)])
    }

    async fn check(&self) -> Vec<Fault> {
        self.weather.answer(Refused::Source).err().into_iter().collect()
    }

    async fn open(
        &self,
        entry: BinlogStart,
        latest: &Timeline,
        replica_slot: u32,
    ) -> Result<MemoryStream, Fault> {
        self.weather.pause().await;
        self.weather.answer(Refused::Source)?;
        self.change(|state| {
            let epoch = latest.followed_by(&state.primary.identity()).epoch;
            let partial = entry.resume_point().and_then(|(resume, _)| resume.partial);
            let (next, above) = state.primary.start_at(entry, epoch)?;
            state.streams += 1;
            state.replica_slots.insert(replica_slot, state.streams);
            Ok(MemoryStream {
                source: self.clone(),
                server: state.primary.identity(),
                replica_slot,
                number: state.streams,
                epoch,
                next,
                event: 0,
                row: 0,
                file: state.primary.file_before(next),
                above,
                partial,
                begun: false,
                branches: BTreeMap::new(),
            })
        })
    }

    async fn locate(&self, place: BinlogPoint, epoch: u16) -> Result<Located, Fault> {
        self.weather.answer(Refused::Source)?;
        lock(&self.state).primary.locate(&place, epoch)
    }

    async fn shards(&self) -> Result<Vec<ShardId>, Fault> {
        self.weather.answer(Refused::Source)?;
        Ok(lock(&self.state).primary.tables().into_keys().collect())
    }

    async fn head(&self) -> Result<Lsn, Fault> {
        self.weather.answer(Refused::Source)?;
        Ok(lock(&self.state).primary.head(FIRST_EPOCH))
    }
}

/// A prepared branch: the group that prepared it, and its rows.
#[derive(Debug)]
struct Branch {
    prepared: usize,
    rows: Vec<ScriptedRow>,
}

/// A reader of the source's binlog.
#[derive(Debug)]
pub struct MemoryStream {
    source: MemorySource,
    server: ServerIdentity,
    replica_slot: u32,
    number: u64,
    epoch: u16,
    /// Group, its event and the event's row that come next.
    next: usize,
    event: usize,
    row: usize,
    file: u32,
    above: Lsn,
    /// GTID of a group that was sent in part.
    partial: Option<String>,
    /// The batch has this reader's first resume point.
    begun: bool,
    /// Undecided XA branches.
    branches: BTreeMap<u64, Branch>,
}

impl MemoryStream {
    /// Adds the reader's position, then events until the batch is full; returns `None` when there was nothing to add.
    fn advance(&mut self, batch: &mut BatchBuilder) -> Result<Option<Filled>, Fault> {
        let (source, weather) = (self.source.clone(), self.source.weather.clone());
        let state = lock(&source.state);
        if state.replica_slots.get(&self.replica_slot) != Some(&self.number) {
            return Err(state.primary.fault(Code::SourceUnreachable, "another replica has this server id"));
        }
        let server = &state.primary;
        let mut read = None;
        if !std::mem::replace(&mut self.begun, true) {
            batch.group_complete(self.resume_point(server), 0);
            batch.event_complete(server.position_of(self.epoch, self.next));
            // This is added even if nothing follows: a lane with a direct feed learns that it is at the end.
            read = Some(Filled::Drained);
        }
        loop {
            if self.follow_rotation(server, batch) {
                read = Some(Filled::Drained);
            }
            let Some(group) = server.group(self.next).cloned() else { return Ok(read) };
            read = Some(Filled::Drained);
            let events = match &*group {
                Group::Rows(events) => events.as_slice(),
                _ => &[],
            };
            if self.event < events.len() {
                let lsn = server.lsn(self.epoch, self.next, self.event);
                if !self.emit(server, lsn, &events[self.event], batch) {
                    return Ok(Some(Filled::Full));
                }
                self.event += 1;
                if server.has_positions() || self.event == events.len() {
                    self.complete(lsn, batch);
                }
            }
            if self.event < events.len() {
                if weather.strikes_in(DELAYED) {
                    return Ok(read);
                }
                continue;
            }
            if !self.decide(server, &group, batch)? {
                return Ok(Some(Filled::Full));
            }
            self.end_group(server, batch);
        }
    }

    /// Adds the rows of one event; returns `false` when the batch is full before the last row.
    fn emit(&mut self, server: &Server, lsn: Lsn, rows: &[ScriptedRow], batch: &mut BatchBuilder) -> bool {
        if lsn > self.above {
            for row in &rows[self.row..] {
                if batch.is_full() {
                    return false;
                }
                let before = row.before.as_ref().map(|row| self.source.captured_part(row));
                let after = row.after.as_ref().map(|row| self.source.captured_part(row));
                match (before, after) {
                    (None, Some(after)) => batch.insert(lsn, &row.table, after),
                    (Some(before), Some(after)) if before == after => batch.pass_unchanged(1),
                    // The first field is the key by which chunks are read.
                    (Some(before), Some(after)) if before.first() != after.first() => {
                        batch.delete(lsn, &row.table, before);
                        batch.insert(lsn, &row.table, after);
                    }
                    (Some(before), Some(after)) => batch.update(lsn, &row.table, before, after),
                    (Some(before), None) => batch.delete(lsn, &row.table, before),
                    (None, None) => batch.withdraw(lsn, &row.table),
                }
                self.row += 1;
                self.partial = Some(server.gtid(self.next));
            }
        }
        self.row = 0;
        true
    }

    fn complete(&self, lsn: Lsn, batch: &mut BatchBuilder) {
        if lsn > self.above {
            batch.event_complete(lsn);
        }
    }

    /// Handles the end of a group: decides XA branches, adds rereads; returns `false` when the batch is full.
    fn decide(&mut self, server: &Server, group: &Group, batch: &mut BatchBuilder) -> Result<bool, Fault> {
        match group {
            Group::Rows(events) if !events.is_empty() => return Ok(true),
            Group::Prepare { branch, rows } => {
                let rows = rows.iter().flatten().cloned().collect();
                self.branches.insert(*branch, Branch { prepared: self.next, rows });
            }
            Group::CommitBranch(branch) => {
                let lsn = server.lsn(self.epoch, self.next, 0);
                let Some(Branch { prepared, rows }) = self.branches.remove(branch) else {
                    // At or below the position it was decided while a later branch, before which this reader resumes,
                    // was open. Above the position its rows are unknown: all tables are read again.
                    if lsn > self.above {
                        batch.reread(lsn, &TableIdentity::every(Entity::User));
                        self.complete(lsn, batch);
                    }
                    return Ok(true);
                };
                let emitted = self.emit(server, lsn, &rows, batch);
                if emitted {
                    self.complete(lsn, batch);
                } else {
                    self.branches.insert(*branch, Branch { prepared, rows });
                }
                return Ok(emitted);
            }
            Group::RollBackBranch(branch) => {
                self.branches.remove(branch);
            }
            Group::Statement(_) if server.lsn(self.epoch, self.next, 0) > self.above => {
                return Err(server.fault(Code::BinlogStatement, "a change by text"));
            }
            Group::Unseen(rows) => {
                let lsn = server.lsn(self.epoch, self.next, 0);
                let tables: BTreeMap<ShardId, _> =
                    rows.iter().flatten().map(|row| (row.table.shard, &row.table)).collect();
                for table in tables.into_values().filter(|_| lsn > self.above) {
                    batch.reread(lsn, table);
                }
            }
            Group::Retire(table) | Group::Drop(table) => {
                let lsn = server.lsn(self.epoch, self.next, 0);
                match group {
                    _ if lsn <= self.above => {}
                    Group::Drop(_) => batch.withdraw(lsn, table),
                    _ => batch.retire(lsn, table),
                }
            }
            Group::Statement(_) | Group::Rows(_) => {}
        }
        let events = match group {
            Group::Prepare { rows, .. } => rows.len().max(1),
            _ => 1,
        };
        batch.event_complete(server.lsn(self.epoch, self.next, events - 1).max(self.above));
        Ok(true)
    }

    fn end_group(&mut self, server: &Server, batch: &mut BatchBuilder) {
        self.partial.take_if(|partial| *partial == server.gtid(self.next));
        self.next += 1;
        (self.event, self.row) = (0, 0);
        batch.group_complete(self.resume_point(server), 0);
    }

    /// Returns the resume point before the oldest undecided branch; without one, the present point.
    fn resume_point(&self, server: &Server) -> ResumePoint {
        let read = server.resume_point(self.next, self.file);
        let point = match self.branches.values().map(|branch| branch.prepared).min() {
            Some(prepared) => server.resume_before(prepared, read),
            None => read,
        };
        ResumePoint { partial: self.partial.clone(), ..point }
    }

    /// Adds position and resume point of a new file, even if the file is empty; returns whether there was one.
    fn follow_rotation(&mut self, server: &Server, batch: &mut BatchBuilder) -> bool {
        let file = server.file_before(self.next);
        if file == std::mem::replace(&mut self.file, file) {
            return false;
        }
        batch.group_complete(self.resume_point(server), 0);
        batch.event_complete(server.position_of(self.epoch, self.next));
        true
    }
}

impl ChangeSource for MemoryStream {
    async fn fill(&mut self, batch: &mut BatchBuilder) -> Result<Filled, Fault> {
        self.source.weather.events().await;
        loop {
            let changed = self.source.changed.clone();
            let mut notified = std::pin::pin!(changed.notified());
            notified.as_mut().enable();
            self.source.weather.answer(Refused::Source)?;
            if self.source.weather.strikes_in(BROKEN) {
                return Err(Fault::new(Code::SourceUnreachable, "server", "the connection broke"));
            }
            if let Some(filled) = self.advance(batch)? {
                self.partial.iter().for_each(|gtid| batch.group_in_part(gtid));
                return Ok(filled);
            }
            notified.await;
        }
    }

    fn start_position(&self) -> Lsn {
        self.above
    }

    fn server(&self) -> &ServerIdentity {
        &self.server
    }
}
