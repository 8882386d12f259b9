//! The derived layer as an auditor knows it: which database and table a birthday belongs into, in SQL.
//!
//! Written from the documented layout and not from the projector's code, so that both must be right to agree.

use serde::Serialize;

use crate::endpoint::Endpoint;

/// How the 366 tables are spread over the databases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DerivedLayout {
    /// Each table once: database = day of a leap year, from 0, modulo the number of databases.
    ByDay,
    /// All tables in each database: database = user id modulo the number of databases.
    ByUser,
}

/// Databases `birthday_00`, `birthday_01`, … with tables `birthday_0101` … `birthday_1231`.
#[derive(Debug, Clone)]
pub struct DerivedLayer {
    pub layout: DerivedLayout,
    pub databases: u32,
    /// Database i lies on target i modulo their number.
    pub targets: Vec<Endpoint>,
}

/// Days of the months of a leap year.
const DAYS: [u32; 12] = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

impl DerivedLayer {
    pub fn target_of(&self, database: u32) -> usize {
        database as usize % self.targets.len().max(1)
    }

    pub fn database_name(database: u32) -> String {
        format!("birthday_{database:02}")
    }

    /// Every table that must exist: database number and table name.
    pub fn tables(&self) -> Vec<(u32, String)> {
        let days = DAYS.iter().zip(1..).flat_map(|(&days, month)| (1..=days).map(move |day| (month, day)));
        let named = days.map(|(month, day)| format!("birthday_{month:02}{day:02}"));
        match self.layout {
            DerivedLayout::ByDay => {
                named.zip(0..).map(|(table, ordinal)| (ordinal % self.databases.max(1), table)).collect()
            }
            DerivedLayout::ByUser => named
                .flat_map(|table| (0..self.databases).map(move |database| (database, table.clone())))
                .collect(),
        }
    }

    /// SQL: the number of the database for a row with `user_id` and `birthday` (MM-DD).
    pub(super) fn database_number_sql(&self) -> String {
        match self.layout {
            DerivedLayout::ByDay => {
                format!("(DAYOFYEAR(CONCAT('2000-', birthday)) - 1) % {}", self.databases)
            }
            DerivedLayout::ByUser => format!("user_id % {}", self.databases),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_day_has_366_tables_and_by_user_366_in_each_database() {
        let mut layer = DerivedLayer { layout: DerivedLayout::ByDay, databases: 4, targets: Vec::new() };
        assert_eq!(layer.tables().len(), 366);
        assert_eq!(layer.tables()[59], (3, "birthday_0229".to_owned()));
        layer.layout = DerivedLayout::ByUser;
        assert_eq!(layer.tables().len(), 4 * 366);
    }
}
