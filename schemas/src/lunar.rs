//! The lunar calendar of China, day by day from 1901 to 2100, and the 360 days of which each has a derived table.
//!
//! The table of months decides. It was taken from the package `sxtwl` 2.0.7 (BSD licence), which computes the moon; a
//! test compares each of the 73,049 days with `icu_calendar`, which follows the standard GB/T 33661-2017. Three new
//! moons fall within seconds of midnight, and other tables put their months one day later ([`DISPUTED`]).

use std::fmt;

use jiff::civil::Date;

use crate::birthday::BirthdayDefect;
use crate::change::Value;

/// Derived tables of lunar birthdays: twelve months of thirty days. The table of a day exists in every year.
pub const LUNAR_TABLES: u32 = 360;
/// Months in which the table and `icu_calendar` differ; the table wins. There are none.
pub const DIFFERENCES: [(Date, Date); 0] = [];
/// First and last day of the months that tables of the Hong Kong Observatory's kind begin one day later.
///
/// Their new moons are forecast within seconds of midnight, and the Earth's future rotation is not known that well.
pub const DISPUTED: [(Date, Date); 3] = [
    (jiff::civil::date(2057, 9, 28), jiff::civil::date(2057, 10, 27)),
    (jiff::civil::date(2089, 9, 4), jiff::civil::date(2089, 10, 3)),
    (jiff::civil::date(2097, 8, 7), jiff::civil::date(2097, 9, 5)),
];

/// First day that the table covers; `LAST_DAY` is the last one.
const FIRST_DAY: Date = jiff::civil::date(1901, 1, 1);
const LAST_DAY: Date = jiff::civil::date(2100, 12, 31);
/// The first day of lunar year 1900, the first year of the table.
const TABLE_BEGINS: Date = jiff::civil::date(1900, 1, 31);
const FIRST_YEAR: i16 = 1900;
const SHORT_MONTH_DAYS: u8 = 29;
const LONG_MONTH_DAYS: u8 = 30;

/// The months of each lunar year: bit `m - 1` is set where month `m` has 30 days; bits 12 to 15 are the month that a
/// leap month of its number follows, or 0; bit 16 is set where that leap month has 30 days.
#[rustfmt::skip]
const YEARS: [u32; 201] = [
    0x08bd2, 0x00752, 0x00ea5, 0x05b2a, 0x0064b, 0x00a9b, 0x14aa6, 0x0056a, 0x00b59, 0x02baa,
    0x00752, 0x06da5, 0x00b25, 0x00a4b, 0x15a4b, 0x002ad, 0x0056b, 0x025b5, 0x00da9, 0x17e92,
    0x00e92, 0x00d25, 0x05d2d, 0x00a56, 0x002b6, 0x14ad5, 0x006d4, 0x00ea9, 0x02f4a, 0x00e92,
    0x066a6, 0x0052b, 0x00a57, 0x15956, 0x00b5a, 0x006d4, 0x13761, 0x00749, 0x17b13, 0x00a93,
    0x0052b, 0x1651b, 0x00aad, 0x0056a, 0x14da5, 0x00ba4, 0x00b49, 0x02d4b, 0x00a95, 0x07aad,
    0x00536, 0x00aad, 0x15aca, 0x005b2, 0x00da5, 0x13ea2, 0x00d4a, 0x08595, 0x00a97, 0x00556,
    0x06575, 0x00ad5, 0x006d2, 0x04755, 0x00ea5, 0x0064a, 0x0364f, 0x00a9b, 0x07ada, 0x0056a,
    0x00b69, 0x05bb2, 0x00b52, 0x00b25, 0x04b2b, 0x00a4b, 0x08aab, 0x002ad, 0x0056d, 0x165a9,
    0x00da9, 0x00d92, 0x04e95, 0x00d25, 0x0ae4d, 0x00a56, 0x002b6, 0x062f5, 0x006d5, 0x00ea9,
    0x05f52, 0x00e92, 0x00d26, 0x0352e, 0x00a57, 0x08ad6, 0x0035a, 0x006d5, 0x05b69, 0x00749,
    0x00693, 0x04a9b, 0x0052b, 0x00a5b, 0x02aae, 0x0056a, 0x07dd5, 0x00ba4, 0x00b49, 0x05d53,
    0x00a95, 0x0052d, 0x0455d, 0x00ab5, 0x09baa, 0x005d2, 0x00da5, 0x16e8a, 0x00d4a, 0x00c95,
    0x04a9e, 0x00556, 0x00ab5, 0x02ada, 0x006d2, 0x06765, 0x00725, 0x0064b, 0x05657, 0x00cab,
    0x0055a, 0x0356e, 0x00b69, 0x0bf52, 0x00b52, 0x00b25, 0x16d0b, 0x00a4b, 0x004ab, 0x052bb,
    0x005ad, 0x00b6a, 0x02daa, 0x00d92, 0x07ea5, 0x00d25, 0x00a55, 0x15a4d, 0x004b6, 0x005b5,
    0x136d2, 0x00ec9, 0x08f92, 0x00e92, 0x00d26, 0x16516, 0x00a57, 0x00556, 0x14365, 0x00755,
    0x00749, 0x0374b, 0x00693, 0x07aab, 0x0052b, 0x00a5b, 0x05aba, 0x0056a, 0x00b65, 0x04baa,
    0x00b4a, 0x08d95, 0x00a95, 0x0052d, 0x0656d, 0x00ab5, 0x005aa, 0x045d5, 0x00da5, 0x00d4a,
    0x03e4d, 0x00c96, 0x07cce, 0x00556, 0x00ab5, 0x15ad2, 0x006d2, 0x00ea5, 0x0472a, 0x0068b,
    0x08697, 0x004ab, 0x0055b, 0x16556, 0x00b6a, 0x00752, 0x04b95, 0x00b45, 0x00a8b, 0x02a4f,
    0x004ab,
];

