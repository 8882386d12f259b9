//! The strategy by year: a reserved digit of an identifier is the last digit of a year, and names its table.
//!
//! A cut-over date or a data version separates identifiers with a year digit from those without one, and both live side
//! by side: [`Years::strategy`] says which rule an identifier follows. A document that stands with its parent has the
//! year of the parent's table, so both leave together. Kinds without a month have the year of their own date. The digit
//! comes round after ten years; `retention.rs` says when a table must be empty.

use std::fmt;

use jiff::civil::Date;
use thiserror::Error;

use crate::flux::id::{FluxId, Month, Part};
use crate::flux::placement::Kind;
use crate::flux::retention::YearMonth;

/// Years that one digit distinguishes.
pub const YEARS: u8 = 10;

/// The reserved digit that holds the year.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum YearDigit {
    /// The first reserved digit, which is digit 22.
    #[default]
    First,
    /// The second reserved digit, which is digit 23.
    Second,
}

/// The rule that separates identifiers with a year digit from those without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CutOver {
    /// Identifiers of this date and of later ones have a year digit.
    Date(Date),
    /// Identifiers of this data version have a year digit.
    Version(u8),
}

/// The rule by which an identifier, or the name of a table, says when its documents leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// The month alone, whatever the year.
    Month,
    /// The month, and the last digit of a year.
    Year(u8),
}

/// The strategy by year as an installation uses it, beside the one by month.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Years {
    pub cut_over: CutOver,
    pub digit: YearDigit,
}

/// One difference between the year of an identifier and its table, or the rule of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum YearDifference {
    #[error("digit {place} (year, one of the reserved digits) is {found}; expected by its table: {expected}")]
    Table { place: usize, found: u8, expected: u8 },
    /// One of identifier and table has a year, and the other has none.
    #[error("it is placed {found}; expected by its table: {expected}")]
    Strategy { found: Strategy, expected: Strategy },
    #[error(
        "against the rule of its kind, digit {place} (year, one of the reserved digits) is {found}; expected: {expected}"
    )]
    Parent { place: usize, found: u8, expected: u8 },
    /// A document that stands with its parent has no year digit, and the parent has one.
    #[error("against the rule of its kind, it is placed by month; expected: {expected}, as its parent")]
    ParentStrategy { expected: Strategy },
}

impl YearDigit {
    /// Returns the reserved digit at a place of the identifier, counted from 1; `None` for any other place.
    pub fn at(place: u8) -> Option<Self> {
        [Self::First, Self::Second].into_iter().find(|digit| digit.place() == usize::from(place))
    }

    /// Returns the place of the digit in an identifier, counted from 1.
    pub fn place(self) -> usize {
        let (first, second) = Part::Reserved.digits();
        match self {
            Self::First => first,
            Self::Second => second,
        }
    }

    fn of(self, reserved: u8) -> u8 {
        match self {
            Self::First => reserved / 10,
            Self::Second => reserved % 10,
        }
    }

    /// Returns the reserved digits with another year.
    fn put(self, reserved: u8, year: u8) -> u8 {
        match self {
            Self::First => year * 10 + reserved % 10,
            Self::Second => reserved / 10 * 10 + year,
        }
    }
}

impl Strategy {
    pub fn name(self) -> &'static str {
        match self {
            Self::Month => "month",
            Self::Year(_) => "year",
        }
    }

    /// Returns the last digit of the year; `None` = the month alone is the rule.
    pub fn year(self) -> Option<u8> {
        match self {
            Self::Month => None,
            Self::Year(year) => Some(year),
        }
    }
}

/// Writes `by month` or `by year 7`.
impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Month => f.write_str("by month"),
            Self::Year(year) => write!(f, "by year {year}"),
        }
    }
}

impl YearDifference {
    /// Returns the `reason` of a count.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Table { .. } => "table_year",
            Self::Strategy { .. } => "table_strategy",
            Self::Parent { .. } => "parent_year",
            Self::ParentStrategy { .. } => "parent_strategy",
        }
    }
}

impl Years {
    /// Returns whether identifiers of this data version and date have a year digit.
    pub fn covers(&self, version: u8, date: Date) -> bool {
        match self.cut_over {
            CutOver::Date(first) => date >= first,
            CutOver::Version(known) => version == known,
        }
    }

    /// Returns the rule that an identifier follows.
    pub fn strategy(&self, id: &FluxId) -> Strategy {
        let parts = id.parts();
        match self.covers(parts.version, parts.date) {
            true => Strategy::Year(self.digit.of(parts.reserved)),
            false => Strategy::Month,
        }
    }

