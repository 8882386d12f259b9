//! Outages of a coupon day, each by its name, at each step of a dispatcher or a granter.

use std::time::Duration;

use anabranch_coupons::programme::Programme;
use anabranch_coupons::records::{ATTEMPT_TIMEOUT, FailedOutcome, RowState};
use anabranch_coupons::reserving::TRIES_MAX;
use jiff::{SignedDuration, Timestamp};

use crate::books::CouponBooks;
use crate::script::{Script, at_each_step, dispatcher, granter};
use crate::world::minutes;

#[test]
fn a_coupon_system_that_is_down_until_noon_delays_coupons_and_counts_no_try() {
    let mut script = Script::new();
    let noon = script.life.world().now + SignedDuration::from_hours(12);
    script.life.world().books.down_until = noon;
    script.work_until(11);
    assert!(script.given().is_empty());
    assert!(script.life.world().database.rows.is_empty(), "nothing is reserved without a connection");
    assert_eq!(script.report().missed, script.users.len() as u64);
    script.work_until(14);
    script.expect_everybody_once("after noon");
    let world = script.life.world();
    assert!(world.database.rows.values().all(|row| row.tries == 0));
    assert_eq!(world.database.runs.values().next().unwrap().frozen, 2, "noon was on time");
}

#[test]
fn a_coupon_system_that_answers_503_to_everybody_delays_coupons_and_counts_no_try() {
    expect_delay_without_tries(|books, noon| books.unavailable_until = noon);
}

#[test]
fn a_coupon_system_that_answers_429_for_hours_delays_coupons_and_counts_no_try() {
    expect_delay_without_tries(|books, noon| books.busy_until = noon);
}

/// Has the coupon system refuse every call until noon, and expects everybody's coupon after it.
fn expect_delay_without_tries(refuse_until: impl FnOnce(&mut CouponBooks, Timestamp)) {
    let mut script = Script::new();
    let noon = script.life.world().now + SignedDuration::from_hours(12);
    refuse_until(&mut script.life.world().books, noon);
    script.work_until(11);
    assert!(script.given().is_empty());
    let report = script.report();
    assert_eq!((report.in_flight, report.failed), (script.users.len() as u64, 0), "no dead letter");
    script.work_until(14);
    script.expect_everybody_once("after noon");
    assert!(script.life.world().database.rows.values().all(|row| row.tries == 0));
}

#[test]
fn a_pause_of_a_second_that_the_coupon_system_asks_for_delays_coupons_by_a_second() {
    let mut script = Script::new();
    script.pass().unwrap();
    let second = SignedDuration::from_secs(1);
    let mut world = script.life.world();
    (world.books.busy_until, world.books.retry_after) = (world.now + second, Some(Duration::from_secs(1)));
    drop(world);
    script.grant().unwrap();
    assert!(script.given().is_empty() && !script.life.world().queue.is_empty(), "the message comes again");
    script.wait(second);
    script.grant().unwrap();
    script.expect_everybody_once("after the pause");
}

#[test]
fn a_balancer_that_closes_every_connection_opens_the_breaker_after_three_calls() {
    let mut script = Script::new();
    script.pass().unwrap();
    let closing_until = script.life.world().now + minutes(10);
    script.life.world().books.closing_until = closing_until;
    for calls in 1..=3 {
        script.grant().unwrap();
        assert!(
            script.given().is_empty() && !script.life.world().queue.is_empty(),
            "the message comes again"
        );
        let now = script.life.world().now;
        assert_eq!(script.life.breaker.is_open(now), calls == 3, "after {calls} calls");
        script.wait(SignedDuration::from_secs(1));
    }
    script.wait(minutes(15));
    script.grant().unwrap();
    script.expect_everybody_once("when a server is behind the balancer again");
}

#[test]
fn a_user_whose_source_is_down_keeps_no_message_in_the_queue_and_gets_the_coupon_after_it() {
    let mut script = Script::new();
    let unreadable = script.users[0];
    script.life.world().unreadable.insert(unreadable);
    script.pass().unwrap();
    script.grant().unwrap();
    let others: Vec<_> = script.users[1..].iter().map(|user| (*user, script.day)).collect();
    assert_eq!(script.given(), others);
    assert!(script.life.world().queue.is_empty(), "the sweep publishes the user again");
    script.work_until(1);
    assert_eq!(script.given(), others);
    script.life.world().unreadable.clear();
    script.work_until(2);
    script.expect_everybody_once("when the source is up again");
}

