//! The log is damaged under a working daemon: the fault is named, healed or stops; no row is lost, the other source
//! runs on.

use anabranch_schemas::envelope::Envelope;
use anabranch_tests::{Daemon, Installation, Plan, until};
use async_nats::HeaderMap;
use async_nats::jetstream::stream::{Config, StorageType};
use bytes::Bytes;
use serde_json::Value as Json;

use crate::STANDARD;
use crate::faults::{insert, until_derived};

/// An installation whose daemon works on both sources.
async fn at_work() -> (Installation<'static>, Daemon) {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let daemon = installation.run();
    insert(&installation, "source-a", "user_00.user_000", 1).await;
    insert(&installation, "source-b", "user_05.user_000", 2).await;
    until_derived(&installation, 1).await;
    until_derived(&installation, 2).await;
    daemon.until_loaded(&["source-a", "source-b"]).await;
    daemon.until_ready().await;
    (installation, daemon)
}

fn stream(installation: &Installation<'_>) -> String {
    format!("{}_source-a", installation.configuration.name)
}

/// Publishes a copy of the stream's last message, with another payload.
async fn forge(installation: &Installation<'_>, payload: Vec<u8>) {
    let jetstream = installation.jetstream().await;
    let mut handle = jetstream.get_stream(stream(installation)).await.unwrap();
    // The daemon may append meanwhile; the copy's envelope is still right then.
    let last = handle.info().await.unwrap().state.last_sequence;
    let message = handle.get_raw_message(last).await.unwrap();
    let header = |name: &str| message.headers.get(name).map(|value| value.as_str());
    let mut envelope = Envelope::from_headers(header).unwrap();
    (envelope.previous, envelope.changes) = (envelope.position, 1);
    let mut headers = HeaderMap::new();
    for (name, value) in envelope.to_headers() {
        headers.insert(name, value);
    }
    headers.insert("Nats-Msg-Id", "0123456789abcdef-0");
    let subject = format!("{}.source-a.changes", installation.configuration.name);
    jetstream.publish_with_headers(subject, headers, Bytes::from(payload)).await.unwrap().await.unwrap();
}

/// After the operator has given the stream up, all rows come again from the binlog.
async fn is_mended(installation: &Installation<'_>, mut daemon: Daemon) {
    daemon.kill();
    installation.jetstream().await.delete_stream(stream(installation)).await.unwrap();
    installation.command(&["setup"]).await.expect_success();
    installation.free_leases().await;
    let daemon = installation.run();
    insert(installation, "source-a", "user_01.user_000", 9).await;
    installation.expect_equal().await;
    daemon.until_ready().await;
}

/// Expects both lanes of the source in this state, while the other source's rows continue.
async fn lanes_are(state: &str, installation: &Installation<'_>, daemon: &Daemon, code: &str) {
    for lane in 0..2 {
        let task = format!("lane/birthday/target/source-a/{lane}");
        // Until it is made again, the stream is missing.
        let is_reported = |view: &Json| view["state"] == state && view["code"] == code;
        daemon.until_view("tasks", ("task", &task), is_reported).await;
    }
    insert(installation, "source-b", "user_06.user_000", 4).await;
    until_derived(installation, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_message_is_named_and_its_rows_come_from_the_binlog() {
    let (installation, daemon) = at_work().await;
    for payload in [b"\x01no such checksum".to_vec(), b"\x01".to_vec()] {
        forge(&installation, payload).await;
    }
    until("the damage is told", async || daemon.log().contains("[log-message-corrupt] lane birthday/")).await;
    insert(&installation, "source-a", "user_00.user_000", 3).await;
    insert(&installation, "source-b", "user_06.user_000", 4).await;
    until_derived(&installation, 3).await;
    until_derived(&installation, 4).await;
    until("the lanes are back at the stream", async || {
        daemon.metric("anabranch_lane_direct_feeds", &[]).await == 0.0
    })
    .await;
    insert(&installation, "source-a", "user_01.user_000", 5).await;
    installation.expect_equal().await;
    daemon.until_ready().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_a_newer_version_stops_the_lanes_of_its_source_only() {
    let (installation, daemon) = at_work().await;
    let mut payload = b"\x03what a later build writes".to_vec();
    let text: String = payload.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut target = installation.admin("target").await;
    let checksum = target.first::<u32>("compute a checksum", format!("SELECT CRC32(x'{text}')")).await;
    payload.extend(checksum.unwrap().unwrap().to_le_bytes());
    forge(&installation, payload).await;
    lanes_are("stopped", &installation, &daemon, "log-version-unknown").await;
    assert!(daemon.log().contains("upgrade the reader of the log first"), "{}", daemon.log());
    is_mended(&installation, daemon).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_somebody_else_stops_the_lanes_of_its_source_only() {
    let (installation, daemon) = at_work().await;
    let subject = format!("{}.source-a.changes", installation.configuration.name);
    let jetstream = installation.jetstream().await;
    jetstream.publish(subject, "an order".into()).await.unwrap().await.unwrap();
    lanes_are("stopped", &installation, &daemon, "log-foreign").await;
    insert(&installation, "source-a", "user_01.user_000", 5).await;
    let view = daemon.until_view("sources", ("source", "source-a"), |view| view["state"] == "stopped").await;
    assert_eq!(view["code"], "log-foreign", "{view}");
    is_mended(&installation, daemon).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_somebody_else_made_in_its_place_holds_up_its_source_only() {
    let (installation, daemon) = at_work().await;
    let jetstream = installation.jetstream().await;
    let name = stream(&installation);
    jetstream.delete_stream(&name).await.unwrap();
    let subjects = vec![format!("{}.orders", installation.configuration.name)];
    let other = Config { name, subjects, storage: StorageType::Memory, ..Config::default() };
    jetstream.create_stream(other).await.unwrap();
    let is_reported = |view: &serde_json::Value| view["code"] == "log-settings-differ";
    daemon.until_view("sources", ("source", "source-a"), is_reported).await;
    lanes_are("retrying", &installation, &daemon, "log-settings-differ").await;
    is_mended(&installation, daemon).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_lease_bucket_is_made_anew() {
    let (installation, daemon) = at_work().await;
    let bucket = format!("{}_leases", installation.configuration.name);
    installation.jetstream().await.delete_key_value(&bucket).await.unwrap();
    until("the loss is told", async || daemon.log().contains("made anew")).await;
    insert(&installation, "source-a", "user_00.user_000", 3).await;
    insert(&installation, "source-b", "user_06.user_000", 4).await;
    installation.expect_equal().await;
    daemon.until_ready().await;
    installation.command(&["check"]).await.expect_success();
}
