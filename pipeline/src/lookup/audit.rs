//! The cache's part of a reconciliation: it compares every entry with the complete set of mapping rows of its code.
//!
//! A code without an entry is no drift: a cache may lose anything. A code that disagrees is checked again: mapping
//! rows, then a wait until everything noted before is drained, then whether readers believe the cache, then the entry,
//! then mapping rows. An entry is drift only if both reads of the mapping rows contradict it. The audit then removes
//! it, as a drain does; the next lookup fills the complete set. In a life that is not recorded nothing is judged. The
//! audit resumes from a point that outlives its process and its reconciliation ([`AuditState`]); after the cache began
//! another life it starts at the beginning.

use std::num::NonZeroUsize;
use std::time::Duration;

use anabranch_schemas::serial::StoredCode;
use tokio::time::Instant;

use super::{CACHED_CLAIMS_MAX, CacheState, decode};
use crate::error::{Code, Fault};
use crate::ports::{CacheEntry, CodeCache, MappingStore, Outbox};
use crate::records::{AuditCursor, AuditState, Audited, Claims, EntryDrift, ScanCursor, TimeToLive};
use crate::retry::again;
use crate::throttle::{Pace, Throttle, released};

/// Checks of a code that keeps changing.
const COMPARISONS: usize = 5;
/// Time between two checks.
const PAUSE: Duration = Duration::from_millis(100);
/// Time for which the audit waits for the drains, at most; codes that they have not come to stay unverified.
const DRAIN_WAIT_MAX: Duration = Duration::from_secs(30);
/// Time for which a rate-limited audit reads codes in one piece.
const PART: Duration = Duration::from_millis(50);
/// Codes of one piece without a rate, at most; one step of a cache names fewer.
const PART_CODES: NonZeroUsize = NonZeroUsize::new(20_000).expect("it is not 0");

/// The cache, outboxes and mapping tables that one audit compares.
#[derive(Debug)]
pub struct CacheAudit<'a, C, O, M> {
    pub cache: &'a C,
    /// The outbox of every target of the mapping tables.
    pub outboxes: &'a [O],
    pub mapping: &'a M,
    pub time_to_live: TimeToLive,
    /// Entries that the audit repairs, at most; with more drift it removes nothing any more. 0 = report only.
    pub repairs_max: u64,
}

/// The rate and the backpressure of an audit.
#[derive(Debug)]
pub struct AuditPace {
    pace: Pace,
    throttle: Throttle,
}

impl AuditPace {
    pub fn new(pace: Pace) -> Self {
        Self { throttle: Throttle::new(pace.rows_per_second, PART, PART_CODES), pace }
    }

    /// Waits until no backpressure holds the audit and so many codes may have been read.
    async fn passed(&mut self, mut codes: usize) {
        released(&mut self.pace.backpressure).await;
        while codes > 0 {
            self.throttle.ready().await;
            let part = self.throttle.take().get();
            self.throttle.give_back(part.saturating_sub(codes));
            codes = codes.saturating_sub(part);
        }
    }
}

/// A code, and the drift of its entry if there is any.
type Compared = (StoredCode, Option<EntryDrift>);

