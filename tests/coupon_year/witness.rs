//! The witness: the coupon system's answer to each call, and the rules that must hold at each step.

use std::collections::{BTreeMap, BTreeSet};

use anabranch_connectors::memory::KeyUse;
use anabranch_coupons::ports::Answer;
use anabranch_coupons::records::{
    ATTEMPT_TIMEOUT, CouponKey, DayRun, FailedOutcome, LedgerRow, Member, Reason, RowState, RunKey,
};
use anabranch_coupons::report::Report;
use anabranch_schemas::celebration::{Birthday, Calendar};
use jiff::civil::Date;
use jiff::{SignedDuration, Timestamp, ToSpan};
use rand::RngExt;

use crate::books::{BookEntry, Issue};
use crate::world::{UserRow, World, minutes};

/// A source row may have named the birthday for up to this long before the call.
const LIVE: SignedDuration = ATTEMPT_TIMEOUT;

/// Records that the ledger has issued a row of a user: its token is the newest.
pub fn issued(world: &mut World, run: &RunKey, user: u64) {
    let token = world.database.tokens.latest;
    let now = world.now;
    let day_run = world.database.runs.get(run).or_else(|| world.books.versions.get(run)).cloned();
    let rows = world.database.rows.iter().filter(|(key, row)| {
        key.user == user && key.programme == run.programme && row.day == run.day && row.changed_at == now
    });
    let fresh = rows.filter(|(_, row)| matches!(row.state, RowState::Issued { .. })).map(|(key, row)| {
        let member = Member { user, calendar: row.calendar };
        (key.clone(), Issue { run: run.clone(), day_run: day_run.clone(), member, token })
    });
    let fresh: Vec<_> = fresh.collect();
    world.books.issued.extend(fresh);
    world.books.issued_since_restore.insert(token);
}

/// Counts a day that a letter holds up as a letter too, as the operator sees both.
pub fn held_by_letters(world: &mut World, run: &RunKey) {
    for member_state in world.database.member_states(run) {
        let refused = member_state.refused.map(|refused| refused.reason);
        let user = member_state.member.user;
        let is_letter =
            |row: &LedgerRow| matches!(row.state, RowState::Failed(FailedOutcome::Unknown { .. }));
        let mut rows = world
            .database
            .rows
            .iter()
            .filter(|(key, row)| key.user == user && key.programme == run.programme && is_letter(row));
        if member_state.row.as_ref().is_some_and(is_letter)
            || refused == Some(Reason::WithinGap) && rows.next().is_some()
        {
            let key = world.key(run, member_state.member);
            world.books.letters.insert((key, run.day));
        }
    }
}

/// Answers a call; an open outcome of a call about one user is an error about that user.
pub fn called(world: &mut World, key: &CouponKey, coupon: &str, is_alone: bool) -> Answer {
    let chance: f64 = if world.is_scripted { 1.0 } else { world.random.random() };
    let now = world.now;
    if let Some(Issue { token, .. }) = world.books.issued.get(key).cloned() {
        world.books.called.insert(token);
        world.books.is_lost |= !world.database.chain.contains(&token);
        if world.books.is_lost && world.books.issued_since_restore.contains(&token) {
            world.fail(format!("the restore was not noticed: {key:?}"));
        }
    }
    if now < world.books.down_until {
        return Answer::Unknown;
    }
    let open = if is_alone { Answer::Error } else { Answer::Unknown };
    match chance {
        x if x < 0.04 => return Answer::Busy,
        x if x < 0.07 => return Answer::PoolEmpty,
        x if x < 0.09 => return Answer::Rejected,
        x if x < 0.13 => return open,
        _ => {}
    }
    match world.books.keys.enter(key, coupon, now) {
        KeyUse::New => granted(world, key, coupon),
        KeyUse::Known => {}
        KeyUse::Mismatch => return Answer::Mismatch,
    }
    // The work is done, and the answer is lost.
    if chance < 0.24 { open } else { Answer::Given }
}

