//! The metrics recorder of this process and its Prometheus text.
//!
//! Names and help texts are the pipeline's; only the buckets of histograms are chosen here.

use std::time::Duration;

use anabranch_pipeline::config::Config;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::metrics as names;
use anabranch_pipeline::wall_clock;
use metrics::gauge;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use sha2::{Digest, Sha256};

use crate::observe::exposition::Exposition;

/// Buckets from a lone change or an answer out of memory to a flush of 20,000 rows on a busy server.
const SECONDS: [f64; 13] = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0];
/// Time between two folds of histograms, which keep raw samples: without folds they grow when no scrape comes.
pub const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Buckets from a change in a quiet moment to one that waited through an outage.
const VISIBLE_SECONDS: [f64; 16] =
    [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0];
/// Buckets of fill. The last below 1 tells full transactions from others: the last message may overfill one.
const FILL: [f64; 8] = [0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.999, 2.0];
/// Commit that the build names with `ANABRANCH_COMMIT`.
const COMMIT: &str = match option_env!("ANABRANCH_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};
/// Bytes of a configuration's hash: enough that two configurations of one installation differ.
const HASH_BYTES: usize = 6;

/// Installs the recorder and sets the metrics that describe the process; to be called once in a process.
pub fn install(config: &Config) -> Result<PrometheusHandle, Fault> {
    let broken =
        |error| Fault::new(Code::Internal, "metrics", "the recorder cannot be set up").caused_by(error);
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Full(names::LANE_FLUSH_SECONDS.to_owned()), &SECONDS)
        .and_then(|builder| {
            builder.set_buckets_for_metric(Matcher::Full(names::HTTP_REQUEST_SECONDS.to_owned()), &SECONDS)
        })
        .and_then(|builder| {
            builder.set_buckets_for_metric(Matcher::Full(names::LANE_VISIBLE.to_owned()), &VISIBLE_SECONDS)
        })
        .and_then(|builder| {
            builder.set_buckets_for_metric(Matcher::Full(names::LANE_FLUSH_FILL.to_owned()), &FILL)
        })
        .map_err(|error| broken(error.to_string()))?
        .build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).map_err(|error| broken(error.to_string()))?;
    names::describe();
    describe_process(config);
    Ok(handle)
}

/// Shows version, commit, start, and the configuration as a hash of its form without secrets.
fn describe_process(config: &Config) {
    gauge!(names::BUILD, "version" => env!("CARGO_PKG_VERSION"), "commit" => COMMIT).set(1.0);
    // Secrets print as stars.
    let digest = Sha256::digest(format!("{config:?}").as_bytes());
    let hash: String = digest.iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect();
    gauge!(names::CONFIGURATION, "configuration" => hash).set(1.0);
    gauge!(names::PROCESS_STARTED).set(wall_clock::now().as_secs_f64());
}

/// Returns the present figures of this process, without its start: a unit may hide when the machine began.
pub fn process_metrics() -> String {
    let now = metrics_process::collector::collect();
    let mut shown = Exposition::default();
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
    shown.into_text()
}
