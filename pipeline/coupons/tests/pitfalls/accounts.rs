//! Pitfalls of one user: several tables, programmes and accounts, calls that fail, and a person beside the granters.

use std::sync::Arc;

use anabranch_coupons::breaker::Breaker;
use anabranch_coupons::days::members;
use anabranch_coupons::dead_letters::requeue;
use anabranch_coupons::issuing::answered;
use anabranch_coupons::ports::{Answer, CohortRow};
use anabranch_coupons::records::{ATTEMPT_TIMEOUT, Candidate, FailedOutcome, Reason, RowState, RunKey};
use anabranch_coupons::reserving::{DueState, MessageEnd, denied, judge, judged, settle};
use anabranch_schemas::birthday::MonthDay;
use anabranch_schemas::celebration::Birthday;
use anabranch_schemas::shard::ShardId;
use jiff::SignedDuration;
use jiff::civil::{Date, date};

use crate::user::{User, row};
use crate::{LUNAR, MEMORY, SOLAR};

const DAY: Date = date(2027, 5, 4);

#[test]
fn one_user_in_the_tables_of_two_days_gets_one_coupon() {
    for day in [4, 5] {
        let birthday = Birthday::Solar(MonthDay::new(5, day).unwrap());
        let shard = ShardId::from_u64(1).unwrap();
        let rows = [CohortRow { user: 7, shard, birthday, calendar: SOLAR }];
        assert_eq!(members(birthday, &rows).members.len(), 1, "the user is a member of both days");
    }
    let (moved, both) = (vec![row((5, 5), None, SOLAR)], [(5, 4), (5, 5)].map(|day| row(day, None, SOLAR)));
    for (source, expected) in [
        (moved, [Err(MessageEnd::Done), Ok(())]),
        // Two shards have a row of the user, with two birthdays.
        (both.to_vec(), [Ok(()), Err(MessageEnd::Done)]),
    ] {
        let mut user = User::new("");
        let mut carry = |day: Date| -> Result<(), MessageEnd> {
            let candidate = user.day(day, SOLAR);
            let taken = user.reserve(&candidate)?;
            let verdict = judge(&source, &taken, SOLAR, user.ledger.now);
            judged(&mut user.ledger, &candidate, &taken, verdict)?;
            user.issue(&candidate, &taken)?;
            settle(&mut user.ledger, &candidate, &taken.key, &taken.coupon, taken.version);
            Ok(())
        };
        assert_eq!([carry(DAY), carry(date(2027, 5, 5))], expected);
        let states: Vec<RowState> = user.ledger.rows.values().map(|row| row.state).collect();
        assert_eq!(states, [RowState::Settled]);
    }
}

#[test]
fn one_user_in_two_programmes_gets_one_coupon_of_each() {
    let (mut user, mut of_other) = (User::new(""), User::new(""));
    let candidate = user.day(DAY, SOLAR);
    let run = RunKey { programme: Arc::from("cinema"), ..candidate.run.clone() };
    let other = Candidate { run, ..of_other.day(DAY, SOLAR) };
    assert_ne!(candidate.key(), other.key(), "no programme has the key of another one");
    for (user, candidate) in [(&mut user, candidate), (&mut of_other, other)] {
        let taken = user.reserve(&candidate).unwrap();
        assert_eq!(Some(&taken.key), candidate.key().as_ref());
        assert_eq!(user.issue(&candidate, &taken), Ok(()));
        settle(&mut user.ledger, &candidate, &taken.key, &taken.coupon, taken.version);
        assert!(matches!(user.reserve(&candidate), Err(MessageEnd::Done)));
    }
}

#[test]
fn an_account_that_is_deleted_and_registered_again_gets_one_coupon() {
    for (gone, wave, ends) in [
        (ATTEMPT_TIMEOUT, 1, MessageEnd::Later),
        // The absence is no rename any more: the wave refuses, and the next one looks again.
        (SignedDuration::from_hours(11), 2, MessageEnd::Done),
    ] {
        let mut user = User::new("");
        let candidate = user.day(DAY, SOLAR);
        let taken = user.reserve(&candidate).unwrap();
        let absent = judged(&mut user.ledger, &candidate, &taken, DueState::Absent);
        assert_eq!(absent, Err(MessageEnd::Later));
        user.ledger.now += gone - SignedDuration::from_secs(1);
        assert_eq!(judged(&mut user.ledger, &candidate, &taken, DueState::Absent), Err(ends));
        user.ledger.now += SignedDuration::from_secs(1);
        let again = Candidate { wave, ..candidate };
        let taken = user.reserve(&again).unwrap();
        assert_eq!(judged(&mut user.ledger, &again, &taken, DueState::Due), Ok(()));
        assert_eq!(user.issue(&again, &taken), Ok(()));
        settle(&mut user.ledger, &again, &taken.key, &taken.coupon, taken.version);
        // Deleted once more, and registered again with a later birthday.
        assert_eq!(user.grant(date(2027, 9, 9), SOLAR), Err(MessageEnd::Done));
        assert_eq!(user.ledger.rows.len(), 1);
    }
}

