//! A ledger that is restored from an older copy under a running dispatcher, which mends it without a person, and one
//! whose dispatchers are killed in the middle of that. The witness then has one coupon for each user.

use anabranch_pipeline::failpoints;
use anabranch_tests::{Plan, until};
use serde_json::Value as Json;

use crate::STANDARD;
use crate::coupons::CouponDay;

/// Coupons that are given before the copy is made, and before the ledger is restored, at least.
const BEFORE_COPY: usize = 5;
const BEFORE_RESTORE: usize = 15;
const DISPATCHER: [&str; 3] = ["run", "--role", "dispatcher"];

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatcher_mends_a_restored_ledger_without_a_person_and_goes_on() {
    // The day takes a quarter of a minute.
    let mut day = CouponDay::begin(STANDARD.turn().await, &Plan::small(), "rate_per_second = 4\n").await;
    day.set_system("restored_wait_seconds = 5\n");
    let lanes = day.installation.run_with(&["--role", "reader", "--role", "projector"], &[]);
    day.installation.drained().await;
    copied_after_first_coupons(&mut day).await;
    restored_under_a_dispatcher(&mut day).await;
    killed_while_they_mend(&day).await;
    assert!(lanes.is_running());
}

/// The copy knows the time of an issue.
async fn copied_after_first_coupons(day: &mut CouponDay) {
    day.use_another_http_port();
    day.run_day().await.expect_success();
    let mut granter = day.installation.run_with(&["--role", "granter"], &[]);
    until("some users have coupons", async || gifts(day).await >= BEFORE_COPY).await;
    granter.kill();
    day.copy_ledger().await;
    day.age_attempts().await;
}

/// The dispatcher stops by name, asks for the statement, and the day goes on.
async fn restored_under_a_dispatcher(day: &mut CouponDay) {
    let dispatcher = day.installation.run_with(&["--role", "dispatcher"], &[]);
    day.use_another_http_port();
    let granter = day.installation.run_with(&["--role", "granter"], &[]);
    until("more users have coupons", async || gifts(day).await >= BEFORE_RESTORE).await;
    day.restore_ledger().await;
    let is_restored = |task: &Json| task["code"] == "coupon-ledger-restored";
    dispatcher.until_view("tasks", ("task", "dispatcher/birthday"), is_restored).await;
    until("the ledger is mended", async || !mended(day).await.is_empty()).await;
    until("everybody has a coupon", async || {
        day.age_attempts().await;
        day.shown().await["granted"] == day.members().len()
    })
    .await;
    day.expect_everybody_once().await;
    let mended = mended(day).await;
    let settled = mended[0].split(' ').next().and_then(|coupons| coupons.parse::<usize>().ok());
    assert!(settled >= Some(BEFORE_RESTORE) && mended.len() == 1, "{mended:?}");
    assert!(dispatcher.is_running() && granter.is_running());
}

/// Each dispatcher goes on with the wait of the one before it.
async fn killed_while_they_mend(day: &CouponDay) {
    day.restore_ledger().await;
    for failpoint in failpoints::TAKING_IN {
        let refused = day.run_day().await;
        assert_eq!(refused.exit_code, 1, "before {failpoint}: {refused:?}");
        assert!(refused.stderr.contains("coupon-ledger-restored"), "before {failpoint}: {refused:?}");
        day.kill_at(&DISPATCHER, failpoint).await;
    }
    // The last kill came after the last step.
    until("everybody has a coupon again", async || {
        day.run_day().await.expect_success();
        day.shown().await["granted"] == day.members().len()
    })
    .await;
    day.expect_everybody_once().await;
    assert_eq!(mended(day).await.len(), 1, "an operation that was cut off has no record of its end");
}

async fn gifts(day: &CouponDay) -> usize {
    day.client().gifts().await.unwrap().len()
}

/// Returns what was done, as the operations say, for each time that the ledger was mended.
async fn mended(day: &CouponDay) -> Vec<String> {
    let rows = day.installation.command(&["operations", "--json"]).await.expect_success().json_lines();
    let is_end = |row: &&Json| row["command"] == "anabranch dispatch take-in" && row["phase"] == "done";
    rows.iter().filter(is_end).filter_map(|row| Some(row["after"].as_str()?.to_owned())).collect()
}
