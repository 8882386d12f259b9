//! Tests of the twelve rules: for each a table of parents and the places that follow.

use super::*;

/// Builds an identifier from digits 14 to 21: level, business code, side, month, user partition.
fn id(tail: &str) -> FluxId {
    format!("2016060611031{tail}0000029904").parse().unwrap_or_else(|defect| panic!("{tail}: {defect}"))
}

fn place(side: u8, partition: u8, month: u8) -> StorageAddress {
    StorageAddress {
        side: if side == 0 { Side::Main } else { Side::FailOver },
        partition,
        month: if month == 99 { Month::No } else { Month::Of(month) },
    }
}

const MAIN_JANUARY: &str = "00100005";
const FAIL_OVER_JUNE: &str = "00110542";
const MAIN_NO_MONTH: &str = "00109905";
const FAIL_OVER_NO_MONTH: &str = "00119942";
const ATOM: &str = "10100005";

/// Checks each parent with the place that follows, or `None` when it cannot be a parent.
fn check(kind: Kind, table: [(&str, Option<StorageAddress>); 5]) {
    for (parent, expected) in table {
        assert_eq!(kind.address_below(&id(parent)).ok(), expected, "{} below {parent}", kind.name());
    }
}

/// Checks a kind that lies with its recharge: same side, partition and month.
fn check_with_its_recharge(kind: Kind) {
    check(
        kind,
        [
            (MAIN_JANUARY, Some(place(0, 5, 0))),
            (FAIL_OVER_JUNE, Some(place(1, 42, 5))),
            (MAIN_NO_MONTH, None),
            (FAIL_OVER_NO_MONTH, None),
            (ATOM, None),
        ],
    );
}

/// Checks a kind that lies with its recharge, but for the month.
fn check_without_its_month(kind: Kind) {
    check(
        kind,
        [
            (MAIN_JANUARY, Some(place(0, 5, 99))),
            (FAIL_OVER_JUNE, Some(place(1, 42, 99))),
            (MAIN_NO_MONTH, None),
            (FAIL_OVER_NO_MONTH, None),
            (ATOM, None),
        ],
    );
}

/// Checks a clearing that lies with its refund.
fn check_with_its_refund(kind: Kind) {
    check(
        kind,
        [
            (MAIN_JANUARY, None),
            (FAIL_OVER_JUNE, None),
            (MAIN_NO_MONTH, Some(place(0, 5, 99))),
            (FAIL_OVER_NO_MONTH, Some(place(1, 42, 99))),
            (ATOM, None),
        ],
    );
}

#[test]
fn an_atom_follows_its_composite() {
    check(
        Kind::Atom,
        [
            (MAIN_JANUARY, Some(place(0, 5, 0))),
            (FAIL_OVER_JUNE, Some(place(1, 42, 5))),
            (MAIN_NO_MONTH, Some(place(0, 5, 99))),
            (FAIL_OVER_NO_MONTH, Some(place(1, 42, 99))),
            (ATOM, None),
        ],
    );
}

#[test]
fn a_capture_follows_its_recharge() {
    check_with_its_recharge(Kind::Capture);
}

#[test]
fn a_cancel_follows_its_recharge() {
    check_with_its_recharge(Kind::Cancel);
}

#[test]
fn a_refund_follows_its_recharge_without_month() {
    check_without_its_month(Kind::Refund);
}

#[test]
fn a_clearing_of_a_recharge_follows_the_recharge() {
    check_with_its_recharge(Kind::RechargeClearing);
}

#[test]
fn a_clearing_of_a_refund_follows_the_refund() {
    check_with_its_refund(Kind::RefundClearing);
}

#[test]
fn a_clearing_of_a_returned_refund_follows_the_refund() {
    check_with_its_refund(Kind::ReturnedRefundClearing);
}

#[test]
fn a_chargeback_follows_its_recharge_without_month() {
    check_without_its_month(Kind::Chargeback);
}

