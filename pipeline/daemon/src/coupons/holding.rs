//! Holds messages of the work queue while they wait: says now and then that work on them goes on, so that the queue
//! does not deliver them again.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use crate::wiring::COUPON_ACK_WAIT;

/// Time between two notes about a message: the queue waits for several of them.
const NOTE_EVERY: Duration = Duration::from_secs(COUPON_ACK_WAIT.as_secs() / 4);

/// The times of notes about some messages, which may wait for several pieces of work in turn.
pub(super) struct Notes(Interval);

impl Notes {
    pub(super) fn new() -> Self {
        let mut times = interval_at(Instant::now() + NOTE_EVERY, NOTE_EVERY);
        times.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self(times)
    }

    /// Awaits `work`. Meanwhile `note` is called every half minute, beside it.
    pub(super) async fn during<T, N>(&mut self, work: impl Future<Output = T>, note: impl Fn() -> N) -> T
    where
        N: Future<Output = ()>,
    {
        let mut work = pin!(work);
        loop {
            let noted = async {
                self.0.tick().await;
                note().await;
            };
            tokio::select! {
                done = &mut work => return done,
                () = noted => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn messages_that_wait_longer_than_the_queue_are_noted_in_between() {
        let (mut notes, count) = (Notes::new(), AtomicU32::new(0));
        let note = || async {
            count.fetch_add(1, Ordering::Relaxed);
        };
        let work = async {
            sleep(NOTE_EVERY * 3 + NOTE_EVERY / 2).await;
            7
        };
        assert_eq!((notes.during(work, note).await, count.load(Ordering::Relaxed)), (7, 3));
        // Pieces of work that are each shorter than the time between two notes.
        for _ in 0..8 {
            notes.during(sleep(NOTE_EVERY / 2), note).await;
        }
        assert!(count.load(Ordering::Relaxed) >= 6, "{count:?}");
        // A note that takes long holds up no work.
        notes.during(sleep(COUPON_ACK_WAIT), std::future::pending).await;
    }
}
