//! Observations as gauges, in the text format of Prometheus.
//!
//! They are no gauges of the recorder, which forgets none. A value that is not known has no sample here, so that no old
//! one passes for the present.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::time::{Duration, Instant};

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
    /// Makes a text with room for so many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { text: String::with_capacity(bytes), name: "" }
    }

    /// Begins a metric, to which the following samples belong.
    pub fn metric(&mut self, name: &'static str) {
        self.name = name;
        if let Some(Metric { kind, help, .. }) = Metric::named(name) {
            _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {}\n", kind.name());
        }
    }

    pub fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        write_series(&mut self.text, self.name, labels);
        _ = writeln!(self.text, " {value}");
    }

    /// Adds a sample whose name and labels [`write_series`] has written before.
    pub fn written(&mut self, series: &str, value: impl Display) {
        self.text.push_str(series);
        _ = writeln!(self.text, " {value}");
    }

    /// Adds whole metrics in this text format.
    pub fn text(&mut self, metrics: &str) {
        self.text.push_str(metrics);
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

/// Writes name and labels as they stand before a value.
pub fn write_series(text: &mut String, name: &str, labels: &[(&str, &str)]) {
    text.push_str(name);
    for (index, (label, value)) in labels.iter().enumerate() {
        text.push(if index == 0 { '{' } else { ',' });
        text.push_str(label);
        text.push_str("=\"");
        push_escaped(text, value);
        text.push('"');
    }
    if !labels.is_empty() {
        text.push('}');
    }
}

/// Returns whole milliseconds as seconds, because further decimals make a scrape of very many lanes large. It rounds
/// up, because only 0 says that nothing is late.
fn seconds(lag: Duration) -> f64 {
    lag.as_nanos().div_ceil(1_000_000) as f64 / 1e3
}

fn push_escaped(text: &mut String, value: &str) {
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            _ => text.push(character),
        }
    }
}

impl Observatory {
    /// Shows everything that was observed and is known at `now`.
    pub fn show_metrics(&self, now: Instant, shown: &mut Exposition) {
        self.show_lags(now, shown);
        self.show_commits(shown);
        self.show_headroom(shown);
        self.show_paused(shown);
        self.show_dependencies(now, shown);
        self.show_served(now, shown);
        self.show_programmes(shown);
    }

    fn show_commits(&self, shown: &mut Exposition) {
        let all = self.lock();
        let seconds = |at_us: u64| Some(at_us as f64 / 1e6).filter(|_| at_us > 0);
        shown.metric(names::SOURCE_COMMITTED);
        for (name, source) in &all.sources {
            seconds(source.committed_at_us).iter().for_each(|at| shown.of_source(name, *at));
        }
        shown.metric(names::LANE_COMMITTED);
        let mut newest: BTreeMap<[&str; 3], u64> = BTreeMap::new();
        for (LaneId { projection, target, source, .. }, lane) in &all.lanes {
            let at_us = lane.progress.as_ref().map_or(0, |progress| progress.committed_at_us);
            let newest = newest.entry([projection.as_str(), target.as_str(), source.as_str()]).or_default();
            *newest = at_us.max(*newest);
        }
        for ([projection, target, source], at_us) in newest {
            let labels = [("projection", projection), ("target", target), ("source", source)];
            seconds(at_us).iter().for_each(|at| shown.sample(&labels, *at));
        }
    }

