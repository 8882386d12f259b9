//! The applications of the demo: seeded workloads on sharded tables of several servers, one for each entity.
//!
//! Each worker has a connection to each server and rows of its own. It inserts, changes, moves and deletes them, rolls
//! back, and writes every kind of value. It never reads derived tables. `verify` compares those with the sources
//! themselves, so the workload's own model of its rows need not be exact.

mod application;
mod codes;
mod load;
mod model;
mod pace;
mod payments;
mod plan;
mod report;
mod serials;
mod transaction;
mod trees;
mod users;
mod uuids;
mod values;
mod worker;

use std::sync::{Arc, Mutex, PoisonError};

use futures::future::join_all;
use tokio_util::sync::CancellationToken;

use self::pace::Schedule;
use self::plan::Planner;
use self::worker::{Live, Worker};
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::topology::{SourceTable, Topology};

pub use self::load::Load;
pub use self::pace::Pace;
pub use self::plan::GIANT_ROWS;
pub use self::report::WorkloadReport;
pub(crate) use self::report::is_zero;

/// Options of a workload.
#[derive(Debug, Clone, Copy)]
pub struct WorkloadOptions {
    /// The same seed draws the same plans in each worker; the servers determine how workers interleave.
    pub seed: u64,
    /// Workers, each with one connection to each source.
    pub workers: u32,
    /// Servers may be killed and restarted: workers reconnect and read unknown rows back. Otherwise an error ends a
    /// run.
    pub tolerates_crashes: bool,
}

impl WorkloadOptions {
    pub fn new(seed: u64) -> Self {
        Self { seed, workers: 4, tolerates_crashes: false }
    }

    #[must_use]
    pub fn tolerating_crashes(mut self) -> Self {
        self.tolerates_crashes = true;
        self
    }
}

/// A workload on the sources of a topology. It owns all rows there: one workload at a time.
#[derive(Debug)]
pub struct Workload {
    topology: Topology,
    options: WorkloadOptions,
    workers: Vec<Worker>,
    live: Live,
}

/// A row that a workload has given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetAside {
    pub source_table: SourceTable,
    /// The number of a device or payment document, or the id of a user.
    pub number: u64,
}

/// Counts of a running workload since it was made.
#[derive(Debug, Clone)]
pub struct LiveReport(Live);

