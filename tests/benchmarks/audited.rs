//! Capture of payment documents with the audit of their places and without: from the stream to the relation index,
//! catching up.
//!
//! Two lanes share the 100 tables of the index. Every lane takes every change, and each writes the tables of 50 user
//! partitions with about as many rows. Only the first lane audits. So one lane runs alone into empty tables, in turn
//! with the other, each as the daemon runs it. They take turns in being the first of a round.
//!
//! Most of the time is the target's, which writes the rows. So the ratio says what the audit takes from the lane as it
//! runs, and the client's CPU time says what it costs. Both lanes are compared by the rows that each one writes.

use std::sync::Arc;

use anabranch_connectors::mysql::store::MysqlTarget;
use anabranch_connectors::nats::NatsLog;
use anabranch_pipeline::config::Config;
use anabranch_pipeline::projections::LaneScope;
use anabranch_schemas::lsn::Lsn;
use serde_json::json;

use crate::data::Data;
use crate::meter::{Measured, median};
use crate::report::{Line, Report};
use crate::site::{Site, TARGET};
use crate::{Scale, apply, by_hand, capture};

const BAR: f64 = 0.95;
/// Rows of a flush in which the rows of both lanes are counted.
const FLUSH_ROWS: usize = 5_000;

/// Measures both lanes; the site has two of them.
pub async fn measure(site: &mut Site<'_>, data: &Data, scale: &Scale, report: &mut Report) {
    let log = site.new_log("audited").await;
    capture::append(site, &log, data).await;
    let config = Arc::new(site.config());
    let written = written(&config, &log, data.end_lsn).await;
    let [audited_rows, other_rows] = written;
    report.note(&format!(
        "flux-capture: {audited_rows} derived rows of the lane that audits, {other_rows} of the other"
    ));
    site.installation.command(&["setup"]).await.expect_success();
    let empty = site.keep(TARGET);
    let mut runs = [Vec::new(), Vec::new()];
    for round in 0..scale.rounds {
        let first = round as usize % 2;
        for lane in [first, 1 - first] {
            empty.restore();
            runs[lane].push(alone(site, &config, &log, data.end_lsn, lane).await);
        }
    }
    empty.restore();
    site.delete_log().await;
    report.add(line(data, &runs, written));
}

/// Returns the number of derived rows that each lane writes.
async fn written(config: &Config, log: &NatsLog, end: Lsn) -> [usize; 2] {
    let target = MysqlTarget::new(config, TARGET).expect("it is configured");
    let ids = target.lane_ids();
    let lanes: Vec<_> = ids.iter().filter_map(|id| target.lane(id)).collect();
    let scopes: Vec<LaneScope> = lanes.iter().map(|lane| lane.scope()).collect();
    assert_eq!((scopes.len(), scopes[0]), (2, LaneScope::COUNTS_DEFECTS));
    let mut rows = [0; 2];
    let projection = lanes[0].projection();
    by_hand::project(log, end, FLUSH_ROWS, projection, &scopes, |lane, flush| rows[lane] += flush.rows())
        .await;
    rows
}

/// Runs one lane until it has applied the log to its end.
async fn alone(site: &Site<'_>, config: &Arc<Config>, log: &NatsLog, end: Lsn, lane: usize) -> Measured {
    let target = MysqlTarget::new(config, TARGET).expect("it is configured");
    let id = target.lane_ids().swap_remove(lane);
    let store = target.lane(&id).expect("it is configured");
    let lanes = vec![(id, store.projection().clone(), store.scope(), store)];
    apply::run_lanes(config, log, end, &[site.pid(TARGET)], lanes).await
}

fn line(data: &Data, [audited, others]: &[Vec<Measured>; 2], written: [usize; 2]) -> Line {
    let seconds = |runs: &[Measured]| median(runs.iter().map(|run| run.seconds));
    let rate = |runs: &[Measured]| data.rows as f64 / seconds(runs);
    // Seconds of a written row.
    let [per_audited, per_other] = written.map(|rows| 1.0 / rows.max(1) as f64);
    let ratio = |(audited, other): (&Measured, &Measured)| {
        other.seconds * per_other / (audited.seconds * per_audited)
    };
    let ratio = median(audited.iter().zip(others).map(ratio));
    let per_row = |seconds: f64| seconds * 1e6 / data.rows as f64;
    let own = |runs: &[Measured]| per_row(median(runs.iter().map(|run| run.own_cpu_seconds)));
    let server = |runs: &[Measured]| per_row(median(runs.iter().map(|run| run.server_cpu_seconds)));
    let all = |runs: &[Measured]| runs.iter().map(|run| run.seconds).collect::<Vec<_>>();
    Line {
        figure: "flux-capture",
        measured: format!("{:.1} k rows/s", rate(audited) / 1e3),
        limit: format!("without audit {:.1} k rows/s", rate(others) / 1e3),
        ratio: format!("{:.1} %", ratio * 100.0),
        cpu: format!("client {:.2}, target {:.2}", own(audited), server(audited)),
        bar: format!("≥ {:.0} %", BAR * 100.0),
        passes: Some(ratio >= BAR),
        detail: json!({
            "ratio": ratio, "rows": data.rows, "seconds": all(audited), "seconds_without": all(others),
            "client_cpu_us": own(audited), "client_cpu_us_without": own(others),
            "derived_rows": written[0], "derived_rows_without": written[1],
        }),
    }
}
