//! What a worker does next: transactions as SQL, drawn from its own random numbers.
//!
//! No I/O. The model already shows a planned transaction; who runs it commits the model or rolls it back. The shape of
//! transactions is here; what stands in the rows is the [`Application`]'s.

use std::fmt;

use anabranch_schemas::change::Entity;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::model::{Model, Row};
use super::report::WorkloadReport;
use super::serials::Serials;
use super::transaction::{CrossMove, Plan, Transaction, delete_statement, where_rows};
use super::users::Users;
use crate::topology::{Place, Topology};

/// The most rows of one transaction.
pub const GIANT_ROWS: usize = 10_000;
/// Rows a statement of a large transaction.
const STATEMENT_ROWS: usize = 500;
/// Ids of ordinary rows are below; one in a thousand rows has an id near the top of BIGINT UNSIGNED instead.
const TOP_IDS: u64 = u64::MAX;

/// What is in the rows of an entity, and how they move.
pub(super) trait Application: fmt::Debug + Send {
    /// The columns that [`Application::new_row`] gives.
    fn columns(&self) -> &'static str;

    /// A row to insert on that server, and its values as a SQL tuple. The model does not know it yet.
    fn new_row(&mut self, desk: &mut Desk, source: usize, report: &mut WorkloadReport) -> (Row, String);

    /// What `SET` says to change captured columns of that many rows of one table alike.
    fn change(&mut self, random: &mut StdRng, place: Place, rows: u64, report: &mut WorkloadReport)
    -> String;

    /// What `SET` says to change columns that are not captured.
    fn change_of_other_columns(&mut self, random: &mut StdRng) -> String;

    /// Adds a change of two tables: a row that moves, or the like. False when there is no row for it.
    fn move_inside(&mut self, desk: &mut Desk, transaction: &mut Transaction) -> bool;

    /// A row of that server that goes to another one.
    fn cross_move(&mut self, desk: &mut Desk, source: usize) -> Option<CrossMove>;

    /// Something that happens once in thousands of transactions.
    fn seldom(&mut self, _desk: &mut Desk, _source: usize) -> Option<Transaction> {
        None
    }
}

/// What an application draws from: rows of one worker, which no other worker has.
#[derive(Debug)]
pub(super) struct Desk {
    pub topology: Topology,
    pub random: StdRng,
    pub model: Model,
    worker: u64,
    workers: u64,
    next_id: u64,
    /// Deleted rows, some of which come back.
    deleted: Vec<u64>,
}

impl Desk {
    /// The next of this worker's numbers.
    pub fn fresh_id(&mut self) -> u64 {
        let top = self.top_id();
        top.unwrap_or(self.next_id * self.workers + self.worker)
    }

    /// For one in a thousand rows an id near the top.
    pub fn top_id(&mut self) -> Option<u64> {
        self.next_id += 1;
        let id = self.next_id * self.workers + self.worker;
        self.next_id.is_multiple_of(1000).then_some(TOP_IDS - id)
    }

    /// Sometimes a deleted row.
    pub fn returning_id(&mut self) -> Option<u64> {
        self.random.random_bool(0.1).then(|| self.deleted.pop()).flatten()
    }

    pub fn source_of(&self, row: Row) -> usize {
        self.topology.source_of(row.place)
    }
}

/// Draws plans for the rows of one worker.
#[derive(Debug)]
pub(super) struct Planner {
    pub desk: Desk,
    application: Box<dyn Application>,
    pub giants: bool,
}

impl Planner {
    pub fn new(topology: Topology, seed: u64, worker: u64, workers: u64) -> Self {
        let application: Box<dyn Application> = match topology.entity {
            Entity::User => Box::new(Users),
            Entity::SerialCode => Box::new(Serials::of(worker)),
        };
        let model = Model::new(topology.sources.len());
        let random = StdRng::seed_from_u64(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(worker));
        let desk = Desk { topology, random, model, worker, workers, next_id: 0, deleted: Vec::new() };
        Self { desk, application, giants: false }
    }

