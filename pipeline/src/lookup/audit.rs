//! The cache's part of a reconciliation: every entry that stands is compared with the complete set of mapping rows of
//! its code.
//!
//! A code without an entry is no drift: a cache may lose anything. What disagrees is looked at again: mapping rows,
//! then until everything that was noted before has been drained, then whether readers believe the cache, then the
//! entry, then mapping rows. Only what both readings of the mapping rows contradict is drift, and all that is done
//! about it is to remove it, as a drain does: the next lookup fills the complete set. In a life that is not recorded
//! nothing is judged. It goes on from a place that outlives its process, and its reconciliation: see [`AuditState`].
//! A cache that began another life is read from its beginning.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::Duration;

use anabranch_schemas::serial::StoredCode;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{CACHED_CLAIMS_MAX, CacheState, decode};
use crate::error::{Code, Fault};
use crate::ports::{CacheEntry, CodeCache, MappingStore, Outbox};
use crate::reconcile::{Pace, released};
use crate::records::{ChunkKey, Claims, TimeToLive};
use crate::retry::again;
use crate::throttle::Throttle;

/// Looks at a code that keeps changing.
const LOOKS: usize = 5;
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);
/// Drains are this far behind at most, else what they have not come to stays unverified.
const DRAIN_WAIT_MAX: Duration = Duration::from_secs(30);
/// An audit reads the codes of so long a time at once, at the rate that is configured.
const PART: Duration = Duration::from_millis(50);
/// Codes that are read at a time without a rate, at most; a step of a cache names fewer.
const PART_CODES: NonZeroUsize = NonZeroUsize::new(20_000).expect("it is not 0");

/// What is compared with what.
#[derive(Debug)]
pub struct CacheAudit<'a, C, O, M> {
    pub cache: &'a C,
    /// The outbox of every target of the mapping tables.
    pub outboxes: &'a [O],
    pub mapping: &'a M,
    pub time_to_live: TimeToLive,
    /// Once more than this is found, nothing is removed any more; 0 = look only.
    pub repairs_max: u64,
}

/// What is wrong with what is kept for a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryDrift {
    /// Bytes that are no entry, or another type of value.
    Unreadable,
    /// Not the complete set of its mapping rows.
    Stale,
    /// A set, although no mapping row has the code.
    Orphan,
    /// It lives for ever, or longer than is configured.
    Lasting,
    /// Nobody can fill the code any more.
    Blocked,
}

impl EntryDrift {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::Stale => "stale",
            Self::Orphan => "orphan",
            Self::Lasting => "lasting",
            Self::Blocked => "blocked",
        }
    }
}

/// What an audit found. A code that the scan named twice is counted twice.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audited {
    pub entries: u64,
    /// Disagreed at first, and agree.
    pub in_flight: u64,
    pub drift: BTreeMap<EntryDrift, u64>,
    /// Entries of the drift that were removed, and right or gone when they were looked at again.
    pub repaired: u64,
    /// Changed whenever they were looked at, or waited for a drain that does not come.
    pub unverified: u64,
}

/// How far the audit of a cache is. What was counted belongs to one reconciliation; the place is the next one's too.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditState {
    pub audited: Audited,
    pub place: AuditPlace,
}

/// Where the next step begins. It is a place of one life of the cache.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditPlace {
    life: String,
    /// In the cache's notation; empty = its beginning.
    after: Vec<u8>,
}

impl AuditState {
    /// A reconciliation's audit, which begins where the one before it stopped.
    pub fn behind(place: AuditPlace) -> Self {
        Self { audited: Audited::default(), place }
    }
}

impl Audited {
    pub fn found(&self) -> u64 {
        self.drift.values().sum()
    }

    /// Every entry that was read was judged.
    pub fn is_judged(&self) -> bool {
        self.unverified == 0
    }

    fn add(&mut self, part: Self) {
        self.entries += part.entries;
        self.in_flight += part.in_flight;
        self.repaired += part.repaired;
        self.unverified += part.unverified;
        part.drift.into_iter().for_each(|(drift, entries)| *self.drift.entry(drift).or_default() += entries);
    }
}

/// Waits for what an audit waits for beside rows: its rate, and backpressure.
#[derive(Debug)]
pub struct AuditPace {
    pace: Pace,
    throttle: Throttle,
}

impl AuditPace {
    pub fn new(pace: Pace) -> Self {
        Self { throttle: Throttle::new(pace.rows_per_second, PART, PART_CODES), pace }
    }

    /// Until nobody holds it, and until so many codes may have been read.
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

/// A code and what is wrong with what is kept for it.
type Compared = (StoredCode, Option<EntryDrift>);

impl<C: CodeCache, O: Outbox, M: MappingStore> CacheAudit<'_, C, O, M> {
    /// Before the first step of a process: in the life of the state's place its next step goes on there, in another one
    /// at the beginning.
    pub async fn begin(&self, state: &mut AuditState) -> Result<(), Fault> {
        let life = again(|| self.cache.incarnation()).await?;
        self.require_belief(&life).await?;
        if state.place.life != life {
            state.place = AuditPlace { life, after: Vec::new() };
        }
        Ok(())
    }

