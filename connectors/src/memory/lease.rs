//! Leases in memory: keys that expire by the server's clock and that a task of their holder renews.
//!
//! A frozen process renews nothing and learns nothing until it runs again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{LEASE_TIME_TO_LIVE, Lease, Leases};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::{Freezer, lock};

const RENEWAL_INTERVAL: Duration = LEASE_TIME_TO_LIVE.checked_div(4).expect("four is not zero");
/// The holder stops this long before the server's end of the lease.
const MARGIN: Duration = LEASE_TIME_TO_LIVE.checked_div(8).expect("eight is not zero");
const ACQUIRE_INTERVAL: Duration = Duration::from_millis(800);

#[derive(Debug, Default)]
struct State {
    /// Holder of each key and the end of its lease.
    held: BTreeMap<String, (u64, Instant)>,
    holders: u64,
    away: bool,
}

/// The bucket as one process sees it.
#[derive(Debug, Clone)]
pub struct MemoryLeases {
    state: Arc<Mutex<State>>,
    freezer: Freezer,
}

impl MemoryLeases {
    pub fn new() -> Self {
        Self { state: Arc::default(), freezer: Freezer::default() }
    }

    /// Returns the same bucket for a process that this freezer freezes.
    pub fn of_process(&self, freezer: Freezer) -> Self {
        Self { state: self.state.clone(), freezer }
    }

    /// Takes the server away, or brings it back. A call while it is away waits.
    pub fn set_away(&self, away: bool) {
        lock(&self.state).away = away;
    }

    /// Gives the key to another process, even if one held it before.
    pub fn steal(&self, key: &str) {
        let mut state = lock(&self.state);
        state.holders += 1;
        let holder = state.holders;
        state.held.insert(key.to_owned(), (holder, Instant::now() + LEASE_TIME_TO_LIVE));
    }

    /// Removes all keys, as when the bucket is created anew.
    pub fn forget(&self) {
        lock(&self.state).held.clear();
    }

    /// Whether the key is held, as another process would find it.
    pub fn is_held(&self, key: &str) -> bool {
        lock(&self.state).held.get(key).is_some_and(|(_, end)| *end > Instant::now())
    }

    async fn back(&self) {
        while lock(&self.state).away {
            sleep(RENEWAL_INTERVAL / 10).await;
        }
    }

    fn try_acquire(&self, key: &str) -> Option<u64> {
        let (mut state, now) = (lock(&self.state), Instant::now());
        if state.held.get(key).is_some_and(|(_, end)| *end > now) {
            return None;
        }
        state.holders += 1;
        let holder = state.holders;
        state.held.insert(key.to_owned(), (holder, now + LEASE_TIME_TO_LIVE));
        Some(holder)
    }

    /// Renews the key if it is still this holder's; returns whether it did.
    fn renew(&self, key: &str, holder: u64) -> bool {
        let (mut state, now) = (lock(&self.state), Instant::now());
        match state.held.get_mut(key) {
            Some((owner, end)) if *owner == holder && *end > now => {
                *end = now + LEASE_TIME_TO_LIVE;
                true
            }
            _ => false,
        }
    }

    fn free(&self, key: &str, holder: u64) {
        let mut state = lock(&self.state);
        if state.held.get(key).is_some_and(|(owner, _)| *owner == holder) {
            state.held.remove(key);
        }
    }

    /// Renews until it cannot; returns the reason.
    async fn keep_renewed(self, key: String, holder: u64, taken: Instant) -> &'static str {
        let mut safe_until = taken + LEASE_TIME_TO_LIVE - MARGIN;
        loop {
            sleep_until((safe_until - LEASE_TIME_TO_LIVE + MARGIN + RENEWAL_INTERVAL).min(safe_until)).await;
            self.freezer.until(false).await;
            let asked = Instant::now();
            if asked >= safe_until || timeout_at(safe_until, self.back()).await.is_err() {
                return "it could not be renewed in time";
            }
            if !self.renew(&key, holder) {
                return "another process took it";
            }
            safe_until = asked + LEASE_TIME_TO_LIVE - MARGIN;
        }
    }
}

impl Default for MemoryLeases {
    fn default() -> Self {
        Self::new()
    }
}

impl Leases for MemoryLeases {
    type Lease = MemoryLease;

    async fn acquire(&self, key: &str) -> Result<MemoryLease, Fault> {
        self.acquire_or_stand_by(key, &|| ()).await
    }

    async fn acquire_or_stand_by(
        &self,
        key: &str,
        on_standby: &(dyn Fn() + Send + Sync),
    ) -> Result<MemoryLease, Fault> {
        loop {
            self.back().await;
            let asked = Instant::now();
            if let Some(holder) = self.try_acquire(key) {
                let (sender, lost) = watch::channel(None);
                let renewing = self.clone().keep_renewed(key.to_owned(), holder, asked);
                let renewal = tokio::spawn(async move {
                    let _ = sender.send(Some(renewing.await));
                });
                let (leases, key) = (self.clone(), key.to_owned());
                return Ok(MemoryLease { leases, key, holder, lost, renewal: Renewal(renewal) });
            }
            on_standby();
            sleep(ACQUIRE_INTERVAL).await;
        }
    }
}

/// The task that renews a lease; dropping this stops it.
#[derive(Debug)]
struct Renewal(JoinHandle<()>);

impl Drop for Renewal {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A held key.
#[derive(Debug)]
pub struct MemoryLease {
    leases: MemoryLeases,
    key: String,
    holder: u64,
    lost: watch::Receiver<Option<&'static str>>,
    renewal: Renewal,
}

impl Lease for MemoryLease {
    async fn lost(&mut self) -> Fault {
        let why = match self.lost.wait_for(Option::is_some).await {
            Ok(why) => why.expect("waited for"),
            Err(_) => "its renewal ended",
        };
        Fault::new(Code::LeaseLost, format!("lease {}", self.key), why)
    }

    async fn release(self) {
        drop(self.renewal);
        let end = Instant::now() + RENEWAL_INTERVAL;
        if timeout_at(end, self.leases.back()).await.is_ok() {
            self.leases.free(&self.key, self.holder);
        }
    }
}
