//! The breaker in front of the coupon system, one for all workers of a process.
//!
//! It opens after consecutive failures without an answer about any user between them, and whenever the system asks for
//! a pause. A pause is as long as the system asks for, whatever calls are answered meanwhile; of two such pauses the
//! later end counts. If the system names no time, each pause is twice as long as the one before, and an answer ends it.
//! While the breaker is open no worker begins a call. Calls that were under way when it opened prolong a pause only if
//! the system asks for a longer one.
//!
//! After a pause it is half open: workers call again, and no answer has come. It stays half open for some minutes at
//! most, because a process that has no messages any more makes no call.
//!
//! It also decides whose failure an error is. Errors in a row about three users are the system's, and no try counts.
//! Errors about fewer users are their own, however many there are: so the last user of a day whose calls
//! always fail becomes a dead letter.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// Consecutive failures after which it opens.
const FAILURES_MAX: u32 = 3;
/// Users with errors in a row, from which on the errors are the system's and not a user's.
const USERS_MAX: usize = 3;
/// The first pause; each further one is twice as long, up to the last.
const PAUSE_FIRST: SignedDuration = SignedDuration::from_secs(60);
const PAUSE_LAST: SignedDuration = SignedDuration::from_mins(15);
/// Time after a pause within which a call ends if there are messages: the longest timeout of a call (five minutes), and
/// the times after which tasks are tried and messages come again. The first pause and this time together are shorter
/// than the 15 minutes of `AnabranchCouponSystemAway`, so one failure before a quiet time wakes no person.
const HALF_OPEN_MAX: SignedDuration = SignedDuration::from_mins(8);

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
    /// Whether a pause began since the last answer about a user.
    is_unanswered: bool,
    /// End of the last pause for which the system named no time.
    own_until: Option<Timestamp>,
    /// End of the pause that the system asked for.
    asked_until: Option<Timestamp>,
}

impl Breaker {
    /// Returns whether calls have to wait.
    pub fn is_open(&self, now: Timestamp) -> bool {
        self.state().open_until().is_some_and(|until| now < until)
    }

    /// Returns whether it is open or half open.
    pub fn is_away(&self, now: Timestamp) -> bool {
        let state = self.state();
        let grace = if state.is_unanswered { HALF_OPEN_MAX } else { SignedDuration::ZERO };
        state.open_until().is_some_and(|until| now < until + grace)
    }

    /// Returns how long calls have to wait; `None` while they need not.
    pub fn open_for(&self, now: Timestamp) -> Option<Duration> {
        let until = self.state().open_until().filter(|until| now < *until)?;
        Duration::try_from(until.duration_since(now)).ok()
    }

