//! Between reconciliations on real servers: every change is counted once at each hop, and changed keys are checked
//! again.

use std::time::Duration;

use anabranch_demo::{Pace, WorkloadOptions};
use anabranch_tests::{Daemon, Installation, Plan, seed, until};

use crate::STANDARD;

const DRIFT: &str = "anabranch_spot_check_drift_total";
const KEYS: &str = "anabranch_spot_check_keys_total";
/// Users that move later in the test.
const MOVING: [u64; 2] = [77_000_002, 77_000_003];
const LANE: &str = "anabranch_lane_changes_total";
/// Seconds from a change to each of its spot checks. The test damages a row by hand before the first of them, on a busy
/// machine too.
const AFTER: [u32; 3] = [12, 14, 16];

/// The counts of a source's changes: read and not left out, acknowledged, and applied by each lane.
async fn counts(daemon: &Daemon, source: &str) -> (f64, f64, Vec<f64>) {
    let label = format!("source=\"{source}\"");
    let metrics = daemon.metrics().await;
    let of_lanes = metrics.lines().filter(|line| {
        line.starts_with(LANE) && line.contains(&label) && line.contains("outcome=\"applied\"")
    });
    let of_lanes = of_lanes.filter_map(|line| line.rsplit_once(' ')?.1.parse().ok()).collect();
    let read = daemon.metric("anabranch_source_changes_total", &[&label]).await;
    let acknowledged = daemon.metric("anabranch_log_changes_total", &[&label]).await;
    let unchanged = daemon.metric("anabranch_source_unchanged_total", &[&label]).await;
    (read - unchanged, acknowledged, of_lanes)
}

async fn expect_balance(installation: &Installation<'_>, daemon: &Daemon) {
    for source in &installation.configuration.sources {
        until("every hop has counted the same", async || {
            let (read, acknowledged, lanes) = counts(daemon, source).await;
            read > 1_000.0
                && read == acknowledged
                && !lanes.is_empty()
                && lanes.iter().all(|lane| *lane == read)
        })
        .await;
    }
}

async fn insert(installation: &Installation<'_>, user: u64) {
    let insert = "INSERT INTO user_00.user_000 (user_id, user_name, birthday)";
    let source = &installation.configuration.sources[0];
    installation.execute(source, format!("{insert} VALUES ({user}, 'x', '1990-01-03')")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_balance_at_every_hop_and_what_is_wrong_after_a_change_is_seen() {
    let mut installation = Installation::prepare(STANDARD.turn().await, &Plan::both()).await;
    let spot_checks =
        format!("[reconcile]\nspot_check_keys_per_second = 1000\nspot_check_after_seconds = {AFTER:?}\n");
    let text = installation.configuration_text();
    let text = text.replacen("[[sources]]", &format!("{spot_checks}\n[[sources]]"), 1);
    installation.write_configuration_text(&text);
    installation.command(&["setup"]).await.expect_success();
    let daemon = installation.run();
    daemon.until_ready().await;
    // Their last spot check is over before the test changes them.
    for user in MOVING {
        insert(&installation, user).await;
    }
    let mut workloads = installation.workloads(WorkloadOptions::new(seed("between reconciliations")));
    for workload in &mut workloads {
        workload.insert_rows(1_000).await.unwrap();
        workload.run_for(Pace::of(200), Duration::from_secs(2)).await.unwrap();
    }
    expect_balance(&installation, &daemon).await;
    installation.expect_equal().await;
    let last = "check=\"last\"";
    until("keys are looked at three times", async || {
        daemon.metric(KEYS, &[last, "verdict=\"equal\""]).await > 100.0
    })
    .await;
    assert_eq!(daemon.metric(DRIFT, &[]).await, 0.0, "{}", daemon.log());

    // The user changes and arrives, and is deleted by hand before the first check.
    let source = installation.configuration.sources[0].clone();
    let target = installation.configuration.targets[0].clone();
    let user = 77_000_001;
    insert(&installation, user).await;
    until("it has arrived", async || installation.derived(user).await.len() == 1).await;
    let delete = format!("DELETE FROM birthday_00.birthday_0103 WHERE user_id = {user}");
    installation.execute(&target, delete).await;
    for after in AFTER {
        until("the spot checks see it", async || {
            daemon.metric(DRIFT, &["store=\"birthday\"", &format!("after=\"{after}\"")]).await == 1.0
        })
        .await;
    }
    assert_eq!(daemon.metric(DRIFT, &[last, &format!("after=\"{}\"", AFTER[2])]).await, 1.0);
    assert_eq!(daemon.metric(DRIFT, &["check=\"earlier\""]).await, 2.0);
    until("it is told", async || daemon.log().contains("a changed row is still wrong in the store")).await;
    assert!(!daemon.log().contains("77000001"), "by the hash of its key only");

    // Two users move: one is put back by hand, the other was made newer than its change before that came.
    let [back, ahead] = MOVING;
    let make_newer = format!("UPDATE birthday_00.birthday_0103 SET lsn = ~0 WHERE user_id = {ahead}");
    installation.execute(&target, make_newer).await;
    let update = "UPDATE user_00.user_000 SET birthday = '1990-01-05'";
    installation.execute(&source, format!("{update} WHERE user_id IN ({back}, {ahead})")).await;
    until("it has moved", async || installation.derived(back).await.iter().all(|(_, day)| day == "01-05"))
        .await;
    let put_back = format!(
        "START TRANSACTION; INSERT INTO birthday_00.birthday_0103 (shard_id, user_id, birthday, lsn) \
         SELECT shard_id, user_id, '01-03', 1 FROM birthday_00.birthday_0105 WHERE user_id = {back}; \
         DELETE FROM birthday_00.birthday_0105 WHERE user_id = {back}; COMMIT"
    );
    installation.execute(&target, put_back).await;
    for after in AFTER.map(|after| format!("after=\"{after}\"")) {
        for verdict in ["missing", "wrong_partition", "in_two_partitions"] {
            let verdict = format!("verdict=\"{verdict}\"");
            until("the spot checks see each", async || daemon.metric(KEYS, &[&after, &verdict]).await == 1.0)
                .await;
        }
        assert_eq!(daemon.metric(DRIFT, &[&after]).await, 3.0, "and nothing else");
    }
    // All hops balance, so the change was lost after the last one.
    expect_balance(&installation, &daemon).await;
}