    /// The next plan. `None` only when a drawn move found nothing to move.
    pub fn next(&mut self) -> Option<Plan> {
        let random = &mut self.desk.random;
        let source = random.random_range(0..self.desk.topology.sources.len());
        if self.desk.topology.sources.len() > 1 && random.random_bool(0.08) {
            return self.application.cross_move(&mut self.desk, source).map(Plan::Move);
        }
        let rows = match random.random_range(0..10_000) {
            0..3 if self.giants => GIANT_ROWS,
            3..23 => random.random_range(101..=1000),
            23..200 => random.random_range(11..=100),
            200..1200 => random.random_range(2..=10),
            1200..1203 => match self.application.seldom(&mut self.desk, source) {
                Some(transaction) => return Some(Plan::One(transaction)),
                None => 1,
            },
            _ => 1,
        };
        Some(Plan::One(if rows > 10 { self.large(source, rows) } else { self.small(source, rows) }))
    }

    /// Inserts of exactly `rows` rows on one server.
    pub fn inserts(&mut self, source: usize, rows: usize) -> Transaction {
        let mut transaction = Transaction::begin(source);
        let mut new: Vec<(Row, String)> = Vec::with_capacity(rows);
        for _ in 0..rows {
            let (row, values) = self.application.new_row(&mut self.desk, source, &mut transaction.report);
            self.desk.model.add(source, row);
            new.push((row, values));
        }
        new.sort_unstable_by_key(|(row, _)| (row.place, row.id));
        for group in new.chunk_by(|(a, _), (b, _)| a.place == b.place) {
            for part in group.chunks(STATEMENT_ROWS) {
                let values: Vec<&str> = part.iter().map(|(_, values)| values.as_str()).collect();
                let (table, columns) = (part[0].0.place.quoted(), self.application.columns());
                transaction.statement(&format!("INSERT INTO {table} {columns} VALUES {}", values.join(",")));
            }
        }
        transaction.rows += rows as u64;
        transaction.report.inserts += rows as u64;
        transaction.end(false)
    }

    /// One transaction that changes captured columns of up to `rows` rows, as many as there are.
    pub fn changes(&mut self, source: usize, rows: usize) -> Transaction {
        // A few rows a statement, so that they change to many values.
        self.updates(source, rows, 20, |planner, part, report| {
            let random = &mut planner.desk.random;
            planner.application.change(random, part[0].place, part.len() as u64, report)
        })
    }

