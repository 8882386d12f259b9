//! MySQL's packed DECIMAL: nine digits in four bytes, the rest in fewer, the first bit inverted, negative numbers
//! inverted as a whole.

use std::fmt::Write as _;

use super::wire::{Malformed, big};

const DIGITS_PER_GROUP: u8 = 9;
/// Bytes of a group of 0 to 9 digits.
const GROUP_BYTES: [u8; 10] = [0, 1, 1, 2, 2, 3, 3, 4, 4, 4];
const PRECISION_MAX: u8 = 65;
const SCALE_MAX: u8 = 38;

pub fn is_valid(precision: u8, scale: u8) -> bool {
    (1..=PRECISION_MAX).contains(&precision) && scale <= SCALE_MAX && scale <= precision
}

/// Returns the length of a cell in bytes.
pub fn length_bytes(precision: u8, scale: u8) -> u8 {
    part_bytes(precision - scale) + part_bytes(scale)
}

fn part_bytes(digits: u8) -> u8 {
    digits / DIGITS_PER_GROUP * 4 + GROUP_BYTES[usize::from(digits % DIGITS_PER_GROUP)]
}

/// Returns the text as SQL prints it: `-12.30` for DECIMAL(10,2).
pub fn to_text(cell: &[u8], precision: u8, scale: u8) -> Result<String, Malformed> {
    let mut bytes = [0u8; 32];
    let bytes = bytes.get_mut(..cell.len()).ok_or(Malformed("a DECIMAL is too long"))?;
    bytes.copy_from_slice(cell);
    let first = bytes.first_mut().ok_or(Malformed("a DECIMAL without bytes"))?;
    let negative = *first & 0x80 == 0;
    *first ^= 0x80;
    if negative {
        bytes.iter_mut().for_each(|byte| *byte = !*byte);
    }
    let mut text = String::with_capacity(usize::from(precision) + 3);
    if negative {
        text.push('-');
    }
    let whole_digits = precision - scale;
    let start = text.len();
    let mut rest = &*bytes;
    // The short group of the whole part comes first, the one of the fraction last.
    push_group(&mut text, &mut rest, whole_digits % DIGITS_PER_GROUP)?;
    for _ in 0..whole_digits / DIGITS_PER_GROUP {
        push_group(&mut text, &mut rest, DIGITS_PER_GROUP)?;
    }
    let zeros = text[start..].bytes().take_while(|digit| *digit == b'0').count();
    text.replace_range(start..start + zeros, "");
    if text.len() == start {
        text.push('0');
    }
    if scale > 0 {
        text.push('.');
        for _ in 0..scale / DIGITS_PER_GROUP {
            push_group(&mut text, &mut rest, DIGITS_PER_GROUP)?;
        }
        push_group(&mut text, &mut rest, scale % DIGITS_PER_GROUP)?;
    }
    Ok(text)
}

fn push_group(text: &mut String, rest: &mut &[u8], digits: u8) -> Result<(), Malformed> {
    if digits == 0 {
        return Ok(());
    }
    let length = usize::from(GROUP_BYTES[usize::from(digits)]);
    let (group, tail) = rest.split_at_checked(length).ok_or(Malformed("a DECIMAL is too short"))?;
    *rest = tail;
    let number = big(group);
    if number >= 10u64.pow(u32::from(digits)) {
        return Err(Malformed("a DECIMAL with impossible digits"));
    }
    write!(text, "{number:0width$}", width = usize::from(digits)).expect("writing to a String cannot fail");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_mysql_manual() {
        // 1234567890.1234 as DECIMAL(14,4).
        let cell = [0x81, 0x0d, 0xfb, 0x38, 0xd2, 0x04, 0xd2];
        assert_eq!(length_bytes(14, 4), 7);
        assert_eq!(to_text(&cell, 14, 4).unwrap(), "1234567890.1234");
        let negative: Vec<u8> = cell.iter().map(|byte| !byte).collect();
        assert_eq!(to_text(&negative, 14, 4).unwrap(), "-1234567890.1234");
    }

    #[test]
    fn zero_and_fractions_keep_one_whole_digit() {
        assert_eq!(to_text(&[0x80, 0x00], 4, 2).unwrap(), "0.00");
        assert_eq!(to_text(&[0x80, 0x05], 4, 2).unwrap(), "0.05");
        assert_eq!(to_text(&[0x87], 1, 0).unwrap(), "7");
        assert_eq!(to_text(&[0x87], 1, 1).unwrap(), "0.7");
    }
}
