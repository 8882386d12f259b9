//! Transactions as SQL text with what they count, before they are run.

use super::model::User;
use super::report::WorkloadReport;
use crate::topology::{BirthdayType, Place};

/// A transaction on one server, in one packet.
#[derive(Debug)]
pub(super) struct Transaction {
    pub source: usize,
    pub sql: String,
    pub rows: u64,
    pub report: WorkloadReport,
    pub rolls_back: bool,
    /// Users that it deletes.
    pub deleted: Vec<u64>,
}

/// A user that goes to the other server in two transactions.
#[derive(Debug)]
pub(super) struct CrossMove {
    pub from: User,
    pub to: Place,
    pub name: String,
    pub insert_first: bool,
    /// The birthday as a SQL literal, unless the old row's is carried over.
    pub birthday: Option<String>,
    pub report: WorkloadReport,
}

#[derive(Debug)]
pub(super) enum Plan {
    One(Transaction),
    Move(CrossMove),
}

impl Plan {
    pub fn rows(&self) -> u64 {
        match self {
            Plan::One(transaction) => transaction.rows,
            Plan::Move(_) => 2,
        }
    }
}

impl Transaction {
    pub fn begin(source: usize) -> Self {
        Self {
            source,
            sql: "START TRANSACTION;\n".to_owned(),
            rows: 0,
            report: WorkloadReport::default(),
            rolls_back: false,
            deleted: Vec::new(),
        }
    }

    pub fn statement(&mut self, sql: &str) {
        self.sql.push_str(sql);
        self.sql.push_str(";\n");
    }

    /// Adds the statements of another transaction and undoes them by a savepoint.
    pub fn then_undone(&mut self, undone: Transaction) {
        self.statement("SAVEPOINT part");
        self.sql.push_str(undone.sql.strip_prefix("START TRANSACTION;\n").unwrap_or_default());
        self.statement("ROLLBACK TO SAVEPOINT part");
        self.report.savepoint_rollbacks += 1;
    }

    pub fn end(mut self, rolls_back: bool) -> Self {
        self.rolls_back = rolls_back;
        self.statement(if rolls_back { "ROLLBACK" } else { "COMMIT" });
        self
    }

    /// Turns an ended transaction into one that is rolled back.
    pub fn turn_into_rollback(&mut self) {
        if let Some(body) = self.sql.strip_suffix("COMMIT;\n") {
            self.sql = format!("{body}ROLLBACK;\n");
            self.rolls_back = true;
        }
    }
}

pub(super) fn delete_statement(user: User) -> String {
    format!("DELETE FROM {} WHERE user_id = {}", user.place.quoted(), user.id)
}

pub(super) fn id_list(users: &[User]) -> String {
    users.iter().map(|user| user.id.to_string()).collect::<Vec<_>>().join(",")
}

/// Whether any value of the one column type can be stored in the other as it is.
pub(super) fn carries(old: BirthdayType, new: BirthdayType) -> bool {
    new == BirthdayType::Text || old != BirthdayType::Text
}

pub(super) fn count_invalid(report: &mut WorkloadReport, column: BirthdayType, rows: u64) {
    match column {
        BirthdayType::Date => report.invalid_dates += rows,
        BirthdayType::DateTime | BirthdayType::DateTimeMicroseconds => report.invalid_datetimes += rows,
        BirthdayType::Text => report.invalid_texts += rows,
    }
}
