//! Log to 366 birthday tables, to 3 × 512 mapping tables or to the 100 tables of the relation index, catching up: the
//! lanes as the daemon runs them, in turn with a program written by hand for it.
//!
//! Both start with empty tables, have four connections to the same server, write the same rows and are as durable.

use std::sync::Arc;

use anabranch_connectors::mysql::source::MysqlSource;
use anabranch_connectors::mysql::store::MysqlTarget;
use anabranch_connectors::nats::NatsLog;
use anabranch_pipeline::config::Config;
use anabranch_pipeline::deliver::{ProjectedLane, Shared};
use anabranch_pipeline::ports::{LaneStore, READER_REPLICA_SLOT};
use anabranch_pipeline::projections::{LaneScope, Projection};
use anabranch_pipeline::records::LaneId;
use anabranch_schemas::lsn::Lsn;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::contest::{Contest, Hand};
use crate::data::Data;
use crate::meter::{Measured, Meter};
use crate::report::Report;
use crate::site::{Site, TARGET};
use crate::{Figure, Scale, by_hand, capture};

const BAR: f64 = 0.70;
/// Rows of a transaction that the program tries; the faster size is the limit.
const FLUSH_ROWS: [usize; 2] = [5_000, 20_000];

pub async fn measure(site: &mut Site<'_>, data: &Data, figure: Figure, scale: &Scale, report: &mut Report) {
    let log = site.new_log("apply").await;
    capture::append(site, &log, data).await;
    let config = Arc::new(site.config());
    let (mut works, mut hands) = (Vec::new(), Vec::new());
    for flush_rows in FLUSH_ROWS {
        let work = by_hand::prepare(&config, &log, data.end_lsn, flush_rows).await;
        report.note(&format!("by hand: {} derived rows are written, {flush_rows} a flush", work.rows()));
        hands.push(Hand::new(format!("{flush_rows} rows a flush")));
        works.push(work);
    }
    site.installation.command(&["setup"]).await.expect_success();
    let empty = site.keep(TARGET);
    let mut products = Vec::new();
    for _ in 0..scale.rounds {
        for (work, hand) in works.iter().zip(&mut hands) {
            empty.restore();
            hand.runs.push(by_hand::run(site, work).await);
        }
        empty.restore();
        products.push(product(site, &config, &log, data.end_lsn).await);
    }
    empty.restore();
    site.delete_log().await;
    let figure = match figure {
        Figure::Mapping => "mapping, TLS",
        Figure::RelationsApply => "relations-apply, TLS",
        _ => "apply, TLS",
    };
    let contest =
        Contest { figure, unit: "rows", count: data.rows, servers: "target", bar: BAR, products, hands };
    report.add(contest.line());
}

pub async fn product(site: &Site<'_>, config: &Arc<Config>, log: &NatsLog, end: Lsn) -> Measured {
    let target = MysqlTarget::new(config, TARGET).expect("it is configured");
    let lanes = target.lane_ids().into_iter().map(|id| {
        let store = target.lane(&id).expect("it is configured");
        (id, store.projection().clone(), store.scope(), store)
    });
    run_lanes(config, log, end, &[site.pid(TARGET)], lanes.collect()).await
}

/// Runs the lanes until each has applied the log to its end.
pub async fn run_lanes<S: LaneStore + 'static>(
    config: &Arc<Config>,
    log: &NatsLog,
    end: Lsn,
    servers: &[u32],
    stores: Vec<(LaneId, Projection, LaneScope, S)>,
) -> Measured {
    let cancel = CancellationToken::new();
    let mut lanes = JoinSet::new();
    let mut positions = Vec::new();
    let meter = Meter::start(servers);
    for (id, projection, scope, mut store) in stores {
        let (sender, position) = watch::channel(Lsn::ZERO);
        positions.push(position);
        let (log, config, cancel) = (log.clone(), Arc::clone(config), cancel.clone());
        lanes.spawn(async move {
            let source = &config.sources[0];
            let lane = ProjectedLane {
                id: &id,
                projection: &projection,
                scope,
                log: &log,
                source: &MysqlSource::new(source, &config.entities, config.limits.heartbeat),
                replica_slot: READER_REPLICA_SLOT + 1 + id.lane,
                start: &source.start,
                shared: &Shared::new(1),
                limits: &config.limits,
            };
            lane.run(&mut store, &sender, &cancel).await
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
