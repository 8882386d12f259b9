//! Lag of a position: the age of the oldest known work that it does not cover, by the clock and the source's head.
//!
//! The head is observed about once a second and kept with the time at which it was first seen. While work is stuck, lag
//! grows with the clock, also when the reader is dead or the source does not answer. Nothing here reads a clock or
//! compares positions of two sources.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anabranch_schemas::lsn::Lsn;

/// Observations kept of one source. At one a second: 34 minutes at full resolution, then coarser, never forgotten.
pub const SAMPLES_MAX: usize = 2048;

/// The observed heads of one source, rising in position and time.
#[derive(Debug, Clone)]
pub struct HeadSamples {
    samples: VecDeque<(Lsn, Instant)>,
    samples_max: usize,
}

impl Default for HeadSamples {
    fn default() -> Self {
        Self::with_limit(SAMPLES_MAX)
    }
}

impl HeadSamples {
    /// Keeps at most `samples_max` (at least 2) observations.
    pub fn with_limit(samples_max: usize) -> Self {
        Self { samples: VecDeque::new(), samples_max: samples_max.max(2) }
    }

    /// Records that the head was at `position`. A head that has not moved adds no sample, and neither does one that
    /// went back (a reset server): a position that was seen and is not applied still counts as lag.
    pub fn observe(&mut self, position: Lsn, seen: Instant) {
        if self.newest().is_some_and(|newest| position <= newest) {
            return;
        }
        if self.samples.len() >= self.samples_max {
            self.halve();
        }
        self.samples.push_back((position, seen));
    }

    /// Returns the newest known position of the source.
    pub fn newest(&self) -> Option<Lsn> {
        self.samples.back().map(|(position, _)| *position)
    }

    /// Returns the time since the oldest observation above `position`; zero when there is none.
    pub fn lag(&self, position: Lsn, now: Instant) -> Duration {
        let above = self.samples.partition_point(|(sample, _)| *sample <= position);
        self.samples.get(above).map_or(Duration::ZERO, |(_, seen)| now.saturating_duration_since(*seen))
    }

    /// Drops the observations that every user of this source has passed, except the newest one.
    pub fn forget(&mut self, passed_by_all: Lsn) {
        let passed = self.samples.partition_point(|(sample, _)| *sample <= passed_by_all);
        self.samples.drain(..passed.min(self.samples.len().saturating_sub(1)));
    }

    /// Merges neighbours into (higher position, earlier time): lag may be overstated by one gap, never understated.
    fn halve(&mut self) {
        let samples = std::mem::take(&mut self.samples);
        let mut samples = samples.into_iter();
        while let Some((position, seen)) = samples.next() {
            let position = samples.next().map_or(position, |(next, _)| next);
            self.samples.push_back((position, seen));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(position: u64) -> Lsn {
        Lsn::new(1, 1, position * 16).unwrap()
    }

    fn seconds(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    #[test]
    fn lag_grows_with_the_clock_while_a_position_is_stuck() {
        let start = Instant::now();
        let mut head = HeadSamples::default();
        head.observe(at(10), start);
        head.observe(at(20), start + seconds(1));
        assert_eq!(head.lag(at(20), start + seconds(9)), Duration::ZERO);
        assert_eq!(head.lag(at(10), start + seconds(3)), seconds(2));
        // The source no longer answers: there are no new samples, and the lag still grows.
        assert_eq!(head.lag(at(10), start + seconds(300)), seconds(299));
        assert_eq!(head.lag(at(9), start + seconds(300)), seconds(300));
    }

    #[test]
    fn an_idle_source_makes_no_lag() {
        let start = Instant::now();
        let mut head = HeadSamples::default();
        assert_eq!(head.lag(Lsn::ZERO, start), Duration::ZERO);
        for second in 0..100 {
            head.observe(at(10), start + seconds(second));
        }
        assert_eq!(head.lag(at(10), start + seconds(100)), Duration::ZERO);
        assert_eq!(head.lag(at(9), start + seconds(100)), seconds(100));
    }

    #[test]
    fn a_head_that_went_back_stays_owed() {
        let start = Instant::now();
        let mut head = HeadSamples::default();
        head.observe(at(10), start);
        head.observe(at(5), start + seconds(1));
        assert_eq!(head.newest(), Some(at(10)));
        assert_eq!(head.lag(at(5), start + seconds(2)), seconds(2));
    }

    #[test]
    fn forgetting_keeps_what_somebody_has_not_passed() {
        let start = Instant::now();
        let mut head = HeadSamples::default();
        for number in 1..=10 {
            head.observe(at(number), start + seconds(number));
        }
        head.forget(at(4));
        assert_eq!(head.lag(at(4), start + seconds(11)), seconds(6));
        head.forget(at(100));
        assert_eq!(head.newest(), Some(at(10)));
    }

    proptest! {
        #[test]
        fn a_bounded_ring_never_understates_lag(moves in prop::collection::vec(0..3u64, 1..200), stuck in 0..300u64) {
            let start = Instant::now();
            let (mut bounded, mut exact) = (HeadSamples::with_limit(8), HeadSamples::with_limit(10_000));
            let mut position = 1;
            for (second, step) in moves.iter().enumerate() {
                position += step;
                bounded.observe(at(position), start + seconds(second as u64));
                exact.observe(at(position), start + seconds(second as u64));
            }
            let now = start + seconds(moves.len() as u64);
            prop_assert!(bounded.samples.len() <= 8);
            prop_assert!(bounded.lag(at(stuck), now) >= exact.lag(at(stuck), now));
            prop_assert_eq!(bounded.lag(at(position), now), Duration::ZERO);
            prop_assert_eq!(bounded.newest(), exact.newest());
        }
    }
}
