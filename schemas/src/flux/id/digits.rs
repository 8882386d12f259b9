//! Arithmetic on decimal digits, on eight of them at once, and the rule of dates.

use super::{DIGITS, SEQUENCE_AT};

/// The low half of each byte: the value of an ASCII digit.
const LOW_HALVES: u64 = 0x0f0f_0f0f_0f0f_0f0f;

pub(super) fn number(digits: &[u8]) -> u32 {
    digits.iter().fold(0, |number, digit| number * 10 + u32::from(digit - b'0'))
}

/// Returns eight bytes from an index on as one number, the first of them in its lowest byte.
pub(super) fn word(digits: &[u8; DIGITS], at: usize) -> u64 {
    u64::from_le_bytes(digits[at..at + 8].try_into().expect("the slice has eight bytes"))
}

/// Returns the numbers of four pairs of digits.
pub(super) fn pairs(word: u64) -> [u8; 4] {
    // The second digit of each pair has its byte, and receives ten times the first one.
    let joined = (word & LOW_HALVES).wrapping_mul(10 << 8 | 1);
    let [_, first, _, second, _, third, _, fourth] = joined.to_le_bytes();
    [first, second, third, fourth]
}

/// Returns the number of eight digits. Each of three steps joins two neighbours, for all of them at once.
pub(super) fn eight_digits(word: u64) -> u32 {
    let pairs = ((word & LOW_HALVES).wrapping_mul(10 << 8 | 1) >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs.wrapping_mul(100 << 16 | 1) >> 16) & 0x0000_ffff_0000_ffff;
    (fours.wrapping_mul(10_000 << 32 | 1) >> 32) as u32
}

/// Returns the eight digits of a number below 100,000,000: [`eight_digits`] the other way round.
///
/// Each step parts numbers into two, for all of them at once. The products by 10,486 and 103 are quotients by 100 and
/// 10 of numbers below 10,000 and 100, times a power of two.
pub(super) fn ascii(number: u32) -> [u8; 8] {
    let fours = u64::from(number / 10_000) | u64::from(number % 10_000) << 32;
    let hundreds = (fours.wrapping_mul(10_486) >> 20) & 0x0000_007f_0000_007f;
    let pairs = hundreds | (fours - 100 * hundreds) << 16;
    let tens = (pairs.wrapping_mul(103) >> 10) & 0x000f_000f_000f_000f;
    let digits = tens | (pairs - 10 * tens) << 8;
    (digits | 0x3030_3030_3030_3030).to_le_bytes()
}

/// Returns whether the calendar has a date, given as century, year of it, month and day. MySQL's year 0 is no year.
pub(super) fn is_date([century, year, month, day]: [u8; 4]) -> bool {
    const DAYS: [u8; 256] = {
        let mut days = [0; 256];
        let lengths = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let mut month = 0;
        while month < lengths.len() {
            days[month + 1] = lengths[month];
            month += 1;
        }
        days
    };
    // Of full centuries, each fourth has a leap day.
    let is_leap = (if year == 0 { century } else { year }).is_multiple_of(4);
    let last = DAYS[usize::from(month)] + u8::from(is_leap & (month == 2));
    ((century | year) > 0) & (day > 0) & (day <= last)
}

/// Returns whether all bytes are digits. It checks eight at once, and stops nowhere: a core predicts no stop.
pub(super) fn are_digits(text: &[u8; DIGITS]) -> bool {
    const ZEROS: u64 = 0x3030_3030_3030_3030;
    const SIXES: u64 = 0x0606_0606_0606_0606;
    // A digit's high half is that of zero, and adding six leaves it so. The last two words share a byte.
    let are = |at: usize| {
        let word = word(text, at);
        ((word & !LOW_HALVES) == ZEROS) & ((word.wrapping_add(SIXES) & !LOW_HALVES) == ZEROS)
    };
    are(0) & are(8) & are(16) & are(SEQUENCE_AT)
}
