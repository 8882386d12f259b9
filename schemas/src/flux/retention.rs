//! The age of a month's table: which month its number means, and how long ago that was.
//!
//! A table is named by a month without a year, so its number alone may mean this year or any year before. The date in
//! its newest identifier decides: the number means the last such month that is not after this date. A document that
//! follows a recharge keeps the recharge's month and may be some months younger, which changes nothing. One that is
//! younger by a year or more makes the table look young, so it is never dropped too early.

use std::fmt;

use jiff::civil::Date;

/// Months of a year.
const YEAR: i32 = 12;

/// A month of a year, counted from the first month of the year 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct YearMonth(i32);

impl YearMonth {
    /// Returns the month of a date.
    pub fn of(date: Date) -> Self {
        Self(i32::from(date.year()) * YEAR + i32::from(date.month()) - 1)
    }

    /// Returns the month that a table with this number (0 is January) means, if this is the month of its newest
    /// identifier.
    pub fn of_table(self, number: u8) -> Self {
        Self(self.0 - (self.0 - i32::from(number)).rem_euclid(YEAR))
    }

    /// Returns the months from this one to another, negative if the other one is earlier.
    pub fn months_until(self, other: Self) -> i32 {
        other.0 - self.0
    }

    /// Returns the month that lies so many months before.
    #[must_use]
    pub fn before(self, months: u32) -> Self {
        Self(self.0.saturating_sub_unsigned(months))
    }

    /// Returns the text with which identifiers of this month and later ones begin, or are greater than: `YYYYMM`.
    pub fn digits(self) -> String {
        format!("{:04}{:02}", self.0.div_euclid(YEAR).max(0), self.0.rem_euclid(YEAR) + 1)
    }
}

/// Writes `2016-01`.
impl fmt::Display for YearMonth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}", self.0.div_euclid(YEAR), self.0.rem_euclid(YEAR) + 1)
    }
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    /// The age of January's table on the first of May 2017.
    fn age(number: u8, newest: Date) -> (String, i32) {
        let month = YearMonth::of(newest).of_table(number);
        (month.to_string(), month.months_until(YearMonth::of(date(2017, 5, 1))))
    }

    #[test]
    fn a_table_is_as_old_as_the_last_month_of_its_number_before_its_newest_identifier() {
        assert_eq!(age(0, date(2016, 1, 31)), ("2016-01".to_owned(), 16));
        assert_eq!(
            age(0, date(2016, 3, 2)),
            ("2016-01".to_owned(), 16),
            "a capture of March, of January's recharge"
        );
        assert_eq!(age(0, date(2016, 12, 31)), ("2016-01".to_owned(), 16));
        assert_eq!(age(0, date(2017, 1, 1)), ("2017-01".to_owned(), 4), "the month has come round");
        assert_eq!(age(11, date(2016, 1, 1)), ("2015-12".to_owned(), 17));
        assert_eq!(age(5, date(2017, 5, 1)), ("2016-06".to_owned(), 11));
        assert_eq!(age(4, date(2017, 5, 1)), ("2017-05".to_owned(), 0));
    }

    #[test]
    fn months_before_one_cross_years() {
        let may = YearMonth::of(date(2017, 5, 20));
        assert_eq!(may.before(24).to_string(), "2015-05");
        assert_eq!(
            (may.before(5).digits(), may.before(5).to_string()),
            ("201612".to_owned(), "2016-12".to_owned())
        );
        assert_eq!(may.before(0), may);
    }
}