    fn show_headroom(&self, shown: &mut Exposition) {
        let all = self.lock();
        type Value = fn(&SourceObservation) -> Option<f64>;
        let metrics: [(&'static str, Value); 7] = [
            (names::BINLOG_LAG, |source| {
                let kept = source.kept.as_ref()?;
                let lag = headroom::lag_bytes(&kept.files, source.position?, source.head.newest()?);
                lag.map(|bytes| bytes as f64)
            }),
            (names::BINLOG_KEPT, |source| {
                let kept = source.kept.as_ref()?;
                Some(kept.files.iter().map(|(_, size)| *size).sum::<u64>() as f64)
            }),
            (names::BINLOG_PURGE, |source| Some(source.purge_left()?.as_secs_f64())),
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

    fn show_paused(&self, shown: &mut Exposition) {
        let all = self.lock();
        shown.metric(names::LANE_PAUSED_LEFT);
        for (id, lane) in &all.lanes {
            all.paused_left(id, lane).iter().for_each(|left| shown.of_lane(id, left.as_secs_f64()));
        }
    }

    fn show_dependencies(&self, now: Instant, shown: &mut Exposition) {
        let all = self.lock();
        type Value = fn(&DependencyObservation, Instant) -> Option<f64>;
        let metrics: [(&'static str, Value); 3] = [
            (names::DEPENDENCY_UP, |seen, now| Some(f64::from(u8::from(seen.known(now).0?)))),
            (names::DEPENDENCY_ANSWER, |seen, now| Some(seen.known(now).1?.as_secs_f64())),
            (names::CERTIFICATE_ENDS, |seen, _| Some(seen.certificate_ends? as f64)),
        ];
        for (metric, value) in metrics {
            shown.metric(metric);
            for ((kind, name), seen) in &all.dependencies {
                let labels = [("dependency", kind.name()), ("name", name.as_str())];
                value(seen, now).iter().for_each(|value| shown.sample(&labels, *value));
            }
        }
    }

    pub(super) fn show_lags(&self, now: Instant, shown: &mut Exposition) {
        let all = self.lock();
        shown.metric(names::CAPTURE_LAG);
        for (name, source) in &all.sources {
            if let Some(lag) = source.lag(now) {
                shown.of_source(name, seconds(lag));
            }
        }
        shown.metric(names::LANE_LAG);
        for (id, lane) in &all.lanes {
            if let Some(lag) = all.sources.get(&id.source).and_then(|source| lane.lag(source, now)) {
                shown.of_lane(id, seconds(lag));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use anabranch_pipeline::config::Config;
    use anabranch_pipeline::error::{Code, Fault};

    use super::*;
    use crate::observe::Dependency;

    #[test]
    fn a_server_that_is_polled_no_longer_is_neither_up_nor_down() {
        let config = Config::parse(include_str!("../../../../deploy/anabranch.example.toml")).unwrap();
        let (observatory, asked) = (Observatory::new(&config), Instant::now());
        let shown = |now: Instant| -> Vec<String> {
            let mut shown = Exposition::default();
            observatory.show_metrics(now, &mut shown);
            let is_up = |line: &&str| line.starts_with("anabranch_dependency_up{");
            shown.into_text().lines().filter(is_up).map(str::to_owned).collect()
        };
        observatory.answered(Dependency::CouponSystem, "coupon-system", asked, &Ok(()));
        let failed: Result<(), _> = Err(Fault::new(Code::LogUnreachable, "log", "no answer"));
        observatory.answered(Dependency::Log, "log", asked, &failed);
        let now = Instant::now();
        let expected = [
            "anabranch_dependency_up{dependency=\"log\",name=\"log\"} 0",
            "anabranch_dependency_up{dependency=\"coupon-system\",name=\"coupon-system\"} 1",
        ];
        assert_eq!(shown(now), expected);
        assert!(shown(now + Duration::from_secs(60)).is_empty());
    }

    #[test]
    fn a_lag_has_three_decimals_and_is_0_only_if_nothing_is_late() {
        let shown =
            [0, 1, 999_999, 1_000_001, 1_234_567_891].map(|nanos| seconds(Duration::from_nanos(nanos)));
        assert_eq!(shown.map(|lag| lag.to_string()), ["0", "0.001", "0.001", "0.002", "1.235"]);
    }

    #[test]
    fn a_name_with_quotes_and_line_ends_stays_one_label_of_one_line() {
        let mut shown = Exposition::default();
        shown.metric(names::CAPTURE_LAG);
        shown.of_source("a\"} 1\nb\\", 2.5);
        let last = shown.into_text().lines().last().map(str::to_owned);
        assert_eq!(last.as_deref(), Some(r#"anabranch_capture_lag_seconds{source="a\"} 1\nb\\"} 2.5"#));
    }
}