/// Checks the rules of a given coupon and enters it in the books.
fn granted(world: &mut World, key: &CouponKey, coupon: &str) {
    world.books.count("granted");
    let Some(Issue { run, day_run, member, .. }) = world.books.issued.get(key).cloned() else {
        return world.fail(format!("called without an issue: {key:?}"));
    };
    let Some(version) = day_run else {
        return world.fail(format!("called without a run: {key:?}"));
    };
    let now = world.now;
    let since_restore = world.restored_at.map(|at| now.duration_since(at));
    let is_calm = since_restore.is_none_or(|since| since > ATTEMPT_TIMEOUT * 2);
    let birthdays = version.birthdays(run.day);
    let rows = &world.database.rows;
    let row = rows.get(key);
    let by_hand = row.is_some_and(|row| row.by_hand);
    let present = world.database.runs.get(&run);
    let distance_days =
        |other: &BookEntry| run.day.since(other.run.day).map_or(0, |span| span.get_days().abs());
    let near = |other: &&BookEntry| {
        other.key.user == key.user
            && other.key.programme == key.programme
            && other.key != *key
            && distance_days(other) < 300
    };
    let starts_at = version.rules.at(run.day, version.rules.starts_at).expect("a day");
    let closed = world.books.closed.get(&run);
    let is_shut = present.is_none_or(|run| run.is_closed) && closed.is_none_or(|at| now > *at + LIVE);
    let wrong = [
        ("granted twice", world.books.gave(key)),
        ("two within the gap", world.books.books.iter().any(|other| near(&&other.clone()))),
        (
            "another coupon",
            world.restored_at.is_none_or(|at| at < starts_at) && *coupon != *version.rules.coupon,
        ),
        ("not the birthday", !said_lately(world, key.user, member.calendar, &birthdays)),
        ("too early", now < starts_at),
        ("the run was not open", is_calm && !by_hand && is_shut),
        (
            "the ledger ruled it out",
            is_calm && !row.is_some_and(|r| matches!(r.state, RowState::Issued { .. })),
        ),
    ];
    for (what, is_wrong) in wrong {
        if is_wrong {
            world.fail(format!("{what}: {key:?} of {}", run.day));
        }
    }
    let entry = BookEntry { key: key.clone(), run, coupon: coupon.to_owned(), given_at: now };
    world.books.books.push(entry);
}

/// Whether a source row had one of these birthdays within [`LIVE`].
fn said_lately(world: &World, user: u64, calendar: Calendar, birthdays: &[Birthday]) -> bool {
    let history = &world.history[&user];
    let from = world.now - LIVE;
    let lately =
        history.iter().enumerate().filter(|(i, _)| history.get(i + 1).is_none_or(|next| next.0 >= from));
    let mut rows = lately.flat_map(|(_, (_, rows))| rows);
    rows.any(|row| row.calendar == calendar && celebrates(*row, birthdays))
}

fn celebrates(row: UserRow, birthdays: &[Birthday]) -> bool {
    row.celebrated().is_some_and(|birthday| birthdays.contains(&birthday))
}

/// Checks the beginning of a run.
pub fn begun(world: &mut World, key: &RunKey, run: &DayRun, is_known: bool) {
    if is_known {
        return world.fail(format!("a day began twice: {key:?}"));
    }
    if run.rules.at(key.day, run.rules.starts_at).is_none_or(|at| world.now < at) {
        world.fail(format!("a day began too early: {key:?}"));
    }
    world.books.versions.insert(key.clone(), run.clone());
    world.books.closed.remove(key);
}

