//! Coupon days with one request for each user: everybody gets one coupon, and a dead letter that a person drops is
//! refused, so its day is closed without that coupon. A letter that a person sends again reaches a granter.

use std::collections::BTreeSet;

use anabranch_demo::Faults;
use anabranch_pipeline::failpoints;
use anabranch_tests::{Daemon, Plan, until};
use serde_json::json;

use crate::STANDARD;
use crate::coupons::CouponDay;

/// A day that is frozen up to noon, whose granters send a request for each user, and its lanes.
async fn frozen_day() -> (CouponDay, Daemon) {
    let mut day = CouponDay::begin(STANDARD.turn().await, &Plan::small(), "").await;
    day.set_system("batch = false\n");
    let lanes = day.installation.run_with(&["--role", "reader", "--role", "projector"], &[]);
    day.installation.drained().await;
    day.use_another_http_port();
    day.run_day().await.expect_success();
    (day, lanes)
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_gets_one_coupon_by_a_request_for_each_user() {
    let (day, _lanes) = frozen_day().await;
    let _granter = day.installation.run_with(&["--role", "granter"], &[]);
    let users = day.members().len();
    until("everybody has a coupon", async || {
        day.run_day().await.expect_success();
        day.shown().await["granted"] == users
    })
    .await;
    day.expect_everybody_once().await;
    let (calls, single) = (day.client().calls().await.unwrap(), day.client().single_calls().await.unwrap());
    assert!(calls >= users as u64, "{calls}");
    assert_eq!(single, calls, "a request had several calls");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_a_person_drops_is_refused_and_the_day_is_closed_without_its_coupon() {
    let (day, _lanes) = frozen_day().await;
    let user = day.members().first().unwrap().to_string();
    let key = format!("birthday/solar:{}/{user}", day.day.year());
    let _granter = granter_with_a_letter(&day, &key).await;

    let listed = day.dispatch(&["letters", "list", "--json"]).await.expect_success().json_lines();
    let [letter] = listed.as_slice() else { panic!("{listed:?}") };
    assert_eq!((&letter["key"], &letter["outcome"]), (&json!(key), &json!("nothing_given")), "{letter}");
    let why = day.dispatch(&["explain", &user]).await.expect_success();
    assert!(why.stdout.contains("The coupon of this day is a dead letter"), "{why:?}");
    let ended = day.dispatch(&["letters", "drop", "--outcome", "not-given", &key]).await.expect_success();
    assert!(ended.stdout.contains(&format!("{key} ends as not given")), "{ended:?}");
    let left = day.dispatch(&["letters", "list", "--json"]).await.expect_success();
    assert!(left.stdout.is_empty(), "{left:?}");

    // The catch-up comes after a reconciliation, and asks for no coupon of the user.
    close(&day).await;
    expect_dropped(&day, &user).await;
    expect_nobody_joins_a_closed_day(&day).await;
    let others: BTreeSet<u64> =
        day.members().into_iter().filter(|member| member.to_string() != user).collect();
    let gifts = day.client().gifts().await.unwrap();
    let given: BTreeSet<u64> = gifts.iter().map(|gift| gift.user.parse().unwrap()).collect();
    assert_eq!((given, gifts.len()), (others.clone(), others.len()), "each other user has one coupon");
}

/// A granter of a day whose user of this key has a dead letter after three tries, and each other one a coupon.
async fn granter_with_a_letter(day: &CouponDay, key: &str) -> Daemon {
    let faults = Faults { rejected_keys: vec![key.to_owned()], ..Faults::default() };
    day.client().set_faults(&faults).await.unwrap();
    let granter = day.installation.run_with(&["--role", "granter"], &[]);
    let others = day.members().len() - 1;
    until("the user has a dead letter, and each other one a coupon", async || {
        day.age_attempts().await;
        day.run_day().await.expect_success();
        let shown = day.shown().await;
        shown["granted"] == others && shown["failed"] == 1
    })
    .await;
    granter
}

/// Reconciles, so that the catch-up can be frozen, and passes until the day is closed.
async fn close(day: &CouponDay) {
    day.installation.command(&["reconcile", "--now"]).await.expect_success();
    until("the run is closed", async || {
        day.run_day().await.expect_success();
        day.shown().await["is_closed"] == true
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_letter_that_is_sent_again_for_a_closed_day_gives_its_coupon_though_its_message_is_lost() {
    let (day, _lanes) = frozen_day().await;
    let user = day.members().first().unwrap().to_string();
    let key = format!("birthday/solar:{}/{user}", day.day.year());
    let granter = granter_with_a_letter(&day, &key).await;
    close(&day).await;
    day.client().set_faults(&Faults::default()).await.unwrap();
    drop(granter);

    // The first command ends after it changed the ledger, and publishes nothing. The second one sends the letter once
    // more, ends after that, and its message is lost. A third one would send it again, and so does a pass.
    for failpoint in failpoints::REQUEUEING {
        day.kill_at(&["dispatch", "letters", "requeue", &key], failpoint).await;
    }
    let stream = format!("{}_coupons", day.installation.configuration.name);
    day.installation.jetstream().await.get_stream(stream).await.unwrap().purge().await.unwrap();
    let _granter = day.installation.run_with(&["--role", "granter"], &[]);
    let listed = day.dispatch(&["letters", "list", "--json"]).await.expect_success().json_lines();
    let [letter] = listed.as_slice() else { panic!("{listed:?}") };
    assert_eq!((&letter["key"], &letter["outcome"]), (&json!(key), &json!("sent_again")), "{letter}");
    let again = day.dispatch(&["letters", "requeue", &key, "--dry-run"]).await.expect_success();
    assert!(again.stdout.contains("would be sent again"), "{again:?}");
    until("the user has the coupon", async || {
        day.run_day().await.expect_success();
        day.client().gifts().await.unwrap().len() == day.members().len()
    })
    .await;
    until("the letter is decided", async || {
        day.dispatch(&["letters", "list"]).await.expect_success().stdout.is_empty()
    })
    .await;
    day.expect_everybody_once().await;
}

/// Expects that status, report and explanation of the closed day say that a person dropped the user's coupon.
async fn expect_dropped(day: &CouponDay, user: &str) {
    let shown = day.shown().await;
    assert_eq!(shown["refused"], json!({ "dropped": 1 }), "{shown}");
    assert_eq!((&shown["failed"], &shown["missed"]), (&0.into(), &0.into()), "{shown}");
    let status = day.dispatch(&["status"]).await.expect_success();
    assert!(status.stdout.contains("refused    1 dropped"), "{status:?}");
    let report = day.dispatch(&["report", &day.day.to_string()]).await.expect_success();
    let is_closed = report.stdout.contains("closed: clean");
    assert!(is_closed && report.stdout.contains("refused    1 dropped"), "{report:?}");
    let why = day.dispatch(&["explain", user]).await.expect_success();
    assert!(why.stdout.contains("The user gets no coupon: a person has ended the dead letter."), "{why:?}");
}

/// Expects that the explanation of a user whose birthday came into the source too late says so, with the coupon's key.
async fn expect_nobody_joins_a_closed_day(day: &CouponDay) {
    let (table, today) = (day.source_table(0), day.day);
    let born = format!("1996-{:02}-{:02}", today.month(), today.day());
    let sql = format!("INSERT INTO {table} (user_id, user_name, birthday) VALUES (900, 'late', '{born}')");
    day.installation.execute("source-a", sql).await;
    let why = day.dispatch(&["explain", "900"]).await.expect_success();
    assert!(why.stdout.contains("the day is closed, and no wave reads the tables again"), "{why:?}");
    let key = format!("by the key birthday/solar:{}/900", today.year());
    assert!(why.stdout.contains(&key), "{why:?}");
}
