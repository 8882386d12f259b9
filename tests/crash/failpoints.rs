//! Killed exactly before and after each durable step.

use anabranch_pipeline::failpoints;
use anabranch_tests::until;

use crate::{survives, under_load};

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_each_failpoint_the_daemon_goes_on_without_loss_or_doubling() {
    let (installation, load) = under_load("failpoints").await;
    for name in failpoints::ALL {
        let said = format!("failpoint {name}");
        for _ in 0..2 {
            let mut daemon = installation.run_with(&[], &[("ANABRANCH_FAILPOINT", name)]);
            until(&said, async || {
                assert!(daemon.is_running(), "the daemon ended by itself");
                daemon.log().contains(&said)
            })
            .await;
            daemon.kill();
            installation.free_leases().await;
            std::fs::rename(daemon.log_file(), daemon.log_file().with_extension("earlier.log")).unwrap();
        }
        // In between one that works, or the next one would find nothing to do.
        let daemon = installation.run();
        load.more(50).await;
        daemon.until_ready().await;
        drop(daemon);
        installation.free_leases().await;
    }
    let _daemon = installation.run();
    survives(&installation, load).await;
}
