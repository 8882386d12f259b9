//! The audit of a payment document: whether it lies where its identifier, its kind and its parent say.
//!
//! A [`TablePlace`] holds the digits that a table's name and its source stand for. [`audit`] compares an identifier
//! with these digits, and with the rule of its kind ([`Kind::audit`]). Differences of years come from
//! [`crate::flux::years::Years`]. It reads no row and parses no name.

use std::fmt;

use thiserror::Error;

use crate::flux::id::{FluxId, Level, Month, NO_MONTH, Part, Parts, Region, Side};
use crate::flux::placement::{Kind, Misplacement, UnfitParent};
use crate::flux::years::{Strategy, YearDifference};

/// The digits that the name of a table and its source stand for; `None` = they say nothing about this part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TablePlace {
    /// The number of the database, which is the first digit of the user partition.
    pub database: Option<u8>,
    pub partition: Option<u8>,
    pub month: Option<Month>,
    pub level: Option<Level>,
    pub region: Option<Region>,
    pub side: Option<Side>,
    /// Whether the name has a year digit, and which; `None` = no identifier has one.
    pub strategy: Option<Strategy>,
}

/// One difference between a document's identifier and its table, its source, or the rule of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Oddity {
    /// The user partition begins with another digit than the number of the database.
    #[error("digit 20 (first digit of the user partition) is {found}; expected by its database: {expected}")]
    Database { found: u32, expected: u32 },
    #[error("{}; expected by its table: {}", Found(*part, *found), Digits(*part, *expected))]
    Table { part: Part, found: u32, expected: u32 },
    #[error("{}; expected by its source: {}", Found(*part, *found), Digits(*part, *expected))]
    Source { part: Part, found: u32, expected: u32 },
    /// The identifier breaks the rule of its kind, which mostly derives it from the parent's identifier.
    #[error("against the rule of its kind, {0}")]
    Parent(Misplacement),
    /// No document of this kind can have this parent.
    #[error("against the rule of its kind, {0}")]
    UnfitParent(UnfitParent),
    /// The year digit differs from the table, or from the rule of the document's kind.
    #[error("{0}")]
    Year(YearDifference),
}

impl Oddity {
    /// Returns the `reason` of a count.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Database { .. } => "database",
            Self::Table { part: Part::Partition, .. } => "table_partition",
            Self::Table { part: Part::Month, .. } => "table_month",
            Self::Table { .. } => "table_level",
            Self::Source { part: Part::Region, .. } => "source_region",
            Self::Source { .. } => "source_side",
            Self::Parent(Misplacement::Region { .. }) => "parent_region",
            Self::Parent(Misplacement::Level { .. }) => "parent_level",
            Self::Parent(Misplacement::FailedOverByItself { .. }) => "parent_failed_over_by_itself",
            Self::Parent(Misplacement::Side { .. }) => "parent_side",
            Self::Parent(Misplacement::Partition { .. }) => "parent_partition",
            Self::Parent(Misplacement::Month { .. }) => "parent_month",
            Self::UnfitParent(_) => "parent_unfit",
            Self::Year(difference) => difference.reason(),
        }
    }
}

/// Writes `digit 17 (main or fail-over) is 1 (fail-over)` or `digits 20 to 21 (user partition) are 05`.
struct Found(Part, u32);

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = self.0.digits();
        let verb = if first == last { "is" } else { "are" };
        write!(f, "{} {verb} {}", self.0, Digits(self.0, self.1))
    }
}

/// Writes the digits of a part, with their meaning where it is not the number itself.
struct Digits(Part, u32);

impl fmt::Display for Digits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = self.0.digits();
        let width = last + 1 - first;
        write!(f, "{:0width$}", self.1)?;
        let meaning = match (self.0, self.1) {
            (Part::Region, 0) => "United States",
            (Part::Region, 1) => "Singapore",
            (Part::Level, 0) => Level::Composite.name(),
            (Part::Level, 1) => Level::Atom.name(),
            (Part::Side, 0) => Side::Main.name(),
            (Part::Side, 1) => Side::FailOver.name(),
            (Part::Month, month) if month == u32::from(NO_MONTH) => "no month",
            _ => return Ok(()),
        };
        write!(f, " ({meaning})")
    }
}

/// Returns all differences between a document and its place. Without a kind, only table and source are compared;
/// without a parent, only the parts of the kind's rule that need none. Allocates nothing when there is no difference.
pub fn audit(id: &FluxId, parent: Option<&FluxId>, kind: Option<Kind>, place: &TablePlace) -> Vec<Oddity> {
    let mut odd = Vec::new();
    if !place.holds(id.parts()) {
        differences(id.parts(), place, &mut odd);
    }
    let misplaced = kind.filter(|kind| !kind.is_in_place(id, parent));
    match misplaced.map(|kind| kind.audit(id, parent)) {
        Some(Ok(misplacements)) => odd.extend(misplacements.into_iter().map(Oddity::Parent)),
        Some(Err(unfit)) => odd.push(Oddity::UnfitParent(unfit)),
        None => {}
    }
    odd
}

