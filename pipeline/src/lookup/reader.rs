//! Lookups ask the cache while it is believed, and otherwise the mapping tables; each code is read once at a time.
//!
//! Readers that miss the same code, up to the same limit, share one query. It runs in a task of its own, so a reader
//! that goes away leaves no half-done query to the others. Running and waiting queries are limited; beyond the limit
//! the answer is [`Unanswered::Busy`]. Batches wait for [`BatchMemory`] by the number of their codes. An answer is as
//! old as the cache may be, or as the query that was joined; [`Reader::fresh`] queries the mapping tables after the
//! call.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anabranch_schemas::serial::StoredCode;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use metrics::counter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::believed::BelievedCache;
use super::{CACHED_CLAIMS_MAX, fill};
use crate::error::{Code, Fault};
use crate::metrics as names;
use crate::ports::{CodeCache, MappingStore, Outbox};
use crate::records::{Claims, DeviceClaim, TimeToLive};

/// The reason why there is no answer.
#[derive(Debug, Clone)]
pub enum Unanswered {
    /// Too many queries wait already.
    Busy,
    Failed(Arc<Fault>),
}

impl From<Fault> for Unanswered {
    fn from(fault: Fault) -> Self {
        Self::Failed(Arc::new(fault))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    Cache,
    Mapping,
}

/// Limits of the queries of mapping tables.
#[derive(Debug, Clone, Copy)]
pub struct QueryBounds {
    pub at_once: usize,
    /// Queries that wait for their turn, at most.
    pub queued: usize,
    /// Codes of batches that are in memory at once, at most; see [`Reader::room`].
    pub codes: usize,
}

/// Memory for the codes of a batch; dropping the value frees it.
#[derive(Debug)]
pub struct BatchMemory {
    _permit: OwnedSemaphorePermit,
}

/// A code, and the number of its claims to read.
type CodeRequest = (StoredCode, usize);

type PendingRead = Shared<BoxFuture<'static, Result<Arc<HashMap<StoredCode, Arc<Claims>>>, Unanswered>>>;

/// Reads mapping rows for many callers at once. Clones share everything.
#[derive(Debug)]
pub struct Reader<C, M>(Arc<ReaderState<C, M>>);

impl<C, M> Clone for Reader<C, M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

#[derive(Debug)]
struct ReaderState<C, M> {
    cache: Option<(BelievedCache<C>, TimeToLive)>,
    mapping: M,
    flights: Mutex<HashMap<CodeRequest, PendingRead>>,
    turns: Semaphore,
    waiting: AtomicUsize,
    room: Arc<Semaphore>,
    bounds: QueryBounds,
}

impl<C, M> Reader<C, M>
where
    C: CodeCache + 'static,
    M: MappingStore + 'static,
{
    /// Builds a reader; it needs a Tokio runtime.
    pub fn new(cache: Option<(C, TimeToLive)>, mapping: M, bounds: QueryBounds) -> Self {
        if cache.is_some() {
            [HIT, MISS].iter().for_each(|outcome| count(outcome, None, 0));
        }
        Self(Arc::new(ReaderState {
            cache: cache.map(|(cache, time_to_live)| (BelievedCache::new(cache), time_to_live)),
            mapping,
            flights: Mutex::default(),
            turns: Semaphore::new(bounds.at_once),
            waiting: AtomicUsize::new(0),
            room: Arc::new(Semaphore::new(bounds.codes)),
            bounds,
        }))
    }

    /// Returns why lookups do not ask the cache; `None` while they do.
    pub fn bypassed(&self) -> Option<&'static str> {
        match &self.0.cache {
            Some((cache, _)) => cache.bypassed(),
            None => Some("none is configured"),
        }
    }

    /// Returns how much the cache may lag the mapping tables: the delay at the last check plus the time since.
    pub fn cache_delay(&self) -> Option<Duration> {
        self.0.cache.as_ref().and_then(|(cache, _)| cache.delay())
    }

    /// Checks whether the cache can be believed. The owner calls it about every second, with the outboxes of all
    /// targets.
    pub async fn check_cache(&self, outboxes: &[impl Outbox]) {
        if let Some((cache, _)) = &self.0.cache {
            cache.check_cache(outboxes).await;
        }
    }

    /// Waits, in the order of calls, until there is memory for the answers to so many codes. The caller keeps the value
    /// until it has dropped its answers.
    pub async fn room(&self, codes: usize) -> Result<BatchMemory, Unanswered> {
        // A request for more than the limit would wait for ever.
        let codes = codes.min(self.0.bounds.codes) as u32;
        let permit = Arc::clone(&self.0.room).acquire_many_owned(codes).await;
        Ok(BatchMemory { _permit: permit.map_err(|_| unread("no more answers"))? })
    }

