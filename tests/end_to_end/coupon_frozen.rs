//! A coupon day whose ledger's server is down for half a minute, and one whose granters sleep between their issue and
//! their call while others take their work over. The witness then has one coupon for each user, and the day is closed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anabranch_tests::{Daemon, Plan, blocking, until};

use crate::STANDARD;
use crate::coupons::CouponDay;

/// Time without the ledger's server: longer than the pause of a message whose attempt failed.
const DOWN: Duration = Duration::from_secs(35);
/// Users who have a coupon when the server goes, at least.
const BEFORE: usize = 5;

#[tokio::test(flavor = "multi_thread")]
async fn a_day_goes_on_after_the_server_of_its_ledger_was_down_in_the_middle_of_it() {
    // The day takes half a minute.
    let mut day = CouponDay::begin(STANDARD.turn().await, &Plan::small(), "rate_per_second = 2\n").await;
    let lanes = day.installation.run_with(&["--role", "reader", "--role", "projector"], &[]);
    day.installation.drained().await;
    day.use_another_http_port();
    let granting = ["dispatcher", "granter"].map(|role| ["--role", role]).concat();
    let daemon = day.installation.run_with(&granting, &[]);
    until("some users have coupons", async || gifts(&day).await >= BEFORE).await;

    let server = day.installation.server(day.target());
    blocking(|| server.stop().unwrap());
    let stopped_at = Instant::now();
    until("the server was down for long", async || stopped_at.elapsed() >= DOWN).await;
    let given = gifts(&day).await;
    assert!(given < day.members().len(), "no coupon is given without the ledger: {given}");
    assert!(daemon.is_running() && lanes.is_running());
    blocking(|| server.restart().unwrap());

    until("everybody has a coupon", async || {
        day.age_attempts().await;
        day.shown().await["granted"] == day.members().len()
    })
    .await;
    // Passes by hand overlap those of the dispatcher.
    close(&day).await;
    assert!(daemon.is_running() && lanes.is_running());
}

#[tokio::test(flavor = "multi_thread")]
async fn granters_that_were_frozen_before_their_call_and_woken_give_no_second_coupon() {
    let mut day = CouponDay::begin(STANDARD.turn().await, &Plan::small(), "").await;
    let lanes = day.installation.run_with(&["--role", "reader", "--role", "projector"], &[]);
    day.installation.drained().await;
    // The first one sleeps between the ledger and the register, the second one after the register.
    let mut sleepers = Vec::new();
    for failpoint in ["coupons-after-issue", "coupons-before-call"] {
        day.use_another_http_port();
        sleepers.push(asleep(&day, failpoint).await);
    }

    day.use_another_http_port();
    let granter = day.installation.run_with(&["--role", "granter"], &[]);
    until("everybody has a coupon", async || {
        day.age_attempts().await;
        day.run_day().await.expect_success();
        day.shown().await["granted"] == day.members().len()
    })
    .await;
    day.expect_everybody_once().await;
    sleepers.iter().for_each(Daemon::resume);
    // A granter answers requests again once it is awake, and its workers have gone on.
    for sleeper in &sleepers {
        sleeper.until_ready().await;
    }
    close(&day).await;
    assert!(sleepers.iter().all(Daemon::is_running) && granter.is_running() && lanes.is_running());
}

/// A granter that has reached the failpoint and is stopped there (SIGSTOP). Its attempts are old.
async fn asleep(day: &CouponDay, failpoint: &str) -> Daemon {
    day.run_day().await.expect_success();
    let granter = day.installation.run_with(&["--role", "granter"], &[("ANABRANCH_FAILPOINT", failpoint)]);
    granter.until_failpoint(failpoint).await;
    granter.pause();
    day.age_attempts().await;
    granter
}

async fn gifts(day: &CouponDay) -> usize {
    day.client().gifts().await.unwrap().len()
}

/// Reconciles, passes until the day is closed, and expects that the report and the witness agree.
async fn close(day: &CouponDay) {
    day.installation.drained().await;
    day.installation.command(&["reconcile", "--now"]).await.expect_success();
    until("the day is closed", async || {
        day.run_day().await.expect_success();
        day.shown().await["is_closed"] == true
    })
    .await;
    let report = day.dispatch(&["report", &day.day.to_string()]).await.expect_success();
    assert!(report.stdout.contains("closed: clean"), "{report:?}");
    assert_eq!(day.client().doubles().await.unwrap(), BTreeMap::new());
    day.expect_everybody_once().await;
}
