//! Processes die at awkward moments, under load, on real servers: afterwards the store equals its sources.
//!
//! The daemon is killed at random moments and at each failpoint, each server is killed and frozen, leases change
//! hands, a zombie wakes, the log is lost. What each test asks for is the same: everything arrives, and every derived
//! row is right, by the comparison that shares no code with the projector.

#![expect(clippy::unwrap_used, reason = "the whole target is tests")]

mod daemons;
mod failpoints;
mod log_lost;
mod servers;

use std::time::Duration;

use anabranch_demo::{Pace, WorkloadOptions};
use anabranch_tests::{Ground, Installation};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio_util::sync::CancellationToken;

static GROUND: Ground = Ground::standard();

/// Changes a second while things die: enough that every moment is in the middle of something.
const CHANGES_PER_SECOND: u32 = 300;

/// Random moments from a seed.
struct Moments(StdRng);

impl Moments {
    fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// Lets things go on for a random while, so that what comes next hits any moment.
    async fn pass(&mut self, millis: std::ops::Range<u64>) {
        tokio::time::sleep(Duration::from_millis(self.0.random_range(millis))).await;
    }
}

/// Runs `disaster` beside a workload that outlives lost connections.
async fn under_load(installation: &Installation<'_>, seed: u64, disaster: impl AsyncFnOnce()) {
    let mut workload = installation.workload(WorkloadOptions::new(seed).tolerating_crashes());
    workload.seed_users(500).await.unwrap();
    let over = CancellationToken::new();
    let end = over.clone();
    let disaster = async move {
        disaster().await;
        end.cancel();
    };
    let (report, ()) = tokio::join!(workload.run(Pace::of(CHANGES_PER_SECOND), over), disaster);
    let report = report.unwrap();
    assert!(report.changes > 0, "nothing happened meanwhile: {report:?}");
}
