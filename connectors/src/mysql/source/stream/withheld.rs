//! Captured rows of a group whose outcome is not known yet, in order.
//!
//! A server logs the rows of a group that it rolled back if the session also made a temporary table. It rolls back to
//! savepoints by statement, and decides an XA branch in another group. No event before the end shows the outcome
//! (measured, MariaDB 10.11). So rows are kept until then: as the events themselves while they are few, then encoded,
//! in memory, and beyond a bound in an unnamed temporary file (`spill.rs`). Only captured columns are encoded, so no
//! other column reaches the disk.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::records::BatchBuilder;
use anabranch_schemas::change::{Action, Entity, TableIdentity};
use anabranch_schemas::codec::{self, CodecError};
use anabranch_schemas::lsn::{Lsn, ResumePoint};
use anabranch_schemas::shard::ShardId;
use thiserror::Error;

use super::maps::Problem;
use super::pending::PendingRows;
use crate::mysql::source::decode::wire::Malformed;
use crate::mysql::source::server::tables::CapturedTables;
use crate::spill::{Spill, SpillFile};

/// Bytes of events kept as they are: a usual transaction is never encoded twice.
const QUEUE_BYTES_MAX: usize = 1 << 20;
/// Bytes of a chunk of encoded rows: a batch grows beyond its limit by at most one chunk.
const CHUNK_BYTES: usize = 8 * 1024;
/// Bytes in memory of encoded rows of all undecided groups of one stream; about a million small rows.
pub const MEMORY_BYTES_MAX: usize = 24 << 20;

