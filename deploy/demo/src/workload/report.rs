//! What a workload did: committed changes, counted by kind.

use serde::{Deserialize, Serialize};

macro_rules! report {
    ($($(#[doc = $doc:literal])* $field:ident, $needed:literal;)+) => {
        /// Counts of committed changes. A move counts as one here and as two row changes in `changes`.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct WorkloadReport {
            $($(#[doc = $doc])* pub $field: u64,)+
        }

        impl WorkloadReport {
            /// Adds the counts of another part of the same workload.
            pub fn merge(&mut self, other: &WorkloadReport) {
                let largest = self.largest_transaction_rows.max(other.largest_transaction_rows);
                $(self.$field += other.$field;)+
                self.largest_transaction_rows = largest;
            }

            /// Kinds of change that every workload must contain and that this one did not.
            pub fn absent_kinds(&self) -> Vec<&'static str> {
                let mut absent = Vec::new();
                $(if $needed && self.$field == 0 {
                    absent.push(stringify!($field));
                })+
                absent
            }
        }
    };
}

report! {
    /// Row changes: rows inserted, updated and deleted by committed transactions.
    changes, true;
    /// Committed transactions.
    transactions, true;
    inserts, true;
    /// Updates of columns that are not captured.
    updates_of_other_columns, true;
    /// Birthdays set to a valid date.
    birthday_changes, true;
    birthdays_set_null, true;
    /// Impossible dates written to DATE columns, by insert or update.
    invalid_dates, true;
    /// Impossible dates written to DATETIME columns.
    invalid_datetimes, true;
    /// Texts that are no date written to text columns.
    invalid_texts, true;
    /// Users inserted or renamed with emoji, quotes, NUL, no or 128 characters and the like.
    odd_names, true;
    /// New name in the same table.
    renames_in_place, false;
    /// Rows that moved to the other server: the insert was committed before the delete.
    moves_to_other_server_insert_first, true;
    /// Rows that moved to the other server: the delete was committed before the insert.
    moves_to_other_server_delete_first, true;
    /// Rows that moved inside one server: insert before delete in one transaction.
    moves_inside_server_insert_first, true;
    /// Rows that moved inside one server: delete before insert in one transaction.
    moves_inside_server_delete_first, true;
    deletes, true;
    /// Deleted users that came back with the same id.
    returns, false;
    /// Transactions that change one row more than once.
    transactions_with_repeated_row, true;
    transactions_of_1_row, true;
    transactions_of_2_to_10_rows, true;
    transactions_of_11_to_100_rows, false;
    transactions_of_101_to_1000_rows, false;
    transactions_of_1001_to_10000_rows, true;
    largest_transaction_rows, true;
    /// Transactions with changes that ended in ROLLBACK.
    rollbacks, true;
    /// Transactions of which a part was undone by ROLLBACK TO SAVEPOINT.
    savepoint_rollbacks, false;
    /// Transactions that a deadlock or lock wait ended; they were given up.
    lock_conflicts, false;
    /// Connections lost; the outcome of the last transaction was read back from the servers.
    lost_connections, false;
    /// Users whose state could not be read back before the end.
    unsettled_users, false;
}

impl WorkloadReport {
    pub(super) fn count_transaction(&mut self, rows: u64) {
        self.transactions += 1;
        self.changes += rows;
        self.largest_transaction_rows = self.largest_transaction_rows.max(rows);
        match rows {
            0..=1 => self.transactions_of_1_row += 1,
            2..=10 => self.transactions_of_2_to_10_rows += 1,
            11..=100 => self.transactions_of_11_to_100_rows += 1,
            101..=1000 => self.transactions_of_101_to_1000_rows += 1,
            _ => self.transactions_of_1001_to_10000_rows += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_that_did_nothing_names_every_kind_it_lacks() {
        let mut report = WorkloadReport::default();
        let absent = report.absent_kinds();
        assert!(absent.contains(&"moves_to_other_server_insert_first") && absent.contains(&"rollbacks"));
        assert!(!absent.contains(&"lost_connections"));
        report.rollbacks = 1;
        assert_eq!(report.absent_kinds().len(), absent.len() - 1);
    }

    #[test]
    fn merging_adds_counts_and_keeps_the_largest_transaction() {
        let mut sum = WorkloadReport { inserts: 2, largest_transaction_rows: 7, ..Default::default() };
        sum.merge(&WorkloadReport { inserts: 3, largest_transaction_rows: 5, ..Default::default() });
        assert_eq!((sum.inserts, sum.largest_transaction_rows), (5, 7));
    }
}
