//! The pause of a reconciliation: its reads stop while a server that they read is busy, a replica lags or a lane lags,
//! and go on afterwards.
//!
//! The backpressure polls once a second, beside the reads. A server that does not answer pauses nothing: the read
//! itself fails, or succeeds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anabranch_schemas::lsn::Lsn;
use metrics::gauge;
use tokio::sync::watch;
use tokio::time::Instant;

use super::scan::Sides;
use crate::config::reconcile::PressureLimits;
use crate::lag::HeadSamples;
use crate::metrics as names;
use crate::ports::{DerivedRows, Lanes, RowSource, SourcePressure};
use crate::throttle::Pace;

/// Time between two polls.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Announces to the reads of one reconciliation whether they are to pause.
#[derive(Debug)]
pub struct Backpressure {
    is_held: watch::Sender<bool>,
}

impl Backpressure {
    /// Returns the backpressure and the pace of the reads that it pauses.
    pub fn of(limits: &PressureLimits) -> (Self, Pace) {
        let (is_held, backpressure) = watch::channel(false);
        (Self { is_held }, Pace { rows_per_second: limits.rows_per_second, backpressure })
    }

    /// Polls sources, replicas and lanes until the caller drops the future.
    pub async fn watch<S, D, L>(&self, sides: &Sides<S, D>, lanes: &L, limits: &PressureLimits)
    where
        S: RowSource,
        D: DerivedRows,
        L: Lanes,
    {
        let mut heads: BTreeMap<&str, HeadSamples> = BTreeMap::new();
        let mut reported = BTreeSet::new();
        loop {
            let mut why = None;
            for (name, source) in &sides.sources {
                let pressure = source.pressure().await.ok();
                why = why.or(pressure.as_ref().and_then(|pressure| busy(pressure, limits)));
                let unknown = pressure.and_then(|pressure| pressure.lag_unknown);
                let unknown = unknown.filter(|_| sides.replicated.contains(name));
                if let Some(why) = unknown.filter(|_| reported.insert(name.as_str())) {
                    let needed =
                        "the grants of deploy/grants: SLAVE MONITOR on MariaDB, REPLICATION CLIENT on MySQL";
                    tracing::warn!(
                        source = name,
                        why,
                        needed,
                        "the lag of the replica is not known: reconcile.replica_lag_seconds has no effect"
                    );
                }
                let head = heads.entry(name).or_default();
                if let Some(primary) = sides.primaries.get(name) {
                    why = why.or(lane_lag(&**primary, lanes, name, head, limits).await);
                }
            }
            let is_held = why.is_some();
            let was_held = self.is_held.send_replace(is_held);
            gauge!(names::RECONCILE_HELD).set(f64::from(u8::from(is_held)));
            if let (Some(why), false) = (&why, was_held) {
                tracing::info!(why, "the reconciliation pauses");
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
}

impl Drop for Backpressure {
    fn drop(&mut self) {
        gauge!(names::RECONCILE_HELD).set(0.0);
    }
}

fn busy(pressure: &SourcePressure, limits: &PressureLimits) -> Option<&'static str> {
    match () {
        () if pressure.running_threads > limits.running_threads.get() => Some("a source is busy"),
        () if pressure.replica_lag.is_some_and(|lag| lag > limits.replica_lag) => Some("a replica lags"),
        () => None,
    }
}

/// Returns a reason while the slowest lane has not passed an end of the binlog that was seen longer ago than
/// `lane_lag`.
async fn lane_lag(
    source: &impl RowSource,
    lanes: &impl Lanes,
    name: &str,
    head: &mut HeadSamples,
    limits: &PressureLimits,
) -> Option<&'static str> {
    let progress = lanes.progress(name).await.ok()?;
    let slowest = progress.iter().map(|(_, progress)| progress.position).min()?;
    // The recheck reports a lane that has not begun or reads another server.
    if slowest == Lsn::ZERO {
        return None;
    }
    let now = Instant::now().into_std();
    head.observe(source.pressure().await.ok()?.head.in_epoch(slowest.epoch()).ok()?, now);
    head.forget(slowest);
    (head.lag(slowest, now) > limits.lane_lag).then_some("lanes lag")
}
