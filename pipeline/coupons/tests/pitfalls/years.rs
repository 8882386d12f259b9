//! Pitfalls of years and keys: the calendar of an occurrence, the gap between celebrated days, letters, and the
//! version of a row.

use anabranch_coupons::dead_letters::{Decision, LeftAlone, end, requeue};
use anabranch_coupons::issuing::answered;
use anabranch_coupons::ports::Answer;
use anabranch_coupons::records::{
    ATTEMPT_TIMEOUT, Candidate, FailedOutcome, LedgerRow, MemberState, Reason, RowState, WAVES,
};
use anabranch_coupons::report::Report;
use anabranch_coupons::reserving::{MessageEnd, denied, reserve_new, settle};
use anabranch_schemas::celebration::{Birthday, LeapDayRule, Occurrence, celebrated};
use anabranch_schemas::lunar::LunarMonthDay;
use jiff::civil::{Date, date};
use jiff::{SignedDuration, ToSpan};

use crate::user::{User, programme};
use crate::{LUNAR, MEMORY, SOLAR};

#[test]
fn solar_and_lunar_years_of_one_number_are_two_occurrences() {
    let mut user = User::new("");
    assert_eq!(user.grant(date(2023, 3, 1), SOLAR), Ok(()));
    // Lunar 12-01 of the lunar year 2023, 316 days later.
    let day = date(2024, 1, 11);
    assert_eq!(Occurrence::of(LUNAR, day).unwrap().to_string(), "lunar:2023");
    assert_eq!(user.grant(day, LUNAR), Ok(()));
}

#[test]
fn a_lunar_birthday_that_never_falls_in_a_solar_year_gets_its_coupon_of_that_lunar_year() {
    let birthday = Birthday::Lunar(LunarMonthDay::new(12, 1).unwrap());
    let is_celebrated = |day: &Date| {
        celebrated(*day, &[LUNAR], LeapDayRule::Feb28).iter().any(|found| found.birthday == birthday)
    };
    let year = |year| (0..365).map(move |days: i32| date(year, 1, 1).checked_add(days.days()).unwrap());
    assert_eq!(year(2025).filter(is_celebrated).count(), 0);
    let days: Vec<Date> = year(2026).filter(is_celebrated).collect();
    assert_eq!(days, [date(2026, 1, 19)]);
    let mut user = User::new("");
    assert_eq!(user.grant(date(2024, 12, 31), LUNAR), Ok(()));
    assert_eq!(user.grant(days[0], LUNAR), Ok(()));
    let years: Vec<i16> = user.ledger.rows.keys().map(|occurrence| occurrence.year).collect();
    assert_eq!(years, [2024, 2025], "each lunar year has one coupon");
}

#[test]
fn the_gap_counts_from_celebrated_day_to_celebrated_day_however_late_a_grant_was() {
    let mut user = User::new("");
    let missed = user.day(date(2026, 3, 20), SOLAR);
    user.ledger.now += SignedDuration::from_hours(20 * 24);
    let taken = user.reserve(&missed).unwrap();
    assert_eq!(user.issue(&missed, &taken), Ok(()));
    settle(&mut user.ledger, &missed, &taken.key, &taken.coupon, taken.version);
    // That is 306 days after the celebrated day, and 286 days after the grant.
    assert_eq!(user.grant(date(2027, 1, 20), SOLAR), Ok(()));
}

#[test]
fn a_letter_of_unknown_outcome_that_is_sent_again_asks_for_its_key_before_it_calls() {
    let mut user = User::new("");
    let candidate = user.day(date(2027, 5, 4), SOLAR);
    let taken = user.reserve(&candidate).unwrap();
    assert_eq!(user.issue(&candidate, &taken), Ok(()));
    assert_eq!(answered(&mut user.ledger, &taken, Answer::Mismatch, true), MessageEnd::Done);
    let key = taken.key;
    let is_unknown =
        matches!(user.ledger.rows[&key.occurrence].state, RowState::Failed(FailedOutcome::Unknown { .. }));
    assert!(is_unknown);
    user.ledger.now += ATTEMPT_TIMEOUT;
    let sent = requeue(&mut user.ledger, &key, MEMORY).unwrap();
    let again = user.reserve(&sent).unwrap();
    assert!(again.may_have_called, "the granter asks for the key");
    assert_eq!(again.key, key, "an unknown outcome gets no new key");
    assert_eq!(denied(&mut user.ledger, &again, MEMORY), Ok(()));
    assert_eq!(user.issue(&sent, &again), Ok(()), "the key was never given");
}

#[test]
fn a_memory_beyond_the_last_year_of_the_calendar_forgets_no_key() {
    let mut user = User::new("");
    let candidate = user.day(date(2027, 5, 4), SOLAR);
    let taken = user.reserve(&candidate).unwrap();
    assert_eq!(user.issue(&candidate, &taken), Ok(()));
    assert_eq!(answered(&mut user.ledger, &taken, Answer::Mismatch, true), MessageEnd::Done);
    user.ledger.now += ATTEMPT_TIMEOUT;
    let sent = requeue(&mut user.ledger, &taken.key, SignedDuration::MAX).unwrap();
    let again = user.reserve(&sent).unwrap();
    assert_eq!(denied(&mut user.ledger, &again, SignedDuration::MAX), Ok(()));
}

