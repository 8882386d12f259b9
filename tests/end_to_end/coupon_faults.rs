//! Coupon days whose sources and reconciliations fail in part, through the binary: some users wait or are missed, and
//! all are caught up once, by the solar and the lunar calendar.

use std::collections::BTreeMap;

use anabranch_schemas::celebration::{Calendar, LeapDayRule, celebrated};
use anabranch_tests::{Plan, Turn, until, until_some};
use serde_json::Value as Json;

use crate::STANDARD;
use crate::coupons::{CouponDay, store};

/// A second programme, which waits for a reconciliation without limit.
const CAREFUL: &str = "[[programmes]]\nname = \"careful\"\ncoupon = \"tea\"\ntime_zone = \"{zone}\"\nleap_day = \"feb28\"\n\
     noon_at = \"00:01\"\nwaits_until = \"00:00\"\nwithout_reconciliation = \"stop\"\n";
/// Numbers of users in the two sources' tables, and of further ones in the second who celebrate by the lunar calendar.
const UNREAD: u64 = 30;
const READ: u64 = 20;
const LUNAR: u64 = 5;

/// The newest day of each programme.
async fn shown(day: &CouponDay) -> BTreeMap<String, Json> {
    let shown = day.dispatch(&["status", "--json"]).await.expect_success().json();
    let days = shown.as_array().unwrap().iter();
    days.map(|day| (day["programme"].as_str().unwrap().to_owned(), day.clone())).collect()
}

/// Number of coupons by programme; fails when a user has two of one programme.
async fn gifts(day: &CouponDay) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    assert_eq!(day.client().doubles().await.unwrap(), BTreeMap::new());
    for gift in day.client().gifts().await.unwrap() {
        *counts.entry(gift.programme).or_default() += 1;
    }
    counts
}

/// Numbers of coupons of the solar programme, and of the one with both calendars.
fn each(solar: u64, lunar: u64) -> BTreeMap<String, u64> {
    [("birthday".to_owned(), solar), ("careful".to_owned(), solar + lunar)].into()
}

/// Inserts users of the second source whose lunar birthday is today; returns their number, 0 in a leap month.
async fn insert_lunar_users(day: &CouponDay) -> u64 {
    let today = celebrated(day.day, &[Calendar::Lunar], LeapDayRule::Feb28);
    let Some(today) = today.first() else { return 0 };
    let table = day.source_table(1);
    let other = day.day.checked_add(jiff::Span::new().days(90)).unwrap();
    let users = (0..LUNAR).map(|user| {
        let born = format!("1996-{:02}-{:02}", other.month(), other.day().min(28));
        format!("({}, 'l{user}', '{born}', '{}', 'lunar')", 1_700 + user, today.birthday)
    });
    let columns = "user_id, user_name, birthday, lunar_birthday, birthday_type";
    let sql = format!("INSERT INTO {table} ({columns}) VALUES {}", users.collect::<Vec<_>>().join(", "));
    day.installation.execute("source-b", sql).await;
    LUNAR
}

/// Expects that a daemon shows the day of the second programme, its reason, and that it is ready.
async fn shows_the_day_that_waits(day: &CouponDay) {
    let mut dispatcher = day.installation.run_with(&["--role", "dispatcher"], &[]);
    let says_why = |view: &Json| {
        let waits_for = view["waits_for"].as_str().unwrap_or_default();
        view["state"] == "running" && waits_for.contains("a reconciliation that is young enough")
    };
    dispatcher.until_view("tasks", ("task", "dispatcher/careful"), says_why).await;
    let today = day.day.to_string();
    let is_shown = |view: &Json| view["state"] == "waiting" && view["day"]["day"].as_str() == Some(&*today);
    dispatcher.until_view("programmes", ("programme", "careful"), is_shown).await;
    let waves = dispatcher.metrics().await;
    let is_of_it = |line: &&str| {
        line.starts_with("anabranch_coupon_frozen_waves{") && line.contains("programme=\"careful\"")
    };
    let line = waves.lines().find(is_of_it).expect("a day that waits has the metric");
    assert!(line.ends_with(" 0"), "{line}");
    dispatcher.until_ready().await;
    let why = day.dispatch(&["explain", "1", "--programme", "careful"]).await.expect_success();
    assert!(why.stdout.contains("The day has no cohort yet: it waits for a reconciliation"), "{why:?}");
    assert!(dispatcher.terminate().is_some(), "it frees its leases");
}

