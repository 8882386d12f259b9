//! Retries of work that may succeed later: the pauses in between, a few attempts in one call, attempts at work that
//! takes long, and attempts at a transaction that collides with others.

use std::time::Duration;

use backoff::backoff::Backoff;
use backoff::{ExponentialBackoff, ExponentialBackoffBuilder};
use metrics::counter;
use tokio::time::Instant;

use crate::error::{Class, Fault};
use crate::metrics as names;

/// The first pause after a failure; each further pause is twice as long, up to [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// The longest pause before the spread; with [`PAUSE_SPREAD`] it lasts at most 58 s. In the end each task asks a server
/// that is ill at most twice a minute, and uses one that is back within a minute.
const PAUSE_MAX: Duration = Duration::from_secs(48);
/// The part by which chance makes a pause longer or shorter.
const PAUSE_SPREAD: f64 = 0.2;
/// Attempts at one piece of work. They take six seconds: enough for a restart of a server or a broken connection.
const ATTEMPTS: u32 = 7;

/// Pauses that grow, without an end.
#[derive(Debug)]
pub struct Pauses(ExponentialBackoff);

impl Default for Pauses {
    /// Returns pauses that chance spreads, so that tasks that failed together do not come back together.
    fn default() -> Self {
        Self::spread(PAUSE_SPREAD)
    }
}

impl Pauses {
    fn spread(by: f64) -> Self {
        let pauses = ExponentialBackoffBuilder::new()
            .with_initial_interval(PAUSE_FIRST)
            .with_max_interval(PAUSE_MAX)
            .with_multiplier(2.0)
            .with_randomization_factor(by)
            .with_max_elapsed_time(None)
            .build();
        Self(pauses)
    }

    pub fn following(&mut self) -> Duration {
        self.0.next_backoff().unwrap_or(PAUSE_MAX)
    }
}

/// The attempts at one piece of work. Their pauses have no chance in them, because simulations replay them.
#[derive(Debug)]
pub struct Attempts {
    left: u32,
    pauses: Pauses,
}

impl Default for Attempts {
    fn default() -> Self {
        Self { left: ATTEMPTS, pauses: Pauses::spread(0.0) }
    }
}

impl Attempts {
    /// Waits for the next attempt. Returns a fault that does not pass, or has not passed in all attempts.
    pub async fn failed(&mut self, fault: Fault) -> Result<(), Fault> {
        self.left -= 1;
        if fault.class() != Class::Transient || self.left == 0 {
            return Err(fault);
        }
        counter!(names::RETRIES, "code" => fault.code().as_str()).increment(1);
        tracing::debug!(%fault, left = self.left, "it is tried again");
        tokio::time::sleep(self.pauses.following()).await;
        Ok(())
    }
}

/// The attempts at a transaction that may collide with others, which end soon: each pause is longer by one step.
#[derive(Debug)]
pub struct Collisions {
    attempt: u32,
    most: u32,
    step: Duration,
}

impl Collisions {
    pub fn new(most: u32, step: Duration) -> Self {
        Self { attempt: 1, most, step }
    }

    /// Returns whether an attempt has failed before.
    pub fn have_begun(&self) -> bool {
        self.attempt > 1
    }

    /// Waits for the next attempt; returns the fault if there is none.
    pub async fn failed(&mut self, fault: Fault) -> Result<(), Fault> {
        if self.attempt >= self.most {
            return Err(fault);
        }
        tracing::debug!(%fault, attempt = self.attempt, "a transaction that collided is retried");
        tokio::time::sleep(self.step * self.attempt).await;
        self.attempt += 1;
        Ok(())
    }
}

/// Runs the work, and runs it again after a transient fault, a few times.
pub async fn again<T, F: Future<Output = Result<T, Fault>>>(mut work: impl FnMut() -> F) -> Result<T, Fault> {
    let mut attempts = Attempts::default();
    loop {
        match work().await {
            Ok(done) => return Ok(done),
            Err(fault) => attempts.failed(fault).await?,
        }
    }
}

