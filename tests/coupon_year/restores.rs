//! A ledger that is restored from an older copy: nothing is granted until the coupon system's statement is taken in.

#![expect(clippy::unwrap_used, reason = "the whole file is tests")]

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use anabranch_connectors::memory::MemoryLedger;
use anabranch_coupons::issuing::Chain;
use anabranch_coupons::ports::{Gift, Ledger, Register, Uniques};
use anabranch_coupons::records::{
    CouponKey, LedgerRow, Member, Reason, RefusedDay, RowState, RunKey, Unique, WAVES,
};
use anabranch_coupons::restored::{GivenCoupon, compare, needs_person, take_in};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::celebration::{Calendar, Occurrence};
use jiff::Timestamp;
use jiff::civil::{Date, date};
use jiff::tz::TimeZone;

use crate::life::Actor;
use crate::script::{Script, dispatcher, granter};
use crate::world::{Database, minutes};

/// Returns a day on which each user has a coupon, and whose ledger was restored from a copy of its midnight.
fn restored() -> Script {
    let mut script = Script::new();
    script.pass().unwrap();
    let copy = script.life.world().database.clone();
    script.work_until(1);
    script.expect_everybody_once("before the restore");
    restore(&script, copy);
    // The coupon system has forgotten the keys, so a second call would give a second coupon.
    script.work_until(25);
    script
}

fn restore(script: &Script, copy: Database) {
    let mut world = script.life.world();
    world.books.restored(&copy.chain, &copy.runs);
    world.database = copy;
    world.restored_at = Some(world.now);
}

fn chain(script: &Script) -> Chain {
    let world = script.life.world();
    Chain::of(world.database.tokens, world.register)
}

fn code(end: Result<impl std::fmt::Debug, Fault>) -> Code {
    end.unwrap_err().code()
}

#[test]
fn a_ledger_restored_from_an_older_copy_grants_nothing_and_is_named() {
    let mut script = restored();
    let given = script.given();
    assert_eq!(given.len(), script.users.len(), "nobody has a second coupon");
    assert_eq!(code(script.pass()), Code::CouponLedgerRestored);
    let mut world = script.life.world();
    let (now, archive) = (world.now, world.archive.clone());
    world.queue = archive.into_iter().map(|message| (now, message)).collect();
    drop(world);
    assert_eq!(code(script.grant()), Code::CouponLedgerRestored, "granters compare for themselves");
    assert_eq!(script.given(), given);
}

#[test]
fn a_statement_that_was_taken_in_lets_the_day_go_on_and_nobody_gets_a_second_coupon() {
    for steps in 0.. {
        let mut script = restored();
        let mut taker = script.life.taker();
        let has_ended = (0..steps).any(|_| script.life.poll(&mut taker).is_some());
        if !has_ended {
            assert_eq!(chain(&script), Chain::Restored, "a command that was killed after {steps} steps");
            assert_eq!(code(script.pass()), Code::CouponLedgerRestored);
            // The command is repeated.
            let taker = script.life.taker();
            script.finish(taker).unwrap();
        }
        assert_eq!(chain(&script), Chain::Level);
        script.work_until(30);
        script.expect_everybody_once("after the statement");
        if has_ended {
            assert!(steps > 4, "rows, register and tokens are written in turn");
            return;
        }
    }
}

/// Returns a day as [`restored`] does, with a copy from after an issue that gave nothing.
fn restored_with_an_issue() -> (Script, Database) {
    let mut script = Script::new();
    let up_again = script.life.world().now + minutes(50);
    script.life.world().books.unavailable_until = up_again;
    let mut issuer = granter(&mut script);
    while script.life.world().database.issued_at.is_none() {
        assert!(script.life.poll(&mut issuer).is_none(), "it ended before it issued");
    }
    let copy = script.life.world().database.clone();
    _ = script.finish(issuer);
    script.work_until(4);
    script.expect_everybody_once("before the restore");
    restore(&script, copy.clone());
    script.work_until(28);
    (script, copy)
}

