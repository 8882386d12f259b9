//! The task of a dispatcher, one for each programme: a pass every few seconds, then a day view.
//!
//! A lease only saves work: passes of several processes, late ones too, do no harm.

use std::slice::from_ref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch_coupons::dispatching::{DayPassed, count};
use anabranch_coupons::ports::{Clock, Ledger};
use anabranch_coupons::programme::Programme;
use anabranch_coupons::records::{DayRun, RunKey};
use anabranch_coupons::report::Report;
use anabranch_coupons::resending::Resends;
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::supervise::{Ready, Supervisor, TaskHandle, under_lease};
use jiff::Timestamp;
use jiff::civil::Date;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Process;
use super::assembly::{self, DayDispatcher};
use super::copies::PublishedRounds;
use super::day_view::{self, DayView};
use super::lane_lag::LaneLag;
use super::mending::SeenRestored;
use super::reports::ReportChain;
use crate::wiring::Wiring;

/// Pause between two passes that have little to do.
const PAUSE_MIN: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// Length of a pause in times of its pass: a pass over a large cohort takes long, and granters need the ledger.
const PAUSE_FACTOR: u32 = 9;
/// Pause after a pass that had a fault, at most: it may have taken long because a server did not answer.
const FAULT_PAUSE_MAX: Duration = Duration::from_secs(60);
/// Time that a pass waits for queued messages, at most: it publishes again the messages that the ledger lacks.
const QUEUE_WAIT_MAX: Duration = Duration::from_secs(60);

/// Returns the name of the task that dispatches a programme.
pub fn dispatcher_task(programme: &str) -> String {
    format!("dispatcher/{programme}")
}

/// Starts a dispatcher for each programme.
pub fn spawn_dispatchers(supervisor: &mut Supervisor, wiring: &Wiring, lane_lag: &LaneLag) {
    for programme in super::programmes(wiring.config()).unwrap_or_default() {
        let kept = Kept {
            published: PublishedRounds::new(from_ref(&programme)),
            resends: Arc::default(),
            next_pass: Arc::default(),
            seen_restored: SeenRestored::default(),
        };
        let name = dispatcher_task(&programme.name);
        let context = (wiring.clone(), lane_lag.clone(), programme, kept);
        supervisor.spawn_with(
            &name,
            context,
            |(wiring, lane_lag, programme, kept), handle, cancel| async move {
                dispatch((&wiring, &lane_lag), (&programme, &kept), &handle, &cancel).await
            },
        );
    }
}

/// State that outlives an attempt of the task. Without it each attempt would publish every lacking member again, and
/// read the whole ledger without a pause.
#[derive(Clone)]
struct Kept {
    published: PublishedRounds,
    resends: Arc<Resends>,
    /// Time of the pass that follows a pass with a fault.
    next_pass: Arc<Mutex<Option<Instant>>>,
    seen_restored: SeenRestored,
}

impl Kept {
    /// Records that a pass which took this long had a fault.
    fn failed(&self, programme: &Programme, pass_took: Duration) {
        let pause = pause_after_fault(programme, pass_took, Process.now());
        *self.next_pass.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + pause);
    }

    /// Waits for the end of the pause after a pass with a fault.
    async fn pause(&self, dispatcher: &DayDispatcher) {
        let next_pass = self.next_pass.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(at) = next_pass {
            tokio::time::sleep_until(at).await;
            // A queue that is worked off needs its messages again.
            _ = dispatcher.queue.pending().await;
        }
    }
}

/// Returns the pause after a pass that had a fault: until the next time of the programme at most.
fn pause_after_fault(programme: &Programme, pass_took: Duration, now: Timestamp) -> Duration {
    let pause = (pass_took * PAUSE_FACTOR).clamp(PAUSE_MIN, FAULT_PAUSE_MAX);
    let begins = next_time(programme, now);
    let begins = begins.and_then(|begins| Duration::try_from(begins.duration_since(now)).ok());
    begins.map_or(pause, |begins| begins.min(pause))
}

