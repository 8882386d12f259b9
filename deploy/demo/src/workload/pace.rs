//! The pace of changes: as fast as possible, or on a fixed schedule that does not wait for the servers.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Row changes a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    Unlimited,
    /// Open loop: a late change does not delay the schedule of later ones.
    ChangesPerSecond(NonZeroU32),
}

impl Pace {
    /// Makes a pace; 0 means as fast as possible.
    pub fn of(changes_per_second: u32) -> Self {
        NonZeroU32::new(changes_per_second).map_or(Pace::Unlimited, Pace::ChangesPerSecond)
    }
}

/// The schedule of one run, shared by its workers.
#[derive(Debug)]
pub(super) struct Schedule {
    start: Instant,
    pace: Pace,
    claimed_changes: AtomicU64,
}

impl Schedule {
    pub fn new(pace: Pace) -> Self {
        Self { start: Instant::now(), pace, claimed_changes: AtomicU64::new(0) }
    }

    /// Claims the time of that many changes and waits for it; returns false when cancelled first.
    pub async fn wait(&self, changes: u64, cancel: &CancellationToken) -> bool {
        let Pace::ChangesPerSecond(rate) = self.pace else { return !cancel.is_cancelled() };
        let before = self.claimed_changes.fetch_add(changes, Ordering::Relaxed);
        let due = self.start + Duration::from_secs_f64(before as f64 / f64::from(rate.get()));
        tokio::select! {
            biased;
            () = cancel.cancelled() => false,
            () = tokio::time::sleep_until(due) => true,
        }
    }
}
