//! A value of a chunk: as the server's text, as the value of a row event, and as a literal.

use std::borrow::Cow;

use anabranch_pipeline::records::Cell;
use anabranch_schemas::change::{Entity, Value};
use anabranch_schemas::serial;

use crate::mysql::connection::push_bytes;
use crate::mysql::source::server::tables::accepts_data_type;

/// The meaning of the text of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Signed,
    Unsigned,
    Bytes,
    /// A DECIMAL, which is the text of its digits. It is captured and neither a key nor compared.
    Decimal,
    Date,
    DateTime,
    /// A timestamp, which is selected as seconds since 1970.
    Timestamp,
}

impl Kind {
    /// Returns the kind of a captured column; `None` when it cannot be captured.
    pub(super) fn of_field(entity: Entity, field: usize, data_type: &str, unsigned: bool) -> Option<Self> {
        let of_type = || match data_type {
            "decimal" => Some(Self::Decimal),
            _ => Self::of(data_type, unsigned),
        };
        accepts_data_type(entity, field, data_type).then(of_type).flatten()
    }

    /// Returns the kind of a column of a primary key; `None` if a statement cannot distinguish rows by it.
    pub(super) fn of_key(data_type: &str, unsigned: bool) -> Option<Self> {
        match data_type {
            "binary" | "varbinary" => Some(Self::Bytes),
            _ => Self::of(data_type, unsigned).filter(|kind| *kind != Self::Timestamp),
        }
    }

    /// Returns the kind of a column that is compared with a value.
    pub(super) fn compared(data_type: &str, unsigned: bool) -> Option<Self> {
        Self::of_key(data_type, unsigned).or_else(|| Self::of(data_type, unsigned))
    }

    /// Parses a value as people write it; a moment is UTC, and may be a date.
    pub(super) fn typed(self, text: &str) -> Option<Value<'static>> {
        match self {
            Self::Signed | Self::Unsigned | Self::Bytes => self.parse(text.as_bytes()).map(Value::into_owned),
            Self::Date => {
                let (year, month, day) = date(text).filter(|(_, month, day)| *month <= 12 && *day <= 31)?;
                let value = Value::Date { year, month, day };
                (literal(&value, "") == format!("'{text}'")).then_some(value)
            }
            Self::DateTime | Self::Timestamp => {
                let whole = if text.contains(' ') { text.to_owned() } else { format!("{text} 00:00:00") };
                let value = Self::DateTime.parse(whole.as_bytes())?.into_owned();
                let Value::DateTime { month, day, hour, minute, second, .. } = value else { return None };
                let is_time = month <= 12 && day <= 31 && hour < 24 && minute < 60 && second < 60;
                let is_exact = literal(&value, "").starts_with(&format!("'{whole}"));
                (is_time && is_exact).then_some(value)
            }
            Self::Decimal => None,
        }
    }

    fn of(data_type: &str, unsigned: bool) -> Option<Self> {
        Some(match data_type {
            "tinyint" | "smallint" | "mediumint" | "int" | "bigint" if unsigned => Self::Unsigned,
            "tinyint" | "smallint" | "mediumint" | "int" | "bigint" => Self::Signed,
            "char" | "varchar" | "tinytext" | "text" | "mediumtext" | "longtext" => Self::Bytes,
            "date" => Self::Date,
            "datetime" => Self::DateTime,
            "timestamp" => Self::Timestamp,
            _ => return None,
        })
    }

    /// Returns the SQL that selects a (quoted) column.
    pub(super) fn selected(self, name: &str) -> String {
        match self {
            Self::Timestamp => format!("UNIX_TIMESTAMP({name})"),
            _ => name.to_owned(),
        }
    }

    /// Returns the value of a derived key in a column; `None` = it is in none of its rows.
    pub(super) fn of_cell(self, cell: &Cell) -> Option<Value<'static>> {
        let text = match cell {
            Cell::UInt(number) => number.to_string().into_bytes(),
            Cell::Bytes(bytes) => bytes.to_vec(),
            Cell::Null | Cell::Int(_) => return None,
        };
        match self {
            Self::Bytes => Some(Value::Bytes(text.into())),
            Self::Signed | Self::Unsigned => {
                let value = self.parse(&text)?.into_owned();
                // A number has one text: `07` is none.
                let is_exact = serial::text(&value).is_some_and(|exact| *exact == *text);
                is_exact.then_some(value)
            }
            Self::Decimal | Self::Date | Self::DateTime | Self::Timestamp => None,
        }
    }

    /// Returns the value that a row event would have; `None` when the text is not of this kind.
    pub(super) fn decode(self, cell: &mysql_async::Value) -> Option<Value<'_>> {
        match cell {
            mysql_async::Value::NULL => Some(Value::Null),
            mysql_async::Value::Bytes(bytes) => self.parse(bytes),
            _ => None,
        }
    }

    fn parse(self, bytes: &[u8]) -> Option<Value<'_>> {
        if self == Self::Bytes {
            return Some(Value::Bytes(bytes.into()));
        }
        let text = std::str::from_utf8(bytes).ok()?;
        match self {
            Self::Signed => text.parse().ok().map(Value::Int),
            Self::Unsigned => text.parse().ok().map(Value::UInt),
            Self::Date => date(text).map(|(year, month, day)| Value::Date { year, month, day }),
            Self::DateTime => {
                let ((year, month, day), clock) = text
                    .split_once(' ')
                    .map(|(day, clock)| (date(day), clock))
                    .and_then(|(day, clock)| Some((day?, clock)))?;
                let (clock, microsecond) = fraction(clock)?;
                let mut parts = clock.split(':').map(|part| part.parse::<u8>().ok());
                let mut next = || parts.next().flatten();
                let (hour, minute, second) = (next()?, next()?, next()?);
                Some(Value::DateTime { year, month, day, hour, minute, second, microsecond })
            }
            Self::Timestamp => {
                let (seconds, microseconds) = fraction(text)?;
                let seconds: i64 = seconds.parse().ok()?;
                Some(Value::Timestamp { microseconds: seconds * 1_000_000 + i64::from(microseconds) })
            }
            Self::Decimal => Some(Value::Bytes(without_leading_zeros(text).into_owned().into_bytes().into())),
            Self::Bytes => unreachable!("taken above"),
        }
    }
}

