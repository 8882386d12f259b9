//! A workload of every kind of change ends in derived tables that are equal to the sources.

use std::time::Duration;

use anabranch_demo::{Pace, WorkloadOptions};
use anabranch_schemas::shard::{NameHash, ShardingRule, Spread};
use anabranch_tests::{Installation, Plan, seed};

use crate::STANDARD;

fn ten_by_ten(spread: Spread, hash: NameHash) -> ShardingRule {
    ShardingRule { hash, spread, databases: 10, tables: 10 }
}

async fn workload_is_applied(installation: &Installation<'_>, seed: u64) {
    let mut daemon = installation.run();
    let mut workload = installation.workload(WorkloadOptions::new(seed));
    let mut report = workload.seed_users(4_000).await.unwrap();
    report.merge(&workload.run_for(Pace::of(800), Duration::from_secs(5)).await.unwrap());
    report.merge(&workload.giant_transactions().await.unwrap());
    assert_eq!(report.absent_kinds(), Vec::<&str>::new(), "{report:?}");
    let comparison = installation.expect_equal_and_full().await;
    assert!(comparison.source_users > comparison.claims, "no invalid birthday was written");
    assert_eq!(daemon.terminate().and_then(|status| status.code()), Some(0), "{}", daemon.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_change_arrives_in_the_layout_by_day() {
    let plan = Plan { rule: ten_by_ten(Spread::Spread, NameHash::Crc32), ..Plan::small() };
    let installation = Installation::set_up(STANDARD.turn().await, &plan).await;
    workload_is_applied(&installation, seed("by_day")).await;
}
