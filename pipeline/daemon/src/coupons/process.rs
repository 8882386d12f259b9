//! The clock and the unique numbers that a dispatcher and a granter get from their own process.

use anabranch_coupons::ports::{Clock, Uniques};
use anabranch_coupons::records::Unique;
use jiff::Timestamp;

use crate::wall_clock;

/// The clock and the random numbers of this process.
#[derive(Debug, Clone, Copy)]
pub struct Process;

impl Clock for Process {
    fn now(&self) -> Timestamp {
        let now_ms = i64::try_from(wall_clock::now_ms()).unwrap_or(i64::MAX);
        Timestamp::from_millisecond(now_ms).unwrap_or(Timestamp::MAX)
    }
}

impl Uniques for Process {
    fn fresh(&self) -> Unique {
        Unique(rand::random())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A counter would begin anew in each process, and repeat itself after a restore.
    #[test]
    fn unique_numbers_are_random_in_all_bits() {
        let numbers: BTreeSet<u128> = (0..100).map(|_| Process.fresh().0).collect();
        let first = numbers.first().copied().unwrap_or_default();
        let varying = numbers.iter().fold(0, |bits, number| bits | (number ^ first));
        assert_eq!((numbers.len(), varying), (100, u128::MAX));
    }
}
