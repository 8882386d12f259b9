//! From the outbox into the cache: what was touched is removed, and filled again after it.
//!
//! The removal makes the cache right, so it waits for no reading. The filling only spares the next reader one: it
//! follows beside the removal with many codes at a time, and holds it up only when it is far behind. What a killed
//! process had still to fill is filled by the first lookup that asks for it.
//!
//! Everything here may be done twice: rows stay pending until the cache has answered. After the cache began another
//! life (restart, fail-over) it may hold entries whose removal it has forgotten; then the rows of the last hour are
//! drained again, or the cache is emptied if it lost its freshness key (an old copy), and until that is done readers
//! go past it ([`CacheState`]).

use std::collections::BTreeSet;
use std::time::Duration;

use anabranch_schemas::serial::StoredCode;
use futures::{TryFutureExt, TryStreamExt, stream};
use metrics::counter;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{CACHED_CLAIMS_MAX, fill};
use crate::error::Fault;
use crate::failpoints;
use crate::metrics as names;
use crate::ports::{CacheRecord, CodeCache, MappingStore, Outbox};
use crate::records::TimeToLive;

/// The outbox is looked at this often while it is empty, for lanes of other processes; those of this one tell.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The cache's life is looked at this often.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The freshness key is renewed this often: a small part of the time that it stands.
const POSITION_INTERVAL: Duration = Duration::from_secs(60);
/// Rows taken at once: a flush writes few, so this is many flushes.
const ROWS: usize = 64;
/// Codes a step: some hundred kilobytes in each direction.
const CODES: usize = 1000;
/// Fills at once: while one is with the cache, another one reads.
const FILLS: usize = 2;
/// Few codes wait so long for more: to read thirty with one statement costs half of what reading each alone does.
const FILL_INTERVAL: Duration = Duration::from_millis(50);
/// With more codes to fill the next removal waits.
const UNFILLED_MAX: usize = 20 * CODES;
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

/// Who drains, and into which life.
#[derive(Debug)]
struct Round {
    life: String,
    /// What is recorded meanwhile: the life itself once everything has been drained into it.
    record: String,
    fresh_at: Option<Instant>,
}

/// Begins what is recorded while kept rows are drained again.
const REPEATING: &str = "repeating:";
/// Begins what is recorded while a cache is emptied whose content is not known.
const EMPTYING: &str = "emptying:";

/// What is removed, and not filled again yet.
#[derive(Debug, Default)]
struct Unfilled {
    waiting: BTreeSet<StoredCode>,
    is_filling: bool,
}

/// Drains until `cancel` or the first error. `settled` is called whenever nothing is pending, with whether everything
/// is filled again as well.
pub async fn drain<C: CodeCache, O: Outbox, M: MappingStore>(
    work: Drain<'_, C, O, M>,
    settled: impl Fn(bool),
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    let unfilled = watch::Sender::default();
    // Everything may be done twice, so it may be left at any moment.
    tokio::select! {
        biased;
        () = cancel.cancelled() => Ok(()),
        ended = remove(&work, &unfilled, settled) => ended,
        ended = refill(&work, &unfilled) => ended,
        ended = shorten(&work) => ended,
    }
}

async fn remove<C: CodeCache, O: Outbox, M: MappingStore>(
    work: &Drain<'_, C, O, M>,
    unfilled: &watch::Sender<Unfilled>,
    settled: impl Fn(bool),
) -> Result<(), Fault> {
    let mut room = unfilled.subscribe();
    let mut round = look(work, None).await?;
    let mut look_at = Instant::now() + LOOK_INTERVAL;
    loop {
        if look_at <= Instant::now() {
            round = look(work, Some(round)).await?;
            work.outbox.forget().await?;
            look_at = Instant::now() + LOOK_INTERVAL;
        }
        // Before the reading, so that no commit is missed.
        let touched = work.outbox.touched();
        let rows = work.outbox.pending(ROWS).await?;
        if rows.is_empty() {
            if round.record != round.life && work.cache.incarnation().await? == round.life {
                failpoints::reach("cache-before-record").await;
                work.outbox.settle(&round.record, &round.life).await?;
                failpoints::reach("cache-after-record").await;
                look_at = Instant::now();
                continue;
            }
            let is_filled = {
                let unfilled = unfilled.borrow();
                unfilled.waiting.is_empty() && !unfilled.is_filling
            };
            settled(is_filled);
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = touched => {}
            }
            continue;
        }
        let mut codes: Vec<StoredCode> = rows.iter().flat_map(|row| row.codes.iter().cloned()).collect();
        codes.sort_unstable();
        codes.dedup();
        failpoints::reach("cache-before-removal").await;
        for some in codes.chunks(CODES) {
            work.cache.invalidate(some).await?;
        }
        failpoints::reach("cache-after-removal").await;
        counter!(names::CACHE_INVALIDATIONS).increment(codes.len() as u64);
        let ids: Vec<u64> = rows.iter().map(|row| row.id).collect();
        work.outbox.drained(&ids, &round.record).await?;
        failpoints::reach("cache-after-drained").await;
        unfilled.send_modify(|unfilled| unfilled.waiting.extend(codes));
        // The sender is here, so this is no error.
        let _ = room.wait_for(|unfilled| unfilled.waiting.len() < UNFILLED_MAX).await;
    }
}

