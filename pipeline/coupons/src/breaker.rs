//! The breaker in front of the coupon system, one for all workers of a process.
//!
//! It opens after consecutive failures without an answer about any user between them, and whenever the system asks for
//! a pause. While it is open no worker begins a call. Calls that were under way when it opened do not prolong the
//! pause, whatever their outcome.
//!
//! It also decides whose failure an error is. Errors in a row about three users are the system's, and no try counts.
//! Errors about fewer users are their own, however many there are: so the last user of a day whose calls
//! always fail becomes a dead letter.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};

/// Consecutive failures after which it opens.
const FAILURES_MAX: u32 = 3;
/// Users with errors in a row, from which on the errors are the system's and not a user's.
const USERS_MAX: usize = 3;
/// The first pause; each further one is twice as long, up to the last.
const PAUSE_FIRST: SignedDuration = SignedDuration::from_secs(60);
const PAUSE_LAST: SignedDuration = SignedDuration::from_mins(15);

/// The state that decides whether workers may call the coupon system.
#[derive(Debug, Default)]
pub struct Breaker {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    failures: u32,
    /// Users with errors since the last answer about a user, up to [`USERS_MAX`].
    users: BTreeSet<u64>,
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

    /// Records that a call failed, for some users with an error about them alone; returns whether such an error is the
    /// system's, and not the user's.
    pub fn failed(&self, now: Timestamp, users: impl IntoIterator<Item = u64>) -> bool {
        let mut state = self.state();
        state.failures = state.failures.saturating_add(1);
        for user in users {
            if state.users.len() < USERS_MAX {
                state.users.insert(user);
            }
        }
        if state.failures >= FAILURES_MAX {
            state.pause(now);
        }
        state.users.len() >= USERS_MAX
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
        let failures = |users: [u64; 3]| users.map(|user| breaker.failed(now, [user]));
        assert_eq!([1, 2].map(|user| breaker.failed(now, [user])), [false, false]);
        breaker.answered();
        assert!(!breaker.is_open(now));
        assert_eq!(failures([1, 2, 3]), [false, false, true], "errors about several users are the system's");
        assert!(breaker.is_open(now) && !breaker.is_open(now + PAUSE_FIRST));
        breaker.answered();
        assert!(!breaker.is_open(now));
        assert_eq!(failures([1, 1, 1]), [false; 3], "errors about one user are the user's own");
        assert!(breaker.is_open(now));
    }

    #[test]
    fn calls_without_an_answer_open_it_and_are_no_user_s() {
        let (breaker, now) = (Breaker::default(), Timestamp::UNIX_EPOCH);
        assert_eq!([(); 3].map(|()| breaker.failed(now, [])), [false; 3]);
        assert!(breaker.is_open(now));
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
        let own = (0..8).filter(|user| !breaker.failed(now, [*user])).count();
        assert_eq!(own, 2, "the others count for no user");
        breaker.paused(now);
        assert!(!breaker.is_open(now + PAUSE_FIRST));
    }
}
