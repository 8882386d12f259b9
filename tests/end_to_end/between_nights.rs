//! Between nights on real servers: every change is counted once at each hop, and what changed is looked at again.

use std::time::Duration;

use anabranch_demo::{Pace, WorkloadOptions};
use anabranch_tests::{Daemon, Installation, Plan, seed, until};

use crate::STANDARD;

const DRIFT: &str = "anabranch_watch_drift_total";
const LANE: &str = "anabranch_lane_changes_total";

/// Changes that a source's hops have counted: read, acknowledged, and applied by each lane.
async fn counts(daemon: &Daemon, source: &str) -> (f64, f64, Vec<f64>) {
    let label = format!("source=\"{source}\"");
    let metrics = daemon.metrics().await;
    let of_lanes = metrics.lines().filter(|line| {
        line.starts_with(LANE) && line.contains(&label) && line.contains("outcome=\"applied\"")
    });
    let of_lanes = of_lanes.filter_map(|line| line.rsplit_once(' ')?.1.parse().ok()).collect();
    let read = daemon.metric("anabranch_source_changes_total", &[&label]).await;
    let acknowledged = daemon.metric("anabranch_log_changes_total", &[&label]).await;
    (read, acknowledged, of_lanes)
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_balance_at_every_hop_and_what_is_wrong_after_a_change_is_seen() {
    let mut installation = Installation::prepare(STANDARD.turn().await, &Plan::both()).await;
    let watched = "[reconcile]\nwatch_keys_per_second = 1000\nwatch_after_seconds = [2, 4, 6]\n";
    let text = installation.configuration_text();
    let text = text.replacen("[[sources]]", &format!("{watched}\n[[sources]]"), 1);
    installation.write_configuration_text(&text);
    installation.command(&["setup"]).await.expect_success();
    let daemon = installation.run();
    daemon.until_ready().await;
    let mut workloads = installation.workloads(WorkloadOptions::new(seed("between nights")));
    for workload in &mut workloads {
        workload.insert_rows(1_000).await.unwrap();
        workload.run_for(Pace::of(200), Duration::from_secs(2)).await.unwrap();
    }
    for source in installation.configuration.sources.clone() {
        until("every hop has counted the same", async || {
            let (read, acknowledged, lanes) = counts(&daemon, &source).await;
            read > 1_000.0
                && read == acknowledged
                && !lanes.is_empty()
                && lanes.iter().all(|lane| *lane == read)
        })
        .await;
    }
    installation.expect_equal().await;
    until("keys are looked at three times", async || {
        daemon.metric("anabranch_watch_keys_total", &["after=\"6\"", "verdict=\"equal\""]).await > 100.0
    })
    .await;
    assert_eq!(daemon.metric(DRIFT, &[]).await, 0.0, "{}", daemon.log());

    // It changes, arrives, and is removed by a hand before anybody looks.
    let source = installation.configuration.sources[0].clone();
    let target = installation.configuration.targets[0].clone();
    let user = 77_000_001;
    let insert = "INSERT INTO user_00.user_000 (user_id, user_name, birthday)";
    installation.execute(&source, format!("{insert} VALUES ({user}, 'x', '1990-01-03')")).await;
    until("it has arrived", async || installation.derived(user).await.len() == 1).await;
    let delete = format!("DELETE FROM birthday_00.birthday_0103 WHERE user_id = {user}");
    installation.execute(&target, delete).await;
    for after in [2, 4, 6] {
        until("the watch sees it", async || {
            daemon.metric(DRIFT, &["store=\"birthday\"", &format!("after=\"{after}\"")]).await == 1.0
        })
        .await;
    }
    until("it is told", async || daemon.log().contains("a changed row is still wrong in the store")).await;
    assert!(!daemon.log().contains("77000001"), "by the hash of its key only");
}