impl LiveReport {
    pub fn snapshot(&self) -> WorkloadReport {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Workload {
    /// Prints the seed on stderr, so that a failed run can be repeated.
    pub fn new(topology: Topology, options: WorkloadOptions) -> Self {
        eprintln!("{} workload seed {}", topology.entity.name(), options.seed);
        let live = Arc::new(Mutex::new(WorkloadReport::default()));
        let workers = (0..u64::from(options.workers.max(1)))
            .map(|number| {
                let planner =
                    Planner::new(topology.clone(), options.seed, number, u64::from(options.workers.max(1)));
                Worker::new(topology.clone(), planner, options.tolerates_crashes, Arc::clone(&live))
            })
            .collect();
        Self { topology, options, workers, live }
    }

    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    pub fn seed(&self) -> u64 {
        self.options.seed
    }

    pub fn live(&self) -> LiveReport {
        LiveReport(Arc::clone(&self.live))
    }

    /// Uses another server for the source of the endpoint's name, such as its promoted replica.
    pub fn replace_source(&mut self, endpoint: &Endpoint) {
        self.topology.replace_source(endpoint);
        self.workers.iter_mut().for_each(|worker| worker.replace_source(endpoint));
    }

    /// Creates databases and tables; safe to repeat.
    pub async fn create_schema(&self) -> Result<()> {
        self.topology.create_schema().await
    }

    /// Inserts at least `rows` rows, in transactions of up to [`GIANT_ROWS`] rows.
    pub async fn insert_rows(&mut self, rows: u64) -> Result<WorkloadReport> {
        let shares = self.workers.len() * self.topology.sources.len();
        let share = rows.div_ceil(shares as u64) as usize;
        let sources = self.topology.sources.len();
        let seeding = self.workers.iter_mut().map(|worker| async move {
            for source in 0..sources {
                let mut left = share;
                while left > 0 {
                    let rows = left.min(GIANT_ROWS);
                    let transaction = worker.planner.inserts(source, rows);
                    worker.run_transaction(transaction).await?;
                    left -= rows;
                }
            }
            Ok(())
        });
        let results = join_all(seeding).await;
        self.collect(results)
    }

    /// Runs one transaction of exactly [`GIANT_ROWS`] rows on each source: inserts, or changes of captured columns once
    /// there are as many rows. They are separate from [`Workload::run`] with a pace, whose schedule they would stop for
    /// seconds.
    pub async fn giant_transactions(&mut self) -> Result<WorkloadReport> {
        let sources = self.topology.sources.len();
        let Some(worker) = self.workers.first_mut() else { return Ok(WorkloadReport::default()) };
        let mut result = Ok(());
        for source in 0..sources {
            let transaction = match worker.planner.worker_rows.model.count(source) >= GIANT_ROWS {
                true => worker.planner.changes(source, GIANT_ROWS),
                false => worker.planner.inserts(source, GIANT_ROWS),
            };
            if let Err(error) = worker.run_transaction(transaction).await {
                result = Err(error);
                break;
            }
        }
        self.collect(vec![result])
    }

    /// Runs until `cancel`; the report is of this run alone. Dropping the future may leave transactions open, which
    /// their servers roll back. [`Pace::Unlimited`] also makes transactions of [`GIANT_ROWS`] rows now and then.
    pub async fn run(&mut self, pace: Pace, cancel: CancellationToken) -> Result<WorkloadReport> {
        // The first error ends all workers.
        let cancel = cancel.child_token();
        let schedule = Schedule::new(pace);
        let running = self.workers.iter_mut().map(|worker| {
            worker.planner.giants = pace == Pace::Unlimited;
            let (schedule, cancel) = (&schedule, &cancel);
            async move {
                let result = worker.run(schedule, cancel).await;
                if result.is_err() {
                    cancel.cancel();
                }
                result
            }
        });
        let results = join_all(running).await;
        self.collect(results)
    }

    /// Runs for a time.
    pub async fn run_for(&mut self, pace: Pace, time: std::time::Duration) -> Result<WorkloadReport> {
        let cancel = CancellationToken::new();
        let end = cancel.clone();
        let timer = async move {
            tokio::time::sleep(time).await;
            end.cancel();
        };
        let (report, ()) = tokio::join!(self.run(pace, cancel), timer);
        report
    }

    /// Reads rows back from the servers, as after a lost connection: deletes a row that is in two shards from one of
    /// them, and forgets a missing one.
    pub async fn read_back(&mut self, ids: &[u64]) -> Result<WorkloadReport> {
        let reads = self.workers.iter_mut().map(|worker| {
            let own: Vec<u64> =
                ids.iter().copied().filter(|id| worker.planner.worker_rows.model.has(*id)).collect();
            async move { worker.read_back(&own).await }
        });
        let results = join_all(reads).await;
        self.collect(results)
    }

    /// Gives up so many random rows, which this workload does not touch from now on. Returns fewer when there are not
    /// as many; none is in a history.
    pub fn set_aside(&mut self, rows: usize) -> Vec<SetAside> {
        let turns = self.workers.len() * self.topology.sources.len();
        let mut aside = Vec::new();
        for worker in &mut self.workers {
            let worker_rows = &mut worker.planner.worker_rows;
            for source in 0..self.topology.sources.len() {
                let taken =
                    worker_rows.model.take_many(&mut worker_rows.random, source, rows.div_ceil(turns));
                aside.extend(
                    taken.into_iter().map(|row| SetAside { source_table: row.source_table, number: row.id }),
                );
            }
            worker_rows.model.commit();
        }
        aside.truncate(rows);
        aside
    }

    fn collect(&mut self, results: Vec<Result<()>>) -> Result<WorkloadReport> {
        let mut report = WorkloadReport::default();
        for worker in &mut self.workers {
            report.merge(&worker.take_report());
        }
        results.into_iter().collect::<Result<()>>().map(|()| report)
    }
}
