//! Tests of identifiers: the source document's example, each broken rule, and that reading inverts writing.

use proptest::prelude::*;

use super::*;

const EXAMPLE: &str = "2016060611031103099052400029904";

/// Returns the example with some digits replaced, from a digit counted from 1.
fn with(digit: usize, digits: &str) -> String {
    let mut text = EXAMPLE.to_owned();
    text.replace_range(digit - 1..digit - 1 + digits.len(), digits);
    text
}

#[test]
fn the_example_of_the_document_is_read_part_by_part() {
    let id: FluxId = EXAMPLE.parse().unwrap();
    let expected = Parts {
        date: jiff::civil::date(2016, 6, 6),
        version: 1,
        region: Region::Singapore,
        system: 31,
        level: Level::Atom,
        business: 3,
        side: Side::Main,
        month: Month::No,
        partition: 5,
        reserved: 24,
        sequence: 29_904,
    };
    assert_eq!(*id.parts(), expected);
    assert_eq!(id.to_string(), EXAMPLE);
    assert_eq!(FluxId::of(expected, SYSTEM), Ok(id));
}

#[test]
fn the_parts_are_the_31_digits_without_a_gap() {
    let mut next = 1;
    for part in Part::ALL {
        let (first, last) = part.digits();
        assert_eq!(first, next, "{part}");
        next = last + 1;
    }
    assert_eq!(next, DIGITS + 1);
}

#[test]
fn what_breaks_a_rule_is_told_with_its_digits_and_what_is_expected() {
    let full_width: String =
        EXAMPLE.chars().map(|digit| char::from_u32(digit as u32 + 0xFEE0).unwrap()).collect();
    for (text, reported) in [
        (String::new(), "it has 0 digits; expected: 31"),
        (EXAMPLE[1..].to_owned(), "it has 30 digits; expected: 31"),
        (format!("{EXAMPLE}0"), "it has 32 digits; expected: 31"),
        (with(18, "1O"), "character 19, in digits 18 to 19 (month), is `O`; expected: a digit from 0 to 9"),
        (format!("{} ", &EXAMPLE[1..]), "character 31, in digits 24 to 31 (sequence), is ` `; expected"),
        (format!("{EXAMPLE}\n"), "character 32 is `\\n`; expected: a digit from 0 to 9"),
        (full_width, "character 1, in digits 1 to 8 (date), is `\\u{ff12}`; expected: a digit from 0 to 9"),
        (with(1, "20160231"), "digits 1 to 8 (date) are 20160231; expected: a date of the calendar"),
        (with(1, "20150229"), "digits 1 to 8 (date) are 20150229"),
        (with(1, "00000101"), "digits 1 to 8 (date) are 00000101"),
        (with(1, "20160600"), "digits 1 to 8 (date) are 20160600"),
        (with(9, "2"), "digit 9 (data version) is 2; expected: 0 or 1 (normal), or 8"),
        (with(10, "2"), "digit 10 (region) is 2; expected: 0 (United States) or 1 (Singapore)"),
        (
            with(11, "032"),
            "digits 11 to 13 (system code) are 032; expected: 031; the identifier belongs to another",
        ),
        (with(14, "2"), "digit 14 (atom or composite) is 2; expected: 0 (composite) or 1 (atom)"),
        (with(17, "2"), "digit 17 (main or fail-over) is 2; expected: 0 (main) or 1 (fail-over)"),
        (with(18, "12"), "digits 18 to 19 (month) are 12; expected: 00 (January) to 11 (December), or 99"),
        (with(18, "98"), "digits 18 to 19 (month) are 98"),
    ] {
        let defect = text.parse::<FluxId>().unwrap_err().to_string();
        assert!(defect.starts_with(reported), "{text}: {defect}");
    }
    let bytes = [&EXAMPLE.as_bytes()[..30], &[0xff]].concat();
    assert_eq!(FluxId::parse(&bytes), Err(Defect::NotText { position: 31, found: 0xff }));
}

#[test]
fn each_part_has_the_values_of_the_document_and_no_others() {
    for (digit, width, right) in [
        (9, 1, &[0, 1, 8][..]),
        (10, 1, &[0, 1]),
        (14, 1, &[0, 1]),
        (17, 1, &[0, 1]),
        (18, 2, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 99]),
    ] {
        for value in 0..10_u32.pow(width as u32) {
            let text = with(digit, &format!("{value:0width$}"));
            assert_eq!(text.parse::<FluxId>().is_ok(), right.contains(&value), "{text}");
        }
    }
}

#[test]
fn months_count_from_00_and_a_document_without_one_has_99() {
    for month in 1..=12 {
        let date = Date::new(2016, month, 6).unwrap();
        assert_eq!(Month::of_date(date).digits(), month as u8 - 1);
    }
    assert_eq!(Month::No.digits(), 99);
}

#[test]
fn reserved_digits_and_the_business_code_may_be_anything() {
    for number in 0..100 {
        for digit in [15, 20, 22] {
            let text = with(digit, &format!("{number:02}"));
            assert_eq!(text.parse::<FluxId>().unwrap().to_string(), text);
        }
    }
}

