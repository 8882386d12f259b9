//! The pitfalls of coupon days, each by its name, as far as decisions settle them. The simulation mixes them.

#![allow(
    clippy::unwrap_used,
    reason = "clippy.toml allows it in tests; helpers of a test file are not seen as such"
)]

mod accounts;
mod user;
mod waves;
mod years;

use std::collections::BTreeMap;
use std::sync::Arc;

use anabranch_coupons::days::{MemberNeed, begin, members, need, rules};
use anabranch_coupons::dead_letters::{LeftAlone, requeue};
use anabranch_coupons::issuing::{Chain, ChainMoved, HeldRow, answered, is_registered, issue};
use anabranch_coupons::ports::{Answer, CohortRow, SourceRow};
use anabranch_coupons::programme::Programme;
use anabranch_coupons::records::{
    ATTEMPT_TIMEOUT, Candidate, FailedOutcome, LedgerTokens, MemberState, ProgrammeLedger, Reason,
    RefusedDay, RowState, RunKey, Unique, UserLedger, UsersLedger,
};
use anabranch_coupons::report::Report;
use anabranch_coupons::reserving::{
    DueState, MessageEnd, TakenRow, denied, judge, judged, reserve, settle, unread,
};
use anabranch_schemas::birthday::MonthDay;
use anabranch_schemas::celebration::{Birthday, Calendar};
use anabranch_schemas::shard::ShardId;
use jiff::SignedDuration;
use jiff::civil::{Date, date};
use user::{User, at, begun, programme, row};

const MEMORY: SignedDuration = SignedDuration::from_hours(24);

const SOLAR: Calendar = Calendar::Solar;
const LUNAR: Calendar = Calendar::Lunar;

#[test]
fn a_date_edited_from_tomorrow_to_today_and_back_gives_one_coupon() {
    let mut user = User::new("");
    assert_eq!(user.grant(date(2027, 5, 4), SOLAR), Ok(()));
    assert_eq!(user.grant(date(2027, 5, 5), SOLAR), Err(MessageEnd::Done), "the occurrence is settled");
    assert_eq!(user.grant(date(2027, 5, 4), SOLAR), Err(MessageEnd::Done));
}

#[test]
fn a_date_edited_across_new_year_meets_the_gap() {
    let mut user = User::new("");
    assert_eq!(user.grant(date(2026, 12, 31), SOLAR), Ok(()));
    assert_eq!(user.grant(date(2027, 1, 1), SOLAR), Err(MessageEnd::Done));
    let reasons: Vec<Reason> = user.ledger.refusals.values().map(|refused| refused.reason).collect();
    assert_eq!(reasons, [Reason::WithinGap]);
    assert_eq!(
        user.grant(date(2027, 10, 27), SOLAR),
        Ok(()),
        "300 days later, counted from the celebrated day"
    );
}

#[test]
fn a_day_that_is_caught_up_late_meets_the_gap_of_the_day_after_it() {
    let mut user = User::new("");
    assert_eq!(user.grant(date(2027, 1, 1), SOLAR), Ok(()));
    assert_eq!(user.grant(date(2026, 12, 31), SOLAR), Err(MessageEnd::Done));
}

#[test]
fn switching_between_solar_and_lunar_gives_no_second_coupon() {
    let mut user = User::new("");
    assert_eq!(user.grant(date(2027, 5, 4), SOLAR), Ok(()));
    assert_eq!(user.grant(date(2027, 6, 4), LUNAR), Err(MessageEnd::Done));
    assert_eq!(user.grant(date(2028, 5, 4), SOLAR), Ok(()));
}

#[test]
fn a_lunar_birthday_twice_in_a_solar_year_counts_for_two_lunar_years() {
    let mut user = User::new("");
    // Lunar 12-01: 2024-01-11 and 2024-12-31.
    assert_eq!(user.grant(date(2024, 1, 11), LUNAR), Ok(()));
    assert_eq!(user.grant(date(2024, 12, 31), LUNAR), Ok(()));
}