#[test]
fn a_reversal_of_a_chargeback_follows_the_recharge_without_month() {
    check_without_its_month(Kind::ChargebackReversal);
}

#[test]
fn a_withdrawal_has_the_user_partition_only() {
    assert_eq!(StorageAddress::of_withdrawal(42), place(0, 42, 99));
    check(
        Kind::Withdrawal,
        [MAIN_JANUARY, FAIL_OVER_JUNE, MAIN_NO_MONTH, FAIL_OVER_NO_MONTH, ATOM].map(|parent| (parent, None)),
    );
}

#[test]
fn an_atom_of_a_withdrawal_has_its_user_partition_only() {
    check(
        Kind::WithdrawalAtom,
        [
            (MAIN_JANUARY, None),
            (FAIL_OVER_JUNE, None),
            (MAIN_NO_MONTH, Some(place(0, 5, 99))),
            (FAIL_OVER_NO_MONTH, None),
            (ATOM, None),
        ],
    );
}

#[test]
fn a_recharge_lies_in_the_month_of_its_date_on_either_side() {
    let date = jiff::civil::date(2016, 12, 31);
    assert_eq!(StorageAddress::of_recharge(date, 7, Side::Main), place(0, 7, 11));
    assert_eq!(StorageAddress::of_recharge(date, 7, Side::FailOver), place(1, 7, 11));
    assert_eq!(
        Kind::Recharge.address_below(&id(MAIN_JANUARY)),
        Err(UnfitParent::FollowsNothing(Kind::Recharge))
    );
}

#[test]
fn captures_cancels_and_refunds_never_fail_over_by_themselves() {
    for (kind, tail) in [(Kind::Capture, "00310005"), (Kind::Cancel, "00310005"), (Kind::Refund, "00319905")]
    {
        let misplacements = kind.audit(&id(tail), Some(&id(MAIN_JANUARY))).unwrap();
        assert_eq!(misplacements, [Misplacement::FailedOverByItself { kind }]);
    }
    // A kind that only follows its parent is on the wrong side for another reason.
    let misplacements = Kind::Chargeback.audit(&id("10319905"), Some(&id(MAIN_JANUARY))).unwrap();
    assert_eq!(misplacements, [Misplacement::Side { expected: Side::Main, found: Side::FailOver }]);
    // A refund in main whose recharge failed over is misplaced, too.
    let misplacements = Kind::Refund.audit(&id("00309942"), Some(&id(FAIL_OVER_JUNE))).unwrap();
    assert_eq!(misplacements, [Misplacement::Side { expected: Side::FailOver, found: Side::Main }]);
}

/// Returns an identifier with the same digits in the United States.
fn in_united_states(id: &FluxId) -> FluxId {
    let parts = crate::flux::id::Parts { region: Region::UnitedStates, ..*id.parts() };
    FluxId::of(parts, parts.system).unwrap()
}

#[test]
fn every_kind_has_the_region_of_its_parent() {
    for (kind, child, parent) in [
        (Kind::Capture, "00200005", MAIN_JANUARY),
        (Kind::Cancel, "00410542", FAIL_OVER_JUNE),
        (Kind::Refund, "00309905", MAIN_JANUARY),
        (Kind::Atom, "10110542", FAIL_OVER_JUNE),
        (Kind::RechargeClearing, "10100005", MAIN_JANUARY),
        (Kind::RefundClearing, "10109905", MAIN_NO_MONTH),
        (Kind::ReturnedRefundClearing, "10119942", FAIL_OVER_NO_MONTH),
        (Kind::Chargeback, "10109905", MAIN_JANUARY),
        (Kind::ChargebackReversal, "10119942", FAIL_OVER_JUNE),
        (Kind::WithdrawalAtom, "10109905", MAIN_NO_MONTH),
    ] {
        let (child, parent) = (id(child), id(parent));
        let (name, abroad) = (kind.name(), in_united_states(&parent));
        assert_eq!(kind.audit(&child, Some(&parent)), Ok(Vec::new()), "{name}");
        let region = Misplacement::Region { expected: Region::UnitedStates, found: Region::Singapore };
        assert_eq!(kind.audit(&child, Some(&abroad)), Ok(vec![region]), "{name}");
        assert!(!kind.is_in_place(&child, Some(&abroad)), "{name}");
        assert!(kind.is_in_place(&in_united_states(&child), Some(&abroad)), "{name}");
        assert_eq!(region.reason(), "region");
        assert_eq!(region.to_string(), "digit 10 (region) is 1; its parent has 0");
    }
}

