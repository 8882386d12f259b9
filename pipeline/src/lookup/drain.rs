//! The drain empties the outbox into the cache: it removes the entries of touched codes and fills them again
//! afterwards.
//!
//! The removal makes the cache right, so it waits for no query. The filling only spares the next reader a query: it
//! runs beside the removal, many codes at a time, and holds it up only when it lags far. Codes that a killed process
//! had still to fill are filled by the first lookup that asks for them.
//!
//! Everything here may be done twice: rows stay pending until the cache has answered. After the cache began another
//! life (restart, fail-over) it may hold entries whose removal it has forgotten. Then the drain repeats the rows of the
//! last hour, or empties the cache if the freshness key is lost (an old copy). Until that is done readers go past the
//! cache ([`CacheState`](super::CacheState)).

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

/// Time between two polls of an empty outbox, for lanes of other processes; lanes of this process announce their rows.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Time between two checks of the cache's life.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two renewals of the freshness key: a small part of the time after which it expires.
const POSITION_INTERVAL: Duration = Duration::from_secs(60);
/// Outbox rows taken at once: a flush writes few, so this is many flushes.
const ROWS: usize = 64;
/// Codes of one step: some hundred kilobytes in each direction.
const CODES: usize = 1000;
/// Fills that run at once: while one writes to the cache, another one reads.
const FILLS: usize = 2;
/// Time that few codes wait for more: to read thirty with one statement costs half as much as to read each alone.
const FILL_INTERVAL: Duration = Duration::from_millis(50);
/// Codes to fill at which the next removal waits.
const UNFILLED_MAX: usize = 20 * CODES;

/// The outbox to drain, the cache that it is drained into, and the mapping tables that fill it.
#[derive(Debug)]
pub struct Drain<'a, C, O, M> {
    pub cache: &'a C,
    pub outbox: &'a O,
    pub mapping: &'a M,
    pub time_to_live: TimeToLive,
}

/// One round of draining into one life of the cache.
#[derive(Debug)]
struct Round {
    life: String,
    /// The incarnation that the outbox records: the life itself once everything has been drained into it.
    record: String,
    fresh_at: Option<Instant>,
}

/// Prefix of the recorded incarnation while kept rows are drained again.
const REPEATING: &str = "repeating:";
/// Prefix of the recorded incarnation while a cache of unknown content is emptied.
const EMPTYING: &str = "emptying:";

/// Codes that were removed and are not filled again yet.
#[derive(Debug, Default)]
struct Unfilled {
    waiting: BTreeSet<StoredCode>,
    is_filling: bool,
}

/// Drains until `cancel` or the first error. It calls `settled` whenever nothing is pending, with whether all codes are
/// filled again as well.
pub async fn drain<C: CodeCache, O: Outbox, M: MappingStore>(
    work: Drain<'_, C, O, M>,
    settled: impl Fn(bool),
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    let unfilled = watch::Sender::default();
    // Everything may be done twice, so the tasks may be dropped at any moment.
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
    let mut round = check_life(work, None).await?;
    let mut check_at = Instant::now() + CHECK_INTERVAL;
    loop {
        if check_at <= Instant::now() {
            round = check_life(work, Some(round)).await?;
            work.outbox.forget().await?;
            check_at = Instant::now() + CHECK_INTERVAL;
        }
        // The wait is armed before the query, so that it misses no commit.
        let touched = work.outbox.touched();
        let rows = work.outbox.pending(ROWS).await?;
        if rows.is_empty() {
            if round.record != round.life && work.cache.incarnation().await? == round.life {
                failpoints::reach("cache-before-record").await;
                work.outbox.settle(&round.record, &round.life).await?;
                failpoints::reach("cache-after-record").await;
                check_at = Instant::now();
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
        // This function holds the sender, so the wait cannot fail.
        let _ = room.wait_for(|unfilled| unfilled.waiting.len() < UNFILLED_MAX).await;
    }
}

/// Fills removed codes again.
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

/// Checks whether the cache's life is the recorded one; otherwise begins a round, in which readers go past the cache.
///
/// The record names each round. So an overtaken round that stood still cannot report rows as drained.
async fn check_life<C: CodeCache, O: Outbox, M>(
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
        tracing::info!(
            "the cache restarted or failed over: entries of recent changes are removed from it again"
        );
        work.outbox.repeat().await?;
        failpoints::reach("cache-after-repeat").await;
    } else {
        tracing::info!("the age of the cache's entries is not known, or too high: the cache is emptied");
        work.cache.clear().await?;
        failpoints::reach("cache-after-clear").await;
    }
    Ok(Round { life, record, fresh_at: None })
}

/// Renews the freshness key of a life that everything was drained into. A cache without room for the key is emptied in
/// its next life.
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
            tracing::debug!(%fault, "the cache's freshness key could not be written");
            None
        }
    }
}

/// Applies a shortened time to live to existing entries, beside the draining: it visits every key.
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
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}
