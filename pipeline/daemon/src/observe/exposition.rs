//! What was observed as gauges, in the text format of Prometheus.
//!
//! They are no gauges of the recorder, which forgets none: what is not known has no sample, so that nobody takes an old
//! one for the present.

use std::fmt::Write as _;
use std::time::Instant;

use anabranch_pipeline::metrics::{self as names, Metric};
use anabranch_pipeline::records::LaneId;

use super::Observatory;

/// The text, metric after metric.
#[derive(Debug, Default)]
pub(super) struct Exposition {
    text: String,
    name: &'static str,
}

impl Exposition {
    /// The samples that follow are this metric's.
    pub(super) fn metric(&mut self, name: &'static str) {
        self.name = name;
        if let Some(Metric { kind, help, .. }) = Metric::named(name) {
            _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {}\n", kind.name());
        }
    }

    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
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

    pub(super) fn into_text(self) -> String {
        self.text
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

impl Observatory {
    /// Everything that was observed and is known as of now.
    pub fn metrics(&self, now: Instant) -> String {
        let mut shown = Exposition::default();
        self.show_lags(now, &mut shown);
        shown.into_text()
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
