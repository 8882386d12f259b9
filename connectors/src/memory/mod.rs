//! In-memory twins of outside systems, for tests only: a source, a log, lane stores, leases and registers on virtual
//! time, the coupon ledger, the work queue and the coupon system of the coupon day, the counters of payment documents,
//! and the records of operations.
//!
//! They keep the contracts of the ports and nothing else; they pass the same conformance suites as the real connectors.
//! [`Weather`] is the influence of the outside on a run: seeded pauses before and after each durable step, so that a
//! cut-off lands on either side of it, and, when it is stormy, lost messages, lost answers and broken connections.
//! [`Weather::refuse`] makes a server answer one code until a later call ends that.

mod binlog;
mod cache;
mod chunk;
mod coupon_system;
mod lease;
mod ledger;
mod log;
mod mapping;
mod operations;
mod registers;
mod relations;
mod rows;
mod sequence;
mod snapshot_view;
mod source;
mod store;
mod stream;
mod work_queue;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::Notify;
use tokio::time::Instant;

pub use cache::MemoryCache;
pub use chunk::UNSEEN_GROUPS_MAX;
pub use coupon_system::{CallFault, CouponKeys, KeyUse, MemoryCouponSystem};
pub use lease::{MemoryLease, MemoryLeases};
pub use ledger::{LedgerState, MemoryLedger};
pub use log::{MemoryLog, MemoryReader, MemoryWriter};
pub use mapping::MemoryMapping;
pub use operations::MemoryOperations;
pub use registers::MemoryRegisters;
pub use relations::MemoryRelations;
pub use rows::MemoryRows;
pub use sequence::{MemorySequence, SequenceRows};
pub use snapshot_view::SnapshotView;
pub use source::{Group, MemorySource, MemoryStream, ScriptedRow, Transaction};
pub use store::{MemoryStore, MemoryTarget, StoreKind, StoredRow};
pub use work_queue::{MemoryWorkQueue, WaitingMessage, enter_message};

/// The calls that a server refuses while [`Weather::refuse`] says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refused {
    /// Every call of a source.
    Source,
    /// Every call of the log and its registers.
    Log,
    /// Appends alone: the log server answers everything else.
    Appends,
    /// Every call of a target.
    Target,
    /// Flushes alone: the target answers everything else.
    Flushes,
    /// Every call of a cache.
    Cache,
}

#[derive(Debug)]
struct WeatherState {
    random: StdRng,
    pause_max_ms: u64,
    stormy: bool,
    /// Faults that have struck.
    strikes: u64,
    /// Calls that are refused, and the code that they get.
    refused: Option<(Refused, Code)>,
    /// Time that the events of a binlog take to arrive, at each call.
    on_the_way: Duration,
}

/// Seeded pauses and faults; shared by all twins of one run.
#[derive(Debug, Clone)]
pub struct Weather(Arc<Mutex<WeatherState>>);

impl Weather {
    /// Makes a weather without pauses and faults.
    pub fn calm() -> Self {
        Self::of(0, 0, false)
    }

    /// Brings faults of this seed until [`Self::clear`], and pauses of at most so many virtual milliseconds a step.
    pub fn stormy(seed: u64, pause_max_ms: u64) -> Self {
        Self::of(seed, pause_max_ms, true)
    }

