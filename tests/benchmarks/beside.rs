//! The lag of live changes while a load, and while a night runs beside them, both under the default throttle, in turn
//! with the changes alone.
//!
//! The load reads the filled tables once more and writes every derived row again under a new version: what it does is
//! what the first load does. All changes make new users, which nothing but their own change can make visible.

use serde_json::Value as Json;

use crate::latency::{Load, PROCESSES};
use crate::load::beside;
use crate::report::Report;
use crate::site::{SOURCE, Site};
use crate::users::Users;
use crate::{Scale, data};

const MOST: f64 = 3.0;

pub async fn measure(mut site: Site<'_>, scale: &Scale, report: &mut Report) {
    let data =
        data::write(&site, "new users in 40 tables", (scale.users, scale.seed), Users::arriving()).await;
    let _ = site.new_log("beside").await;
    site.installation.command(&["setup"]).await.expect_success();
    let daemon = site.installation.run();
    daemon.until_ready().await;
    site.installation.drained().await;
    let config = site.config();
    report.note(&format!(
        "beside: {} users; a load reads {} rows a second and lane at most, a night {} a server",
        data.rows,
        config.limits.refresh_rows_per_second.map_or(0, std::num::NonZero::get),
        config.reconcile.settings.limits.rows_per_second.map_or(0, std::num::NonZero::get),
    ));
    let mut load = Load::begin(&site, &daemon, 0, scale).await;
    let (mut alone, mut night, mut reading) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        alone.push(load.run(false).await);
        let mut other = site.installation.start(&["reconcile", "--now"], &[]);
        night.push(load.run(false).await);
        assert!(other.is_running(), "the night lasts as long as the changes: {}", other.log_of_this_run());
        assert!(other.wait().is_some_and(|status| status.success()), "{}", other.log_of_this_run());
    }
    site.installation
        .command(&["refresh", "--projection", "birthday", "--source", SOURCE])
        .await
        .expect_success();
    let refreshes = |lane: &Json| lane["refreshed_rows"].as_u64().is_some();
    daemon.until_view("lanes", ("projection", "birthday"), refreshes).await;
    for _ in 0..scale.rounds {
        reading.push(load.run(false).await);
    }
    let lane = daemon.until_view("lanes", ("projection", "birthday"), refreshes).await;
    report.note(&format!("beside: a lane had read {} rows when the changes ended", lane["refreshed_rows"]));
    load.finish().await;
    report.add(beside("lag beside a load", &reading, &alone, &PROCESSES, MOST));
    report.add(beside("lag beside a night", &night, &alone, &PROCESSES, MOST));
}