/// Days from the beginning of the table to the beginning of each of its years.
const YEAR_BEGINS: [i32; YEARS.len()] = year_begins();

const fn year_begins() -> [i32; YEARS.len()] {
    let mut begins = [0; YEARS.len()];
    let mut index = 1;
    while index < YEARS.len() {
        let year = YEARS[index - 1];
        let leap_days = if year >> 12 & 0xf == 0 { 0 } else { 29 + (year >> 16 & 1) };
        let days = 12 * 29 + (year & 0xfff).count_ones() + leap_days;
        begins[index] = begins[index - 1] + days as i32;
        index += 1;
    }
    begins
}

/// A month and a day of the lunar calendar that have a table: month 1 to 12, day 1 to 30.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LunarMonthDay {
    month: u8,
    day: u8,
}

impl LunarMonthDay {
    /// Returns the day of that number, if the calendar has it in some year.
    pub fn new(month: u8, day: u8) -> Option<Self> {
        let is_day = (1..=12).contains(&month) && (1..=LONG_MONTH_DAYS).contains(&day);
        is_day.then_some(Self { month, day })
    }

    /// Reads a captured column: text `MM-DD`. Blanks around it, as a CHAR column may have them, are ignored. A leap
    /// month has the number of the month before it, and the text does not distinguish the two.
    pub fn from_value(value: &Value<'_>) -> Result<Self, BirthdayDefect> {
        let text = match value {
            Value::Null => return Err(BirthdayDefect::Null),
            Value::Bytes(text) => text.trim_ascii(),
            _ => return Err(BirthdayDefect::WrongType),
        };
        let [m1, m2, b'-', d1, d2] = text else {
            return Err(if text.is_empty() { BirthdayDefect::Null } else { BirthdayDefect::Malformed });
        };
        if ![m1, m2, d1, d2].into_iter().all(u8::is_ascii_digit) {
            return Err(BirthdayDefect::Malformed);
        }
        let number = |tens: &u8, ones: &u8| (tens - b'0') * 10 + (ones - b'0');
        let (month, day) = (number(m1, m2), number(d1, d2));
        if month == 0 || day == 0 {
            return Err(BirthdayDefect::Zero);
        }
        Self::new(month, day).ok_or(BirthdayDefect::NotADate)
    }

    /// Returns the day's index: 0 for 01-01 to 359 for 12-30.
    pub fn ordinal(self) -> u32 {
        u32::from(self.month - 1) * u32::from(LONG_MONTH_DAYS) + u32::from(self.day - 1)
    }

    /// Returns all 360 days, in calendar order.
    pub fn all() -> impl Iterator<Item = Self> {
        (1..=12).flat_map(|month| (1..=LONG_MONTH_DAYS).map(move |day| Self { month, day }))
    }

    /// Returns the ending of a derived table's name, such as `1230`.
    pub fn compact(self) -> String {
        format!("{:02}{:02}", self.month, self.day)
    }
}

