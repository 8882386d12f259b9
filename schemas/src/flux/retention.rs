//! The age of a month's table: which month its number means, and how long ago that was.
//!
//! A table is named by a month without a year, so its number alone may mean this year or any year before. The date in
//! its newest identifier decides: the number means the last such month that is not after this date. A document that
//! follows a recharge keeps the recharge's month and may be some months younger, which changes nothing. One that is
//! younger by a year or more makes the table look young, so it is never dropped too early.
//!
//! A table by year is named by the last digit of its year, too. So its number means one month in ten years, and it must
//! be empty before this month comes round. A document that is younger than that month by a year or more has a wrong
//! digit, or its chain is a year old. So it leaves the table without an age ([`YearMonth::is_near`]).

use std::fmt;

use jiff::civil::Date;

use crate::flux::id::Month;

/// Months of a year.
const YEAR: i32 = 12;
/// Years after which a year digit comes round.
const ROUND_YEARS: i32 = 10;

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

    /// Returns the last month of a table that has this year digit, if this is the month of an identifier in it. A table
    /// without a month ends with its year's December, which may be still to come.
    pub fn of_year_table(self, year: u8, month: Month) -> Self {
        let round = ROUND_YEARS * YEAR;
        match month {
            Month::Of(month) => {
                let number = i32::from(year) * YEAR + i32::from(month);
                Self(self.0 - (self.0 - number).rem_euclid(round))
            }
            Month::No => {
                let past = (self.year() - i32::from(year)).rem_euclid(ROUND_YEARS);
                Self((self.year() - past) * YEAR + YEAR - 1)
            }
        }
    }

    /// Returns whether a document of this month lies less than a year after the last month of its table. One that lies
    /// further away does not say which year the name means.
    pub fn is_near(self, last: Self) -> bool {
        last.months_until(self) < YEAR
    }

    /// Returns the month in which a table of a year digit, whose last month this is, is used again.
    #[must_use]
    pub fn comes_round(self, month: Month) -> Self {
        let first = match month {
            Month::Of(_) => self.0,
            Month::No => self.0 + 1 - YEAR,
        };
        Self(first + ROUND_YEARS * YEAR)
    }

    pub fn year(self) -> i32 {
        self.0.div_euclid(YEAR)
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
    fn each_month_a_table_by_year_that_is_16_months_old_is_due() {
        let age = |year, month, newest| {
            let last = YearMonth::of(newest).of_year_table(year, month);
            (last.to_string(), last.months_until(YearMonth::of(date(2028, 5, 1))))
        };
        assert_eq!(age(7, Month::Of(0), date(2027, 1, 31)), ("2027-01".to_owned(), 16));
        assert_eq!(age(7, Month::Of(0), date(2028, 4, 2)), ("2027-01".to_owned(), 16), "a late capture");
        assert_eq!(age(6, Month::Of(11), date(2027, 1, 2)), ("2026-12".to_owned(), 17));
        assert_eq!(age(7, Month::Of(0), date(2037, 1, 1)).0, "2037-01", "its year has come round");
    }

    #[test]
    fn kinds_without_a_month_have_year_tables_that_are_as_old_as_their_december() {
        let last = |year, newest| YearMonth::of(newest).of_year_table(year, Month::No).to_string();
        assert_eq!(last(7, date(2027, 2, 1)), "2027-12");
        assert_eq!(last(7, date(2027, 12, 31)), "2027-12");
        assert_eq!(last(7, date(2028, 3, 1)), "2027-12", "a clearing of a refund of the year before");
        assert_eq!(last(8, date(2027, 12, 31)), "2018-12", "the digit of another year: `is_near` says so");
    }

    #[test]
    fn a_document_a_year_after_its_tables_month_does_not_say_the_year_of_the_name() {
        let is_near = |year, month, newest| {
            let newest = YearMonth::of(newest);
            newest.is_near(newest.of_year_table(year, month))
        };
        assert!(is_near(7, Month::Of(0), date(2027, 12, 31)));
        assert!(!is_near(7, Month::Of(0), date(2028, 1, 1)));
        assert!(!is_near(8, Month::Of(11), date(2028, 1, 3)), "a payment of this January, ten years ahead");
        assert!(is_near(7, Month::No, date(2027, 1, 1)) && is_near(7, Month::No, date(2028, 11, 30)));
        assert!(!is_near(8, Month::No, date(2027, 12, 31)));
    }

    #[test]
    fn the_data_comes_round_after_10_years() {
        let of = |year, month, newest| {
            YearMonth::of(newest).of_year_table(year, month).comes_round(month).to_string()
        };
        assert_eq!(of(7, Month::Of(0), date(2027, 1, 5)), "2037-01");
        assert_eq!(of(7, Month::Of(11), date(2028, 2, 5)), "2037-12");
        assert_eq!(of(7, Month::No, date(2027, 6, 5)), "2037-01", "its first month");
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
