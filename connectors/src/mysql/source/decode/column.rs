//! The format of a column in a table map: the length of its cells, and how to decode them.
//!
//! Every type of MySQL and MariaDB can be skipped; those that a row can carry as a [`Value`] can be decoded. Compressed
//! columns, geometry and vectors can only be skipped.

use std::borrow::Cow;

use anabranch_schemas::change::Value;

use super::decimal;
use super::gtid::Flavor;
use super::wire::{Malformed, Reader, big, little};

/// Type and metadata of a column, resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Null,
    Integer {
        bytes: u8,
    },
    Float,
    Double,
    Decimal {
        precision: u8,
        scale: u8,
    },
    /// CHAR, VARCHAR, BINARY, VARBINARY: a length of `prefix` bytes, then the content.
    Text {
        prefix: u8,
    },
    /// TEXT and BLOB of every size, and MariaDB's JSON.
    Blob {
        prefix: u8,
    },
    /// MySQL's binary JSON.
    Json {
        prefix: u8,
    },
    Enum {
        bytes: u8,
    },
    Set {
        bytes: u8,
    },
    Bit {
        bytes: u8,
    },
    Year,
    Date,
    /// A time with `decimals` of a second, 0 to 6, as in the next two.
    Time {
        decimals: u8,
    },
    DateTime {
        decimals: u8,
    },
    Timestamp {
        decimals: u8,
    },
    /// A form before MySQL 5.6, as the next two: tables that were never rebuilt keep it.
    OldTime,
    OldDateTime,
    OldTimestamp,
    /// A type that is skipped, never decoded: geometry, vector, compressed columns.
    Opaque {
        prefix: u8,
    },
}

/// The way from the start of a cell to the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Fixed(u8),
    Prefixed(u8),
}

mod code {
    pub const DECIMAL: u8 = 0;
    pub const TINY: u8 = 1;
    pub const SHORT: u8 = 2;
    pub const LONG: u8 = 3;
    pub const FLOAT: u8 = 4;
    pub const DOUBLE: u8 = 5;
    pub const NULL: u8 = 6;
    pub const TIMESTAMP: u8 = 7;
    pub const LONG_LONG: u8 = 8;
    pub const INT24: u8 = 9;
    pub const DATE: u8 = 10;
    pub const TIME: u8 = 11;
    pub const DATETIME: u8 = 12;
    pub const YEAR: u8 = 13;
    pub const NEW_DATE: u8 = 14;
    pub const VARCHAR: u8 = 15;
    pub const BIT: u8 = 16;
    pub const TIMESTAMP2: u8 = 17;
    pub const DATETIME2: u8 = 18;
    pub const TIME2: u8 = 19;
    /// MariaDB: `BLOB COMPRESSED`.
    pub const BLOB_COMPRESSED: u8 = 140;
    /// MariaDB: `VARCHAR(n) COMPRESSED`.
    pub const VARCHAR_COMPRESSED: u8 = 141;
    pub const VECTOR: u8 = 242;
    pub const JSON: u8 = 245;
    pub const NEW_DECIMAL: u8 = 246;
    pub const ENUM: u8 = 247;
    pub const SET: u8 = 248;
    pub const TINY_BLOB: u8 = 249;
    pub const MEDIUM_BLOB: u8 = 250;
    pub const LONG_BLOB: u8 = 251;
    pub const BLOB: u8 = 252;
    pub const VAR_STRING: u8 = 253;
    pub const STRING: u8 = 254;
    pub const GEOMETRY: u8 = 255;
}

