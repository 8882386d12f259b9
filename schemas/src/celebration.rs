//! The birthdays that a day celebrates, by which calendar, and the occurrence for which a coupon counts.
//!
//! A solar birthday counts for the year of the day on which it is celebrated, a lunar one for the lunar year. A lunar
//! birthday can fall on no day, one day or two days of a solar year, and on one day of each lunar year.

use std::fmt;
use std::str::FromStr;

use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use crate::birthday::{self, MonthDay};
use crate::change::Value;
use crate::lunar::{LUNAR_TABLES, LunarDate, LunarMonthDay};

/// A calendar by which a birthday is celebrated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Calendar {
    Solar,
    Lunar,
}

/// A captured birthday type that names no calendar. The error does not include the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnknownCalendar;

impl Calendar {
    pub const ALL: [Calendar; 2] = [Self::Solar, Self::Lunar];

    /// Reads the calendar that a user celebrates by from the captured `birthday_type`: text `solar` or `lunar` in any
    /// case, blanks around it ignored. NULL, empty text and a column that is not captured mean solar. Callers treat any
    /// other value as solar, too.
    pub fn from_value(value: &Value<'_>) -> Result<Self, UnknownCalendar> {
        let text = match value {
            Value::Null => return Ok(Self::Solar),
            Value::Bytes(text) => text.trim_ascii(),
            _ => return Err(UnknownCalendar),
        };
        let named = |calendar: &Self| text.eq_ignore_ascii_case(calendar.as_str().as_bytes());
        match text {
            [] => Ok(Self::Solar),
            _ => Self::ALL.into_iter().find(named).ok_or(UnknownCalendar),
        }
    }

    /// Returns the number of derived tables of the calendar's birthdays: 366, or 360.
    pub fn tables(self) -> u32 {
        match self {
            Self::Solar => birthday::TABLES,
            Self::Lunar => LUNAR_TABLES,
        }
    }

    /// Returns `solar` or `lunar`, as settings and occurrences write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Solar => "solar",
            Self::Lunar => "lunar",
        }
    }
}

impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The day on which 29 February is celebrated in a year without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeapDayRule {
    Feb28,
    Mar1,
}

/// The year of a calendar that a coupon is for: `solar:2027`, `lunar:2027`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Occurrence {
    pub calendar: Calendar,
    pub year: i16,
}

impl Occurrence {
    /// Returns the occurrence that a day celebrates by a calendar; `None` where the lunar calendar is not known.
    pub fn of(calendar: Calendar, day: Date) -> Option<Self> {
        let year = match calendar {
            Calendar::Solar => day.year(),
            Calendar::Lunar => LunarDate::of(day)?.year,
        };
        Some(Self { calendar, year })
    }
}

impl fmt::Display for Occurrence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:04}", self.calendar, self.year)
    }
}

/// A text that is no occurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an occurrence is `solar:YYYY` or `lunar:YYYY`")]
pub struct NoOccurrence;

impl FromStr for Occurrence {
    type Err = NoOccurrence;

    fn from_str(text: &str) -> Result<Self, NoOccurrence> {
        let (calendar, year) = text.split_once(':').ok_or(NoOccurrence)?;
        let calendar = match calendar {
            "solar" => Calendar::Solar,
            "lunar" => Calendar::Lunar,
            _ => return Err(NoOccurrence),
        };
        let is_year = year.len() == 4 && year.bytes().all(|digit| digit.is_ascii_digit());
        let year = if is_year { year.parse().map_err(|_| NoOccurrence)? } else { return Err(NoOccurrence) };
        Ok(Self { calendar, year })
    }
}

/// A birthday as the derived tables know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Birthday {
    Solar(MonthDay),
    Lunar(LunarMonthDay),
}

impl Birthday {
    pub fn calendar(self) -> Calendar {
        match self {
            Self::Solar(_) => Calendar::Solar,
            Self::Lunar(_) => Calendar::Lunar,
        }
    }