#[test]
fn two_days_that_race_give_one_coupon() {
    let mut user = User::new("");
    let new_year = user.day(date(2027, 1, 1), SOLAR);
    let second = user.reserve(&new_year).unwrap();
    let eve = user.day(date(2026, 12, 31), SOLAR);
    let first = user.reserve(&eve).unwrap();
    assert_eq!(user.issue(&eve, &first), Ok(()));
    assert_eq!(
        user.issue(&new_year, &second),
        Err(MessageEnd::Later),
        "a call under way may come to nothing"
    );
    settle(&mut user.ledger, &eve, &first.key, &first.coupon, first.version);
    assert_eq!(user.issue(&new_year, &second), Err(MessageEnd::Done));
}

#[test]
fn a_granter_that_slept_inserts_no_row_by_what_it_read() {
    let mut user = User::new("");
    let candidate = user.day(date(2027, 5, 4), SOLAR);
    let taken = user.reserve(&candidate).unwrap();
    // The ledger lacks the row: the issue inserts it. Meanwhile the ledger may be restored and the day closed.
    user.ledger.rows.clear();
    let slept = user.ledger.now + ATTEMPT_TIMEOUT;
    for (now, issued) in [(slept - SignedDuration::from_secs(1), true), (slept, false)] {
        let users = BTreeMap::from([(7, UserLedger { now, ..user.ledger.clone() })]);
        let tokens = LedgerTokens { latest: Unique(7), before: None };
        let mut ledger = UsersLedger { tokens, users };
        let source = Some(vec![row((5, 4), None, SOLAR)]);
        let held = HeldRow { candidate: candidate.clone(), taken: taken.clone(), source };
        let ends = issue(&mut ledger, &[held], Unique(8), Unique(7)).unwrap();
        assert_eq!(ends[0].is_ok(), issued, "{ends:?}");
        assert_eq!(ledger.users[&7].rows.len(), usize::from(issued), "no row is left behind");
    }
}

#[test]
fn null_during_the_run_a_stale_row_and_another_calendar_give_nothing() {
    let mut user = User::new("");
    let candidate = user.day(date(2027, 5, 4), SOLAR);
    let taken = user.reserve(&candidate).unwrap();
    let now = user.ledger.now;
    let verdict = |rows: &[SourceRow]| judge(rows, &taken, SOLAR, now);
    let not_due = DueState::NotDue(Reason::NotTheirBirthday);
    let null = SourceRow { solar: None, ..row((5, 4), None, SOLAR) };
    assert_eq!(verdict(&[null]), not_due);
    assert_eq!(verdict(&[row((5, 5), None, SOLAR)]), not_due);
    assert_eq!(verdict(&[row((5, 4), Some((1, 1)), LUNAR)]), not_due);
    assert_eq!(verdict(&[row((5, 5), None, SOLAR), row((5, 4), None, SOLAR)]), DueState::Due);
    assert_eq!(judged(&mut user.ledger, &candidate, &taken, not_due), Err(MessageEnd::Done));
    // The refusal closes the day for this wave, and neither the occurrence nor the next wave.
    assert!(matches!(user.reserve(&candidate), Err(MessageEnd::Done)));
    let mut at_noon = user.ledger.clone();
    assert!(reserve(&mut at_noon, &Candidate { wave: 2, ..candidate }, Unique(99)).is_ok());
    assert_eq!(user.grant(date(2027, 5, 5), SOLAR), Ok(()));
}

#[test]
fn a_rename_between_shards_waits_for_its_other_half() {
    let mut user = User::new("");
    let candidate = user.day(date(2027, 5, 4), SOLAR);
    let taken = user.reserve(&candidate).unwrap();
    assert_eq!(judge(&[], &taken, SOLAR, user.ledger.now), DueState::Absent);
    let decide =
        |user: &mut User, taken: &TakenRow| judged(&mut user.ledger, &candidate, taken, DueState::Absent);
    assert_eq!(decide(&mut user, &taken), Err(MessageEnd::Later));
    user.ledger.now += SignedDuration::from_hours(9);
    assert_eq!(decide(&mut user, &taken), Err(MessageEnd::Later));
    user.ledger.now += SignedDuration::from_hours(1);
    assert_eq!(decide(&mut user, &taken), Err(MessageEnd::Done));
    assert_eq!(user.ledger.rows.values().next().unwrap().state, RowState::Refused(Reason::SourceRowGone));
}

/// Returns the report of one member.
fn report(member_state: &MemberState, day: Date) -> Report {
    let mut report = Report::default();
    report.add(member_state, day);
    report
}

