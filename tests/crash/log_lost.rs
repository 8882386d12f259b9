//! The log lost while the binlogs are kept: nothing is lost.

use anabranch_tests::{Daemon, Installation, blocking, until};
use futures::TryStreamExt;

use crate::{survives, under_load};

/// Checks that set-up makes streams and bucket again, and that the running daemon fills them from the binlog.
async fn is_rebuilt(installation: &Installation<'_>, daemon: &Daemon) {
    until("the loss is told", async || {
        daemon.readiness().await.is_some_and(|(code, reasons)| code == 503 && reasons.contains("log-"))
    })
    .await;
    let status = installation.command(&["status"]).await;
    assert_ne!(status.exit_code, 0, "a lost log is not seen: {status:?}");
    let again = installation.command(&["setup"]).await.expect_success();
    assert!(again.stdout.contains("created"), "{again:?}");
    daemon.until_ready().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_streams_are_rebuilt_from_the_binlogs_after_set_up() {
    let (installation, load) = under_load("streams deleted").await;
    let daemon = installation.run();
    daemon.until_ready().await;
    load.more(200).await;
    let jetstream = installation.jetstream().await;
    let streams: Vec<String> = jetstream.stream_names().try_collect().await.unwrap();
    let of_changes: Vec<&String> = streams.iter().filter(|name| !name.starts_with("KV_")).collect();
    assert_eq!(of_changes.len(), 2, "{streams:?}");
    for stream in of_changes {
        jetstream.delete_stream(stream).await.unwrap();
    }
    load.more(100).await;
    is_rebuilt(&installation, &daemon).await;
    load.more(100).await;
    survives(&installation, load).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wiped_storage_of_the_log_is_rebuilt_from_the_binlogs_after_set_up() {
    let (installation, load) = under_load("storage wiped").await;
    let daemon = installation.run();
    daemon.until_ready().await;
    load.more(200).await;
    let nats = installation.server("nats");
    blocking(|| nats.restart_empty().unwrap());
    load.more(100).await;
    is_rebuilt(&installation, &daemon).await;
    load.more(100).await;
    survives(&installation, load).await;
}
