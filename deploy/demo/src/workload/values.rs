//! Random values of users as SQL literals: names, birthdays of every kind, addresses.
//!
//! Strings are written as hexadecimal, so any bytes pass through the text protocol unchanged.

use rand::rngs::StdRng;
use rand::{Rng, RngExt};

use super::transaction::literal;
use crate::topology::BirthdayType;

/// The meaning of a generated birthday.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BirthdayKind {
    Valid,
    Null,
    Invalid,
}

/// Dates that MariaDB stores with ALLOW_INVALID_DATES and that belong in no derived table.
const INVALID_DATES: [&str; 8] = [
    "0000-00-00",
    "2023-02-30",
    "2023-02-29",
    "1900-02-29",
    "0000-05-04",
    "1990-00-10",
    "1990-04-00",
    "2021-11-31",
];

/// Texts that belong in no derived table.
const INVALID_TEXTS: [&str; 22] = [
    "",
    "   ",
    "unknown",
    "1990-5-4",
    "04.05.1990",
    "19900504",
    "1990/05/04",
    "1990-13-01",
    "1990-00-01",
    "1990-01-00",
    "1990-02-30",
    "2023-02-29",
    "1900-02-29",
    "0000-00-00",
    "0000-05-04",
    "1990-05-041",
    "1990-05-04t10:00:00",
    "1990-05-04\u{b}",
    "19x0-05-04",
    "1990-05-04\0",
    "١٩٩٠-٠٥-٠٤",
    "1990\u{2011}05\u{2011}04",
];

/// Names that break code which quotes or measures text badly; most of them get a number as suffix.
const ODD_NAMES: [&str; 12] = [
    "😀👩‍👩‍👧",
    "O'Brien",
    "\"quoted\"",
    "back\\slash\\",
    "nul\0nul",
    "line\nbreak\r\t",
    "%_like_%",
    "`tick`; DROP TABLE user; --",
    "张伟",
    "مُحَمَّد",
    "e\u{301}\u{200b}\u{feff}",
    "  blanks  ",
];

