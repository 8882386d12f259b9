//! The breaker in front of the coupon system, one for all workers of a process.
//!
//! It opens after consecutive failures without an answer about any user between them, and whenever the system asks for
//! a pause. While it is open no worker calls, and no try counts. Calls that were under way when it opened do not
//! prolong the pause, whatever their outcome.

use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};

/// Consecutive failures from which on they count as the system's and not a user's.
const FAILURES_MAX: u32 = 3;
/// The first pause; each further one is twice as long, up to the last.
const PAUSE_FIRST: SignedDuration = SignedDuration::from_secs(60);
const PAUSE_LAST: SignedDuration = SignedDuration::from_mins(15);

/// The state that decides whether workers may call the coupon system.
#[derive(Debug, Default)]
pub struct Breaker {
    state: Mutex<State>,
}

#[derive(Debug, Default, Clone, Copy)]
struct State {
    failures: u32,
    pauses: u32,
    open_until: Option<Timestamp>,
}

impl Breaker {
    /// Returns whether calls have to wait.
    pub fn is_open(&self, now: Timestamp) -> bool {
        self.state().open_until.is_some_and(|until| now < until)
    }

    /// Records that the system answered about a user.
    pub fn answered(&self) {
        *self.state() = State::default();
    }

    /// Records that the system did not answer; returns whether the failure is the system's, and not the user's.
    pub fn failed(&self, now: Timestamp) -> bool {
        let mut state = self.state();
        state.failures += 1;
        if state.failures >= FAILURES_MAX {
            state.pause(now);
        }
        state.failures >= FAILURES_MAX
    }

    /// Records that the system asks for a pause, or has nothing to give.
    pub fn paused(&self, now: Timestamp) {
        self.state().pause(now);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn pause(&mut self, now: Timestamp) {
        if self.open_until.is_some_and(|until| now < until) {
            return;
        }
        let factor = 1 << self.pauses.min(4);
        self.pauses = self.pauses.saturating_add(1);
        self.open_until = Some(now + (PAUSE_FIRST * factor).min(PAUSE_LAST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_and_an_answer_closes_it() {
        let (breaker, now) = (Breaker::default(), Timestamp::UNIX_EPOCH);
        assert_eq!([breaker.failed(now), breaker.failed(now)], [false, false]);
        breaker.answered();
        assert_eq!([breaker.failed(now), breaker.failed(now), breaker.failed(now)], [false, false, true]);
        assert!(breaker.is_open(now) && !breaker.is_open(now + PAUSE_FIRST));
        breaker.answered();
        assert!(!breaker.is_open(now));
    }

    #[test]
    fn each_pause_is_longer_up_to_the_last() {
        let (breaker, mut now) = (Breaker::default(), Timestamp::UNIX_EPOCH);
        breaker.paused(now);
        now += PAUSE_FIRST;
        breaker.paused(now);
        assert!(breaker.is_open(now + PAUSE_FIRST));
        for _ in 0..40 {
            now += PAUSE_LAST;
            breaker.paused(now);
        }
        assert!(breaker.is_open(now) && !breaker.is_open(now + PAUSE_LAST));
    }

    #[test]
    fn calls_that_were_under_way_when_it_opened_make_the_pause_no_longer() {
        let (breaker, now) = (Breaker::default(), Timestamp::UNIX_EPOCH);
        assert_eq!((0..8).filter(|_| breaker.failed(now)).count(), 6, "none of them counts for its user");
        breaker.paused(now);
        assert!(!breaker.is_open(now + PAUSE_FIRST));
    }
}
