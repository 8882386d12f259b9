//! A worker: one connection to each source, one set of rows. It runs plans and keeps the model true.
//!
//! When a connection is lost the outcome of the transaction is unknown. Its rows are forgotten and, once all servers
//! answer again, read back. A row that a broken move left in two shards is deleted from one, as an application would do
//! on its next try; one that it left in none is gone.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::model::Row;
use super::pace::Schedule;
use super::plan::Planner;
use super::report::WorkloadReport;
use super::transaction::{CARRIED, CrossMove, Plan, Transaction, delete_statement};
use crate::endpoint::{Connection, Endpoint};
use crate::error::Result;
use crate::topology::{SourceTable, Topology};

/// Stores zero and impossible dates as they are, and assigns columns at once; all other checks are those of
/// applications.
const SESSION: [&str; 3] = [
    "SET SESSION sql_mode = CONCAT('STRICT_TRANS_TABLES,ALLOW_INVALID_DATES,ERROR_FOR_DIVISION_BY_ZERO' \
     /*M! , ',SIMULTANEOUS_ASSIGNMENT' */)",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET SESSION innodb_lock_wait_timeout = 5",
];
/// Pause between attempts to reach a server that is down.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(100);
/// Limit, at the end of a run, of waiting for servers to read unknown rows back.
const SETTLE_MAX: Duration = Duration::from_secs(60);
/// Rows in one query.
const SETTLE_ROWS: usize = 500;

/// Counts that a screen can read while the workload runs.
pub(super) type Live = Arc<Mutex<WorkloadReport>>;

#[derive(Debug)]
pub(super) struct Worker {
    pub planner: Planner,
    topology: Topology,
    connections: Vec<Option<Connection>>,
    tolerates_crashes: bool,
    unsettled: Vec<u64>,
    /// Counts since the last [`Worker::take_report`].
    report: WorkloadReport,
    live: Live,
}

impl Worker {
    pub fn new(topology: Topology, planner: Planner, tolerates_crashes: bool, live: Live) -> Self {
        let connections = topology.sources.iter().map(|_| None).collect();
        let report = WorkloadReport::default();
        Self { planner, topology, connections, tolerates_crashes, unsettled: Vec::new(), report, live }
    }

    /// Uses another server for the source of the endpoint's name from the next transaction on.
    pub fn replace_source(&mut self, endpoint: &Endpoint) {
        self.topology.replace_source(endpoint);
        self.planner.worker_rows.topology.replace_source(endpoint);
        self.connections.iter_mut().for_each(|connection| *connection = None);
    }

    pub fn take_report(&mut self) -> WorkloadReport {
        std::mem::take(&mut self.report)
    }

    /// Runs plans until cancelled, then reads unknown rows back.
    pub async fn run(&mut self, schedule: &Schedule, cancel: &CancellationToken) -> Result<()> {
        while !cancel.is_cancelled() {
            if !self.unsettled.is_empty() {
                self.settle().await?;
            }
            let Some(plan) = self.planner.next() else { continue };
            if !schedule.wait(plan.rows(), cancel).await {
                self.planner.worker_rows.model.roll_back();
                break;
            }
            let was_reachable = match plan {
                Plan::One(transaction) => self.run_transaction(transaction).await?,
                Plan::Move(plan) => self.run_move(plan).await?,
            };
            if !was_reachable {
                tokio::time::sleep(RECONNECT_INTERVAL).await;
            }
        }
        self.settle_at_the_end().await
    }

    /// Runs one transaction; returns false when its server cannot be reached and nothing was done.
    pub async fn run_transaction(&mut self, mut transaction: Transaction) -> Result<bool> {
        if !self.is_reachable(transaction.source).await? {
            self.planner.worker_rows.model.roll_back();
            return Ok(false);
        }
        if self.execute(transaction.source, "run a transaction", &transaction.sql).await? {
            if transaction.rolls_back {
                self.planner.worker_rows.model.roll_back();
                self.count(WorkloadReport { rollbacks: 1, ..Default::default() });
            } else {
                self.planner.worker_rows.model.commit();
                self.planner.remember_deleted(&mut transaction);
                transaction.report.count_transaction(transaction.rows);
                self.count(transaction.report);
            }
        }
        Ok(true)
    }

    /// Runs the two transactions of a move; returns false when a server cannot be reached and nothing was done.
    async fn run_move(&mut self, plan: CrossMove) -> Result<bool> {
        let sources = (self.topology.source_of(plan.from.source_table), self.topology.source_of(plan.to));
        if !self.is_reachable(sources.0).await? || !self.is_reachable(sources.1).await? {
            self.planner.worker_rows.model.roll_back();
            return Ok(false);
        }
        let insert = match &plan.carried {
            None => plan.insert,
            Some(sql) => match self.carried(sources.0, sql).await? {
                Some(literals) => plan.insert.replace(CARRIED, &literals),
                None => return Ok(true),
            },
        };
        let mut steps = [(sources.1, insert), (sources.0, delete_statement(plan.from))];
        if !plan.insert_first {
            steps.reverse();
        }
        for (source, sql) in steps {
            // A failed first step leaves the row in its old table; a failed second one is settled later.
            if !self.execute(source, "move a row", &sql).await? {
                return Ok(true);
            }
        }
        self.planner.worker_rows.model.commit();
        let mut report = plan.report;
        report.count_transaction(1);
        report.count_transaction(1);
        self.count(report);
        Ok(true)
    }

    /// Returns columns of a row as SQL literals; `None` when it cannot be read.
    async fn carried(&mut self, source: usize, sql: &str) -> Result<Option<String>> {
        let connection = self.connections[source].as_mut().expect("just made reachable");
        match connection.first::<String>("read a row", sql).await {
            Ok(Some(literals)) => Ok(Some(literals)),
            Ok(None) => {
                self.doubt();
                Ok(None)
            }
            Err(error) => self.after_error(source, error).await.map(|()| None),
        }
    }