const DAYS_OF_MONTH: [u32; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

/// Returns a user name, and whether it is an odd one. Names need not be unique.
pub fn name(random: &mut StdRng) -> (String, bool) {
    if !random.random_bool(0.03) {
        return (format!("user-{:012x}", random.next_u64() >> 16), false);
    }
    let odd = ODD_NAMES[random.random_range(0..ODD_NAMES.len())];
    let name = match random.random_range(0..20) {
        0 => String::new(),
        // This is the longest that the column holds: 128 characters, 512 bytes.
        1 => "\u{1F382}".repeat(128),
        _ => format!("{odd}{}", random.random_range(0..1_000_000)),
    };
    (name, true)
}

/// Returns a birthday of the wanted kind as a SQL literal for that column type.
pub fn birthday(random: &mut StdRng, kind: BirthdayKind, column: BirthdayType) -> String {
    match (kind, column) {
        (BirthdayKind::Null, _) => "NULL".to_owned(),
        (BirthdayKind::Invalid, BirthdayType::Text) => {
            literal(INVALID_TEXTS[random.random_range(0..INVALID_TEXTS.len())])
        }
        (BirthdayKind::Invalid, BirthdayType::Date) => {
            format!("'{}'", INVALID_DATES[random.random_range(0..INVALID_DATES.len())])
        }
        (BirthdayKind::Invalid, _) => {
            format!("'{} 00:00:00'", INVALID_DATES[random.random_range(0..INVALID_DATES.len())])
        }
        (BirthdayKind::Valid, BirthdayType::Date) => format!("'{}'", date(random)),
        (BirthdayKind::Valid, BirthdayType::DateTime) => format!("'{} {}'", date(random), time(random)),
        (BirthdayKind::Valid, BirthdayType::DateTimeMicroseconds) => {
            format!("'{} {}.{:06}'", date(random), time(random), random.random_range(0..1_000_000))
        }
        (BirthdayKind::Valid, BirthdayType::Text) => literal(&valid_text(random)),
    }
}

/// Draws a kind in the proportion that new users have.
pub fn birthday_kind(random: &mut StdRng) -> BirthdayKind {
    match random.random_range(0..100) {
        0..3 => BirthdayKind::Null,
        3..6 => BirthdayKind::Invalid,
        _ => BirthdayKind::Valid,
    }
}

/// Returns a day of 1900 to 2023, with more of 02-29 and 01-01 than chance gives.
fn date(random: &mut StdRng) -> String {
    match random.random_range(0..100) {
        0 => return format!("{}-02-29", 1904 + 4 * random.random_range(0..30)),
        1 => return format!("{}-01-01", 1970 + random.random_range(0..30)),
        2 => return ["0001-01-01", "9999-12-31", "2000-02-29"][random.random_range(0..3)].to_owned(),
        _ => {}
    }
    // The day of the year is drawn instead of month and day, so that each of the 365 tables is equally likely.
    let (year, mut day) = (random.random_range(1900..2024), random.random_range(0..365));
    let mut month = 0;
    while day >= DAYS_OF_MONTH[month] {
        day -= DAYS_OF_MONTH[month];
        month += 1;
    }
    format!("{year:04}-{:02}-{:02}", month + 1, day + 1)
}

fn time(random: &mut StdRng) -> String {
    format!(
        "{:02}:{:02}:{:02}",
        random.random_range(0..24),
        random.random_range(0..60),
        random.random_range(0..60)
    )
}

fn valid_text(random: &mut StdRng) -> String {
    let date = date(random);
    match random.random_range(0..10) {
        0 => format!("{date} {}", time(random)),
        1 => format!("{date}T{}Z", time(random)),
        2 => format!("  {date}"),
        3 => format!("{date}   "),
        4 => format!("\t{date}\r\n"),
        _ => date,
    }
}

/// Returns telephone number and address; the address needs the column's own character set.
pub fn contact(random: &mut StdRng) -> (String, String) {
    let phone = format!("'+86 1{:010}'", random.random_range(0..10_000_000_000u64));
    let address = literal(&format!("北京市朝阳区 {} 号", random.random_range(0..1_000_000)));
    (phone, address)
}

/// Lunar birthdays that belong in no derived table.
const INVALID_LUNAR: [&str; 8] = ["", "00-00", "01-00", "12-31", "13-01", "1-1", "ab-cd", "+1-01"];
/// Types of birthdays: case and blanks around `lunar` do not matter; an empty or odd type means solar.
const BIRTHDAY_TYPES: [&str; 8] =
    ["NULL", "'solar'", "'lunar'", "'lunar'", "'LUNAR'", "' lunar '", "''", "'odd'"];

/// Returns a lunar month and day, which may be missing or invalid, and the type of birthday.
pub fn lunar(random: &mut StdRng) -> (String, &'static str) {
    let birthday = match random.random_range(0..100) {
        0..40 => "NULL".to_owned(),
        40..45 => literal(INVALID_LUNAR[random.random_range(0..INVALID_LUNAR.len())]),
        _ => format!("'{:02}-{:02}'", random.random_range(1..=12), random.random_range(1..=30)),
    };
    (birthday, BIRTHDAY_TYPES[random.random_range(0..BIRTHDAY_TYPES.len())])
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use rand::SeedableRng;

    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_values() {
        let values = || {
            let mut random = StdRng::seed_from_u64(7);
            (0..100).map(|_| (name(&mut random), date(&mut random))).collect::<Vec<_>>()
        };
        assert_eq!(values(), values());
    }

    #[test]
    fn all_366_days_are_drawn() {
        let mut random = StdRng::seed_from_u64(1);
        let days: HashSet<String> = (0..20_000).map(|_| date(&mut random)[5..].to_owned()).collect();
        assert_eq!(days.len(), 366);
    }

    #[test]
    fn names_fit_the_column() {
        let mut random = StdRng::seed_from_u64(2);
        assert!((0..20_000).all(|_| name(&mut random).0.chars().count() <= 128));
    }
}
