//! A coupon day whose coupon system first answers 503 to everybody, and then beside lanes that lag: it leaves them the
//! servers, says so, and goes on.

use anabranch_coupons::records::PARTS;
use anabranch_demo::Faults;
use anabranch_tests::{Plan, until};

use crate::STANDARD;
use crate::coupons::CouponDay;

/// 1 while coupons leave the servers to the lanes.
const HELD: &str = "anabranch_coupon_held";

#[tokio::test(flavor = "multi_thread")]
async fn coupons_leave_the_servers_to_lanes_that_lag_and_go_on() {
    let mut day = CouponDay::begin(STANDARD.turn().await, &Plan::small(), "").await;
    let lanes = day.installation.run_with(&["--role", "reader", "--role", "projector"], &[]);
    day.installation.drained().await;
    day.use_another_http_port();
    day.run_day().await.expect_success();
    coupon_system_that_answers_503(&day).await;

    // The lanes stand still, and a source goes on.
    lanes.pause();
    let table = day.source_table(0);
    day.installation
        .execute("source-a", format!("INSERT INTO {table} (user_id, user_name) VALUES (900, 'late')"))
        .await;
    let granter = day.installation.run_with(&["--role", "granter"], &[]);
    until("the granter says that lanes lag", async || granter.metric(HELD, &[]).await == 1.0).await;
    until("each member has a coupon all the same", async || {
        day.client().gifts().await.is_ok_and(|gifts| gifts.len() == day.members().len())
    })
    .await;

    // Nothing is asked once the work is over.
    until("the granter is at rest", async || granter.metric(HELD, &[]).await == 0.0).await;
    lanes.resume();
    day.expect_everybody_once().await;
    expect_no_try(&day).await;
}

/// The breaker opens: no call counts as a try, and no coupon becomes a dead letter.
async fn coupon_system_that_answers_503(day: &CouponDay) {
    let faults = Faults { unavailable: true, ..Faults::default() };
    day.client().set_faults(&faults).await.unwrap();
    let mut granter = day.installation.run_with(&["--role", "granter"], &[]);
    let is_away =
        |task: &serde_json::Value| task["state"] == "retrying" && task["code"] == "coupon-system-unreachable";
    granter.until_view("tasks", ("task", "granter"), is_away).await;
    granter.kill();
    assert!(day.client().calls().await.unwrap() > 0, "it was called");
    assert!(day.client().gifts().await.unwrap().is_empty());
    expect_no_try(day).await;

    day.client().set_faults(&Faults::default()).await.unwrap();
    day.age_attempts().await;
    day.run_day().await.expect_success();
}

async fn expect_no_try(day: &CouponDay) {
    let counted = |part| {
        format!(
            "SELECT COUNT(*) FROM anabranch_coupons.coupon_ledger_{part:02} WHERE tries > 0 OR state = 'failed'"
        )
    };
    let sql = (0..PARTS).map(counted).collect::<Vec<_>>().join(" UNION ALL ");
    let mut target = day.installation.admin(day.target()).await;
    let counts = target.rows::<u64>("count the tries", sql).await.unwrap();
    assert_eq!(counts.iter().sum::<u64>(), 0, "{counts:?}");
}
