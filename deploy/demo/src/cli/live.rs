//! Collects the figures for the screen while workload and probes run.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anabranch_demo::daemon;
use anabranch_demo::verify::{SpotCheck, Verification};
use anabranch_demo::{LiveLag, LiveReport, SourceTable, WorkloadReport};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::screen::{Screen, StoreLag, View};

const REDRAW_INTERVAL: Duration = Duration::from_secs(1);
/// Pause between spot checks: one reads one of a hundred source tables; a count touches all derived tables.
const CHECK_INTERVAL: Duration = Duration::from_secs(3);
/// Limit of one query, so that a stalled server does not keep the screen from querying others.
const QUERY_MAX: Duration = Duration::from_secs(10);

/// Everything that the screen can show.
#[derive(Debug)]
pub struct Watched<'w> {
    pub audits: &'w [Verification],
    pub http: SocketAddr,
    /// The report of each workload.
    pub changes: Vec<LiveReport>,
    /// The lag of each store.
    pub lags: Vec<LiveLag>,
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

/// Shows views until cancelled. A server that does not answer only makes its part of the view older.
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
            let slow = slow.lock().unwrap_or_else(PoisonError::into_inner);
            screen.show(&View {
                elapsed: now - start,
                changes,
                changes_per_second,
                lags: watched.lags.iter().map(StoreLag::of).collect(),
                rows_by_database: slow.rows_by_database.clone(),
                check: slow.check.clone(),
                checks: slow.checks,
                status,
            });
        }
    };
    let slow_checks = async {
        let reached = |audit: &Verification| -> Vec<SourceTable> {
            let topology = &audit.topology;
            topology
                .source_tables()
                .filter(|source_table| topology.is_reachable(*source_table) || source_table.is_history())
                .collect()
        };
        let source_tables: Vec<Vec<SourceTable>> = watched.audits.iter().map(reached).collect();
        for number in 0usize.. {
            for (audit, source_tables) in watched.audits.iter().zip(&source_tables) {
                if let Ok(Ok(rows)) = timeout(QUERY_MAX, audit.count_rows()).await {
                    slow.lock().unwrap_or_else(PoisonError::into_inner).rows_by_database.extend(rows);
                }
                // 7 and the number of tables have no common divisor: neighbours in the list are not checked one after
                // another.
                let source_table = source_tables[number * 7 % source_tables.len()];
                if let Ok(Ok(Some(check))) = timeout(QUERY_MAX, audit.spot_check(source_table)).await {
                    let mut slow = slow.lock().unwrap_or_else(PoisonError::into_inner);
                    slow.check = Some(check);
                    slow.checks += 1;
                }
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    };
    tokio::select! {
        () = fast => {}
        () = slow_checks => {}
    }
}
