//! Counters and gauges of this process, each with a line that is written before any scrape.
//!
//! The exporter copies and formats each label of each series for every scrape. With some hundred lanes that takes
//! longer than everything else in the scrape. Here a series gets its text once, when it is registered, and a scrape
//! adds its value. Histograms stay with the exporter, because no lane has one of its own, and so they are few.
//!
//! A line has the labels that `metrics.rs` lists, and no other. Series that differ only in other labels share a line: a
//! counter shows their sum, a gauge the value that is farthest from 0, or one of [`SUMMED`] the sum of absolute values.
//! So a metric without the label `lane` shows all lanes of a source together.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};

use anabranch_pipeline::metrics::{self as names, Kind, Metric};
use metrics::atomics::AtomicU64;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::PrometheusRecorder;

use crate::observe::exposition::{Exposition, write_series};

/// Gauges that count something of each lane, so that a line adds them up. A surplus of one lane cannot hide a lack of
/// another one.
const SUMMED: [&str; 2] = [names::LANE_DIRECT, names::LANE_UNACCOUNTED];

/// All counters and gauges that `metrics.rs` lists. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct RecordedSeries(Arc<RwLock<RegisteredSeries>>);

#[derive(Debug, Default)]
struct RegisteredSeries {
    values: HashMap<Key, Arc<AtomicU64>>,
    /// Lines of each metric, in the order of a scrape.
    metrics: BTreeMap<&'static str, MetricLines>,
}

/// Lines of one metric: name and labels as they stand in the scrape, with the values that the line shows.
#[derive(Debug)]
struct MetricLines {
    kind: Kind,
    lines: BTreeMap<String, Vec<Arc<AtomicU64>>>,
}

impl RecordedSeries {
    /// Returns the value of a series, which it registers when it is new; `None` if `metrics.rs` lists no such metric.
    fn value(&self, key: &Key, kind: Kind) -> Option<Arc<AtomicU64>> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner).values.get(key).cloned();
        if known.is_some() {
            return known;
        }
        let metric = Metric::named(key.name()).filter(|metric| metric.kind == kind)?;
        Some(self.register(metric, key))
    }

    fn register(&self, metric: &'static Metric, key: &Key) -> Arc<AtomicU64> {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have registered it since.
        if let Some(known) = all.values.get(key) {
            return known.clone();
        }
        let value = Arc::new(AtomicU64::new(0));
        let listed = key.labels().filter(|label| metric.labels.contains(&label.key()));
        let labels: Vec<_> = listed.map(|label| (label.key(), label.value())).collect();
        let mut line = String::new();
        write_series(&mut line, metric.name, &labels);
        let lines = all
            .metrics
            .entry(metric.name)
            .or_insert_with(|| MetricLines { kind: metric.kind, lines: BTreeMap::new() });
        lines.lines.entry(line).or_default().push(value.clone());
        all.values.insert(key.to_retained(), value.clone());
        value
    }

    /// Returns the sum of a counter over its series that have this label.
    pub(super) fn counted(&self, counter: &str, label: (&str, &str)) -> u64 {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let is_meant =
            |key: &Key| key.name() == counter && key.labels().any(|own| (own.key(), own.value()) == label);
        let meant = all.values.iter().filter(|&(key, _)| is_meant(key));
        meant.map(|(_, value)| value.load(Ordering::Acquire)).fold(0, u64::saturating_add)
    }

    /// Shows the present value of each line.
    pub(super) fn show(&self, shown: &mut Exposition) {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        for (&name, MetricLines { kind, lines }) in &all.metrics {
            shown.metric(name);
            for (line, values) in lines {
                match kind {
                    Kind::Counter => shown.written(line, sum(values)),
                    _ if SUMMED.contains(&name) => shown.written(line, absolute_sum(values)),
                    Kind::Gauge | Kind::Histogram => shown.written(line, farthest(values)),
                }
            }
        }
    }
}

fn sum(values: &[Arc<AtomicU64>]) -> u64 {
    values.iter().map(|value| value.load(Ordering::Acquire)).fold(0, u64::saturating_add)
}

/// Returns the value that is farthest from 0.
fn farthest(values: &[Arc<AtomicU64>]) -> f64 {
    let most = |most: f64, next: f64| if next.abs() > most.abs() { next } else { most };
    gauges(values).reduce(most).unwrap_or_default()
}

fn absolute_sum(values: &[Arc<AtomicU64>]) -> f64 {
    gauges(values).map(f64::abs).sum()
}

