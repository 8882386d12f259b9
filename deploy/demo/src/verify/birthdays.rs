//! The birthday layer: SQL for the database and table in which a birthday belongs.
//!
//! Rules:
//! - NULL, zero, year 0, a date that no calendar has and malformed text are in no table.
//! - Between blanks, tabs and line ends a text is `YYYY-MM-DD`, optionally followed by a blank or `T` and any text.
//! - A lunar birthday is `MM-DD`, of twelve months of thirty days; a type means solar unless it is `lunar`, in any case
//!   and between blanks.

use anabranch_schemas::celebration::Calendar;
use serde::Serialize;

use super::tables::{Column, DerivedTables};
use crate::endpoint::Endpoint;
use crate::topology::{BirthdayType, SourceTable};

/// Distribution of a calendar's tables over the databases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DerivedLayout {
    /// Each table once: database = index of the day in the calendar, from 0, modulo the number of databases.
    ByDay,
    /// All tables in each database: database = user id modulo the number of databases.
    ByUser,
}

/// Databases `birthday_00`, `birthday_01`, … with tables `birthday_0101` … `birthday_1231`, or `lunar_birthday_0101` …
/// `lunar_birthday_1230`.
#[derive(Debug, Clone)]
pub struct BirthdayLayer {
    pub calendar: Calendar,
    pub layout: DerivedLayout,
    pub databases: u32,
    /// Targets: database i is on target i modulo their number.
    pub targets: Vec<Endpoint>,
}

/// Days of the months of a leap year.
const DAYS: [u32; 12] = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
/// Days of 366 that must have users; a few thousand users fill more by chance.
const DAYS_FILLED_MIN: u64 = 330;
/// Lunar days that must have users; half of the users have a lunar birthday.
const LUNAR_DAYS_FILLED_MIN: u64 = 250;

impl DerivedTables for BirthdayLayer {
    fn targets(&self) -> &[Endpoint] {
        &self.targets
    }

    fn databases(&self) -> u32 {
        self.databases
    }

    fn database_name(&self, database: u32) -> String {
        format!("birthday_{database:02}")
    }

    fn tables(&self) -> Vec<(u32, String)> {
        let months = match self.calendar {
            Calendar::Solar => DAYS,
            Calendar::Lunar => [30; 12],
        };
        let days = months.iter().zip(1..).flat_map(|(&days, month)| (1..=days).map(move |day| (month, day)));
        let named = days.map(|(month, day)| format!("{}_{month:02}{day:02}", self.name()));
        match self.layout {
            DerivedLayout::ByDay => {
                named.zip(0..).map(|(table, ordinal)| (ordinal % self.databases.max(1), table)).collect()
            }
            DerivedLayout::ByUser => named
                .flat_map(|table| (0..self.databases).map(move |database| (database, table.clone())))
                .collect(),
        }
    }

    fn names_like(&self) -> (&'static str, &'static str) {
        let tables = match self.calendar {
            Calendar::Solar => "birthday\\_%",
            Calendar::Lunar => "lunar\\_birthday\\_%",
        };
        ("birthday\\_%", tables)
    }

    fn filled_min(&self) -> u64 {
        match self.calendar {
            Calendar::Solar => DAYS_FILLED_MIN,
            Calendar::Lunar => LUNAR_DAYS_FILLED_MIN,
        }
    }

    /// The type is part of the key: a lunar row with another type does not match its claim.
    fn key(&self) -> &'static [Column] {
        match self.calendar {
            Calendar::Solar => const { &[Column::number("user_id")] },
            Calendar::Lunar => {
                const { &[Column::number("user_id"), Column::bytes("birthday_type", "VARCHAR(64)")] }
            }
        }
    }

    fn checked(&self) -> Column {
        Column::bytes("birthday", "VARCHAR(64)")
    }

    fn flaw(&self) -> (&'static str, &'static str) {
        ("wrong_birthday", "a.birthday <> c.birthday")
    }

    fn row_name(&self, prefix: &str) -> String {
        format!("CONCAT('user_id ', {prefix}user_id)")
    }

    fn claims(&self, source_table: SourceTable) -> String {
        if self.calendar == Calendar::Lunar {
            return self.lunar_claims(source_table);
        }
        let day = day_sql(BirthdayType::of(source_table));
        let number = match self.layout {
            DerivedLayout::ByDay => {
                format!("(DAYOFYEAR(CONCAT('2000-', birthday)) - 1) % {}", self.databases)
            }
            DerivedLayout::ByUser => format!("user_id % {}", self.databases),
        };
        format!(
            "SELECT user_id, birthday, {number} AS database_number,
               CONCAT('birthday_', REPLACE(birthday, '-', '')) AS table_name
             FROM (
               SELECT user_id, CONCAT(SUBSTR(day, 6, 2), '-', SUBSTR(day, 9, 2)) AS birthday
               FROM (SELECT user_id, {day} AS day FROM {}) AS days WHERE {IS_A_DATE}
             ) AS birthdays",
            source_table.quoted()
        )
    }
}