/// Writes `12-30`: the `birthday` column of a derived row.
impl fmt::Display for LunarMonthDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}-{:02}", self.month, self.day)
    }
}

/// A day of the lunar calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LunarDate {
    /// The Gregorian year in which this lunar year begins.
    pub year: i16,
    /// Month 1 to 12.
    pub month: u8,
    /// Whether this is the second month of its number in this year.
    pub is_leap: bool,
    /// Day 1 to 30.
    pub day: u8,
    /// Days of this month: 29 or 30.
    pub month_days: u8,
}

impl LunarDate {
    /// Returns the lunar day of a Gregorian one; `None` before 1901 and after 2100, where the table ends.
    pub fn of(date: Date) -> Option<Self> {
        if !(FIRST_DAY..=LAST_DAY).contains(&date) {
            return None;
        }
        let days = date.since(TABLE_BEGINS).ok()?.get_days();
        let index = YEAR_BEGINS.partition_point(|begins| *begins <= days).checked_sub(1)?;
        let mut left = days - YEAR_BEGINS[index];
        for (month, is_leap, month_days) in months_of(YEARS[index]) {
            if left < i32::from(month_days) {
                let (day, year) = (u8::try_from(left + 1).ok()?, FIRST_YEAR + i16::try_from(index).ok()?);
                return Some(Self { year, month, is_leap, day, month_days });
            }
            left -= i32::from(month_days);
        }
        None
    }

    /// Returns the birthdays that are celebrated on this day.
    ///
    /// A user who was born in a leap month celebrates in the ordinary month of its number, so a leap month has no day.
    /// A user who was born on day 30 celebrates on day 29 of a month without a day 30.
    pub fn celebrated(self) -> Vec<LunarMonthDay> {
        if self.is_leap {
            return Vec::new();
        }
        let folded = self.day == SHORT_MONTH_DAYS && self.month_days == SHORT_MONTH_DAYS;
        let days = self.day..=(if folded { LONG_MONTH_DAYS } else { self.day });
        days.map(|day| LunarMonthDay { month: self.month, day }).collect()
    }
}

/// Writes `2027-01-30`, or `2025-06-01 (leap month)`.
impl fmt::Display for LunarDate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)?;
        f.write_str(if self.is_leap { " (leap month)" } else { "" })
    }
}