#[test]
fn the_calendar_is_that_of_the_library() {
    for year in [1, 4, 100, 400, 1900, 2000, 2015, 2016, 9999] {
        for (month, day) in (0..100).flat_map(|month| (0..100).map(move |day| (month, day))) {
            let expected = Date::new(year as i16, month as i8, day as i8).is_ok();
            let digits = [(year / 100) as u8, (year % 100) as u8, month, day];
            assert_eq!(is_date(digits), expected, "{year}-{month}-{day}");
        }
    }
    assert!(!is_date([0, 0, 1, 1]));
}

#[test]
fn eight_digits_at_once_are_the_number_that_they_write() {
    for number in [0, 1, 9, 10, 12_345_678, 20_160_606, 87_654_321, 90_909_090, 99_999_999] {
        let word = u64::from_le_bytes(format!("{number:08}").as_bytes().try_into().unwrap());
        assert_eq!(eight_digits(word), number);
        let expected = [number / 1_000_000, number / 10_000 % 100, number / 100 % 100, number % 100];
        assert_eq!(pairs(word).map(u32::from), expected);
    }
}

#[test]
fn every_other_byte_is_found_at_every_place() {
    let digits: [u8; DIGITS] = EXAMPLE.as_bytes().try_into().unwrap();
    for (at, byte) in (0..DIGITS).flat_map(|at| (0..=u8::MAX).map(move |byte| (at, byte))) {
        let mut changed = digits;
        changed[at] = byte;
        assert_eq!(are_digits(&changed), byte.is_ascii_digit(), "byte {byte} at {at}");
    }
}

#[test]
fn another_system_is_read_when_it_is_asked_for() {
    let text = with(11, "032");
    assert!(FluxId::parse_of(text.as_bytes(), 32).is_ok());
    assert!(FluxId::parse_of(EXAMPLE.as_bytes(), 32).is_err());
}

#[test]
fn parts_that_no_digits_can_hold_are_refused_by_name() {
    let parts = *EXAMPLE.parse::<FluxId>().unwrap().parts();
    let part = |parts| match FluxId::of(parts, SYSTEM) {
        Err(Defect::Part { part, .. }) => part,
        other => panic!("{other:?}"),
    };
    assert_eq!(part(Parts { partition: 100, ..parts }), Part::Partition);
    assert_eq!(part(Parts { sequence: SEQUENCES, ..parts }), Part::Sequence);
    assert_eq!(part(Parts { month: Month::Of(12), ..parts }), Part::Month);
    assert_eq!(part(Parts { month: Month::Of(99), ..parts }), Part::Month);
    assert_eq!(part(Parts { date: jiff::civil::date(0, 1, 1), ..parts }), Part::Date);
    assert_eq!(part(Parts { date: jiff::civil::date(-5, 1, 1), ..parts }), Part::Date);
    assert_eq!(part(Parts { version: 3, ..parts }), Part::Version);
}

fn parts() -> impl Strategy<Value = Parts> {
    let date =
        (1i16..=9999, 1i8..=12, 1i8..=31).prop_filter_map("no date", |(y, m, d)| Date::new(y, m, d).ok());
    let codes =
        (prop::sample::select(vec![0u8, 1, 8]), any::<bool>(), any::<bool>(), any::<bool>(), 0u8..100);
    let month = prop_oneof![(0u8..12).prop_map(Month::Of), Just(Month::No)];
    let tail = (month, 0u8..100, 0u8..100, 0..SEQUENCES);
    (date, codes, tail).prop_map(|(date, (version, singapore, atom, fail_over, business), tail)| Parts {
        date,
        version,
        region: if singapore { Region::Singapore } else { Region::UnitedStates },
        system: SYSTEM,
        level: if atom { Level::Atom } else { Level::Composite },
        business,
        side: if fail_over { Side::FailOver } else { Side::Main },
        month: tail.0,
        partition: tail.1,
        reserved: tail.2,
        sequence: tail.3,
    })
}

/// Digits that keep most rules.
const LIKELY: &str =
    "20[0-9]{2}(0[1-9]|1[0-2])[0-2][1-8][0138][01]031[01][0-9]{2}[01](0[0-9]|1[01]|99)[0-9]{12}";

proptest! {
    #[test]
    fn what_was_written_is_read_back(parts in parts()) {
        let id = FluxId::of(parts, SYSTEM).unwrap();
        prop_assert_eq!(*id.parts(), parts);
        prop_assert_eq!(id.to_string().parse::<FluxId>(), Ok(id));
    }

    #[test]
    fn digits_beside_another_identifier_are_its_own((one, two) in (parts(), parts()), sequence in 0..SEQUENCES) {
        let (one, two) = (FluxId::of(one, SYSTEM).unwrap(), FluxId::of(two, SYSTEM).unwrap());
        let next = one.with_sequence(sequence).unwrap();
        prop_assert_eq!(next.digits_beside((&one, one.digits())), next.digits());
        prop_assert_eq!(two.digits_beside((&one, one.digits())), two.digits());
    }

    #[test]
    fn what_was_read_is_written_back(text in LIKELY) {
        if let Ok(id) = text.parse::<FluxId>() {
            prop_assert_eq!(id.to_string(), text);
        }
    }

    #[test]
    fn whatever_comes_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        if let Ok(id) = FluxId::parse(&bytes) {
            prop_assert_eq!(id.digits().to_vec(), bytes);
        }
    }
}
