//! The rate at which a counter rises, from its samples of the last seconds.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time over which a rate is measured: long enough to be steady, short enough to be "now".
const WINDOW: Duration = Duration::from_secs(5);
/// Samples of a counter, at most: more than the window ever holds at one a second.
const SAMPLES_MAX: usize = 16;

/// The samples of one counter, such as the offset of a source's end in its binlog file.
#[derive(Debug, Clone, Default)]
pub struct Rate {
    /// Number that the caller gives to samples that belong together, such as the number of the binlog file.
    series: u64,
    samples: VecDeque<(Instant, u64)>,
}

impl Rate {
    /// Adds a sample. A value below the one before it, or another `series`, drops the earlier samples.
    pub fn observe(&mut self, series: u64, value: u64, now: Instant) {
        let restarted = self.samples.back().is_some_and(|(_, before)| value < *before);
        if restarted || series != self.series {
            self.samples.clear();
            self.series = series;
        }
        self.samples.push_back((now, value));
        while self.samples.len() > SAMPLES_MAX
            || (self.samples.len() > 2 && now.saturating_duration_since(self.samples[0].0) > WINDOW)
        {
            self.samples.pop_front();
        }
    }

    /// Returns the rate; `None` until there are two samples at different times.
    pub fn per_second(&self) -> Option<f64> {
        let (first, last) = (self.samples.front()?, self.samples.back()?);
        let seconds = last.0.saturating_duration_since(first.0).as_secs_f64();
        (seconds > 0.0).then(|| (last.1 - first.1) as f64 / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_needs_two_samples_and_forgets_old_ones() {
        let start = Instant::now();
        let mut rate = Rate::default();
        rate.observe(0, 100, start);
        assert_eq!(rate.per_second(), None);
        rate.observe(0, 300, start + Duration::from_secs(2));
        assert_eq!(rate.per_second(), Some(100.0));
        for second in 3..60 {
            rate.observe(0, 300, start + Duration::from_secs(second));
        }
        assert_eq!(rate.per_second(), Some(0.0));
    }

    #[test]
    fn a_counter_that_went_back_begins_anew() {
        let start = Instant::now();
        let mut rate = Rate::default();
        rate.observe(1, 1_000_000, start);
        rate.observe(1, 10, start + Duration::from_secs(1));
        assert_eq!(rate.per_second(), None);
        rate.observe(2, 4_000, start + Duration::from_secs(2));
        assert_eq!(rate.per_second(), None);
    }
}
