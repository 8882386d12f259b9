//! The daemon dies, stands still, wakes up, and has a double.

use anabranch_tests::{Daemon, Installation, Plan, seed, until};

use crate::{GROUND, Moments, under_load};

/// Readers of two sources, and two lanes each.
const TASKS: usize = 6;

async fn running_tasks(daemon: &Daemon) -> usize {
    let Some(status) = daemon.status().await else { return 0 };
    status["tasks"]
        .as_array()
        .map_or(0, |tasks| tasks.iter().filter(|task| task["state"] == "running").count())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_killed_again_and_again_loses_nothing() {
    let seed = seed("daemon");
    let installation = Installation::set_up(GROUND.turn().await, &Plan::small()).await;
    let mut moments = Moments::new(seed);
    under_load(&installation, seed, async || {
        for _ in 0..5 {
            let mut daemon = installation.run();
            moments.pass(200..1_500).await;
            daemon.kill();
        }
    })
    .await;
    let _daemon = installation.run();
    installation.expect_equal().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_daemon_takes_over_and_a_zombie_that_wakes_does_no_harm() {
    let seed = seed("zombie");
    let mut installation = Installation::set_up(GROUND.turn().await, &Plan::small()).await;
    let first = installation.run();
    until("the first daemon works", async || running_tasks(&first).await == TASKS).await;
    installation.use_another_http_port();
    let second = installation.run();
    let mut moments = Moments::new(seed);
    under_load(&installation, seed, async || {
        moments.pass(200..800).await;
        first.pause();
        until("the second daemon takes everything over", async || running_tasks(&second).await == TASKS)
            .await;
        moments.pass(200..800).await;
        first.resume();
        moments.pass(500..1_500).await;
    })
    .await;
    installation.expect_equal().await;
    assert!(first.is_running() && second.is_running());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_daemon_takes_over_from_a_killed_one() {
    let seed = seed("takeover");
    let mut installation = Installation::set_up(GROUND.turn().await, &Plan::small()).await;
    let mut first = installation.run();
    until("the first daemon works", async || running_tasks(&first).await == TASKS).await;
    installation.use_another_http_port();
    let second = installation.run();
    until("the second daemon waits", async || second.status().await.is_some()).await;
    assert_eq!(running_tasks(&second).await, 0, "two work on the same");
    under_load(&installation, seed, async || {
        first.kill();
        until("the second daemon takes everything over", async || running_tasks(&second).await == TASKS)
            .await;
    })
    .await;
    installation.expect_equal().await;
}
