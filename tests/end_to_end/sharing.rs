//! Daemons share readers and lanes, and take over those of a daemon that ends.

use std::time::Duration;

use anabranch_tests::{Daemon, Installation, Plan, until};

use crate::STANDARD;
use crate::faults::{insert, until_derived};

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_starts_later_gets_its_part_and_the_other_takes_it_back_when_it_dies() {
    let mut installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    installation.configuration.limits.retain(|line| !line.starts_with("rebalance_interval_ms"));
    installation.configuration.limits.push("rebalance_interval_ms = 500".to_owned());
    installation.write_configuration();
    let first = installation.run();
    first.until_loaded(&["source-a", "source-b"]).await;
    until_it_runs(&first, 2, 4).await;

    installation.use_another_http_port();
    let mut second = installation.run();
    until_it_runs(&second, 1, 2).await;
    until_it_runs(&first, 1, 2).await;
    insert(&installation, "source-a", "user_00.user_000", 1).await;
    insert(&installation, "source-b", "user_07.user_000", 2).await;
    until_derived(&installation, 1).await;
    until_derived(&installation, 2).await;
    for daemon in [&first, &second] {
        daemon.until_ready().await;
    }

    second.kill();
    until_it_runs(&first, 2, 4).await;
    insert(&installation, "source-b", "user_07.user_000", 3).await;
    until_derived(&installation, 3).await;
    installation.expect_equal().await;
}

/// The register of processes still has the one that ended, and tasks that were given back to it would stand still.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_started_again_gives_no_task_back_to_the_one_before_it() {
    let mut installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let interval = Duration::from_secs(2);
    installation.configuration.limits.retain(|line| !line.starts_with("rebalance_interval_ms"));
    installation.configuration.limits.push(format!("rebalance_interval_ms = {}", interval.as_millis()));
    installation.write_configuration();
    let mut ended = installation.run();
    ended.until_loaded(&["source-a", "source-b"]).await;
    // It gives its leases back, so the next process has all tasks while the register still has the one before.
    ended.terminate().expect("it ends when asked");
    let daemon = installation.run();
    until_it_runs(&daemon, 2, 4).await;
    // The process that ended is forgotten after four intervals.
    tokio::time::sleep(5 * interval).await;
    let log = daemon.log_of_this_run();
    assert!(!log.contains("gives the task back"), "{log}");
}

async fn until_it_runs(daemon: &Daemon, readers: usize, lanes: usize) {
    until(&format!("a daemon runs {readers} readers and {lanes} lanes"), async || {
        let Some(status) = daemon.status().await else { return false };
        let running = |kind: &str| {
            let tasks = status["tasks"].as_array().unwrap().iter();
            let is_it = |task: &&serde_json::Value| {
                task["state"] == "running" && task["task"].as_str().unwrap().starts_with(kind)
            };
            tasks.filter(is_it).count()
        };
        (running("reader/"), running("lane/")) == (readers, lanes)
    })
    .await;
}
