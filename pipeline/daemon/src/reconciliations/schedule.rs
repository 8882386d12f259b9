//! Begins reconciliations in the daemon, by a pattern of cron in a time zone, in one process of all.
//!
//! A reconciliation that is not finished when its window ends is paused, and continues in the next window. From the
//! third window on that is logged as an error, since rows are compared less often than the operator expects. A
//! reconciliation that was due while no daemon ran begins when one does, if its window is still open. Two kinds of past
//! ones keep none from beginning: one by hand that left something out, and one that ended later than now, by a wrong
//! clock.

use std::time::Duration;

use anabranch_pipeline::config::Schedule;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::supervise::{Ready, Supervisor, TaskHandle, acquired, running, while_held};
use jiff::{Timestamp, Zoned};
use tokio_util::sync::CancellationToken;

use super::{
    EndSignals, ReconcileOrder, ReconciliationEnd, SCHEDULE, SCHEDULED, newest, publish_metrics, run,
};
use crate::wall_clock;
use crate::wiring::Wiring;

/// Time between two reads of the wall clock, which may be set while a reconciliation is waited for.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Difference between clocks of processes that work on reconciliations, at most.
const CLOCK_SKEW_MAX_MS: u64 = 60_000;
/// Windows of one reconciliation from which on its window counts as too short.
const WINDOWS_MAX: u32 = 3;

/// Starts the task that begins reconciliations, if there is a schedule.
pub fn spawn_reconciliations(supervisor: &mut Supervisor, wiring: &Wiring) {
    let Some(schedule) = wiring.config().reconcile.schedule.clone() else { return };
    let context = (wiring.clone(), schedule);
    supervisor.spawn_with(SCHEDULED, context, |(wiring, schedule), handle, cancel| async move {
        reconciliations(&wiring, &schedule, &handle, &cancel).await
    });
}

async fn reconciliations(
    wiring: &Wiring,
    schedule: &Schedule,
    handle: &TaskHandle,
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    handle.waits_for("the history of reconciliations");
    let work = async |ready: Ready| {
        let mut ended_at_ms = last(wiring).await?;
        ready.report();
        loop {
            // The lease is held for a reconciliation only, so that one can be asked for by hand meanwhile.
            if open_for(schedule, ended_at_ms, wall_clock::now_ms())?.is_some() {
                ended_at_ms = with_lease(wiring, schedule, ended_at_ms, cancel).await?;
            }
            tokio::select! {
                () = cancel.cancelled() => return Ok(()),
                () = tokio::time::sleep(CHECK_INTERVAL.min(next_in(schedule))) => handle.well(),
            }
        }
    };
    running(handle, work).await
}

/// Shows the last whole reconciliation of all processes; returns when it ended, 0 if none or in the future.
async fn last(wiring: &Wiring) -> Result<u64, Fault> {
    let Some(report) = newest(&wiring.history()?, |report| report.is_whole).await? else { return Ok(0) };
    if is_believed(report.ended_at_ms, wall_clock::now_ms()) {
        publish_metrics(&report);
        return Ok(report.ended_at_ms);
    }
    tracing::error!(
        reconciliation = report.id,
        ended_at_ms = report.ended_at_ms,
        "the last reconciliation has an end in the future: the clock of its machine or of this one is wrong; the next \
         one does not wait for that time"
    );
    Ok(0)
}

/// Returns whether a reconciliation can have ended then; clocks of machines may differ a little.
pub fn is_believed(ended_at_ms: u64, now_ms: u64) -> bool {
    ended_at_ms <= now_ms.saturating_add(CLOCK_SKEW_MAX_MS)
}

/// Does a reconciliation, unless another process did it meanwhile; returns when it, or its window, ended.
async fn with_lease(
    wiring: &Wiring,
    schedule: &Schedule,
    ended_at_ms: u64,
    cancel: &CancellationToken,
) -> Result<u64, Fault> {
    let log = wiring.log().await?;
    let Some(lease) = acquired(log, SCHEDULED, cancel).await? else { return Ok(ended_at_ms) };
    let ended_at_ms = last(wiring).await?.max(ended_at_ms);
    while_held(lease, in_window(wiring, schedule, ended_at_ms, cancel)).await
}

async fn in_window(
    wiring: &Wiring,
    schedule: &Schedule,
    ended_at_ms: u64,
    cancel: &CancellationToken,
) -> Result<u64, Fault> {
    let open = open_for(schedule, ended_at_ms, wall_clock::now_ms())?;
    let Some(ScheduleWindow { began_at_ms, left }) = open else { return Ok(ended_at_ms) };
    let window = cancel.child_token();
    let closing = async {
        tokio::time::sleep(left).await;
        window.cancel();
        std::future::pending::<()>().await;
    };
    let order = ReconcileOrder::default();
    let reconciliation = tokio::select! {
        reconciliation = run(wiring, &order, SCHEDULE, EndSignals { cancel, window: Some((began_at_ms, &window)) }) => reconciliation?,
        () = closing => unreachable!("it never ends"),
    };
    match reconciliation {
        ReconciliationEnd::Over(report) => {
            tracing::info!(
                reconciliation = report.id,
                verdict = report.verdict.name(),
                "the reconciliation is over"
            );
            Ok(report.ended_at_ms)
        }
        ReconciliationEnd::Paused { id, windows } => {
            match windows {
                _ if cancel.is_cancelled() => {}
                0..WINDOWS_MAX => {
                    tracing::warn!(
                        reconciliation = id,
                        windows,
                        "the window has ended: the reconciliation continues in the next one"
                    );
                }
                _ => {
                    let needed =
                        "a longer window (reconcile.window_hours), or a higher reconcile.rows_per_second";
                    tracing::error!(
                        reconciliation = id,
                        windows,
                        needed,
                        "the window is too short for a reconciliation"
                    );
                }
            }
            // This window has no more work.
            Ok(wall_clock::now_ms())
        }
    }
}