    /// Returns all birthdays of a calendar, in its order.
    pub fn all(calendar: Calendar) -> Vec<Self> {
        match calendar {
            Calendar::Solar => MonthDay::all().map(Self::Solar).collect(),
            Calendar::Lunar => LunarMonthDay::all().map(Self::Lunar).collect(),
        }
    }

    /// Returns the birthday's index among all of its calendar, from 0.
    pub fn ordinal(self) -> u32 {
        match self {
            Self::Solar(day) => day.ordinal(),
            Self::Lunar(day) => day.ordinal(),
        }
    }

    /// Returns the ending of a derived table's name, such as `0229`.
    pub fn compact(self) -> String {
        match self {
            Self::Solar(day) => day.compact(),
            Self::Lunar(day) => day.compact(),
        }
    }

    /// Returns the default name of this birthday's derived table.
    pub fn table(self) -> String {
        match self {
            Self::Solar(day) => format!("birthday_{}", day.compact()),
            Self::Lunar(day) => format!("lunar_birthday_{}", day.compact()),
        }
    }
}

/// Writes `02-29`: the `birthday` column of a derived row.
impl fmt::Display for Birthday {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Solar(day) => day.fmt(f),
            Self::Lunar(day) => day.fmt(f),
        }
    }
}

/// The reason why a day reads a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CelebrationReason {
    /// The birthday is the day.
    TheDayItself,
    /// The birthday is 29 February, which this year does not have.
    NoLeapDayThisYear,
    /// The birthday is day 30 of a lunar month that has 29 days this year.
    NoDay30ThisMonth,
}

impl CelebrationReason {
    /// Returns a clause that follows the table's name.
    pub fn text(self) -> &'static str {
        match self {
            Self::TheDayItself => "the birthday is this day",
            Self::NoLeapDayThisYear => "this year has no 29 February, and the rule celebrates it on this day",
            Self::NoDay30ThisMonth => "this lunar month has no day 30, and it is celebrated on day 29",
        }
    }
}

/// A birthday that is celebrated on a day, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Celebrated {
    pub birthday: Birthday,
    pub reason: CelebrationReason,
}

/// Returns the birthdays that a day celebrates, the solar ones first. Outside of 1901 to 2100 there are no lunar ones.
pub fn celebrated(day: Date, calendars: &[Calendar], leap_day: LeapDayRule) -> Vec<Celebrated> {
    let mut found = Vec::new();
    if calendars.contains(&Calendar::Solar) {
        found.extend(solar(day, leap_day));
    }
    if calendars.contains(&Calendar::Lunar)
        && let Some(lunar) = LunarDate::of(day)
    {
        found.extend(lunar.celebrated().into_iter().enumerate().map(|(index, birthday)| Celebrated {
            birthday: Birthday::Lunar(birthday),
            reason: match index {
                0 => CelebrationReason::TheDayItself,
                _ => CelebrationReason::NoDay30ThisMonth,
            },
        }));
    }
    found
}

