//! Log to 366 tables, catching up: the lanes as the daemon runs them, in turn with a program written by hand for it.
//!
//! Both start with empty tables, have four connections to the same server, write the same rows and are as durable.

use std::sync::Arc;

use anabranch_connectors::mysql::source::MysqlSource;
use anabranch_connectors::mysql::target::MysqlTarget;
use anabranch_connectors::nats::NatsLog;
use anabranch_pipeline::config::Config;
use anabranch_pipeline::deliver::{self, Flush, Lane};
use anabranch_pipeline::ports::READER_SEAT;
use anabranch_pipeline::projections::Defects;
use anabranch_schemas::change::Change;
use anabranch_schemas::lsn::Lsn;
use serde_json::json;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::by_hand::{self, Work};
use crate::data::Data;
use crate::meter::{Measured, Meter, median};
use crate::report::{Line, Report};
use crate::site::{Site, TARGET};
use crate::{Scale, capture};

const BAR: f64 = 0.70;
/// Rows a transaction that the program tries; the better one is the limit.
const FLUSH_ROWS: [usize; 2] = [5_000, 20_000];

pub async fn measure(site: &mut Site<'_>, data: &Data, scale: &Scale, report: &mut Report) {
    let log = site.new_log("apply").await;
    capture::append(site, &log, data).await;
    let config = Arc::new(site.config());
    let works = [
        by_hand::prepare(&config, &log, data.end_lsn, FLUSH_ROWS[0]).await,
        by_hand::prepare(&config, &log, data.end_lsn, FLUSH_ROWS[1]).await,
    ];
    let mut products = Vec::new();
    let mut hands: [Vec<Measured>; 2] = Default::default();
    for _ in 0..scale.rounds {
        for (work, hands) in works.iter().zip(&mut hands) {
            empty(site, &config).await;
            hands.push(by_hand::run(site, work).await);
        }
        empty(site, &config).await;
        products.push(product(site, &config, &log, data.end_lsn).await);
    }
    empty(site, &config).await;
    site.delete_log().await;
    report.add(line(data, &works, &products, &hands));
}

/// Fresh tables without rows, and no binlog of earlier rounds.
async fn empty(site: &Site<'_>, config: &Config) {
    site.target("DROP DATABASE IF EXISTS birthday_00; DROP DATABASE IF EXISTS anabranch; RESET MASTER").await;
    let target = MysqlTarget::new(config, TARGET).expect("it is configured");
    target.setup().await.expect("tables can be made");
}

/// Runs the lanes until each holds everything.
async fn product(site: &Site<'_>, config: &Arc<Config>, log: &NatsLog, end: Lsn) -> Measured {
    let target = MysqlTarget::new(config, TARGET).expect("it is configured");
    let cancel = CancellationToken::new();
    let mut lanes = JoinSet::new();
    let mut positions = Vec::new();
    let meter = Meter::start(Some(site.pid(TARGET)));
    for id in target.lane_ids() {
        let (sender, position) = watch::channel(Lsn::ZERO);
        positions.push(position);
        let (log, config, cancel) = (log.clone(), Arc::clone(config), cancel.clone());
        let mut store = target.lane(&id).expect("it is configured");
        lanes.spawn(async move {
            let (projection, scope) = (store.projection().clone(), store.scope());
            let mut defects = Defects::default();
            let project = |change: &Change<'_, '_>, flush: &mut Flush| {
                projection.project(change, scope, flush, &mut defects);
            };
            let source = &config.sources[0];
            let lane = Lane {
                id: &id,
                log: &log,
                source: &MysqlSource::new(source, &config.entities, config.limits.heartbeat),
                seat: READER_SEAT + 1 + id.lane,
                start: &source.start,
                feeds: &Arc::new(Semaphore::new(1)),
                limits: &config.limits,
            };
            deliver::run(lane, &mut store, project, &sender, &cancel).await
        });
    }
    for mut position in positions {
        position.wait_for(|position| *position >= end).await.expect("the lane runs");
    }
    let measured = meter.stop();
    cancel.cancel();
    while let Some(ended) = lanes.join_next().await {
        ended.expect("no panic").expect("nothing fails");
    }
    measured
}

fn line(data: &Data, works: &[Work; 2], products: &[Measured], hands: &[Vec<Measured>; 2]) -> Line {
    let seconds = |runs: &[Measured]| median(runs.iter().map(|run| run.seconds));
    let best = usize::from(seconds(&hands[1]) < seconds(&hands[0]));
    let changes = data.rows as f64;
    let ratio =
        median(products.iter().zip(&hands[best]).map(|(product, hand)| hand.seconds / product.seconds));
    let own = |runs: &[Measured]| median(runs.iter().map(|run| run.own_cpu_seconds)) * 1e6 / changes;
    let server = |runs: &[Measured]| median(runs.iter().map(|run| run.server_cpu_seconds)) * 1e6 / changes;
    let rate = |runs: &[Measured]| changes / seconds(runs);
    Line {
        figure: "apply, TLS",
        measured: format!("{:.1} s, {:.0} k rows/s", seconds(products), rate(products) / 1e3),
        limit: format!(
            "by hand, {} rows a flush: {:.1} s, {:.0} k rows/s",
            FLUSH_ROWS[best],
            seconds(&hands[best]),
            rate(&hands[best]) / 1e3
        ),
        ratio: format!("{:.0} %", ratio * 100.0),
        cpu: format!("client {:.2}, target {:.2}", own(products), server(products)),
        bar: format!("≥ {:.0} %", BAR * 100.0),
        passes: Some(ratio >= BAR),
        detail: json!({
            "ratio": ratio,
            "seconds": products.iter().map(|run| run.seconds).collect::<Vec<_>>(),
            "client_cpu_us_per_row": own(products), "target_cpu_us_per_row": server(products),
            "by_hand": works.iter().zip(hands).zip(FLUSH_ROWS).map(|((work, runs), flush_rows)| json!({
                "flush_rows": flush_rows, "derived_rows_written": work.rows(),
                "seconds": runs.iter().map(|run| run.seconds).collect::<Vec<_>>(),
                "client_cpu_us_per_row": own(runs), "target_cpu_us_per_row": server(runs),
            })).collect::<Vec<_>>(),
        }),
    }
}