/// An open window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ScheduleWindow {
    began_at_ms: u64,
    left: Duration,
}

/// Returns the time until the next reconciliation is due.
fn next_in(schedule: &Schedule) -> Duration {
    let now = Zoned::now().with_time_zone(schedule.time_zone.clone());
    let due = schedule.cron.find_next_occurrence(&now, false).ok();
    due.and_then(|due: Zoned| Duration::try_from(now.duration_until(&due)).ok()).unwrap_or(CHECK_INTERVAL)
}

/// Returns when the next reconciliation is due, seconds since the Unix epoch; `None` if none will be.
pub fn next_at(schedule: &Schedule) -> Option<i64> {
    let now = Zoned::now().with_time_zone(schedule.time_zone.clone());
    let due: Zoned = schedule.cron.find_next_occurrence(&now, false).ok()?;
    Some(due.timestamp().as_second())
}

/// Returns the open window in which a reconciliation is due that has not ended yet.
fn open_for(schedule: &Schedule, ended_at_ms: u64, now_ms: u64) -> Result<Option<ScheduleWindow>, Fault> {
    let broken = |error: String| Fault::new(Code::Internal, "reconcile.schedule", error);
    let now = Timestamp::from_millisecond(i64::try_from(now_ms).unwrap_or(i64::MAX));
    let now = now.map_err(|error| broken(error.to_string()))?.to_zoned(schedule.time_zone.clone());
    // A pattern of a single day may have no occurrence before.
    let Ok(due) = schedule.cron.find_previous_occurrence(&now, true) else { return Ok(None) };
    let due: Zoned = due;
    let due_ms = u64::try_from(due.timestamp().as_millisecond()).unwrap_or(0);
    let closes_ms = due_ms.saturating_add(u64::try_from(schedule.window.as_millis()).unwrap_or(u64::MAX));
    let is_open = ended_at_ms < due_ms && now_ms < closes_ms;
    let left = Duration::from_millis(closes_ms.saturating_sub(now_ms));
    Ok(is_open.then_some(ScheduleWindow { began_at_ms: due_ms, left }))
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use croner::Cron;
    use jiff::tz::TimeZone;

    use super::*;

    fn schedule(cron: &str, zone: &str, hours: u64) -> Schedule {
        let (cron, time_zone) = (Cron::from_str(cron).unwrap(), TimeZone::get(zone).unwrap());
        Schedule { cron, time_zone, window: Duration::from_secs(hours * 3600) }
    }

    fn ms(time: &str) -> u64 {
        time.parse::<Timestamp>().unwrap().as_millisecond() as u64
    }

    #[test]
    fn a_reconciliation_is_due_in_its_window_of_its_time_zone_and_once() {
        let schedule = schedule("30 2 * * *", "Asia/Shanghai", 4);
        let open = |ended: &str, now: &str| {
            open_for(&schedule, ms(ended), ms(now)).unwrap().map(|window| window.left.as_secs())
        };
        // Half past two in Shanghai is 18:30 UTC of the day before.
        assert_eq!(open("2026-11-20T19:00:00Z", "2026-11-21T18:29:59Z"), None);
        assert_eq!(open("2026-11-20T19:00:00Z", "2026-11-21T18:30:00Z"), Some(4 * 3600));
        assert_eq!(open("2026-11-20T19:00:00Z", "2026-11-21T21:30:00Z"), Some(3600));
        assert_eq!(open("2026-11-20T19:00:00Z", "2026-11-21T22:30:00Z"), None);
        assert_eq!(open("2026-11-21T18:45:00Z", "2026-11-21T19:30:00Z"), None);
    }

    #[test]
    fn an_end_in_the_future_is_not_believed() {
        let now = ms("2026-11-21T18:30:00Z");
        assert!(is_believed(ms("2026-11-20T19:00:00Z"), now) && is_believed(now, now));
        assert!(
            is_believed(now + CLOCK_SKEW_MAX_MS, now),
            "clocks of several machines are never quite the same"
        );
        assert!(!is_believed(now + CLOCK_SKEW_MAX_MS + 1, now) && !is_believed(u64::MAX, now));
    }

    #[test]
    fn the_hour_that_summer_time_skips_has_its_reconciliation_all_the_same() {
        let schedule = schedule("30 2 * * *", "Europe/Berlin", 20);
        // 2026-03-29 has no half past two in Berlin.
        let open = open_for(&schedule, ms("2026-03-28T02:00:00Z"), ms("2026-03-29T03:00:00Z"));
        assert!(open.unwrap().is_some());
    }
}
