//! A coupon day whose processes are killed at each step of its three waves, beside the columns that follow the ledger,
//! and while a statement is taken in, and one whose granters are killed while they learn the outcomes of earlier calls.
//! The witness then has one coupon for each user.

use std::collections::BTreeSet;

use anabranch_demo::Faults;
use anabranch_pipeline::failpoints;
use anabranch_tests::{Plan, until};

use crate::STANDARD;
use crate::coupons::{CouponDay, store};

/// Noon as the programme sets it, which is past, and an hour that has not come.
const NOON: &str = "00:01:00";
const LATER: &str = "23:58:00";
/// A user of the second source whose row is lost before midnight. The reconciliation restores it for the catch-up.
const LOST: u64 = 1_020;
/// Columns of a user without a coupon.
const UNSENT: &str = "is_sent = 0, send_time = NULL, sent_occurrence = NULL";

#[tokio::test(flavor = "multi_thread")]
async fn a_coupon_day_is_killed_at_each_step_of_its_waves_columns_and_statement() {
    let mut day = CouponDay::begin(STANDARD.turn().await, &Plan::small(), "").await;
    let lanes = day.installation.run_with(&["--role", "reader", "--role", "projector"], &[]);
    day.installation.drained().await;
    day.use_another_http_port();
    for table in day.tables().await {
        let sql = format!("DELETE FROM {table} WHERE user_id = {LOST}");
        day.installation.execute(day.target(), sql).await;
    }
    midnight(&day).await;
    granter_killed_before_columns(&day).await;
    statement(&day).await;
    noon(&day).await;
    catch_up(&day).await;
    granter_killed_after_columns(&day).await;
    closed(&day).await;
    assert!(lanes.is_running());
}

#[tokio::test(flavor = "multi_thread")]
async fn granters_are_killed_at_each_step_of_learning_what_earlier_calls_gave() {
    let mut day = CouponDay::begin(STANDARD.turn().await, &Plan::small(), "").await;
    let lanes = day.installation.run_with(&["--role", "reader", "--role", "projector"], &[]);
    day.installation.drained().await;
    day.use_another_http_port();
    day.run_day().await.expect_success();
    // Coupons are given, and the answers are lost.
    let faults = Faults { lost_after: 1.0, ..Faults::default() };
    day.client().set_faults(&faults).await.unwrap();
    let mut granter = day.installation.run_with(&["--role", "granter"], &[]);
    until("a coupon is given", async || !day.client().gifts().await.unwrap().is_empty()).await;
    granter.kill();
    day.client().set_faults(&Faults::default()).await.unwrap();

    for failpoint in failpoints::LEARNING {
        day.age_attempts().await;
        day.run_day().await.expect_success();
        day.kill_at(&["run", "--role", "granter"], failpoint).await;
    }
    let _granter = day.installation.run_with(&["--role", "granter"], &[]);
    until("everybody has a coupon", async || {
        day.age_attempts().await;
        day.run_day().await.expect_success();
        day.shown().await["granted"] == day.members().len()
    })
    .await;
    day.expect_everybody_once().await;
    assert!(lanes.is_running());
}

/// Users whose rows are there at midnight.
fn present(day: &CouponDay) -> BTreeSet<u64> {
    day.members().into_iter().filter(|user| *user != LOST).collect()
}

/// Kills a pass by hand at each of these points, in turn.
async fn kill_passes(day: &CouponDay, points: &[&str]) {
    let today = day.day.to_string();
    for failpoint in points {
        day.kill_at(&["dispatch", "run", &today], failpoint).await;
    }
}

/// Points of a freeze up to its last transaction.
fn freezing() -> &'static [&'static str] {
    let (_, points) = failpoints::FREEZING.split_last().unwrap();
    points
}

/// Changes the hour of noon in the rules of the run.
async fn move_noon(day: &CouponDay, from: &str, to: &str) {
    let sql = format!("UPDATE anabranch_coupons.coupon_run SET rules = REPLACE(rules, '{from}', '{to}')");
    day.installation.execute(day.target(), sql).await;
}

/// Waves of the run that are frozen.
async fn frozen(day: &CouponDay) -> u64 {
    let sql = "SELECT frozen FROM anabranch_coupons.coupon_run";
    let mut target = day.installation.admin(day.target()).await;
    target.first::<u64>("read the run", sql).await.unwrap().unwrap()
}

/// The second pass begins the run, and no later one freezes more than midnight. The ledger is copied before any coupon.
async fn midnight(day: &CouponDay) {
    kill_passes(day, failpoints::BEGINNING).await;
    move_noon(day, NOON, LATER).await;
    kill_passes(day, freezing()).await;
    assert_eq!(frozen(day).await, 0);
    kill_passes(day, &["coupons-after-wave-end"]).await;
    assert_eq!(frozen(day).await, 1);
    day.run_day().await.expect_success();
    day.copy_ledger().await;
}

