//! Serial code tables: `inventory_3.serial_code_07`, and `inventory_history.serial_code_07`, into which rows move.
//!
//! A device has a number, which the product's generator gave it; its uuid is that number in decimal. In databases with
//! uuids of text, one device in seven has a uuid of 64 digits that ends in its number instead.

use anabranch_schemas::sql::serial_code_table;

use super::SourceTable;

/// Patterns of the physical names, as in the daemon's configuration: online, and history.
pub const SERIAL_TABLES: [&str; 2] =
    ["inventory_{db}.serial_code_{table:02}", "inventory_history.serial_code_{table:02}"];
/// Databases of the online tables.
pub const INVENTORY_DATABASES: u32 = 5;
/// Most digits of a `u64`.
pub(super) const NUMBER_DIGITS: usize = 20;

/// Column type of a uuid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UuidType {
    Integer,
    Text,
}

impl UuidType {
    /// Text in two of the online databases, one on each server, and in the history, which so can hold any uuid.
    pub fn of(source_table: SourceTable) -> Self {
        match source_table.database {
            1 | 3 | INVENTORY_DATABASES.. => Self::Text,
            _ => Self::Integer,
        }
    }

    pub fn sql(self) -> &'static str {
        match self {
            Self::Integer => "BIGINT UNSIGNED",
            Self::Text => "VARCHAR(64)",
        }
    }
}

pub(super) fn create_table(source_table: SourceTable) -> String {
    serial_code_table(
        &source_table.database_name(),
        &source_table.table_name(),
        UuidType::of(source_table).sql(),
    )
}

/// Returns the uuid of the device of that number. Its last digits are the number's, so it belongs in the same table.
pub fn uuid(number: u64) -> String {
    let is_text = matches!(number % u64::from(INVENTORY_DATABASES), 1 | 3);
    match is_text && number.is_multiple_of(7) {
        true if number.is_multiple_of(2) => format!("{number:064}"),
        true => format!("{:9>44}{number:020}", ""),
        false => number.to_string(),
    }
}
