//! Whether the loop of each task still turns, for liveness and the watchdog.
//!
//! A task turns while the runtime polls it and each poll returns. Waiting for a server, pausing before the next attempt
//! and standing by are turns, so an outage of a server looks like work here. A task that blocks its thread or never
//! yields it does not turn, and no task turns when all threads of the runtime are blocked. A task that waits for ever
//! for another task of this process is not detected.

use std::time::{Duration, Instant};

use super::{TaskHandle, TaskStates, now};

/// Time between two turns of a waiting task. Half a minute without a turn is far beyond any pause of a busy machine.
pub const TURN_INTERVAL: Duration = Duration::from_secs(1);

impl TaskStates {
    /// Returns the tasks that have not ended and whose loops have not turned within this time.
    pub fn stuck(&self, within: Duration) -> Vec<String> {
        let now = now();
        let is_late = |at: Instant| now.saturating_duration_since(at) > within;
        let seen = self.lock();
        let late = seen.iter().filter(|(_, seen)| seen.turned_at.is_some_and(is_late));
        late.map(|(name, _)| name.clone()).collect()
    }

    fn turned(&self, task: &str, at: Option<Instant>) {
        if let Some(seen) = self.lock().get_mut(task) {
            seen.turned_at = at;
        }
    }
}

impl TaskHandle {
    /// Runs the work, and turns meanwhile as long as the work yields its thread.
    pub(super) async fn turning<T>(&self, work: impl Future<Output = T>) -> T {
        let turns = async {
            let mut ticks = tokio::time::interval(TURN_INTERVAL);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                self.states.turned(&self.name, Some(now()));
            }
        };
        tokio::select! {
            // The turns are polled first: busy work uses up what the runtime grants a task at once, timers included.
            biased;
            () = turns => unreachable!("it never ends"),
            done = work => done,
        }
    }

    /// Watches the task's turns until the guard is dropped.
    pub(super) fn watched(&self) -> WatchedTask {
        self.states.turned(&self.name, Some(now()));
        WatchedTask(self.clone())
    }
}

/// The guard of a task whose turns are watched.
pub(super) struct WatchedTask(TaskHandle);

impl Drop for WatchedTask {
    fn drop(&mut self) {
        self.0.states.turned(&self.0.name, None);
    }
}