/// Returns the digits of a DECIMAL as row events have them. The server's text of a ZEROFILL column begins with zeros.
fn without_leading_zeros(text: &str) -> Cow<'_, str> {
    let digits = text.trim_start_matches('0');
    match digits.starts_with('.') || digits.is_empty() {
        true => format!("0{digits}").into(),
        // A ZEROFILL column has no negative numbers, so no zeros follow a sign.
        false => digits.into(),
    }
}

fn date(text: &str) -> Option<(u16, u8, u8)> {
    let mut parts = text.split('-');
    let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
    Some((year.parse().ok()?, month.parse().ok()?, day.parse().ok()?))
}

/// Splits off the digits after the point; returns the text before it, and microseconds.
fn fraction(text: &str) -> Option<(&str, u32)> {
    const DIGITS: usize = 6;
    let Some((whole, digits)) = text.split_once('.') else { return Some((text, 0)) };
    let missing = DIGITS.checked_sub(digits.len())?;
    Some((whole, digits.parse::<u32>().ok()? * 10u32.pow(missing as u32)))
}

/// Returns a literal of a value that the column need not be able to hold: bytes that are no text of its character set
/// match no row and cause no error.
pub(super) fn exact_literal(value: &Value<'_>, character_set: &str, collation: &str) -> String {
    match (value, character_set) {
        (Value::Bytes(_), "") | (Value::Int(_) | Value::UInt(_), _) => literal(value, ""),
        _ => format!("CONVERT({} USING {character_set}) COLLATE {collation}", literal(value, "")),
    }
}

