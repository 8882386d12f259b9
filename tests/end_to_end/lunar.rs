//! An installation with solar birthday tables gets lunar ones, by two columns and a projection in its configuration.

use std::time::Duration;

use anabranch_demo::verify::DerivedLayout;
use anabranch_demo::{Pace, WorkloadOptions};
use anabranch_tests::{Installation, Plan, seed, until};

use crate::STANDARD;

/// The recorded refreshes of a projection's lanes, by source and lane.
async fn refreshes(installation: &Installation<'_>, projection: &str) -> Vec<Option<String>> {
    let mut target = installation.admin("target").await;
    let sql = format!(
        "SELECT refresh FROM anabranch.progress WHERE projection = '{projection}' ORDER BY source, lane"
    );
    target.rows("read progress", sql).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installation_learns_lunar_birthdays_and_its_solar_lanes_see_no_difference() {
    let plan = Plan { layout: DerivedLayout::ByUser, is_lunar: true, ..Plan::small() };
    let mut installation = Installation::prepare(STANDARD.turn().await, &plan).await;
    let lunar = installation.audits.split_off(1);
    installation.configuration.audits.truncate(1);
    installation.configuration.limits.push("refresh_rows_per_second = 1500".to_owned());
    installation.write_configuration();
    installation.command(&["setup"]).await.expect_success();
    let mut workload = installation.workload(WorkloadOptions::new(seed("lunar")));
    let mut daemon = installation.run();
    workload.insert_rows(3_000).await.unwrap();
    workload.run_for(Pace::of(400), Duration::from_secs(1)).await.unwrap();
    installation.expect_equal().await;
    let solar = refreshes(&installation, "birthday").await;
    daemon.kill();
    installation.free_leases().await;

    // No change follows: the messages in the log lack the fields of the new lanes.
    installation.audits.extend(lunar);
    installation.configuration.audits = installation.audits.clone();
    installation.write_configuration();
    let absent = installation.command(&["check"]).await;
    assert!(absent.stderr.contains("lane lunar_birthday/target/source-a/0"), "{absent:?}");
    installation.command(&["setup"]).await.expect_success();
    // A new lane is killed between two of its steps.
    let failpoint = "refresh-after-commit";
    let mut daemon = installation.run_with(&[], &[("ANABRANCH_FAILPOINT", failpoint)]);
    daemon.until_failpoint(failpoint).await;
    until("the new lanes read their tables", async || {
        let noted = refreshes(&installation, "lunar_birthday").await;
        noted.iter().flatten().any(|noted| noted.starts_with("fields:4 -"))
    })
    .await;
    daemon.kill();
    installation.free_leases().await;
    let mut daemon = installation.run();
    installation.expect_equal_and_full().await;
    assert_eq!(refreshes(&installation, "birthday").await, solar, "the solar lanes read nothing again");

    workload.run_for(Pace::of(400), Duration::from_secs(1)).await.unwrap();
    installation.expect_equal_and_full().await;
    let done = installation.command(&["reconcile", "--now", "--json"]).await.expect_success();
    assert!(done.stdout.contains("lunar_birthday"), "{done:?}");
    assert_eq!(daemon.terminate().and_then(|status| status.code()), Some(0), "{}", daemon.log());
}