    fn changes_of_other_columns(&mut self, source: usize, rows: usize) -> Transaction {
        self.updates(source, rows, STATEMENT_ROWS, |planner, part, report| {
            report.updates_of_other_columns += part.len() as u64;
            planner.application.change_of_other_columns(&mut planner.desk.random)
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
        let mut rows = self.desk.model.pick_many(&mut self.desk.random, source, rows);
        rows.sort_unstable_by_key(|row| (row.place, row.id));
        for group in rows.chunk_by(|a, b| a.place == b.place) {
            for part in group.chunks(statement_rows) {
                let set = set(self, part, &mut transaction.report);
                let table = part[0].place.quoted();
                transaction.statement(&format!("UPDATE {table} SET {set} WHERE {}", where_rows(part)));
            }
        }
        transaction.rows += rows.len() as u64;
        transaction.end(false)
    }

    fn large(&mut self, source: usize, rows: usize) -> Transaction {
        let kind = self.desk.random.random_range(0..10);
        let have = self.desk.model.count(source);
        let mut transaction = match kind {
            0..3 => self.inserts(source, rows),
            // Deletes are as frequent as inserts of this size, but never empty the place.
            3..5 if have > 4 * rows => self.deletes(source, rows),
            5..7 if have > 0 => self.changes_of_other_columns(source, rows),
            _ if have > 0 => self.changes(source, rows),
            _ => self.inserts(source, rows),
        };
        if self.desk.random.random_bool(0.03) {
            transaction.turn_into_rollback();
        }
        transaction
    }

    fn deletes(&mut self, source: usize, rows: usize) -> Transaction {
        let mut transaction = Transaction::begin(source);
        let mut rows = self.desk.model.take_many(&mut self.desk.random, source, rows);
        rows.sort_unstable_by_key(|row| (row.place, row.id));
        for group in rows.chunk_by(|a, b| a.place == b.place) {
            let table = group[0].place.quoted();
            transaction.statement(&format!("DELETE FROM {table} WHERE {}", where_rows(group)));
        }
        transaction.rows += rows.len() as u64;
        transaction.report.deletes += rows.len() as u64;
        transaction.end(false)
    }

    /// Single-row statements of mixed kinds; sometimes all on one row, sometimes partly or wholly rolled back.
    fn small(&mut self, source: usize, rows: usize) -> Transaction {
        let mut transaction = Transaction::begin(source);
        if rows > 1 && self.desk.random.random_bool(0.1) && self.repeat_one_row(&mut transaction, rows) {
            return transaction.end(self.desk.random.random_bool(0.05));
        }
        while transaction.rows < rows as u64 {
            self.step(&mut transaction);
        }
        if self.desk.random.random_bool(0.02) {
            let mut undone = Transaction::begin(source);
            let savepoint = self.desk.model.savepoint();
            self.step(&mut undone);
            self.desk.model.roll_back_to(savepoint);
            transaction.then_undone(undone);
        }
        transaction.end(self.desk.random.random_bool(0.03))
    }

    fn repeat_one_row(&mut self, transaction: &mut Transaction, times: usize) -> bool {
        let Some(row) = self.desk.model.pick(&mut self.desk.random, transaction.source) else { return false };
        for _ in 0..times {
            self.change(transaction, row);
        }
        transaction.report.transactions_with_repeated_row += 1;
        true
    }

    /// One change of one or two rows.
    fn step(&mut self, transaction: &mut Transaction) {
        let kind = self.desk.random.random_range(0..100);
        let is_done = match kind {
            0..22 => false,
            22..34 => self.delete(transaction),
            34..42 => self.application.move_inside(&mut self.desk, transaction),
            _ => match self.desk.model.pick(&mut self.desk.random, transaction.source) {
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
        let (row, values) = self.application.new_row(&mut self.desk, source, &mut transaction.report);
        let (table, columns) = (row.place.quoted(), self.application.columns());
        transaction.statement(&format!("INSERT INTO {table} {columns} VALUES {values}"));
        self.desk.model.add(source, row);
        transaction.rows += 1;
        transaction.report.inserts += 1;
    }

    fn delete(&mut self, transaction: &mut Transaction) -> bool {
        let Some(row) = self.desk.model.take(&mut self.desk.random, transaction.source) else { return false };
        transaction.statement(&delete_statement(row));
        transaction.rows += 1;
        transaction.report.deletes += 1;
        transaction.deleted.push(row.id);
        true
    }

    fn change(&mut self, transaction: &mut Transaction, row: Row) -> bool {
        let set = self.application.change(&mut self.desk.random, row.place, 1, &mut transaction.report);
        self.update(transaction, row, &set)
    }

    fn change_other_columns(&mut self, transaction: &mut Transaction, row: Row) -> bool {
        let set = self.application.change_of_other_columns(&mut self.desk.random);
        transaction.report.updates_of_other_columns += 1;
        self.update(transaction, row, &set)
    }

    fn update(&mut self, transaction: &mut Transaction, row: Row, set: &str) -> bool {
        let table = row.place.quoted();
        transaction.statement(&format!("UPDATE {table} SET {set} WHERE {}", where_rows(&[row])));
        transaction.rows += 1;
        true
    }

    /// To be called after a commit: some of the deleted rows come back later.
    pub fn remember_deleted(&mut self, transaction: &mut Transaction) {
        self.desk.deleted.append(&mut transaction.deleted);
    }
}
