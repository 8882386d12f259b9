//! How fast reconciliations and audits read servers, and how a read waits while backpressure holds it.

use std::num::NonZeroU64;
use std::time::Duration;

use tokio::sync::watch;

/// The longest pause before the next part: under lasting backpressure a reconciliation goes on slowly.
const HELD_MAX: Duration = Duration::from_secs(10);

/// How fast a reconciliation or audit reads each server, and whether it is to pause.
#[derive(Debug, Clone)]
pub struct Pace {
    pub(crate) rows_per_second: Option<NonZeroU64>,
    pub(crate) backpressure: watch::Receiver<bool>,
}

impl Pace {
    /// Returns a pace without a limit.
    pub fn unbounded() -> Self {
        Self { rows_per_second: None, backpressure: watch::channel(false).1 }
    }
}

/// Waits until no backpressure holds reads, for [`HELD_MAX`] at most.
pub(crate) async fn released(backpressure: &mut watch::Receiver<bool>) {
    // When the backpressure is dropped, nothing is held.
    let _ = tokio::time::timeout(HELD_MAX, backpressure.wait_for(|is_held| !is_held)).await;
}