async fn dispatch(
    (wiring, lane_lag): (&Wiring, &LaneLag),
    (programme, kept): (&Programme, &Kept),
    handle: &TaskHandle,
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    let log = wiring.log().await?;
    let work = async |ready: Ready| {
        handle.waits_for("the ledger of coupons");
        let dispatcher = assembly::dispatcher(wiring, lane_lag, &kept.published, &kept.resends).await?;
        let reports = ReportChain::new(wiring);
        handle.waits_for("the end of the pause after a pass with a fault");
        tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            () = kept.pause(&dispatcher) => {}
        }
        handle.waits_for("the ledger of coupons");
        loop {
            let began = Instant::now();
            let pass = tokio::select! {
                () = cancel.cancelled() => return Ok(()),
                pass = Box::pin(pass(wiring, &dispatcher, programme, &reports)) => pass,
            };
            let mended = tokio::select! {
                () = cancel.cancelled() => return Ok(()),
                mended = Box::pin(kept.seen_restored.mend(wiring, programme, pass.as_ref().err())) => mended,
            };
            if mended.inspect_err(|_| kept.failed(programme, began.elapsed()))? {
                continue;
            }
            let days = pass.inspect_err(|_| kept.failed(programme, began.elapsed()))?;
            ready.report();
            handle.well();
            let waiting = days.iter().find(|day| day.is_waiting);
            handle.work_waits_for(waiting.map(DayPass::waits_for));
            tokio::select! {
                () = cancel.cancelled() => return Ok(()),
                () = pause(&dispatcher, programme, began.elapsed()) => {}
            }
        }
    };
    under_lease(log, handle, cancel, work).await
}

/// Waits for the next pass: until the queue has been worked off, and until the next time of the programme at most.
async fn pause(dispatcher: &DayDispatcher, programme: &Programme, pass_took: Duration) {
    let until = Instant::now() + (pass_took * PAUSE_FACTOR).clamp(PAUSE_MIN, PAUSE_MAX);
    let queue_until = Instant::now() + QUEUE_WAIT_MAX;
    let begins = next_time(programme, Process.now());
    loop {
        tokio::time::sleep(PAUSE_MIN).await;
        if begins.is_some_and(|begins| Process.now() >= begins) {
            return;
        }
        if Instant::now() >= until {
            let is_worked_off = dispatcher.queue.pending().await.is_ok_and(|pending| pending == 0);
            if is_worked_off || Instant::now() >= queue_until {
                return;
            }
        }
    }
}

/// Returns when the programme next begins a day, reads its tables again, or stops to wait for a reconciliation.
fn next_time(programme: &Programme, now: Timestamp) -> Option<Timestamp> {
    let today = now.to_zoned(programme.time_zone.clone()).date();
    let days = [Some(today), today.tomorrow().ok()];
    let times = [programme.starts_at, programme.waits_until, programme.noon_at];
    let all = days.into_iter().flatten().flat_map(|day| times.map(|time| programme.at(day, time)));
    all.flatten().filter(|at| *at > now).min()
}

/// A day as a pass found it.
#[derive(Debug, Clone)]
pub struct DayPass {
    pub day: Date,
    pub run: DayRun,
    pub is_waiting: bool,
    pub report: Report,
}

impl DayPass {
    /// Returns what a day that is waiting waits for, and until when at most.
    fn waits_for(&self) -> String {
        let until = self.run.rules.goes_on_at(self.day);
        let until = until.map_or_else(String::new, |until| format!(", until {until} at most"));
        format!("a reconciliation that is young enough for {}{until}", self.day)
    }
}