impl Format {
    /// Reads a column's metadata; `type_code` is its type in the table map.
    pub fn read(type_code: u8, metadata: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut byte = || metadata.u8();
        Ok(match type_code {
            code::NULL => Self::Null,
            code::TINY => Self::Integer { bytes: 1 },
            code::SHORT => Self::Integer { bytes: 2 },
            code::INT24 => Self::Integer { bytes: 3 },
            code::LONG => Self::Integer { bytes: 4 },
            code::LONG_LONG => Self::Integer { bytes: 8 },
            code::FLOAT => only(Self::Float, byte()? == 4, "a FLOAT is not 4 bytes long")?,
            code::DOUBLE => only(Self::Double, byte()? == 8, "a DOUBLE is not 8 bytes long")?,
            code::NEW_DECIMAL => {
                let (precision, scale) = (byte()?, byte()?);
                only(
                    Self::Decimal { precision, scale },
                    decimal::is_valid(precision, scale),
                    "impossible digits of a DECIMAL",
                )?
            }
            code::DATE | code::NEW_DATE => Self::Date,
            code::YEAR => Self::Year,
            code::TIME => Self::OldTime,
            code::DATETIME => Self::OldDateTime,
            code::TIMESTAMP => Self::OldTimestamp,
            code::TIME2 => Self::Time { decimals: decimals(byte()?)? },
            code::DATETIME2 => Self::DateTime { decimals: decimals(byte()?)? },
            code::TIMESTAMP2 => Self::Timestamp { decimals: decimals(byte()?)? },
            code::BIT => {
                let (bits, bytes) = (byte()?, byte()?);
                let bytes = bytes.saturating_add(u8::from(bits > 0));
                only(Self::Bit { bytes }, (1..=8).contains(&bytes), "impossible length of a BIT")?
            }
            code::VARCHAR | code::VAR_STRING => Self::Text { prefix: varchar_prefix(metadata)? },
            code::VARCHAR_COMPRESSED => Self::Opaque { prefix: varchar_prefix(metadata)? },
            code::TINY_BLOB | code::MEDIUM_BLOB | code::LONG_BLOB | code::BLOB => {
                Self::Blob { prefix: blob_prefix(byte()?)? }
            }
            code::JSON => Self::Json { prefix: blob_prefix(byte()?)? },
            code::BLOB_COMPRESSED | code::GEOMETRY | code::VECTOR => {
                Self::Opaque { prefix: blob_prefix(byte()?)? }
            }
            code::STRING | code::ENUM | code::SET => Self::string(byte()?, byte()?)?,
            // These are DECIMAL before MySQL 5.0, multi-valued indexes (243) and types newer than this build.
            _ => return Err(Malformed("a column type that this build does not know")),
        })
    }

    /// Resolves the type that CHAR, BINARY, ENUM and SET share; its two bytes hold the real type and the length.
    fn string(first: u8, second: u8) -> Result<Self, Malformed> {
        let bytes_are =
            |limit: u8| only(second, (1..=limit).contains(&second), "impossible length of an ENUM or SET");
        match first {
            code::ENUM => Ok(Self::Enum { bytes: bytes_are(2)? }),
            code::SET => Ok(Self::Set { bytes: bytes_are(8)? }),
            _ => {
                // Two bits of a length above 255 are stored inverted in bits 4 and 5 of the type.
                let length = u16::from(second) | (u16::from(first & 0x30) ^ 0x30) << 4;
                Ok(Self::Text { prefix: if length < 256 { 1 } else { 2 } })
            }
        }
    }

    pub fn step(self) -> Step {
        Step::Fixed(match self {
            Self::Null => 0,
            Self::Integer { bytes } | Self::Enum { bytes } | Self::Set { bytes } | Self::Bit { bytes } => {
                bytes
            }
            Self::Year => 1,
            Self::Date | Self::OldTime => 3,
            Self::Float | Self::OldTimestamp => 4,
            Self::Double | Self::OldDateTime => 8,
            Self::Decimal { precision, scale } => decimal::length_bytes(precision, scale),
            Self::Time { decimals } => 3 + fraction_bytes(decimals),
            Self::DateTime { decimals } => 5 + fraction_bytes(decimals),
            Self::Timestamp { decimals } => 4 + fraction_bytes(decimals),
            Self::Text { prefix }
            | Self::Blob { prefix }
            | Self::Json { prefix }
            | Self::Opaque { prefix } => {
                return Step::Prefixed(prefix);
            }
        })
    }

    pub fn is_decodable(self) -> bool {
        !matches!(self, Self::Opaque { .. })
    }

    /// Whether the table map has a sign bit for this column.
    pub fn has_sign(type_code: u8) -> bool {
        matches!(
            type_code,
            code::TINY | code::SHORT | code::INT24 | code::LONG | code::LONG_LONG | code::FLOAT | code::DOUBLE
                | code::DECIMAL | code::NEW_DECIMAL
                // Both servers count YEAR, too.
                | code::YEAR
        )
    }

    /// Whether the metadata of table maps has a collation for columns of this format and type.
    pub fn has_collation(self, type_code: u8, flavor: Flavor) -> bool {
        match self {
            Self::Text { .. } | Self::Blob { .. } => true,
            // Compressed columns and vectors have one; geometry has one on MariaDB only.
            Self::Opaque { .. } => type_code != code::GEOMETRY || flavor == Flavor::MariaDb,
            _ => false,
        }
    }