impl BirthdayLayer {
    /// Returns the projection's name in the demo's configuration, with which its tables' names begin.
    pub fn name(&self) -> &'static str {
        match self.calendar {
            Calendar::Solar => "birthday",
            Calendar::Lunar => "lunar_birthday",
        }
    }

    fn lunar_claims(&self, source_table: SourceTable) -> String {
        let number = match self.layout {
            DerivedLayout::ByDay => {
                format!("((LEFT(birthday, 2) - 1) * 30 + RIGHT(birthday, 2) - 1) % {}", self.databases)
            }
            DerivedLayout::ByUser => format!("user_id % {}", self.databases),
        };
        format!(
            "SELECT user_id, birthday_type, birthday, CAST({number} AS UNSIGNED) AS database_number,
               CONCAT('lunar_birthday_', REPLACE(birthday, '-', '')) AS table_name
             FROM (
               SELECT user_id, TRIM(lunar_birthday) AS birthday,
                 IF(LOWER(TRIM(IFNULL(birthday_type, ''))) = 'lunar', 'lunar', 'solar') AS birthday_type
               FROM {} WHERE TRIM(lunar_birthday) REGEXP '^(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|30)$'
             ) AS birthdays",
            source_table.quoted()
        )
    }
}

/// Returns the date as 10 characters, or NULL, for each column type. Dates are split as text, because date functions
/// answer differently for dates that do not exist.
fn day_sql(column: BirthdayType) -> &'static str {
    match column {
        BirthdayType::Date | BirthdayType::DateTime | BirthdayType::DateTimeMicroseconds => {
            "LEFT(CAST(birthday AS CHAR), 10)"
        }
        // The pattern ends with `\z` because `$` also matches before a last line end; the binary collation keeps `T`
        // from matching `t`.
        BirthdayType::Text => {
            r"CASE WHEN birthday COLLATE utf8mb4_bin REGEXP
                '(?s)^[ \\t\\n\\f\\r]*[0-9]{4}-[0-9]{2}-[0-9]{2}([ T].*)?[ \\t\\n\\f\\r]*\\z'
              THEN REGEXP_SUBSTR(birthday, '[0-9]{4}-[0-9]{2}-[0-9]{2}') END"
        }
    }
}

/// Condition on `day`: its year is above 0, and its month has the day in that year.
const IS_A_DATE: &str = "CAST(LEFT(day, 4) AS UNSIGNED) > 0
    AND CAST(SUBSTR(day, 6, 2) AS UNSIGNED) BETWEEN 1 AND 12
    AND CAST(SUBSTR(day, 9, 2) AS UNSIGNED) BETWEEN 1 AND
      CASE
        WHEN SUBSTR(day, 6, 2) IN ('04', '06', '09', '11') THEN 30
        WHEN SUBSTR(day, 6, 2) <> '02' THEN 31
        WHEN LEFT(day, 4) % 400 = 0 THEN 29
        WHEN LEFT(day, 4) % 100 = 0 THEN 28
        WHEN LEFT(day, 4) % 4 = 0 THEN 29
        ELSE 28
      END";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_day_has_366_tables_and_by_user_366_in_each_database() {
        let (calendar, layout) = (Calendar::Solar, DerivedLayout::ByDay);
        let mut layer = BirthdayLayer { calendar, layout, databases: 4, targets: Vec::new() };
        assert_eq!(layer.tables().len(), 366);
        assert_eq!(layer.tables()[59], (3, "birthday_0229".to_owned()));
        layer.layout = DerivedLayout::ByUser;
        assert_eq!(layer.tables().len(), 4 * 366);
        layer.calendar = Calendar::Lunar;
        assert_eq!(layer.tables().len(), 4 * 360);
        assert_eq!(layer.tables().last(), Some(&(3, "lunar_birthday_1230".to_owned())));
    }
}
