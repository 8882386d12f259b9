//! How long the log keeps messages: a quiet stream never becomes empty, and a lane that retention passes is healed.

use std::time::Duration;

use anabranch_demo::{Pace, WorkloadOptions};
use anabranch_tests::{Installation, Plan, seed, until};

use crate::STANDARD;
use crate::faults::{insert, until_derived};

/// An installation whose streams keep less.
async fn keeping(setting: &str) -> Installation<'static> {
    let mut installation = Installation::prepare(STANDARD.turn().await, &Plan::small()).await;
    installation.configuration.limits = vec!["mark_interval_ms = 200".to_owned()];
    let text = installation.configuration_text().replace("max_bytes = 500000000", setting);
    assert!(text.contains(setting));
    installation.write_configuration_text(&text);
    installation.command(&["setup"]).await.expect_success();
    installation
}

#[tokio::test(flavor = "multi_thread")]
async fn the_age_of_messages_never_empties_the_stream_of_a_quiet_source() {
    let installation = keeping("max_bytes = 500000000\nmax_age_seconds = 2").await;
    let mut daemon = installation.run();
    insert(&installation, "source-a", "user_00.user_000", 1).await;
    until_derived(&installation, 1).await;
    let jetstream = installation.jetstream().await;
    let name = format!("{}_source-a", installation.configuration.name);
    let mut stream = jetstream.get_stream(name).await.unwrap();
    let all_so_far = stream.info().await.unwrap().state.last_sequence;
    for round in 0..2 {
        until("every message was discarded", async || {
            let state = stream.info().await.unwrap().state.clone();
            assert!(state.messages > 0, "the stream is empty: {state:?}");
            state.first_sequence > all_so_far + round
        })
        .await;
        // Another reader has to begin somewhere, too.
        daemon.kill();
        installation.free_leases().await;
        daemon = installation.run();
        daemon.until_ready().await;
    }
    insert(&installation, "source-a", "user_00.user_000", 2).await;
    until_derived(&installation, 2).await;
    installation.expect_equal().await;
    assert!(!daemon.log().contains("the log was lost"), "{}", daemon.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_retention_has_passed_is_fed_from_the_binlog() {
    let installation = keeping("max_bytes = 60000").await;
    let mut workload = installation.workload(WorkloadOptions::new(seed("retention")));
    workload.seed_users(300).await.unwrap();
    let mut daemon = installation.run();
    installation.drained().await;
    daemon.kill();
    installation.free_leases().await;

    let mut reader = installation.run_with(&["--role", "reader"], &[]);
    reader.until_ready().await;
    workload.seed_users(20_000).await.unwrap();
    workload.run_for(Pace::of(300), Duration::from_millis(500)).await.unwrap();
    for source in ["source-a", "source-b"] {
        reader.until_view("sources", ("source", source), |view| view["state"] == "current").await;
    }
    reader.kill();
    installation.free_leases().await;

    let daemon = installation.run();
    installation.expect_equal().await;
    assert!(daemon.log().contains("fed from the binlog"), "{}", daemon.log());
    until("the lanes are back at the stream", async || {
        workload.run_for(Pace::of(50), Duration::from_millis(200)).await.unwrap();
        daemon.metric("anabranch_lane_direct", &[]).await == 0.0
    })
    .await;
    installation.expect_equal().await;
}