#[test]
fn a_source_that_cannot_be_read_is_waited_for_until_the_latest_hour_and_looked_at_again() {
    let mut user = User::new("latest_at = '18:00'\n");
    let candidate = user.day(date(2027, 5, 4), SOLAR);
    let mut taken = user.reserve(&candidate).unwrap();
    let member_state = |user: &User, taken: &TakenRow| MemberState {
        member: candidate.member,
        is_member: true,
        shards: Vec::new(),
        row: user.ledger.rows.get(&taken.key.occurrence).cloned(),
        refused: user.ledger.refusals.get(&(candidate.run.day, SOLAR)).copied(),
    };
    user.ledger.now += SignedDuration::from_mins(18 * 60 - 1);
    assert_eq!(unread(&mut user.ledger, &candidate, &taken), MessageEnd::Later);
    assert_eq!(report(&member_state(&user, &taken), candidate.run.day).in_flight, 1);

    user.ledger.now += SignedDuration::from_mins(1);
    let at_latest = user.ledger.now;
    assert_eq!(unread(&mut user.ledger, &candidate, &taken), MessageEnd::Done);
    let report = report(&member_state(&user, &taken), candidate.run.day);
    assert_eq!((report.missed, report.unreadable, report.sum()), (1, 1, 1));
    // The run stays open, and the user is left alone for as long as an attempt is.
    let need = |user: &User, taken: &TakenRow, frozen, now| {
        need(&member_state(user, taken), candidate.run.day, frozen, now)
    };
    assert_eq!(need(&user, &taken, 3, at_latest), MemberNeed::InFlight);
    assert_eq!(need(&user, &taken, 3, at_latest + ATTEMPT_TIMEOUT), MemberNeed::Message);
    // An earlier message was refused. A closed day would leave the row undecided for ever, and other days with it.
    let refused = RefusedDay { wave: 3, reason: Reason::NotTheirBirthday };
    user.ledger.refusals.insert((candidate.run.day, SOLAR), refused);
    assert_eq!(need(&user, &taken, 3, at_latest + ATTEMPT_TIMEOUT), MemberNeed::Message);
    user.ledger.refusals.clear();

    // Another day of the same year waits for it, since it may still be the right one.
    let other =
        Candidate { run: RunKey { day: date(2027, 5, 5), ..candidate.run.clone() }, ..candidate.clone() };
    assert!(matches!(user.reserve(&other), Err(MessageEnd::Later)));
    taken = user.reserve(&candidate).unwrap();
    assert_eq!(user.issue(&candidate, &taken), Ok(()));
    settle(&mut user.ledger, &candidate, &taken.key, &taken.coupon, taken.version);
    assert_eq!(need(&user, &taken, 3, at_latest), MemberNeed::Nothing);
    assert_eq!(user.grant(date(2027, 5, 4), SOLAR), Err(MessageEnd::Done), "it is caught up once");
}

#[test]
fn a_letter_that_a_person_sent_again_waits_for_its_source_as_long_as_it_takes() {
    let mut user = User::new("");
    let candidate = user.day(date(2027, 5, 4), SOLAR);
    let taken = user.reserve(&candidate).unwrap();
    user.ledger.rows.get_mut(&taken.key.occurrence).unwrap().by_hand = true;
    user.ledger.now += SignedDuration::from_hours(24 * 30);
    assert_eq!(unread(&mut user.ledger, &candidate, &taken), MessageEnd::Later);
    assert_eq!(user.ledger.rows[&taken.key.occurrence].state, RowState::Reserved);
}

#[test]
fn a_row_in_two_tables_is_one_member_and_a_misplaced_row_is_none() {
    let table = Birthday::Solar(MonthDay::new(5, 4).unwrap());
    let other = Birthday::Solar(MonthDay::new(5, 5).unwrap());
    let row = |user, shard, birthday, calendar| {
        let shard = ShardId::from_u64(shard).unwrap();
        CohortRow { user, shard, birthday, calendar }
    };
    let rows =
        [row(1, 1, table, SOLAR), row(1, 2, table, SOLAR), row(2, 1, other, SOLAR), row(3, 1, table, LUNAR)];
    let page = members(table, &rows);
    assert_eq!(page.misplaced, 1);
    let found: Vec<(u64, usize)> =
        page.members.iter().map(|(member, shards)| (member.user, shards.len())).collect();
    assert_eq!(found, [(1, 2)]);
}

