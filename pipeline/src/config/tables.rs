//! Derived tables as they are configured: how many there are, and what they are called.

use std::num::NonZeroU32;

use anabranch_schemas::birthday::Layout;
use anabranch_schemas::celebration::{Birthday, Calendar};
use anabranch_schemas::serial::LengthClass;

use super::values;

/// The tables of the birthday layer, or of the lunar one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BirthdayTables {
    pub calendar: Calendar,
    /// The calendar that users celebrate by is captured (`birthday_type`); else all of them celebrate by the solar one.
    pub captures_type: bool,
    pub layout: Layout,
    pub databases: NonZeroU32,
    /// Pattern with `{db}`, such as `birthday_{db:02}`.
    pub database: String,
    /// Pattern with `{mmdd}`, such as `birthday_{mmdd}` or `lunar_birthday_{mmdd}`.
    pub table: String,
}

/// The mapping layer's tables: a database for each length class, each with all tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappingTables {
    /// Tables a database.
    pub tables: NonZeroU32,
    /// Pattern with `{length}`, such as `serial_code_{length}`: 15, 14, other.
    pub database: String,
    /// Pattern with `{table}`, such as `mapping_{table:03}`.
    pub table: String,
}

impl BirthdayTables {
    /// The physical name of database `number`.
    pub fn database_name(&self, number: u32) -> String {
        values::fill(&self.database, "db", number)
    }

    /// The physical name of a birthday's table.
    pub fn table_name(&self, birthday: Birthday) -> String {
        self.table.replace("{mmdd}", &birthday.compact())
    }

    /// Numbers of the databases that have a table of the birthday: one (`by_day`), or all of them (`by_user`).
    pub fn databases_of(&self, birthday: Birthday) -> impl Iterator<Item = u32> {
        let (layout, databases, ordinal) = (self.layout, self.databases.get(), birthday.ordinal());
        (0..databases).filter(move |database| layout.has_table(databases, *database, ordinal))
    }
}

impl MappingTables {
    /// The physical name of a length class's database.
    pub fn database_name(&self, class: LengthClass) -> String {
        self.database.replace("{length}", class.name())
    }

    /// The physical name of table `number`.
    pub fn table_name(&self, number: u32) -> String {
        values::fill(&self.table, "table", number)
    }
}
