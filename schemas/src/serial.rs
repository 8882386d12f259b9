//! Serial codes: from captured columns of a device to the values by which it is found.
//!
//! A device has up to five codes. A code is text whose exact bytes count: leading zeros, case and trailing blanks are
//! part of it. Only a MEID is written in capitals, since its hexadecimal digits occur in both cases. NULL and the empty
//! text are no code. The form of a code is checked and decides nothing: the source is the truth.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use crate::change::Value;

/// The kind of a device's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CodeKind {
    Imei1,
    Imei2,
    Meid,
    BoxNo,
    ItemCode,
}

impl CodeKind {
    pub const ALL: [CodeKind; 5] = [Self::Imei1, Self::Imei2, Self::Meid, Self::BoxNo, Self::ItemCode];

    /// Returns the name of the captured field, which is also the name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Imei1 => "imei1",
            Self::Imei2 => "imei2",
            Self::Meid => "meid",
            Self::BoxNo => "box_no",
            Self::ItemCode => "item_code",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns the number in stored mapping rows, from 1. It never changes.
    pub fn number(self) -> u8 {
        self as u8 + 1
    }

    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }
}

/// Bytes of a stored value, at most. Codes of so many bytes or more are stored as their beginning and a hash.
pub const STORED_BYTES_MAX: usize = 255;
/// Bytes of a SHA-256.
const HASH_BYTES: usize = 32;
/// Databases of mapping tables: one for each length class.
pub const LENGTH_CLASSES: u32 = 3;

/// The mapping database of a value: the length says where the value is stored, not which code it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LengthClass {
    Fifteen,
    Fourteen,
    Other,
}

impl LengthClass {
    pub const ALL: [LengthClass; LENGTH_CLASSES as usize] = [Self::Fifteen, Self::Fourteen, Self::Other];

    /// Returns the class's part of the database name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fifteen => "15",
            Self::Fourteen => "14",
            Self::Other => "other",
        }
    }
}

/// A code as mapping tables and the cache hold it: at most [`STORED_BYTES_MAX`] bytes.
///
/// The stored form of a code of 255 bytes or more is its first 223 bytes and the SHA-256 of the whole code, so any code
/// can be found by itself. A code of exactly 255 bytes is not stored as it is: it could equal the stored form of a
/// longer one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoredCode(Box<[u8]>);

impl StoredCode {
    /// Returns the stored form of a code of this kind; `None` for the empty text.
    pub fn new(kind: CodeKind, code: &[u8]) -> Option<Self> {
        match kind {
            CodeKind::Meid => Self::exact(&code.to_ascii_uppercase()),
            _ => Self::exact(code),
        }
    }

    /// Returns the stored form of the code as it is, whatever its kind; `None` for the empty text.
    pub fn exact(code: &[u8]) -> Option<Self> {
        if code.is_empty() {
            return None;
        }
        if code.len() < STORED_BYTES_MAX {
            return Some(Self(code.into()));
        }
        let mut stored = code[..STORED_BYTES_MAX - HASH_BYTES].to_vec();
        stored.extend_from_slice(&Sha256::digest(code));
        Some(Self(stored.into()))
    }

    /// Reads a value of a table or cache back; `None` for bytes that are no stored form.
    pub fn from_stored(stored: &[u8]) -> Option<Self> {
        (1..=STORED_BYTES_MAX).contains(&stored.len()).then(|| Self(stored.into()))
    }

    /// Returns the values to look for when the kind is unknown: the code as it is, and as a MEID where that differs.
    pub fn candidates(code: &[u8]) -> Vec<(Self, Option<CodeKind>)> {
        let mut candidates: Vec<_> = Self::exact(code).map(|stored| (stored, None)).into_iter().collect();
        if code.iter().any(u8::is_ascii_lowercase) {
            candidates.extend(Self::new(CodeKind::Meid, code).map(|stored| (stored, Some(CodeKind::Meid))));
        }
        candidates
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn into_bytes(self) -> Box<[u8]> {
        self.0
    }

    pub fn length_class(&self) -> LengthClass {
        match self.0.len() {
            15 => LengthClass::Fifteen,
            14 => LengthClass::Fourteen,
            _ => LengthClass::Other,
        }
    }

    /// Returns the code's table number among `tables`: for digits of any length their decimal number modulo `tables`,
    /// for other text its CRC-32 (IEEE, equal to SQL `CRC32()`) modulo `tables`.
    ///
    /// SQL's `%` on text computes with doubles and is wrong from 16 digits on.
    pub fn table(&self, tables: u32) -> u32 {
        let tables = u64::from(tables.max(1));
        let number = match self.0.iter().all(u8::is_ascii_digit) {
            true => self.0.iter().fold(0, |number, digit| (number * 10 + u64::from(digit - b'0')) % tables),
            false => u64::from(crc32fast::hash(&self.0)) % tables,
        };
        number as u32
    }
}

/// An oddity of a code, which is stored and found all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CodeDefect {
    /// An IMEI does not have 15 bytes, or a MEID does not have 14.
    Length,
    /// An IMEI has other characters than digits, or a MEID others than hexadecimal digits.
    Digits,
    /// The last digit of an IMEI is not the one that Luhn's formula gives.
    CheckDigit,
}

