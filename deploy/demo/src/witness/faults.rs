//! Faults on demand: `POST /control/faults` switches them on, for so many requests or until the next switch.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

/// Probabilities between 0 and 1, for each request; at the start none is set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Delay of every answer.
    pub slow_ms: u64,
    /// Probability of 429 before the work, with the next field as `retry-after`.
    pub busy: f64,
    pub retry_after_seconds: u64,
    /// Probability of 500 before the work; the next field is that of 500 after it.
    pub error_before: f64,
    pub error_after: f64,
    /// Probability that the connection is closed without an answer before the work; the next field is that after it.
    pub lost_before: f64,
    pub lost_after: f64,
    /// Probability for each call of an answer `mismatch` without work; the next field is that of `rejected`.
    pub mismatch: f64,
    pub rejected: f64,
    /// Every call and every query for keys is answered with 503, for all users.
    pub unavailable: bool,
    /// Coupons that are left; `None` = any number.
    pub pool: Option<u64>,
    /// Keys that are always rejected, such as those of a user who has left.
    pub rejected_keys: Vec<String>,
    /// Number of requests for coupons that the faults affect; `None` = all.
    pub requests: Option<u64>,
}

/// Outcome of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Answered,
    Unavailable,
    Busy { retry_after_seconds: u64 },
    ErrorBefore,
    ErrorAfter,
    LostBefore,
    LostAfter,
}

/// The present faults, and the dice.
#[derive(Debug)]
pub(super) struct Dice {
    pub(super) faults: Faults,
    random: StdRng,
}

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self { faults: Faults::default(), random: StdRng::seed_from_u64(seed) }
    }

    /// Returns the fate of the next request for coupons, and the delay of its answer.
    pub(super) fn next(&mut self) -> (Fate, Duration) {
        if self.faults.requests == Some(0) {
            // The pool stays as it is; all other faults are over.
            self.faults = Faults { pool: self.faults.pool, ..Faults::default() };
        }
        if let Some(left) = &mut self.faults.requests {
            *left -= 1;
        }
        let faults = &self.faults;
        let mut chance: f64 = self.random.random();
        let mut is = |of: f64| {
            chance -= of;
            chance < 0.0 && of > 0.0
        };
        let fate = match () {
            () if faults.unavailable => Fate::Unavailable,
            () if is(faults.busy) => Fate::Busy { retry_after_seconds: faults.retry_after_seconds },
            () if is(faults.error_before) => Fate::ErrorBefore,
            () if is(faults.error_after) => Fate::ErrorAfter,
            () if is(faults.lost_before) => Fate::LostBefore,
            () if is(faults.lost_after) => Fate::LostAfter,
            () => Fate::Answered,
        };
        (fate, Duration::from_millis(faults.slow_ms))
    }

    /// Returns the answer to a call that gets no work; `None` = the work is done.
    pub(super) fn refusal(&mut self, key: &str) -> Option<&'static str> {
        let chance: f64 = self.random.random();
        if self.faults.rejected_keys.iter().any(|rejected| rejected == key) || chance < self.faults.rejected {
            return Some("rejected");
        }
        (chance < self.faults.rejected + self.faults.mismatch).then_some("mismatch")
    }

    /// Takes a coupon from the pool; returns `false` when it is empty.
    pub(super) fn take_coupon(&mut self) -> bool {
        match &mut self.faults.pool {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_for_so_many_requests() {
        let mut dice = Dice::new(1);
        dice.faults = Faults { lost_after: 1.0, requests: Some(2), pool: Some(1), ..Faults::default() };
        let fates = [dice.next().0, dice.next().0, dice.next().0];
        assert_eq!(fates, [Fate::LostAfter, Fate::LostAfter, Fate::Answered]);
        assert_eq!([dice.take_coupon(), dice.take_coupon()], [true, false]);
    }

    #[test]
    fn each_fault_comes_about_as_often_as_it_should() {
        let mut dice = Dice::new(2);
        dice.faults = Faults { busy: 0.2, error_after: 0.3, ..Faults::default() };
        let fates: Vec<Fate> = (0..10_000).map(|_| dice.next().0).collect();
        let count = |of: Fate| fates.iter().filter(|fate| **fate == of).count();
        assert!((1_800..2_200).contains(&count(Fate::Busy { retry_after_seconds: 0 })));
        assert!((2_800..3_200).contains(&count(Fate::ErrorAfter)));
        assert!((4_800..5_200).contains(&count(Fate::Answered)));
    }
}