#[test]
fn a_placeholder_date_and_a_change_within_the_cool_off_give_nothing() {
    let mut user = User::new("placeholder_dates = ['1900-01-01']\ncool_off_days = 20\n");
    let candidate = user.day(date(2027, 1, 1), SOLAR);
    let taken = user.reserve(&candidate).unwrap();
    let now = user.ledger.now;
    let born = |year| SourceRow { born: Some(date(year, 1, 1)), ..row((1, 1), None, SOLAR) };
    assert_eq!(judge(&[born(1900)], &taken, SOLAR, now), DueState::NotDue(Reason::PlaceholderDate));
    assert_eq!(judge(&[born(1990)], &taken, SOLAR, now), DueState::Due);
    let changed =
        |days: i64| SourceRow { changed_at: Some(now - SignedDuration::from_hours(24 * days)), ..born(1990) };
    assert_eq!(judge(&[changed(19)], &taken, SOLAR, now), DueState::NotDue(Reason::ChangedLately));
    assert_eq!(judge(&[changed(20)], &taken, SOLAR, now), DueState::Due);
    assert_eq!(judge(&[changed(-1)], &taken, SOLAR, now), DueState::NotDue(Reason::ChangedLately));
    let mut without = User::new("");
    let candidate = without.day(date(2027, 1, 1), SOLAR);
    let taken = without.reserve(&candidate).unwrap();
    assert_eq!(
        judge(&[changed(-1)], &taken, SOLAR, now),
        DueState::Due,
        "no cool-off, whatever the column says"
    );
}

#[test]
fn a_run_that_is_started_twice_begins_once_and_a_missed_day_is_begun_late() {
    let rules = programme("");
    let days = |next| begun("2027-03-03T05:00:00Z", "2027-03-03T05:00:00Z", next, &rules);
    let dates: Vec<Date> = days(Some(date(2027, 3, 1))).iter().map(|(day, _)| *day).collect();
    assert_eq!(dates, [date(2027, 3, 1), date(2027, 3, 2), date(2027, 3, 3)]);
    assert!(days(Some(date(2027, 3, 4))).is_empty());
}

#[test]
fn a_clock_back_across_midnight_and_one_that_runs_ahead_begin_no_day() {
    let rules = programme("");
    let tomorrow = Some(date(2027, 3, 4));
    assert!(begun("2027-03-03T23:59:00Z", "2027-03-04T09:00:00Z", tomorrow, &rules).is_empty());
    assert!(begun("2027-03-04T00:01:00Z", "2027-03-03T23:59:00Z", tomorrow, &rules).is_empty());
    assert_eq!(begun("2027-03-04T00:01:00Z", "2027-03-04T00:01:00Z", tomorrow, &rules).len(), 1);
}

#[test]
fn a_changed_rule_for_29_february_holds_from_the_next_year_on() {
    let mut ledger = ProgrammeLedger {
        now: at("2027-02-27T00:00:00Z"),
        next: Some(date(2027, 2, 27)),
        leap_days: BTreeMap::new(),
        open: Vec::new(),
        begun: Vec::new(),
    };
    let now = ledger.now;
    begin(&mut ledger, &programme(""), now, Unique(1));
    let changed = Programme { leap_day: anabranch_schemas::celebration::LeapDayRule::Mar1, ..programme("") };
    ledger.now = at("2027-03-01T00:00:00Z");
    let now = ledger.now;
    begin(&mut ledger, &changed, now, Unique(1));
    let leap_day = Birthday::Solar(MonthDay::new(2, 29).unwrap());
    let days = ledger.begun.iter().filter(|(day, run)| run.birthdays(*day).contains(&leap_day));
    assert_eq!(days.map(|(day, _)| *day).collect::<Vec<_>>(), [date(2027, 2, 28)]);
    // So does a plan of a day without a run.
    let planned = rules(&ledger, &changed, date(2027, 3, 2));
    assert_eq!(Some(planned.version()), ledger.begun.last().map(|(_, run)| run.version));
    assert_eq!(rules(&ledger, &changed, date(2028, 2, 28)), changed);
}