    /// Returns the claims of each code, at most `limit` and at most [`CACHED_CLAIMS_MAX`], with their origin. It reads
    /// no more from a mapping table. Only complete sets get into the cache, so a small limit leaves large sets out.
    pub async fn read(
        &self,
        codes: &[StoredCode],
        limit: usize,
    ) -> Result<Vec<(Arc<Claims>, Origin)>, Unanswered> {
        let limit = limit.min(CACHED_CLAIMS_MAX);
        let mut found = self.cached(codes, limit).await;
        let missing: Vec<&StoredCode> =
            codes.iter().zip(&found).filter(|(_, found)| found.is_none()).map(|(code, _)| code).collect();
        let mut read = HashMap::new();
        for flight in self.board(&missing, limit) {
            let landed = flight.await?;
            read.extend(landed.iter().map(|(code, claims)| (code.clone(), Arc::clone(claims))));
        }
        for (code, found) in codes.iter().zip(&mut found) {
            if found.is_none() {
                let claims = read.get(code).cloned();
                let claims = claims.ok_or_else(|| unread("a read of a mapping table lacks its code"))?;
                *found = Some((claims, Origin::Mapping));
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// Reads as [`Self::read`] does, but always from the mapping tables, as they are after the call.
    pub async fn fresh(
        &self,
        codes: &[StoredCode],
        limit: usize,
    ) -> Result<Vec<(Arc<Claims>, Origin)>, Unanswered> {
        let claims = self.in_turn(self.0.mapping.claims(codes, limit.min(CACHED_CLAIMS_MAX))).await?;
        Ok(claims.into_iter().map(|claims| (Arc::new(claims), Origin::Mapping)).collect())
    }

    /// Returns at most `limit` claims of a code after the claim `after`, from the mapping tables.
    pub async fn page(
        &self,
        code: &StoredCode,
        after: Option<&DeviceClaim>,
        limit: usize,
    ) -> Result<Claims, Unanswered> {
        self.in_turn(self.0.mapping.page(code, after, limit)).await
    }

    async fn cached(&self, codes: &[StoredCode], limit: usize) -> Vec<Option<(Arc<Claims>, Origin)>> {
        let Some((cache, _)) = &self.0.cache else { return codes.iter().map(|_| None).collect() };
        let bypassed = cache.bypassed();
        let found = cache.get(codes, limit).await;
        let hits = found.iter().flatten().count() as u64;
        let rest = codes.len() as u64 - hits;
        count(HIT, None, hits);
        count(if bypassed.is_some() { BYPASSED } else { MISS }, bypassed, rest);
        found.into_iter().map(|claims| Some((Arc::new(claims?), Origin::Cache))).collect()
    }

    /// Returns the running queries that cover these codes, up to the limit or in full, and one new query for the
    /// others.
    fn board(&self, codes: &[&StoredCode], limit: usize) -> Vec<PendingRead> {
        let (mut boarded, mut own) = (Vec::new(), Vec::new());
        let mut flights = lock(&self.0.flights);
        for code in codes {
            let mut under_way = [limit, CACHED_CLAIMS_MAX]
                .into_iter()
                .filter_map(|limit| flights.get(&((*code).clone(), limit)));
            match under_way.next() {
                Some(flight) => boarded.push(flight.clone()),
                None => own.push((*code).clone()),
            }
        }
        own.sort_unstable();
        own.dedup();
        if !own.is_empty() {
            let (reader, codes) = (self.clone(), own.clone());
            // The task cannot end before the query is listed: that needs the lock.
            let task = tokio::spawn(async move {
                let read = reader.fill(&codes, limit).await;
                let mut flights = lock(&reader.0.flights);
                codes.into_iter().for_each(|code| _ = flights.remove(&(code, limit)));
                read
            });
            let flight =
                async { task.await.unwrap_or_else(|_| Err(unread("a read of a mapping table was cut off"))) };
            let flight = flight.boxed().shared();
            flights.extend(own.into_iter().map(|code| ((code, limit), flight.clone())));
            boarded.push(flight);
        }
        boarded
    }

    async fn fill(
        &self,
        codes: &[StoredCode],
        limit: usize,
    ) -> Result<Arc<HashMap<StoredCode, Arc<Claims>>>, Unanswered> {
        let claims = match &self.0.cache {
            Some((cache, time_to_live)) if cache.bypassed().is_none() => {
                self.in_turn(fill(cache.cache(), &self.0.mapping, codes, limit, *time_to_live)).await?
            }
            _ => self.in_turn(self.0.mapping.claims(codes, limit)).await?,
        };
        Ok(Arc::new(codes.iter().cloned().zip(claims.into_iter().map(Arc::new)).collect()))
    }

    /// Runs the query when it is its turn.
    async fn in_turn<T>(&self, query: impl Future<Output = Result<T, Fault>>) -> Result<T, Unanswered> {
        let ReaderState { turns, waiting, bounds, .. } = &*self.0;
        let _turn = match turns.try_acquire() {
            Ok(turn) => turn,
            Err(_) => {
                let _place = QueueSlot::take(waiting, bounds.queued).ok_or(Unanswered::Busy)?;
                turns.acquire().await.map_err(|_| unread("no more queries"))?
            }
        };
        counter!(names::LOOKUP_QUERIES).increment(1);
        Ok(query.await?)
    }
}

const HIT: &str = "hit";
const MISS: &str = "miss";
const BYPASSED: &str = "bypassed";

/// Counts requested codes. The reasons are those of [`Reader::bypassed`], which are few.
fn count(outcome: &'static str, reason: Option<&'static str>, codes: u64) {
    let reason = reason.unwrap_or_default();
    counter!(names::CACHE_LOOKUPS, "outcome" => outcome, "reason" => reason).increment(codes);
}

/// A slot in the queue of waiting queries; dropping the value frees it.
struct QueueSlot<'w>(&'w AtomicUsize);

impl<'w> QueueSlot<'w> {
    fn take(waiting: &'w AtomicUsize, places: usize) -> Option<Self> {
        let place = Self(waiting);
        (waiting.fetch_add(1, Ordering::Relaxed) < places).then_some(place)
    }
}

impl Drop for QueueSlot<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn unread(found: &str) -> Unanswered {
    Fault::new(Code::Internal, "lookup", found).into()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code under these locks leaves them half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
