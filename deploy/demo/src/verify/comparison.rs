//! What a comparison found, and what a comparison must have seen to mean anything.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

pub(super) const EXAMPLES_MAX: usize = 10;
/// Examples of one kind, so that others are seen too.
const EXAMPLES_ALIKE_MAX: usize = 3;
/// Names in a message about many.
const NAMES_MAX: usize = 5;

macro_rules! differences {
    ($($(#[doc = $doc:literal])* $kind:ident;)+) => {
        /// Differing rows by kind; each row counts once.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
        pub struct Differences {
            $($(#[doc = $doc])* pub $kind: u64,)+
        }

        impl Differences {
            pub fn total(&self) -> u64 {
                [$(self.$kind),+].iter().sum()
            }

            pub(super) fn count(&mut self, kind: &str, rows: u64) {
                match kind {
                    $(stringify!($kind) => self.$kind += rows,)+
                    _ => unreachable!("{kind} is no kind of difference"),
                }
            }

            fn add(&mut self, other: &Self) {
                $(self.$kind += other.$kind;)+
            }
        }
    };
}

differences! {
    /// A claim of a source table that no derived store holds; in a cache that is none.
    missing;
    /// Derived, and no source table claims it; of a cache also a key that nobody asks for.
    orphan;
    /// A claim in another table than its value and the layout say, or under another id, and not in the right one.
    wrong_table;
    /// A second row of the same: of a claim that also stands in its right place, or of a shard that does not claim it
    /// while another does.
    duplicate;
    /// In the right table with a `birthday` column that says something else.
    wrong_birthday;
    /// A mapping row without the position of the change or reading that made it.
    no_version;
    /// A document with another version than its own `lsn`.
    stale_version;
    /// A document with a field that says something else than its row.
    wrong_field;
    /// A document that is marked as withdrawn though its row is there.
    withdrawn;
    /// A cached set that is not the complete set of its code.
    wrong_set;
    /// A key of another type, or with bytes that are no set.
    unreadable;
    /// A key that lives for ever, or longer than it may.
    wrong_expiry;
}

/// One differing row, named by its key. Other values stay where they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Example {
    pub kind: String,
    /// Such as `user_id 7` or `uuid 7 imei1`.
    pub row: String,
    /// The derived table (server, index) that the row stands in, or of a missing row the one that it belongs into.
    pub table: String,
}

impl fmt::Display for Example {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} in {}", self.kind, self.row, self.table)
    }
}

/// The result of comparing every derived row with the sources.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// Rows of the source tables, whether or not they claim anything.
    pub source_rows: u64,
    /// Claims that the sources make: users with a valid birthday, codes of devices.
    pub claims: u64,
    /// Rows in all derived tables; keys of a cache; documents that are not withdrawn.
    pub derived_rows: u64,
    pub differences: Differences,
    /// Up to ten differing rows.
    pub examples: Vec<Example>,
    /// Users or devices that two source tables hold. 0 unless a move was cut short.
    pub doubled_source_rows: u64,
    /// Rows of each derived database, index or cache.
    pub rows_by_database: BTreeMap<String, u64>,
    /// Different names of tables with at least one row: of birthdays, days.
    pub tables_filled: u64,
    /// As many are needed.
    pub tables_filled_min: u64,
    /// Derived tables that must exist and do not.
    pub absent_tables: Vec<String>,
    /// Source tables that the sharding rule reaches and that hold nothing.
    pub empty_source_tables: Vec<String>,
}

impl Comparison {
    /// Counts a differing row of a store; some of each kind become examples.
    pub(super) fn differs(&mut self, kind: &str, row: String, table: &str) {
        self.differences.count(kind, 1);
        let alike = self.examples.iter().filter(|example| example.kind == kind).count();
        if self.examples.len() < EXAMPLES_MAX && alike < EXAMPLES_ALIKE_MAX {
            self.examples.push(Example { kind: kind.to_owned(), row, table: table.to_owned() });
        }
    }

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

    /// All layers together.
    pub fn sum<'c>(comparisons: impl IntoIterator<Item = &'c Comparison>) -> Comparison {
        let mut sum = Comparison::default();
        for comparison in comparisons {
            let other = comparison.clone();
            sum.source_rows += other.source_rows;
            sum.claims += other.claims;
            sum.derived_rows += other.derived_rows;
            sum.differences.add(&other.differences);
            sum.examples.extend(other.examples);
            sum.doubled_source_rows += other.doubled_source_rows;
            sum.rows_by_database.extend(other.rows_by_database);
            sum.tables_filled += other.tables_filled;
            sum.tables_filled_min += other.tables_filled_min;
            sum.absent_tables.extend(other.absent_tables);
            sum.empty_source_tables.extend(other.empty_source_tables);
        }
        sum
    }

    /// Stores that hold nothing: equal and empty proves nothing.
    pub fn unmet(&self) -> Vec<String> {
        let mut unmet = Vec::new();
        if self.claims == 0 {
            unmet.push("the sources claim nothing".to_owned());
        }
        if self.derived_rows == 0 {
            unmet.push("the derived store is empty".to_owned());
        }
        for (database, rows) in &self.rows_by_database {
            if *rows == 0 {
                unmet.push(format!("derived database {database} is empty"));
            }
        }
        let (filled, needed) = (self.tables_filled, self.tables_filled_min);
        if filled < needed {
            unmet.push(format!("only {filled} names of derived tables hold a row; needed: {needed}"));
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
