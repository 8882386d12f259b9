//! Transactions as SQL text with their counts, before they are run.

use std::fmt::Write as _;

use super::model::Row;
use super::report::WorkloadReport;
use crate::topology::SourceTable;

/// Placeholder in [`CrossMove::insert`] for the answer of [`CrossMove::carried`].
pub(super) const CARRIED: &str = "{carried}";

/// A transaction on one server, in one packet.
#[derive(Debug)]
pub(super) struct Transaction {
    pub source: usize,
    pub sql: String,
    pub rows: u64,
    pub report: WorkloadReport,
    pub rolls_back: bool,
    /// Ids of the rows that it deletes.
    pub deleted: Vec<u64>,
}

/// A row that moves to another server in two transactions.
#[derive(Debug)]
pub(super) struct CrossMove {
    pub from: Row,
    pub to: SourceTable,
    pub insert_first: bool,
    /// The statement on the new server.
    pub insert: String,
    /// A query on the old server for one text with SQL literals, if columns are carried over.
    pub carried: Option<String>,
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

/// Returns the condition for these rows of one table.
pub(super) fn where_rows(rows: &[Row]) -> String {
    let keys: Vec<String> = rows.iter().map(|row| row.source_table.key(row.id)).collect();
    let column = rows.first().map_or("", |row| row.source_table.key_column());
    format!("{column} IN ({})", keys.join(","))
}

pub(super) fn delete_statement(row: Row) -> String {
    format!("DELETE FROM {} WHERE {}", row.source_table.quoted(), where_rows(&[row]))
}

/// Returns a string literal of exactly these bytes, read as utf8mb4.
pub(super) fn literal(text: &str) -> String {
    let mut sql = String::with_capacity(text.len() * 2 + 12);
    sql.push_str("_utf8mb4 x'");
    for byte in text.bytes() {
        write!(sql, "{byte:02x}").expect("writing to a String cannot fail");
    }
    sql.push('\'');
    sql
}

/// Returns the SQL for the value of a column as a literal like that of [`literal`], or `NULL`.
pub(super) fn literal_of_column(column: &str) -> String {
    format!("IFNULL(CONCAT('_utf8mb4 x''', HEX(CAST({column} AS CHAR CHARACTER SET utf8mb4)), ''''), 'NULL')")
}
