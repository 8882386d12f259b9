//! Lunar birthdays of a day, by the calendar that Unicode keeps.
//!
//! The product has a table of its own. So a coupon day that is verified compares the two for its date.

use icu_calendar::cal::ChineseTraditional;
use jiff::civil::Date;

/// Number of the last day that a lunar birthday can have.
const LAST_DAY: u8 = 30;

/// The lunar birthdays (`MM-DD`) that a day celebrates, and the lunar year for which their coupons count.
///
/// A leap month celebrates none. The last day of a month of 29 days celebrates day 30, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LunarBirthdays {
    pub(crate) birthdays: Vec<String>,
    pub(crate) year: i32,
}

impl LunarBirthdays {
    pub(crate) fn of(day: Date) -> Self {
        let iso = icu_calendar::Date::try_new_iso(day.year().into(), day.month() as u8, day.day() as u8)
            .expect("both calendars have the same days");
        let lunar = iso.to_calendar(ChineseTraditional::new());
        let (month, today) = (lunar.month(), lunar.day_of_month().0);
        let is_last = today == lunar.days_in_month();
        let last = if is_last { LAST_DAY } else { today };
        let birthday = |day: u8| format!("{:02}-{day:02}", month.number());
        let birthdays = match month.to_input().is_leap() {
            true => Vec::new(),
            false => (today..=last).map(birthday).collect(),
        };
        Self { birthdays, year: lunar.year().extended_year() }
    }
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    #[test]
    fn short_months_celebrate_day_30_on_their_last_day_and_leap_months_nothing() {
        for (day, birthdays, year) in [
            (date(2027, 2, 6), &["01-01"][..], 2027),
            (date(2025, 1, 28), &["12-29", "12-30"], 2024),
            (date(2024, 1, 11), &["12-01"], 2023),
            (date(2025, 7, 25), &[], 2025),
        ] {
            let found = LunarBirthdays::of(day);
            assert_eq!(
                (found.birthdays.iter().map(String::as_str).collect::<Vec<_>>(), found.year),
                (birthdays.to_vec(), year),
                "{day}"
            );
        }
    }
}
