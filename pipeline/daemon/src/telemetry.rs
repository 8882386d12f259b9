//! The metrics recorder of this process and its Prometheus text.
//!
//! Names and help texts are the pipeline's; only the buckets of histograms are chosen here. `series.rs` keeps counters
//! and gauges, and the exporter keeps histograms.

mod series;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anabranch_pipeline::config::Config;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::metrics as names;
use anabranch_pipeline::wall_clock;
use metrics::gauge;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use sha2::{Digest, Sha256};

use self::series::{ProcessRecorder, RecordedSeries};
use crate::observe::Observatory;
use crate::observe::exposition::Exposition;
use crate::wiring::{PoolName, PoolUse, pool_uses};

/// Buckets from a lone change or an answer out of memory to an operator's request, or a flush on a server that stands
/// still.
pub const SECONDS: [f64; 16] =
    [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0];
/// Time between two folds of histograms, which keep raw samples: without folds they grow when no scrape comes.
pub const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Buckets from a change in a quiet moment to one that waited through an outage.
const VISIBLE_SECONDS: [f64; 16] =
    [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0];
/// Buckets from round trips of the log to a server that stands still; few, because each source has them, and each
/// projection of a target.
const WAIT_SECONDS: [f64; 3] = [0.01, 0.1, 1.0];
/// Buckets of fill. The last below 1 tells full transactions from others: the last message may overfill one.
const FILL: [f64; 8] = [0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.999, 2.0];
/// Upper ends of the buckets of each histogram.
const BUCKETS: [(&str, &[f64]); 7] = [
    (names::LANE_FLUSH_SECONDS, &SECONDS),
    (names::HTTP_REQUEST_SECONDS, &SECONDS),
    (names::LANE_VISIBLE, &VISIBLE_SECONDS),
    (names::LANE_READ_TO_VISIBLE, &VISIBLE_SECONDS),
    (names::LANE_FLUSH_FILL, &FILL),
    (names::LOG_WAIT, &WAIT_SECONDS),
    (names::LANE_WAIT, &WAIT_SECONDS),
];
/// Commit that the build names with `ANABRANCH_COMMIT`.
pub const COMMIT: &str = match option_env!("ANABRANCH_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};
/// Bytes of a configuration's hash: enough that two configurations of one installation differ.
const HASH_BYTES: usize = 6;

/// The metrics of this process, as a scrape shows them. Clones share them.
#[derive(Debug, Clone)]
pub struct Telemetry {
    series: RecordedSeries,
    histograms: PrometheusHandle,
    /// Size of the last scrape, so that the text of the next one gets its room at once.
    scrape_bytes: Arc<AtomicUsize>,
}

impl Telemetry {
    /// Returns the text of a scrape: what was recorded, what was observed, and the present figures of the process.
    pub fn scrape(&self, observatory: &Observatory) -> String {
        let mut shown = Exposition::with_capacity(self.scrape_bytes.load(Ordering::Relaxed));
        self.series.show(&mut shown);
        shown.text(&self.histograms.render());
        observatory.show_metrics(Instant::now(), &mut shown);
        show_pools(&mut shown);
        show_process(&mut shown);
        let text = shown.into_text();
        // Values may get longer until the next scrape.
        self.scrape_bytes.store(text.len() + text.len() / 16, Ordering::Relaxed);
        text
    }

    /// Returns the sum of a counter over its series that have this label.
    pub fn counted(&self, counter: &str, label: (&str, &str)) -> u64 {
        self.series.counted(counter, label)
    }

    /// Folds the samples of histograms.
    pub fn run_upkeep(&self) {
        self.histograms.run_upkeep();
    }
}

/// Installs the recorder and sets the metrics that describe the process; to be called once in a process.
pub fn install(config: &Config) -> Result<Telemetry, Fault> {
    let (recorder, telemetry) = recorder()?;
    metrics::set_global_recorder(recorder).map_err(|error| broken(error.to_string()))?;
    names::describe();
    describe_process(config);
    Ok(telemetry)
}

/// Makes a recorder that is not installed, and what a scrape shows of it.
fn recorder() -> Result<(ProcessRecorder, Telemetry), Fault> {
    let (series, exporter) = (RecordedSeries::default(), exporter()?.build_recorder());
    let telemetry =
        Telemetry { series: series.clone(), histograms: exporter.handle(), scrape_bytes: Arc::default() };
    Ok((ProcessRecorder { series, exporter }, telemetry))
}

/// Returns the exporter of histograms, with their buckets.
fn exporter() -> Result<PrometheusBuilder, Fault> {
    let mut builder = PrometheusBuilder::new();
    for (name, buckets) in BUCKETS {
        builder = builder
            .set_buckets_for_metric(Matcher::Full(name.to_owned()), buckets)
            .map_err(|error| broken(error.to_string()))?;
    }
    Ok(builder)
}

fn broken(error: String) -> Fault {
    Fault::new(Code::Internal, "metrics", "the recorder cannot be set up").caused_by(error)
}

/// Returns metrics of a recorder that is not installed.
#[cfg(test)]
pub(crate) fn uninstalled() -> Telemetry {
    recorder().expect("each histogram has buckets").1
}

/// Shows version, commit, start, and the configuration as a hash of its form without secrets.
fn describe_process(config: &Config) {
    gauge!(names::BUILD, "version" => env!("CARGO_PKG_VERSION"), "commit" => COMMIT).set(1.0);
    gauge!(names::CONFIGURATION, "configuration" => configuration_hash(config)).set(1.0);
    gauge!(names::PROCESS_STARTED).set(wall_clock::now().as_secs_f64());
}

/// Returns the hash of a configuration without its secrets and without `http.listen`, an address of one machine.
fn configuration_hash(config: &Config) -> String {
    let mut shared = config.clone();
    shared.http.listen = None;
    // Secrets print as stars.
    let digest = Sha256::digest(format!("{shared:?}").as_bytes());
    digest.iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect()
}

/// Shows the present use of the connection pools of this process.
fn show_pools(shown: &mut Exposition) {
    let uses = pool_uses();
    type Value = fn(&PoolUse) -> usize;
    let metrics: [(&'static str, Value); 3] = [
        (names::POOL_IN_USE, |pool| pool.in_use),
        (names::POOL_MAX, |pool| pool.connections_max),
        (names::POOL_WAITING, |pool| pool.waiting),
    ];
    for (metric, value) in metrics {
        shown.metric(metric);
        for (PoolName { dependency, name, pool }, used) in &uses {
            shown.sample(&[("dependency", dependency), ("name", name), ("pool", pool)], value(used) as f64);
        }
    }
}

/// Shows the present figures of this process, without its start: a unit may hide when the machine began.
fn show_process(shown: &mut Exposition) {
    let now = metrics_process::collector::collect();
    let figures = [
        (names::PROCESS_CPU, now.cpu_seconds_total),
        (names::PROCESS_RESIDENT, now.resident_memory_bytes.map(|bytes| bytes as f64)),
        (names::PROCESS_VIRTUAL, now.virtual_memory_bytes.map(|bytes| bytes as f64)),
        (names::PROCESS_FILES, now.open_fds.map(|files| files as f64)),
        (names::PROCESS_FILES_MAX, now.max_fds.map(|files| files as f64)),
        (names::PROCESS_THREADS, now.threads.map(|threads| threads as f64)),
    ];
    for (name, figure) in figures {
        shown.metric(name);
        figure.iter().for_each(|figure| shown.sample(&[], *figure));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemons_of_one_configuration_have_one_hash_at_whatever_address_each_one_listens() {
        let config = Config::parse(include_str!("../../../deploy/anabranch.example.toml")).unwrap();
        let mut other = config.clone();
        other.http.listen = Some("10.0.0.7:9464".parse().unwrap());
        assert_ne!(config.http.listen, other.http.listen);
        assert_eq!(configuration_hash(&config), configuration_hash(&other));
        other.name.push('2');
        assert_ne!(configuration_hash(&config), configuration_hash(&other));
    }
}
