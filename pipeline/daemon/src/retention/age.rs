//! The age of a table of payment documents, by the numbers of its name and its newest document.

use anabranch_schemas::flux::audit::TablePlace;
use anabranch_schemas::flux::id::{FluxId, Month};
use anabranch_schemas::flux::retention::YearMonth;
use anabranch_schemas::flux::years::Strategy;
use jiff::civil::Date;

/// The facts in the numbers of a table's name and in its newest document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableState {
    /// The month that the table holds, or the last one of a year's table, and its age in months.
    Month(YearMonth, i32),
    /// The name has no month, or 99: no month ends the table.
    NoMonth,
    Empty,
    /// The greatest key is no identifier, so nothing says how old the table is.
    Odd,
    /// The newest document, of the first month, is a year or more younger than the second one, which the name means.
    TooNew(YearMonth, YearMonth),
}

impl TableState {
    /// Returns the month of the table if it is `months` months old; otherwise why it is not due.
    pub fn due(self, months: u32) -> Result<YearMonth, String> {
        match self {
            Self::Month(month, age) if age >= i32::try_from(months).unwrap_or(i32::MAX) => Ok(month),
            Self::Month(month, age) if age < 0 => Err(format!("it is not due: its year ends with {month}")),
            Self::Month(month, age) => {
                Err(format!("it is not due: its newest document is of {month}'s table, {age} months old"))
            }
            Self::NoMonth => {
                Err("it is never due by a month: its name has none, so rows of it go one by one".to_owned())
            }
            Self::Empty => Err("it is not due: it is empty".to_owned()),
            Self::Odd => {
                Err("it is not known to be due: its greatest key is no identifier with a date".to_owned())
            }
            Self::TooNew(newest, month) => Err(format!(
                "it is not known to be due: its newest document is of {newest}, and its name means {month}"
            )),
        }
    }
}

/// Returns the age of a table of this place on this day, by its greatest key.
pub fn state(place: &TablePlace, greatest: Option<&[u8]>, system: u16, today: Date) -> TableState {
    let of_table = |newest: YearMonth| match (place.strategy, place.month) {
        (Some(Strategy::Year(year)), month) => Some(newest.of_year_table(year, month.unwrap_or(Month::No))),
        (_, Some(Month::Of(number))) => Some(newest.of_table(number)),
        (_, Some(Month::No) | None) => None,
    };
    if of_table(YearMonth::of(today)).is_none() {
        return TableState::NoMonth;
    }
    let Some(greatest) = greatest else { return TableState::Empty };
    let newest = FluxId::parse_of(greatest, system).ok().map(|newest| YearMonth::of(newest.parts().date));
    match newest.and_then(|newest| Some((newest, of_table(newest)?))) {
        Some((newest, month)) if !newest.is_near(month) => TableState::TooNew(newest, month),
        Some((_, month)) => TableState::Month(month, month.months_until(YearMonth::of(today))),
        None => TableState::Odd,
    }
}