/// Fills what was removed.
async fn refill<C: CodeCache, O, M: MappingStore>(
    work: &Drain<'_, C, O, M>,
    unfilled: &watch::Sender<Unfilled>,
) -> Result<(), Fault> {
    let mut removed = unfilled.subscribe();
    loop {
        let waiting = removed.wait_for(|unfilled| !unfilled.waiting.is_empty()).await;
        if waiting.is_ok_and(|unfilled| unfilled.waiting.len() < CODES) {
            tokio::time::sleep(FILL_INTERVAL).await;
        }
        let mut codes = Vec::new();
        unfilled.send_modify(|unfilled| {
            unfilled.is_filling = true;
            codes.extend(std::mem::take(&mut unfilled.waiting));
        });
        let fills = codes
            .chunks(CODES)
            .map(|some| fill(work.cache, work.mapping, some, CACHED_CLAIMS_MAX, work.time_to_live));
        stream::iter(fills.map(Ok)).try_for_each_concurrent(FILLS, |fill| fill.map_ok(drop)).await?;
        failpoints::reach("cache-after-fill").await;
        unfilled.send_modify(|unfilled| unfilled.is_filling = false);
    }
}

/// Looks whether the cache's life is the recorded one; else begins a round, in which readers go past the cache.
///
/// A round has a name of its own in the record, so that one that was overtaken while it stood still cannot say of rows
/// that they were drained.
async fn look<C: CodeCache, O: Outbox, M>(
    work: &Drain<'_, C, O, M>,
    before: Option<Round>,
) -> Result<Round, Fault> {
    let life = work.cache.incarnation().await?;
    let known = work.outbox.record().await?.map(|record| record.incarnation);
    if known.as_ref() == Some(&life) {
        let fresh_at = before.filter(|round| round.record == life).and_then(|round| round.fresh_at);
        let fresh_at = renew_freshness_key(work.cache, &life, fresh_at).await;
        return Ok(Round { record: life.clone(), life, fresh_at });
    }
    if let Some(round) = before
        && round.life == life
        && known.as_ref() == Some(&round.record)
    {
        return Ok(round);
    }
    let known = known.as_deref();
    let is_whole =
        known.is_some_and(|known| !known.starts_with(EMPTYING)) && work.cache.has_freshness_key().await?;
    let record = format!("{}{:016x}", if is_whole { REPEATING } else { EMPTYING }, rand::random::<u64>());
    let time_to_live = work.time_to_live.full;
    work.outbox.begin(known, &CacheRecord { incarnation: record.clone(), time_to_live }).await?;
    if is_whole {
        tracing::info!("the cache began another life: what changed lately is removed from it again");
        work.outbox.repeat().await?;
        failpoints::reach("cache-after-repeat").await;
    } else {
        tracing::info!("what the cache holds is not known, or too old: it is emptied");
        work.cache.clear().await?;
        failpoints::reach("cache-after-clear").await;
    }
    Ok(Round { life, record, fresh_at: None })
}

/// Renews the freshness key of a life into which everything was drained. A cache without room for it is emptied at
/// the next life.
async fn renew_freshness_key(
    cache: &impl CodeCache,
    life: &str,
    fresh_at: Option<Instant>,
) -> Option<Instant> {
    if fresh_at.is_some_and(|at| at.elapsed() < POSITION_INTERVAL) {
        return fresh_at;
    }
    match cache.write_freshness_key(life).await {
        Ok(()) => Some(Instant::now()),
        Err(fault) => {
            tracing::debug!(%fault, "the cache got no freshness key");
            None
        }
    }
}

/// Applies a time to live that was made shorter to what is cached already, beside the draining: it visits every key.
async fn shorten<C: CodeCache, O: Outbox, M>(work: &Drain<'_, C, O, M>) -> Result<(), Fault> {
    let configured = work.time_to_live.full;
    loop {
        match work.outbox.record().await?.map(|record| record.time_to_live) {
            Some(known) if known > configured => {
                work.cache.shorten(configured).await?;
                work.outbox.set_time_to_live(configured).await?;
            }
            Some(known) if known < configured => work.outbox.set_time_to_live(configured).await?,
            Some(_) => return std::future::pending().await,
            None => {}
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}
