//! A daemon that froze in the middle of a step wakes after others took its work over: it changes nothing.
//!
//! The task is at a failpoint when its process is frozen. When the process wakes, the task at once takes its next step:
//! it appends a batch, writes rows or commits them. The log and the target must refuse it.

use std::time::{Duration, Instant};

use anabranch_tests::{Daemon, until};

use crate::{TAKE_OVER_MAX, TASKS, running_tasks, survives, under_load};

/// Faults of an overtaken process: its lease is over, the fence refuses it, the target has cut its connection off, or
/// the source has given its replica slot to the successor.
const STALE: [&str; 6] = [
    "lease-lost",
    "log-fenced",
    "source-stalled",
    "source-unreachable",
    "target-fenced",
    "target-unreachable",
];

async fn stale_faults(daemon: &Daemon, task: &str) -> f64 {
    let mut faults = 0.0;
    for code in STALE {
        let labels = [format!("code=\"{code}\""), format!("task=\"{task}/")];
        faults += daemon.metric("anabranch_faults_total", &[&labels[0], &labels[1]]).await;
    }
    faults
}

/// Freezes a daemon whose `task` (`reader` or `lane`) is at `failpoint`, or at any moment without one, and wakes it.
async fn a_zombie_does_no_harm(test: &str, task: &str, failpoint: Option<&str>) {
    let (mut installation, mut load) = under_load(test).await;
    let armed: Vec<_> = failpoint.map(|name| ("ANABRANCH_FAILPOINT", name)).into_iter().collect();
    let zombie = installation.run_with(&[], &armed);
    match failpoint {
        Some(name) => zombie.until_failpoint(name).await,
        None => until("the first works", async || running_tasks(&zombie).await.len() == TASKS).await,
    }
    installation.use_another_http_port();
    let successor = installation.run();
    until("the second is up", async || successor.status().await.is_some()).await;
    load.random_moment(Duration::from_millis(500)).await;
    let frozen = Instant::now();
    zombie.pause();
    until("the second works on all", async || running_tasks(&successor).await.len() == TASKS).await;
    eprintln!("{test}: taken over after {:?}", frozen.elapsed());
    assert!(frozen.elapsed() < TAKE_OVER_MAX, "{:?}", frozen.elapsed());
    load.more(200).await;
    assert_eq!(successor.metric("anabranch_faults_total", &[]).await, 0.0, "{}", successor.log());

    zombie.resume();
    until("it notices that it is stale", async || stale_faults(&zombie, task).await > 0.0).await;
    until("it works on nothing", async || running_tasks(&zombie).await.is_empty()).await;
    load.more(100).await;
    until("the second still works on all", async || running_tasks(&successor).await.len() == TASKS).await;
    let faults = successor.metric("anabranch_faults_total", &[]).await;
    assert_eq!(faults, 0.0, "the zombie disturbed its successor: {}", successor.log());
    survives(&installation, load).await;
    assert!(zombie.is_running());
}

/// One daemon works on without renewing its leases, and another takes them: two processes write at the same time, and
/// only the fences separate them.
#[tokio::test(flavor = "multi_thread")]
async fn two_daemons_that_both_believe_to_hold_the_leases_are_told_apart_by_the_fences() {
    let (mut installation, load) = under_load("two believers").await;
    let name = "lease-before-renewal";
    let believer = installation.run_with(&[], &[("ANABRANCH_FAILPOINT", name)]);
    believer.until_failpoint(name).await;
    installation.use_another_http_port();
    let holder = installation.run();
    // The refusals are in the servers' own words, as a lane may also notice by a check. A source ends the first of two
    // streams of one replica slot, perhaps before both have appended.
    for refusals in [
        &["another writer appended", "another replica has this server id"][..],
        &["another process changed its progress"],
    ] {
        until(&format!("one of two is told {refusals:?}"), async || {
            let logs = [believer.log_of_this_run(), holder.log_of_this_run()];
            refusals.iter().any(|refusal| logs.iter().any(|log| log.contains(refusal)))
        })
        .await;
    }
    load.more(200).await;
    survives(&installation, load).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_frozen_at_any_moment_changes_nothing_when_it_wakes() {
    a_zombie_does_no_harm("zombie", "lane", None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_frozen_before_it_appends_changes_nothing_when_it_wakes() {
    a_zombie_does_no_harm("zombie reader", "reader", Some("capture-before-append")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_frozen_before_its_transaction_changes_nothing_when_it_wakes() {
    a_zombie_does_no_harm("zombie lane", "lane", Some("lane-before-commit")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_frozen_between_its_rows_and_commit_changes_nothing_when_it_wakes() {
    a_zombie_does_no_harm("zombie at commit", "lane", Some("lane-rows-sent")).await;
}
