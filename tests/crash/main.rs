//! Processes die, freeze and wake at awkward moments, under load, on real servers: afterwards the store equals its
//! sources.
//!
//! The daemon is killed at random moments and at each failpoint. Each server is killed and frozen. Daemons share leases
//! and take them over, zombies wake in the middle of a step, the log is lost, clocks step. Each test ends the same way:
//! a comparison that shares no code with the projector finds every derived row right.
//! projector.

#![expect(clippy::unwrap_used, reason = "the whole target is tests")]

mod clock;
mod daemons;
mod failpoints;
mod load;
mod log_lost;
mod servers;
mod versions;
mod zombies;

use std::time::Duration;

use anabranch_stack::Options;
use anabranch_tests::{Daemon, Ground, Installation, Plan};

use crate::load::Load;

static GROUND: Ground = Ground::of(|| Options::everything().servers);

/// Tasks of one installation: readers of two sources, and two lanes each.
const TASKS: usize = 6;
/// Longest time until other daemons do the work of a dead one. The promise is 5 s, which follows from the settings of
/// the leases (a unit test shows it); the measured time is printed. An overloaded machine is slower. A daemon that
/// waits for anything but the lease is much slower.
const TAKE_OVER_MAX: Duration = Duration::from_secs(30);

/// Sets an installation up and starts its load. Start the daemon, break something, then call [`survives`].
async fn under_load(test: &str) -> (Installation<'static>, Load) {
    under_load_of(&Plan::small(), test).await
}

async fn under_load_of(plan: &Plan, test: &str) -> (Installation<'static>, Load) {
    let installation = Installation::set_up(GROUND.turn().await, plan).await;
    let load = Load::start(&installation, test).await;
    (installation, load)
}

/// Ends the load, waits for the lanes and compares everything.
async fn survives(installation: &Installation<'_>, load: Load) {
    let report = load.stop().await;
    assert_eq!(report.unsettled_rows, 0, "{report:?}");
    let comparison = installation.expect_equal().await;
    eprintln!("{} changes, {} claims, equal", report.changes, comparison.claims);
}

/// Names of the tasks that a daemon works on; empty when it does not answer.
async fn running_tasks(daemon: &Daemon) -> Vec<String> {
    let Some(status) = daemon.status().await else { return Vec::new() };
    let tasks = status["tasks"].as_array().unwrap().iter().filter(|task| task["state"] == "running");
    let names = tasks.map(|task| task["task"].as_str().unwrap().to_owned());
    // Spot checks only observe the work.
    names.filter(|name| !name.starts_with("spot-checks/")).collect()
}
