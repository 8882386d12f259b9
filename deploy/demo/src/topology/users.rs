//! User tables: `user_07.user_003`, with birthdays of all column types.

use anabranch_schemas::sql::user_table;

use super::SourceTable;

/// Pattern of the physical names, as in the daemon's configuration.
pub const USER_TABLES: &str = "user_{db:02}.user_{table:03}";

/// Column type of a birthday.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BirthdayType {
    Date,
    DateTime,
    DateTimeMicroseconds,
    Text,
}

impl BirthdayType {
    /// Returns a type that differs from database to database, so each run has all types on each server.
    pub fn of(source_table: SourceTable) -> Self {
        match source_table.database % 5 {
            0 | 3 => Self::Date,
            1 => Self::DateTime,
            2 => Self::Text,
            _ => Self::DateTimeMicroseconds,
        }
    }

    pub fn sql(self) -> &'static str {
        match self {
            Self::Date => "DATE",
            Self::DateTime => "DATETIME",
            Self::DateTimeMicroseconds => "DATETIME(6)",
            Self::Text => "VARCHAR(64) CHARACTER SET utf8mb4",
        }
    }
}

pub(super) fn create_table(source_table: SourceTable) -> String {
    user_table(
        &source_table.database_name(),
        &source_table.table_name(),
        BirthdayType::of(source_table).sql(),
    )
}
