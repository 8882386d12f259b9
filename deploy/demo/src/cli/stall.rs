//! Stalls one server for a while under load and measures the lag of each store before, during and after.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anabranch_demo::{LagSummary, LiveLag, Result};
use anabranch_stack::{Server, Stack};
use serde::Serialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::screen::say;

/// Time before the stall: enough for a thousand probes.
const BEFORE: Duration = Duration::from_secs(20);
/// Time after the stall: the stalled store recovers, and a thousand probes follow.
const AFTER: Duration = Duration::from_secs(40);

/// The requested stall.
#[derive(Debug, Clone)]
pub struct Stall {
    pub server: String,
    pub time: Duration,
}

/// A part of the run. A probe counts in the phase in which it was seen.
#[derive(Debug, Clone, Serialize)]
pub struct Phase {
    pub name: &'static str,
    pub seconds: f64,
    /// Lags by store.
    pub lags: BTreeMap<&'static str, LagSummary>,
    /// Seconds for which the oldest probe had waited at the end of the phase, by store.
    pub waiting_seconds: BTreeMap<&'static str, f64>,
}

impl Stall {
    /// Returns the time of the whole run.
    pub fn run_time(&self) -> Duration {
        BEFORE + self.time + AFTER
    }

    /// Freezes the server after [`BEFORE`], lets it continue after `time`, and measures until `cancel`.
    pub async fn run(
        &self,
        stack: &Stack,
        lags: &[LiveLag],
        cancel: &CancellationToken,
    ) -> Result<Vec<Phase>> {
        let server = stack.server(&self.server)?;
        let mut phases = vec![Phase::measure("before", BEFORE, lags, cancel).await];
        if cancel.is_cancelled() {
            return Ok(phases);
        }
        say(&format!("{} is stopped (SIGSTOP) for {} s", self.server, self.time.as_secs()));
        let frozen = Arc::clone(&server);
        tokio::task::spawn_blocking(move || frozen.pause()).await??;
        phases.push(Phase::measure("during", self.time, lags, cancel).await);
        tokio::task::spawn_blocking(move || Server::resume(&server)).await??;
        say(&format!("{} goes on", self.server));
        phases.push(Phase::measure("after", Duration::MAX, lags, cancel).await);
        Ok(phases)
    }
}

impl Phase {
    async fn measure(
        name: &'static str,
        time: Duration,
        lags: &[LiveLag],
        cancel: &CancellationToken,
    ) -> Self {
        let start = Instant::now();
        lags.iter().for_each(|lag| _ = lag.take_phase());
        tokio::select! {
            () = cancel.cancelled() => {}
            () = tokio::time::sleep(time) => {}
        }
        let waiting = |lag: &LiveLag| (lag.store, lag.outstanding().1.as_secs_f64());
        Self {
            name,
            seconds: start.elapsed().as_secs_f64(),
            lags: lags.iter().map(|lag| (lag.store, lag.take_phase())).collect(),
            waiting_seconds: lags.iter().map(waiting).collect(),
        }
    }

    /// Returns a table for people: one line for each store and phase.
    pub fn table(phases: &[Self]) -> String {
        let mut table = format!(
            "{:<12} {:<8} {:>8} {:>10} {:>10} {:>10} {:>12}",
            "store", "phase", "probes", "p50 ms", "p99 ms", "max ms", "waiting s"
        );
        for store in phases.first().into_iter().flat_map(|phase| phase.lags.keys()) {
            for phase in phases {
                let LagSummary { probes, p50_ms, p99_ms, max_ms } = phase.lags[store];
                let (name, waiting) = (phase.name, phase.waiting_seconds[store]);
                table.push_str(&format!(
                    "\n{store:<12} {name:<8} {probes:>8} {p50_ms:>10.1} {p99_ms:>10.1} {max_ms:>10.1} {waiting:>12.1}"
                ));
            }
        }
        table
    }
}
