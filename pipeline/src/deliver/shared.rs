//! State that the lanes of one source share in one process: permits for direct feeds, chunks of its tables, and counts
//! of comparisons that outlive an attempt of a lane.
//!
//! Each lane reads every row of the source and takes the rows that its own tables need. Lanes that load at the same
//! time ask for the same chunks one after the other, so each chunk is kept for a moment for the other lanes: the source
//! is read once and not once a lane. A chunk serves another lane that knows the changes after its watermark. That lane
//! must not have been asked for a refresh since the chunk was read: a change that no row event shows may be the reason.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::{Arc, MutexGuard, PoisonError};

use anabranch_schemas::change::TableIdentity;
use anabranch_schemas::envelope::ServerIdentity;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;

use super::owed::{UnreadTable, UnreadTables};
use crate::error::Fault;
use crate::ports::RowSource;
use crate::records::{Chunk, LaneId, ScanCursor};

/// Size of all chunks that are kept for other lanes, at most.
const KEPT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// State that the lanes of one source share in one process, see the module.
#[derive(Debug)]
pub struct Shared {
    /// Permits for direct feeds.
    pub(super) feeds: Arc<Semaphore>,
    /// Chunks for other lanes. The lock is held during a read: a lane that wants the same chunk waits for it.
    chunks: Mutex<VecDeque<SharedChunk>>,
    /// Comparisons that each lane has begun in a row without a result, by table.
    comparisons: std::sync::Mutex<BegunComparisons>,
    /// Tables that lanes could not read when they had to read them again.
    pub(super) unread: UnreadTables,
}

type BegunComparisons = BTreeMap<(LaneId, ShardId), u32>;

/// A lane's request for a chunk.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChunkRequest<'w> {
    pub(super) table: &'w TableIdentity<'static>,
    pub(super) after: Option<&'w ScanCursor>,
    pub(super) rows: NonZeroUsize,
    pub(super) epoch: u16,
    /// Position above which the lane knows every change.
    pub(super) floor: Lsn,
    /// Earliest time of the read: an older chunk may lack rows that the lane was asked to read.
    pub(super) since: Instant,
    /// The server that the lane reads.
    pub(super) server: &'w ServerIdentity,
}

#[derive(Debug)]
struct SharedChunk {
    shard: ShardId,
    after: Option<ScanCursor>,
    /// Number of rows that were asked for.
    rows: NonZeroUsize,
    /// Time at which the read of the chunk began.
    read_at: Instant,
    chunk: Chunk,
}

impl SharedChunk {
    fn serves(&self, wanted: &ChunkRequest<'_>) -> bool {
        let Chunk { low, server, .. } = &self.chunk;
        (self.shard, self.after.as_ref()) == (wanted.table.shard, wanted.after)
            && self.rows <= wanted.rows
            && low.epoch() == wanted.epoch
            && *low >= wanted.floor
            && self.read_at >= wanted.since
            && server == wanted.server
    }
}

impl Shared {
    pub fn new(direct_feeds: usize) -> Self {
        Self {
            feeds: Arc::new(Semaphore::new(direct_feeds)),
            chunks: Mutex::default(),
            comparisons: std::sync::Mutex::default(),
            unread: UnreadTables::default(),
        }
    }

    /// Returns the tables that lanes of this process are to read again and could not read.
    pub fn unread(&self) -> Vec<(LaneId, Vec<UnreadTable>)> {
        self.unread.of_lanes()
    }

    /// Counts a comparison that begins; returns how many of the table have begun in a row without a result.
    pub(super) fn comparison_begun(&self, lane: &LaneId, shard: ShardId) -> u32 {
        let mut comparisons = self.comparisons();
        let begun = comparisons.entry((lane.clone(), shard)).or_default();
        *begun += 1;
        *begun
    }

    /// Notes that a comparison of the table had a result, or that the table was read as a whole.
    pub(super) fn comparison_ended(&self, lane: &LaneId, shard: ShardId) {
        self.comparisons().remove(&(lane.clone(), shard));
    }

    fn comparisons(&self) -> MutexGuard<'_, BegunComparisons> {
        self.comparisons.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a chunk that another lane has read, or reads one now.
    pub(super) async fn chunk<S: RowSource>(
        &self,
        source: &S,
        wanted: ChunkRequest<'_>,
    ) -> Result<Chunk, Fault> {
        let mut kept = self.chunks.lock().await;
        if let Some(kept) = kept.iter().find(|kept| kept.serves(&wanted)) {
            return Ok(kept.chunk.clone());
        }
        let ChunkRequest { table, after, rows, epoch, .. } = wanted;
        let read_at = Instant::now();
        let chunk = source.chunk(table, after, rows, epoch).await?;
        kept.retain(|kept| (kept.shard, kept.after.as_ref()) != (table.shard, after));
        kept.push_back(SharedChunk {
            shard: table.shard,
            after: after.cloned(),
            rows,
            read_at,
            chunk: chunk.clone(),
        });
        while kept.iter().map(|kept| kept.chunk.payload.len()).sum::<usize>() > KEPT_BYTES_MAX {
            kept.pop_front();
        }
        Ok(chunk)
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::time::Duration;

    use anabranch_schemas::change::Entity;

    use super::*;

    #[test]
    fn a_chunk_serves_who_asks_for_the_same_and_reads_the_same_server_in_the_same_epoch() {
        let lsn = |epoch, position| Lsn::new(epoch, 1, position).unwrap();
        let table = |number| TableIdentity {
            entity: Entity::User,
            shard: ShardId::of("s", "d", "t", number),
            database: Cow::Borrowed("d"),
            table: Cow::Borrowed("t"),
        };
        let rows = |rows| NonZeroUsize::new(rows).unwrap();
        let server = |id: &str| ServerIdentity { flavor: "mariadb".to_owned(), id: id.to_owned() };
        let key = |byte| ScanCursor(Box::new([byte]));
        let (this, after, here) = (table(0), key(7), server("1"));
        let read_at = Instant::now();
        let chunk = Chunk {
            low: lsn(2, 1600),
            high: lsn(2, 1616),
            server: here.clone(),
            payload: Default::default(),
            rows: 0,
            next: None,
        };
        let kept =
            SharedChunk { shard: this.shard, after: Some(after.clone()), rows: rows(10), read_at, chunk };
        let wanted = ChunkRequest {
            table: &this,
            after: Some(&after),
            rows: rows(10),
            epoch: 2,
            floor: lsn(2, 1600),
            since: read_at,
            server: &here,
        };
        assert!(kept.serves(&wanted));
        assert!(kept.serves(&ChunkRequest { rows: rows(11), floor: lsn(2, 640), ..wanted }));
        for (what, other) in [
            // Its watermarks lie below every change of the lane.
            ("an epoch before", ChunkRequest { epoch: 3, floor: lsn(1, 640), ..wanted }),
            ("an epoch behind", ChunkRequest { epoch: 1, floor: lsn(1, 640), ..wanted }),
            ("what the lane may not know", ChunkRequest { floor: lsn(2, 1616), ..wanted }),
            ("one of before", ChunkRequest { since: read_at + Duration::from_nanos(1), ..wanted }),
            ("another server", ChunkRequest { server: &server("2"), ..wanted }),
            ("another table", ChunkRequest { table: &table(1), ..wanted }),
            ("another place", ChunkRequest { after: Some(&key(8)), ..wanted }),
            ("the first place", ChunkRequest { after: None, ..wanted }),
            ("fewer rows", ChunkRequest { rows: rows(9), ..wanted }),
        ] {
            assert!(!kept.serves(&other), "{what}");
        }
    }
}
