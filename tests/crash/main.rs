//! Any process killed or frozen at any moment, under load; afterwards every derived row is equal to the sources.

#![expect(clippy::unwrap_used, reason = "the whole target is tests")]

mod daemons;
mod failpoints;
mod load;
mod log_lost;
mod servers;

use anabranch_tests::{Ground, Installation, Plan};

use crate::load::Load;

static STANDARD: Ground = Ground::standard();

/// An installation that was set up, with its load. Start the daemon, break something, then [`survives`].
async fn under_load(test: &str) -> (Installation<'static>, Load) {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let load = Load::start(&installation, test).await;
    (installation, load)
}

/// Ends the load, waits for the lanes and compares everything.
async fn survives(installation: &Installation<'_>, load: Load) {
    let report = load.stop().await;
    assert_eq!(report.unsettled_users, 0, "{report:?}");
    let comparison = installation.expect_equal().await;
    eprintln!("{} changes, {} claims, equal", report.changes, comparison.claims);
}
