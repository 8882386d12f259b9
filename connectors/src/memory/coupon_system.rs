//! The coupon system in memory: it remembers keys for a set time, and its list of given coupons forgets none.
//!
//! The port [`CouponSystem`] states the contract. The clock moves only when a test moves it. [`CouponKeys`] holds the
//! keys alone, for a simulation that decides faults by dice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_coupons::ports::{Answer, CouponSystem, Gift, GiftPage};
use anabranch_coupons::records::CouponKey;
use anabranch_pipeline::error::Fault;
use jiff::{SignedDuration, Timestamp};

use super::lock;

/// The system closes a connection after this time: the longest that `docs/coupon-system.md` allows.
const CONNECTION_AGE_MAX: SignedDuration = SignedDuration::from_mins(10);

/// Coupons that a page of the statement looks through.
const PAGE_GIFTS: usize = 50;

/// The keys that a coupon system remembers, each with its coupon.
#[derive(Debug, Clone)]
pub struct CouponKeys {
    /// Time for which a key is remembered.
    pub memory: SignedDuration,
    keys: BTreeMap<CouponKey, (Timestamp, Arc<str>)>,
}

/// The state of a key when a call uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyUse {
    /// The system did not know the key, so the call gives the coupon.
    New,
    /// The system knows the key with the same coupon.
    Known,
    /// The system knows the key with another coupon.
    Mismatch,
}

impl CouponKeys {
    /// Makes an empty list whose keys are remembered for this time.
    pub fn new(memory: SignedDuration) -> Self {
        Self { memory, keys: BTreeMap::new() }
    }

    /// Whether a key is known at this time.
    pub fn knows(&self, key: &CouponKey, now: Timestamp) -> bool {
        self.keys.get(key).is_some_and(|(at, _)| now < *at + self.memory)
    }

    /// Uses a key for a coupon. A key that is not known, or that was forgotten, is remembered from now on; a known one
    /// stays as it is.
    pub fn enter(&mut self, key: &CouponKey, coupon: &str, now: Timestamp) -> KeyUse {
        match self.keys.get(key) {
            Some((at, before)) if now < *at + self.memory => {
                if **before == *coupon {
                    KeyUse::Known
                } else {
                    KeyUse::Mismatch
                }
            }
            _ => {
                self.keys.insert(key.clone(), (now, coupon.into()));
                KeyUse::New
            }
        }
    }
}

/// A fault that calls for coupons meet. Questions about keys are answered all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallFault {
    /// The call is lost on its way to the system.
    LostBefore,
    /// The system does the work, and its answer is lost.
    LostAfter,
    /// The system does nothing and answers an error that leaves the outcome open.
    ErrorBefore,
    /// The system does the work and answers an error that leaves the outcome open.
    ErrorAfter,
    /// The system does nothing and asks for a pause.
    Busy,
}

/// The coupon system; clones share it.
#[derive(Debug, Clone)]
pub struct MemoryCouponSystem(Arc<Mutex<CouponSystemState>>);

#[derive(Debug)]
struct CouponSystemState {
    now: Timestamp,
    keys: CouponKeys,
    given: Vec<Gift>,
    /// Coupons that are left; `None` = any number.
    pool: Option<u64>,
    /// Keys that are always rejected.
    rejected: BTreeSet<CouponKey>,
    /// The fault that each call meets.
    fault: Option<CallFault>,
}

impl MemoryCouponSystem {
    /// Makes a system without faults that remembers keys for this time and has any number of coupons.
    pub fn new(memory: SignedDuration) -> Self {
        Self(Arc::new(Mutex::new(CouponSystemState {
            now: Timestamp::UNIX_EPOCH,
            keys: CouponKeys::new(memory),
            given: Vec::new(),
            pool: None,
            rejected: BTreeSet::new(),
            fault: None,
        })))
    }

    /// Moves the system's clock.
    pub fn pass(&self, time: SignedDuration) {
        lock(&self.0).now += time;
    }

