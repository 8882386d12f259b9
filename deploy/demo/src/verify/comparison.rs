//! What a comparison found, and what a comparison must have seen to mean anything.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// Of 366 days; a few thousand users fill more by chance.
const DAYS_FILLED_MIN: u64 = 330;
/// Names in a message about many.
const NAMES_MAX: usize = 5;

/// Differing rows by kind; each row counts once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Differences {
    /// A claim of a source table that no derived table holds.
    pub missing: u64,
    /// A derived row of a user that no source table holds with a valid birthday.
    pub orphan: u64,
    /// A claim in another table than its birthday and layout say, and not in the right one.
    pub wrong_table: u64,
    /// A second row of a user: of a claim that also stands in its right table, or of a shard that does not hold the
    /// user while another does.
    pub duplicate: u64,
    /// In the right table with a `birthday` column that says something else.
    pub wrong_birthday: u64,
}

impl Differences {
    pub fn total(&self) -> u64 {
        self.missing + self.orphan + self.wrong_table + self.duplicate + self.wrong_birthday
    }
}

/// One differing row. Row values stay where they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Example {
    pub kind: String,
    pub user_id: u64,
    /// The derived table that the row stands in, or of a missing row the one that it belongs into.
    pub table: String,
}

impl fmt::Display for Example {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: user_id {} in {}", self.kind, self.user_id, self.table)
    }
}

/// The result of comparing every derived row with the sources.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// Users in the source tables, with any birthday.
    pub source_users: u64,
    /// Claims that the sources make: users with a valid birthday.
    pub claims: u64,
    /// Rows in all derived tables.
    pub derived_rows: u64,
    pub differences: Differences,
    /// Up to ten differing rows.
    pub examples: Vec<Example>,
    /// Users that two source tables hold: two claims each. 0 unless a move was cut short.
    pub doubled_source_users: u64,
    /// Rows of each derived database.
    pub rows_by_database: BTreeMap<String, u64>,
    /// Days with at least one row.
    pub days_filled: u64,
    /// Derived tables that must exist and do not.
    pub absent_tables: Vec<String>,
    /// Source tables that the sharding rule reaches and that hold no user.
    pub empty_source_tables: Vec<String>,
}

impl Comparison {
    /// What is wrong, in words; empty when both sides are equal and hold enough to say so.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.differences.total() > 0 {
            let examples: Vec<String> = self.examples.iter().map(ToString::to_string).collect();
            let total = self.differences.total();
            problems.push(format!("{total} rows differ ({:?}): {}", self.differences, examples.join("; ")));
        }
        problems.extend(self.unmet());
        problems
    }

    /// Stores that hold nothing: equal and empty proves nothing.
    pub fn unmet(&self) -> Vec<String> {
        let mut unmet = Vec::new();
        if self.claims == 0 {
            unmet.push("the sources hold no user with a valid birthday".to_owned());
        }
        if self.derived_rows == 0 {
            unmet.push("the derived tables are empty".to_owned());
        }
        for (database, rows) in &self.rows_by_database {
            if *rows == 0 {
                unmet.push(format!("derived database {database} is empty"));
            }
        }
        if self.days_filled < DAYS_FILLED_MIN {
            let filled = self.days_filled;
            unmet.push(format!("only {filled} of 366 days hold a row; needed: {DAYS_FILLED_MIN}"));
        }
        for (tables, what) in [
            (&self.absent_tables, "derived tables do not exist"),
            (&self.empty_source_tables, "source tables that the rule reaches are empty"),
        ] {
            if !tables.is_empty() {
                let names = &tables[..tables.len().min(NAMES_MAX)];
                unmet.push(format!("{} {what}, such as {}", tables.len(), names.join(", ")));
            }
        }
        unmet
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_empty_sides_are_a_problem() {
        assert!(!Comparison::default().problems().is_empty());
    }
}