fn solar(day: Date, leap_day: LeapDayRule) -> impl Iterator<Item = Celebrated> {
    let birthday = |month, day, reason| {
        MonthDay::new(month, day).map(|day| Celebrated { birthday: Birthday::Solar(day), reason })
    };
    let instead = match leap_day {
        LeapDayRule::Feb28 => (2, 28),
        LeapDayRule::Mar1 => (3, 1),
    };
    let takes_leap_day = !day.in_leap_year() && (day.month(), day.day()) == instead;
    let itself = birthday(day.month() as u8, day.day() as u8, CelebrationReason::TheDayItself);
    let folded = takes_leap_day.then(|| birthday(2, 29, CelebrationReason::NoLeapDayThisYear)).flatten();
    itself.into_iter().chain(folded)
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    const BOTH: [Calendar; 2] = Calendar::ALL;

    #[test]
    fn a_birthday_type_names_a_calendar_and_nothing_means_solar() {
        let read = |text: &'static [u8]| Calendar::from_value(&Value::Bytes(text.into()));
        for (text, calendar) in [
            (&b"lunar"[..], Calendar::Lunar),
            (b"LUNAR  ", Calendar::Lunar),
            (b"solar", Calendar::Solar),
            (b"", Calendar::Solar),
            (b"   ", Calendar::Solar),
        ] {
            assert_eq!(read(text), Ok(calendar));
        }
        assert_eq!(Calendar::from_value(&Value::Null), Ok(Calendar::Solar));
        for text in [&b"lunar2"[..], b"0", b"\xff", "农历".as_bytes()] {
            assert_eq!(read(text), Err(UnknownCalendar));
        }
        assert_eq!(Calendar::from_value(&Value::Int(1)), Err(UnknownCalendar));
    }

    #[test]
    fn each_calendar_has_its_tables_in_order() {
        for calendar in Calendar::ALL {
            let all = Birthday::all(calendar);
            assert_eq!(all.len() as u32, calendar.tables());
            for (ordinal, birthday) in (0..).zip(all) {
                assert_eq!((birthday.ordinal(), birthday.calendar()), (ordinal, calendar), "{birthday}");
                assert!(birthday.table().ends_with(&birthday.compact()));
            }
        }
    }

    fn tables(day: Date, rule: LeapDayRule) -> String {
        let tables = celebrated(day, &BOTH, rule).into_iter().map(|found| found.birthday.table());
        tables.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_day_reads_its_solar_and_its_lunar_table() {
        assert_eq!(tables(date(2027, 2, 6), LeapDayRule::Feb28), "birthday_0206 lunar_birthday_0101");
        assert_eq!(
            tables(date(2025, 1, 28), LeapDayRule::Feb28),
            "birthday_0128 lunar_birthday_1229 lunar_birthday_1230"
        );
    }

    #[test]
    fn february_29_is_celebrated_on_one_day_of_each_year_and_2100_has_none() {
        for (year, rule, expected) in [
            (2028, LeapDayRule::Feb28, date(2028, 2, 29)),
            (2028, LeapDayRule::Mar1, date(2028, 2, 29)),
            (2027, LeapDayRule::Feb28, date(2027, 2, 28)),
            (2027, LeapDayRule::Mar1, date(2027, 3, 1)),
            (2100, LeapDayRule::Feb28, date(2100, 2, 28)),
            (2100, LeapDayRule::Mar1, date(2100, 3, 1)),
        ] {
            let leap_day = Birthday::Solar(MonthDay::new(2, 29).unwrap());
            let year = std::iter::successors(Some(date(year, 1, 1)), |day| day.tomorrow().ok()).take(365);
            let days: Vec<Date> = year
                .filter(|day| celebrated(*day, &BOTH, rule).iter().any(|found| found.birthday == leap_day))
                .collect();
            assert_eq!(days, [expected], "{rule:?}");
        }
    }

    #[test]
    fn a_lunar_birthday_counts_for_its_lunar_year_however_often_it_falls_in_a_solar_one() {
        let occurrences = |calendar, day| Occurrence::of(calendar, day).unwrap().to_string();
        // Lunar 12-01 falls on two days of 2024 and counts for two lunar years.
        assert_eq!(occurrences(Calendar::Lunar, date(2024, 1, 11)), "lunar:2023");
        assert_eq!(occurrences(Calendar::Lunar, date(2024, 12, 31)), "lunar:2024");
        assert_eq!(occurrences(Calendar::Solar, date(2024, 12, 31)), "solar:2024");
        assert_eq!(Occurrence::of(Calendar::Lunar, date(2101, 1, 1)), None);
    }

    #[test]
    fn an_occurrence_reads_back_what_it_writes_and_nothing_else() {
        for text in ["solar:2027", "lunar:1999"] {
            assert_eq!(text.parse::<Occurrence>().unwrap().to_string(), text);
        }
        for text in ["", "2027", "solar:27", "solar:+027", "Solar:2027", "solar:20270", "lunar:"] {
            assert_eq!(text.parse::<Occurrence>(), Err(NoOccurrence), "{text}");
        }
    }
}