#[test]
fn a_coupon_system_that_answers_every_call_with_an_error_makes_no_dead_letter() {
    let mut script = Script::new();
    script.life.world().books.failing = script.users.iter().copied().collect();
    script.work_until(11);
    assert!(script.given().is_empty());
    let report = script.report();
    assert_eq!((report.in_flight, report.failed), (script.users.len() as u64, 0));
    let tries: u32 = script.life.world().database.rows.values().map(|row| row.tries).sum();
    assert!(tries <= 2, "errors about three users are the system's, and {tries} tries were counted");
    script.life.world().books.failing.clear();
    script.work_until(14);
    script.expect_everybody_once("after the errors");
}

#[test]
fn one_user_whose_calls_always_fail_delays_no_other_and_becomes_a_dead_letter() {
    let mut script = Script::new();
    let poison = script.users[0];
    script.life.world().books.failing.insert(poison);
    script.work_until(1);
    let others: Vec<_> = script.users[1..].iter().map(|user| (*user, script.day)).collect();
    assert_eq!(script.given(), others, "each user is called for alone after the batch failed");
    script.work_until(4);
    assert_eq!(script.given(), others);
    expect_letter(&script, poison);
}

#[test]
fn the_last_user_of_a_day_whose_calls_always_fail_becomes_a_dead_letter() {
    let mut script = Script::new();
    let poison = script.users[0];
    for other in &script.users[1..] {
        script.set_birthday(*other, script.day.yesterday().unwrap());
    }
    script.life.world().books.failing.insert(poison);
    script.work_until(4);
    assert_eq!((script.given(), script.report().eligible), (Vec::new(), 1));
    expect_letter(&script, poison);
}

/// Expects that the day has one dead letter, of this user.
fn expect_letter(script: &Script, user: u64) {
    let report = script.report();
    assert_eq!((report.failed, report.in_flight), (1, 0));
    let world = script.life.world();
    let (_, row) = world.database.rows.iter().find(|(key, _)| key.user == user).expect("a row of the user");
    assert!(matches!(row.state, RowState::Failed(FailedOutcome::Unknown { .. })), "{row:?}");
    assert_eq!(row.tries, TRIES_MAX);
}

#[test]
fn a_user_in_two_programmes_gets_one_coupon_of_each() {
    let mut script = Script::new();
    let text = "name = 'cinema'\ncoupon = 'film'\ntime_zone = 'UTC'\nleap_day = 'feb28'\n\
                calendars = ['solar']\n";
    let second = Programme::parse_all(&[text.parse().unwrap()]).unwrap();
    script.life.world().programmes.extend(second);
    for _ in 0..2 {
        for index in [0, 1] {
            let actor = script.life.dispatcher(index, SignedDuration::ZERO);
            script.finish(actor).unwrap();
        }
        script.grant().unwrap();
    }
    let expected: Vec<_> = script.users.iter().flat_map(|user| [(*user, script.day); 2]).collect();
    assert_eq!(script.given(), expected);
    let world = script.life.world();
    let films = world.books.books.iter().filter(|entry| entry.coupon == "film");
    assert_eq!(films.count(), script.users.len());
}

#[test]
fn a_ledger_server_that_is_down_for_an_hour_delays_coupons() {
    for begin in [granter, dispatcher] {
        at_each_step(
            begin,
            |script, actor| {
                let back = script.life.world().now + minutes(60);
                script.life.world().database_down_until = back;
                _ = script.finish(actor);
                script.work_until(4);
            },
            Script::expect_everybody_once,
        );
    }
}

#[test]
fn when_all_are_killed_and_gone_until_the_afternoon_everybody_gets_one_coupon() {
    for begin in [granter, dispatcher] {
        at_each_step(
            begin,
            |script, actor| {
                drop(actor);
                script.life.replace_process();
                script.wait(SignedDuration::from_hours(13));
                script.work_until(16);
            },
            Script::expect_everybody_once,
        );
    }
}

