//! Collects what the screen shows while workload and probes run.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anabranch_demo::daemon;
use anabranch_demo::verify::{Audit, SpotCheck};
use anabranch_demo::{LiveLag, LiveReport, Place, WorkloadReport};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::screen::{Screen, View};

const REDRAW_INTERVAL: Duration = Duration::from_secs(1);
/// A spot check reads one of a hundred source tables; a count touches all derived tables.
const CHECK_INTERVAL: Duration = Duration::from_secs(3);

/// Everything that can be looked at.
#[derive(Debug)]
pub struct Watched<'w> {
    pub audits: &'w [Audit],
    pub http: SocketAddr,
    /// Of each workload.
    pub changes: Vec<LiveReport>,
    pub lag: LiveLag,
}

impl Watched<'_> {
    fn changes(&self) -> WorkloadReport {
        let mut sum = WorkloadReport::default();
        self.changes.iter().for_each(|report| sum.merge(&report.snapshot()));
        sum
    }
}

#[derive(Debug, Default)]
struct Slow {
    rows_by_database: BTreeMap<String, u64>,
    check: Option<SpotCheck>,
    checks: u64,
}

/// Shows views until cancelled. Servers that do not answer only make the view older.
pub async fn show(watched: &Watched<'_>, screen: &mut Screen, cancel: &CancellationToken) {
    let slow = Mutex::new(Slow::default());
    let fast = async {
        let start = Instant::now();
        let before_start = watched.changes().changes;
        let mut before = (start, before_start);
        let mut ticks = tokio::time::interval(REDRAW_INTERVAL);
        ticks.tick().await;
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let status = daemon::status(watched.http).await;
            let now = Instant::now();
            let changes = watched.changes();
            let seconds = (now - before.0).as_secs_f64();
            let changes_per_second = (changes.changes - before.1) as f64 / seconds.max(0.001);
            before = (now, changes.changes);
            let (lag, recent_lag) = watched.lag.snapshot();
            let (waiting_probes, oldest_probe) = watched.lag.outstanding();
            let slow = slow.lock().unwrap_or_else(PoisonError::into_inner);
            screen.show(&View {
                elapsed: now - start,
                changes,
                changes_per_second,
                lag,
                recent_lag,
                waiting_probes,
                oldest_probe,
                rows_by_database: slow.rows_by_database.clone(),
                check: slow.check.clone(),
                checks: slow.checks,
                status,
            });
        }
    };
    let looks = async {
        let reached = |audit: &Audit| -> Vec<Place> {
            let topology = &audit.topology;
            topology.places().filter(|place| topology.is_reachable(*place) || place.is_history()).collect()
        };
        let places: Vec<Vec<Place>> = watched.audits.iter().map(reached).collect();
        for number in 0usize.. {
            let mut rows = BTreeMap::new();
            for (audit, places) in watched.audits.iter().zip(&places) {
                rows.extend(audit.count_rows().await.unwrap_or_default());
                // 7 and the number of tables have no common divisor: neighbours in the list are not checked one
                // after another.
                let place = places[number * 7 % places.len()];
                if let Ok(Some(check)) = audit.spot_check(place).await {
                    let mut slow = slow.lock().unwrap_or_else(PoisonError::into_inner);
                    slow.check = Some(check);
                    slow.checks += 1;
                }
            }
            if !rows.is_empty() {
                slow.lock().unwrap_or_else(PoisonError::into_inner).rows_by_database = rows;
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    };
    tokio::select! {
        () = fast => {}
        () = looks => {}
    }
}
