//! The findings of a comparison, and the amounts of data without which it proves nothing.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

pub(super) const EXAMPLES_MAX: usize = 10;
/// Most examples of one kind, so that other kinds are shown too.
const EXAMPLES_ALIKE_MAX: usize = 3;
/// Most names in a message about many.
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
    /// A claim of a source table that no derived store holds; for a cache it is no difference.
    missing;
    /// A derived row that no source table claims; for a cache also a key that no lookup uses.
    orphan;
    /// A claim that is only in another table than its value and the layout demand, or under another id.
    wrong_table;
    /// A second row of a claim that is also in its right table, or a row of a shard that does not claim it while
    /// another shard does.
    duplicate;
    /// A row in the right table whose `birthday` column differs.
    wrong_birthday;
    /// A mapping row without the position of the change or read that made it.
    no_version;
    /// A document with another version than its own `lsn`.
    stale_version;
    /// A document, or a row of the relation index, with a field that differs from its source row.
    wrong_field;
    /// A document that is marked as withdrawn though its row exists.
    withdrawn;
    /// A cached set that is not the complete set of its code.
    wrong_set;
    /// A key of another type, or with bytes that are no set.
    unreadable;
    /// A key that lives for ever, or longer than it may.
    wrong_expiry;
}

/// One differing row, identified by its key. Its other values are not shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Example {
    pub kind: String,
    /// Name of the row, such as `user_id 7` or `uuid 7 imei1`.
    pub row: String,
    /// The derived table (server, index) that holds the row; for a missing row, the table in which it belongs.
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
    /// Claims that the sources make: users with a valid birthday, codes of devices, payment documents.
    pub claims: u64,
    /// Rows in all derived tables; keys of a cache; documents that are not withdrawn.
    pub derived_rows: u64,
    pub differences: Differences,
    /// Up to ten differing rows.
    pub examples: Vec<Example>,
    /// Users or devices that two source tables hold; 0 unless a move was interrupted.
    pub doubled_source_rows: u64,
    /// Payment documents that are in another table than the one that their digits name.
    pub misplaced_source_rows: u64,
    /// Payment documents whose digits are not those that their business code, their date and their parent demand.
    pub misplaced_children: u64,
    /// Rows of each derived database, index or cache.
    pub rows_by_database: BTreeMap<String, u64>,
    /// Number of different table names with at least one row; for birthdays, of days.
    pub tables_filled: u64,
    /// Least number of such names.
    pub tables_filled_min: u64,
    /// Derived tables that must exist and do not.
    pub absent_tables: Vec<String>,
    /// Source tables that the sharding rule reaches and that are empty.
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

    /// Returns the problems in words; empty when both sides are equal and hold enough to prove it.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.differences.total() > 0 {
            let examples: Vec<String> = self.examples.iter().map(ToString::to_string).collect();
            let total = self.differences.total();
            problems.push(format!("{total} rows differ ({:?}): {}", self.differences, examples.join("; ")));
        }
        if self.misplaced_children > 0 {
            let documents = self.misplaced_children;
            problems
                .push(format!("{documents} documents are not where their parent or their date puts them"));
        }
        problems.extend(self.unmet());
        problems
    }

    /// Adds the comparisons of all layers.
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
            sum.misplaced_source_rows += other.misplaced_source_rows;
            sum.misplaced_children += other.misplaced_children;
            sum.rows_by_database.extend(other.rows_by_database);
            sum.tables_filled += other.tables_filled;
            sum.tables_filled_min += other.tables_filled_min;
            sum.absent_tables.extend(other.absent_tables);
            sum.empty_source_tables.extend(other.empty_source_tables);
        }
        sum
    }

    /// Returns the reasons why equality proves nothing, such as empty stores.
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
