//! A reconciliation that a command or an operator asks for, and sentences about it.

use anabranch_pipeline::config::reconcile::Mode;
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::History;
use tokio_util::sync::CancellationToken;

use crate::reconciliations::{self, ReconcileOrder, ReconcilePlan, ReconciliationEnd};
use crate::wiring::Wiring;

/// Returns what a reconciliation would do.
pub fn plan_lines(plan: &ReconcilePlan) -> Vec<String> {
    let drift = match plan.mode {
        Mode::Report => "reports what differs",
        Mode::Repair => "has lanes repair what differs",
    };
    let mut lines = vec![format!("the reconciliation compares {}, and {drift}", plan.stores.join(", "))];
    let held = "a process works on a reconciliation now; this one is refused unless that ends within 10 s";
    match plan.is_lease_held {
        true => lines.push(held.to_owned()),
        false => {
            lines.extend(plan.continued.iter().map(|id| format!("it continues {id}, which was cut off")))
        }
    }
    lines
}

/// Returns the newest reconciliation with its verdict, for a record; `None` when the history cannot be read.
pub async fn newest_reconciliation(wiring: &Wiring) -> Option<String> {
    let newest = wiring.history().ok()?.newest(1).await.ok()?;
    Some(newest.first().map_or_else(
        || "no reconciliation before".to_owned(),
        |newest| format!("the newest reconciliation is {}: {}", newest.id, newest.verdict.name()),
    ))
}

/// Returns the record of the end: the verdict, or why there is none.
pub fn reconciliation_end(ended: &Result<ReconciliationEnd, Fault>) -> Result<String, String> {
    match ended {
        Ok(ReconciliationEnd::Over(report)) => {
            Ok(format!("reconciliation {}: {}", report.id, report.verdict.name()))
        }
        Ok(ReconciliationEnd::Paused { id, .. }) => {
            Err(format!("reconciliation {id} is cut off; the same command or action continues it"))
        }
        Err(fault) => Err(fault.to_string()),
    }
}

/// Reconciles until the end, or until Ctrl-C.
pub async fn reconcile_until_interrupt(
    wiring: &Wiring,
    order: &ReconcileOrder,
    abandons: bool,
    asked_by: &str,
) -> Result<ReconciliationEnd, Fault> {
    let cancel = CancellationToken::new();
    let interrupted = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        cancel.cancel();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = reconciliations::run_now(wiring, order, abandons, asked_by, &cancel) => ended,
        () = interrupted => unreachable!("it never ends"),
    }
}
