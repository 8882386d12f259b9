//! A source in memory: a script of transactions that grows while it is read.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use anabranch_pipeline::capture::BatchBuilder;
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::{ChangeSource, Entry, Filled, Located, Place, SourceConnector};
use anabranch_schemas::change::{Row, TableIdentity};
use anabranch_schemas::envelope::ServerIdentity;
use anabranch_schemas::lsn::{Lsn, ResumePoint};
use anabranch_schemas::shard::ShardId;
use tokio::sync::Notify;

use super::{Delays, lock};

const FILE: &str = "memory.000001";
/// Bytes between two events of the script.
const EVENT_BYTES: u64 = 160;

/// One row change: `None` before is an insert, `None` after a delete.
#[derive(Debug, Clone)]
pub struct ScriptedRow {
    pub table: TableIdentity<'static>,
    pub before: Option<Row<'static>>,
    pub after: Option<Row<'static>>,
}

/// One group: events, each with the rows that share its position.
pub type Transaction = Vec<Vec<ScriptedRow>>;

#[derive(Debug, Default)]
struct Script {
    /// Each event with its end position and whether it ends its group.
    events: Vec<(Lsn, Vec<ScriptedRow>, bool)>,
    end: u64,
}

/// A server with one binlog file that is never purged.
#[derive(Debug, Clone)]
pub struct MemorySource {
    script: Arc<Mutex<Script>>,
    changed: Arc<Notify>,
    delays: Delays,
    server: ServerIdentity,
}

impl MemorySource {
    pub fn new(delays: Delays) -> Self {
        let server = ServerIdentity { flavor: "memory".to_owned(), id: "1".to_owned() };
        Self { script: Arc::default(), changed: Arc::default(), delays, server }
    }

    /// Commits a transaction; an empty one moves the position only.
    pub fn commit(&self, transaction: Transaction) {
        let mut script = lock(&self.script);
        let events = if transaction.is_empty() { vec![Vec::new()] } else { transaction };
        let number = events.len();
        for (index, rows) in events.into_iter().enumerate() {
            script.end += EVENT_BYTES;
            let lsn = Lsn::new(1, 1, script.end).expect("a script is short");
            script.events.push((lsn, rows, index + 1 == number));
        }
        drop(script);
        self.changed.notify_waiters();
    }

    pub fn end(&self) -> Lsn {
        lock(&self.script).events.last().map_or(Lsn::ZERO, |(lsn, _, _)| *lsn)
    }
}

impl SourceConnector for MemorySource {
    type Source = MemoryReading;

    async fn check(&self) -> Vec<Fault> {
        Vec::new()
    }

    async fn open(&self, entry: Entry, _seat: u32) -> Result<MemoryReading, Fault> {
        self.delays.pause().await;
        let (next, above) = match entry {
            Entry::Resume { resume, position, .. } => (resume.position as usize, position),
            Entry::Earliest => (0, Lsn::ZERO),
            Entry::Latest | Entry::Gtid(_) => (lock(&self.script).events.len(), self.end()),
        };
        Ok(MemoryReading { source: self.clone(), next, row: 0, above })
    }

    async fn locate(&self, place: Place, _epoch: u16) -> Result<Located, Fault> {
        // One file, read from its start: whatever lies not above the position is dropped.
        let position = match place {
            Place::Lsn(lsn) => Lsn::from_u64(lsn.as_u64().saturating_sub(1)).unwrap_or(Lsn::ZERO),
            Place::Earliest | Place::Gtid(_) | Place::Time { .. } => Lsn::new(1, 1, 0).unwrap_or(Lsn::ZERO),
        };
        let resume = ResumePoint { file: FILE.to_owned(), ..ResumePoint::default() };
        Ok(Located { position, resume, server: self.server.clone() })
    }

    async fn shards(&self) -> Result<Vec<ShardId>, Fault> {
        let script = lock(&self.script);
        let shards: BTreeSet<ShardId> =
            script.events.iter().flat_map(|(_, rows, _)| rows).map(|row| row.table.shard).collect();
        Ok(shards.into_iter().collect())
    }

    async fn head(&self) -> Result<Lsn, Fault> {
        Ok(self.end())
    }
}

/// An open reading. A resume point is the index of the first event of a group.
#[derive(Debug)]
pub struct MemoryReading {
    source: MemorySource,
    next: usize,
    /// Rows of the next event that are in a batch already.
    row: usize,
    above: Lsn,
}

impl MemoryReading {
    /// Adds events until the batch is full; `None` when there was none to add.
    fn advance(&mut self, batch: &mut BatchBuilder) -> Option<Filled> {
        let script = lock(&self.source.script);
        let mut read = None;
        while let Some((lsn, rows, last)) = script.events.get(self.next) {
            read = Some(Filled::Drained);
            if *lsn > self.above {
                while let Some(row) = rows.get(self.row) {
                    if batch.is_full() {
                        return Some(Filled::Full);
                    }
                    match (&row.before, &row.after) {
                        (None, Some(after)) => batch.insert(*lsn, &row.table, after),
                        (Some(before), Some(after)) => batch.update(*lsn, &row.table, before, after),
                        (Some(before), None) => batch.delete(*lsn, &row.table, before),
                        (None, None) => batch.withdraw(*lsn, &row.table),
                    }
                    self.row += 1;
                }
                batch.event_complete(*lsn);
            }
            self.next += 1;
            self.row = 0;
            if *last {
                let resume = ResumePoint {
                    file: FILE.to_owned(),
                    position: self.next as u64,
                    gtid_set: String::new(),
                };
                batch.group_complete(resume, 0);
            }
        }
        read
    }
}

impl ChangeSource for MemoryReading {
    async fn fill(&mut self, batch: &mut BatchBuilder) -> Result<Filled, Fault> {
        loop {
            let changed = self.source.changed.clone();
            let mut notified = std::pin::pin!(changed.notified());
            notified.as_mut().enable();
            if let Some(filled) = self.advance(batch) {
                return Ok(filled);
            }
            notified.await;
        }
    }

    fn entered_at(&self) -> Lsn {
        self.above
    }

    fn server(&self) -> &ServerIdentity {
        &self.source.server
    }
}