#[test]
fn an_audit_names_every_digit_that_differs() {
    let misplacements = Kind::Refund.audit(&id("10310006"), Some(&id(MAIN_JANUARY))).unwrap();
    let reasons: Vec<_> = misplacements.iter().map(Misplacement::reason).collect();
    assert_eq!(reasons, ["level", "failed_over_by_itself", "partition", "month"]);
    assert_eq!(misplacements[3].to_string(), "digits 18 to 19 (month) are 00; expected: 99");
}

#[test]
fn a_document_whose_parent_is_not_known_is_compared_with_what_its_kind_alone_says() {
    let reasons = |kind: Kind, tail| {
        let misplacements = kind.audit(&id(tail), None).unwrap();
        misplacements.iter().map(Misplacement::reason).collect::<Vec<_>>()
    };
    assert_eq!(reasons(Kind::Recharge, "00110542"), Vec::<&str>::new());
    assert_eq!(reasons(Kind::Recharge, "00110042"), ["month"]);
    assert_eq!(reasons(Kind::Withdrawal, "00110542"), ["side", "month"]);
    assert_eq!(reasons(Kind::Refund, "00110542"), ["month"]);
    assert_eq!(reasons(Kind::Capture, "00119942"), ["month"]);
    assert_eq!(reasons(Kind::Capture, "00110042"), Vec::<&str>::new());
    assert_eq!(reasons(Kind::Atom, "10119942"), Vec::<&str>::new());
}

#[test]
fn what_a_rule_places_is_never_misplaced_by_it() {
    for kind in Kind::ALL {
        for parent in [MAIN_JANUARY, FAIL_OVER_JUNE, MAIN_NO_MONTH, FAIL_OVER_NO_MONTH] {
            let Ok(StorageAddress { side, partition, month }) = kind.address_below(&id(parent)) else {
                continue;
            };
            let parts =
                crate::flux::id::Parts { side, partition, month, level: kind.level(), ..*id(parent).parts() };
            let child = FluxId::of(parts, parts.system).unwrap();
            assert_eq!(kind.audit(&child, Some(&id(parent))), Ok(Vec::new()), "{}", kind.name());
        }
    }
}

#[test]
fn a_document_is_in_its_place_if_and_only_if_an_audit_finds_no_difference() {
    let all = [MAIN_JANUARY, FAIL_OVER_JUNE, MAIN_NO_MONTH, FAIL_OVER_NO_MONTH, ATOM, "10310006", "10319942"];
    let parents = all.iter().map(Some).chain([None]);
    let mut in_place = 0;
    let abroad = in_united_states(&id(MAIN_JANUARY));
    let parents = parents.map(|parent| parent.map(|parent| id(parent))).chain([Some(abroad)]);
    for (kind, parent) in parents.flat_map(|parent| Kind::ALL.map(|kind| (kind, parent))) {
        for document in all.map(id) {
            let is_in_place = kind.is_in_place(&document, parent.as_ref());
            assert_eq!(is_in_place, kind.audit(&document, parent.as_ref()) == Ok(Vec::new()), "{document}");
            in_place += usize::from(is_in_place);
        }
    }
    assert!(in_place > 20, "{in_place}");
}

#[test]
fn names_of_kinds_are_read_back() {
    for kind in Kind::ALL {
        assert_eq!(Kind::from_name(kind.name()), Some(kind));
    }
    assert_eq!(Kind::from_name("payment"), None);
}