#[test]
fn an_empty_coupon_pool_and_a_busy_system_count_no_try_and_a_rejection_counts() {
    let mut user = User::new("");
    let candidate = user.day(date(2027, 5, 4), SOLAR);
    for (answer, counts, tries) in [
        (Answer::PoolEmpty, false, 0),
        (Answer::Busy, false, 0),
        (Answer::Rejected, true, 1),
        (Answer::Rejected, true, 2),
    ] {
        let taken = user.reserve(&candidate).unwrap();
        assert_eq!(user.issue(&candidate, &taken), Ok(()));
        assert_eq!(answered(&mut user.ledger, &taken, answer, counts), MessageEnd::Later);
        assert_eq!(user.ledger.rows[&taken.key.occurrence].tries, tries);
        user.ledger.now += ATTEMPT_TIMEOUT;
    }
    let taken = user.reserve(&candidate).unwrap();
    assert_eq!(user.issue(&candidate, &taken), Ok(()));
    assert_eq!(answered(&mut user.ledger, &taken, Answer::Rejected, true), MessageEnd::Done);
    let state = user.ledger.rows[&taken.key.occurrence].state;
    assert_eq!(state, RowState::Failed(FailedOutcome::NothingGiven));
    let sent = requeue(&mut user.ledger, &taken.key, MEMORY).unwrap();
    assert!(user.reserve(&sent).is_ok(), "a person may send it again");
}

#[test]
fn a_lost_answer_is_asked_for_and_one_that_is_forgotten_waits_for_a_person() {
    let mut user = User::new("");
    let candidate = user.day(date(2027, 5, 4), SOLAR);
    let taken = user.reserve(&candidate).unwrap();
    assert_eq!(user.issue(&candidate, &taken), Ok(()));
    assert!(matches!(user.reserve(&candidate), Err(MessageEnd::Later)), "a young attempt is left alone");
    user.ledger.now += ATTEMPT_TIMEOUT;
    let second = user.reserve(&candidate).unwrap();
    assert!(second.may_have_called);
    user.ledger.now += MEMORY;
    assert_eq!(denied(&mut user.ledger, &second, MEMORY), Err(MessageEnd::Done));
    let state = user.ledger.rows[&taken.key.occurrence].state;
    assert!(matches!(state, RowState::Failed(FailedOutcome::Unknown { .. })));
    assert_eq!(requeue(&mut user.ledger, &taken.key, MEMORY), Err(LeftAlone::NeedsDecision));
}

#[test]
fn a_granter_that_was_frozen_changes_nothing_when_it_wakes() {
    let mut user = User::new("");
    let candidate = user.day(date(2027, 5, 4), SOLAR);
    let old = user.reserve(&candidate).unwrap();
    user.ledger.now += ATTEMPT_TIMEOUT;
    let new = user.reserve(&candidate).unwrap();
    assert_eq!(user.issue(&candidate, &old), Err(MessageEnd::Later));
    assert_eq!(user.issue(&candidate, &new), Ok(()));
    assert_eq!(answered(&mut user.ledger, &old, Answer::Rejected, true), MessageEnd::Later);
}

#[test]
fn a_programme_that_changes_during_the_day_and_last_years_stream_change_no_coupon() {
    let mut user = User::new("");
    let candidate = user.day(date(2027, 5, 4), SOLAR);
    let taken = user.reserve(&candidate).unwrap();
    Arc::make_mut(user.ledger.run.as_mut().unwrap()).rules.coupon = "other".into();
    user.ledger.now += ATTEMPT_TIMEOUT;
    assert_eq!(user.reserve(&candidate).unwrap().coupon, taken.coupon, "a retry sends the coupon of its row");
    Arc::make_mut(user.ledger.run.as_mut().unwrap()).is_closed = true;
    user.ledger.now += ATTEMPT_TIMEOUT;
    assert!(matches!(user.reserve(&candidate), Err(MessageEnd::Done)), "the run is closed");
}

#[test]
fn a_ledger_restored_from_an_older_copy_is_told_from_an_issuer_that_died() {
    let tokens = |latest, before| LedgerTokens { latest: Unique(latest), before: Some(Unique(before)) };
    assert_eq!(Chain::of(tokens(5, 4), Unique(5)), Chain::Level);
    assert_eq!(Chain::of(tokens(5, 4), Unique(4)), Chain::RegisterLagging);
    assert_eq!(Chain::of(tokens(5, 4), Unique(6)), Chain::Restored);
}