    /// True when the statements ran; false when they did not or the outcome is unknown, and the model was corrected.
    async fn execute(&mut self, source: usize, action: &'static str, sql: &str) -> Result<bool> {
        let connection = self.connections[source].as_mut().expect("made reachable by every caller");
        match connection.execute(action, sql).await {
            Ok(()) => Ok(true),
            Err(error) => self.after_error(source, error).await.map(|()| false),
        }
    }

    async fn after_error(&mut self, source: usize, error: crate::error::DemoError) -> Result<()> {
        if error.is_lock_conflict() {
            self.count(WorkloadReport { lock_conflicts: 1, ..Default::default() });
            if let Some(connection) = &mut self.connections[source]
                && let Err(error) = connection.execute("roll back", "ROLLBACK").await
            {
                if !self.tolerates_crashes {
                    return Err(error);
                }
                // The server died after the conflict.
                self.connections[source] = None;
            }
            // The other step of a move may have been done.
            self.doubt();
            return Ok(());
        }
        if !self.tolerates_crashes {
            return Err(error);
        }
        // Any other error means that the model was wrong, which a crash explains: a new connection begins anew.
        self.connections[source] = None;
        self.count(WorkloadReport { lost_connections: 1, ..Default::default() });
        self.doubt();
        Ok(())
    }

    fn doubt(&mut self) {
        let ids = self.planner.worker_rows.model.forget_touched();
        self.unsettled.extend(ids);
    }

    async fn is_reachable(&mut self, source: usize) -> Result<bool> {
        if self.connections[source].is_some() {
            return Ok(true);
        }
        match self.topology.sources[source].connect(&SESSION).await {
            Ok(connection) => self.connections[source] = Some(connection),
            Err(error) if !self.tolerates_crashes => return Err(error),
            Err(_) => return Ok(false),
        }
        Ok(true)
    }

    /// Reads rows back that another program may have changed.
    pub async fn read_back(&mut self, ids: &[u64]) -> Result<()> {
        self.planner.worker_rows.model.forget(ids);
        self.unsettled.extend(ids);
        self.settle_at_the_end().await
    }

    async fn settle_at_the_end(&mut self) -> Result<()> {
        let deadline = Instant::now() + SETTLE_MAX;
        while !self.unsettled.is_empty() && Instant::now() < deadline {
            if !self.settle().await? {
                tokio::time::sleep(RECONNECT_INTERVAL).await;
            }
        }
        let unsettled_rows = self.unsettled.len() as u64;
        self.count(WorkloadReport { unsettled_rows, ..Default::default() });
        Ok(())
    }

    /// Reads unsettled rows back from all servers; returns false when one of them does not answer.
    async fn settle(&mut self) -> Result<bool> {
        for source in 0..self.connections.len() {
            if !self.is_reachable(source).await? {
                return Ok(false);
            }
        }
        self.unsettled.sort_unstable();
        self.unsettled.dedup();
        while !self.unsettled.is_empty() {
            let count = self.unsettled.len().min(SETTLE_ROWS);
            let ids: Vec<u64> = self.unsettled[..count].to_vec();
            let Some(mut found) = self.find(&ids).await? else { return Ok(false) };
            // A row in the history stays there.
            found.sort_unstable_by_key(|row| (row.id, !row.source_table.is_history()));
            for same in found.chunk_by(|a, b| a.id == b.id) {
                let (kept, extra) = same.split_first().expect("chunks are not empty");
                for row in extra {
                    let source = self.topology.source_of(row.source_table);
                    if !self.execute(source, "delete a doubled row", &delete_statement(*row)).await? {
                        return Ok(false);
                    }
                    self.count(WorkloadReport { deletes: 1, changes: 1, ..Default::default() });
                }
                if !kept.source_table.is_history() {
                    self.planner.worker_rows.model.add(self.topology.source_of(kept.source_table), *kept);
                }
            }
            self.planner.worker_rows.model.commit();
            self.unsettled.drain(..count);
        }
        Ok(true)
    }

    /// Finds the present tables of rows on all servers; `None` when a server went away meanwhile.
    async fn find(&mut self, ids: &[u64]) -> Result<Option<Vec<Row>>> {
        let mut found = Vec::new();
        for source in 0..self.connections.len() {
            let source_tables: Vec<SourceTable> = self.topology.tables_of(source).collect();
            let select = |(number, source_table): (usize, &SourceTable)| {
                let wanted = ids.iter().filter(|id| self.topology.may_hold(*source_table, **id));
                let keys: Vec<String> = wanted.map(|id| source_table.key(*id)).collect();
                let (id, table, column) =
                    (source_table.number_sql(), source_table.quoted(), source_table.key_column());
                let list = keys.join(",");
                (!keys.is_empty())
                    .then(|| format!("SELECT {number}, {id} FROM {table} WHERE {column} IN ({list})"))
            };
            let selects: Vec<String> = source_tables.iter().enumerate().filter_map(select).collect();
            if selects.is_empty() {
                continue;
            }
            let connection = self.connections[source].as_mut().expect("just made reachable");
            match connection.rows::<(usize, u64)>("find rows", selects.join(" UNION ALL ")).await {
                Ok(rows) => found.extend(
                    rows.into_iter().map(|(number, id)| Row { id, source_table: source_tables[number] }),
                ),
                Err(error) => {
                    self.after_error(source, error).await?;
                    return Ok(None);
                }
            }
        }
        Ok(Some(found))
    }

    fn count(&mut self, report: WorkloadReport) {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).merge(&report);
        self.report.merge(&report);
    }
}
