//! Reports to systemd that the daemon has started, that its tasks turn, and that it stops.
//!
//! Without systemd (`NOTIFY_SOCKET` is not set) it reports nothing. The daemon has *started* when its tasks run;
//! whether its servers answer is the matter of `/readyz`, so an outage neither delays a start nor ends the daemon.
//! systemd kills and restarts a daemon that has not fed the watchdog for `WatchdogSec`.

use std::time::Duration;

use anabranch_pipeline::supervise::{TURN_INTERVAL, TaskStates};
use sd_notify::NotifyState;
use tokio_util::sync::CancellationToken;

/// Time without a turn after which `/livez` calls a loop stuck: half of `WatchdogSec` in the systemd unit.
pub const TURN_AGE_MAX: Duration = Duration::from_secs(30);
/// Least time without a turn that counts as stuck, so that no short interval takes a late timer for a stuck task.
const TURN_AGE_MIN: Duration = TURN_INTERVAL.saturating_mul(3);
/// Feeds within one interval of the watchdog: a feed that is late or lost does no harm.
const FEEDS_PER_INTERVAL: u32 = 4;

/// Reports that the daemon runs.
pub async fn started() {
    notify_systemd(NotifyState::Ready).await;
}

/// Reports that the daemon was asked to stop.
pub async fn stopping() {
    notify_systemd(NotifyState::Stopping).await;
}

/// Feeds systemd's watchdog until `cancel`, if systemd has one for this process.
pub async fn run(states: TaskStates, cancel: CancellationToken) {
    if let Some(interval) = sd_notify::watchdog_enabled() {
        feed(states, interval, async || notify_systemd(NotifyState::Watchdog).await, cancel).await;
    }
}

/// Feeds while every task turns.
async fn feed(states: TaskStates, interval: Duration, food: impl AsyncFn(), cancel: CancellationToken) {
    let turn_age_max = (interval / 2).max(TURN_AGE_MIN);
    let mut ticks = tokio::time::interval(interval / FEEDS_PER_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let stuck = states.stuck(turn_age_max);
        if stuck.is_empty() {
            food().await;
        } else {
            tracing::error!(
                tasks = stuck.join(","),
                "these tasks are stuck, so the watchdog is not notified"
            );
        }
    }
}

/// Sends a state to systemd. A service manager that takes no message holds up only this call.
async fn notify_systemd(state: NotifyState<'static>) {
    let reported = tokio::task::spawn_blocking(move || sd_notify::notify(&[state])).await;
    if let Ok(Err(error)) = reported {
        tracing::warn!(%error, "systemd could not be notified");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use anabranch_pipeline::config::Config;
    use anabranch_pipeline::error::{Code, Fault};
    use anabranch_pipeline::supervise::{Supervisor, TaskHandle};
    use tokio::sync::Mutex;

    use super::*;

    const EXAMPLE: &str = include_str!("../../../deploy/anabranch.example.toml");
    const UNIT: &str = include_str!("../../../deploy/systemd/anabranch.service");

    /// Interval of the watchdog, in which feeds come more often than tasks turn.
    const INTERVAL: Duration = Duration::from_secs(1);
    /// Time of several feeds.
    const FEW_FEEDS: Duration = Duration::from_secs(1);

    async fn until(what: &str, condition: impl Fn() -> bool) {
        for _ in 0..600 {
            if condition() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("it never came so far that {what}");
    }

    /// A task that blocks its thread from the first message to the second, and ends at it.
    fn spawn_blocker(supervisor: &mut Supervisor) -> (tokio::sync::oneshot::Sender<()>, SyncSender<()>) {
        let (block, blocks) = tokio::sync::oneshot::channel::<()>();
        let (release, released): (_, Receiver<()>) = sync_channel(1);
        let once = Arc::new(Mutex::new(Some((blocks, released))));
        supervisor.spawn("blocks", move |_: TaskHandle, _| {
            let once = once.clone();
            async move {
                let (blocks, released) = once.lock().await.take().unwrap();
                _ = blocks.await;
                _ = released.recv();
                Ok(())
            }
        });
        (block, release)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn a_task_that_blocks_its_thread_stops_the_feeding_and_those_that_wait_or_fail_do_not() {
        let (states, cancel) = (TaskStates::default(), CancellationToken::new());
        let mut supervisor = Supervisor::new(states.clone(), cancel.clone(), Duration::from_secs(60));
        supervisor.spawn("waits", |_: TaskHandle, _| std::future::pending());
        supervisor.spawn("fails", |_: TaskHandle, _| async {
            Err(Fault::new(Code::SourceUnreachable, "source a", "nobody answers"))
        });
        supervisor.spawn("stops", |_: TaskHandle, _| async {
            Err(Fault::new(Code::SourceDiverged, "source a", "it lacks transactions"))
        });
        supervisor.spawn("ends", |_: TaskHandle, _| async { Ok(()) });
        let (block, release) = spawn_blocker(&mut supervisor);
        let count = Arc::new(AtomicU32::new(0));
        let (fed, counted) = (count.clone(), || count.load(Ordering::SeqCst));
        let food = async move || _ = fed.fetch_add(1, Ordering::SeqCst);
        let feeding = tokio::spawn(feed(states.clone(), INTERVAL, food, cancel.clone()));

        tokio::time::sleep(TURN_AGE_MIN + FEW_FEEDS).await;
        let before = counted();
        until("tasks that wait or fail are fed for", || counted() > before + 2).await;
        block.send(()).unwrap();
        until("it is stuck", || states.stuck(TURN_AGE_MIN) == ["blocks"]).await;
        // A feed may be under way.
        tokio::time::sleep(FEW_FEEDS).await;
        let at_stuck = counted();
        tokio::time::sleep(FEW_FEEDS).await;
        assert_eq!(counted(), at_stuck, "a stuck task is fed for");
        release.send(()).unwrap();
        until("the feeding goes on", || counted() > at_stuck + 2).await;
        cancel.cancel();
        feeding.await.unwrap();
    }

    #[test]
    fn the_service_stops_later_than_the_daemon_does() {
        let stop: u64 =
            UNIT.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).unwrap().parse().unwrap();
        assert!(stop > Config::parse(EXAMPLE).unwrap().limits.shutdown.as_secs());
    }

    #[test]
    fn the_service_waits_for_its_word_and_kills_it_only_after_liveness_has_said_that_it_is_stuck() {
        let watchdog: u64 =
            UNIT.lines().find_map(|line| line.strip_prefix("WatchdogSec=")).unwrap().parse().unwrap();
        assert_eq!(watchdog, 2 * TURN_AGE_MAX.as_secs());
        assert!(UNIT.lines().any(|line| line == "Type=notify"));
    }

    #[test]
    fn the_service_never_gives_up() {
        let has = |setting: &str| UNIT.lines().any(|line| line == setting);
        assert!(has("StartLimitIntervalSec=0") && !UNIT.contains("StartLimitBurst"));
        assert!(has("RestartSteps=6") && has("RestartMaxDelaySec=60"));
    }
}