/// Runs work that takes long, and runs it again after a transient fault, until it has not moved for longer than
/// `budget`. `reached` returns how far the work has come.
pub async fn while_it_moves<P: PartialOrd, F: Future<Output = Result<(), Fault>>>(
    budget: Duration,
    reached: impl Fn() -> P,
    mut work: impl FnMut() -> F,
) -> Result<(), Fault> {
    let (mut last, mut moved_at, mut pauses) = (reached(), Instant::now(), Pauses::default());
    loop {
        let Err(fault) = work().await else { return Ok(()) };
        let now = reached();
        if now > last {
            (last, moved_at, pauses) = (now, Instant::now(), Pauses::default());
        }
        if fault.class() != Class::Transient || moved_at.elapsed() > budget {
            return Err(fault);
        }
        counter!(names::RETRIES, "code" => fault.code().as_str()).increment(1);
        tracing::warn!(%fault, "it is tried again");
        tokio::time::sleep(pauses.following()).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::error::Code;

    /// Returns the number of attempts at work that always fails with `code`, and the tenths of seconds that they take.
    async fn at_what_fails(code: Code) -> (u32, u128) {
        let (began, mut attempts) = (tokio::time::Instant::now(), 0);
        let ended = again(|| {
            attempts += 1;
            async { Err::<(), _>(Fault::new(code, "a server", "it is away")) }
        });
        assert_eq!(ended.await.expect_err("it always fails").code(), code);
        (attempts, began.elapsed().as_millis() / 100)
    }

    #[test]
    fn pauses_grow_to_just_below_a_minute_and_two_of_them_last_longer_than_one() {
        let mut pauses = Pauses::default();
        assert!(pauses.following() < Duration::from_millis(150));
        let last: Vec<_> = std::iter::repeat_with(|| pauses.following()).skip(10).take(100).collect();
        let (shortest, longest) = (last.iter().min().unwrap(), last.iter().max().unwrap());
        assert!(*longest < Duration::from_secs(60) && *shortest > Duration::from_secs(30), "{last:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn long_work_is_tried_again_until_it_has_not_moved_for_its_budget() {
        let (budget, began, reached) = (Duration::from_secs(600), Instant::now(), Cell::new(0));
        let work = || {
            // The work moves for an hour.
            if began.elapsed() < Duration::from_secs(3600) {
                reached.set(reached.get() + 1);
            }
            async { Err::<(), _>(Fault::new(Code::SourceUnreachable, "a server", "it is away")) }
        };
        let ended = while_it_moves(budget, || reached.get(), work).await;
        assert_eq!(ended.expect_err("it always fails").code(), Code::SourceUnreachable);
        let minutes = began.elapsed().as_secs() / 60;
        assert!((69..=71).contains(&minutes), "{minutes} minutes");
        let refused = || async { Err(Fault::new(Code::ReconcileRefused, "a store", "it is unknown")) };
        assert!(while_it_moves(budget, || 0, refused).await.is_err());
        assert_eq!(began.elapsed().as_secs() / 60, minutes);
    }

    #[tokio::test(start_paused = true)]
    async fn a_transaction_that_collides_waits_a_step_longer_each_time_and_is_given_up_in_the_end() {
        let fault = || Fault::new(Code::TargetUnreachable, "a server", "a deadlock");
        let (began, mut collisions) = (Instant::now(), Collisions::new(4, Duration::from_millis(10)));
        assert!(!collisions.have_begun());
        for _ in 0..3 {
            collisions.failed(fault()).await.expect("there is another attempt");
        }
        assert!(collisions.have_begun());
        assert_eq!(began.elapsed(), Duration::from_millis(60));
        assert!(collisions.failed(fault()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_pass_is_tried_for_some_seconds_and_what_is_definite_once() {
        assert_eq!(at_what_fails(Code::SourceUnreachable).await, (ATTEMPTS, 63));
        assert_eq!(at_what_fails(Code::ReconcileRefused).await, (1, 0));
    }
}
