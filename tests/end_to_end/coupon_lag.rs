//! A coupon day beside lanes that lag: it leaves them the servers, says so, and goes on.

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
}
