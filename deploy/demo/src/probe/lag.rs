//! Lags as histograms, in microseconds.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Largest lag of a histogram: an hour, which is longer than any run.
const LAG_MAX_US: u64 = 3_600_000_000;
/// Significant digits of a histogram.
const PRECISION: u8 = 3;

/// Quantiles of one histogram, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct LagSummary {
    pub probes: u64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

/// Measurements of a run of probes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct LagReport {
    /// Lag from the answer to COMMIT.
    pub from_commit: LagSummary,
    /// Lag from the moment at which the schedule wanted the change.
    pub from_schedule: LagSummary,
    /// Probes never seen; each counts with the time that was waited for it.
    pub unseen: u64,
}

#[derive(Debug)]
pub(super) struct Lags {
    from_commit: Histogram<u64>,
    from_schedule: Histogram<u64>,
    recent: Histogram<u64>,
    phase: Histogram<u64>,
}

impl Default for Lags {
    fn default() -> Self {
        let empty =
            || Histogram::new_with_max(LAG_MAX_US, PRECISION).expect("an hour in microseconds fits 3 digits");
        Self { from_commit: empty(), from_schedule: empty(), recent: empty(), phase: empty() }
    }
}

impl Lags {
    pub fn record(&mut self, since_commit: Duration, since_due: Duration) {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(LAG_MAX_US);
        self.from_commit.saturating_record(micros(since_commit));
        self.recent.saturating_record(micros(since_commit));
        self.phase.saturating_record(micros(since_commit));
        self.from_schedule.saturating_record(micros(since_due));
    }

    pub fn is_empty(&self) -> bool {
        self.from_commit.is_empty()
    }

    pub fn report(&self, unseen: u64) -> LagReport {
        LagReport {
            from_commit: summary(&self.from_commit),
            from_schedule: summary(&self.from_schedule),
            unseen,
        }
    }

    /// Takes the summary of the lags since the last call.
    pub fn take_phase(&mut self) -> LagSummary {
        let phase = summary(&self.phase);
        self.phase.reset();
        phase
    }

    /// Takes the summaries of all lags, and of those since the last call.
    pub fn take_recent(&mut self) -> (LagSummary, LagSummary) {
        let recent = summary(&self.recent);
        self.recent.reset();
        (summary(&self.from_commit), recent)
    }
}

fn summary(histogram: &Histogram<u64>) -> LagSummary {
    let milliseconds = |micros: u64| micros as f64 / 1000.0;
    LagSummary {
        probes: histogram.len(),
        p50_ms: milliseconds(histogram.value_at_quantile(0.5)),
        p99_ms: milliseconds(histogram.value_at_quantile(0.99)),
        max_ms: milliseconds(histogram.max()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_milliseconds_and_recent_ones_begin_anew() {
        let mut lags = Lags::default();
        for lag in 1..=100 {
            lags.record(Duration::from_millis(lag), Duration::from_millis(2 * lag));
        }
        let (all, recent) = lags.take_recent();
        assert_eq!((all.probes, recent), (100, all));
        assert!((all.p50_ms - 50.0).abs() < 0.1 && (all.p99_ms - 99.0).abs() < 0.1, "{all:?}");
        assert!((lags.report(0).from_schedule.max_ms - 200.0).abs() < 0.5);
        assert_eq!(lags.take_recent().1.probes, 0);
    }
}
