//! Limits how fast rows are read beside more urgent work: a bucket that fills at a rate.
//!
//! A reader that waited long for something else finds more rows in the bucket, up to its size, so a rate holds though
//! each part takes time. No part is so small that it costs more than its rows. Several readers of one server share a
//! bucket. `throttle/pace.rs` says how fast reconciliations and audits read, and whether they pause.

mod pace;

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

pub use self::pace::Pace;
pub(crate) use self::pace::released;

/// The rows that may be read now. Without a rate, each part is as large as a part may be.
#[derive(Debug)]
pub struct Throttle {
    rate: Option<NonZeroU64>,
    part: Duration,
    most: NonZeroUsize,
    /// Rows in the bucket at `counted_at`.
    rows: f64,
    counted_at: Instant,
}

impl Throttle {
    /// Creates a throttle whose parts hold the rows of the time `part`, or more if no reader took any meanwhile, and at
    /// most `most` rows. Shorter parts cost more than their rows; longer ones keep urgent work waiting.
    pub fn new(rows_per_second: Option<NonZeroU64>, part: Duration, most: NonZeroUsize) -> Self {
        Self { rate: rows_per_second, part, most, rows: 0.0, counted_at: Instant::now() }
    }

    /// Waits until a part may be taken. Cancel safe: it takes nothing.
    pub async fn ready(&self) {
        tokio::time::sleep_until(self.ready_at()).await;
    }

    fn ready_at(&self) -> Instant {
        let Some(rate) = self.rate else { return self.counted_at };
        let missing = self.rows_of_part(rate) - self.rows;
        self.counted_at + Duration::from_secs_f64((missing / rate.get() as f64).max(0.0))
    }

    /// Takes the rows in the bucket; if they are less than a part, takes a part all the same.
    pub fn take(&mut self) -> NonZeroUsize {
        let Some(rate) = self.rate else { return self.most };
        let filled = self.counted_at.elapsed().as_secs_f64() * rate.get() as f64;
        let rows = (self.rows + filled).min(self.most.get() as f64);
        let taken =
            NonZeroUsize::new(rows.max(self.rows_of_part(rate)) as usize).unwrap_or(NonZeroUsize::MIN);
        (self.rows, self.counted_at) = (rows - taken.get() as f64, Instant::now());
        taken
    }

    /// Returns rows to the bucket that were taken but not found.
    pub fn give_back(&mut self, rows: usize) {
        self.rows += rows as f64;
    }

    /// Takes further rows, which need not be in the bucket: the next part waits until they would have been.
    pub fn borrow_rows(&mut self, rows: usize) {
        self.rows -= rows as f64;
    }

    fn rows_of_part(&self, rate: NonZeroU64) -> f64 {
        (rate.get() as f64 * self.part.as_secs_f64()).clamp(1.0, self.most.get() as f64)
    }
}

/// A throttle of several readers. Clones share it.
#[derive(Debug, Clone)]
pub struct SharedThrottle(Arc<Mutex<Throttle>>);

impl SharedThrottle {
    pub fn new(throttle: Throttle) -> Self {
        Self(Arc::new(Mutex::new(throttle)))
    }

    /// Takes a part as soon as one is ready. Cancel safe: a dropped call takes nothing.
    pub async fn take(&self) -> NonZeroUsize {
        loop {
            let ready_at = {
                let mut throttle = self.lock();
                let ready_at = throttle.ready_at();
                if ready_at <= Instant::now() {
                    return throttle.take();
                }
                ready_at
            };
            // Another reader may have taken the part by then.
            tokio::time::sleep_until(ready_at).await;
        }
    }

    /// Returns rows to the bucket that were taken but not found.
    pub fn give_back(&self, rows: usize) {
        self.lock().give_back(rows);
    }

    /// Takes further rows, which need not be in the bucket: the next part waits until they would have been.
    pub fn borrow_rows(&self, rows: usize) {
        self.lock().borrow_rows(rows);
    }

    /// Returns the time until a part is ready.
    pub fn ready_in(&self) -> Duration {
        self.lock().ready_at().saturating_duration_since(Instant::now())
    }

    fn lock(&self) -> MutexGuard<'_, Throttle> {
        // No code under this lock leaves it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn throttle(rate: u64, most: usize) -> Throttle {
        Throttle::new(NonZeroU64::new(rate), Duration::from_millis(50), NonZeroUsize::new(most).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_is_kept_whatever_each_part_takes() {
        for (rate, pause_ms) in [(1_000, 0), (1_000, 300), (20_000, 7), (3, 0)] {
            let (mut throttle, began, mut taken) = (throttle(rate, 20_000), Instant::now(), 0);
            while began.elapsed() < Duration::from_secs(20) {
                throttle.ready().await;
                let rows = throttle.take().get();
                // Half of a part was not there.
                throttle.give_back(rows / 2);
                taken += rows - rows / 2;
                tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            }
            let expected = rate as f64 * 20.0;
            assert!((taken as f64 - expected).abs() <= expected * 0.05 + 1.0, "{taken} of {expected}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waited_long_takes_no_more_than_the_most_and_without_a_rate_nobody_waits() {
        let mut slow = throttle(1_000, 500);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(slow.take().get(), 500);
        let (mut free, began) = (throttle(0, 500), Instant::now());
        for _ in 0..100 {
            free.ready().await;
            assert_eq!(free.take().get(), 500);
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn several_readers_have_one_rate_however_little_each_finds() {
        for (rate, most) in [(1_000, 1), (1_000, 20), (20_000, 30)] {
            let throttle = SharedThrottle::new(throttle(rate, 20_000));
            let began = Instant::now();
            let read = async || {
                let mut read = 0;
                while began.elapsed() < Duration::from_secs(20) {
                    let taken = throttle.take().await.get();
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    let found = taken.min(most);
                    throttle.give_back(taken - found);
                    read += found;
                }
                read
            };
            let (one, other, third) = tokio::join!(read(), read(), read());
            let (read, expected) = ((one + other + third) as f64, rate as f64 * 20.0);
            assert!((read - expected).abs() <= expected * 0.05 + 1.0, "{read} of {expected}");
        }
    }
}