    /// Lets each call meet this fault from now on; `None` = no fault any more.
    pub fn set_fault(&self, fault: Option<CallFault>) {
        lock(&self.0).fault = fault;
    }

    /// Leaves this number of coupons, and rejects these keys from now on.
    pub fn restrict(&self, pool: u64, rejected: impl IntoIterator<Item = CouponKey>) {
        let mut state = lock(&self.0);
        state.pool = Some(pool);
        state.rejected = rejected.into_iter().collect();
    }

    /// Returns every coupon that was given, in the order of giving.
    pub fn given(&self) -> Vec<(CouponKey, Arc<str>)> {
        lock(&self.0).given.iter().map(|gift| (gift.key.clone(), Arc::clone(&gift.coupon))).collect()
    }
}

impl CouponSystemState {
    /// Answers a call over a connection that was opened at this time.
    fn answers(&mut self, opened_at: Timestamp, coupons: &[(CouponKey, Arc<str>)]) -> Vec<Answer> {
        let all = |answer: Answer| vec![answer; coupons.len()];
        let error = if coupons.len() == 1 { Answer::Error } else { Answer::Unknown };
        if self.now > opened_at + CONNECTION_AGE_MAX {
            return all(Answer::ConnectionExpired);
        }
        match self.fault {
            Some(CallFault::Busy) => return all(Answer::Busy),
            Some(CallFault::LostBefore) => return all(Answer::Unknown),
            Some(CallFault::ErrorBefore) => return all(error),
            Some(CallFault::LostAfter | CallFault::ErrorAfter) | None => {}
        }
        let answers = coupons.iter().map(|(key, coupon)| self.answer(key, coupon)).collect();
        match self.fault {
            Some(CallFault::LostAfter) => all(Answer::Unknown),
            Some(CallFault::ErrorAfter) => all(error),
            _ => answers,
        }
    }

    fn answer(&mut self, key: &CouponKey, coupon: &Arc<str>) -> Answer {
        if !self.keys.knows(key, self.now) {
            if self.rejected.contains(key) {
                return Answer::Rejected;
            }
            match &mut self.pool {
                Some(0) => return Answer::PoolEmpty,
                Some(left) => *left -= 1,
                None => {}
            }
            let (key, coupon, given_at) = (key.clone(), Arc::clone(coupon), self.now);
            self.given.push(Gift { key, coupon, given_at });
        }
        match self.keys.enter(key, coupon, self.now) {
            KeyUse::New | KeyUse::Known => Answer::Given,
            KeyUse::Mismatch => Answer::Mismatch,
        }
    }
}

impl CouponSystem for MemoryCouponSystem {
    /// The time at which the connection was opened.
    type Connection = Timestamp;

    async fn connect(&self) -> Result<Timestamp, Fault> {
        Ok(lock(&self.0).now)
    }

    async fn call(
        &self,
        opened_at: &Timestamp,
        coupons: &[(CouponKey, Arc<str>)],
    ) -> Result<Vec<Answer>, Fault> {
        Ok(lock(&self.0).answers(*opened_at, coupons))
    }

    fn pause(&self) -> Option<Duration> {
        None
    }

    async fn knows(&self, keys: &[CouponKey]) -> Result<Vec<bool>, Fault> {
        let state = lock(&self.0);
        Ok(keys.iter().map(|key| state.keys.knows(key, state.now)).collect())
    }

    async fn statement(&self, since: Timestamp, position: u64) -> Result<Option<GiftPage>, Fault> {
        let state = lock(&self.0);
        let first = usize::try_from(position).unwrap_or(usize::MAX);
        let rest = state.given.get(first..).unwrap_or_default();
        let of_page = rest.iter().take(PAGE_GIFTS).filter(|gift| gift.given_at >= since);
        let next = (rest.len() > PAGE_GIFTS).then_some(position + PAGE_GIFTS as u64);
        Ok(Some(GiftPage { gifts: of_page.cloned().collect(), next }))
    }
}
