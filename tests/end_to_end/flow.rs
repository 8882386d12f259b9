//! A workload of every kind of change ends in derived tables that are equal to the sources.

use std::time::Duration;

use anabranch_demo::verify::DerivedLayout;
use anabranch_demo::{Pace, WorkloadOptions};
use anabranch_schemas::shard::{NameHash, ShardingRule, Spread};
use anabranch_tests::{Installation, Plan, seed, until_each_kind};

use crate::STANDARD;

fn ten_by_ten(spread: Spread, hash: NameHash) -> ShardingRule {
    ShardingRule { hash, spread, databases: 10, tables: 10 }
}

async fn workload_is_applied(installation: &Installation<'_>, seed: u64) {
    let mut daemon = installation.run();
    let mut workload = installation.workload(WorkloadOptions::new(seed));
    let mut report = workload.insert_rows(4_000).await.unwrap();
    report.merge(&workload.run_for(Pace::of(800), Duration::from_secs(5)).await.unwrap());
    until_each_kind(&mut workload, Pace::of(800), &mut report).await;
    report.merge(&workload.giant_transactions().await.unwrap());
    assert_eq!(report.absent_kinds(workload.topology().entity), Vec::<&str>::new(), "{report:?}");
    let comparison = installation.expect_equal_and_full().await;
    assert!(comparison.source_rows > comparison.claims, "no invalid birthday was written");
    assert_eq!(daemon.terminate().and_then(|status| status.code()), Some(0), "{}", daemon.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_change_arrives_in_the_layout_by_day_on_two_targets() {
    let plan =
        Plan { rule: ten_by_ten(Spread::Spread, NameHash::Crc32), databases: 4, targets: 2, ..Plan::small() };
    let installation = Installation::set_up(STANDARD.turn().await, &plan).await;
    workload_is_applied(&installation, seed("by_day")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_change_arrives_in_the_layout_by_user_with_passwords_in_the_file() {
    let plan = Plan {
        layout: DerivedLayout::ByUser,
        rule: ten_by_ten(Spread::Literal, NameHash::JavaString),
        lanes: 3,
        has_passwords_in_file: true,
        ..Plan::small()
    };
    let installation = Installation::set_up(STANDARD.turn().await, &plan).await;
    workload_is_applied(&installation, seed("by_user")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_daemon_goes_on_where_it_was_and_reads_nothing_again() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let mut workload = installation.workload(WorkloadOptions::new(seed("restart")));
    let mut daemon = installation.run();
    let first = workload.insert_rows(2_000).await.unwrap();
    installation.expect_equal().await;
    let read = daemon.metric("anabranch_source_changes_total", &[]).await;
    assert_eq!(read, first.changes as f64, "captured changes are those of committed transactions");
    assert_eq!(daemon.terminate().and_then(|status| status.code()), Some(0), "{}", daemon.log());
    let log = daemon.log();
    assert!(log.contains("stopped in order"), "{log}");

    let while_stopped = workload.run_for(Pace::of(300), Duration::from_secs(1)).await.unwrap();
    let daemon = installation.run();
    daemon.until_ready().await;
    installation.expect_equal().await;
    let read = daemon.metric("anabranch_source_changes_total", &[]).await;
    // Updates that change nothing are counted by the workload and are not in the binlog.
    assert!(read <= while_stopped.changes as f64 && read > 0.0, "{read} of {while_stopped:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_runs_alone_and_set_up_can_be_repeated() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let mut workload = installation.workload(WorkloadOptions::new(seed("roles")));
    let reader = installation.run_with(&["--role", "reader"], &[]);
    workload.insert_rows(1_000).await.unwrap();
    reader.until_ready().await;
    drop(reader);
    let again = installation.command(&["setup"]).await.expect_success();
    assert!(again.stdout.contains("target target: as needed"), "{again:?}");
    let projector = installation.run_with(&["--role", "projector"], &[]);
    projector.until_ready().await;
    let status = projector.status().await.unwrap();
    let tasks: Vec<&str> =
        status["tasks"].as_array().unwrap().iter().map(|task| task["task"].as_str().unwrap()).collect();
    assert!(tasks.iter().all(|task| task.starts_with("lane/")), "{tasks:?}");
    drop(projector);
    let mut reconciler = installation.run_with(&["--role", "reconciler"], &[]);
    reconciler.until_ready().await;
    let status = reconciler.status().await.unwrap();
    assert!(status["tasks"].as_array().is_some_and(|tasks| tasks.len() == 2), "{status}");
    assert!(reconciler.terminate().is_some_and(|ended| ended.success()), "{}", reconciler.log());
    let _whole = installation.run();
    installation.expect_equal().await;
}
