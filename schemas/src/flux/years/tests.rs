//! Tests of the strategy by year, named after the lines of the domain that they show.

use jiff::civil::date;

use super::*;
use crate::flux::id::Level;

/// Identifiers of 2027 and later have a year digit, digit 22.
const SINCE_2027: Years = Years { cut_over: CutOver::Date(date(2027, 1, 1)), digit: YearDigit::First };
/// Identifiers of data version 8 have a year digit, digit 23.
const VERSION_8: Years = Years { cut_over: CutOver::Version(8), digit: YearDigit::Second };

/// Builds an identifier of main, user partition 05.
fn document(date: &str, version: u8, level: Level, month: u8, reserved: u8) -> FluxId {
    let level = level.digit();
    format!("{date}{version}1031{level}010{month:02}05{reserved:02}00029904").parse().unwrap()
}

fn composite(date: &str, month: u8, reserved: u8) -> FluxId {
    document(date, 1, Level::Composite, month, reserved)
}

fn reasons(found: [Option<YearDifference>; 2]) -> Vec<&'static str> {
    found.iter().flatten().map(YearDifference::reason).collect()
}

#[test]
fn the_year_digit_is_taken_from_the_reserved_digits() {
    for (place, digit) in [(22, YearDigit::First), (23, YearDigit::Second)] {
        assert_eq!((YearDigit::at(place), digit.place()), (Some(digit), usize::from(place)));
        let years = Years { digit, ..SINCE_2027 };
        let new = years.with_year(composite("20270105", 0, 24), Kind::Recharge, None);
        assert_eq!(&new.to_string()[usize::from(place) - 1..][..1], "7");
        assert_eq!(years.strategy(&new), Strategy::Year(7));
        assert_eq!(years.strategy(&years.without_year(new)), Strategy::Year(0));
    }
    for place in [0, 1, 9, 21, 24, 31, 255] {
        assert_eq!(YearDigit::at(place), None, "{place}");
    }
    let kept = SINCE_2027.with_year(composite("20270105", 0, 24), Kind::Recharge, None);
    assert_eq!(kept.parts().reserved, 74, "the other reserved digit stays");
}

#[test]
fn old_and_new_identifiers_live_side_by_side_by_cut_over_date() {
    for (text, expected) in [
        ("20160606", Strategy::Month),
        ("20261231", Strategy::Month),
        ("20270101", Strategy::Year(2)),
        ("20360229", Strategy::Year(2)),
    ] {
        assert_eq!(SINCE_2027.strategy(&composite(text, 0, 24)), expected, "{text}");
    }
    let old = composite("20261231", 11, 24);
    assert_eq!(SINCE_2027.with_year(old, Kind::Recharge, None), old);
    assert_eq!(SINCE_2027.without_year(old), old);
}

#[test]
fn old_and_new_identifiers_live_side_by_side_by_data_version() {
    for (version, expected) in [(0, Strategy::Month), (1, Strategy::Month), (8, Strategy::Year(4))] {
        let id = document("20260606", version, Level::Composite, 5, 24);
        assert_eq!(VERSION_8.strategy(&id), expected, "version {version}");
    }
}

#[test]
fn each_kind_has_the_year_of_its_parents_table_or_of_its_own_date() {
    let recharge = composite("20271230", 11, 70);
    let refund = document("20280210", 1, Level::Composite, 99, 80);
    let on = date(2029, 3, 4);
    for (kind, parent, expected) in [
        (Kind::Recharge, None, Some(9)),
        (Kind::Capture, Some(recharge), Some(7)),
        (Kind::Cancel, Some(recharge), Some(7)),
        (Kind::Refund, Some(recharge), Some(9)),
        (Kind::Withdrawal, None, Some(9)),
        (Kind::Atom, Some(recharge), Some(7)),
        (Kind::RechargeClearing, Some(recharge), Some(7)),
        (Kind::RefundClearing, Some(refund), Some(8)),
        (Kind::ReturnedRefundClearing, Some(refund), Some(8)),
        (Kind::Chargeback, Some(recharge), Some(9)),
        (Kind::ChargebackReversal, Some(recharge), Some(9)),
        (Kind::WithdrawalAtom, Some(refund), Some(8)),
        (Kind::Capture, None, None),
        (Kind::Atom, None, None),
    ] {
        assert_eq!(SINCE_2027.year_of_kind(kind, on, parent.as_ref()), expected, "{}", kind.name());
    }
}

