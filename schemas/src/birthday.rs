//! Birthdays: from a captured column to a month and day, and from there to a derived table.
//!
//! A birthday that is NULL or not a calendar date goes into no table; the reason is counted. February 29 has its own
//! table; on which day it is celebrated in a common year is the dispatcher's question, not this module's.

use std::fmt;

use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use crate::change::Value;

/// A month and day that exist in some year (so 02-29 too).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MonthDay {
    month: u8,
    day: u8,
}

/// The reason why a birthday is in no table. The value itself is personal and is not part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BirthdayDefect {
    /// The value is NULL or empty text.
    Null,
    /// The value is `0000-00-00`, or has a month or day of zero; for a lunar birthday it is `00-00`.
    Zero,
    /// The year is 0: MySQL's "year unknown", not a calendar year.
    YearZero,
    /// The date never occurs in its calendar: solar `02-30`, `2023-02-29`, lunar `01-31`, month 13.
    NotADate,
    /// The text is not `YYYY-MM-DD` (a time of day may follow); for a lunar birthday it is not `MM-DD`.
    Malformed,
    /// The column type holds no date.
    WrongType,
}

impl BirthdayDefect {
    pub const ALL: [BirthdayDefect; 6] =
        [Self::Null, Self::Zero, Self::YearZero, Self::NotADate, Self::Malformed, Self::WrongType];

    /// Returns the `reason` label of the metric.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Zero => "zero",
            Self::YearZero => "year_zero",
            Self::NotADate => "not_a_date",
            Self::Malformed => "malformed",
            Self::WrongType => "wrong_type",
        }
    }
}

/// Days of the year with a table: 366.
pub const TABLES: u32 = 366;
/// A leap year: its days are the tables, in order.
const LEAP_YEAR: i16 = 2000;

impl MonthDay {
    pub fn new(month: u8, day: u8) -> Option<Self> {
        Date::new(LEAP_YEAR, i8::try_from(month).ok()?, i8::try_from(day).ok()?).ok()?;
        Some(Self { month, day })
    }

    /// Reads a captured column: DATE, DATETIME (its time is ignored) or text `YYYY-MM-DD`.
    pub fn from_value(value: &Value<'_>) -> Result<Self, BirthdayDefect> {
        match value {
            Value::Null => Err(BirthdayDefect::Null),
            Value::Date { year, month, day } | Value::DateTime { year, month, day, .. } => {
                Self::from_parts(*year, *month, *day)
            }
            Value::Bytes(text) => Self::from_text(text),
            _ => Err(BirthdayDefect::WrongType),
        }
    }

    fn from_parts(year: u16, month: u8, day: u8) -> Result<Self, BirthdayDefect> {
        if month == 0 || day == 0 {
            return Err(BirthdayDefect::Zero);
        }
        if year == 0 {
            return Err(BirthdayDefect::YearZero);
        }
        let parts = (i16::try_from(year), i8::try_from(month), i8::try_from(day));
        let (Ok(year), Ok(m), Ok(d)) = parts else { return Err(BirthdayDefect::NotADate) };
        Date::new(year, m, d).map_err(|_| BirthdayDefect::NotADate)?;
        Ok(Self { month, day })
    }

    /// Reads `YYYY-MM-DD`, also followed by a blank or `T` and a time. Trailing blanks of a CHAR column are ignored.
    fn from_text(text: &[u8]) -> Result<Self, BirthdayDefect> {
        let text = text.trim_ascii();
        if text.is_empty() {
            return Err(BirthdayDefect::Null);
        }
        let date = match text.get(10) {
            None => text,
            Some(b' ' | b'T') => &text[..10],
            Some(_) => return Err(BirthdayDefect::Malformed),
        };
        let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2] = date else {
            return Err(BirthdayDefect::Malformed);
        };
        let number = |digits: &[u8]| {
            digits
                .iter()
                .try_fold(0u16, |n, digit| digit.is_ascii_digit().then(|| n * 10 + u16::from(digit - b'0')))
        };
        match (number(&[*y1, *y2, *y3, *y4]), number(&[*m1, *m2]), number(&[*d1, *d2])) {
            (Some(year), Some(month), Some(day)) => Self::from_parts(year, month as u8, day as u8),
            _ => Err(BirthdayDefect::Malformed),
        }
    }

    /// Returns the day's index: 0 for 01-01 to 365 for 12-31; 59 is 02-29.
    pub fn ordinal(self) -> u32 {
        let date = Date::new(LEAP_YEAR, self.month as i8, self.day as i8).expect("checked when it was made");
        u32::from(date.day_of_year().unsigned_abs()) - 1
    }

    /// Returns all 366 days, in calendar order.
    pub fn all() -> impl Iterator<Item = Self> {
        (1..=12).flat_map(|month| (1..=31).filter_map(move |day| Self::new(month, day)))
    }

    /// Returns the ending of a derived table's name, such as `0229`.
    pub fn compact(self) -> String {
        format!("{:02}{:02}", self.month, self.day)
    }
}

/// Writes `02-29`: the `birthday` column of a derived row.
impl fmt::Display for MonthDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}-{:02}", self.month, self.day)
    }
}

