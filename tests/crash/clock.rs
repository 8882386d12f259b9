//! Wall clocks that are set forward and back under load, of the daemon and of the databases, together and one by one.
//!
//! No decision depends on them: no row is lost, no task stops, no lease changes hands, and lag stays true. The tests
//! have no means to step the clock of NATS.

use std::time::Duration;

use anabranch_stack::{Clock, ServerSpec};
use anabranch_tests::{Daemon, Ground, Installation, Plan, until, until_some};

use crate::load::Load;
use crate::{TASKS, running_tasks, survives};

static CLOCKED: Ground = Ground::of(|| {
    vec![
        ServerSpec::mariadb_source("source-a").with_own_clock(),
        ServerSpec::mariadb_source("source-b").with_own_clock(),
        ServerSpec::mariadb_target("target").with_own_clock(),
        ServerSpec::nats("nats"),
    ]
});

const DAY: i64 = 24 * 3600;
const TEN_YEARS: i64 = 3650 * DAY;
/// Most lag of a lane: far below each step of the clock, and far above a lane's need on a busy machine.
const LAG_MAX: Duration = Duration::from_secs(60);

/// Every sample of a gauge.
async fn samples(daemon: &Daemon, name: &str) -> Vec<f64> {
    let metrics = daemon.metrics().await;
    let lines = metrics.lines().filter(|line| line.starts_with(name));
    lines.map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap()).collect()
}

async fn is_undisturbed(daemon: &Daemon, load: &Load) {
    load.more(150).await;
    // The daemon may answer late. A task that did not go on has a fault, and the test counts these at its end.
    until("all tasks run", async || running_tasks(daemon).await.len() == TASKS).await;
    for name in ["anabranch_capture_lag_seconds", "anabranch_lane_lag_seconds"] {
        let lags = until_some(&format!("a sample of {name}"), async || {
            let lags = samples(daemon, name).await;
            (!lags.is_empty()).then_some(lags)
        })
        .await;
        for lag in lags {
            assert!((0.0..LAG_MAX.as_secs_f64()).contains(&lag), "{name} is {lag}");
        }
    }
}

async fn year_of(installation: &Installation<'_>, server: &str) -> u32 {
    let mut admin = installation.admin(server).await;
    admin.first("read the clock", "SELECT YEAR(NOW())").await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn wall_clocks_that_are_stepped_under_load_disturb_nothing() {
    let installation = Installation::set_up(CLOCKED.turn().await, &Plan::small()).await;
    let mut load = Load::start(&installation, "clocks stepped").await;
    let (own, variables) = anabranch_tests::blocking(|| installation.stack().clock("daemon")).unwrap();
    let variables: Vec<(&str, &str)> =
        variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    // The clocks are those that the programs use.
    let now = year_of(&installation, "source-a").await;
    own.step_to(-TEN_YEARS).unwrap();
    let mut daemon = installation.run_with(&[], &variables);
    until("it works on all", async || running_tasks(&daemon).await.len() == TASKS).await;
    let then = format!("{}-", now - 10);
    assert!(daemon.log().starts_with(&then), "{}", daemon.log());

    let of = |name: &str| installation.server(name).clock();
    let clocks: Vec<Clock> = vec![own, of("source-a"), of("source-b"), of("target")];
    for seconds in load.shuffled(vec![DAY, -DAY, TEN_YEARS, -TEN_YEARS]) {
        for clock in &clocks {
            clock.step_to(seconds).unwrap();
        }
        is_undisturbed(&daemon, &load).await;
        if seconds == TEN_YEARS {
            assert!(year_of(&installation, "source-a").await >= now + 9);
        }
    }
    for clock in load.shuffled(clocks) {
        for seconds in load.shuffled(vec![DAY, -TEN_YEARS, 0]) {
            clock.step_to(seconds).unwrap();
            is_undisturbed(&daemon, &load).await;
        }
    }
    assert_eq!(daemon.metric("anabranch_faults_total", &[]).await, 0.0, "{}", daemon.log());
    survives(&installation, load).await;
    assert_eq!(daemon.terminate().and_then(|status| status.code()), Some(0), "{}", daemon.log());
}
