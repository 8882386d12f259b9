//! Each server is killed and frozen under load, and the daemon runs on.

use std::time::Duration;

use anabranch_demo::verify::{Verification, drain};
use anabranch_tests::{Plan, WAIT_MAX, blocking};

use crate::{survives, under_load, under_load_of};

const SERVERS: [&str; 4] = ["source-a", "source-b", "nats", "target"];

#[tokio::test(flavor = "multi_thread")]
async fn each_server_killed_under_load_loses_nothing() {
    let (installation, mut load) = under_load("servers killed").await;
    let mut daemon = installation.run();
    daemon.until_ready().await;
    for round in 0..2 {
        for name in load.shuffled(SERVERS.to_vec()) {
            load.more(60).await;
            load.random_moment(Duration::from_millis(200)).await;
            let server = installation.server(name);
            blocking(|| server.kill()).unwrap();
            if round == 1 {
                load.random_moment(Duration::from_millis(700)).await;
            }
            blocking(|| server.restart()).unwrap();
        }
    }
    load.more(60).await;
    daemon.until_ready().await;
    survives(&installation, load).await;
    assert_eq!(daemon.terminate().and_then(|status| status.code()), Some(0), "{}", daemon.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_server_and_the_daemon_frozen_under_load_lose_nothing() {
    let (installation, mut load) = under_load("servers frozen").await;
    let daemon = installation.run();
    daemon.until_ready().await;
    let names: Vec<&str> = SERVERS.into_iter().chain(["daemon"]).collect();
    for name in load.shuffled(names) {
        let server = (name != "daemon").then(|| installation.server(name));
        match &server {
            Some(server) => blocking(|| server.pause()).unwrap(),
            None => daemon.pause(),
        }
        load.random_moment(Duration::from_millis(2_500)).await;
        match &server {
            Some(server) => blocking(|| server.resume()).unwrap(),
            None => daemon.resume(),
        }
        load.more(30).await;
    }
    daemon.until_ready().await;
    survives(&installation, load).await;
}

/// A cache and a search server die, freeze and return; all the while rows arrive everywhere else.
#[tokio::test(flavor = "multi_thread")]
async fn redis_and_search_killed_and_frozen_under_load_lose_nothing() {
    let (installation, mut load) = under_load_of(&Plan::everything(), "redis and search").await;
    let mut daemon = installation.run();
    daemon.until_ready().await;
    for name in load.shuffled(vec!["redis", "search"]) {
        let server = installation.server(name);
        load.more(60).await;
        load.random_moment(Duration::from_millis(200)).await;
        blocking(|| server.kill()).unwrap();
        load.more(60).await;
        blocking(|| server.restart()).unwrap();
        load.more(30).await;
        blocking(|| server.pause()).unwrap();
        load.random_moment(Duration::from_millis(2_500)).await;
        blocking(|| server.resume()).unwrap();
    }
    load.more(60).await;
    daemon.until_ready().await;
    survives(&installation, load).await;
    assert_eq!(daemon.terminate().and_then(|status| status.code()), Some(0), "{}", daemon.log());
}

/// While one server stands still, the work on all others continues.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_stands_still_slows_no_other() {
    let (installation, mut load) = under_load_of(&Plan::everything(), "stalled").await;
    let daemon = installation.run();
    daemon.until_ready().await;
    for (name, stalled) in load.shuffled(vec![
        ("search", &["documents"][..]),
        ("redis", &["cache"]),
        ("target", &["birthday", "mapping", "cache"]),
    ]) {
        let server = installation.server(name);
        blocking(|| server.pause()).unwrap();
        load.more(200).await;
        let others: Vec<Verification> =
            installation.audits.iter().filter(|audit| !stalled.contains(&audit.name())).cloned().collect();
        let drained = drain(&others, WAIT_MAX).await.unwrap();
        assert!(drained.is_complete(), "while {name} stands still: {:?}", drained.lagging);
        blocking(|| server.resume()).unwrap();
    }
    survives(&installation, load).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_killed_at_once_comes_back_equal() {
    let (installation, mut load) = under_load("everything killed").await;
    let mut daemon = installation.run();
    for _ in 0..2 {
        daemon.until_ready().await;
        load.random_moment(Duration::from_millis(500)).await;
        daemon.kill();
        blocking(|| {
            for name in SERVERS {
                installation.server(name).kill().unwrap();
            }
            for name in SERVERS {
                installation.server(name).restart().unwrap();
            }
        });
        installation.free_leases().await;
        daemon = installation.run();
        load.more(60).await;
    }
    survives(&installation, load).await;
}