/// Returns the value of a key column as SQL. A text literal has the column's character set and takes its collation.
pub(super) fn literal(value: &Value<'_>, character_set: &str) -> String {
    match value {
        Value::Int(number) => number.to_string(),
        Value::UInt(number) => number.to_string(),
        Value::Bytes(bytes) => {
            let mut sql = match character_set {
                "" => String::new(),
                name => format!("_{name} "),
            };
            push_bytes(&mut sql, bytes);
            sql
        }
        Value::Date { year, month, day } => format!("'{year:04}-{month:02}-{day:02}'"),
        Value::DateTime { year, month, day, hour, minute, second, microsecond } => {
            format!("'{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{microsecond:06}'")
        }
        // No kind of key has these values.
        Value::Null | Value::Double(_) | Value::Timestamp { .. } | Value::Time { .. } => "NULL".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(kind: Kind, text: &str) -> Option<Value<'_>> {
        kind.parse(text.as_bytes())
    }

    #[test]
    fn text_becomes_the_value_of_a_row_event() {
        assert_eq!(decode(Kind::Signed, "-3"), Some(Value::Int(-3)));
        assert_eq!(decode(Kind::Unsigned, "0007"), Some(Value::UInt(7)), "ZEROFILL");
        assert_eq!(decode(Kind::Date, "0000-00-00"), Some(Value::Date { year: 0, month: 0, day: 0 }));
        let midnight = |microsecond| Value::DateTime {
            year: 2024,
            month: 2,
            day: 30,
            hour: 0,
            minute: 0,
            second: 1,
            microsecond,
        };
        assert_eq!(decode(Kind::DateTime, "2024-02-30 00:00:01"), Some(midnight(0)));
        assert_eq!(decode(Kind::DateTime, "2024-02-30 00:00:01.5"), Some(midnight(500_000)));
        assert_eq!(decode(Kind::Timestamp, "1.000001"), Some(Value::Timestamp { microseconds: 1_000_001 }));
        assert_eq!(decode(Kind::Timestamp, "0"), Some(Value::Timestamp { microseconds: 0 }));
        for (text, digits) in [
            ("12.3400", "12.3400"),
            ("-0.0001", "-0.0001"),
            ("0.5", "0.5"),
            ("0", "0"),
            ("0000", "0"),
            ("0012.50", "12.50"),
            ("000.50", "0.50"),
        ] {
            assert_eq!(decode(Kind::Decimal, text), Some(Value::Bytes(digits.as_bytes().into())), "{text}");
        }
        for (kind, text) in [
            (Kind::Signed, ""),
            (Kind::Date, "x"),
            (Kind::DateTime, "2024-02-30"),
            (Kind::Timestamp, "1.0000001"),
        ] {
            assert_eq!(decode(kind, text), None, "{kind:?}");
        }
    }

    #[test]
    fn a_derived_key_is_what_its_column_could_hold() {
        let text = |text: &str| Cell::Bytes(text.as_bytes().into());
        assert_eq!(Kind::Signed.of_cell(&text("-7")), Some(Value::Int(-7)));
        assert_eq!(Kind::Unsigned.of_cell(&Cell::UInt(u64::MAX)), Some(Value::UInt(u64::MAX)));
        assert_eq!(Kind::Bytes.of_cell(&Cell::UInt(7)), Some(Value::Bytes(b"7".as_slice().into())));
        for none in ["07", "+7", " 7", "x", "", "99999999999999999999"] {
            assert_eq!(Kind::Signed.of_cell(&text(none)), None, "{none}");
        }
        assert_eq!(Kind::Signed.of_cell(&Cell::UInt(u64::MAX)), None);
        let bytes = Value::Bytes(b"\xff'".as_slice().into());
        assert_eq!(exact_literal(&bytes, "gbk", "gbk_bin"), "CONVERT(x'ff27' USING gbk) COLLATE gbk_bin");
        assert_eq!(exact_literal(&bytes, "", ""), "x'ff27'");
    }

    #[test]
    fn a_literal_cannot_be_ended_by_its_value() {
        assert_eq!(literal(&Value::Bytes(b"a'\xff".to_vec().into()), "utf8mb4"), "_utf8mb4 x'6127ff'");
        assert_eq!(literal(&Value::Bytes(b"\0".to_vec().into()), ""), "x'00'");
        let date =
            Value::DateTime { year: 1, month: 2, day: 3, hour: 4, minute: 5, second: 6, microsecond: 7 };
        assert_eq!(literal(&date, ""), "'0001-02-03 04:05:06.000007'");
    }
}
