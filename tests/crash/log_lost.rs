//! The whole log is lost while the daemon works.

use anabranch_tests::{Installation, Plan, seed, until};
use futures::TryStreamExt;

use crate::{GROUND, Moments, under_load};

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_log_is_rebuilt_from_the_binlog_after_set_up() {
    let seed = seed("log lost");
    let installation = Installation::set_up(GROUND.turn().await, &Plan::small()).await;
    let daemon = installation.run();
    daemon.until_ready().await;
    let mut moments = Moments::new(seed);
    under_load(&installation, seed, async || {
        moments.pass(500..1_500).await;
        let jetstream = installation.jetstream().await;
        let streams: Vec<String> = jetstream.stream_names().try_collect().await.unwrap();
        let of_changes: Vec<&String> = streams.iter().filter(|name| !name.starts_with("KV_")).collect();
        assert_eq!(of_changes.len(), 2, "{streams:?}");
        for stream in of_changes {
            jetstream.delete_stream(stream).await.unwrap();
        }
        until("the loss is told", async || {
            daemon.readiness().await.is_some_and(|(code, reasons)| code == 503 && reasons.contains("log-"))
        })
        .await;
        installation.command(&["setup"]).await.expect_success();
        moments.pass(500..1_500).await;
    })
    .await;
    installation.expect_equal().await;
    assert!(daemon.is_running());
}
