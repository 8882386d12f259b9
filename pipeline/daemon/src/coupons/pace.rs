//! The number of batches that the granters of a process carry at once, by whether lanes lag.
//!
//! Once lanes lag, one batch at a time is carried. Once they do not, one more is added at each step, up to half of the
//! number that brought the lag, and after a while up to the configured number. All at once again would bring the lag
//! back before a sample shows it, and so would the same number every few seconds.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// Time between two further batches: longer than lanes and samples need to show the effect of the last one.
const STEP: Duration = Duration::from_millis(500);
/// Time for which no more than half of the batches that brought a lag are carried: such lags then take a hundredth of
/// the time at most.
const CAUTION: Duration = Duration::from_secs(15);
/// Time after which the batch that waits longest asks again, if no other one has ended by then.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Pause after a batch while lanes lag, at most: one that waited for the coupon system did not burden the target.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Length of a pause in times of its batch, at most. A day beside lanes that lag for hours still takes a fifth of its
/// time.
const PAUSE_FACTOR_MAX: u32 = 4;

/// The pace of all granters of a process.
pub(super) struct Pace {
    batches_max: usize,
    state: Mutex<State>,
    /// Held by the batch that waits longest: it begins before any other one.
    first: tokio::sync::Mutex<()>,
    ended: Notify,
}

struct State {
    /// Batches that may be carried at once.
    batches: usize,
    carried: usize,
    /// Time of the last step.
    stepped_at: Instant,
    /// Whether lanes lagged when a batch asked last.
    was_late: bool,
    /// Batches that may be carried at once until that time, since twice as many brought a lag.
    cautious: Option<(usize, Instant)>,
    /// Length of the next pause in times of its batch.
    pause_factor: u32,
}

/// A batch that is carried, until this is dropped.
pub(super) struct Turn<'p>(&'p Pace);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.state().carried -= 1;
        self.0.ended.notify_one();
    }
}

impl Pace {
    /// Begins with all batches: a day without lanes that lag takes no notice.
    pub(super) fn new(batches_max: usize) -> Self {
        let state = State {
            batches: batches_max,
            carried: 0,
            stepped_at: Instant::now(),
            was_late: false,
            cautious: None,
            pause_factor: 1,
        };
        Self {
            batches_max,
            state: Mutex::new(state),
            first: tokio::sync::Mutex::default(),
            ended: Notify::new(),
        }
    }

    /// Waits until a batch may begin; returns its turn, and whether lanes lag at that moment.
    pub(super) async fn turn<F>(&self, are_lanes_late: impl Fn() -> F) -> (Turn<'_>, bool)
    where
        F: Future<Output = bool>,
    {
        let _first = self.first.lock().await;
        loop {
            let is_late = are_lanes_late().await;
            if let Some(turn) = self.begin(is_late) {
                return (turn, is_late);
            }
            tokio::select! {
                () = self.ended.notified() => {}
                () = sleep(ASK_AGAIN) => {}
            }
        }
    }

    /// Begins a batch if one more may be carried now.
    fn begin(&self, are_lanes_late: bool) -> Option<Turn<'_>> {
        let mut state = self.state();
        let was_late = std::mem::replace(&mut state.was_late, are_lanes_late);
        if are_lanes_late {
            // One batch at a time is as few as there can be: then the lag has another cause, or has not ended.
            if !was_late && state.batches > 1 {
                state.cautious = Some((state.batches / 2, Instant::now() + CAUTION));
            }
            (state.batches, state.stepped_at) = (1, Instant::now());
        } else {
            state.pause_factor = 1;
            let cautious = state.cautious.filter(|(_, until)| Instant::now() < *until);
            let most = cautious.map_or(self.batches_max, |(batches, _)| batches);
            let is_next = state.carried == state.batches && state.batches < most;
            if is_next && state.stepped_at.elapsed() >= STEP {
                (state.batches, state.stepped_at) = (state.batches + 1, Instant::now());
            }
        }
        if state.carried >= state.batches {
            return None;
        }
        state.carried += 1;
        Some(Turn(self))
    }

