//! A coupon day while one of two source servers is down: users of the other one get their coupons at once, and the rest
//! get theirs when it is back.

use std::collections::BTreeSet;

use anabranch_tests::{Plan, blocking, until};

use crate::STANDARD;
use crate::coupons::CouponDay;

#[tokio::test(flavor = "multi_thread")]
async fn while_a_source_is_down_users_of_the_other_one_get_their_coupons_and_the_rest_later() {
    let mut day = CouponDay::begin(STANDARD.turn().await, &Plan::small(), "").await;
    let lanes = day.installation.run_with(&["--role", "reader", "--role", "projector"], &[]);
    day.installation.drained().await;
    day.use_another_http_port();
    day.run_day().await.expect_success();

    // Users of the second source begin at 1001. A granter that begins now has listed no source.
    let of_other: BTreeSet<u64> = day.members().into_iter().filter(|user| *user > 1_000).collect();
    blocking(|| day.installation.server("source-a").kill().unwrap());
    let granter = day.installation.run_with(&["--role", "granter"], &[]);
    until("the users of the other source have their coupons", async || given(&day).await == of_other).await;

    blocking(|| day.installation.server("source-a").restart().unwrap());
    until("everybody has a coupon", async || {
        day.age_attempts().await;
        day.run_day().await.expect_success();
        day.shown().await["granted"] == day.members().len()
    })
    .await;
    day.expect_everybody_once().await;
    assert!(lanes.is_running() && granter.is_running());
}

/// Users who have a coupon.
async fn given(day: &CouponDay) -> BTreeSet<u64> {
    let gifts = day.client().gifts().await.unwrap();
    gifts.iter().map(|gift| gift.user.parse().unwrap()).collect()
}