#[test]
fn answers_429_for_hours_count_no_try_and_the_coupon_comes_after_them() {
    let mut user = User::new("");
    let candidate = user.day(DAY, SOLAR);
    for _ in 0..20 {
        let taken = user.reserve(&candidate).unwrap();
        assert!(!taken.may_have_called, "the system did nothing");
        assert_eq!(user.issue(&candidate, &taken), Ok(()));
        assert_eq!(answered(&mut user.ledger, &taken, Answer::Busy, false), MessageEnd::Later);
        assert_eq!(user.ledger.rows[&taken.key.occurrence].tries, 0);
        // The next attempt need not wait until the first one is old.
        user.ledger.now += SignedDuration::from_secs(1);
    }
    let taken = user.reserve(&candidate).unwrap();
    assert_eq!(user.issue(&candidate, &taken), Ok(()));
    settle(&mut user.ledger, &candidate, &taken.key, &taken.coupon, taken.version);
    assert_eq!(user.ledger.rows[&taken.key.occurrence].state, RowState::Settled);
}

#[test]
fn a_poison_user_delays_no_other_and_becomes_a_dead_letter_also_as_the_last_one() {
    let (breaker, mut user) = (Breaker::default(), User::new(""));
    let candidate = user.day(DAY, SOLAR);
    let mut ends = Vec::new();
    for number in 0..3 {
        let taken = user.reserve(&candidate).unwrap();
        if number > 0 {
            assert!(taken.may_have_called, "the granter asks for the key first");
            assert_eq!(denied(&mut user.ledger, &taken, MEMORY), Ok(()));
        }
        assert_eq!(user.issue(&candidate, &taken), Ok(()));
        let counts = !breaker.failed(user.ledger.now, [candidate.member.user]);
        ends.push(answered(&mut user.ledger, &taken, Answer::Error, counts));
        user.ledger.now += ATTEMPT_TIMEOUT;
        assert!(!breaker.is_open(user.ledger.now), "others are called meanwhile");
    }
    assert_eq!(ends, [MessageEnd::Later, MessageEnd::Later, MessageEnd::Done]);
    let state = user.ledger.rows.values().next().unwrap().state;
    assert!(matches!(state, RowState::Failed(FailedOutcome::Unknown { .. })), "{state:?}");
}

#[test]
fn a_letter_that_is_sent_by_hand_beside_a_wave_gives_one_coupon() {
    for by_hand_first in [true, false] {
        let mut user = User::new("");
        let candidate = user.day(DAY, SOLAR);
        let taken = user.reserve(&candidate).unwrap();
        user.ledger.rows.get_mut(&taken.key.occurrence).unwrap().state =
            RowState::Failed(FailedOutcome::NothingGiven);
        let by_hand = requeue(&mut user.ledger, &taken.key, MEMORY).unwrap();
        let by_wave = Candidate { wave: 2, ..candidate };
        let (first, second) = if by_hand_first { (by_hand, by_wave) } else { (by_wave, by_hand) };
        let taken = user.reserve(&first).unwrap();
        assert!(matches!(user.reserve(&second), Err(MessageEnd::Later)));
        assert_eq!(user.issue(&first, &taken), Ok(()));
        assert!(matches!(user.reserve(&second), Err(MessageEnd::Later)));
        settle(&mut user.ledger, &first, &taken.key, &taken.coupon, taken.version);
        assert!(matches!(user.reserve(&second), Err(MessageEnd::Done)));
        assert_eq!(user.ledger.rows.len(), 1);
    }
}

#[test]
fn a_birthday_on_day_30_gets_its_coupon_on_day_29_of_a_short_month() {
    let mut user = User::new("calendars = ['lunar']\n");
    // The twelfth month of the lunar year 2024 ends with this day, its 29th.
    let candidate = user.day(date(2025, 1, 28), LUNAR);
    let taken = user.reserve(&candidate).unwrap();
    let verdict = |day| judge(&[row((1, 1), Some((12, day)), LUNAR)], &taken, LUNAR, user.ledger.now);
    assert_eq!([29, 30].map(verdict), [DueState::Due; 2]);
    assert_eq!(verdict(28), DueState::NotDue(Reason::NotTheirBirthday));
}