#[test]
fn noon_leaves_what_is_in_flight_alone_and_takes_over_what_is_old() {
    let mut user = User::new("");
    let candidate = user.day(date(2027, 5, 4), SOLAR);
    let taken = user.reserve(&candidate).unwrap();
    let member_state = MemberState {
        member: candidate.member,
        is_member: true,
        shards: Vec::new(),
        row: Some(user.ledger.rows[&taken.key.occurrence].clone()),
        refused: None,
    };
    let now = user.ledger.now;
    assert_eq!(need(&member_state, candidate.run.day, 1, now), MemberNeed::InFlight);
    assert_eq!(need(&member_state, candidate.run.day, 1, now + ATTEMPT_TIMEOUT), MemberNeed::Message);
    assert_eq!(
        need(&MemberState { row: None, ..member_state }, candidate.run.day, 1, now),
        MemberNeed::Message
    );
}

/// Returns a batch of one user each: due, of another birthday, unread, and overtaken by another granter.
fn batch() -> (UsersLedger, Vec<HeldRow>) {
    let mut users = BTreeMap::new();
    let mut batch = Vec::new();
    for number in 1..=4u64 {
        let mut user = User::new("");
        let mut candidate = user.day(date(2027, 5, 4), SOLAR);
        candidate.member.user = number;
        let taken = user.reserve(&candidate).unwrap();
        let source = match number {
            1 | 4 => Some(vec![row((5, 4), None, SOLAR)]),
            2 => Some(vec![row((5, 5), None, SOLAR)]),
            _ => None,
        };
        if number == 4 {
            user.ledger.now += ATTEMPT_TIMEOUT;
            user.reserve(&candidate).unwrap();
        }
        batch.push(HeldRow { candidate, taken, source });
        users.insert(number, user.ledger);
    }
    (UsersLedger { tokens: LedgerTokens { latest: Unique(7), before: None }, users }, batch)
}

#[test]
fn a_batch_is_issued_under_one_token_and_who_is_not_due_leaves_it() {
    let (mut ledger, batch) = batch();
    let ends = issue(&mut ledger, &batch, Unique(8), Unique(7));
    let ends = ends.map(|ends| ends.into_iter().map(|end| end.map(drop)).collect());
    assert_eq!(ends, Ok(vec![Ok(()), Err(MessageEnd::Done), Err(MessageEnd::Later), Err(MessageEnd::Later)]));
    assert_eq!(ledger.tokens, LedgerTokens { latest: Unique(8), before: Some(Unique(7)) });
    let states: Vec<RowState> =
        ledger.users.values().flat_map(|user| user.rows.values()).map(|row| row.state).collect();
    let is_issued = |state: &&RowState| matches!(state, RowState::Issued { .. });
    assert_eq!(states.iter().filter(is_issued).count(), 1, "{states:?}");
    assert_eq!(states[2], RowState::Reserved, "a row that could not be read waits");
    assert!(ledger.users[&3].rows.values().all(|row| row.absent_since.is_none()), "and it is not absent");

    assert!(is_registered(&ledger, &batch[..1], Unique(8)));
    assert!(!is_registered(&ledger, &batch[..1], Unique(7)), "the register is elsewhere");
    assert!(!is_registered(&ledger, &batch[..2], Unique(8)), "a row was not issued");
}

#[test]
fn a_batch_behind_another_token_changes_nothing() {
    let (mut ledger, batch) = batch();
    let before = ledger.users.values().map(|user| user.rows.clone()).collect::<Vec<_>>();
    assert_eq!(issue(&mut ledger, &batch, Unique(8), Unique(6)), Err(ChainMoved));
    assert_eq!(ledger.tokens.latest, Unique(7));
    assert_eq!(ledger.users.values().map(|user| user.rows.clone()).collect::<Vec<_>>(), before);
    assert!(ledger.users.values().all(|user| user.refusals.is_empty()));

    // No user is due: the chain stays as it is.
    let ends = issue(&mut ledger, &batch[1..3], Unique(8), Unique(7));
    assert_eq!(ends, Ok(vec![Err(MessageEnd::Done), Err(MessageEnd::Later)]));
    assert_eq!(ledger.tokens.latest, Unique(7));
}
