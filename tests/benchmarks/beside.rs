//! The lag of live changes beside a load, a reconciliation or the spot checks, each as fast as by default, in turn with
//! the changes alone.
//!
//! The load reads the filled tables once more and writes every derived row again under a new version, as the first load
//! does. All changes make new users, so only their own change can make them visible.

use serde_json::Value as Json;

use crate::latency::{Load, PROCESSES};
use crate::load::beside;
use crate::report::Report;
use crate::site::{SOURCE, Site};
use crate::{Scale, arrivals};

const MOST: f64 = 3.0;
/// Delays at which all three checks of a key begin within the measurement, at their later rate but of fewer keys.
const SOON: &str = "spot_check_after_seconds = [1, 2, 4]";
const OFF: &str = "spot_check_keys_per_second = 0";

pub async fn measure(mut site: Site<'_>, scale: &Scale, report: &mut Report) {
    let data = arrivals::write(&site, scale).await;
    let _ = site.new_log("beside").await;
    site.installation.command(&["setup"]).await.expect_success();
    configure(&mut site, OFF);
    let daemon = site.installation.run();
    daemon.until_ready().await;
    site.installation.drained().await;
    // The spot checks are another process.
    site.installation.use_another_http_port();
    configure(&mut site, SOON);
    let config = site.config();
    report.note(&format!(
        "beside: {} users; a load reads {} rows a second and lane at most, a reconciliation {} a server, the spot checks look at {} keys a second {} times",
        data.rows,
        config.limits.refresh_rows_per_second.map_or(0, std::num::NonZero::get),
        config.reconcile.settings.limits.rows_per_second.map_or(0, std::num::NonZero::get),
        config.reconcile.spot_checks.keys_a_second,
        config.reconcile.spot_checks.after.len(),
    ));
    let mut load = Load::begin(&site, &daemon, 0, scale).await;
    let (mut alone, mut watched, mut reconciliation, mut stream) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        alone.push(load.run(false).await);
        let mut watch = site.installation.run_with(&["--role", "reconciler"], &[]);
        watch.until_ready().await;
        watched.push(load.run(false).await);
        let compared = watch.metric("anabranch_spot_check_keys_total", &["verdict=\"equal\""]).await;
        report.note(&format!("beside: {compared} looks of the spot checks found the stores equal"));
        assert!(compared > 0.0, "the spot checks look while changes are measured: {}", watch.log());
        assert!(watch.terminate().is_some_and(|status| status.success()), "{}", watch.log());
        let mut other = site.installation.start(&["reconcile", "--now"], &[]);
        reconciliation.push(load.run(false).await);
        assert!(
            other.is_running(),
            "the reconciliation lasts as long as the changes: {}",
            other.log_of_this_run()
        );
        assert!(other.wait().is_some_and(|status| status.success()), "{}", other.log_of_this_run());
    }
    site.installation
        .command(&["refresh", "--projection", "birthday", "--source", SOURCE])
        .await
        .expect_success();
    let refreshes = |lane: &Json| lane["refreshed_rows"].as_u64().is_some();
    daemon.until_view("lanes", ("projection", "birthday"), refreshes).await;
    for _ in 0..scale.rounds {
        stream.push(load.run(false).await);
    }
    let lane = daemon.until_view("lanes", ("projection", "birthday"), refreshes).await;
    report.note(&format!("beside: a lane had read {} rows when the changes ended", lane["refreshed_rows"]));
    load.finish().await;
    report.add(beside("lag beside a load", &stream, &alone, &PROCESSES, MOST));
    report.add(beside("lag beside a reconciliation", &reconciliation, &alone, &PROCESSES, MOST));
    report.add(beside("lag beside the spot checks", &watched, &alone, &PROCESSES, MOST));
}

fn configure(site: &mut Site<'_>, reconcile: &str) {
    let text = site.installation.configuration_text();
    let text = text.replacen("[[sources]]", &format!("[reconcile]\n{reconcile}\n\n[[sources]]"), 1);
    site.installation.write_configuration_text(&text);
}
