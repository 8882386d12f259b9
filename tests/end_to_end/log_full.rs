//! NATS has no room: the fault is named, no row is lost, and the work continues when there is room again.

use anabranch_stack::ServerSpec;
use anabranch_tests::{Ground, Installation, Plan, until};

use crate::faults::{insert, until_derived};

const STORE_BYTES: u64 = 24_000_000;
const STREAM_BYTES: u64 = 8_000_000;

/// A NATS that other users share, with little room.
static NARROW: Ground = Ground::of(|| {
    vec![
        ServerSpec::mariadb_source("source-a"),
        ServerSpec::mariadb_target("target"),
        ServerSpec::nats("nats").store_bytes(STORE_BYTES),
    ]
});

#[tokio::test(flavor = "multi_thread")]
async fn a_full_log_is_named_and_goes_on_when_there_is_room_again() {
    let mut installation = Installation::prepare(NARROW.turn().await, &Plan::small()).await;
    let text = installation.configuration_text();
    let text = text.replace("max_bytes = 500000000", &format!("max_bytes = {STREAM_BYTES}"));
    assert!(text.contains(&STREAM_BYTES.to_string()));
    installation.write_configuration_text(&text);
    let said = installation.command(&["setup"]).await.expect_success().stdout;
    assert!(said.contains(&format!("source-a: created (keeps 604800 s, {STREAM_BYTES} bytes)")), "{said}");
    let daemon = installation.run();
    insert(&installation, "source-a", "user_00.user_000", 1).await;
    until_derived(&installation, 1).await;

    let jetstream = installation.jetstream().await;
    let others = jetstream.create_stream("others").await.unwrap();
    let megabyte = vec![0u8; 1_000_000];
    while jetstream.publish("others", megabyte.clone().into()).await.unwrap().await.is_ok() {}
    insert(&installation, "source-a", "user_00.user_000", 2).await;
    until("it is told", async || {
        daemon.readiness().await.is_some_and(|(code, body)| code == 503 && body.contains("log-full"))
    })
    .await;
    // Leases cannot be renewed either: the lanes name that as the reason.
    let lane = "lane/birthday/target/source-a/0";
    daemon.until_view("tasks", ("task", lane), |view| view["code"] == "log-full").await;

    others.purge().await.unwrap();
    until_derived(&installation, 2).await;
    installation.expect_equal().await;
    daemon.until_ready().await;
}