#[test]
fn a_document_of_an_old_parent_has_the_year_of_the_parents_month() {
    for (parent, expected) in [
        (composite("20261230", 11, 24), 6),
        // A capture of January whose recharge was one of December.
        (composite("20260103", 11, 24), 5),
        (document("20260103", 1, Level::Composite, 99, 24), 6),
    ] {
        let year = SINCE_2027.year_of_kind(Kind::Atom, date(2027, 1, 2), Some(&parent));
        assert_eq!(year, Some(expected), "{parent}");
    }
}

#[test]
fn a_table_of_another_year_or_another_strategy_is_named() {
    let id = composite("20270105", 0, 70);
    let old = composite("20260105", 0, 70);
    let of = |id: &FluxId, table| reasons(SINCE_2027.differences(id, None, None, table));
    assert_eq!(of(&id, Some(Strategy::Year(7))), Vec::<&str>::new());
    assert_eq!(of(&id, None), Vec::<&str>::new());
    assert_eq!(of(&id, Some(Strategy::Year(6))), ["table_year"]);
    assert_eq!(of(&id, Some(Strategy::Month)), ["table_strategy"]);
    assert_eq!(of(&old, Some(Strategy::Month)), Vec::<&str>::new());
    assert_eq!(of(&old, Some(Strategy::Year(7))), ["table_strategy"]);
    let texts = |id: &FluxId, table| {
        let found = SINCE_2027.differences(id, None, None, Some(table));
        found.iter().flatten().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        texts(&id, Strategy::Year(6)),
        "digit 22 (year, one of the reserved digits) is 7; expected by its table: 6"
    );
    assert_eq!(texts(&old, Strategy::Year(7)), "it is placed by month; expected by its table: by year 7");
}

#[test]
fn a_year_against_the_rule_of_its_kind_is_named() {
    let recharge = composite("20271230", 11, 70);
    let of = |date: &str, kind: Kind, parent: Option<&FluxId>, month, reserved| {
        let id = document(date, 1, kind.level(), month, reserved);
        reasons(SINCE_2027.differences(&id, parent, Some(kind), None))
    };
    assert_eq!(of("20280102", Kind::Capture, Some(&recharge), 11, 70), Vec::<&str>::new());
    assert_eq!(of("20280102", Kind::Capture, Some(&recharge), 11, 80), ["parent_year"]);
    assert_eq!(of("20280102", Kind::Capture, None, 11, 80), Vec::<&str>::new(), "the parent is not known");
    assert_eq!(of("20280102", Kind::Refund, Some(&recharge), 99, 80), Vec::<&str>::new());
    assert_eq!(of("20280102", Kind::Refund, Some(&recharge), 99, 70), ["parent_year"]);
    assert_eq!(of("20280102", Kind::Recharge, None, 0, 70), ["parent_year"]);
    // An atom is no parent of a capture, so its year decides nothing.
    let atom = document("20271230", 1, Level::Atom, 11, 70);
    assert_eq!(of("20280102", Kind::Capture, Some(&atom), 11, 80), Vec::<&str>::new());
}

#[test]
fn a_document_by_month_below_one_by_year_is_named_where_it_stands_with_its_parent() {
    let recharge = document("20260606", 8, Level::Composite, 5, 6);
    let of = |kind: Kind, month| {
        let id = document("20260607", 1, kind.level(), month, 0);
        reasons(VERSION_8.differences(&id, Some(&recharge), Some(kind), None))
    };
    assert_eq!(of(Kind::Capture, 5), ["parent_strategy"]);
    assert_eq!(of(Kind::Refund, 99), Vec::<&str>::new());
}
