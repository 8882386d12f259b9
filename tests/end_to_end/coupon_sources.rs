//! A coupon day of two programmes while one of two source servers is down: users of the other one get their coupons at
//! once, and the rest get theirs when it is back. A message has users of both servers. The programme with a low rate
//! does not hold up the other one, though its messages are the first ones.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anabranch_tests::{Plan, blocking, until, until_some};
use serde_json::Value as Json;

use crate::STANDARD;
use crate::coupons::CouponDay;

/// The rate of the first programme, and a second programme, whose rate allows all users within some seconds.
const RATES: &str = "rate_per_second = 1\n\
     [[programmes]]\nname = \"fast\"\ncoupon = \"tea\"\ntime_zone = \"{zone}\"\nleap_day = \"feb28\"\n\
     calendars = [\"solar\"]\nnoon_at = \"00:01\"\nwaits_until = \"00:00\"\nrate_per_second = 50\n";
const SLOW: &str = "birthday";
const FAST: &str = "fast";

#[tokio::test(flavor = "multi_thread")]
async fn while_a_source_is_down_users_of_the_other_one_get_their_coupons_and_the_rest_later() {
    let mut day = CouponDay::begin(STANDARD.turn().await, &Plan::small(), RATES).await;
    let lanes = day.installation.run_with(&["--role", "reader", "--role", "projector"], &[]);
    day.installation.drained().await;
    day.use_another_http_port();
    day.run_day().await.expect_success();

    // Users of the second source begin at 1001. A granter that begins now has listed no source.
    let of_other: BTreeSet<u64> = day.members().into_iter().filter(|user| *user > 1_000).collect();
    blocking(|| day.installation.server("source-a").kill().unwrap());
    let began = Instant::now();
    let granter = day.installation.run_with(&["--role", "granter"], &[]);
    let slow = until_some("the users of the other source have their coupons", async || {
        let [slow, fast] = given(&day).await;
        (fast == of_other).then_some(slow)
    });
    let slow = slow.await;
    // A busy machine may need so long for the fast programme that the slow one ends, too.
    let is_slow = slow.len() < of_other.len() || began.elapsed().as_secs() + 1 >= of_other.len() as u64;
    assert!(slow.is_subset(&of_other) && is_slow, "one user a second: {slow:?}");

    blocking(|| day.installation.server("source-a").restart().unwrap());
    until("everybody has a coupon", async || {
        day.age_attempts().await;
        let today = day.day.to_string();
        day.dispatch(&["run", &today, "--programme", FAST]).await.expect_success();
        shown(&day).await["granted"] == day.members().len()
    })
    .await;
    let [_, fast] = given(&day).await;
    assert_eq!((fast, day.client().doubles().await.unwrap()), (day.members(), BTreeMap::new()));
    assert!(lanes.is_running() && granter.is_running());
}

/// Users who have a coupon of the slow programme, and of the fast one.
async fn given(day: &CouponDay) -> [BTreeSet<u64>; 2] {
    let gifts = day.client().gifts().await.unwrap();
    [SLOW, FAST].map(|programme| {
        let of_it = gifts.iter().filter(|gift| gift.programme == programme);
        of_it.map(|gift| gift.user.parse().unwrap()).collect()
    })
}

/// The newest day of the fast programme.
async fn shown(day: &CouponDay) -> Json {
    day.dispatch(&["status", "--json", "--programme", FAST]).await.expect_success().json()[0].clone()
}