#[test]
fn a_coupon_system_that_is_asked_for_its_statement_needs_no_person() {
    for (is_killed, steps) in (0..).flat_map(|steps| [(true, steps), (false, steps)]) {
        let (mut script, copy) = restored_with_an_issue();
        let mut asker = script.life.asker();
        let has_ended = (0..steps).any(|_| script.life.poll(&mut asker).is_some());
        if !has_ended {
            assert_eq!(chain(&script), Chain::Restored, "after {steps} steps");
            let has_mended = !is_killed && {
                // The process sleeps while the ledger is restored once more.
                restore(&script, copy);
                script.finish(asker).is_ok()
            };
            if !has_mended {
                assert_eq!(chain(&script), Chain::Restored, "after {steps} steps and its end");
                let asker = script.life.asker();
                script.finish(asker).unwrap();
            }
        }
        assert_eq!(chain(&script), Chain::Level);
        script.work_until(33);
        script.expect_everybody_once("after the statement");
        if has_ended {
            assert!(steps > 6, "marker, pages, rows, register and tokens come in turn");
            return;
        }
    }
}

#[test]
fn a_person_decides_where_the_coupon_system_has_no_statement_or_the_copy_no_time() {
    let (mut script, _) = restored_with_an_issue();
    script.life.world().books.has_statement = false;
    let asker = script.life.asker();
    assert!(needs_person(&script.finish(asker).unwrap_err()));
    script.life.world().books.has_statement = true;
    script.life.world().database.issued_at = None;
    let asker = script.life.asker();
    assert!(needs_person(&script.finish(asker).unwrap_err()));
    assert_eq!(chain(&script), Chain::Restored);
    assert_eq!(script.given().len(), script.users.len(), "nobody has a second coupon");
    let taker = script.life.taker();
    script.finish(taker).unwrap();
    assert_eq!(chain(&script), Chain::Level);
}

#[test]
fn a_ledger_that_was_not_restored_takes_no_statement_in_and_stays_as_it_is() {
    let mut script = Script::new();
    script.work_until(1);
    let tokens = script.life.world().database.tokens;
    for actor in [script.life.taker(), script.life.asker()] {
        assert_eq!(code(script.finish(actor)), Code::DispatchRefused);
    }
    // An issuer has died before it moved the register.
    let before = tokens.before.unwrap();
    script.life.world().register = before;
    let taker = script.life.taker();
    assert_eq!(code(script.finish(taker)), Code::DispatchRefused);
    assert_eq!(script.life.world().database.tokens, tokens);
    assert_eq!(script.life.world().register, before);
}

#[test]
fn a_granter_whose_issue_was_lost_in_a_restore_does_not_call() {
    let mut script = Script::new();
    let mut actor = granter(&mut script);
    let copy = script.life.world().database.clone();
    let has_issued = |script: &Script| script.life.world().database.tokens != copy.tokens;
    while !has_issued(&script) {
        assert!(script.life.poll(&mut actor).is_none(), "it ended before it issued");
    }
    // Another process moves the register. Then a person restores the ledger and takes an empty statement in.
    let issued = script.life.world().database.tokens.latest;
    script.life.world().register = issued;
    restore(&script, copy);
    let taker = script.life.taker();
    script.finish(taker).unwrap();
    assert_eq!(chain(&script), Chain::Level);
    _ = script.finish(actor);
    assert!(script.given().is_empty(), "the ledger lacks the rows");
    script.wait(minutes(31));
    script.work_until(4);
    script.expect_everybody_once("other granters begin anew");
}

#[test]
fn a_granter_that_read_a_day_gives_nothing_for_it_after_a_restored_ledger_began_it_anew_by_other_rules() {
    for steps in 0.. {
        let mut script = Script::new();
        let copy = script.life.world().database.clone();
        let mut sleeper = granter(&mut script);
        let tokens = script.life.world().database.tokens;
        if (0..steps).any(|_| script.life.poll(&mut sleeper).is_some()) {
            assert!(steps > 8, "a granter has more steps than {steps}");
            return;
        }
        let has_issued = script.life.world().database.tokens != tokens;
        restore(&script, copy);
        script.life.world().programmes[0].coupon = "tart".into();
        script.pass().ok();
        _ = script.finish(sleeper);
        let world = script.life.world();
        let old = world.books.books.iter().filter(|entry| entry.coupon == "cake").count();
        assert!(has_issued || old == 0, "{old} coupons by the old rules after {steps} steps");
    }
}

