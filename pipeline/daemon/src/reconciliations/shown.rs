//! Shows the last whole reconciliation of any process in the metrics of every daemon: one of the schedule, or one that
//! was asked for by hand. It reads the history, since the process that ended the reconciliation may be gone.

use std::time::Duration;

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::metrics as names;
use anabranch_pipeline::ports::History;
use anabranch_pipeline::reconcile::StoreReport;
use anabranch_pipeline::records::Outcome;
use metrics::gauge;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::checkpoint::underway;
use super::schedule::{is_believed, next_at};
use super::{newest, publish_metrics};
use crate::wall_clock;
use crate::wiring::Wiring;

/// Time between two queries for the newest number; only a new number has its report read.
const INTERVAL: Duration = Duration::from_secs(10);

/// Shows the last whole reconciliation until `cancel`; nothing where no target can keep a history.
pub async fn show_last(wiring: Wiring, cancel: CancellationToken) {
    let Ok(history) = wiring.history() else { return };
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seen = None;
    // The process that reconciles sets these gauges.
    [names::RECONCILE_HELD, names::RECONCILE_WINDOWS].iter().for_each(|name| gauge!(*name).increment(0.0));
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let outcome = tokio::select! {
            () = cancel.cancelled() => return,
            outcome = show(&history, &mut seen) => outcome,
        };
        if let Err(fault) = outcome {
            tracing::debug!(%fault, "the last reconciliation cannot be shown");
            show_none();
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            () = show_underway(&wiring) => {}
        }
    }
}

/// Shows the reconciliation that is not over, that of the schedule before one that was asked for in another way, and
/// when the next one is due.
async fn show_underway(wiring: &Wiring) {
    if let Some(at) = wiring.config().reconcile.schedule.as_ref().and_then(next_at) {
        gauge!(names::RECONCILE_NEXT).set(at as f64);
    }
    let Ok((scheduled, by_hand)) = underway(wiring).await else { return };
    let shown = scheduled.or(by_hand);
    gauge!(names::RECONCILE_UNDERWAY).set(f64::from(u8::from(shown.is_some())));
    let rows = |report: &StoreReport| report.rows_source + report.rows_derived;
    let (share, rows) = shown.map_or((0.0, 0), |shown| {
        (shown.share, shown.done.iter().chain(&shown.current).map(rows).sum::<u64>())
    });
    gauge!(names::RECONCILE_SHARE).set(share);
    gauge!(names::RECONCILE_UNDERWAY_ROWS).set(rows as f64);
}

/// Shows the newest whole reconciliation, if there is a newer one than the number `seen`, which it sets.
async fn show(history: &impl History, seen: &mut Option<u64>) -> Result<(), Fault> {
    let number = history.newest_number().await?;
    if number.is_none() {
        show_none();
        return Ok(());
    }
    if number == *seen {
        return Ok(());
    }
    let now_ms = wall_clock::now_ms();
    match newest(history, |reconciliation| {
        reconciliation.is_whole && is_believed(reconciliation.ended_at_ms, now_ms)
    })
    .await?
    {
        Some(reconciliation) => publish_metrics(&reconciliation),
        None => show_none(),
    }
    *seen = number;
    Ok(())
}

/// Gives the series the value 0 if they have none yet: an absent series has no age for an alert.
fn show_none() {
    gauge!(names::RECONCILE_ENDED).increment(0.0);
    for outcome in Outcome::ALL {
        gauge!(names::RECONCILE_VERDICT, "verdict" => outcome.name()).increment(0.0);
    }
}
