//! Plans a worker's transactions as SQL, drawn from its own random numbers.
//!
//! It does no I/O. The model already has the changes of a planned transaction; the worker that runs it commits the
//! model or rolls it back. The shape of transactions is here; the [`Application`] decides the content of rows.

use anabranch_schemas::change::Entity;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::application::{Application, WorkerRows};
use super::model::{Model, Row};
use super::payments::Payments;
use super::report::WorkloadReport;
use super::serials::Serials;
use super::transaction::{Plan, Transaction, delete_statement, where_rows};
use super::users::Users;
use crate::topology::Topology;

/// Most rows of one transaction.
pub const GIANT_ROWS: usize = 10_000;
/// Rows in a statement of a large transaction.
const STATEMENT_ROWS: usize = 500;

/// Draws plans for the rows of one worker.
#[derive(Debug)]
pub(super) struct Planner {
    pub worker_rows: WorkerRows,
    application: Box<dyn Application>,
    pub giants: bool,
}

impl Planner {
    pub fn new(topology: Topology, seed: u64, worker: u64, workers: u64) -> Self {
        let application: Box<dyn Application> = match topology.entity {
            Entity::User => Box::new(Users),
            Entity::SerialCode => Box::new(Serials::of(worker)),
            Entity::Flux => Box::new(Payments::default()),
        };
        let model = Model::new(topology.sources.len());
        let random = StdRng::seed_from_u64(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(worker));
        let worker_rows =
            WorkerRows { topology, random, model, worker, workers, next_id: 0, deleted: Vec::new() };
        Self { worker_rows, application, giants: false }
    }

    /// Returns the next plan; `None` only when a drawn move found no row to move.
    pub fn next(&mut self) -> Option<Plan> {
        let random = &mut self.worker_rows.random;
        let source = random.random_range(0..self.worker_rows.topology.sources.len());
        if self.worker_rows.topology.sources.len() > 1 && random.random_bool(0.08) {
            return self.application.cross_move(&mut self.worker_rows, source).map(Plan::Move);
        }
        let rows = match random.random_range(0..10_000) {
            0..3 if self.giants => GIANT_ROWS,
            3..23 => random.random_range(101..=1000),
            23..200 => random.random_range(11..=100),
            200..1200 => random.random_range(2..=10),
            1200..1203 => match self.application.seldom(&mut self.worker_rows, source) {
                Some(transaction) => return Some(Plan::One(transaction)),
                None => 1,
            },
            _ => 1,
        };
        Some(Plan::One(if rows > 10 { self.large(source, rows) } else { self.small(source, rows) }))
    }

    /// Plans inserts of exactly `rows` rows on one server.
    pub fn inserts(&mut self, source: usize, rows: usize) -> Transaction {
        let mut transaction = Transaction::begin(source);
        let mut new: Vec<(Row, String)> = Vec::with_capacity(rows);
        for _ in 0..rows {
            let (row, values) =
                self.application.new_row(&mut self.worker_rows, source, &mut transaction.report);
            self.worker_rows.model.add(source, row);
            new.push((row, values));
        }
        new.sort_unstable_by_key(|(row, _)| (row.source_table, row.id));
        for group in new.chunk_by(|(a, _), (b, _)| a.source_table == b.source_table) {
            for part in group.chunks(STATEMENT_ROWS) {
                let values: Vec<&str> = part.iter().map(|(_, values)| values.as_str()).collect();
                let (table, columns) = (part[0].0.source_table.quoted(), self.application.columns());
                transaction.statement(&format!("INSERT INTO {table} {columns} VALUES {}", values.join(",")));
            }
        }
        transaction.rows += rows as u64;
        transaction.report.inserts += rows as u64;
        transaction.end(false)
    }

    /// Plans one transaction that changes captured columns of up to `rows` rows, as many as there are.
    pub fn changes(&mut self, source: usize, rows: usize) -> Transaction {
        // Each statement changes a few rows, so that the values differ.
        self.updates(source, rows, 20, |planner, part, report| {
            let random = &mut planner.worker_rows.random;
            planner.application.change(random, part[0].source_table, part.len() as u64, report)
        })
    }

    fn changes_of_other_columns(&mut self, source: usize, rows: usize) -> Transaction {
        self.updates(source, rows, STATEMENT_ROWS, |planner, part, report| {
            report.updates_of_other_columns += part.len() as u64;
            planner.application.change_of_other_columns(&mut planner.worker_rows.random)
        })
    }

    fn updates(
        &mut self,
        source: usize,
        rows: usize,
        statement_rows: usize,
        set: impl Fn(&mut Self, &[Row], &mut WorkloadReport) -> String,
    ) -> Transaction {
        let mut transaction = Transaction::begin(source);
        let mut rows = self.worker_rows.model.pick_many(&mut self.worker_rows.random, source, rows);
        rows.sort_unstable_by_key(|row| (row.source_table, row.id));
        for group in rows.chunk_by(|a, b| a.source_table == b.source_table) {
            for part in group.chunks(statement_rows) {
                let set = set(self, part, &mut transaction.report);
                let table = part[0].source_table.quoted();
                transaction.statement(&format!("UPDATE {table} SET {set} WHERE {}", where_rows(part)));
            }
        }
        transaction.rows += rows.len() as u64;
        transaction.end(false)
    }