#[test]
fn a_granter_that_slept_inserts_no_row_into_a_day_that_was_closed_within_the_half_hour() {
    for steps in 0.. {
        let mut script = Script::new();
        let copy = script.life.world().database.clone();
        let up_again = script.life.world().now + minutes(23 * 60);
        script.life.world().books.down_until = up_again;
        script.work_until(23);
        script.life.world().queue.clear();
        script.pass().unwrap();
        let (mut sleeper, tokens) = (script.granter(), script.life.world().database.tokens);
        let has_ended = (0..steps).any(|_| script.life.poll(&mut sleeper).is_some());
        if has_ended || script.life.world().database.tokens != tokens {
            assert!(steps > 3, "it reads the ledger and the sources before it issues");
            return;
        }
        restore(&script, copy);
        for user in script.users.clone() {
            script.set_birthday(user, script.day.yesterday().unwrap());
        }
        script.life.world().reconcile();
        script.pass().unwrap();
        let run = script.life.world().database.runs[&script.key()].clone();
        assert!(run.is_closed && run.count == 0, "no user celebrates the day that began anew: {run:?}");
        _ = script.finish(sleeper);
        let rows = script.life.world().database.rows.clone();
        assert!(rows.values().all(|row| !row.is_held()), "the day is closed: {rows:?}");
        assert!(script.given().is_empty());
    }
}

#[test]
fn no_pass_closes_a_day_whose_restored_ledger_lacks_what_the_pass_read() {
    let mut closed = 0;
    for copied_at in 0.. {
        let Some((steps, is_closed)) = last_pass(copied_at, None, false) else { break };
        closed += usize::from(is_closed);
        for restored_at in copied_at..steps {
            last_pass(copied_at, Some(restored_at), false);
        }
    }
    assert!(closed > 2, "a pass that begins before the last coupons and reads after them closes the day");
}

#[test]
fn two_passes_close_no_day_whose_restored_ledger_lacks_what_they_read() {
    let mut closed = 0;
    for copied_at in (0..).step_by(3) {
        let Some((steps, is_closed)) = last_pass(copied_at, None, true) else { break };
        closed += usize::from(is_closed);
        for restored_at in (copied_at..steps).step_by(3) {
            last_pass(copied_at, Some(restored_at), true);
        }
    }
    assert!(closed > 0, "passes that overlap close the day");
}

#[test]
fn a_pass_closes_the_day_though_another_pass_has_begun_meanwhile() {
    for steps in 0.. {
        let (mut script, granter) = issued_after_the_last_wave();
        script.finish(granter).unwrap();
        let mut pass = dispatcher(&mut script);
        if (0..steps).any(|_| script.life.poll(&mut pass).is_some()) {
            assert!(steps > 8, "a pass has more steps than {steps}");
            return;
        }
        // A timer starts another pass, which is killed once it has begun its sweep.
        let sweeps = |script: &Script| script.life.world().database.runs[&script.key()].sweeps.clone();
        let (known, mut other) = (sweeps(&script), dispatcher(&mut script));
        while sweeps(&script) == known && script.life.poll(&mut other).is_none() {}
        drop(other);
        script.finish(pass).unwrap();
        let is_closed = script.life.world().database.runs[&script.key()].is_closed;
        assert!(is_closed, "another pass began after {steps} steps");
        script.expect_everybody_once("after two passes");
    }
}

