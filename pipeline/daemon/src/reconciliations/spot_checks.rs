//! Compares some changed keys between reconciliations, in one process for each source, and shows the result.
//!
//! No other task depends on it: each failure is logged, and the checks begin again after a pause.

use std::sync::Arc;
use std::time::Duration;

use anabranch_pipeline::composition::ProjectionLanes;
use anabranch_pipeline::config::SourceConfig;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::metrics as names;
use anabranch_pipeline::reconcile::{self, CheckedStore, LaneWait, SpotCheckEvent, SpotChecks, Verdict};
use anabranch_pipeline::supervise::{Ready, Supervisor, TaskHandle, under_lease};
use metrics::counter;
use tokio_util::sync::CancellationToken;

use super::stores::{sides, standstill};
use crate::wiring::Wiring;

/// Time without a move after which a lane is late, and with it the rows that it should write.
const LATE: Duration = Duration::from_secs(10);
/// Pause after a failed attempt.
const PAUSE: Duration = Duration::from_secs(10);

/// Takes store and source of a row that was still wrong at the last check after a change.
pub type OnDrift = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// Starts the spot checks of each source, unless it is switched off.
pub fn spawn_spot_checks(supervisor: &mut Supervisor, wiring: &Wiring, on_drift: &OnDrift) {
    let config = wiring.config();
    if config.reconcile.spot_checks.keys_a_second == 0 {
        return;
    }
    for source in &config.sources {
        let name = format!("spot-checks/{}", source.name);
        let context = (wiring.clone(), on_drift.clone(), source.clone());
        supervisor.spawn_with(&name, context, |(wiring, on_drift, source), handle, cancel| async move {
            keep((&wiring, &on_drift), &source, &handle, &cancel).await;
            Ok(())
        });
    }
}

/// Checks until `cancel`. While it holds its lease the task counts as running whatever fails, because readiness asks
/// for the daemon's work.
async fn keep(
    context: (&Wiring, &OnDrift),
    source: &SourceConfig,
    handle: &TaskHandle,
    cancel: &CancellationToken,
) {
    while !cancel.is_cancelled() {
        if let Err(fault) = attempt(context, source, handle, cancel).await {
            let (task, code) = (handle.name().to_owned(), fault.code().as_str());
            counter!(names::FAULTS, "task" => task, "code" => code).increment(1);
            tracing::info!(source = source.name, %fault, "the spot checks begin again");
            if fault.code() == Code::LeaseLost {
                handle.waiting();
            }
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

async fn attempt(
    context: (&Wiring, &OnDrift),
    source: &SourceConfig,
    handle: &TaskHandle,
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    let log = context.0.log().await?;
    let work = async |ready: Ready| {
        ready.report();
        tokio::select! {
            () = cancel.cancelled() => Ok(()),
            ended = spot_checks(context, source) => ended,
        }
    };
    under_lease(log, handle, cancel, work).await
}

async fn spot_checks((wiring, on_drift): (&Wiring, &OnDrift), source: &SourceConfig) -> Result<(), Fault> {
    let config = wiring.config();
    let mut stores = Vec::new();
    for projection in &config.projections {
        let name = projection.name.clone();
        if source.entities.contains(&wiring.projection(&name)?.entity()) {
            let lanes = ProjectionLanes { connectors: wiring, projection: &projection.name };
            stores.push(CheckedStore { sides: sides(wiring, &name)?, lanes, name });
        }
    }
    let spot_checks = &config.reconcile.spot_checks;
    begin_counters(&source.name, &stores, &spot_checks.after);
    let spot_checks = SpotChecks {
        source: &source.name,
        log: wiring.log().await?,
        stores: &stores,
        config: spot_checks,
        lane_wait: LaneWait::short(standstill(config, LATE)),
        on_event: &|event| publish(wiring, on_drift, &source.name, &event),
    };
    spot_checks.run().await
}

/// Begins the counters of failures at 0, so that their increase can be alerted on.
fn begin_counters<S, D, L>(source: &str, stores: &[CheckedStore<S, D, L>], after: &[Duration]) {
    counter!(names::SPOT_CHECK_SKIPPED, "source" => source.to_owned()).increment(0);
    for store in stores {
        for age in after {
            counter!(names::SPOT_CHECK_DRIFT, &labels(&store.name, source, *age, after)).increment(0);
        }
    }
}

/// Returns the labels of a check `after` a change. `check` names the last of the configured checks, so that an alert
/// can choose it whatever `reconcile.spot_check_after_seconds` says.
fn labels(store: &str, source: &str, after: Duration, all: &[Duration]) -> [(&'static str, String); 4] {
    let check = if all.last() == Some(&after) { "last" } else { "earlier" };
    [
        ("store", store.to_owned()),
        ("source", source.to_owned()),
        ("check", check.to_owned()),
        ("after", after.as_secs().to_string()),
    ]
}

fn publish(wiring: &Wiring, on_drift: &OnDrift, source: &str, event: &SpotCheckEvent<'_>) {
    let &SpotCheckEvent::Checked { store, after, table, key, verdict } = event else {
        if let SpotCheckEvent::Skipped(changes) = event {
            counter!(names::SPOT_CHECK_SKIPPED, "source" => source.to_owned()).increment(*changes);
        }
        return;
    };
    let name = if verdict == Verdict::InFlight { "equal" } else { verdict.name() };
    let all = &wiring.config().reconcile.spot_checks.after;
    let labels = labels(store, source, after, all);
    let of_verdict = labels.iter().cloned().chain([("verdict", name.to_owned())]);
    counter!(names::SPOT_CHECK_KEYS, &of_verdict.collect::<Vec<_>>()).increment(1);
    counter!(names::SPOT_CHECK_DRIFT, &labels).increment(u64::from(verdict.is_drift()));
    if verdict.is_drift() && all.last() == Some(&after) {
        on_drift(store, source);
        let key_hash = reconcile::hash_key(table, key, wiring.config().reconcile.signing_key.as_ref());
        tracing::warn!(
            store,
            source = table.source,
            table = table.name(),
            key_hash,
            verdict = name,
            after_seconds = after.as_secs(),
            "a changed row is still wrong in the store; a reconciliation repairs it: anabranch reconcile --now"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_check_is_known_by_its_label_whatever_the_configured_ages() {
        for ages in [[60, 300, 600].as_slice(), &[60, 300], &[7]] {
            let ages: Vec<Duration> = ages.iter().copied().map(Duration::from_secs).collect();
            let of = |age| labels("birthday", "a", age, &ages)[2].1.clone();
            let last: Vec<bool> = ages.iter().map(|age| of(*age) == "last").collect();
            let expected: Vec<bool> = (1..=ages.len()).map(|number| number == ages.len()).collect();
            assert_eq!(last, expected, "{ages:?}");
        }
    }
}