    /// Returns the pause after a batch that was carried while lanes lag. It grows while they go on to lag.
    pub(super) fn pause(&self, batch_took: Duration) -> Duration {
        let mut state = self.state();
        let pause = (batch_took * state.pause_factor).min(PAUSE_MAX);
        state.pause_factor = (state.pause_factor * 2).min(PAUSE_FACTOR_MAX);
        pause
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures::FutureExt;

    use super::*;

    /// Begins as many batches as may be carried now.
    fn begin_all(pace: &Pace, are_lanes_late: bool) -> Vec<Turn<'_>> {
        std::iter::from_fn(|| pace.begin(are_lanes_late)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_lag_the_batches_at_once_become_more_one_by_one() {
        let pace = Pace::new(8);
        let mut carried = begin_all(&pace, false);
        assert_eq!(carried.len(), 8, "eight batches at once");
        tokio::time::advance(STEP * 10).await;
        while carried.pop().is_some() {
            assert_eq!(pace.begin(true).is_some(), carried.is_empty(), "beside {} others", carried.len());
        }
        carried.extend(begin_all(&pace, true));
        assert_eq!(carried.len(), 1, "one batch at a time");
        let mut batches_at_once = Vec::new();
        for _ in 0..9 {
            carried.extend(begin_all(&pace, false));
            batches_at_once.push(carried.len());
            tokio::time::advance(STEP).await;
        }
        assert_eq!(batches_at_once, [1, 2, 3, 4, 4, 4, 4, 4, 4], "eight brought the lag");
        tokio::time::advance(CAUTION).await;
        for batches in [5, 6, 7, 8, 8] {
            carried.extend(begin_all(&pace, false));
            assert_eq!(carried.len(), batches);
            tokio::time::advance(STEP).await;
        }
        // Each batch is followed by the next one, and nothing but time makes a step.
        assert!(pace.begin(true).is_none());
        carried.truncate(1);
        assert!(pace.begin(false).is_none(), "no half second has passed");
        carried.clear();
        assert_eq!(begin_all(&pace, false).len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_that_waits_asks_again_before_it_begins_and_no_later_one_begins_first() {
        let (pace, is_late) = (Pace::new(2), AtomicBool::new(false));
        let ask = || ready(is_late.load(Ordering::Relaxed));
        let (first, second) = (pace.turn(ask).await, pace.turn(ask).await);
        let (mut third, mut fourth) = (Box::pin(pace.turn(ask)), Box::pin(pace.turn(ask)));
        assert!((&mut third).now_or_never().is_none() && (&mut fourth).now_or_never().is_none());
        is_late.store(true, Ordering::Relaxed);
        drop(first);
        assert!((&mut third).now_or_never().is_none(), "lanes began to lag while it waited");
        drop(second);
        assert!((&mut fourth).now_or_never().is_none(), "it came later");
        let (third, was_late) = third.await;
        assert!(was_late && (&mut fourth).now_or_never().is_none());
        is_late.store(false, Ordering::Relaxed);
        let (_fourth, was_late) = fourth.await;
        assert!(!was_late, "the lag ended while it waited");
        drop(third);
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_while_lanes_go_on_to_lag_and_no_pause_is_longer_than_the_limit() {
        let (pace, took) = (Pace::new(8), Duration::from_millis(20));
        let pauses = [pace.pause(took), pace.pause(took), pace.pause(took), pace.pause(took)];
        assert_eq!(pauses.map(|pause| pause.as_millis()), [20, 40, 80, 80]);
        assert_eq!(pace.pause(Duration::from_secs(10)), PAUSE_MAX);
        assert!(pace.begin(false).is_some());
        assert_eq!(pace.pause(took), took);
    }
}