    /// Records that the system answered about a user. A pause that it asked for goes on.
    pub fn answered(&self) {
        let mut state = self.state();
        *state = State { asked_until: state.asked_until, ..State::default() };
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
            state.pause(now, None);
        }
        state.users.len() >= USERS_MAX
    }

    /// Records that the system asks for a pause, has nothing to give or cannot be reached. `asked` is the length of the
    /// pause, if the system named one.
    pub fn paused(&self, now: Timestamp, asked: Option<Duration>) {
        self.state().pause(now, asked.and_then(|asked| SignedDuration::try_from(asked).ok()));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn open_until(&self) -> Option<Timestamp> {
        self.own_until.max(self.asked_until)
    }

    fn pause(&mut self, now: Timestamp, asked: Option<SignedDuration>) {
        self.is_unanswered = true;
        if let Some(asked) = asked {
            self.asked_until = self.asked_until.max(Some(now + asked));
            return;
        }
        if self.open_until().is_some_and(|until| now < until) {
            return;
        }
        let factor = 1 << self.pauses.min(4);
        self.pauses = self.pauses.saturating_add(1);
        self.own_until = Some(now + (PAUSE_FIRST * factor).min(PAUSE_LAST));
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
    fn it_is_half_open_after_a_pause_until_a_user_is_answered() {
        let (breaker, mut now) = (Breaker::default(), Timestamp::UNIX_EPOCH);
        assert!(!breaker.is_away(now));
        // The timeout of a call may be five minutes.
        for pause in [1, 2, 4, 8, 15, 15].map(SignedDuration::from_mins) {
            breaker.paused(now, None);
            now += pause + SignedDuration::from_mins(5);
            assert!(!breaker.is_open(now) && breaker.is_away(now), "after {pause}");
        }
        breaker.answered();
        assert!(!breaker.is_away(now));
        let asked = SignedDuration::from_mins(5);
        breaker.paused(now, Some(asked.unsigned_abs()));
        breaker.answered();
        assert!(breaker.is_away(now) && !breaker.is_away(now + asked), "the pause that it asked for goes on");
    }

    #[test]
    fn it_stays_half_open_without_a_call_for_less_time_than_the_alert_waits() {
        let now = Timestamp::UNIX_EPOCH;
        let alert = now + SignedDuration::from_mins(15);
        for asked in [None, Some(Duration::from_secs(300))] {
            let breaker = Breaker::default();
            breaker.paused(now, asked);
            assert!(breaker.is_away(now + HALF_OPEN_MAX) && !breaker.is_away(alert), "{asked:?}");
        }
    }

    #[test]
    fn each_pause_is_longer_up_to_the_last() {
        let (breaker, mut now) = (Breaker::default(), Timestamp::UNIX_EPOCH);
        breaker.paused(now, None);
        now += PAUSE_FIRST;
        breaker.paused(now, None);
        assert!(breaker.is_open(now + PAUSE_FIRST));
        for _ in 0..40 {
            now += PAUSE_LAST;
            breaker.paused(now, None);
        }
        assert!(breaker.is_open(now) && !breaker.is_open(now + PAUSE_LAST));
    }

    #[test]
    fn calls_that_were_under_way_when_it_opened_make_the_pause_no_longer() {
        let (breaker, now) = (Breaker::default(), Timestamp::UNIX_EPOCH);
        let own = (0..8).filter(|user| !breaker.failed(now, [*user])).count();
        assert_eq!(own, 2, "the others count for no user");
        breaker.paused(now, None);
        assert!(!breaker.is_open(now + PAUSE_FIRST));
    }

    #[test]
    fn an_answer_to_a_call_that_was_under_way_ends_no_pause_that_the_system_asked_for() {
        let (breaker, now) = (Breaker::default(), Timestamp::UNIX_EPOCH);
        let pause = Duration::from_secs(300);
        breaker.paused(now, Some(pause));
        breaker.answered();
        assert_eq!(breaker.open_for(now), Some(pause));
        breaker.paused(now, Some(Duration::from_secs(1)));
        assert_eq!(breaker.open_for(now), Some(pause), "of two pauses the later end counts");
        breaker.paused(now, Some(2 * pause));
        assert_eq!(breaker.open_for(now), Some(2 * pause));
    }

    #[test]
    fn a_pause_that_the_system_asks_for_may_be_longer_than_one_that_it_did_not_ask_for() {
        let (breaker, now) = (Breaker::default(), Timestamp::UNIX_EPOCH);
        breaker.paused(now, None);
        breaker.paused(now, Some(Duration::from_secs(300)));
        assert_eq!(breaker.open_for(now), Some(Duration::from_secs(300)));
    }

    #[test]
    fn a_pause_that_the_system_asks_for_is_as_long_as_it_asks() {
        let (breaker, mut now) = (Breaker::default(), Timestamp::UNIX_EPOCH);
        for _ in 0..5 {
            breaker.paused(now, Some(Duration::from_secs(1)));
            assert_eq!(breaker.open_for(now), Some(Duration::from_secs(1)));
            now += SignedDuration::from_secs(1);
            assert!(!breaker.is_open(now) && breaker.open_for(now).is_none());
        }
        breaker.paused(now, None);
        assert!(!breaker.is_open(now + PAUSE_FIRST), "pauses that were asked for make no other one longer");
    }
}
