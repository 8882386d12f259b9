//! Derived tables of the configuration: their numbers and names.

use std::num::NonZeroU32;
use std::sync::Arc;

use anabranch_schemas::birthday::Layout;
use anabranch_schemas::celebration::{Birthday, Calendar};
use anabranch_schemas::serial::LengthClass;

use super::values;
use crate::records::FluxPlaces;

/// The tables of the solar or the lunar birthday layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BirthdayTables {
    pub calendar: Calendar,
    /// Whether the calendar that users celebrate by is captured (`birthday_type`); otherwise all celebrate by the solar
    /// one.
    pub captures_type: bool,
    pub layout: Layout,
    pub databases: NonZeroU32,
    /// Pattern with `{db}`, such as `birthday_{db:02}`.
    pub database: String,
    /// Pattern with `{mmdd}`, such as `birthday_{mmdd}` or `lunar_birthday_{mmdd}`.
    pub table: String,
}

/// The mapping layer's tables: a database for each length class, each with the same tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappingTables {
    /// Tables in each database.
    pub tables: NonZeroU32,
    /// Pattern with `{length}`, such as `serial_code_{length}`: 15, 14, other.
    pub database: String,
    /// Pattern with `{table}`, such as `mapping_{table:03}`.
    pub table: String,
}

/// The relation index of payment documents: one database with a table for each user partition.
#[derive(Debug, Clone)]
pub struct RelationTables {
    /// Name of the database.
    pub database: String,
    /// Pattern with `{partition}`, such as `flux_relation_{partition:02}`.
    pub table: String,
    /// The right tables of payment documents, for the audit of each change.
    pub places: Arc<FluxPlaces>,
}

impl BirthdayTables {
    /// Returns the physical name of database `number`.
    pub fn database_name(&self, number: u32) -> String {
        values::fill(&self.database, "db", number)
    }

    /// Returns the physical name of a birthday's table.
    pub fn table_name(&self, birthday: Birthday) -> String {
        self.table.replace("{mmdd}", &birthday.compact())
    }

    /// Returns the numbers of the databases with a table of the birthday: one (`by_day`), or all of them (`by_user`).
    pub fn databases_of(&self, birthday: Birthday) -> impl Iterator<Item = u32> {
        let (layout, databases, ordinal) = (self.layout, self.databases.get(), birthday.ordinal());
        (0..databases).filter(move |database| layout.has_table(databases, *database, ordinal))
    }
}

impl MappingTables {
    /// Returns the physical name of a length class's database.
    pub fn database_name(&self, class: LengthClass) -> String {
        self.database.replace("{length}", class.name())
    }

    /// Returns the physical name of table `number`.
    pub fn table_name(&self, number: u32) -> String {
        values::fill(&self.table, "table", number)
    }
}

impl RelationTables {
    /// Returns the physical name of the table of a user partition.
    pub fn table_name(&self, partition: u32) -> String {
        values::fill(&self.table, "partition", partition)
    }
}