/// Checks a changed run: the rules at the end of a wave and at the close of the run.
pub fn run_changed(world: &mut World, key: &RunKey, before: Option<&DayRun>, after: Option<&DayRun>) {
    let (Some(before), Some(after)) = (before, after) else { return };
    if before.revision != after.revision && after.cursor == Default::default() {
        world.books.asked.insert(key.clone(), world.now);
    }
    if after.frozen > before.frozen {
        if after.frozen == anabranch_coupons::records::WAVES {
            // The freeze may have read a damaged table before a reconciliation mended it.
            let asked = world.books.asked.get(key).copied().unwrap_or(Timestamp::MIN);
            let mended = world.mended.iter().filter(|(_, at)| **at >= asked).map(|(user, _)| *user);
            let damaged: Vec<u64> = mended.chain(world.damaged.iter().copied()).collect();
            world.books.excused.entry(key.clone()).or_default().extend(damaged);
        }
        if after.is_after_barrier {
            frozen(world, key, after);
        }
        let members = world.database.members.get(key).map_or(0, BTreeMap::len) as u64;
        if after.count != members {
            world.fail(format!("the cohort of {key:?} has {members} members and counts {}", after.count));
        }
    }
    if after.is_closed && !before.is_closed {
        let now = world.now;
        world.books.closed.insert(key.clone(), now);
        if !world.books.reported.contains(key) {
            world.fail(format!("{key:?} was closed before its report was stored"));
        }
        // A letter, or a message that the operator sent again, may have changed the rows since the sweep.
        let by_hand = world.database.member_states(key).iter().any(|member_state| {
            let coupon = world.key(key, member_state.member);
            let is_letter = world.books.letters.iter().any(|(of, _)| *of == coupon);
            is_letter || member_state.row.as_ref().is_some_and(|row| row.by_hand)
        });
        let report = balanced(world, key);
        if (report.missed > 0 || report.in_flight > 0) && !by_hand {
            world.fail(format!("{key:?} was closed with somebody missed: {report:?}"));
        }
    }
}

/// Checks a cohort frozen behind a barrier: each user with sound, unchanged rows is a member.
fn frozen(world: &mut World, key: &RunKey, run: &DayRun) {
    let birthdays = run.birthdays(key.day);
    let Some(asked) = world.books.asked.get(key).copied() else { return };
    let members = world.database.members.get(key).cloned().unwrap_or_default();
    let mut lacking = Vec::new();
    for (user, history) in &world.history {
        let Some((at, rows)) = history.last() else { continue };
        let is_mended_since = world.mended.get(user).is_some_and(|at| *at >= asked);
        if *at >= asked || world.damaged.contains(user) || is_mended_since {
            continue;
        }
        for row in rows.iter().filter(|row| celebrates(**row, &birthdays)) {
            if !members.contains_key(&Member { user: *user, calendar: row.calendar }) {
                lacking.push(*user);
            }
        }
    }
    if !lacking.is_empty() {
        world.fail(format!("users {lacking:?} are not in the frozen cohort of {key:?}, wave {}", run.frozen));
    }
}

/// The present report of a run; its sums must hold.
pub fn balanced(world: &mut World, key: &RunKey) -> Report {
    let mut report = Report::default();
    let mut strangers = 0;
    for member_state in world.database.member_states(key) {
        report.add(&member_state, key.day);
        strangers += u64::from(!member_state.is_member);
    }
    report.eligible = world.database.runs.get(key).map_or(0, |run| run.count);
    let starts_at = world.books.versions.get(key).and_then(|run| run.rules.at(key.day, run.rules.starts_at));
    let is_after_restore =
        world.restored_at.is_some_and(|at| starts_at.is_some_and(|s| s < at + minutes(2 * 1440)));
    let expected = report.eligible + if is_after_restore { strangers } else { 0 };
    if report.sum() != expected {
        world.fail(format!("the sums of {key:?} do not hold: {report:?}"));
    }
    report
}

/// Checks the rules of the end.
pub fn at_the_end(world: &mut World) {
    let keys: Vec<RunKey> = world.database.runs.keys().cloned().collect();
    let is_calm = world.books.stopped_at.is_none() && world.now > world.books.down_until + minutes(3 * 1440);
    for key in keys {
        let report = balanced(world, &key);
        let starts = key.day.to_zoned(jiff::tz::TimeZone::UTC).expect("a day").timestamp();
        let old = world.restored_at.map_or(starts, |at| at.max(starts)) + minutes(15 * 1440);
        let run = &world.database.runs[&key];
        if !run.is_closed && world.now > old && is_calm {
            let frozen = run.frozen;
            world.fail(format!("{key:?} was never closed: {frozen} waves, {report:?}"));
        }
    }
    ledger_and_books(world);
    for index in 0..world.programmes.len() {
        let name = world.programmes[index].name.clone();
        let first = world.books.versions.keys().find(|key| key.programme == name).map(|key| key.day);
        let mut day = first.unwrap_or(world.begins);
        while day < world.today().checked_sub(15.days()).expect("a day") {
            missed(world, index, day);
            day = day.tomorrow().expect("a day");
        }
    }
}