/// A code of a row with its oddity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OddCode {
    pub kind: CodeKind,
    pub defect: CodeDefect,
}

impl OddCode {
    /// Returns the `reason` label of the metric.
    pub fn reason(self) -> &'static str {
        match (self.kind, self.defect) {
            (CodeKind::Imei1, CodeDefect::Length) => "imei1_length",
            (CodeKind::Imei1, CodeDefect::Digits) => "imei1_digits",
            (CodeKind::Imei1, CodeDefect::CheckDigit) => "imei1_check_digit",
            (CodeKind::Imei2, CodeDefect::Length) => "imei2_length",
            (CodeKind::Imei2, CodeDefect::Digits) => "imei2_digits",
            (CodeKind::Imei2, CodeDefect::CheckDigit) => "imei2_check_digit",
            (CodeKind::Meid, CodeDefect::Length) => "meid_length",
            (CodeKind::Meid, _) => "meid_digits",
            (CodeKind::BoxNo, _) => "box_no",
            (CodeKind::ItemCode, _) => "item_code",
        }
    }
}

/// Digits of an IMEI: 8 of the type (TAC), 6 of the serial number, 1 check digit (3GPP TS 23.003, 6.2.1).
const IMEI_DIGITS: usize = 15;
/// Hexadecimal digits of a MEID without its check digit (3GPP2 X.S0008-0).
const MEID_DIGITS: usize = 14;

impl CodeDefect {
    /// Returns the oddity of a code of this kind, if there is one. Boxes and items may be any text.
    pub fn of(kind: CodeKind, code: &[u8]) -> Option<Self> {
        match kind {
            CodeKind::Imei1 | CodeKind::Imei2 if code.len() != IMEI_DIGITS => Some(Self::Length),
            CodeKind::Imei1 | CodeKind::Imei2 if !code.iter().all(u8::is_ascii_digit) => Some(Self::Digits),
            CodeKind::Imei1 | CodeKind::Imei2 if !is_luhn(code) => Some(Self::CheckDigit),
            CodeKind::Meid if code.len() != MEID_DIGITS => Some(Self::Length),
            CodeKind::Meid if !code.iter().all(u8::is_ascii_hexdigit) => Some(Self::Digits),
            _ => None,
        }
    }
}

/// Returns whether the last of the decimal digits is the check digit of those before it (ISO/IEC 7812-1, annex B).
///
/// Panics when the input has other bytes than ASCII digits.
pub fn is_luhn(digits: &[u8]) -> bool {
    match digits {
        [] => false,
        [number @ .., check] => luhn_check_digit(number) == *check,
    }
}

/// Returns the check digit for these decimal digits: every second one from the right counts twice, 10 and more as the
/// sum of its digits; the whole is a multiple of 10.
///
/// Panics when the input has other bytes than ASCII digits.
pub fn luhn_check_digit(number: &[u8]) -> u8 {
    let sum: u64 = (number.iter().rev().enumerate())
        .map(|(place, digit)| {
            assert!(digit.is_ascii_digit(), "a decimal digit");
            let value = u64::from(digit - b'0');
            if place % 2 == 0 { value * 2 / 10 + value * 2 % 10 } else { value }
        })
        .sum();
    b'0' + ((10 - sum % 10) % 10) as u8
}

/// Bytes of a uuid as text, at most.
pub const UUID_BYTES_MAX: usize = 64;

/// The reason why a uuid makes no claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UuidDefect {
    Null,
    /// The text is empty, or has more than [`UUID_BYTES_MAX`] bytes.
    Malformed,
    /// The column type holds neither integers nor text.
    WrongType,
}

impl UuidDefect {
    /// Returns the `reason` label of the metric.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Null => "uuid_null",
            Self::Malformed => "uuid_malformed",
            Self::WrongType => "uuid_wrong_type",
        }
    }
}

