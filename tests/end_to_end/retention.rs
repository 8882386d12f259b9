//! The log's retention: a quiet stream never becomes empty.

use anabranch_tests::{Installation, Plan, until};

use crate::STANDARD;
use crate::faults::{insert, until_derived};

/// An installation whose streams keep messages for this time.
async fn installation_that_keeps(max_age_seconds: u32) -> Installation<'static> {
    let mut installation = Installation::prepare(STANDARD.turn().await, &Plan::small()).await;
    installation.configuration.limits = vec!["position_interval_ms = 200".to_owned()];
    let max_bytes = "max_bytes = 500000000";
    let setting = format!("{max_bytes}\nmax_age_seconds = {max_age_seconds}");
    let text = installation.configuration_text().replace(max_bytes, &setting);
    assert!(text.contains(&setting));
    installation.write_configuration_text(&text);
    installation.command(&["setup"]).await.expect_success();
    installation
}

#[tokio::test(flavor = "multi_thread")]
async fn the_age_of_messages_never_empties_the_stream_of_a_quiet_source() {
    // On a busy machine too, the next daemon runs before the last message of a killed one is so many seconds old.
    let installation = installation_that_keeps(20).await;
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
        // Another reader needs a point to begin at, too.
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
