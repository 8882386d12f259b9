//! The identifier of a payment document: 31 decimal digits in eleven parts.
//!
//! Reading, checking and writing allocate nothing (`tests/allocations.rs`). A [`Defect`] names the digits with their
//! meaning, the value found and the one expected. Digits are counted from 1. The reserved digits may be anything, and
//! so may the business code, whose meaning is a setting. This module does not check whether a document lies where its
//! identifier says.

mod digits;

use std::fmt;

use jiff::civil::Date;
use serde::{Serialize, Serializer};
use thiserror::Error;

use self::digits::{are_digits, ascii, eight_digits, is_date, number, pairs, word};

/// Digits of an identifier.
pub const DIGITS: usize = 31;
/// System code of Flux, as in the source document's example.
pub const SYSTEM: u16 = 31;
/// Month digits of documents that are not stored by month.
pub const NO_MONTH: u8 = 99;
/// Numbers of one counter: the sequence has eight digits.
pub const SEQUENCES: u32 = 100_000_000;
/// Index of the first digit of the sequence, whose last digit is the identifier's.
const SEQUENCE_AT: usize = DIGITS - 8;

/// One part of an identifier, in the order of its digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    Date,
    Version,
    Region,
    System,
    Level,
    Business,
    Side,
    Month,
    Partition,
    Reserved,
    Sequence,
}

impl Part {
    pub const ALL: [Part; 11] = [
        Self::Date,
        Self::Version,
        Self::Region,
        Self::System,
        Self::Level,
        Self::Business,
        Self::Side,
        Self::Month,
        Self::Partition,
        Self::Reserved,
        Self::Sequence,
    ];

    /// Returns the first and last digit, counted from 1.
    pub fn digits(self) -> (usize, usize) {
        match self {
            Self::Date => (1, 8),
            Self::Version => (9, 9),
            Self::Region => (10, 10),
            Self::System => (11, 13),
            Self::Level => (14, 14),
            Self::Business => (15, 16),
            Self::Side => (17, 17),
            Self::Month => (18, 19),
            Self::Partition => (20, 21),
            Self::Reserved => (22, 23),
            Self::Sequence => (24, 31),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Date => "date",
            Self::Version => "data version",
            Self::Region => "region",
            Self::System => "system code",
            Self::Level => "atom or composite",
            Self::Business => "business code",
            Self::Side => "main or fail-over",
            Self::Month => "month",
            Self::Partition => "user partition",
            Self::Reserved => "reserved",
            Self::Sequence => "sequence",
        }
    }

    /// Returns the part that holds a digit; `None` above 31.
    fn at(digit: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|part| (part.digits().0..=part.digits().1).contains(&digit))
    }

    fn of(self, digits: &[u8; DIGITS]) -> &[u8] {
        let (first, last) = self.digits();
        &digits[first - 1..last]
    }
}

/// Writes `digit 9 (data version)` or `digits 1 to 8 (date)`.
impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.digits() {
            (first, last) if first == last => write!(f, "digit {first} ({})", self.name()),
            (first, last) => write!(f, "digits {first} to {last} ({})", self.name()),
        }
    }
}

/// Whether a document is a composite of its own or one movement (atom) of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Level {
    Composite,
    Atom,
}

/// The region whose databases hold the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Region {
    UnitedStates,
    Singapore,
}

/// The main or the fail-over database of a region, which holds the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    Main,
    FailOver,
}

/// The meaning of the month digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Month {
    /// A month, from 0 for January to 11 for December.
    Of(u8),
    /// `99`: the document is not stored by month.
    No,
}

impl Region {
    pub fn digit(self) -> u8 {
        self as u8
    }
}

impl Side {
    pub fn digit(self) -> u8 {
        self as u8
    }

    pub fn name(self) -> &'static str {
        match self {
            Side::Main => "main",
            Side::FailOver => "fail-over",
        }
    }
}

impl Level {
    pub fn digit(self) -> u8 {
        self as u8
    }

    pub fn name(self) -> &'static str {
        match self {
            Level::Composite => "composite",
            Level::Atom => "atom",
        }
    }
}

impl Month {
    /// Returns the month of a date.
    pub fn of_date(date: Date) -> Self {
        Self::Of(date.month().unsigned_abs() - 1)
    }

    /// Returns the two digits as a number: 0 to 11, or 99.
    pub fn digits(self) -> u8 {
        match self {
            Month::Of(month) => month,
            Month::No => NO_MONTH,
        }
    }
}

/// The parts of an identifier, each with its own type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Parts {
    pub date: Date,
    /// Data version: 0 and 1 are normal, 8 is the new reconciliation.
    pub version: u8,
    pub region: Region,
    pub system: u16,
    pub level: Level,
    pub business: u8,
    pub side: Side,
    pub month: Month,
    pub partition: u8,
    pub reserved: u8,
    pub sequence: u32,
}