    /// Decodes one cell: exactly the bytes that [`Self::step`] covers, without a length prefix.
    pub fn decode<'a>(self, cell: &'a [u8], unsigned: bool) -> Result<Value<'a>, Malformed> {
        Ok(match self {
            Self::Null => Value::Null,
            Self::Integer { .. } if unsigned => Value::UInt(little(cell)),
            Self::Integer { bytes } => {
                let unused_bits = 64 - 8 * u32::from(bytes);
                Value::Int((little(cell) << unused_bits) as i64 >> unused_bits)
            }
            Self::Float => Value::Double(f64::from(f32::from_bits(little(cell) as u32))),
            Self::Double => Value::Double(f64::from_bits(little(cell))),
            Self::Decimal { precision, scale } => {
                Value::Bytes(Cow::Owned(decimal::to_text(cell, precision, scale)?.into_bytes()))
            }
            Self::Text { .. } | Self::Blob { .. } | Self::Json { .. } => Value::Bytes(Cow::Borrowed(cell)),
            Self::Enum { .. } | Self::Set { .. } => Value::UInt(little(cell)),
            Self::Bit { .. } => Value::UInt(big(cell)),
            Self::Year => Value::UInt(match little(cell) {
                0 => 0,
                years => 1900 + years,
            }),
            Self::Date => {
                let packed = little(cell);
                Value::Date {
                    year: (packed >> 9) as u16,
                    month: (packed >> 5 & 15) as u8,
                    day: (packed & 31) as u8,
                }
            }
            Self::Time { decimals } => Value::Time { microseconds: time(cell, decimals) },
            Self::DateTime { decimals } => date_time(cell, decimals),
            Self::Timestamp { decimals } => {
                let (seconds, fraction) = cell.split_at(4);
                let microseconds =
                    big(seconds) as i64 * 1_000_000 + fraction_microseconds(fraction, decimals);
                Value::Timestamp { microseconds }
            }
            Self::OldTime => Value::Time { microseconds: old_time(cell) },
            Self::OldDateTime => old_date_time(cell),
            Self::OldTimestamp => Value::Timestamp { microseconds: little(cell) as i64 * 1_000_000 },
            Self::Opaque { .. } => return Err(Malformed("a column that cannot be decoded")),
        })
    }
}

fn only<T>(value: T, holds: bool, otherwise: &'static str) -> Result<T, Malformed> {
    if holds { Ok(value) } else { Err(Malformed(otherwise)) }
}

fn decimals(byte: u8) -> Result<u8, Malformed> {
    only(byte, byte <= 6, "more than 6 decimals of a second")
}

fn blob_prefix(byte: u8) -> Result<u8, Malformed> {
    only(byte, (1..=4).contains(&byte), "impossible length of a BLOB's length")
}

fn varchar_prefix(metadata: &mut Reader<'_>) -> Result<u8, Malformed> {
    Ok(if metadata.little(2)? < 256 { 1 } else { 2 })
}

fn fraction_bytes(decimals: u8) -> u8 {
    decimals.div_ceil(2)
}

/// Decodes a fraction, which is stored in hundredths, ten-thousandths or millionths by its length.
fn fraction_microseconds(bytes: &[u8], decimals: u8) -> i64 {
    big(bytes) as i64 * fraction_scale(decimals)
}

fn fraction_scale(decimals: u8) -> i64 {
    match fraction_bytes(decimals) {
        1 => 10_000,
        2 => 100,
        _ => 1,
    }
}

/// Decodes a TIME: the whole cell is one offset binary number, so fraction and sign go together.
fn time(cell: &[u8], decimals: u8) -> i64 {
    let fraction_bits = 8 * u32::from(fraction_bytes(decimals));
    let packed = big(cell) as i64 - (1 << (23 + fraction_bits));
    let magnitude = packed.abs();
    let whole = magnitude >> fraction_bits;
    let fraction = (magnitude & ((1 << fraction_bits) - 1)) * fraction_scale(decimals);
    let seconds = (whole >> 12 & 0x3ff) * 3600 + (whole >> 6 & 0x3f) * 60 + (whole & 0x3f);
    (seconds * 1_000_000 + fraction) * packed.signum()
}

fn date_time<'a>(cell: &[u8], decimals: u8) -> Value<'a> {
    let (whole, fraction) = cell.split_at(5);
    let packed = big(whole) & 0x7f_ffff_ffff;
    let (date, clock) = (packed >> 17, packed & 0x1_ffff);
    let months = date >> 5;
    Value::DateTime {
        year: (months / 13) as u16,
        month: (months % 13) as u8,
        day: (date & 31) as u8,
        hour: (clock >> 12) as u8,
        minute: (clock >> 6 & 63) as u8,
        second: (clock & 63) as u8,
        microsecond: fraction_microseconds(fraction, decimals) as u32,
    }
}