/// Returns the text of a uuid: an integer in decimal, text as it is.
pub fn uuid<'v>(value: &'v Value<'_>) -> Result<Cow<'v, [u8]>, UuidDefect> {
    match value {
        Value::Null => Err(UuidDefect::Null),
        other => match text(other) {
            None => Err(UuidDefect::WrongType),
            Some(text) if text.is_empty() || text.len() > UUID_BYTES_MAX => Err(UuidDefect::Malformed),
            Some(text) => Ok(text),
        },
    }
}

/// Returns text and integers as text; `None` for NULL and all other values.
pub fn text<'v>(value: &'v Value<'_>) -> Option<Cow<'v, [u8]>> {
    match value {
        Value::Bytes(bytes) => Some(Cow::Borrowed(bytes)),
        Value::UInt(number) => Some(Cow::Owned(number.to_string().into_bytes())),
        Value::Int(number) => Some(Cow::Owned(number.to_string().into_bytes())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn exact(code: &str) -> StoredCode {
        StoredCode::exact(code.as_bytes()).unwrap()
    }

    #[test]
    fn a_value_lies_in_the_table_of_its_number_however_long_it_is() {
        assert_eq!(exact("100").table(512), 100);
        assert_eq!(exact("00000000000000000000000000000000000000612").table(512), 100);
        // Computed with Python: 490154203237518 % 512, 9876543210987654321 % 512, (10**40 + 7) % 512.
        assert_eq!(exact("490154203237518").table(512), 142);
        assert_eq!(exact("9876543210987654321").table(512), 177);
        assert_eq!(exact("10000000000000000000000000000000000000007").table(512), 7);
        // SELECT CRC32('BOX-1') % 512
        assert_eq!(exact("BOX-1").table(512), crc32fast::hash(b"BOX-1") % 512);
    }

    #[test]
    fn the_length_says_where_a_value_is_stored_and_not_what_it_is() {
        assert_eq!(exact("490154203237518").length_class(), LengthClass::Fifteen);
        let item = StoredCode::new(CodeKind::ItemCode, b"ITEM-0000000001").unwrap();
        assert_eq!(item.length_class(), LengthClass::Fifteen);
        assert_eq!(exact("A0000012AB34CD").length_class(), LengthClass::Fourteen);
        assert_eq!(exact("123456789012345678").length_class(), LengthClass::Other);
    }

    /// The document says "30 years". The codes of a year fill the three databases unevenly, and the first much sooner.
    #[test]
    fn mapping_tables_are_full_after_eight_to_fifteen_years_and_the_first_database_sooner() {
        const TABLES: f64 = 512.0;
        const DEVICES_A_YEAR: f64 = 200e6;
        let phone = ["490154203237518", "490154203237526", "A0000012AB34CD", "123456789012345678", "ITEM-1"];
        let of_class = |class| phone.iter().filter(|code| exact(code).length_class() == class).count();
        let codes = LengthClass::ALL.map(of_class);
        assert_eq!(codes, [2, 1, 2]);
        for (rows_a_table, years, years_of_first) in [(5e6, 7.68, 6.4), (10e6, 15.36, 12.8)] {
            let database = TABLES * rows_a_table;
            let rows_a_year = |codes: usize| codes as f64 * DEVICES_A_YEAR;
            assert_eq!(3.0 * database / rows_a_year(codes.iter().sum()), years);
            assert_eq!(database / rows_a_year(codes[0]), years_of_first);
        }
    }

    #[test]
    fn codes_keep_their_exact_bytes_but_a_meid_is_written_in_capitals() {
        for code in ["007", "abc ", " abc", "ÄÖ", "a\0b"] {
            assert_eq!(
                StoredCode::new(CodeKind::BoxNo, code.as_bytes()).unwrap().as_bytes(),
                code.as_bytes()
            );
        }
        let meid = StoredCode::new(CodeKind::Meid, b"a0000012ab34cd").unwrap();
        assert_eq!(meid.as_bytes(), b"A0000012AB34CD");
        assert!(StoredCode::exact(b"").is_none());
    }

    #[test]
    fn a_lookup_finds_a_meid_in_either_case_and_other_codes_as_they_are() {
        let candidates = StoredCode::candidates(b"a0000012ab34cd");
        assert_eq!(candidates.len(), 2);
        assert_eq!(candidates[1], (exact("A0000012AB34CD"), Some(CodeKind::Meid)));
        assert_eq!(StoredCode::candidates(b"BOX-1"), [(exact("BOX-1"), None)]);
        assert!(StoredCode::candidates(b"").is_empty());
    }

    #[test]
    fn long_codes_are_told_apart_behind_their_beginning() {
        let long = |end: &str| exact(&format!("{}{end}", "x".repeat(300)));
        assert_eq!(long("a").as_bytes().len(), STORED_BYTES_MAX);
        assert_ne!(long("a"), long("b"));
        assert_eq!(long("a"), long("a"));
        let longest_exact = "y".repeat(STORED_BYTES_MAX - 1);
        assert_eq!(exact(&longest_exact).as_bytes(), longest_exact.as_bytes());
        // An application gives a device the stored form of another device's code.
        let long = long("a");
        assert_ne!(StoredCode::exact(long.as_bytes()).unwrap(), long);
        assert_eq!(StoredCode::from_stored(long.as_bytes()).unwrap(), long);
        assert_eq!(StoredCode::from_stored(b"").or(StoredCode::from_stored(&[b'z'; 256])), None);
    }

    #[test]
    fn check_digits_are_those_of_published_examples() {
        // Examples: GSMA TS.06 (IMEI 49-015420-323751-8); ISO/IEC 7812-1 (1789372997-4).
        assert!(is_luhn(b"490154203237518"));
        assert!(is_luhn(b"17893729974"));
        assert!(!is_luhn(b"490154203237519"));
        assert!(!is_luhn(b""));
    }

    #[test]
    fn what_is_odd_about_a_code_is_named() {
        let cases: [(CodeKind, &[u8], Option<CodeDefect>); 8] = [
            (CodeKind::Imei1, b"490154203237518", None),
            (CodeKind::Imei2, b"490154203237517", Some(CodeDefect::CheckDigit)),
            (CodeKind::Imei1, b"49015420323751", Some(CodeDefect::Length)),
            (CodeKind::Imei1, b"49015420323751X", Some(CodeDefect::Digits)),
            (CodeKind::Meid, b"a0000012ab34cd", None),
            (CodeKind::Meid, b"A0000012AB34CG", Some(CodeDefect::Digits)),
            (CodeKind::Meid, b"A0000012AB34C", Some(CodeDefect::Length)),
            (CodeKind::BoxNo, b"anything", None),
        ];
        for (kind, code, defect) in cases {
            assert_eq!(CodeDefect::of(kind, code), defect, "{}", kind.name());
        }
    }

    #[test]
    fn a_uuid_is_an_integer_or_text_of_up_to_64_bytes() {
        assert_eq!(uuid(&Value::UInt(u64::MAX)).unwrap().as_ref(), b"18446744073709551615");
        assert_eq!(uuid(&Value::Bytes(b"007".as_slice().into())).unwrap().as_ref(), b"007");
        assert_eq!(uuid(&Value::Bytes(vec![b'9'; 64].into())).unwrap().len(), 64);
        assert_eq!(uuid(&Value::Bytes(vec![b'9'; 65].into())), Err(UuidDefect::Malformed));
        assert_eq!(uuid(&Value::Bytes(Cow::Borrowed(b""))), Err(UuidDefect::Malformed));
        assert_eq!(uuid(&Value::Null), Err(UuidDefect::Null));
        assert_eq!(uuid(&Value::Double(1.0)), Err(UuidDefect::WrongType));
    }

    #[test]
    fn kinds_have_their_own_names_and_numbers() {
        for kind in CodeKind::ALL {
            assert_eq!(CodeKind::from_name(kind.name()), Some(kind));
            assert_eq!(CodeKind::from_number(kind.number()), Some(kind));
        }
        assert_eq!(CodeKind::Imei1.number(), 1);
        assert_eq!(CodeKind::ItemCode.number(), 5);
        assert_eq!(CodeKind::from_number(0), None);
    }

    proptest! {
        #[test]
        fn a_check_digit_makes_any_number_valid_and_no_other_digit_does(number in "[0-9]{1,40}", other in 1..10u8) {
            let mut digits = number.into_bytes();
            let check = luhn_check_digit(&digits);
            digits.push(check);
            prop_assert!(is_luhn(&digits));
            *digits.last_mut().unwrap() = (check - b'0' + other) % 10 + b'0';
            prop_assert!(!is_luhn(&digits));
        }

        #[test]
        fn the_table_of_a_number_is_the_remainder(number in any::<u128>(), tables in 1..2000u32) {
            let expected = (number % u128::from(tables)) as u32;
            prop_assert_eq!(exact(&number.to_string()).table(tables), expected);
        }
    }
}