/// The ledger has coupons that no column shows. Another granter gives the others.
async fn granter_killed_before_columns(day: &CouponDay) {
    day.kill_at(&["run", "--role", "granter"], "coupons-before-columns").await;
    assert_eq!(day.marked_users().await, BTreeSet::new());
    assert!(!day.client().gifts().await.unwrap().is_empty(), "coupons were given before the kill");
    day.age_attempts().await;
    let mut granter = day.installation.run_with(&["--role", "granter"], &[]);
    until("every user of midnight has a coupon", async || {
        day.run_day().await.expect_success();
        day.age_attempts().await;
        let shown = day.shown().await;
        shown["granted"] == present(day).len() && shown["in_flight"] == 0
    })
    .await;
    granter.kill();
}

/// A restored ledger is refused until a statement is taken in to its end, and the command may be repeated.
async fn statement(day: &CouponDay) {
    day.restore_ledger().await;
    // The copy is from before the first issue, so no process knows for what time to ask.
    let asked = day.dispatch(&["take-in", "--waited"]).await;
    assert!(asked.exit_code == 1 && asked.stderr.contains("coupon-ledger-restored"), "{asked:?}");
    let page = day.write_statement().await;
    for failpoint in failpoints::TAKING_IN {
        let refused = day.run_day().await;
        assert_eq!(refused.exit_code, 1, "before {failpoint}: {refused:?}");
        assert!(refused.stderr.contains("coupon-ledger-restored"), "before {failpoint}: {refused:?}");
        day.kill_at(&["dispatch", "take-in", &page], failpoint).await;
    }
    // The last kill came after the last step.
    day.run_day().await.expect_success();
    let refused = day.dispatch(&["take-in", &page]).await;
    assert!(refused.exit_code == 1 && refused.stderr.contains("dispatch-refused"), "{refused:?}");
    day.run_day().await.expect_success();
    let settled = format!("{} coupons were settled", present(day).len());
    // A copy that knows the time of an issue needs no file.
    let issued = "UPDATE ledger_copy.coupon_token SET issued_at = UTC_TIMESTAMP(6) - INTERVAL 1 HOUR";
    day.installation.execute(day.target(), issued).await;
    day.restore_ledger().await;
    assert_eq!(day.run_day().await.exit_code, 1);
    let refused = day.dispatch(&["take-in"]).await;
    assert!(refused.exit_code == 1 && refused.stderr.contains("must wait for another"), "{refused:?}");
    let asked = day.dispatch(&["take-in", "--waited"]).await.expect_success();
    assert!(asked.stdout.contains(&settled), "{asked:?}");
    let run = day.run_day().await.expect_success();
    assert!(run.stdout.contains(&format!("{} granted", present(day).len())), "{run:?}");
    assert_eq!(frozen(day).await, 1, "noon has not come");
}

/// A pass that ends a wave and is killed before the columns leaves them as they are: no later pass writes them for this
/// wave.
async fn noon(day: &CouponDay) {
    day.change_columns(UNSENT, "user_id = 1").await;
    let shown = day.marked_users().await;
    move_noon(day, LATER, NOON).await;
    kill_passes(day, freezing()).await;
    assert_eq!(frozen(day).await, 1);
    kill_passes(day, &["coupons-before-day-columns"]).await;
    assert_eq!(frozen(day).await, 2);
    day.run_day().await.expect_success();
    assert_eq!(day.marked_users().await, shown);
}

/// The reconciliation mends the columns and restores the lost row. Then the catch-up writes columns that a person has
/// changed since.
async fn catch_up(day: &CouponDay) {
    let done = day.installation.command(&["reconcile", "--now", "--json"]).await.expect_success().json();
    let birthdays = store(&done, "birthday");
    assert_eq!((&birthdays["confirmed"], &birthdays["left"]), (&1.into(), &0.into()), "{done}");
    assert_eq!(day.marked_users().await, present(day));
    day.change_columns(UNSENT, "user_id = 1").await;
    kill_passes(day, freezing()).await;
    assert_eq!(frozen(day).await, 2);
    kill_passes(day, &["coupons-after-day-columns"]).await;
    assert_eq!(frozen(day).await, 3);
    assert_eq!(day.marked_users().await, present(day));
}

/// Only the user whom the reconciliation restored still lacks a coupon.
async fn granter_killed_after_columns(day: &CouponDay) {
    let run = day.run_day().await.expect_success();
    assert!(run.stdout.contains("50 eligible = 49 granted"), "{run:?}");
    day.kill_at(&["run", "--role", "granter"], "coupons-after-columns").await;
    assert_eq!(day.marked_users().await, day.members());
}

/// The ledger, its signed report, the columns and the witness agree.
async fn closed(day: &CouponDay) {
    until("the run is closed", async || {
        day.run_day().await.expect_success();
        day.shown().await["is_closed"] == true
    })
    .await;
    let shown = day.shown().await;
    for (count, users) in [("eligible", 50), ("granted", 50), ("missed", 0), ("failed", 0)] {
        assert_eq!(shown[count], users, "{count}: {shown}");
    }
    let report = day.dispatch(&["report", &day.day.to_string()]).await.expect_success();
    assert!(report.stdout.contains("closed: clean"), "{report:?}");
    assert_eq!(day.marked_users().await, day.members());
    assert_eq!(day.client().doubles().await.unwrap().len(), 0);
    day.expect_everybody_once().await;
}
