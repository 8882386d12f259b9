//! A daemon is killed, and several daemons share the work.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anabranch_tests::{Daemon, Installation, Plan, until_some};

use crate::load::Load;
use crate::{GROUND, TAKE_OVER_MAX, TASKS, running_tasks, survives, under_load_of};

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_killed_again_and_again_loses_nothing() {
    let (installation, mut load) = under_load_of(&Plan::both(), "daemon killed").await;
    for _ in 0..8 {
        let mut daemon = installation.run();
        load.random_moment(Duration::from_millis(1_500)).await;
        daemon.kill();
        installation.free_leases().await;
    }
    let _daemon = installation.run();
    survives(&installation, load).await;
}

/// Waits until each task runs in one daemon alone; returns the tasks of each daemon. The daemons are asked one after
/// the other, so a task that changes hands meanwhile may be seen twice.
async fn until_shared(daemons: &[Daemon]) -> Vec<Vec<String>> {
    until_some("every task runs, and none in two daemons", async || {
        let mut shares = Vec::new();
        for daemon in daemons {
            shares.push(running_tasks(daemon).await);
        }
        let all = shares.concat();
        let different: BTreeSet<&String> = all.iter().collect();
        ([all.len(), different.len()] == [TASKS; 2]).then_some(shares)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn three_daemons_share_the_work_and_take_over_from_a_killed_one() {
    let mut installation = Installation::set_up(GROUND.turn().await, &Plan::small()).await;
    let mut daemons = Vec::new();
    for _ in 0..3 {
        daemons.push(installation.run());
        installation.use_another_http_port();
    }
    let load = Load::start(&installation, "three daemons").await;
    let mut shared = until_shared(&daemons).await;
    eprintln!("shared: {:?}", shared.iter().map(Vec::len).collect::<Vec<_>>());
    while daemons.len() > 1 {
        let busiest = (0..daemons.len()).max_by_key(|index| shared[*index].len()).unwrap();
        let mut victim = daemons.swap_remove(busiest);
        let killed = Instant::now();
        victim.kill();
        shared = until_shared(&daemons).await;
        let took = killed.elapsed();
        eprintln!("taken over after {took:?}: {:?}", shared.iter().map(Vec::len).collect::<Vec<_>>());
        assert!(took < TAKE_OVER_MAX, "{took:?}");
        load.more(100).await;
    }
    survives(&installation, load).await;
}