    fn large(&mut self, source: usize, rows: usize) -> Transaction {
        let kind = self.worker_rows.random.random_range(0..10);
        let have = self.worker_rows.model.count(source);
        let mut transaction = match kind {
            0..3 => self.inserts(source, rows),
            // Deletes are as frequent as inserts of this size, but never empty the server.
            3..5 if have > 4 * rows => self.deletes(source, rows),
            5..7 if have > 0 => self.changes_of_other_columns(source, rows),
            _ if have > 0 => self.changes(source, rows),
            _ => self.inserts(source, rows),
        };
        if self.worker_rows.random.random_bool(0.03) {
            transaction.turn_into_rollback();
        }
        transaction
    }

    fn deletes(&mut self, source: usize, rows: usize) -> Transaction {
        let mut transaction = Transaction::begin(source);
        let mut rows = self.worker_rows.model.take_many(&mut self.worker_rows.random, source, rows);
        rows.sort_unstable_by_key(|row| (row.source_table, row.id));
        for group in rows.chunk_by(|a, b| a.source_table == b.source_table) {
            let table = group[0].source_table.quoted();
            transaction.statement(&format!("DELETE FROM {table} WHERE {}", where_rows(group)));
        }
        transaction.rows += rows.len() as u64;
        transaction.report.deletes += rows.len() as u64;
        transaction.end(false)
    }

    /// Plans single-row statements of mixed kinds; sometimes all on one row, sometimes partly or wholly rolled back.
    fn small(&mut self, source: usize, rows: usize) -> Transaction {
        let mut transaction = Transaction::begin(source);
        if rows > 1 && self.worker_rows.random.random_bool(0.1) && self.repeat_one_row(&mut transaction, rows)
        {
            return transaction.end(self.worker_rows.random.random_bool(0.05));
        }
        while transaction.rows < rows as u64 {
            self.step(&mut transaction);
        }
        if self.worker_rows.random.random_bool(0.02) {
            let mut undone = Transaction::begin(source);
            let savepoint = self.worker_rows.model.savepoint();
            self.step(&mut undone);
            self.worker_rows.model.roll_back_to(savepoint);
            transaction.then_undone(undone);
        }
        transaction.end(self.worker_rows.random.random_bool(0.03))
    }

    fn repeat_one_row(&mut self, transaction: &mut Transaction, times: usize) -> bool {
        let Some(row) = self.worker_rows.model.pick(&mut self.worker_rows.random, transaction.source) else {
            return false;
        };
        for _ in 0..times {
            self.change(transaction, row);
        }
        transaction.report.transactions_with_repeated_row += 1;
        true
    }

    /// Plans one change of one or two rows.
    fn step(&mut self, transaction: &mut Transaction) {
        let kind = self.worker_rows.random.random_range(0..100);
        let is_done = match kind {
            0..22 => false,
            22..34 => self.delete(transaction),
            34..42 => self.application.move_inside(&mut self.worker_rows, transaction),
            _ => match self.worker_rows.model.pick(&mut self.worker_rows.random, transaction.source) {
                Some(row) if kind < 60 => self.change_other_columns(transaction, row),
                Some(row) => self.change(transaction, row),
                None => false,
            },
        };
        if !is_done {
            self.insert(transaction);
        }
    }

    fn insert(&mut self, transaction: &mut Transaction) {
        let source = transaction.source;
        let (row, values) = self.application.new_row(&mut self.worker_rows, source, &mut transaction.report);
        let (table, columns) = (row.source_table.quoted(), self.application.columns());
        transaction.statement(&format!("INSERT INTO {table} {columns} VALUES {values}"));
        self.worker_rows.model.add(source, row);
        transaction.rows += 1;
        transaction.report.inserts += 1;
    }

    fn delete(&mut self, transaction: &mut Transaction) -> bool {
        let Some(row) = self.worker_rows.model.take(&mut self.worker_rows.random, transaction.source) else {
            return false;
        };
        transaction.statement(&delete_statement(row));
        transaction.rows += 1;
        transaction.report.deletes += 1;
        transaction.deleted.push(row.id);
        true
    }

    fn change(&mut self, transaction: &mut Transaction, row: Row) -> bool {
        let set = self.application.change(
            &mut self.worker_rows.random,
            row.source_table,
            1,
            &mut transaction.report,
        );
        self.update(transaction, row, &set)
    }

    fn change_other_columns(&mut self, transaction: &mut Transaction, row: Row) -> bool {
        let set = self.application.change_of_other_columns(&mut self.worker_rows.random);
        transaction.report.updates_of_other_columns += 1;
        self.update(transaction, row, &set)
    }

    fn update(&mut self, transaction: &mut Transaction, row: Row, set: &str) -> bool {
        let table = row.source_table.quoted();
        transaction.statement(&format!("UPDATE {table} SET {set} WHERE {}", where_rows(&[row])));
        transaction.rows += 1;
        true
    }

    /// Remembers the rows that a committed transaction deleted: some of them come back later.
    pub fn remember_deleted(&mut self, transaction: &mut Transaction) {
        self.worker_rows.deleted.append(&mut transaction.deleted);
    }
}