#[test]
fn a_granter_that_is_frozen_and_woken_a_day_later_gives_no_second_coupon() {
    at_each_step(
        granter,
        |script, actor| {
            script.life.replace_process();
            script.wait(ATTEMPT_TIMEOUT);
            script.work_until(25);
            script.expect_everybody_once("before it wakes");
            _ = script.finish(actor);
            script.work_until(26);
        },
        Script::expect_everybody_once,
    );
}

#[test]
fn a_dispatcher_that_is_frozen_and_woken_after_noon_changes_no_cohort() {
    at_each_step(
        dispatcher,
        |script, actor| {
            script.work_until(13);
            script.expect_everybody_once("before it wakes");
            _ = script.finish(actor);
            script.work_until(15);
        },
        Script::expect_everybody_once,
    );
}

#[test]
fn a_run_beyond_midnight_and_new_year_goes_on_beside_the_next_day() {
    let mut script = Script::new();
    let (eve, new_year) = (script.day, script.day.tomorrow().unwrap());
    let late = *script.users.last().unwrap();
    script.set_birthday(late, new_year);
    let down = script.life.world().now + minutes(25 * 60 + 30);
    script.life.world().books.down_until = down;
    script.work_until(25);
    assert!(script.given().is_empty());
    let open = script.life.world().database.runs.values().filter(|run| !run.is_closed).count();
    assert_eq!(open, 2, "the first day is not over, and the second has begun");
    script.work_until(28);
    let day = |user: &u64| (*user, if *user == late { new_year } else { eve });
    assert_eq!(script.given(), script.users.iter().map(day).collect::<Vec<_>>());
}

#[test]
fn late_joiners_get_their_coupon_at_noon_and_those_of_the_reconciliation_are_caught_up_once() {
    let mut script = Script::new();
    let (joiner, lost) = (script.users[0], script.users[1]);
    script.set_birthday(joiner, script.day.yesterday().unwrap());
    // A row that a person deleted is missing until a reconciliation repairs it.
    let mut world = script.life.world();
    world.damaged.insert(lost);
    for table in world.tables.values_mut() {
        table.retain(|(user, _), _| *user != lost);
    }
    drop(world);
    script.work_until(9);
    assert!(!script.is_member(joiner) && !script.is_member(lost));
    script.set_birthday(joiner, script.day);
    script.work_until(14);
    assert!(script.is_member(joiner) && !script.is_member(lost));
    assert!(script.given().contains(&(joiner, script.day)), "noon reads the tables again");
    script.close();
    script.expect_everybody_once("after the reconciliation");
}

#[test]
fn last_years_stream_replayed_on_the_same_day_gives_nothing() {
    let mut script = Script::new();
    script.close();
    script.expect_everybody_once("before the replay");
    for waited in [SignedDuration::ZERO, SignedDuration::from_hours(365 * 24)] {
        script.wait(waited);
        let mut world = script.life.world();
        let (now, archive) = (world.now, world.archive.clone());
        assert!(!archive.is_empty());
        world.queue = archive.into_iter().map(|message| (now, message)).collect();
        drop(world);
        script.grant().unwrap();
        script.expect_everybody_once("after the replay");
        assert!(script.life.world().queue.is_empty(), "no message comes again");
    }
}

#[test]
fn a_message_that_the_queue_lost_is_published_again_until_the_run_is_closed() {
    let mut script = Script::new();
    for _ in 0..3 {
        script.pass().unwrap();
        script.life.world().queue.clear();
    }
    script.work_until(2);
    script.expect_everybody_once("long before noon");
}

#[test]
fn the_register_has_the_token_before_the_coupon_system_is_called() {
    let mut script = Script::new();
    let mut actor = granter(&mut script);
    while script.life.poll(&mut actor).is_none() {
        let world = script.life.world();
        let has_called = !world.books.called.is_empty();
        assert!(!has_called || world.register == world.database.tokens.latest, "it called first");
    }
    script.expect_everybody_once("at the end");
}
