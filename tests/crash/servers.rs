//! Each server dies or stands still under load, and comes back; the daemon goes on by itself.

use anabranch_tests::{Installation, Plan, blocking, seed};

use crate::{GROUND, Moments, under_load};

const SERVERS: [&str; 4] = ["source-a", "source-b", "nats", "target"];

#[tokio::test(flavor = "multi_thread")]
async fn each_server_killed_under_load_loses_nothing() {
    let seed = seed("servers killed");
    let installation = Installation::set_up(GROUND.turn().await, &Plan::small()).await;
    let daemon = installation.run();
    daemon.until_ready().await;
    let mut moments = Moments::new(seed);
    under_load(&installation, seed, async || {
        for name in SERVERS {
            moments.pass(200..1_000).await;
            let server = installation.server(name);
            blocking(|| server.kill()).unwrap();
            moments.pass(0..1_000).await;
            blocking(|| server.restart()).unwrap();
        }
    })
    .await;
    installation.expect_equal().await;
    assert!(daemon.is_running(), "the daemon ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_server_frozen_under_load_loses_nothing() {
    let seed = seed("servers frozen");
    let installation = Installation::set_up(GROUND.turn().await, &Plan::small()).await;
    let daemon = installation.run();
    daemon.until_ready().await;
    let mut moments = Moments::new(seed);
    under_load(&installation, seed, async || {
        for name in SERVERS {
            moments.pass(200..800).await;
            let server = installation.server(name);
            blocking(|| server.pause()).unwrap();
            moments.pass(500..3_000).await;
            blocking(|| server.resume()).unwrap();
        }
    })
    .await;
    installation.expect_equal().await;
    assert!(daemon.is_running(), "the daemon ended");
}