/// An identifier that follows every rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FluxId(Parts);

/// A broken rule, with its digits, their value and the expected one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Defect {
    #[error("it has {found} digits; expected: 31")]
    Length { found: usize },
    /// A character is no digit; `position` counts characters.
    #[error("character {position}{} is `{}`; expected: a digit from 0 to 9", InPart(*position), found.escape_default())]
    NotADigit { position: usize, found: char },
    /// A byte is no text; `position` counts bytes.
    #[error("byte {position} is 0x{found:02x}, which is not text; expected: a digit from 0 to 9")]
    NotText { position: usize, found: u8 },
    #[error("{part} {}; expected: {}", Found(*part, *found), Expected(*part, *system))]
    Part {
        part: Part,
        found: u32,
        /// The expected system code.
        system: u16,
    },
}

struct InPart(usize);

impl fmt::Display for InPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Part::at(self.0).map_or(Ok(()), |part| write!(f, ", in {part},"))
    }
}

struct Found(Part, u32);

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = self.0.digits();
        let (width, verb) = (last + 1 - first, if first == last { "is" } else { "are" });
        write!(f, "{verb} {:0width$}", self.1)
    }
}

struct Expected(Part, u16);

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Part::Date => "a date of the calendar, as YYYYMMDD",
            Part::Version => "0 or 1 (normal), or 8 (new reconciliation)",
            Part::Region => "0 (United States) or 1 (Singapore)",
            Part::System => {
                return write!(f, "{:03}; the identifier belongs to another system", self.1);
            }
            Part::Level => "0 (composite) or 1 (atom)",
            Part::Side => "0 (main) or 1 (fail-over)",
            Part::Month => "00 (January) to 11 (December), or 99 (no month)",
            Part::Business | Part::Partition | Part::Reserved => "00 to 99",
            Part::Sequence => "00000000 to 99999999",
        })
    }
}

impl FluxId {
    /// Reads an identifier of the Flux system.
    pub fn parse(text: &[u8]) -> Result<Self, Defect> {
        Self::parse_of(text, SYSTEM)
    }

    /// Reads an identifier of a system with another code.
    pub fn parse_of(text: &[u8], system: u16) -> Result<Self, Defect> {
        match text.try_into() {
            Ok(digits) if are_digits(digits) => Parts::read(digits, system).map(Self),
            _ => Err(not_digits(text)),
        }
    }

    /// Builds the identifier of these parts; fails when a number has more digits than its part, or a part breaks its
    /// rule.
    pub fn of(parts: Parts, system: u16) -> Result<Self, Defect> {
        let defect = |part, found| Defect::Part { part, found, system };
        for (part, found, limit) in [
            (Part::Version, u32::from(parts.version), 10),
            (Part::System, u32::from(parts.system), 1_000),
            (Part::Business, u32::from(parts.business), 100),
            (Part::Month, u32::from(parts.month.digits()), 100),
            (Part::Partition, u32::from(parts.partition), 100),
            (Part::Reserved, u32::from(parts.reserved), 100),
            (Part::Sequence, parts.sequence, SEQUENCES),
        ] {
            if found >= limit {
                return Err(defect(part, found));
            }
        }
        if !(1..=9999).contains(&parts.date.year()) {
            return Err(defect(Part::Date, 0));
        }
        // Reading finds a month between 12 and 98, and 99 as a month of the year.
        let read = Parts::read(&parts.digits(), system)?;
        if read.month != parts.month {
            return Err(defect(Part::Month, u32::from(parts.month.digits())));
        }
        Ok(Self(read))
    }

    pub fn parts(&self) -> &Parts {
        &self.0
    }

    /// Returns the identifier with another sequence; `None` when that has more than eight digits.
    pub fn with_sequence(self, sequence: u32) -> Option<Self> {
        (sequence < SEQUENCES).then_some(Self(Parts { sequence, ..self.0 }))
    }

    /// Returns the identifier with other reserved digits; `None` when they are more than two.
    pub fn with_reserved(self, reserved: u8) -> Option<Self> {
        (reserved < 100).then_some(Self(Parts { reserved, ..self.0 }))
    }

    /// Returns the 31 digits as ASCII.
    pub fn digits(&self) -> [u8; DIGITS] {
        self.0.digits()
    }

    /// Returns the 31 digits as ASCII, given another identifier with its digits. If both differ in their sequence only,
    /// as those of one lease do, the other digits are copied.
    pub fn digits_beside(&self, (other, mut digits): (&Self, [u8; DIGITS])) -> [u8; DIGITS] {
        if other.with_sequence(self.0.sequence) != Some(*self) {
            return self.digits();
        }
        digits[SEQUENCE_AT..].copy_from_slice(&ascii(self.0.sequence));
        digits
    }
}

