//! The position between two pages of a derived table: the shard and the key of the last row. No lane may own the shard.

use anabranch_pipeline::records::{Cell, CellRef, ScanCursor};
use anabranch_schemas::change::Value;
use anabranch_schemas::codec::{decode_values, encode_values};

/// Makes the position after a row.
pub(crate) fn after_row(shard: u64, key: &[CellRef<'_>]) -> ScanCursor {
    let shard = Value::UInt(shard);
    let key = key.iter().map(|cell| match *cell {
        CellRef::Null => Value::Null,
        CellRef::Int(number) => Value::Int(number),
        CellRef::UInt(number) => Value::UInt(number),
        CellRef::Bytes(bytes) => Value::Bytes(bytes.into()),
    });
    let values: Vec<Value<'_>> = std::iter::once(shard).chain(key).collect();
    ScanCursor(encode_values(&values).into())
}

/// Reads a position that [`after_row`] made; `None` for other bytes.
pub(crate) fn decode(cursor: &ScanCursor) -> Option<(u64, Box<[Cell]>)> {
    let mut values = decode_values(&cursor.0)?.into_iter();
    let Value::UInt(shard) = values.next()? else { return None };
    let cell = |value: Value<'_>| match value {
        Value::Null => Some(Cell::Null),
        Value::Int(number) => Some(Cell::Int(number)),
        Value::UInt(number) => Some(Cell::UInt(number)),
        Value::Bytes(bytes) => Some(Cell::Bytes(bytes.into_owned().into())),
        _ => None,
    };
    Some((shard, values.map(cell).collect::<Option<_>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_was_written() {
        let key = [CellRef::Bytes(b"\xff"), CellRef::UInt(u64::MAX), CellRef::Null, CellRef::Int(-1)];
        let cursor = after_row(u64::MAX, &key);
        assert_eq!(decode(&cursor), Some((u64::MAX, key.map(CellRef::to_owned).into())));
        assert_eq!(decode(&ScanCursor(b"x".as_slice().into())), None);
    }
}
