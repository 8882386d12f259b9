//! From the outbox into the cache: what was touched is removed, and filled again.
//!
//! Everything here may be done twice, so it needs no fence: rows stay pending until the cache has answered. After the
//! cache began another life (restart, fail-over) it may hold entries whose removal it has forgotten; then the rows of
//! the last hour are drained again, and until that is done readers go past the cache ([`CacheState`]).

use std::time::Duration;

use anabranch_schemas::serial::StoredCode;
use metrics::counter;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{TimeToLive, fill};
use crate::error::Fault;
use crate::failpoints;
use crate::metrics as names;
use crate::ports::{CacheRecord, CodeCache, MappingStore, Outbox};

/// The outbox is looked at this often while it is empty: a small part of what a lookup may take.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The cache's life is looked at this often.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Rows taken at once: a flush writes few, so this is many flushes.
const ROWS: usize = 64;
/// Codes a step: some hundred kilobytes in each direction.
const CODES: usize = 2000;
/// A cache that is further behind than this is not asked.
const DELAY_MAX: Duration = Duration::from_secs(1);

/// Whether readers may believe the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheState {
    /// The life into which everything has been drained.
    pub incarnation: Option<String>,
    /// For how long the oldest change waits to be drained.
    pub delay: Duration,
}

impl CacheState {
    pub async fn read(outbox: &impl Outbox) -> Result<Self, Fault> {
        let record = outbox.record().await?;
        Ok(Self { incarnation: record.map(|record| record.incarnation), delay: outbox.delay().await? })
    }

    /// Whether answers of the cache in this life are at most [`DELAY_MAX`] old.
    pub fn is_believed(&self, incarnation: &str) -> bool {
        self.incarnation.as_deref() == Some(incarnation) && self.delay <= DELAY_MAX
    }
}

/// What is drained into what.
#[derive(Debug)]
pub struct Drain<'a, C, O, M> {
    pub cache: &'a C,
    pub outbox: &'a O,
    pub mapping: &'a M,
    pub time_to_live: TimeToLive,
}

/// Drains until `cancel` or the first error. `settled` is called whenever nothing is pending.
pub async fn drain<C: CodeCache, O: Outbox, M: MappingStore>(
    work: Drain<'_, C, O, M>,
    settled: impl Fn(),
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    let mut look_at = Instant::now();
    let mut unsettled = None;
    while !cancel.is_cancelled() {
        if look_at <= Instant::now() {
            if unsettled.is_none() {
                unsettled = look(&work).await?;
            }
            work.outbox.forget().await?;
            look_at = Instant::now() + LOOK_INTERVAL;
        }
        let rows = work.outbox.pending(ROWS).await?;
        if rows.is_empty() {
            if let Some(record) = unsettled.take()
                && work.cache.incarnation().await? == record.incarnation
            {
                failpoints::reach("cache-before-record").await;
                work.outbox.set_record(&record).await?;
                failpoints::reach("cache-after-record").await;
            }
            settled();
            tokio::select! {
                () = cancel.cancelled() => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
            continue;
        }
        let mut codes: Vec<StoredCode> = rows.iter().flat_map(|row| row.codes.iter().cloned()).collect();
        codes.sort_unstable();
        codes.dedup();
        failpoints::reach("cache-before-removal").await;
        // All of them first: a stale entry is worse than none.
        for some in codes.chunks(CODES) {
            work.cache.invalidate(some).await?;
        }
        failpoints::reach("cache-after-removal").await;
        counter!(names::CACHE_INVALIDATIONS).increment(codes.len() as u64);
        for some in codes.chunks(CODES) {
            fill(work.cache, work.mapping, some, work.time_to_live).await?;
        }
        failpoints::reach("cache-after-fill").await;
        let ids: Vec<u64> = rows.iter().map(|row| row.id).collect();
        work.outbox.drained(&ids).await?;
        failpoints::reach("cache-after-drained").await;
    }
    Ok(())
}

/// What is to be recorded once nothing is pending, if anything has changed.
async fn look<C: CodeCache, O: Outbox, M>(work: &Drain<'_, C, O, M>) -> Result<Option<CacheRecord>, Fault> {
    let record =
        CacheRecord { incarnation: work.cache.incarnation().await?, time_to_live: work.time_to_live.full };
    match work.outbox.record().await? {
        None => {
            tracing::info!("what the cache holds is not known: it is emptied");
            work.cache.clear().await?;
            failpoints::reach("cache-after-clear").await;
        }
        Some(known) if known == record => return Ok(None),
        Some(known) => {
            if known.incarnation != record.incarnation {
                tracing::info!("the cache began another life: what changed lately is removed from it again");
                work.outbox.repeat().await?;
                failpoints::reach("cache-after-repeat").await;
            }
            if known.time_to_live > record.time_to_live {
                work.cache.shorten(record.time_to_live).await?;
            }
        }
    }
    Ok(Some(record))
}
