//! The daemon killed, doubled and woken from the dead.

use std::time::{Duration, Instant};

use anabranch_tests::{Daemon, Installation, until};

use crate::{survives, under_load};

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_killed_at_random_moments_loses_and_doubles_nothing() {
    let (installation, mut load) = under_load("daemon_killed").await;
    for _ in 0..10 {
        let mut daemon = installation.run();
        load.random_moment(Duration::from_millis(1_500)).await;
        daemon.kill();
        installation.free_leases().await;
    }
    let _daemon = installation.run();
    load.more(200).await;
    survives(&installation, load).await;
}

/// Starts another daemon of the same configuration, which differs in its port alone.
fn run_another(installation: &mut Installation<'_>) -> Daemon {
    installation.use_another_http_port();
    installation.run()
}

async fn until_running(daemon: &Daemon, count: usize) {
    until(&format!("{count} tasks run"), async || {
        let Some(status) = daemon.status().await else { return false };
        let tasks = status["tasks"].as_array().unwrap().iter();
        tasks.filter(|task| task["state"] == "running").count() == count
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_daemon_takes_over_again_and_again() {
    let (mut installation, mut load) = under_load("take_over").await;
    let mut holder = installation.run();
    until_running(&holder, 6).await;
    for _ in 0..2 {
        let standby = run_another(&mut installation);
        // It is up, and works on nothing.
        until_running(&standby, 0).await;
        load.random_moment(Duration::from_millis(500)).await;
        holder.kill();
        let killed = Instant::now();
        until_running(&standby, 6).await;
        eprintln!("taken over after {:?}", killed.elapsed());
        holder = standby;
    }
    load.more(100).await;
    survives(&installation, load).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_daemon_that_wakes_after_its_leases_were_taken_changes_nothing() {
    let (mut installation, mut load) = under_load("zombie").await;
    let zombie = installation.run();
    until_running(&zombie, 6).await;
    let successor = run_another(&mut installation);
    load.random_moment(Duration::from_millis(500)).await;
    zombie.pause();
    until_running(&successor, 6).await;
    load.more(400).await;
    zombie.resume();
    // It notices, lets go and waits; the successor is undisturbed.
    until_running(&zombie, 0).await;
    load.more(100).await;
    until_running(&successor, 6).await;
    survives(&installation, load).await;
}
