//! The interface of each entity's application, and the state that it uses.

use std::fmt;

use rand::RngExt;
use rand::rngs::StdRng;

use super::model::{Model, Row};
use super::report::WorkloadReport;
use super::transaction::{CrossMove, Transaction};
use crate::topology::{SourceTable, Topology};

/// Ordinary ids are below this; one in a thousand rows has an id near the top of BIGINT UNSIGNED instead.
const TOP_IDS: u64 = u64::MAX;

/// The rows of an entity, and their moves.
pub(super) trait Application: fmt::Debug + Send {
    /// Returns the columns of the values of [`Application::new_row`].
    fn columns(&self) -> &'static str;

    /// Returns a row to insert on that server, and its values as a SQL tuple. The model does not know it yet.
    fn new_row(
        &mut self,
        worker_rows: &mut WorkerRows,
        source: usize,
        report: &mut WorkloadReport,
    ) -> (Row, String);

    /// Returns the `SET` text that changes captured columns of that many rows of one table alike.
    fn change(
        &mut self,
        random: &mut StdRng,
        source_table: SourceTable,
        rows: u64,
        report: &mut WorkloadReport,
    ) -> String;

    /// Returns the `SET` text that changes columns that are not captured.
    fn change_of_other_columns(&mut self, random: &mut StdRng) -> String;

    /// Adds a change of two tables, such as a row that moves. Returns false when there is no row for it.
    fn move_inside(&mut self, worker_rows: &mut WorkerRows, transaction: &mut Transaction) -> bool;

    /// Returns a row of that server that moves to another one.
    fn cross_move(&mut self, worker_rows: &mut WorkerRows, source: usize) -> Option<CrossMove>;

    /// Returns a transaction that happens once in thousands, if the application has one.
    fn seldom(&mut self, _rows: &mut WorkerRows, _source: usize) -> Option<Transaction> {
        None
    }
}

/// The state of an application: rows of one worker, which no other worker has.
#[derive(Debug)]
pub(super) struct WorkerRows {
    pub topology: Topology,
    pub random: StdRng,
    pub model: Model,
    pub worker: u64,
    pub workers: u64,
    pub next_id: u64,
    /// Deleted rows, some of which come back.
    pub deleted: Vec<u64>,
}

impl WorkerRows {
    /// Returns the next of this worker's numbers.
    pub fn fresh_id(&mut self) -> u64 {
        let top = self.top_id();
        top.unwrap_or(self.next_id * self.workers + self.worker)
    }

    /// Returns an id near the top for one in a thousand rows.
    pub fn top_id(&mut self) -> Option<u64> {
        self.next_id += 1;
        let id = self.next_id * self.workers + self.worker;
        self.next_id.is_multiple_of(1000).then_some(TOP_IDS - id)
    }

    /// Sometimes returns a deleted row.
    pub fn returning_id(&mut self) -> Option<u64> {
        self.random.random_bool(0.1).then(|| self.deleted.pop()).flatten()
    }

    pub fn source_of(&self, row: Row) -> usize {
        self.topology.source_of(row.source_table)
    }
}
