//! The metrics recorder of this process and its Prometheus text.
//!
//! Names and help texts are the pipeline's; only the buckets of histograms are chosen here.

use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::metrics as names;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// From a lone change or an answer out of memory to a flush of 20,000 rows on a busy server.
const SECONDS: [f64; 13] = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0];
/// Histograms keep raw samples until they are folded; without this they grow when nobody scrapes.
pub const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Installs the recorder; to be called once in a process.
pub fn install() -> Result<PrometheusHandle, Fault> {
    let broken =
        |error| Fault::new(Code::Internal, "metrics", "the recorder cannot be set up").caused_by(error);
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Full(names::LANE_FLUSH_SECONDS.to_owned()), &SECONDS)
        .and_then(|builder| {
            builder.set_buckets_for_metric(Matcher::Full(names::HTTP_REQUEST_SECONDS.to_owned()), &SECONDS)
        })
        .map_err(|error| broken(error.to_string()))?
        .build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).map_err(|error| broken(error.to_string()))?;
    names::describe();
    Ok(handle)
}
