//! The report of a workload: committed changes, counted by kind. Each kind lists the workloads that must contain it.

use anabranch_schemas::change::Entity;
use serde::{Deserialize, Serialize};

/// Workloads that must contain a kind of change.
enum NeededBy {
    All,
    Users,
    Serials,
    Flux,
    None,
}

impl NeededBy {
    fn includes(&self, entity: Entity) -> bool {
        match self {
            Self::All => true,
            Self::Users => entity == Entity::User,
            Self::Serials => entity == Entity::SerialCode,
            Self::Flux => entity == Entity::Flux,
            Self::None => false,
        }
    }
}

/// Returns whether a count of payment documents is absent, as it is in the reports of other workloads.
pub(crate) fn is_zero(count: &u64) -> bool {
    *count == 0
}

macro_rules! report {
    ($($(#[$attribute:meta])* $field:ident, $needed:ident;)+) => {
        /// Counts of committed changes. A move counts as one here and as two row changes in `changes`.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct WorkloadReport {
            $($(#[$attribute])* pub $field: u64,)+
        }

        impl WorkloadReport {
            /// Adds the counts of another part of the same workload.
            pub fn merge(&mut self, other: &WorkloadReport) {
                let largest = self.largest_transaction_rows.max(other.largest_transaction_rows);
                $(self.$field += other.$field;)+
                self.largest_transaction_rows = largest;
            }

            /// Returns the kinds of change that every workload on that entity must contain and that this one did not.
            pub fn absent_kinds(&self, entity: Entity) -> Vec<&'static str> {
                let mut absent = Vec::new();
                $(if NeededBy::$needed.includes(entity) && self.$field == 0 {
                    absent.push(stringify!($field));
                })+
                absent
            }
        }
    };
}

report! {
    /// Row changes: rows inserted, updated and deleted by committed transactions.
    changes, All;
    /// Committed transactions.
    transactions, All;
    inserts, All;
    /// Updates of columns that are not captured, or of columns that only lunar tables use.
    updates_of_other_columns, All;
    /// Birthdays set to a valid date.
    birthday_changes, Users;
    birthdays_set_null, Users;
    /// Impossible dates written to DATE columns, by insert or update.
    invalid_dates, Users;
    /// Impossible dates written to DATETIME columns.
    invalid_datetimes, Users;
    /// Texts that are no date written to text columns.
    invalid_texts, Users;
    /// Users inserted or renamed with emoji, quotes, NUL, no or 128 characters and the like.
    odd_names, Users;
    phones, Serials;
    /// Devices with only a box and perhaps an item code.
    other_devices, Serials;
    /// Devices whose uuid has 64 digits.
    uuids_of_64_digits, Serials;
    /// Devices put into a box that already has another one.
    devices_in_shared_boxes, Serials;
    /// Box numbers with quotes, blanks at the end, many bytes and the like.
    odd_boxes, Serials;
    wrong_check_digits, Serials;
    meids_in_lower_case, Serials;
    item_codes_of_15, Serials;
    item_codes_of_14, Serials;
    /// Values that are codes of two kinds of one device.
    codes_of_two_kinds, Serials;
    /// Codes set to a new value.
    code_changes, Serials;
    /// Codes exchanged between two devices, or two kinds of one device.
    codes_swapped, Serials;
    codes_cleared_to_null, Serials;
    codes_cleared_to_empty, Serials;
    /// Updates of captured columns that hold no code.
    captured_columns_without_code, Serials;
    /// Tables of the history emptied by TRUNCATE; their rows are not counted.
    history_tables_truncated, None;
    #[serde(skip_serializing_if = "is_zero")]
    recharges, Flux;
    #[serde(skip_serializing_if = "is_zero")]
    recharges_in_fail_over, Flux;
    #[serde(skip_serializing_if = "is_zero")]
    captures, Flux;
    #[serde(skip_serializing_if = "is_zero")]
    cancels, Flux;
    #[serde(skip_serializing_if = "is_zero")]
    refunds, Flux;
    /// Clearings of recharges and refunds.
    #[serde(skip_serializing_if = "is_zero")]
    clearings, Flux;
    #[serde(skip_serializing_if = "is_zero")]
    chargebacks, Flux;
    #[serde(skip_serializing_if = "is_zero")]
    chargeback_reversals, Flux;
    #[serde(skip_serializing_if = "is_zero")]
    withdrawals, Flux;
    /// Documents of a business code without a kind, whose parent is in any user partition.
    #[serde(skip_serializing_if = "is_zero")]
    documents_without_kind, Flux;
    /// Documents that are written before the one that they follow.
    #[serde(skip_serializing_if = "is_zero")]
    children_before_parents, Flux;
    #[serde(skip_serializing_if = "is_zero")]
    amounts_changed, Flux;
    /// Updates of tables whose documents without a kind get a parent of another user partition.
    #[serde(skip_serializing_if = "is_zero")]
    parents_changed, Flux;
    /// Users who got a new name in the same table.
    renames_in_place, None;
    /// Rows that moved to the other server: the insert was committed before the delete.
    moves_to_other_server_insert_first, All;
    /// Rows that moved to the other server: the delete was committed before the insert.
    moves_to_other_server_delete_first, All;
    /// Rows that moved inside one server: insert before delete in one transaction.
    moves_inside_server_insert_first, All;
    /// Rows that moved inside one server: delete before insert in one transaction.
    moves_inside_server_delete_first, All;
    deletes, All;
    /// Deleted rows that came back with the same id.
    returns, None;
    /// Transactions that change one row more than once.
    transactions_with_repeated_row, All;
    transactions_of_1_row, All;
    transactions_of_2_to_10_rows, All;
    transactions_of_11_to_100_rows, None;
    transactions_of_101_to_1000_rows, None;
    transactions_of_1001_to_10000_rows, All;
    largest_transaction_rows, All;
    /// Transactions with changes that ended in ROLLBACK.
    rollbacks, All;
    /// Transactions of which a part was undone by ROLLBACK TO SAVEPOINT.
    savepoint_rollbacks, None;
    /// Transactions that a deadlock or lock wait ended; they are not repeated.
    lock_conflicts, None;
    /// Connections lost; the outcome of the last transaction was read back from the servers.
    lost_connections, None;
    /// Rows whose state could not be read back before the end.
    unsettled_rows, None;
}

impl WorkloadReport {
    pub(super) fn count_cross_move(&mut self, insert_first: bool) {
        match insert_first {
            true => self.moves_to_other_server_insert_first += 1,
            false => self.moves_to_other_server_delete_first += 1,
        }
    }

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
        let absent = report.absent_kinds(Entity::User);
        assert!(absent.contains(&"moves_to_other_server_insert_first") && absent.contains(&"rollbacks"));
        assert!(!absent.contains(&"lost_connections") && !absent.contains(&"phones"));
        assert!(report.absent_kinds(Entity::SerialCode).contains(&"phones"));
        assert!(report.absent_kinds(Entity::Flux).contains(&"refunds") && !absent.contains(&"refunds"));
        report.rollbacks = 1;
        assert_eq!(report.absent_kinds(Entity::User).len(), absent.len() - 1);
    }

    #[test]
    fn merging_adds_counts_and_keeps_the_largest_transaction() {
        let mut sum = WorkloadReport { inserts: 2, largest_transaction_rows: 7, ..Default::default() };
        sum.merge(&WorkloadReport { inserts: 3, largest_transaction_rows: 5, ..Default::default() });
        assert_eq!((sum.inserts, sum.largest_transaction_rows), (5, 7));
    }
}