impl fmt::Display for FluxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.digits()).expect("ASCII digits are text"))
    }
}

/// Writes the digits as a text: many readers of JSON lose digits of such a number.
impl Serialize for FluxId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(std::str::from_utf8(&self.digits()).expect("ASCII digits are text"))
    }
}

impl std::str::FromStr for FluxId {
    type Err = Defect;

    fn from_str(text: &str) -> Result<Self, Defect> {
        Self::parse(text.as_bytes())
    }
}

impl Parts {
    /// Each rule is one comparison without a branch: digits of real identifiers vary, and a branch that a core cannot
    /// predict costs more than all comparisons together.
    fn read(digits: &[u8; DIGITS], system: u16) -> Result<Self, Defect> {
        let one = |digit: usize| digits[digit - 1] - b'0';
        let two = |digit: usize| one(digit) * 10 + one(digit + 1);
        let (version, region, level, side, month) = (one(9), one(10), one(14), one(17), two(18));
        let found_system = u16::from(two(11)) * 10 + u16::from(one(13));
        let date = pairs(word(digits, 0));
        let is_right = is_date(date)
            & ((version <= 1) | (version == 8))
            & (region <= 1)
            & (found_system == system)
            & (level <= 1)
            & (side <= 1)
            & ((month < 12) | (month == NO_MONTH));
        if !is_right {
            return Err(Self::defect(digits, system));
        }
        let [century, year, month_of_year, day] = date;
        let year = i16::from(century) * 100 + i16::from(year);
        Ok(Self {
            date: jiff::civil::date(year, month_of_year as i8, day as i8),
            version,
            region: if region == 0 { Region::UnitedStates } else { Region::Singapore },
            system,
            level: if level == 0 { Level::Composite } else { Level::Atom },
            business: two(15),
            side: if side == 0 { Side::Main } else { Side::FailOver },
            month: if month == NO_MONTH { Month::No } else { Month::Of(month) },
            partition: two(20),
            reserved: two(22),
            sequence: eight_digits(word(digits, SEQUENCE_AT)),
        })
    }

    /// Returns the first rule that the digits break, in the order of the digits.
    #[cold]
    fn defect(digits: &[u8; DIGITS], system: u16) -> Defect {
        let is_broken = |part: &Part| {
            let number = number(part.of(digits));
            match part {
                Part::Date => !is_date(pairs(word(digits, 0))),
                Part::Version => !matches!(number, 0 | 1 | 8),
                Part::Region | Part::Level | Part::Side => number > 1,
                Part::System => number != u32::from(system),
                Part::Month => !matches!(number, 0..=11 | 99),
                Part::Business | Part::Partition | Part::Reserved | Part::Sequence => false,
            }
        };
        let part = Part::ALL.into_iter().find(is_broken).expect("a rule is broken");
        Defect::Part { part, found: number(part.of(digits)), system }
    }

    fn digits(&self) -> [u8; DIGITS] {
        let mut digits = [b'0'; DIGITS];
        let date = u32::from(self.date.year().unsigned_abs()) * 10_000
            + u32::from(self.date.month().unsigned_abs()) * 100
            + u32::from(self.date.day().unsigned_abs());
        for (part, number) in [(Part::Date, date), (Part::Sequence, self.sequence)] {
            let (first, last) = part.digits();
            digits[first - 1..last].copy_from_slice(&ascii(number));
        }
        for (part, mut number) in [
            (Part::Version, u32::from(self.version)),
            (Part::Region, u32::from(self.region.digit())),
            (Part::System, u32::from(self.system)),
            (Part::Level, u32::from(self.level.digit())),
            (Part::Business, u32::from(self.business)),
            (Part::Side, u32::from(self.side.digit())),
            (Part::Month, u32::from(self.month.digits())),
            (Part::Partition, u32::from(self.partition)),
            (Part::Reserved, u32::from(self.reserved)),
        ] {
            let (first, last) = part.digits();
            for digit in digits[first - 1..last].iter_mut().rev() {
                *digit += (number % 10) as u8;
                number /= 10;
            }
        }
        digits
    }
}

/// Returns why a text is not 31 digits: its first other character, before its length.
#[cold]
fn not_digits(text: &[u8]) -> Defect {
    let Some(at) = text.iter().position(|byte| !byte.is_ascii_digit()) else {
        return Defect::Length { found: text.len() };
    };
    let rest = match std::str::from_utf8(&text[at..]) {
        Ok(rest) => rest,
        Err(error) => std::str::from_utf8(&text[at..][..error.valid_up_to()]).expect("valid up to there"),
    };
    match rest.chars().next() {
        Some(found) => Defect::NotADigit { position: at + 1, found },
        None => Defect::NotText { position: at + 1, found: text[at] },
    }
}

#[cfg(test)]
mod tests;