impl TablePlace {
    /// Returns whether no part differs. Almost every document is where it belongs, so this is what the audit costs.
    fn holds(&self, parts: &Parts) -> bool {
        fn fits<P: PartialEq>(expected: Option<P>, found: P) -> bool {
            expected.is_none_or(|expected| expected == found)
        }
        fits(self.partition, parts.partition)
            & fits(self.month, parts.month)
            & fits(self.database, parts.partition / 10)
            & fits(self.level, parts.level)
            & fits(self.region, parts.region)
            & fits(self.side, parts.side)
    }
}

/// Adds every difference between an identifier and a place.
#[cold]
fn differences(parts: &Parts, place: &TablePlace, odd: &mut Vec<Oddity>) {
    let differs = |(part, found, expected): (Part, u8, Option<u8>)| {
        let expected = expected.filter(|expected| *expected != found)?;
        Some((part, u32::from(found), u32::from(expected)))
    };
    let database = differs((Part::Partition, parts.partition / 10, place.database));
    let of_table = [
        (Part::Partition, parts.partition, place.partition),
        (Part::Month, parts.month.digits(), place.month.map(Month::digits)),
        (Part::Level, parts.level.digit(), place.level.map(Level::digit)),
    ];
    let of_source = [
        (Part::Region, parts.region.digit(), place.region.map(Region::digit)),
        (Part::Side, parts.side.digit(), place.side.map(Side::digit)),
    ];
    odd.extend(database.map(|(_, found, expected)| Oddity::Database { found, expected }));
    let of_table = of_table.into_iter().filter_map(differs);
    odd.extend(of_table.map(|(part, found, expected)| Oddity::Table { part, found, expected }));
    let of_source = of_source.into_iter().filter_map(differs);
    odd.extend(of_source.map(|(part, found, expected)| Oddity::Source { part, found, expected }));
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;
    use crate::flux::id::SYSTEM;
    use crate::flux::placement::StorageAddress;

    const MAIN_JUNE: StorageAddress = StorageAddress { side: Side::Main, partition: 5, month: Month::Of(5) };
    const MAIN_NO_MONTH: StorageAddress = StorageAddress { month: Month::No, ..MAIN_JUNE };

    /// Returns the identifier of a document of June in Singapore.
    fn document(level: Level, at: StorageAddress) -> FluxId {
        let parts = Parts {
            date: date(2016, 6, 6),
            version: 1,
            region: Region::Singapore,
            system: SYSTEM,
            level,
            business: 3,
            side: at.side,
            month: at.month,
            partition: at.partition,
            reserved: 24,
            sequence: 29_904,
        };
        FluxId::of(parts, SYSTEM).unwrap()
    }

    fn reasons(odd: &[Oddity]) -> Vec<&'static str> {
        odd.iter().map(Oddity::reason).collect()
    }

    const RIGHT: TablePlace = TablePlace {
        database: Some(0),
        partition: Some(5),
        month: Some(Month::Of(5)),
        level: Some(Level::Atom),
        region: Some(Region::Singapore),
        side: Some(Side::Main),
        strategy: None,
    };

    #[test]
    fn a_document_in_its_place_and_one_whose_place_is_unknown_are_not_odd() {
        let (id, parent) = (document(Level::Atom, MAIN_JUNE), document(Level::Composite, MAIN_JUNE));
        for place in [RIGHT, TablePlace::default()] {
            for (parent, kind) in [(None, None), (Some(&parent), None), (Some(&parent), Some(Kind::Atom))] {
                let odd = audit(&id, parent, kind, &place);
                assert_eq!((odd.len(), odd.capacity()), (0, 0), "{place:?} {kind:?}");
            }
        }
    }

    #[test]
    fn each_part_of_a_place_is_compared_and_named() {
        let id = document(Level::Atom, MAIN_JUNE);
        for (place, reason, text) in [
            (
                TablePlace { database: Some(3), ..RIGHT },
                "database",
                "digit 20 (first digit of the user partition) is 0; expected by its database: 3",
            ),
            (
                TablePlace { partition: Some(7), ..RIGHT },
                "table_partition",
                "digits 20 to 21 (user partition) are 05; expected by its table: 07",
            ),
            (
                TablePlace { month: Some(Month::No), ..RIGHT },
                "table_month",
                "digits 18 to 19 (month) are 05; expected by its table: 99 (no month)",
            ),
            (
                TablePlace { month: Some(Month::Of(0)), ..RIGHT },
                "table_month",
                "digits 18 to 19 (month) are 05; expected by its table: 00",
            ),
            (
                TablePlace { level: Some(Level::Composite), ..RIGHT },
                "table_level",
                "digit 14 (atom or composite) is 1 (atom); expected by its table: 0 (composite)",
            ),
            (
                TablePlace { region: Some(Region::UnitedStates), ..RIGHT },
                "source_region",
                "digit 10 (region) is 1 (Singapore); expected by its source: 0 (United States)",
            ),
            (
                TablePlace { side: Some(Side::FailOver), ..RIGHT },
                "source_side",
                "digit 17 (main or fail-over) is 0 (main); expected by its source: 1 (fail-over)",
            ),
        ] {
            let odd = audit(&id, None, None, &place);
            assert_eq!(reasons(&odd), [reason]);
            assert_eq!(odd[0].to_string(), text);
        }
    }

    #[test]
    fn every_kind_has_its_rule_and_the_first_broken_part_is_named() {
        let fail_over = |at| StorageAddress { side: Side::FailOver, ..at };
        let next_user = |at: StorageAddress| StorageAddress { partition: at.partition + 1, ..at };
        let in_june = |at| StorageAddress { month: Month::Of(5), ..at };
        let in_july = |at| StorageAddress { month: Month::Of(6), ..at };
        let (june, none) = (MAIN_JUNE, MAIN_NO_MONTH);
        for (kind, parent, right, wrong, reason) in [
            (Kind::Recharge, None, june, in_july(june), "parent_month"),
            (Kind::Capture, Some(june), june, fail_over(june), "parent_failed_over_by_itself"),
            (Kind::Cancel, Some(june), june, next_user(june), "parent_partition"),
            (Kind::Refund, Some(june), none, in_june(none), "parent_month"),
            (Kind::Withdrawal, None, none, fail_over(none), "parent_side"),
            (Kind::Atom, Some(june), june, next_user(june), "parent_partition"),
            (Kind::RechargeClearing, Some(june), june, fail_over(june), "parent_side"),
            (Kind::RefundClearing, Some(none), none, next_user(none), "parent_partition"),
            (Kind::ReturnedRefundClearing, Some(none), none, fail_over(none), "parent_side"),
            (Kind::Chargeback, Some(june), none, in_june(none), "parent_month"),
            (Kind::ChargebackReversal, Some(june), none, in_july(none), "parent_month"),
            (Kind::WithdrawalAtom, Some(none), none, fail_over(none), "parent_side"),
        ] {
            let parent = parent.map(|at| document(Level::Composite, at));
            let audited = |at| {
                let id = document(kind.level(), at);
                reasons(&audit(&id, parent.as_ref(), Some(kind), &TablePlace::default()))
            };
            assert_eq!(audited(right), Vec::<&str>::new(), "{}", kind.name());
            assert_eq!(audited(wrong), [reason], "{}", kind.name());
        }
    }

    #[test]
    fn an_unfit_parent_and_another_level_are_odd_beside_the_table() {
        let refund = document(Level::Composite, MAIN_NO_MONTH);
        let capture = document(Level::Composite, MAIN_JUNE);
        let place = TablePlace { level: Some(Level::Composite), side: Some(Side::FailOver), ..RIGHT };
        let odd = audit(&capture, Some(&refund), Some(Kind::Capture), &place);
        assert_eq!(reasons(&odd), ["source_side", "parent_unfit"]);
        let text = odd[1].to_string();
        assert!(text.starts_with("against the rule of its kind, a capture follows its recharge"), "{text}");
        let atom = document(Level::Atom, MAIN_JUNE);
        let odd = audit(&atom, Some(&capture), Some(Kind::Capture), &RIGHT);
        assert_eq!(reasons(&odd), ["parent_level"]);
    }

    #[test]
    fn a_document_below_a_parent_of_another_region_is_odd_where_its_table_and_source_are_right() {
        let atom = document(Level::Atom, MAIN_JUNE);
        let parent = document(Level::Composite, MAIN_JUNE);
        let abroad = Parts { region: Region::UnitedStates, ..*parent.parts() };
        let abroad = FluxId::of(abroad, SYSTEM).unwrap();
        let odd = audit(&atom, Some(&abroad), Some(Kind::Atom), &RIGHT);
        assert_eq!(reasons(&odd), ["parent_region"]);
        assert_eq!(
            odd[0].to_string(),
            "against the rule of its kind, digit 10 (region) is 1; its parent has 0"
        );
        assert_eq!(audit(&atom, Some(&parent), Some(Kind::Atom), &RIGHT), []);
    }
}