#[test]
fn a_letter_that_a_person_ends_has_its_coupon_or_is_refused_in_every_later_wave() {
    for (decision, expected) in
        [(Decision::Given, RowState::Settled), (Decision::NotGiven, RowState::Refused(Reason::Dropped))]
    {
        let mut user = User::new("");
        let candidate = user.day(date(2027, 5, 4), SOLAR);
        let taken = user.reserve(&candidate).unwrap();
        assert_eq!(user.issue(&candidate, &taken), Ok(()));
        assert_eq!(answered(&mut user.ledger, &taken, Answer::Mismatch, true), MessageEnd::Done);
        assert_eq!(end(&mut user.ledger, &taken.key, decision), Ok(()));
        assert_eq!(user.ledger.rows[&taken.key.occurrence].state, expected);
        user.ledger.now += ATTEMPT_TIMEOUT;
        let later = Candidate { wave: WAVES, ..candidate };
        assert!(matches!(user.reserve(&later), Err(MessageEnd::Done)));
        assert_eq!(end(&mut user.ledger, &taken.key, decision), Err(LeftAlone::NoDeadLetter));
    }
}

#[test]
fn a_letter_that_was_sent_again_is_ended_unless_its_call_may_be_under_way() {
    let mut user = User::new("");
    let candidate = user.day(date(2027, 5, 4), SOLAR);
    let key = user.reserve(&candidate).unwrap().key;
    user.ledger.rows.get_mut(&key.occurrence).unwrap().state = RowState::Failed(FailedOutcome::NothingGiven);
    let sent = requeue(&mut user.ledger, &key, MEMORY).unwrap();
    let mut unread = user.ledger.clone();
    assert_eq!(end(&mut unread, &key, Decision::NotGiven), Ok(()), "no granter has read it");
    assert_eq!(unread.rows[&key.occurrence].state, RowState::Refused(Reason::Dropped));
    assert!(!unread.rows[&key.occurrence].is_letter());

    let taken = user.reserve(&sent).unwrap();
    assert_eq!(end(&mut user.ledger, &key, Decision::NotGiven), Err(LeftAlone::UnderWay), "it is young");
    let mut issued = user.ledger.clone();
    let first_called_at = issued.now;
    issued.rows.get_mut(&key.occurrence).unwrap().state = RowState::Issued { first_called_at };
    for ledger in [&mut issued, &mut user.ledger] {
        ledger.now += ATTEMPT_TIMEOUT;
    }
    for decision in [Decision::Given, Decision::NotGiven] {
        assert_eq!(end(&mut issued, &key, decision), Err(LeftAlone::UnderWay), "it may have been given");
    }
    assert_eq!(end(&mut user.ledger, &key, Decision::NotGiven), Ok(()));
    assert!(user.issue(&sent, &taken).is_err(), "the attempt that slept gives nothing");
    assert!(matches!(user.reserve(&sent), Err(MessageEnd::Done)));
}

#[test]
fn a_row_has_the_version_of_the_programme_that_reserved_it_and_the_report_counts_by_it() {
    let version = |user: &User| user.ledger.rows.values().next().unwrap().version;
    let (first, other) = (programme("").version(), programme("gap_days = 200\n").version());
    assert!(first.is_some() && first != other);
    let mut user = User::new("");
    let candidate = user.day(date(2027, 5, 4), SOLAR);
    let taken = user.reserve(&candidate).unwrap();
    assert_eq!(version(&user), first);
    // The ledger lacks the row, as after a first read: the issue inserts it.
    user.ledger.rows.clear();
    reserve_new(&mut user.ledger, &candidate, &taken).unwrap();
    assert_eq!(version(&user), first);

    // Other rules, and another day of the same year that takes the refused row over.
    let mut changed = User::new("gap_days = 200\n");
    changed.ledger.rows = user.ledger.rows.clone();
    changed.ledger.rows.values_mut().for_each(|row| row.state = RowState::Refused(Reason::NotTheirBirthday));
    let later = changed.day(date(2027, 5, 5), SOLAR);
    changed.reserve(&later).unwrap();
    assert_eq!(version(&changed), other);

    // The row is gone when its outcome is learned: the coupon keeps the version that stood beside it, or has none.
    for known in [taken.version, None] {
        let key = &taken.key;
        changed.ledger.rows.clear();
        settle(&mut changed.ledger, &candidate, key, &taken.coupon, known);
        assert_eq!(
            (version(&changed), changed.ledger.rows[&key.occurrence].state),
            (known, RowState::Settled)
        );
    }
    assert_eq!(taken.version, first);

    let row = user.ledger.rows.values().next().unwrap();
    let mut report = Report::default();
    for version in [first, first, None] {
        let row = Some(LedgerRow { state: RowState::Settled, version, ..row.clone() });
        let member = candidate.member;
        let member_state = MemberState { member, is_member: true, shards: Vec::new(), row, refused: None };
        report.add(&member_state, candidate.run.day);
    }
    let texts = [("unknown".to_owned(), 1u64), (first.unwrap().to_string(), 2)];
    assert_eq!((report.granted, report.version_texts()), (3, texts.into()));
}