/// Returns number, whether it is a leap month, and days of each month of a year, in order.
fn months_of(year: u32) -> impl Iterator<Item = (u8, bool, u8)> {
    let days = |is_long: bool| if is_long { LONG_MONTH_DAYS } else { SHORT_MONTH_DAYS };
    let leap = (year >> 12 & 0xf) as u8;
    (1..=12u8).flat_map(move |month| {
        let ordinary = (month, false, days(year >> (month - 1) & 1 == 1));
        let second = (month == leap).then(|| (month, true, days(year >> 16 & 1 == 1)));
        std::iter::once(ordinary).chain(second)
    })
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use icu_calendar::cal::ChineseTraditional;
    use icu_calendar::types::YearInfo;
    use jiff::civil::date;

    use super::*;

    fn days() -> impl Iterator<Item = Date> {
        std::iter::successors(Some(FIRST_DAY), |day| day.tomorrow().ok()).take_while(|day| *day <= LAST_DAY)
    }

    /// Returns the standard's date of a day: year, month, whether it is a leap month, day.
    fn standard(day: Date) -> (i32, u8, bool, u8) {
        let iso = icu_calendar::Date::try_new_iso(day.year().into(), day.month() as u8, day.day() as u8);
        let lunar = iso.expect("a day of the calendar").to_calendar(ChineseTraditional::new());
        let YearInfo::Cyclic(year) = lunar.year() else { panic!("a year of the cycle of sixty") };
        let month = lunar.month();
        (year.related_iso, month.number(), month.to_input().is_leap(), lunar.day_of_month().0)
    }

    #[test]
    fn each_day_of_two_centuries_is_that_of_the_standard_but_for_the_listed_differences() {
        let mut differences: Vec<(Date, Date)> = Vec::new();
        for day in days() {
            let table = LunarDate::of(day).expect("a day of the table");
            if (i32::from(table.year), table.month, table.is_leap, table.day) == standard(day) {
                continue;
            }
            match differences.last_mut() {
                Some((_, last)) if last.tomorrow().ok() == Some(day) => *last = day,
                _ => differences.push((day, day)),
            }
        }
        assert_eq!(differences, DIFFERENCES);
        assert_eq!(days().count(), 73_049);
    }

    #[test]
    fn the_disputed_months_are_whole_months_of_the_table() {
        for (first, last) in DISPUTED {
            let (first, last) = (LunarDate::of(first).unwrap(), LunarDate::of(last).unwrap());
            assert_eq!((first.day, last.day), (1, last.month_days), "{first} to {last}");
        }
    }

    #[test]
    fn known_days_have_their_lunar_dates() {
        for (day, expected) in [
            (date(1901, 1, 1), "1900-11-11"),
            (date(2000, 2, 5), "2000-01-01"),
            (date(2023, 3, 22), "2023-02-01 (leap month)"),
            (date(2025, 7, 25), "2025-06-01 (leap month)"),
            (date(2027, 2, 6), "2027-01-01"),
            (date(2033, 12, 22), "2033-11-01 (leap month)"),
            (date(2100, 12, 31), "2100-12-01"),
        ] {
            assert_eq!(LunarDate::of(day).unwrap().to_string(), expected, "{day}");
        }
        assert_eq!([date(1900, 12, 31), date(2101, 1, 1)].map(LunarDate::of), [None, None]);
    }

    #[test]
    fn each_lunar_birthday_is_celebrated_once_in_each_lunar_year() {
        let mut celebrated = std::collections::BTreeMap::new();
        for lunar in days().filter_map(LunarDate::of) {
            for birthday in lunar.celebrated() {
                *celebrated.entry((lunar.year, birthday)).or_insert(0) += 1;
            }
        }
        for year in 1901..=2099 {
            for birthday in LunarMonthDay::all() {
                assert_eq!(celebrated.get(&(year, birthday)), Some(&1), "{birthday} in {year}");
            }
        }
        assert_eq!(LunarMonthDay::all().count() as u32, LUNAR_TABLES);
    }

    #[test]
    fn a_lunar_birthday_is_month_and_day_and_each_defect_is_told_apart() {
        let read = |text: &str| LunarMonthDay::from_value(&Value::Bytes(Cow::Borrowed(text.as_bytes())));
        for (ordinal, day) in (0..).zip(LunarMonthDay::all()) {
            assert_eq!((read(&day.to_string()), day.ordinal()), (Ok(day), ordinal), "{day}");
        }
        assert_eq!(
            read(" 02-30  "),
            Ok(LunarMonthDay::new(2, 30).unwrap()),
            "the solar calendar has no such day"
        );
        for (text, defect) in [
            ("", BirthdayDefect::Null),
            ("     ", BirthdayDefect::Null),
            ("00-00", BirthdayDefect::Zero),
            ("01-00", BirthdayDefect::Zero),
            ("12-31", BirthdayDefect::NotADate),
            ("13-01", BirthdayDefect::NotADate),
            ("1-1", BirthdayDefect::Malformed),
            ("0101", BirthdayDefect::Malformed),
            ("1990-01-01", BirthdayDefect::Malformed),
            ("-1-01", BirthdayDefect::Malformed),
            ("01-01x", BirthdayDefect::Malformed),
            ("+1-01", BirthdayDefect::Malformed),
            ("闰6-1", BirthdayDefect::Malformed),
        ] {
            assert_eq!(read(text), Err(defect), "{text}");
        }
        assert_eq!(LunarMonthDay::from_value(&Value::Null), Err(BirthdayDefect::Null));
        let date = Value::Date { year: 2000, month: 1, day: 1 };
        for other in [date, Value::Int(101), Value::Bytes(Cow::Borrowed(b"\xff\xff-\xff\xff"))] {
            assert!(LunarMonthDay::from_value(&other).is_err(), "{other:?}");
        }
    }

    #[test]
    fn day_30_of_a_short_month_is_celebrated_on_day_29_and_a_leap_month_celebrates_nobody() {
        let birthdays = |day| {
            let celebrated = LunarDate::of(day).unwrap().celebrated();
            celebrated.into_iter().map(LunarMonthDay::compact).collect::<Vec<_>>().join(" ")
        };
        // Month 12 of lunar 2024 has 29 days.
        assert_eq!(birthdays(date(2025, 1, 28)), "1229 1230");
        assert_eq!(birthdays(date(2025, 8, 1)), "");
        assert_eq!(birthdays(date(2025, 6, 25)), "0601");
    }
}
