//! The last whole reconciliation in the metrics of every daemon, by any process: one of the schedule in any
//! process, or one that was asked for by hand. The history is asked, since the process that ended the reconciliation
//! may be gone.

use std::time::Duration;

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::metrics as names;
use anabranch_pipeline::ports::History;
use anabranch_pipeline::records::Outcome;
use metrics::gauge;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::schedule::is_believed;
use super::{newest, publish_metrics};
use crate::wall_clock;
use crate::wiring::Wiring;

/// Reconciliations are hours apart. A question asks for one number; only a new number has its report read.
const INTERVAL: Duration = Duration::from_secs(10);

/// Shows the last whole reconciliation until `cancel`; nothing where no target can keep a history.
pub async fn show_last(wiring: Wiring, cancel: CancellationToken) {
    let Ok(history) = wiring.history() else { return };
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seen = None;
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
    }
}

/// `seen`: number of the newest reconciliation that was looked at.
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

/// Gives the series a value, 0, if they have none yet: what is absent has no age that could be alerted on.
fn show_none() {
    gauge!(names::RECONCILE_ENDED).increment(0.0);
    for outcome in Outcome::ALL {
        gauge!(names::RECONCILE_VERDICT, "verdict" => outcome.name()).increment(0.0);
    }
}
