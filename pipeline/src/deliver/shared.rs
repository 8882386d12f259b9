//! What the lanes of one source share in one process: the room for direct feeds, and chunks of its tables.
//!
//! Each lane reads every row of the source and takes what its own tables need. Lanes that load at the same time ask
//! for the same chunks one after the other, so what one has read is kept for a moment for the others: the source is read
//! once and not once a lane. A chunk is as good for another lane as long as it knows what changed behind its mark.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;

use anabranch_schemas::change::TableIdentity;
use anabranch_schemas::envelope::ServerIdentity;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use tokio::sync::{Mutex, Semaphore};

use crate::error::Fault;
use crate::ports::{Chunk, ChunkKey, RowSource};

/// Of all chunks that are kept for others.
const KEPT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// See the module's text.
#[derive(Debug)]
pub struct Shared {
    /// Bounds the direct feeds.
    pub(super) feeds: Arc<Semaphore>,
    /// Locked while one is read: who wants the same waits for it.
    chunks: Mutex<VecDeque<Kept>>,
}

/// What a lane asks for.
#[derive(Debug)]
pub(super) struct Wanted<'w> {
    pub(super) table: &'w TableIdentity<'static>,
    pub(super) after: Option<&'w ChunkKey>,
    pub(super) rows: NonZeroUsize,
    pub(super) epoch: u16,
    /// The lane knows what changed above.
    pub(super) floor: Lsn,
    /// The one that the lane reads.
    pub(super) server: &'w ServerIdentity,
}

#[derive(Debug)]
struct Kept {
    shard: ShardId,
    after: Option<ChunkKey>,
    /// That were asked for.
    rows: NonZeroUsize,
    chunk: Chunk,
}

impl Kept {
    fn serves(&self, wanted: &Wanted<'_>) -> bool {
        let Chunk { mark, server, .. } = &self.chunk;
        (self.shard, self.after.as_ref()) == (wanted.table.shard, wanted.after)
            && self.rows <= wanted.rows
            && mark.epoch() == wanted.epoch
            && *mark >= wanted.floor
            && server == wanted.server
    }
}

impl Shared {
    pub fn new(direct_feeds: usize) -> Self {
        Self { feeds: Arc::new(Semaphore::new(direct_feeds)), chunks: Mutex::default() }
    }

    /// A chunk that another lane has read, or one of now.
    pub(super) async fn chunk<S: RowSource>(&self, source: &S, wanted: Wanted<'_>) -> Result<Chunk, Fault> {
        let mut kept = self.chunks.lock().await;
        if let Some(kept) = kept.iter().find(|kept| kept.serves(&wanted)) {
            return Ok(kept.chunk.clone());
        }
        let Wanted { table, after, rows, epoch, .. } = wanted;
        let chunk = source.chunk(table, after, rows, epoch).await?;
        kept.retain(|kept| (kept.shard, kept.after.as_ref()) != (table.shard, after));
        kept.push_back(Kept { shard: table.shard, after: after.cloned(), rows, chunk: chunk.clone() });
        while kept.iter().map(|kept| kept.chunk.payload.len()).sum::<usize>() > KEPT_BYTES_MAX {
            kept.pop_front();
        }
        Ok(chunk)
    }
}
