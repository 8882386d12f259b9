//! How fast servers are read by reconciliations and audits, and how a reading waits while backpressure holds it.

use std::num::NonZeroU64;
use std::time::Duration;

use tokio::sync::watch;

/// A reconciliation goes on slowly all the same: a part each time.
const HELD_MAX: Duration = Duration::from_secs(10);

/// How fast each server is read.
#[derive(Debug, Clone)]
pub struct Pace {
    pub(crate) rows_per_second: Option<NonZeroU64>,
    pub(crate) backpressure: watch::Receiver<bool>,
}

impl Pace {
    /// As fast as it goes.
    pub fn unbounded() -> Self {
        Self { rows_per_second: None, backpressure: watch::channel(false).1 }
    }
}

/// Resolves while no backpressure holds readings, or it has for too long.
pub(crate) async fn released(readings: &mut watch::Receiver<bool>) {
    // Without anybody who looks nothing is held.
    let _ = tokio::time::timeout(HELD_MAX, readings.wait_for(|is_held| !is_held)).await;
}
