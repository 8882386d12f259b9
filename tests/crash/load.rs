//! Changes of every kind at a few hundred a second, which go on while processes die.

use std::time::Duration;

use anabranch_demo::{LiveReport, Pace, WorkloadOptions, WorkloadReport};
use anabranch_tests::{Installation, seed, until};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Rate at which every moment is in the middle of some change.
const CHANGES_PER_SECOND: u32 = 300;
const ROWS_AT_FIRST: u64 = 500;

/// A running workload, and the random moments at which a test breaks something.
pub struct Load {
    /// One workload for each entity.
    running: Vec<JoinHandle<anabranch_demo::Result<WorkloadReport>>>,
    cancel: CancellationToken,
    live: Vec<LiveReport>,
    random: StdRng,
}

impl Load {
    /// Inserts the plan's users and devices, then begins to change them.
    pub async fn start(installation: &Installation<'_>, test: &str) -> Self {
        let seed = seed(test);
        let workloads = installation.workloads(WorkloadOptions::new(seed).tolerating_crashes());
        let pace = Pace::of(CHANGES_PER_SECOND / workloads.len() as u32);
        let (mut running, mut live, cancel) = (Vec::new(), Vec::new(), CancellationToken::new());
        for mut workload in workloads {
            workload.insert_rows(ROWS_AT_FIRST).await.unwrap();
            live.push(workload.live());
            let end = cancel.clone();
            running.push(tokio::spawn(async move { workload.run(pace, end).await }));
        }
        Self { running, cancel, live, random: StdRng::seed_from_u64(seed) }
    }

    pub fn changes(&self) -> u64 {
        self.live.iter().map(|live| live.snapshot().changes).sum()
    }

    /// Waits for this number of further changes.
    pub async fn more(&self, changes: u64) {
        let wanted = self.changes() + changes;
        until("the workload makes changes", async || {
            assert!(!self.running.iter().any(JoinHandle::is_finished), "a workload ended");
            self.changes() >= wanted
        })
        .await;
    }

    /// Waits for a random time of up to `most`, so that the next step hits any moment.
    pub async fn random_moment(&mut self, most: Duration) {
        let micros = self.random.random_range(0..most.as_micros() as u64);
        tokio::time::sleep(Duration::from_micros(micros)).await;
    }

    /// Shuffles the things and returns them.
    pub fn shuffled<T>(&mut self, mut things: Vec<T>) -> Vec<T> {
        for last in (1..things.len()).rev() {
            let chosen = self.random.random_range(0..=last);
            things.swap(last, chosen);
        }
        things
    }

    /// Ends the load, once it has read every outcome that a crash hid back from the servers.
    pub async fn stop(self) -> WorkloadReport {
        self.cancel.cancel();
        let mut report = WorkloadReport::default();
        for running in self.running {
            report.merge(&running.await.unwrap().unwrap());
        }
        report
    }
}
