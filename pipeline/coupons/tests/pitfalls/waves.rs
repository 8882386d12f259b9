//! Pitfalls of waves: when midnight, noon and the catch-up of a day are due.

use std::collections::BTreeSet;

use anabranch_coupons::days::{join, rely};
use anabranch_coupons::ports::Reconciled;
use anabranch_coupons::records::{DayReconciliation, DayRun, LedgerTokens, Member, RunLedger, Unique, WAVES};
use anabranch_schemas::celebration::Calendar;
use jiff::SignedDuration;
use jiff::civil::{Date, date};

use crate::user::{at, begun, programme};

const DAY: Date = date(2027, 5, 4);

/// A run whose day has begun by these rules, in UTC.
fn run(more: &str) -> DayRun {
    begun("2027-05-04T00:00:00Z", "2027-05-04T00:00:00Z", Some(DAY), &programme(more)).remove(0).1
}

#[test]
fn midnight_waits_for_a_young_reconciliation_until_a_set_time_and_then_follows_the_programme() {
    // The default is 26 hours.
    let (young, old) = (Some(at("2027-05-02T22:00:00Z")), Some(at("2027-05-02T21:59:59Z")));
    for (rule, goes_on) in [("go", true), ("stop", false)] {
        let run = run(&format!("without_reconciliation = '{rule}'\nwaits_until = '02:30'\n"));
        assert_eq!(run.rules.goes_on_at(DAY), goes_on.then(|| at("2027-05-04T02:30:00Z")), "{rule}");
        assert!(run.is_due(DAY, at("2027-05-04T00:00:00Z"), young));
        for reconciled_at in [None, old] {
            assert!(!run.is_due(DAY, at("2027-05-04T02:29:59Z"), reconciled_at));
            assert_eq!(run.is_due(DAY, at("2027-05-04T02:30:00Z"), reconciled_at), goes_on, "{rule}");
            assert!(run.waits_for_reconciliation(DAY, at("2027-05-04T02:29:59Z"), reconciled_at));
            let waits_on = run.waits_for_reconciliation(DAY, at("2027-05-04T02:30:00Z"), reconciled_at);
            assert_eq!(waits_on, !goes_on, "{rule}");
        }
    }
}

#[test]
fn an_age_beyond_the_last_year_of_the_calendar_is_kept_by_every_reconciliation() {
    let mut run = run("");
    run.rules.reconciliation_age = SignedDuration::MAX;
    assert!(run.is_due(DAY, at("2027-05-04T00:00:00Z"), Some(at("1970-01-01T00:00:00Z"))));
}

#[test]
fn noon_waits_for_no_reconciliation_and_the_catch_up_for_one_that_saw_the_whole_day() {
    let frozen = |frozen| DayRun { frozen, ..run("") };
    let noon = ["2027-05-04T11:59:59Z", "2027-05-04T12:00:00Z"].map(at);
    assert_eq!(noon.map(|now| frozen(1).is_due(DAY, now, None)), [false, true]);
    let later = at("2027-05-06T00:00:00Z");
    let ended = [None, Some(at("2027-05-04T21:59:59Z")), Some(at("2027-05-04T22:00:00Z"))];
    assert_eq!(ended.map(|reconciled_at| frozen(2).is_due(DAY, later, reconciled_at)), [false, false, true]);
    assert!(!frozen(WAVES).is_due(DAY, later, Some(later)), "there is no further wave");
    assert!(!frozen(1).waits_for_reconciliation(DAY, later, None), "midnight is frozen");
}

#[test]
fn a_user_joins_the_cohort_of_an_open_day_and_none_joins_a_closed_one() {
    let member = Member { user: 7, calendar: Calendar::Solar };
    for is_closed in [false, true] {
        let mut ledger = RunLedger {
            now: at("2027-05-06T00:00:00Z"),
            run: Some(DayRun { is_closed, ..run("") }),
            tokens: LedgerTokens { latest: Unique(1), before: None },
            present: BTreeSet::new(),
            added: Vec::new(),
        };
        join(&mut ledger, member);
        let joined = u64::from(!is_closed);
        assert_eq!((ledger.run.unwrap().count, ledger.added.len() as u64), (joined, joined));
    }
}

#[test]
fn a_day_records_the_reconciliation_that_midnight_relied_on_and_none_that_was_too_old() {
    let young = at("2027-05-02T22:00:00Z");
    let ended = [None, Some(at("2027-05-02T21:59:59Z")), Some(young)];
    let recorded = ended.map(|ended_at| {
        let mut ledger = RunLedger {
            now: at("2027-05-04T02:30:00Z"),
            run: Some(run("")),
            tokens: LedgerTokens { latest: Unique(1), before: None },
            present: BTreeSet::new(),
            added: Vec::new(),
        };
        let reconciled =
            ended_at.map(|ended_at| Reconciled { id: "nightly".into(), ended_at, unproven: BTreeSet::new() });
        rely(&mut ledger, DAY, reconciled.as_ref());
        ledger.run.unwrap().reconciliation
    });
    assert_eq!(recorded, [None, None, Some(DayReconciliation { id: "nightly".into(), ended_at: young })]);
}