#[tokio::test(flavor = "multi_thread")]
async fn users_of_a_table_that_no_reconciliation_compares_wait_or_are_missed_and_are_caught_up_once() {
    two_programmes_without_a_table(STANDARD.turn().await).await;
}

pub async fn two_programmes_without_a_table(turn: Turn<'static>) {
    let plan = Plan { is_lunar: true, ..Plan::small() };
    let mut day = CouponDay::begin(turn, &plan, CAREFUL).await;
    let lunar = insert_lunar_users(&day).await;
    let _lanes = day.installation.run_with(&["--role", "reader", "--role", "projector"], &[]);
    day.installation.drained().await;
    day.use_another_http_port();
    // A row that was lost before midnight is missing at midnight and at noon.
    let lost = 1_000 + READ;
    for table in day.tables().await {
        let sql = format!("DELETE FROM {table} WHERE user_id = {lost}");
        day.installation.execute(day.target(), sql).await;
    }
    let run = day.run_day().await.expect_success();
    assert!(run.stdout.contains("birthday") && run.stdout.contains("noon is frozen: 49 eligible"), "{run:?}");
    assert!(run.stdout.contains("waits before midnight's tables are frozen"), "{run:?}");

    shows_the_day_that_waits(&day).await;

    // The reconciliation restores it, and cannot read the table of the other source.
    let unread = day.source_table(0);
    day.installation
        .execute("source-a", format!("ALTER TABLE {unread} RENAME COLUMN birthday TO born"))
        .await;
    let done = day.installation.command(&["reconcile", "--now", "--json"]).await.json();
    let birthdays = store(&done, "birthday");
    let listed = birthdays["unproven"]["shards"].as_array().unwrap().len();
    assert_eq!((&done["verdict"], listed), (&"incomplete".into(), 1), "{done}");
    assert_eq!((&birthdays["confirmed"], &birthdays["left"]), (&1.into(), &0.into()), "{done}");
    let planned = day.dispatch(&["plan", &day.day.to_string(), "--json"]).await.expect_success().json();
    assert_eq!(planned[1]["unproven_tables"], 1, "{planned}");

    let granting = ["dispatcher", "granter"].map(|role| ["--role", role]).concat();
    let daemon = day.installation.run_with(&granting, &[]);
    let days = until_some("the users of the other source have their coupons", async || {
        let days = shown(&day).await;
        let is_so = |name: &str, granted: u64, which: &str| {
            let day = &days[name];
            day["granted"] == granted && day[which] == UNREAD && day["missed"] == UNREAD
        };
        let is_so = is_so("birthday", READ, "unreadable") && is_so("careful", READ + lunar, "held");
        is_so.then_some(days)
    });
    let days = days.await;
    assert!(days.values().all(|day| day["is_closed"] == false), "{days:?}");
    assert_eq!(
        days["birthday"]["eligible"],
        UNREAD + READ,
        "whom the reconciliation brought is caught up: {days:?}"
    );
    assert_eq!(gifts(&day).await, each(READ, lunar));
    let why = day.dispatch(&["explain", "1", "--programme", "birthday"]).await.expect_success();
    assert!(why.stdout.contains("The user is missed so far"), "{why:?}");
    let why = day.dispatch(&["explain", "1", "--programme", "careful"]).await.expect_success();
    assert!(why.stdout.contains("The user waits for a reconciliation"), "{why:?}");

    // The source answers again, and a reconciliation proves its table.
    day.installation
        .execute("source-a", format!("ALTER TABLE {unread} RENAME COLUMN born TO birthday"))
        .await;
    day.installation.command(&["reconcile", "--now"]).await.expect_success();
    day.age_attempts().await;
    until("everybody has a coupon of both, and both days are closed", async || {
        let days = shown(&day).await;
        days.values().all(|day| day["missed"] == 0 && day["is_closed"] == true)
    })
    .await;
    assert_eq!(gifts(&day).await, each(UNREAD + READ, lunar));
    assert!(daemon.is_running());
}
