//! Writes a cell as SQL text that means the same in any SQL mode and character set.

use std::fmt::Write as _;

use anabranch_pipeline::records::Cell;

use crate::mysql::connection::{push_bytes, push_number};

pub(super) fn push_cell(sql: &mut String, cell: &Cell) {
    match cell {
        Cell::Null => sql.push_str("NULL"),
        Cell::Int(number) => write!(sql, "{number}").expect("writing to a String cannot fail"),
        Cell::UInt(number) => push_number(sql, *number),
        Cell::Bytes(bytes) => push_bytes(sql, bytes),
    }
}