    fn of(seed: u64, pause_max_ms: u64, stormy: bool) -> Self {
        let random = StdRng::seed_from_u64(seed);
        let (strikes, refused, on_the_way) = (0, None, Duration::ZERO);
        let state = WeatherState { random, pause_max_ms, stormy, strikes, refused, on_the_way };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Ends the storm; pauses stay.
    pub fn clear(&self) {
        lock(&self.0).stormy = false;
    }

    /// Returns the number of faults that have struck so far.
    pub fn strikes(&self) -> u64 {
        lock(&self.0).strikes
    }

    /// Refuses these calls with a code from now on; `None` = no call is refused any more.
    pub fn refuse(&self, refused: Option<(Refused, Code)>) {
        lock(&self.0).refused = refused;
    }

    /// Lets the events of a binlog arrive so much later at each call, as a slow connection or a long search does.
    pub fn slow_down(&self, on_the_way: Duration) {
        lock(&self.0).on_the_way = on_the_way;
    }

    /// Waits until the next events of a binlog have arrived.
    async fn events(&self) {
        let on_the_way = lock(&self.0).on_the_way;
        if !on_the_way.is_zero() {
            tokio::time::sleep(on_the_way).await;
        }
    }

    /// Returns the fault of a call of this kind if it is refused.
    fn answer(&self, call: Refused) -> Result<(), Fault> {
        match lock(&self.0).refused {
            Some((refused, code)) if refused == call => {
                Err(Fault::new(code, "a server", "it refuses the call").needs("a server that answers it"))
            }
            _ => Ok(()),
        }
    }

    async fn pause(&self) {
        tokio::time::sleep(self.delay()).await;
    }

    fn delay(&self) -> Duration {
        let mut state = lock(&self.0);
        let longest = state.pause_max_ms;
        Duration::from_millis(state.random.random_range(0..=longest))
    }

    /// Returns the time at which work is done that begins now, but not before `earliest`.
    fn due(&self, earliest: Instant) -> Instant {
        earliest.max(Instant::now()) + self.delay()
    }

    /// Whether a fault strikes now that strikes in so many of a thousand cases.
    fn strikes_in(&self, thousand: u32) -> bool {
        let mut state = lock(&self.0);
        let strikes = state.stormy && state.random.random_ratio(thousand, 1000);
        state.strikes += u64::from(strikes);
        strikes
    }
}

/// Frequency, in a thousand requests, with which a request is lost on the way.
const LOST: u32 = 10;
/// Frequency, in a thousand requests, with which a request is done and its answer is lost.
const UNHEARD: u32 = 20;

/// Sends a request that reaches its server when it is due, even if the sender is gone by then. Returns `None` when the
/// connection breaks, before or after the request is done.
async fn request<T: Send + 'static>(
    weather: &Weather,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    if weather.strikes_in(LOST) {
        return None;
    }
    let delay = weather.delay();
    let under_way = tokio::spawn(async move {
        tokio::time::sleep(delay).await;
        work()
    });
    let answer = under_way.await.ok()?;
    weather.pause().await;
    (!weather.strikes_in(UNHEARD)).then_some(answer)
}

/// Stops the tasks of a process as SIGSTOP does. Waiting tasks wake in the order in which they came, so a run is
/// repeatable.
#[derive(Debug, Clone, Default)]
pub struct Freezer(Arc<Frozen>);

#[derive(Debug, Default)]
struct Frozen {
    frozen: AtomicBool,
    changed: Notify,
}

impl Freezer {
    pub fn set(&self, frozen: bool) {
        self.0.frozen.store(frozen, Ordering::SeqCst);
        self.0.changed.notify_waiters();
    }

    pub fn is_frozen(&self) -> bool {
        self.0.frozen.load(Ordering::SeqCst)
    }

    /// Waits until the process is frozen, or until it is not.
    pub async fn until(&self, frozen: bool) {
        loop {
            let mut changed = std::pin::pin!(self.0.changed.notified());
            changed.as_mut().enable();
            if self.is_frozen() == frozen {
                return;
            }
            changed.await;
        }
    }

    /// Polls `inner` only while the process is not frozen.
    pub async fn run(&self, inner: impl Future<Output = ()>) {
        let mut inner = std::pin::pin!(inner);
        loop {
            self.until(false).await;
            tokio::select! {
                biased;
                () = self.until(true) => {}
                () = &mut inner => return,
            }
        }
    }
}

/// Locks a twin's state, even after a task that held the lock has panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
