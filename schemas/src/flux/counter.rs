//! The counters of identifiers' sequences, and the rows that hold them.
//!
//! There is a counter for each date, region, user partition, and main or fail-over. Its row is one of a ring of
//! [`SLOTS`] days: each day takes over the row of sixteen days before. So set-up makes all rows once, and an account
//! that may only UPDATE them works for ever.

use std::fmt;

use jiff::civil::{Date, date};

use crate::flux::id::{FluxId, Region, Side};
use crate::flux::table::PARTITIONS;

/// Days of a ring; far more than a requested date may lie in the past or in the future.
pub const SLOTS: u8 = 16;

/// One counter. Its numbers begin at 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Counter {
    pub date: Date,
    pub ring: Ring,
}

/// The counters of all dates for one region, user partition, and main or fail-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ring {
    /// Digit of the region, 0 or 1.
    region: u8,
    side: u8,
    partition: u8,
}

impl Ring {
    /// Builds a ring; `None` when the partition has more than two digits.
    pub fn new(region: Region, side: Side, partition: u8) -> Option<Self> {
        let is_partition = u32::from(partition) < PARTITIONS;
        is_partition.then_some(Self { region: region.digit(), side: side.digit(), partition })
    }

    /// Returns all rings of a region: first main, then fail-over.
    pub fn of_region(region: Region) -> impl Iterator<Item = Self> {
        let of_side =
            move |side| (0..PARTITIONS as u8).filter_map(move |number| Self::new(region, side, number));
        [Side::Main, Side::FailOver].into_iter().flat_map(of_side)
    }

    /// Returns the digit of the region.
    pub fn region(self) -> u8 {
        self.region
    }

    /// Returns the digit of main or fail-over.
    pub fn side(self) -> u8 {
        self.side
    }

    pub fn partition(self) -> u8 {
        self.partition
    }

    pub fn on(self, date: Date) -> Counter {
        Counter { date, ring: self }
    }
}

impl Counter {
    /// Returns the counter that an identifier's sequence belongs to.
    pub fn of(id: &FluxId) -> Self {
        let parts = id.parts();
        let (region, side) = (parts.region.digit(), parts.side.digit());
        Self { date: parts.date, ring: Ring { region, side, partition: parts.partition } }
    }

    /// Returns the row of its ring that this day takes.
    pub fn slot(&self) -> u8 {
        let days = date(1970, 1, 1).until(self.date).map_or(0, |span| span.get_days());
        // The remainder of a division by 16 fits.
        days.rem_euclid(i32::from(SLOTS)) as u8
    }
}

/// Writes `region 0, main, partition 07`.
impl fmt::Display for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = if self.side == 0 { Side::Main } else { Side::FailOver };
        write!(f, "region {}, {}, partition {:02}", self.region, side.name(), self.partition)
    }
}

/// Writes `2026-11-26, region 0, main, partition 07`.
impl fmt::Display for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.date, self.ring)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_day_has_the_row_of_the_day_sixteen_days_before_it_and_no_day_between_has_it() {
        let ring = Ring::new(Region::UnitedStates, Side::Main, 7).unwrap();
        let days: Vec<Date> = date(2027, 12, 20).series(jiff::ToSpan::day(1)).take(100).collect();
        let slots: Vec<u8> = days.iter().map(|day| ring.on(*day).slot()).collect();
        for window in slots.windows(usize::from(SLOTS)) {
            assert_eq!(window.iter().collect::<BTreeSet<_>>().len(), usize::from(SLOTS), "{window:?}");
        }
        assert!(slots.iter().zip(&slots[usize::from(SLOTS)..]).all(|(one, later)| one == later));
        assert!(ring.on(date(1, 1, 1)).slot() < SLOTS);
        assert!(ring.on(date(9999, 12, 31)).slot() < SLOTS);
    }

    #[test]
    fn a_region_has_two_hundred_rings_and_an_identifier_knows_its_own() {
        let rings: BTreeSet<Ring> = Ring::of_region(Region::Singapore).collect();
        assert_eq!(rings.len(), 200);
        let id: FluxId = "2016060611031103099052400029904".parse().unwrap();
        let counter = Counter::of(&id);
        assert_eq!(counter.to_string(), "2016-06-06, region 1, main, partition 05");
        assert!(rings.contains(&counter.ring));
        assert_eq!(Ring::new(Region::Singapore, Side::Main, 100), None);
        let next = id.with_sequence(29_905).unwrap();
        assert_eq!(
            (next.to_string().as_str(), Counter::of(&next)),
            ("2016060611031103099052400029905", counter)
        );
        assert_eq!(id.with_sequence(100_000_000), None);
    }
}