/// Checks that the ledger's given coupons are in the books, and its others are not.
fn ledger_and_books(world: &mut World) {
    if world.books.stopped_at.is_some() || world.books.is_lost {
        return;
    }
    let rows: Vec<_> = world.database.rows.iter().map(|(key, row)| (key.clone(), row.clone())).collect();
    for (key, row) in rows {
        let is_in_books = world.books.gave(&key);
        let contradicts = match row.state {
            RowState::Settled => !is_in_books,
            RowState::Refused(_) | RowState::Failed(FailedOutcome::NothingGiven) => is_in_books,
            RowState::Reserved
            | RowState::Issued { .. }
            | RowState::Failed(FailedOutcome::Unknown { .. }) => false,
        };
        if contradicts && row.changed_at < world.now - minutes(4 * 1440) {
            world.fail(format!("ledger against books: {key:?} {row:?}"));
        }
    }
}

/// Checks that each user with the birthday from the run's beginning to its end has the coupon.
fn missed(world: &mut World, index: usize, day: Date) {
    let key = RunKey { programme: world.programmes[index].name.clone(), day };
    let Some(version) = world.books.versions.get(&key).cloned() else {
        return world.fail(format!("there was no run of {key:?}"));
    };
    let birthdays = version.birthdays(day);
    let from = version.rules.at(day, version.rules.starts_at).expect("a day");
    let until = world.books.closed.get(&key).copied().unwrap_or(from + minutes(3 * 1440));
    let users: Vec<u64> = world.history.keys().copied().collect();
    for user in users {
        let history = &world.history[&user];
        let during = history
            .iter()
            .enumerate()
            .filter(|(i, (at, _))| *at <= until && history.get(i + 1).is_none_or(|next| next.0 > from));
        let mut said = BTreeSet::new();
        for row in during.flat_map(|(_, (_, rows))| rows) {
            said.insert(celebrates(*row, &birthdays).then_some(row.calendar));
        }
        let (1, Some(Some(calendar))) = (said.len(), said.first().copied()) else { continue };
        let coupon = world.key(&key, Member { user, calendar });
        if !is_excused(world, &key, &coupon, &version, from) {
            let row = world.database.rows.get(&coupon).cloned();
            let reported = format!("missed: {coupon:?} of {day}, {row:?}");
            world.fail(reported);
        }
    }
}

fn is_excused(world: &World, run: &RunKey, key: &CouponKey, version: &DayRun, from: Timestamp) -> bool {
    let user = key.user;
    let near = |day: Date| run.day.since(day).map_or(0, |span| span.get_days().abs()) < 300;
    let of_user = |of: &CouponKey| of.user == user && of.programme == key.programme;
    let cool_off = minutes(1440 * i64::from(version.rules.cool_off_days));
    let is_open_row = |state: RowState| matches!(state, RowState::Issued { .. } | RowState::Failed(_));
    world.books.gave(key)
        || world.books.stopped_at.is_some()
        || world.books.excused.get(run).is_some_and(|users| users.contains(&user))
        || world.books.letters.contains(&(key.clone(), run.day))
        || cool_off > SignedDuration::ZERO && world.changed.get(&user).is_some_and(|at| *at > from - cool_off)
        || world.books.books.iter().any(|entry| of_user(&entry.key) && near(entry.run.day))
        || world.database.rows.iter().any(|(of, row)| of_user(of) && is_open_row(row.state) && near(row.day))
}