fn gauges(values: &[Arc<AtomicU64>]) -> impl Iterator<Item = f64> {
    values.iter().map(|value| f64::from_bits(value.load(Ordering::Acquire)))
}

/// The recorder of this process: it keeps counters and gauges itself, and gives histograms to the exporter.
pub(super) struct ProcessRecorder {
    pub(super) series: RecordedSeries,
    pub(super) exporter: PrometheusRecorder,
}

impl Recorder for ProcessRecorder {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.exporter.describe_counter(key, unit, description);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.exporter.describe_gauge(key, unit, description);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.exporter.describe_histogram(key, unit, description);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        match self.series.value(key, Kind::Counter) {
            Some(value) => Counter::from_arc(value),
            None => self.exporter.register_counter(key, metadata),
        }
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        match self.series.value(key, Kind::Gauge) {
            Some(value) => Gauge::from_arc(value),
            None => self.exporter.register_gauge(key, metadata),
        }
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        self.exporter.register_histogram(key, metadata)
    }
}

#[cfg(test)]
mod tests {
    use metrics::{Label, Level};

    use super::*;
    use crate::telemetry::exporter;

    fn key(name: &'static str, lane: &'static str) -> Key {
        let labels = [("projection", "p"), ("target", "t"), ("source", "s"), ("lane", lane)];
        let labels = labels.map(|(name, value)| Label::from_static_parts(name, value));
        Key::from_parts(name, labels.to_vec())
    }

    fn lines(series: &RecordedSeries) -> Vec<String> {
        let mut shown = Exposition::default();
        series.show(&mut shown);
        shown.into_text().lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    #[test]
    fn a_counter_is_summed_over_the_series_that_have_a_label() {
        let recorder = ProcessRecorder {
            series: RecordedSeries::default(),
            exporter: exporter().unwrap().build_recorder(),
        };
        let metadata = Metadata::new(module_path!(), Level::INFO, None);
        for (outcome, reason, codes) in [("hit", "", 7), ("bypassed", "lagging", 2), ("bypassed", "away", 3)]
        {
            let labels = [("outcome", outcome), ("reason", reason)];
            let labels = labels.map(|(name, value)| Label::from_static_parts(name, value));
            let key = Key::from_parts(names::CACHE_LOOKUPS, labels.to_vec());
            recorder.register_counter(&key, &metadata).increment(codes);
        }
        let codes = |outcome| recorder.series.counted(names::CACHE_LOOKUPS, ("outcome", outcome));
        assert_eq!([codes("hit"), codes("miss"), codes("bypassed")], [7, 0, 5]);
        assert_eq!(recorder.series.counted(names::CACHE_FILLS, ("outcome", "hit")), 0);
    }

    #[test]
    fn lanes_share_a_line_of_a_metric_without_their_label_and_have_their_own_of_others() {
        let recorder = ProcessRecorder {
            series: RecordedSeries::default(),
            exporter: exporter().unwrap().build_recorder(),
        };
        let metadata = Metadata::new(module_path!(), Level::INFO, None);
        for (lane, rows, tables) in [("0", 2, 4.0), ("1", 3, 1.0), ("0", 10, 2.0)] {
            recorder.register_counter(&key(names::LANE_ROWS, lane), &metadata).increment(rows);
            recorder.register_gauge(&key(names::REFRESH_TABLES_LEFT, lane), &metadata).set(tables);
            recorder.register_counter(&key(names::LANE_CHANGES, lane), &metadata).increment(rows);
            let unaccounted = if lane == "0" { -tables } else { tables };
            recorder.register_gauge(&key(names::LANE_UNACCOUNTED, lane), &metadata).set(unaccounted);
            recorder.register_gauge(&key(names::LANE_DIRECT, lane), &metadata).set(1.0);
        }
        let source = "projection=\"p\",target=\"t\",source=\"s\"";
        assert_eq!(
            lines(&recorder.series),
            [
                format!("anabranch_lane_changes_total{{{source},lane=\"0\"}} 12"),
                format!("anabranch_lane_changes_total{{{source},lane=\"1\"}} 3"),
                format!("anabranch_lane_direct_feeds{{{source}}} 2"),
                format!("anabranch_lane_rows_total{{{source}}} 15"),
                format!("anabranch_lane_unaccounted_changes{{{source}}} 3"),
                format!("anabranch_refresh_tables_left{{{source}}} 2"),
            ]
        );
    }
}