/// Lets a pass come upon the last coupons of a day: they are issued before it begins, and settled after `copied_at`
/// steps of it. After `restored_at` steps the ledger is restored to the copy from before they were settled. Another
/// pass may take each step before it.
///
/// Returns the steps of the pass and whether it closed the day; `None` if it has fewer steps.
fn last_pass(copied_at: usize, restored_at: Option<usize>, has_other: bool) -> Option<(usize, bool)> {
    let (mut script, granter) = issued_after_the_last_wave();
    let mut pass = dispatcher(&mut script);
    let mut other = has_other.then(|| dispatcher(&mut script));
    if (0..copied_at).any(|_| step(&mut script, &mut pass, &mut other)) {
        return None;
    }
    let copy = script.life.world().database.clone();
    script.finish(granter).unwrap();
    let mut steps = copied_at;
    loop {
        if restored_at == Some(steps) {
            restore(&script, copy.clone());
        }
        steps += 1;
        if step(&mut script, &mut pass, &mut other) {
            break;
        }
    }
    let is_closed = |script: &Script| script.life.world().database.runs[&script.key()].is_closed;
    let has_closed = is_closed(&script);
    // The witness has a fault if a run is closed while a coupon is in flight; this looks at its faults.
    script.given();
    script.work_until(30);
    script.expect_everybody_once("after the restore");
    assert!(is_closed(&script));
    Some((steps, has_closed))
}

/// Lets the other pass take a step and then this one; returns whether this one has ended.
fn step(script: &mut Script, pass: &mut Actor, other: &mut Option<Actor>) -> bool {
    if other.as_mut().is_some_and(|other| script.life.poll(other).is_some()) {
        *other = None;
    }
    script.life.poll(pass).is_some()
}

/// Returns a day after its last wave, with a granter that has issued every coupon and has not called.
fn issued_after_the_last_wave() -> (Script, Actor) {
    let mut script = Script::new();
    let up_again = script.life.world().now + minutes(23 * 60);
    script.life.world().books.down_until = up_again;
    script.work_until(23);
    script.life.world().queue.clear();
    script.life.world().reconcile();
    script.pass().unwrap();
    assert_eq!(script.life.world().database.runs[&script.key()].frozen, WAVES);
    let mut granter = script.granter();
    let register = script.life.world().register;
    while script.life.world().register == register {
        assert!(script.life.poll(&mut granter).is_none(), "it ended before it issued");
    }
    assert!(script.given().is_empty(), "it has not called");
    (script, granter)
}

/// A register that another process moves between two reads.
struct Moving(AtomicUsize, Vec<u128>);

impl Register for Moving {
    async fn read(&self) -> Result<Unique, Fault> {
        let reads = self.0.fetch_add(1, Ordering::Relaxed);
        Ok(Unique(self.1[reads.min(self.1.len() - 1)]))
    }

    async fn swap(&self, _: Unique, _: Unique) -> Result<bool, Fault> {
        Ok(false)
    }
}

#[tokio::test]
async fn a_register_that_moves_while_it_is_compared_says_nothing_about_the_ledger() {
    let ledger = MemoryLedger::new(Unique(1));
    assert!(ledger.begin_tokens(Unique(1), Unique(9)).await.unwrap());
    for (reads, expected) in
        [(vec![4, 9], None), (vec![9], Some(Chain::Level)), (vec![4], Some(Chain::Restored))]
    {
        let (found, ..) = compare(&ledger, &Moving(AtomicUsize::new(0), reads)).await.unwrap();
        assert_eq!(found, expected);
    }
}

/// A register that takes every token, and the process of the command.
struct Willing;

impl Register for Willing {
    async fn read(&self) -> Result<Unique, Fault> {
        Ok(Unique(4))
    }

    async fn swap(&self, _: Unique, _: Unique) -> Result<bool, Fault> {
        Ok(true)
    }
}

impl Uniques for Willing {
    fn fresh(&self) -> Unique {
        Unique(5)
    }
}

fn given_on(day: Date, user: u64) -> GivenCoupon {
    let occurrence = Occurrence::of(Calendar::Solar, day).unwrap();
    let key = CouponKey { user, programme: "birthday".into(), occurrence };
    let given_at = day.to_zoned(TimeZone::UTC).unwrap().timestamp() + minutes(600);
    GivenCoupon::of(Gift { key, coupon: "cake".into(), given_at }, &[]).unwrap()
}

/// The row of a user in a ledger with no other year.
async fn row_of(ledger: &MemoryLedger, user: u64) -> LedgerRow {
    let any = RunKey { programme: "birthday".into(), day: date(2027, 1, 1) };
    let found = ledger.read_users(&any, &[user]).await.unwrap();
    let mut rows = found.users[&user].rows.values();
    let row = rows.next().unwrap().clone();
    assert!(rows.next().is_none(), "user {user}");
    row
}