    /// Compares some entries; whether they were the last ones. One that is dropped is made again, and changes no state.
    pub async fn step(&self, state: &mut AuditState, pace: &mut AuditPace) -> Result<bool, Fault> {
        let after = Some(&state.place.after).filter(|after| !after.is_empty());
        let after = after.map(|after| ChunkKey(after.as_slice().into()));
        let (codes, next) = again(|| self.cache.scan(after.as_ref())).await?;
        pace.passed(codes.len()).await;
        let mut part = Audited::default();
        self.compare_some(&state.place.life, codes, state.audited.found(), &mut part).await?;
        // A cache that began another life in between may not have shown all that it holds.
        let is_last = next.is_none();
        if is_last && again(|| self.cache.incarnation()).await? != state.place.life {
            return Err(unbelieved("it began another life"));
        }
        state.audited.add(part);
        state.place.after = next.map_or_else(Vec::new, |next| next.0.into_vec());
        Ok(is_last)
    }

    /// `found`: what was found before.
    async fn compare_some(
        &self,
        life: &str,
        codes: Vec<StoredCode>,
        found: u64,
        audited: &mut Audited,
    ) -> Result<(), Fault> {
        let standing = again(|| self.cache.standing(&codes)).await?.standing;
        let entries = standing.iter().filter(|standing| standing.entry.is_some()).count();
        audited.entries += entries as u64;
        let claims = self.claims(&codes).await?;
        let compared = codes.into_iter().zip(standing.iter().zip(&claims));
        let candidates: Vec<StoredCode> = compared
            .filter(|(_, (standing, claims))| self.drift(standing, claims).is_some())
            .map(|(code, _)| code)
            .collect();
        if candidates.is_empty() {
            return Ok(());
        }
        let (judged, unverified) = self.look_again(life, candidates).await?;
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
        let (judged, unverified) = self.look_again(life, codes).await?;
        audited.unverified += unverified;
        audited.repaired += judged.iter().filter(|(_, drift)| drift.is_none()).count() as u64;
        Ok(())
    }

    /// Each code with what is wrong with it for certain, and how many cannot be judged.
    async fn look_again(
        &self,
        life: &str,
        mut codes: Vec<StoredCode>,
    ) -> Result<(Vec<Compared>, u64), Fault> {
        let mut judged = Vec::new();
        for look in 0..LOOKS {
            if look > 0 {
                tokio::time::sleep(PAUSE).await;
            }
            let before = self.claims(&codes).await?;
            if !self.is_drained(Instant::now()).await? {
                break;
            }
            self.require_belief(life).await?;
            let entries = again(|| self.cache.standing(&codes)).await?;
            if *entries.incarnation != *life {
                return Err(unbelieved("it began another life"));
            }
            let after = self.claims(&codes).await?;
            let mut hot = Vec::new();
            for ((code, standing), (before, after)) in
                codes.into_iter().zip(&entries.standing).zip(before.iter().zip(&after))
            {
                match self.drift(standing, after) {
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

    fn drift(&self, standing: &CacheEntry, claims: &Claims) -> Option<EntryDrift> {
        let blocked = standing.is_blocked.then_some(EntryDrift::Blocked);
        let Some((bytes, left)) = &standing.entry else { return blocked };
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

    /// Waits until all that was noted before `at` has been drained; whether it was.
    async fn is_drained(&self, at: Instant) -> Result<bool, Fault> {
        loop {
            // Before the question: its answer may be long on its way.
            let elapsed = at.elapsed();
            let mut delay = Duration::ZERO;
            for outbox in self.outboxes {
                delay = delay.max(again(|| outbox.delay()).await?);
            }
            if delay < elapsed {
                return Ok(true);
            }
            if elapsed > DRAIN_WAIT_MAX {
                return Ok(false);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// An error unless readers believe the cache in this life, however far drains are behind.
    async fn require_belief(&self, life: &str) -> Result<(), Fault> {
        for outbox in self.outboxes {
            let state = again(|| CacheState::read(outbox)).await?;
            if state.incarnation.as_deref() != Some(life) {
                return Err(unbelieved("it is being drained again, or emptied"));
            }
        }
        Ok(())
    }

    async fn claims(&self, codes: &[StoredCode]) -> Result<Vec<Claims>, Fault> {
        again(|| self.mapping.claims(codes, CACHED_CLAIMS_MAX)).await
    }
}

fn unbelieved(found: &str) -> Fault {
    Fault::new(Code::CacheRejected, "cache", found).needs("one life that everything was drained into")
}