/// The spread of the tables of a calendar's days over the databases of the birthday layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// Each table exists once, and the databases share the tables, as the source document writes it. One day lies in
    /// one database.
    ByDay,
    /// Each database has all tables; a user's database is `user_id % databases`. All databases share one day.
    ByUser,
}

impl Layout {
    /// Returns the number of the database with a user's row for the day of that ordinal.
    pub fn database(self, databases: u32, user_id: u64, ordinal: u32) -> u32 {
        let databases = databases.max(1);
        match self {
            Layout::ByDay => ordinal % databases,
            Layout::ByUser => (user_id % u64::from(databases)) as u32,
        }
    }

    /// Returns whether that database holds a table for the day of that ordinal.
    pub fn has_table(self, databases: u32, database: u32, ordinal: u32) -> bool {
        match self {
            Layout::ByDay => self.database(databases, 0, ordinal) == database,
            Layout::ByUser => database < databases.max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use proptest::prelude::*;

    use super::*;

    fn text(text: &str) -> Result<String, BirthdayDefect> {
        MonthDay::from_value(&Value::Bytes(Cow::Borrowed(text.as_bytes()))).map(|day| day.to_string())
    }

    #[test]
    fn there_are_366_days_and_their_ordinals_count_them() {
        let all: Vec<_> = MonthDay::all().collect();
        assert_eq!(all.len() as u32, TABLES);
        for (index, day) in all.iter().enumerate() {
            assert_eq!(day.ordinal() as usize, index, "{day}");
        }
        assert_eq!(all[59].to_string(), "02-29");
    }

    #[test]
    fn february_29_and_30_differ() {
        assert_eq!(text("2000-02-29"), Ok("02-29".into()));
        assert_eq!(text("2000-02-30"), Err(BirthdayDefect::NotADate));
        assert_eq!(text("2023-02-29"), Err(BirthdayDefect::NotADate));
        assert_eq!(text("1900-02-29"), Err(BirthdayDefect::NotADate));
    }

    #[test]
    fn each_defect_is_told_apart() {
        for (input, defect) in [
            ("", BirthdayDefect::Null),
            ("   ", BirthdayDefect::Null),
            ("0000-00-00", BirthdayDefect::Zero),
            ("1990-00-10", BirthdayDefect::Zero),
            ("0000-05-04", BirthdayDefect::YearZero),
            ("1990-13-01", BirthdayDefect::NotADate),
            ("1990-1-1", BirthdayDefect::Malformed),
            ("1990-01-011", BirthdayDefect::Malformed),
            ("١٩٩٠-٠١-٠١", BirthdayDefect::Malformed),
            ("19x0-01-01", BirthdayDefect::Malformed),
        ] {
            assert_eq!(text(input), Err(defect), "{input}");
        }
        assert_eq!(MonthDay::from_value(&Value::Null), Err(BirthdayDefect::Null));
        assert_eq!(MonthDay::from_value(&Value::Int(19_900_101)), Err(BirthdayDefect::WrongType));
    }

    #[test]
    fn date_datetime_and_text_mean_the_same_day() {
        let date = Value::Date { year: 1990, month: 12, day: 31 };
        let datetime = Value::DateTime {
            year: 1990,
            month: 12,
            day: 31,
            hour: 23,
            minute: 59,
            second: 59,
            microsecond: 1,
        };
        for value in [date, datetime] {
            assert_eq!(MonthDay::from_value(&value).map(|day| day.compact()), Ok("1231".into()));
        }
        for input in ["1990-12-31", "1990-12-31 23:59:59", "1990-12-31T00:00:00Z", "1990-12-31   "] {
            assert_eq!(text(input), Ok("12-31".into()), "{input}");
        }
    }

    #[test]
    fn by_day_gives_each_database_3_or_4_tables_of_100_and_by_user_gives_all() {
        for database in 0..100 {
            let tables = (0..TABLES).filter(|day| Layout::ByDay.has_table(100, database, *day)).count();
            assert!((3..=4).contains(&tables), "{tables}");
            assert!((0..TABLES).all(|day| Layout::ByUser.has_table(100, database, day)));
        }
    }

    proptest! {
        #[test]
        fn a_row_lies_where_its_table_is(user_id: u64, ordinal in 0..TABLES, databases in 1..120u32) {
            for layout in [Layout::ByDay, Layout::ByUser] {
                let database = layout.database(databases, user_id, ordinal);
                prop_assert!(database < databases && layout.has_table(databases, database, ordinal));
            }
        }

        #[test]
        fn any_bytes_are_a_day_or_a_defect(bytes: Vec<u8>) {
            let _ = MonthDay::from_value(&Value::Bytes(Cow::Owned(bytes)));
        }

        #[test]
        fn every_calendar_date_is_accepted(year in 1..=9999i16, month in 1..=12i8, day in 1..=31i8) {
            let real = jiff::civil::Date::new(year, month, day).is_ok();
            prop_assert_eq!(text(&format!("{year:04}-{month:02}-{day:02}")).is_ok(), real);
        }
    }
}
