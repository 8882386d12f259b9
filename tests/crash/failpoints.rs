//! The daemon is stopped before and after each durable step, and killed there.

use anabranch_demo::{Pace, WorkloadOptions};
use anabranch_pipeline::failpoints;
use anabranch_tests::{Installation, Plan, seed, until};

use crate::GROUND;

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_killed_before_or_after_any_durable_step_loses_nothing() {
    let installation = Installation::set_up(GROUND.turn().await, &Plan::small()).await;
    let mut workload = installation.workload(WorkloadOptions::new(seed("failpoints")));
    workload.seed_users(300).await.unwrap();
    for name in failpoints::ALL {
        let mut daemon = installation.run_with(&[], &[("ANABRANCH_FAILPOINT", name)]);
        let reached = format!("failpoint {name}");
        workload.run_for(Pace::of(200), std::time::Duration::from_millis(300)).await.unwrap();
        until(&format!("{reached} is reached"), async || {
            assert!(daemon.is_running(), "the daemon ended by itself");
            daemon.log().contains(&reached)
        })
        .await;
        daemon.kill();
        let mut after = installation.run();
        installation.expect_equal().await;
        after.kill();
    }
}