#[tokio::test]
async fn a_statement_of_several_days_and_of_full_parts_is_settled_whole() {
    // Each of the sixteen parts of a day has more coupons than one transaction settles.
    let days = [(date(2027, 5, 4), 0..1_700), (date(2027, 5, 5), 1_700..3_400)];
    let given = |(day, users): (Date, Range<u64>)| users.map(move |user| given_on(day, user));
    let statement: Vec<GivenCoupon> = days.clone().into_iter().flat_map(given).collect();
    let ledger = MemoryLedger::new(Unique(1));
    take_in(&ledger, &Willing, &Willing, &statement).await.unwrap();
    for (day, users) in days {
        for user in users {
            let row = row_of(&ledger, user).await;
            assert_eq!((row.state, row.day), (RowState::Settled, day), "user {user}");
        }
    }
    assert_eq!(ledger.tokens().await.unwrap().latest, Unique(5));
}

/// A row of a copy, as a granter left it.
fn copied_row(state: RowState, day: Date) -> LedgerRow {
    LedgerRow {
        state,
        day,
        calendar: Calendar::Solar,
        attempt: Unique(7),
        changed_at: day.to_zoned(TimeZone::UTC).unwrap().timestamp(),
        tries: 1,
        coupon: "pie".into(),
        version: None,
        by_hand: false,
        absent_since: None,
    }
}

#[tokio::test]
async fn a_coupon_of_a_statement_counts_for_the_day_of_its_row_or_of_its_cohort_and_only_then_for_its_date() {
    let mut script = Script::new();
    script.pass().unwrap();
    let run = script.life.world().database.runs[&script.key()].clone();
    let key = |day| RunKey { programme: "birthday".into(), day };
    let (before, day, given) = (date(2027, 5, 3), date(2027, 5, 4), date(2027, 5, 6));
    let refused = RowState::Refused(Reason::NotTheirBirthday);
    let rows = [
        (1, copied_row(RowState::Settled, before)),
        (2, copied_row(RowState::Issued { first_called_at: Timestamp::UNIX_EPOCH }, before)),
        (3, copied_row(refused, day)),
    ];
    let ledger = MemoryLedger::new(Unique(1));
    let mut copy = ledger.copy();
    copy.runs.insert(key(day), run);
    // Users 1 to 4 are members, and the day has refused the third one.
    let member = |user| (Member { user, calendar: Calendar::Solar }, Vec::new());
    copy.members.insert(key(day), (1..=4).map(member).collect());
    for (user, row) in rows.clone() {
        copy.rows.insert(given_on(before, user).key, row);
    }
    let refusal = RefusedDay { wave: 1, reason: Reason::NotTheirBirthday };
    copy.refusals.insert(("birthday".into(), 3, day, Calendar::Solar), refusal);
    ledger.restore(copy);

    let statement: Vec<GivenCoupon> = (1..=5).map(|user| given_on(given, user)).collect();
    for _ in 0..2 {
        take_in(&ledger, &Willing, &Willing, &statement).await.unwrap();
        assert_eq!(row_of(&ledger, 1).await, rows[0].1, "the copy has the coupon already");
        for (user, expected, coupon) in
            [(2, before, "pie"), (3, given, "cake"), (4, day, "cake"), (5, given, "cake")]
        {
            let row = row_of(&ledger, user).await;
            assert_eq!((row.state, row.day, &*row.coupon), (RowState::Settled, expected, coupon), "{user}");
        }
    }
}

#[tokio::test]
async fn a_statement_settles_coupons_of_programmes_that_the_file_lacks_by_now() {
    let mut of_another = given_on(date(2027, 5, 4), 8);
    of_another.key.programme = "removed".into();
    let ledger = MemoryLedger::new(Unique(1));
    take_in(&ledger, &Willing, &Willing, &[given_on(date(2027, 5, 4), 8), of_another.clone()]).await.unwrap();
    let rows = ledger.copy().rows;
    assert_eq!(rows[&of_another.key].state, RowState::Settled);
    assert_eq!(rows.len(), 2);
}
