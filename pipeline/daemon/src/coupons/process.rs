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