/// Does one pass over a programme and stores its newest day, also if another day had a fault. Returns the first fault
/// after that.
pub async fn pass(
    wiring: &Wiring,
    dispatcher: &DayDispatcher,
    programme: &Programme,
    reports: &ReportChain,
) -> Result<Vec<DayPass>, Fault> {
    let passed = dispatcher.pass(programme, reports).await?;
    let mut days = Vec::new();
    for DayPassed { day, frozen, is_waiting, report, .. } in passed.days {
        let key = RunKey { programme: programme.name.clone(), day };
        let run = dispatcher.ledger.with_run(&key, &[], |l| l.run.clone()).await?;
        // If another process has frozen a wave since, these counts are not those of the run.
        if let Some(run) = run.filter(|run| run.frozen == frozen) {
            days.push(DayPass { day, run, is_waiting, report });
        }
    }
    if passed.fault.is_none() || reach_newest(wiring, programme, &days).await? {
        let open = (passed.oldest_open, passed.letters);
        store_day_view(wiring, dispatcher, programme, &days, open).await?;
    }
    passed.fault.map_or(Ok(days), Err)
}

/// Returns whether these days reach the newest one that the view shows.
async fn reach_newest(wiring: &Wiring, programme: &Programme, days: &[DayPass]) -> Result<bool, Fault> {
    let shown = day_view::read(wiring.log().await?, &programme.name).await?;
    Ok(days.last().is_some_and(|last| shown.day <= Some(last.day.to_string())))
}

/// Stores the newest day for `status`, metrics and the page, with the oldest open day and the number of dead letters.
async fn store_day_view(
    wiring: &Wiring,
    dispatcher: &DayDispatcher,
    programme: &Programme,
    days: &[DayPass],
    (oldest_open, letters): (Option<Date>, Option<u64>),
) -> Result<(), Fault> {
    let (log, now) = (wiring.log().await?, Process.now());
    let mut view = match days.last() {
        Some(DayPass { day, run, report, .. }) => {
            let open_before = days[..days.len() - 1].iter().filter(|day| !day.run.is_closed).count();
            DayView::of(*day, run, report, open_before as u64, now)
        }
        None => {
            let view = day_view::read(log, &programme.name).await?;
            let view = DayView { seen_at: now.as_second(), open_before: 0, ..view };
            closed_view(dispatcher, programme, view).await?
        }
    };
    let begins = |day| programme.at(day, programme.starts_at);
    view.oldest_open_at = oldest_open.and_then(begins).map(Timestamp::as_second);
    view.dead_letters = match letters {
        Some(letters) => letters,
        None => day_view::read(log, &programme.name).await?.dead_letters,
    };
    if let Err(fault) = day_view::store_newest(log, &programme.name, view).await {
        tracing::debug!(%fault, "the view of the coupon day could not be updated");
    }
    Ok(())
}

/// Returns the view of a day that was closed by a pass that did not store it; any other view as it is.
async fn closed_view(
    dispatcher: &DayDispatcher,
    programme: &Programme,
    view: DayView,
) -> Result<DayView, Fault> {
    let day = view.day.as_ref().filter(|_| !view.is_closed).and_then(|day| day.parse::<Date>().ok());
    let Some(day) = day else { return Ok(view) };
    let (key, ledger) = (RunKey { programme: programme.name.clone(), day }, &dispatcher.ledger);
    if !ledger.with_run(&key, &[], |l| l.run.as_ref().is_some_and(|run| run.is_closed)).await? {
        return Ok(view);
    }
    let found = count(ledger, &key).await?;
    Ok(found.map_or(view, |(run, report)| DayView::of(day, &run, &report, 0, Process.now())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_with_a_fault_is_followed_by_a_pause_until_the_next_time_of_the_programme_at_most() {
        let text = "name = 'birthday'\ncoupon = 'cake'\ntime_zone = 'UTC'\nleap_day = 'feb28'\n";
        let programme = Programme::parse_all(&[text.parse().unwrap()]).unwrap().remove(0);
        let pause = |took, now: &str| {
            let pause = pause_after_fault(&programme, Duration::from_secs(took), now.parse().unwrap());
            pause.as_secs()
        };
        assert_eq!(pause(0, "2027-05-03T15:07:00Z"), 2);
        assert_eq!(pause(3, "2027-05-03T15:07:00Z"), 27);
        assert_eq!(pause(1_800, "2027-05-03T15:07:00Z"), 60);
        assert_eq!(pause(1_800, "2027-05-03T11:59:40Z"), 20, "noon is on time");
    }
}
