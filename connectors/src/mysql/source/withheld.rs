//! Captured rows of a group whose outcome is not known yet, in order.
//!
//! A server logs a group with its rows although it was rolled back when the session also made a temporary table, rolls
//! back to savepoints by statement, and decides an XA branch in another group; nothing before the end tells (measured,
//! MariaDB 10.11). So rows are kept until then: as the events themselves while they are few, then encoded, in memory
//! and beyond a bound in an unnamed temporary file (`spill.rs`). Only captured columns are encoded, so nothing else
//! reaches the disk.

use std::collections::VecDeque;
use std::io;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::records::BatchBuilder;
use anabranch_schemas::change::{Action, TableIdentity};
use anabranch_schemas::codec::{CodecError, v1};
use anabranch_schemas::lsn::{Lsn, ResumePoint};
use thiserror::Error;

use super::maps::Problem;
use super::pending::PendingRows;
use super::tables::CapturedTables;
use super::wire::Malformed;
use crate::spill::{Spill, SpillFile};

/// Events kept as they are: a usual transaction is never encoded twice.
const QUEUE_BYTES_MAX: usize = 1 << 20;
/// A batch grows beyond its limit by at most one chunk.
const CHUNK_BYTES: usize = 8 * 1024;
/// Encoded rows of all undecided groups of one reading that stay in memory; about a million small rows.
pub const MEMORY_BYTES_MAX: usize = 24 << 20;

