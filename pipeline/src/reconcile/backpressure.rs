//! What a reconciliation waits for: everybody else. Reading stops while a server that is read is busy, a replica is
//! behind, or the lanes are, and goes on when it has passed.
//!
//! Looked at once a second, beside the readings. What cannot be asked brakes nothing: the reading itself will fail, or
//! not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anabranch_schemas::lsn::Lsn;
use metrics::gauge;
use tokio::sync::watch;
use tokio::time::Instant;

use super::pace::Pace;
use super::scan::Sides;
use crate::config::reconcile::PressureLimits;
use crate::lag::HeadSamples;
use crate::metrics as names;
use crate::ports::{DerivedRows, Lanes, Pressure, RowSource};

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Tells the readings whether to wait.
#[derive(Debug)]
pub struct Backpressure {
    is_held: watch::Sender<bool>,
}

impl Backpressure {
    /// The backpressure, and the pace of the readings that it holds.
    pub fn of(limits: &PressureLimits) -> (Self, Pace) {
        let (is_held, backpressure) = watch::channel(false);
        (Self { is_held }, Pace { rows_per_second: limits.rows_per_second, backpressure })
    }

    /// Looks until it is dropped.
    pub async fn look<S, D, L>(&self, sides: &Sides<S, D>, lanes: &L, limits: &PressureLimits)
    where
        S: RowSource,
        D: DerivedRows,
        L: Lanes,
    {
        let mut heads: BTreeMap<&str, HeadSamples> = BTreeMap::new();
        let mut told = BTreeSet::new();
        loop {
            let mut why = None;
            for (name, source) in &sides.sources {
                let pressure = source.pressure().await.ok();
                why = why.or(pressure.as_ref().and_then(|pressure| busy(pressure, limits)));
                let unknown = pressure.and_then(|pressure| pressure.lag_unknown);
                let unknown = unknown.filter(|_| sides.replicated.contains(name));
                if let Some(why) = unknown.filter(|_| told.insert(name.as_str())) {
                    let needed =
                        "the grants of deploy/grants: SLAVE MONITOR on MariaDB, REPLICATION CLIENT on MySQL";
                    tracing::warn!(
                        source = name,
                        why,
                        needed,
                        "how far the replica is behind is not known: reconcile.replica_lag_seconds holds nothing"
                    );
                }
                let head = heads.entry(name).or_default();
                if let Some(primary) = sides.primaries.get(name) {
                    why = why.or(behind(&**primary, lanes, name, head, limits).await);
                }
            }
            let is_held = why.is_some();
            let was_held = self.is_held.send_replace(is_held);
            gauge!(names::RECONCILE_HELD).set(f64::from(u8::from(is_held)));
            if let (Some(why), false) = (&why, was_held) {
                tracing::info!(why, "the reconciliation waits");
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Drop for Backpressure {
    fn drop(&mut self) {
        gauge!(names::RECONCILE_HELD).set(0.0);
    }
}

fn busy(pressure: &Pressure, limits: &PressureLimits) -> Option<&'static str> {
    match () {
        () if pressure.running_threads > limits.running_threads.get() => Some("a source is busy"),
        () if pressure.replica_lag.is_some_and(|lag| lag > limits.replica_lag) => Some("a replica is behind"),
        () => None,
    }
}

/// Whether a head that was seen so long ago is not passed yet.
async fn behind(
    source: &impl RowSource,
    lanes: &impl Lanes,
    name: &str,
    head: &mut HeadSamples,
    limits: &PressureLimits,
) -> Option<&'static str> {
    let progress = lanes.progress(name).await.ok()?;
    let slowest = progress.iter().map(|(_, progress)| progress.position).min()?;
    // One that has not begun, or reads another server, is told by the recheck.
    if slowest == Lsn::ZERO {
        return None;
    }
    let now = Instant::now().into_std();
    head.observe(source.pressure().await.ok()?.head.in_epoch(slowest.epoch()).ok()?, now);
    head.forget(slowest);
    (head.lag(slowest, now) > limits.lane_lag).then_some("lanes are behind")
}
