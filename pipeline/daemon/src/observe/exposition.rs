//! Observations as gauges, in the text format of Prometheus.
//!
//! They are no gauges of the recorder, which forgets none. A value that is not known has no sample here, so that no old
//! one passes for the present.

use std::fmt::Write as _;
use std::time::Instant;

use anabranch_pipeline::metrics::{self as names, Metric};
use anabranch_pipeline::records::LaneId;

use super::dependencies::DependencyObservation;
use super::{Observatory, SourceObservation, headroom};

/// The text, metric after metric.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
    name: &'static str,
}

impl Exposition {
    /// Begins a metric, to which the following samples belong.
    pub fn metric(&mut self, name: &'static str) {
        self.name = name;
        if let Some(Metric { kind, help, .. }) = Metric::named(name) {
            _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {}\n", kind.name());
        }
    }

    pub fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        self.text.push_str(self.name);
        for (index, (name, value)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            _ = write!(self.text, "{before}{name}=\"{}\"", escaped(value));
        }
        _ = writeln!(self.text, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    pub(super) fn of_source(&mut self, source: &str, value: f64) {
        self.sample(&[("source", source)], value);
    }

    pub(super) fn of_lane(&mut self, LaneId { projection, target, source, lane }: &LaneId, value: f64) {
        let lane = lane.to_string();
        self.sample(
            &[("projection", projection), ("target", target), ("source", source), ("lane", &lane)],
            value,
        );
    }

    pub fn into_text(self) -> String {
        self.text
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

impl Observatory {
    /// Returns everything that was observed and is known at `now`.
    pub fn metrics(&self, now: Instant) -> String {
        let mut shown = Exposition::default();
        self.show_lags(now, &mut shown);
        self.show_commits(&mut shown);
        self.show_headroom(&mut shown);
        self.show_dependencies(&mut shown);
        self.show_programmes(&mut shown);
        shown.into_text()
    }

    fn show_commits(&self, shown: &mut Exposition) {
        let all = self.lock();
        let seconds = |at_us: u64| Some(at_us as f64 / 1e6).filter(|_| at_us > 0);
        shown.metric(names::SOURCE_COMMITTED);
        for (name, source) in &all.sources {
            seconds(source.committed_at_us).iter().for_each(|at| shown.of_source(name, *at));
        }
        shown.metric(names::LANE_COMMITTED);
        for (id, lane) in &all.lanes {
            let at = lane.progress.as_ref().and_then(|progress| seconds(progress.committed_at_us));
            at.iter().for_each(|at| shown.of_lane(id, *at));
        }
    }

    fn show_headroom(&self, shown: &mut Exposition) {
        let all = self.lock();
        type Value = fn(&SourceObservation) -> Option<f64>;
        let metrics: [(&'static str, Value); 7] = [
            (names::BINLOG_BEHIND, |source| {
                let kept = source.kept.as_ref()?;
                let behind = headroom::bytes_behind(&kept.files, source.position?, source.head.newest()?);
                behind.map(|bytes| bytes as f64)
            }),
            (names::BINLOG_KEPT, |source| {
                let kept = source.kept.as_ref()?;
                Some(kept.files.iter().map(|(_, size)| *size).sum::<u64>() as f64)
            }),
            (names::BINLOG_PURGE, |source| {
                let (needed, committed) = (&source.needed_file, source.committed_at_us);
                let left = headroom::purged_in(source.kept.as_ref()?, needed, committed, source.clock_us);
                left.map(|left| left.as_secs_f64())
            }),
            (names::STREAM_BYTES, |source| Some(source.stream?.bytes as f64)),
            (names::STREAM_BYTES_MAX, |source| Some(source.stream?.bytes_max? as f64)),
            (names::STREAM_OLDEST, |source| Some(source.stream?.first_at_us? as f64 / 1e6)),
            (names::STREAM_AGE_MAX, |source| Some(source.stream?.age_max?.as_secs_f64())),
        ];
        for (metric, value) in metrics {
            shown.metric(metric);
            for (name, source) in &all.sources {
                value(source).iter().for_each(|value| shown.of_source(name, *value));
            }
        }
    }

    fn show_dependencies(&self, shown: &mut Exposition) {
        let all = self.lock();
        type Value = fn(&DependencyObservation) -> Option<f64>;
        let metrics: [(&'static str, Value); 3] = [
            (names::DEPENDENCY_UP, |seen| Some(f64::from(u8::from(seen.is_up?)))),
            (names::DEPENDENCY_ANSWER, |seen| Some(seen.took?.as_secs_f64())),
            (names::CERTIFICATE_ENDS, |seen| Some(seen.certificate_ends? as f64)),
        ];
        for (metric, value) in metrics {
            shown.metric(metric);
            for ((kind, name), seen) in &all.dependencies {
                let labels = [("dependency", kind.name()), ("name", name.as_str())];
                value(seen).iter().for_each(|value| shown.sample(&labels, *value));
            }
        }
    }

    pub(super) fn show_lags(&self, now: Instant, shown: &mut Exposition) {
        let all = self.lock();
        shown.metric(names::CAPTURE_LAG);
        for (name, source) in &all.sources {
            if let Some(lag) = source.lag(now) {
                shown.of_source(name, lag.as_secs_f64());
            }
        }
        shown.metric(names::LANE_LAG);
        for (id, lane) in &all.lanes {
            if let Some(lag) = all.sources.get(&id.source).and_then(|source| lane.lag(source, now)) {
                shown.of_lane(id, lag.as_secs_f64());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_quotes_and_line_ends_stays_one_label_of_one_line() {
        let mut shown = Exposition::default();
        shown.metric(names::CAPTURE_LAG);
        shown.of_source("a\"} 1\nb\\", 2.5);
        let last = shown.into_text().lines().last().map(str::to_owned);
        assert_eq!(last.as_deref(), Some(r#"anabranch_capture_lag_seconds{source="a\"} 1\nb\\"} 2.5"#));
    }
}