impl<C: CodeCache, O: Outbox, M: MappingStore> CacheAudit<'_, C, O, M> {
    /// Prepares the first step of a process: it resumes at the state's point in that life of the cache, and starts at
    /// the beginning in another one.
    pub async fn begin(&self, state: &mut AuditState) -> Result<(), Fault> {
        let life = again(|| self.cache.incarnation()).await?;
        self.require_belief(&life).await?;
        if state.place.life != life {
            state.place = AuditCursor { life, after: Vec::new() };
        }
        Ok(())
    }

    /// Compares some entries; returns whether they were the last. A dropped call changes no state and is repeated.
    pub async fn step(&self, state: &mut AuditState, pace: &mut AuditPace) -> Result<bool, Fault> {
        let after = Some(&state.place.after).filter(|after| !after.is_empty());
        let after = after.map(|after| ScanCursor(after.as_slice().into()));
        let (codes, next) = again(|| self.cache.scan(after.as_ref())).await?;
        pace.passed(codes.len()).await;
        let mut part = Audited::default();
        self.compare_some(&state.place.life, codes, state.audited.found(), &mut part).await?;
        // A cache that began another life meanwhile may not have shown all of its entries.
        let is_last = next.is_none();
        if is_last && again(|| self.cache.incarnation()).await? != state.place.life {
            return Err(unbelieved("it restarted or failed over"));
        }
        state.audited.add(part);
        state.place.after = next.map_or_else(Vec::new, |next| next.0.into_vec());
        Ok(is_last)
    }

    /// Compares some codes and repairs drift; `found` is the drift of earlier steps.
    async fn compare_some(
        &self,
        life: &str,
        codes: Vec<StoredCode>,
        found: u64,
        audited: &mut Audited,
    ) -> Result<(), Fault> {
        let cached = again(|| self.cache.entries(&codes)).await?.entries;
        let entries = cached.iter().filter(|cached| cached.entry.is_some()).count();
        audited.entries += entries as u64;
        let claims = self.claims(&codes).await?;
        let compared = codes.into_iter().zip(cached.iter().zip(&claims));
        let candidates: Vec<StoredCode> = compared
            .filter(|(_, (cached, claims))| self.drift(cached, claims).is_some())
            .map(|(code, _)| code)
            .collect();
        if candidates.is_empty() {
            return Ok(());
        }
        let (judged, unverified) = self.compare_again(life, candidates).await?;
        audited.unverified += unverified;
        let mut codes = Vec::new();
        for (code, drift) in judged {
            match drift {
                None => audited.in_flight += 1,
                Some(drift) => {
                    *audited.drift.entry(drift).or_default() += 1;
                    codes.push(code);
                }
            }
        }
        if codes.is_empty() || found + audited.found() > self.repairs_max {
            return Ok(());
        }
        again(|| self.cache.invalidate(&codes)).await?;
        let (judged, unverified) = self.compare_again(life, codes).await?;
        audited.unverified += unverified;
        audited.repaired += judged.iter().filter(|(_, drift)| drift.is_none()).count() as u64;
        Ok(())
    }

    /// Returns each code with its certain drift, and how many codes cannot be judged.
    async fn compare_again(
        &self,
        life: &str,
        mut codes: Vec<StoredCode>,
    ) -> Result<(Vec<Compared>, u64), Fault> {
        let mut judged = Vec::new();
        for round in 0..COMPARISONS {
            if round > 0 {
                tokio::time::sleep(PAUSE).await;
            }
            let before = self.claims(&codes).await?;
            if !self.is_drained().await? {
                break;
            }
            self.require_belief(life).await?;
            let entries = again(|| self.cache.entries(&codes)).await?;
            if *entries.incarnation != *life {
                return Err(unbelieved("it restarted or failed over"));
            }
            let after = self.claims(&codes).await?;
            let mut hot = Vec::new();
            for ((code, cached), (before, after)) in
                codes.into_iter().zip(&entries.entries).zip(before.iter().zip(&after))
            {
                match self.drift(cached, after) {
                    Some(_) if before != after => hot.push(code),
                    drift => judged.push((code, drift)),
                }
            }
            codes = hot;
            if codes.is_empty() {
                break;
            }
        }
        Ok((judged, codes.len() as u64))
    }

    fn drift(&self, cached: &CacheEntry, claims: &Claims) -> Option<EntryDrift> {
        let blocked = cached.is_blocked.then_some(EntryDrift::Blocked);
        let Some((bytes, left)) = &cached.entry else { return blocked };
        match decode(bytes) {
            Err(_) => Some(EntryDrift::Unreadable),
            Ok(set) if claims.claims.is_empty() && !set.is_empty() => Some(EntryDrift::Orphan),
            Ok(set) if claims.is_cut || set != claims.claims => Some(EntryDrift::Stale),
            Ok(set) => {
                let longest = self.time_to_live.of(set.len(), 0.0);
                let is_lasting = left.is_none_or(|left| left > longest);
                is_lasting.then_some(EntryDrift::Lasting).or(blocked)
            }
        }
    }

    /// Waits until everything noted before the call has been drained; returns whether it was. It compares ids, because
    /// clocks may be set.
    async fn is_drained(&self) -> Result<bool, Fault> {
        let start = Instant::now();
        for outbox in self.outboxes {
            let mut until = None;
            while let Some(backlog) = again(|| outbox.backlog()).await? {
                let until = *until.get_or_insert(backlog.newest);
                if backlog.oldest > until {
                    break;
                }
                if start.elapsed() > DRAIN_WAIT_MAX {
                    return Ok(false);
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
        Ok(true)
    }

    /// Fails unless readers believe the cache in this life, however much the drains lag.
    async fn require_belief(&self, life: &str) -> Result<(), Fault> {
        for outbox in self.outboxes {
            let state = again(|| CacheState::read(outbox)).await?;
            if state.incarnation.as_deref() != Some(life) {
                return Err(unbelieved("it is drained again or emptied at present"));
            }
        }
        Ok(())
    }

    async fn claims(&self, codes: &[StoredCode]) -> Result<Vec<Claims>, Fault> {
        again(|| self.mapping.claims(codes, CACHED_CLAIMS_MAX)).await
    }
}

fn unbelieved(found: &str) -> Fault {
    Fault::new(Code::CacheRejected, "cache", found)
        .needs("a cache that did not restart and whose drain is complete")
}