/// The reason why rows could not be kept or released.
#[derive(Debug, Error)]
pub enum WithholdError {
    #[error("{}", .0.0)]
    Malformed(Malformed),
    #[error("{0}")]
    Stop(Fault),
    /// The folder, and the free space there.
    #[error("the temporary file of withheld rows cannot be written or read in {0}")]
    File(String, #[source] io::Error),
    #[error("withheld rows in the temporary file differ from those that were written")]
    Chunk(#[from] CodecError),
}

impl WithholdError {
    /// Makes a fault of the error; `at` makes one at the present position.
    pub fn into_fault(self, at: impl FnOnce(Code, String) -> Fault) -> Fault {
        let text = self.to_string();
        match self {
            Self::Malformed(_) => at(Code::BinlogEventCorrupt, text),
            Self::Stop(fault) => fault,
            Self::File(_, error) => at(Code::SourceSpillFailed, text)
                .needs("space and permission in this folder, or another one in limits.spill_dir")
                .caused_by(error),
            Self::Chunk(error) => at(Code::SourceSpillFailed, text).caused_by(error),
        }
    }
}

impl From<Malformed> for WithholdError {
    fn from(error: Malformed) -> Self {
        Self::Malformed(error)
    }
}

impl From<Problem> for WithholdError {
    fn from(problem: Problem) -> Self {
        match problem {
            Problem::Malformed(error) => Self::Malformed(error),
            Problem::Stop(fault) => Self::Stop(fault),
        }
    }
}

/// The room for the encoded rows of a group.
#[derive(Debug)]
pub struct RowStorage {
    /// Bytes that they may take in memory.
    pub memory_bytes: usize,
    /// Maker of the temporary file for the other rows.
    pub(crate) spill: Spill,
}

#[derive(Debug)]
enum Chunk {
    Memory(Box<[u8]>),
    File { offset: u64, length: usize },
}

#[derive(Debug)]
struct Savepoint {
    name: String,
    chunks: usize,
    queued: usize,
    unchanged: u64,
    is_retention: bool,
}

/// Rows in their order: first the encoded ones, then the queue.
#[derive(Debug, Default)]
pub struct Withheld {
    chunks: VecDeque<Chunk>,
    queue: VecDeque<PendingRows>,
    queue_bytes: usize,
    /// Number of updates without effect among the encoded events.
    unchanged: u64,
    savepoints: Vec<Savepoint>,
    memory_bytes: usize,
    file: Option<SpillFile>,
    file_bytes: u64,
    /// Position of the change released last.
    released: Option<Lsn>,
    /// Tables that are read again because the group changed rows without row events. Their rows in row events are left
    /// out: such a row would get the version of the first chunk that is read, so no sweep would reach it.
    rereads: BTreeMap<(Entity, ShardId), TableIdentity<'static>>,
    /// The group has written into the marker table: its later deletions are those of a retention rule.
    is_retention: bool,
}

impl Withheld {
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.queue.is_empty()
    }

    /// Bytes of encoded rows in memory.
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// Notes that the table is read again at the end of the group, also if the group or a part of it is rolled back: a
    /// table without transactions keeps its changes.
    pub fn reread(&mut self, table: TableIdentity<'static>) {
        self.rereads.entry((table.entity, table.shard)).or_insert(table);
    }

    /// Drops the rows of a group that was rolled back; keeps the tables to read again.
    #[must_use]
    pub fn rolled_back(self) -> Self {
        Self { rereads: self.rereads, ..Self::default() }
    }

    /// Notes that the group has written into the marker table.
    pub fn note_retention(&mut self) {
        self.is_retention = true;
    }

    /// Whether deletions that come now are those of a retention rule.
    pub fn is_retention(&self) -> bool {
        self.is_retention
    }

    /// Whether the rows of a captured table are left out. Those of its heirs are among them.
    fn leaves_out(&self, entity: Entity, shard: ShardId) -> bool {
        if self.rereads.is_empty() {
            return false;
        }
        let every = TableIdentity::every(entity).shard;
        [shard, every].iter().any(|shard| self.rereads.contains_key(&(entity, *shard)))
    }

    /// Returns the shards of its rows.
    pub fn shards(&self) -> Result<BTreeSet<ShardId>, WithholdError> {
        let mut shards: BTreeSet<ShardId> = self.queue.iter().map(|rows| rows.table().shard).collect();
        for chunk in &self.chunks {
            let bytes = self.bytes(chunk)?;
            let mut decoder = codec::decode(&bytes)?;
            while let Some(change) = decoder.next()? {
                shards.insert(change.table.shard);
            }
        }
        Ok(shards)
    }

    fn bytes<'c>(&self, chunk: &'c Chunk) -> Result<Cow<'c, [u8]>, WithholdError> {
        match chunk {
            Chunk::Memory(bytes) => Ok(Cow::Borrowed(bytes)),
            Chunk::File { offset, length } => {
                let file = self.file.as_ref().expect("a chunk in the file was written to it");
                let bytes = file.read_at(*length, *offset);
                bytes.map(Cow::Owned).map_err(|error| WithholdError::File(file.location(), error))
            }
        }
    }

    /// Adds rows to the queue; returns whether [`Self::encode`] is due because the queue is too long.
    pub fn push(&mut self, rows: PendingRows) -> bool {
        self.queue_bytes += rows.bytes();
        self.queue.push_back(rows);
        self.queue_bytes > QUEUE_BYTES_MAX
    }

    pub fn withdraw(
        &mut self,
        lsn: Lsn,
        table: &TableIdentity<'static>,
        room: &RowStorage,
    ) -> Result<(), WithholdError> {
        self.end_table(room, |builder| builder.withdraw(lsn, table))
    }

    pub fn retire(
        &mut self,
        lsn: Lsn,
        table: &TableIdentity<'static>,
        room: &RowStorage,
    ) -> Result<(), WithholdError> {
        self.end_table(room, |builder| builder.retire(lsn, table))
    }

    /// Withholds the record of a table's end behind the rows before it.
    fn end_table(
        &mut self,
        room: &RowStorage,
        record: impl FnOnce(&mut BatchBuilder),
    ) -> Result<(), WithholdError> {
        self.encode(room)?;
        let mut builder = new_chunk();
        record(&mut builder);
        self.store(&mut builder, room)
    }

    /// Sets a savepoint, which replaces an older one of the same name.
    pub fn set_savepoint(&mut self, name: &str) {
        let name = name.to_lowercase();
        self.savepoints.retain(|savepoint| savepoint.name != name);
        let (chunks, queued) = (self.chunks.len(), self.queue.len());
        let (unchanged, is_retention) = (self.unchanged, self.is_retention);
        self.savepoints.push(Savepoint { name, chunks, queued, unchanged, is_retention });
    }

    /// Drops the rows after the savepoint; returns `false` if no savepoint has this name.
    pub fn rollback_to(&mut self, name: &str) -> bool {
        let name = name.to_lowercase();
        let Some(index) = self.savepoints.iter().position(|savepoint| savepoint.name == name) else {
            return false;
        };
        let (chunks, queued) = (self.savepoints[index].chunks, self.savepoints[index].queued);
        self.unchanged = self.savepoints[index].unchanged;
        self.is_retention = self.savepoints[index].is_retention;
        self.savepoints.truncate(index + 1);
        for chunk in self.chunks.drain(chunks..) {
            match chunk {
                Chunk::Memory(bytes) => self.memory_bytes -= bytes.len(),
                // The file stores chunks in their order.
                Chunk::File { offset, .. } => self.file_bytes = self.file_bytes.min(offset),
            }
        }
        self.queue.truncate(queued);
        self.queue_bytes = self.queue.iter().map(PendingRows::bytes).sum();
        true
    }

    /// Encodes the queued events; a savepoint is always between two chunks.
    pub fn encode(&mut self, room: &RowStorage) -> Result<(), WithholdError> {
        let mut builder = new_chunk();
        let mut savepoint = 0;
        self.queue_bytes = 0;
        for (index, mut rows) in std::mem::take(&mut self.queue).into_iter().enumerate() {
            while self.savepoints.get(savepoint).is_some_and(|savepoint| savepoint.queued <= index) {
                self.place_savepoint(savepoint, &mut builder, room)?;
                savepoint += 1;
            }
            while !rows.drain(&mut builder)? {
                self.store(&mut builder, room)?;
            }
        }
        for savepoint in savepoint..self.savepoints.len() {
            self.place_savepoint(savepoint, &mut builder, room)?;
        }
        self.store(&mut builder, room)
    }

    /// Moves a savepoint from between queued events to between chunks, if it is not there already.
    fn place_savepoint(
        &mut self,
        index: usize,
        builder: &mut BatchBuilder,
        room: &RowStorage,
    ) -> Result<(), WithholdError> {
        if self.savepoints[index].queued > 0 {
            self.store(builder, room)?;
            self.savepoints[index].chunks = self.chunks.len();
            self.savepoints[index].unchanged = self.unchanged;
            self.savepoints[index].queued = 0;
        }
        Ok(())
    }

    fn store(&mut self, builder: &mut BatchBuilder, room: &RowStorage) -> Result<(), WithholdError> {
        self.unchanged += builder.take_unchanged();
        if builder.is_empty() {
            return Ok(());
        }
        let bytes = builder.take().payload;
        if self.file.is_none() && self.memory_bytes + bytes.len() <= room.memory_bytes {
            self.memory_bytes += bytes.len();
            // The bytes are copied, because a buffer that grew may be twice as large as its content.
            self.chunks.push_back(Chunk::Memory(bytes.as_ref().into()));
            return Ok(());
        }
        let failed = |error| WithholdError::File(room.spill.location(), error);
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(room.spill.make_file().map_err(failed)?),
        };
        file.write_at(&bytes, self.file_bytes).map_err(failed)?;
        self.chunks.push_back(Chunk::File { offset: self.file_bytes, length: bytes.len() });
        self.file_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Adds rows to the batch until it is full; returns whether no row is left.
    ///
    /// A position is complete when the rows of another one begin, or the group has ended. All events of a compressed
    /// transaction of MySQL have one position. Those of a transaction of MariaDB 11.4 or later have none, so they get
    /// the position of the event before them.
    ///
    /// With `at` every row gets that position (an XA branch, all of it encoded). Without it each row keeps its own
    /// position, and rows not above `sent` are dropped. Tables to read again come last, at the group's end.
    pub fn release(
        &mut self,
        at: Option<Lsn>,
        end: Lsn,
        sent: Lsn,
        tables: &CapturedTables,
        batch: &mut BatchBuilder,
    ) -> Result<bool, WithholdError> {
        batch.pass_unchanged(std::mem::take(&mut self.unchanged));
        loop {
            if batch.is_full() {
                return Ok(self.is_empty() && self.rereads.is_empty());
            }
            let Some(chunk) = self.chunks.pop_front() else { break };
            let bytes = self.bytes(&chunk)?;
            if let Chunk::Memory(bytes) = &chunk {
                self.memory_bytes -= bytes.len();
            }
            self.release_chunk(&bytes, at, sent, tables, batch)?;
        }
        if !self.release_queue(sent, batch)? {
            return Ok(false);
        }
        for table in std::mem::take(&mut self.rereads).into_values().filter(|_| end > sent) {
            batch.reread(end, &table);
        }
        Ok(true)
    }

    fn release_chunk(
        &mut self,
        bytes: &[u8],
        at: Option<Lsn>,
        sent: Lsn,
        tables: &CapturedTables,
        batch: &mut BatchBuilder,
    ) -> Result<(), WithholdError> {
        let mut decoder = codec::decode(bytes)?;
        while let Some(change) = decoder.next()? {
            let (table, owner) =
                tables.recorded(change.table.shard).ok_or(Malformed("rows of an unknown table"))?;
            let is_of_rows = change.action.images().is_some() || owner != table.shard;
            if at.is_none() && change.lsn <= sent || is_of_rows && self.leaves_out(table.entity, owner) {
                continue;
            }
            if at.is_none()
                && let Some(released) = self.released.replace(change.lsn)
                && released != change.lsn
            {
                batch.event_complete(released);
            }
            let lsn = at.unwrap_or(change.lsn);
            match &change.action {
                Action::Insert { after } => batch.insert(lsn, table, after),
                Action::Update { before, after } => batch.update(lsn, table, before, after),
                Action::Delete { before } => batch.delete(lsn, table, before),
                Action::Withdraw => batch.withdraw(lsn, table),
                Action::Reread => batch.reread(lsn, table),
                Action::Retire => batch.retire(lsn, table),
            }
        }
        Ok(())
    }

    fn release_queue(&mut self, sent: Lsn, batch: &mut BatchBuilder) -> Result<bool, Problem> {
        while let Some(mut rows) = self.queue.pop_front() {
            let lsn = rows.lsn();
            let table = rows.table();
            if lsn > sent && !self.leaves_out(table.entity, table.shard) && !rows.drain(batch)? {
                self.queue.push_front(rows);
                return Ok(false);
            }
            // The end of the group completes the last position.
            if self.queue.front().is_some_and(|next| next.lsn() != lsn) {
                batch.event_complete(lsn);
            }
        }
        Ok(true)
    }
}

fn new_chunk() -> BatchBuilder {
    BatchBuilder::new(CHUNK_BYTES, Lsn::ZERO, ResumePoint::default())
}

#[cfg(test)]
pub(super) mod tests;