/// Why rows could not be kept or brought back.
#[derive(Debug, Error)]
pub enum WithholdError {
    #[error("{}", .0.0)]
    Malformed(Malformed),
    #[error("{0}")]
    Stop(Fault),
    /// Where, and what is free there.
    #[error("the temporary file of withheld rows failed in {0}")]
    File(String, #[source] io::Error),
    #[error("withheld rows came back changed")]
    Chunk(#[from] CodecError),
}

impl WithholdError {
    /// `at` makes a fault at the present position.
    pub fn into_fault(self, at: impl FnOnce(Code, String) -> Fault) -> Fault {
        let text = self.to_string();
        match self {
            Self::Malformed(_) => at(Code::BinlogEventCorrupt, text),
            Self::Stop(fault) => fault,
            Self::File(_, error) => at(Code::SourceSpillFailed, text)
                .needs("space and permission there, or another folder in limits.spill_dir")
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

/// Where the encoded rows of a group may be.
#[derive(Debug)]
pub struct Room {
    /// What they may take in memory.
    pub memory_bytes: usize,
    /// Where the others go.
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
}

/// Rows in their order: first the encoded ones, then the queue.
#[derive(Debug, Default)]
pub struct Withheld {
    chunks: VecDeque<Chunk>,
    queue: VecDeque<PendingRows>,
    queue_bytes: usize,
    /// Updates without effect among what was encoded.
    unchanged: u64,
    savepoints: Vec<Savepoint>,
    memory_bytes: usize,
    file: Option<SpillFile>,
    file_bytes: u64,
    /// Position of the change released last.
    released: Option<Lsn>,
}

impl Withheld {
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.queue.is_empty()
    }

    /// Encoded rows that are in memory.
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// Whether the queue is now so long that [`Self::encode`] is due.
    pub fn push(&mut self, rows: PendingRows) -> bool {
        self.queue_bytes += rows.bytes();
        self.queue.push_back(rows);
        self.queue_bytes > QUEUE_BYTES_MAX
    }

    pub fn withdraw(
        &mut self,
        lsn: Lsn,
        table: &TableIdentity<'static>,
        room: &Room,
    ) -> Result<(), WithholdError> {
        self.encode(room)?;
        let mut builder = new_chunk();
        builder.withdraw(lsn, table);
        self.store(&mut builder, room)
    }

    /// A savepoint of the same name replaces the older one.
    pub fn set_savepoint(&mut self, name: &str) {
        let name = name.to_lowercase();
        self.savepoints.retain(|savepoint| savepoint.name != name);
        let (chunks, queued) = (self.chunks.len(), self.queue.len());
        self.savepoints.push(Savepoint { name, chunks, queued, unchanged: self.unchanged });
    }

    /// Drops what came after the savepoint; `false` when there is none of this name.
    pub fn rollback_to(&mut self, name: &str) -> bool {
        let name = name.to_lowercase();
        let Some(index) = self.savepoints.iter().position(|savepoint| savepoint.name == name) else {
            return false;
        };
        let (chunks, queued) = (self.savepoints[index].chunks, self.savepoints[index].queued);
        self.unchanged = self.savepoints[index].unchanged;
        self.savepoints.truncate(index + 1);
        for chunk in self.chunks.drain(chunks..) {
            match chunk {
                Chunk::Memory(bytes) => self.memory_bytes -= bytes.len(),
                // In the file chunks stand in their order.
                Chunk::File { offset, .. } => self.file_bytes = self.file_bytes.min(offset),
            }
        }
        self.queue.truncate(queued);
        self.queue_bytes = self.queue.iter().map(PendingRows::bytes).sum();
        true
    }

    /// Encodes what is queued; a savepoint always stands between two chunks.
    pub fn encode(&mut self, room: &Room) -> Result<(), WithholdError> {
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

    /// Moves a savepoint from between queued events to between chunks; one that is there already stays.
    fn place_savepoint(
        &mut self,
        index: usize,
        builder: &mut BatchBuilder,
        room: &Room,
    ) -> Result<(), WithholdError> {
        if self.savepoints[index].queued > 0 {
            self.store(builder, room)?;
            self.savepoints[index].chunks = self.chunks.len();
            self.savepoints[index].unchanged = self.unchanged;
            self.savepoints[index].queued = 0;
        }
        Ok(())
    }

    fn store(&mut self, builder: &mut BatchBuilder, room: &Room) -> Result<(), WithholdError> {
        self.unchanged += builder.take_unchanged();
        if builder.is_empty() {
            return Ok(());
        }
        let bytes = builder.take().payload;
        if self.file.is_none() && self.memory_bytes + bytes.len() <= room.memory_bytes {
            self.memory_bytes += bytes.len();
            // Copied, because a buffer that grew may be twice as large as its content.
            self.chunks.push_back(Chunk::Memory(bytes.as_ref().into()));
            return Ok(());
        }
        let failed = |error| WithholdError::File(room.spill.place(), error);
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(room.spill.make_file().map_err(failed)?),
        };
        file.write_at(&bytes, self.file_bytes).map_err(failed)?;
        self.chunks.push_back(Chunk::File { offset: self.file_bytes, length: bytes.len() });
        self.file_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Adds rows to the batch until it is full; whether none is left.
    ///
    /// A position is complete when the rows of another one begin, or the group has ended: the events of a compressed
    /// transaction of MySQL have one position, and those of a transaction of MariaDB 11.4 or later have none, so all
    /// of them get that of the event before them.
    ///
    /// With `at` every row gets that position (an XA branch, all of it encoded); without it each keeps its own, and
    /// those not above `sent` are dropped.
    pub fn release(
        &mut self,
        at: Option<Lsn>,
        sent: Lsn,
        tables: &CapturedTables,
        batch: &mut BatchBuilder,
    ) -> Result<bool, WithholdError> {
        batch.pass_unchanged(std::mem::take(&mut self.unchanged));
        while !batch.is_full() {
            let Some(chunk) = self.chunks.pop_front() else { return Ok(self.release_queue(sent, batch)?) };
            let bytes = match chunk {
                Chunk::Memory(bytes) => {
                    self.memory_bytes -= bytes.len();
                    bytes
                }
                Chunk::File { offset, length } => {
                    let file = self.file.as_ref().expect("a chunk in the file was written to it");
                    let bytes = file.read_at(length, offset);
                    bytes.map_err(|error| WithholdError::File(file.place(), error))?.into_boxed_slice()
                }
            };
            self.release_chunk(&bytes, at, sent, tables, batch)?;
        }
        Ok(self.is_empty())
    }

    fn release_chunk(
        &mut self,
        bytes: &[u8],
        at: Option<Lsn>,
        sent: Lsn,
        tables: &CapturedTables,
        batch: &mut BatchBuilder,
    ) -> Result<(), WithholdError> {
        let mut decoder = v1::decode(bytes)?;
        while let Some(change) = decoder.next()? {
            if at.is_none() && change.lsn <= sent {
                continue;
            }
            if at.is_none()
                && let Some(released) = self.released.replace(change.lsn)
                && released != change.lsn
            {
                batch.event_complete(released);
            }
            let lsn = at.unwrap_or(change.lsn);
            let table = tables.by_shard(change.table.shard).ok_or(Malformed("rows of an unknown table"))?;
            let table = &table.identity;
            match &change.action {
                Action::Insert { after } => batch.insert(lsn, table, after),
                Action::Update { before, after } => batch.update(lsn, table, before, after),
                Action::Delete { before } => batch.delete(lsn, table, before),
                Action::Withdraw => batch.withdraw(lsn, table),
            }
        }
        Ok(())
    }

    fn release_queue(&mut self, sent: Lsn, batch: &mut BatchBuilder) -> Result<bool, Problem> {
        while let Some(rows) = self.queue.front_mut() {
            let lsn = rows.lsn();
            if lsn > sent && !rows.drain(batch)? {
                return Ok(false);
            }
            self.queue.pop_front();
            // The end of the group completes what comes last.
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
mod tests {
    use std::num::NonZeroU32;
    use std::path::PathBuf;
    use std::time::Duration;

    use anabranch_pipeline::config::{EntityConfig, ServerUrl, SourceConfig};
    use anabranch_pipeline::ports::Entry;
    use anabranch_schemas::change::{Entity, Value};
    use anabranch_schemas::shard::TablePattern;
    use proptest::prelude::*;

    use super::*;
    use crate::mysql::source::character_sets::Collations;
    use crate::mysql::source::gtid::Flavor;
    use crate::mysql::source::maps::TableMaps;
    use crate::mysql::source::pending::RowsBody;
    use crate::mysql::source::rows::Kind;
    use crate::mysql::source::table_map::{TableMap, tests::sample};

    struct Ground {
        tables: CapturedTables,
        maps: TableMaps,
        table_id: u64,
    }

    impl Ground {
        fn new() -> Self {
            let body = sample();
            let map = TableMap::read(&body).unwrap();
            let name = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let pattern = format!("{}.{}", name(map.database), name(map.table));
            let entity = EntityConfig {
                entity: Entity::User,
                tables: TablePattern::parse(&pattern).unwrap(),
                columns: vec!["id".to_owned(), "birthday".to_owned()],
                rule: None,
                sharding_column: None,
            };
            let config = SourceConfig {
                name: "source-a".to_owned(),
                url: ServerUrl::try_from("mysql://u:p@127.0.0.1:3306".to_owned()).unwrap(),
                ca_file: None::<PathBuf>,
                replica_server_id: NonZeroU32::MIN,
                start: Entry::Earliest,
                generation: 0,
                entities: vec![Entity::User],
                replica: None,
                retention_min: Duration::ZERO,
                spill_dir: std::env::temp_dir(),
            };
            let mut tables = CapturedTables::new(&config, &[entity]);
            let mut maps = TableMaps::new(Flavor::MariaDb, Collations::default());
            maps.read(&body, &mut tables).unwrap();
            Self { tables, maps, table_id: map.table_id }
        }

        /// An event of this many rows at this position.
        fn event(&self, lsn: Lsn, first: u32, rows: u32) -> PendingRows {
            let mut body = self.table_id.to_le_bytes()[..6].to_vec();
            body.extend([1, 0, 2, 0b11]);
            for id in first..first + rows {
                body.push(0b10);
                body.extend(id.to_le_bytes());
            }
            let table = self.maps.get(self.table_id).unwrap().clone().expect("captured");
            PendingRows::new(table, Kind::Insert, false, RowsBody::Inflated(body), lsn).unwrap()
        }
    }

    fn lsn(number: u64) -> Lsn {
        Lsn::new(1, 1, number * 16).unwrap()
    }

    /// Everything that a release yields, with the position of each batch.
    fn released(mut rows: Withheld, at: Option<Lsn>, sent: Lsn, ground: &Ground) -> Vec<(Lsn, u64)> {
        let mut batch = BatchBuilder::new(512, sent, ResumePoint::default());
        let mut all: Vec<(Lsn, u64)> = Vec::new();
        loop {
            let is_done = rows.release(at, sent, &ground.tables, &mut batch).unwrap();
            let taken = batch.take();
            let mut decoder = v1::decode(&taken.payload).unwrap();
            while let Some(change) = decoder.next().unwrap() {
                let Action::Insert { after } = change.action else { panic!("only inserts") };
                let Value::UInt(id) = after[0] else { panic!("a number") };
                all.push((change.lsn, id));
            }
            // What is not above the batch's position must be in it or in one before.
            if at.is_none() {
                assert!(all.last().is_none_or(|(lsn, _)| taken.position <= *lsn), "{}", taken.position);
            }
            if is_done {
                return all;
            }
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Event(u32),
        Savepoint(u8),
        RollbackTo(u8),
        Encode,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (1..400u32).prop_map(Step::Event),
            1 => (0..3u8).prop_map(Step::Savepoint),
            1 => (0..3u8).prop_map(Step::RollbackTo),
            1 => Just(Step::Encode),
        ]
    }

    proptest! {
        #[test]
        fn what_is_released_is_what_was_not_rolled_back(
            steps in proptest::collection::vec(step(), 0..30),
            memory_left in prop_oneof![Just(0), 0..40_000usize, Just(usize::MAX)],
            sent in 0..12u64,
            decided: bool,
        ) {
            let ground = Ground::new();
            let folder = tempfile::tempdir().unwrap();
            let spill = Spill::new(folder.path(), "source-a");
            let room = Room { memory_bytes: memory_left, spill };
            let mut rows = Withheld::default();
            let mut expected: Vec<(Lsn, u64)> = Vec::new();
            let mut savepoints: Vec<(String, usize)> = Vec::new();
            let mut next = 0;
            for (number, step) in steps.iter().enumerate() {
                let at = lsn(number as u64 + 1);
                match step {
                    Step::Event(count) => {
                        rows.push(ground.event(at, next, *count));
                        expected.extend((next..next + count).map(|id| (at, u64::from(id))));
                        next += count;
                    }
                    Step::Savepoint(name) => {
                        let name = format!("s{name}");
                        rows.set_savepoint(&name.to_uppercase());
                        savepoints.retain(|(known, _)| *known != name);
                        savepoints.push((name, expected.len()));
                    }
                    Step::RollbackTo(name) => {
                        let name = format!("s{name}");
                        let known = savepoints.iter().position(|(known, _)| *known == name);
                        prop_assert_eq!(rows.rollback_to(&name), known.is_some());
                        if let Some(known) = known {
                            expected.truncate(savepoints[known].1);
                            savepoints.truncate(known + 1);
                        }
                    }
                    Step::Encode => rows.encode(&room).unwrap(),
                }
            }
            prop_assert!(rows.memory_bytes() <= memory_left);
            let at = decided.then(|| lsn(1000));
            let sent = lsn(sent);
            match at {
                // The rows of a branch are encoded, and all count, wherever they stand.
                Some(at) => {
                    rows.encode(&room).unwrap();
                    expected.iter_mut().for_each(|(lsn, _)| *lsn = at);
                }
                None => expected.retain(|(lsn, _)| *lsn > sent),
            }
            prop_assert_eq!(released(rows, at, sent, &ground), expected);
        }
    }

    #[test]
    fn a_savepoint_that_was_never_set_is_told() {
        let ground = Ground::new();
        let mut rows = Withheld::default();
        rows.push(ground.event(lsn(1), 0, 1));
        assert!(!rows.rollback_to("s"));
        assert!(!rows.is_empty());
    }
}