    /// Returns the year digit that the rule of a kind demands; `None` = the parent decides it and is not known.
    pub fn year_of_kind(&self, kind: Kind, date: Date, parent: Option<&FluxId>) -> Option<u8> {
        match stands_with_parent(kind) {
            true => parent.map(|parent| self.year_of_place(parent)),
            false => Some(last_digit(YearMonth::of(date))),
        }
    }

    /// Returns a new identifier with its year digit, which replaces the caller's reserved digit at that place. One that
    /// follows the strategy by month is returned as it is.
    #[must_use]
    pub fn with_year(&self, id: FluxId, kind: Kind, parent: Option<&FluxId>) -> FluxId {
        let parts = id.parts();
        let year = self.year_of_kind(kind, parts.date, parent);
        let year = year.filter(|_| self.covers(parts.version, parts.date));
        year.and_then(|year| id.with_reserved(self.digit.put(parts.reserved, year))).unwrap_or(id)
    }

    /// Returns the identifier with 0 in place of its year digit.
    #[must_use]
    pub fn without_year(&self, id: FluxId) -> FluxId {
        match self.strategy(&id) {
            Strategy::Month => id,
            Strategy::Year(_) => id.with_reserved(self.digit.put(id.parts().reserved, 0)).unwrap_or(id),
        }
    }

    /// Returns the differences between an identifier's year and its table, and between the year and the rule of its
    /// kind. Without a kind only the table is compared; a parent that the kind cannot have decides nothing.
    pub fn differences(
        &self,
        id: &FluxId,
        parent: Option<&FluxId>,
        kind: Option<Kind>,
        table: Option<Strategy>,
    ) -> [Option<YearDifference>; 2] {
        let (found, place) = (self.strategy(id), self.digit.place());
        let of_table = match (found, table) {
            (found, Some(expected)) if found == expected => None,
            (Strategy::Year(found), Some(Strategy::Year(expected))) => {
                Some(YearDifference::Table { place, found, expected })
            }
            (found, Some(expected)) => Some(YearDifference::Strategy { found, expected }),
            (_, None) => None,
        };
        [of_table, kind.and_then(|kind| self.difference_of_kind(id, parent, kind, found))]
    }

    fn difference_of_kind(
        &self,
        id: &FluxId,
        parent: Option<&FluxId>,
        kind: Kind,
        found: Strategy,
    ) -> Option<YearDifference> {
        let parent = parent.filter(|parent| kind.address_below(parent).is_ok());
        match found {
            Strategy::Year(found) => {
                let expected = self.year_of_kind(kind, id.parts().date, parent)?;
                let place = self.digit.place();
                (found != expected).then_some(YearDifference::Parent { place, found, expected })
            }
            Strategy::Month => {
                let expected = self.strategy(parent.filter(|_| stands_with_parent(kind))?);
                (expected != found).then_some(YearDifference::ParentStrategy { expected })
            }
        }
    }

    /// Returns the year digit of the table where a document stands. Without one it is the year of its month's table, or
    /// of its date if it has no month.
    fn year_of_place(&self, id: &FluxId) -> u8 {
        let (parts, own) = (id.parts(), YearMonth::of(id.parts().date));
        match (self.strategy(id), parts.month) {
            (Strategy::Year(year), _) => year,
            (Strategy::Month, Month::Of(month)) => last_digit(own.of_table(month)),
            (Strategy::Month, Month::No) => last_digit(own),
        }
    }
}

/// Returns whether documents of a kind lie in the year of their parent. Refunds and chargebacks come up to two years
/// after their recharge, so they have the year of their own date.
fn stands_with_parent(kind: Kind) -> bool {
    match kind {
        Kind::Recharge | Kind::Withdrawal | Kind::Refund | Kind::Chargeback | Kind::ChargebackReversal => {
            false
        }
        Kind::Capture
        | Kind::Cancel
        | Kind::Atom
        | Kind::RechargeClearing
        | Kind::RefundClearing
        | Kind::ReturnedRefundClearing
        | Kind::WithdrawalAtom => true,
    }
}

/// Returns the last digit of a month's year.
fn last_digit(month: YearMonth) -> u8 {
    // The remainder of a division by ten fits.
    month.year().rem_euclid(i32::from(YEARS)) as u8
}

#[cfg(test)]
mod tests;