/// Decodes `hhmmss` in a signed decimal number, into microseconds.
fn old_time(cell: &[u8]) -> i64 {
    let packed = (little(cell) << 40) as i64 >> 40;
    let magnitude = packed.abs();
    let seconds = magnitude / 10_000 * 3600 + magnitude / 100 % 100 * 60 + magnitude % 100;
    seconds * 1_000_000 * packed.signum()
}

/// Decodes `yyyymmddhhmmss` in a decimal number.
fn old_date_time<'a>(cell: &[u8]) -> Value<'a> {
    let packed = little(cell);
    let (date, clock) = (packed / 1_000_000, packed % 1_000_000);
    Value::DateTime {
        year: (date / 10_000).min(9999) as u16,
        month: (date / 100 % 100) as u8,
        day: (date % 100) as u8,
        hour: (clock / 10_000) as u8,
        minute: (clock / 100 % 100) as u8,
        second: (clock % 100) as u8,
        microsecond: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(type_code: u8, metadata: &[u8]) -> Result<Format, Malformed> {
        Format::read(type_code, &mut Reader::new(metadata))
    }

    #[test]
    fn a_char_beyond_255_bytes_hides_its_length_in_its_type() {
        assert_eq!(format(code::STRING, &[254, 200]), Ok(Format::Text { prefix: 1 }));
        // CHAR(200) utf8mb4: 800 bytes.
        assert_eq!(format(code::STRING, &[0xce, 0x20]), Ok(Format::Text { prefix: 2 }));
        assert_eq!(format(code::STRING, &[code::ENUM, 1]), Ok(Format::Enum { bytes: 1 }));
        assert_eq!(format(code::STRING, &[code::SET, 8]), Ok(Format::Set { bytes: 8 }));
    }

    #[test]
    fn negative_integers_keep_their_sign_in_every_width() {
        for bytes in [1u8, 2, 3, 4, 8] {
            let cell = &[0xfd, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff][..usize::from(bytes)];
            assert_eq!(Format::Integer { bytes }.decode(cell, false), Ok(Value::Int(-3)));
        }
        assert_eq!(
            Format::Integer { bytes: 3 }.decode(&[0xfd, 0xff, 0xff], true),
            Ok(Value::UInt(16_777_213))
        );
    }

    #[test]
    fn a_negative_time_with_a_fraction_borrows_from_the_whole() {
        // -00:00:00.1 as TIME(1), stored as 7FFFFF F6.
        let value = Format::Time { decimals: 1 }.decode(&[0x7f, 0xff, 0xff, 0xf6], false);
        assert_eq!(value, Ok(Value::Time { microseconds: -100_000 }));
        let value = Format::Time { decimals: 0 }.decode(&[0x80, 0x10, 0x83], false);
        assert_eq!(value, Ok(Value::Time { microseconds: (3600 + 2 * 60 + 3) * 1_000_000 }));
    }

    #[test]
    fn the_old_forms_are_decimal_numbers() {
        let packed = 20_240_229_123_456u64.to_le_bytes();
        assert_eq!(
            Format::OldDateTime.decode(&packed, false),
            Ok(Value::DateTime {
                year: 2024,
                month: 2,
                day: 29,
                hour: 12,
                minute: 34,
                second: 56,
                microsecond: 0
            })
        );
        let packed = (-123_456i32).to_le_bytes();
        let value = Format::OldTime.decode(&packed[..3], false);
        assert_eq!(value, Ok(Value::Time { microseconds: -(12 * 3600 + 34 * 60 + 56) * 1_000_000 }));
    }

    #[test]
    fn impossible_metadata_is_refused() {
        for (type_code, metadata) in [
            (code::FLOAT, &[8][..]),
            (code::NEW_DECIMAL, &[66, 0]),
            (code::NEW_DECIMAL, &[5, 6]),
            (code::DATETIME2, &[7]),
            (code::BLOB, &[5]),
            (code::BIT, &[1, 8]),
            (code::STRING, &[code::SET, 9]),
            (code::VARCHAR, &[1]),
            (243, &[]),
        ] {
            assert!(format(type_code, metadata).is_err(), "{type_code} {metadata:?}");
        }
    }
}
