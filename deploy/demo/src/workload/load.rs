//! Workloads that run in the background, one for each entity, while servers and daemons die.

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{LiveReport, Pace, Workload, WorkloadOptions, WorkloadReport};
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::topology::Topology;

/// A workload that has run, and how its run ended.
type Ended = (Workload, Result<WorkloadReport>);

/// One workload for each entity, all with the same pace. Their workers reconnect to servers that were away.
#[derive(Debug)]
pub struct Load {
    pace: Pace,
    idle: Vec<Workload>,
    running: Vec<JoinHandle<Ended>>,
    live: Vec<LiveReport>,
    cancel: CancellationToken,
}

impl Load {
    /// Makes the workloads of these topologies, each with this pace; none runs yet.
    pub fn new(topologies: Vec<Topology>, seed: u64, pace: Pace) -> Self {
        let options = WorkloadOptions::new(seed).tolerating_crashes();
        let idle: Vec<Workload> =
            topologies.into_iter().map(|topology| Workload::new(topology, options)).collect();
        let live = idle.iter().map(Workload::live).collect();
        Self { pace, idle, running: Vec::new(), live, cancel: CancellationToken::new() }
    }

    /// Inserts so many rows of each entity.
    pub async fn fill(&mut self, rows: u64) -> Result<()> {
        for workload in &mut self.idle {
            workload.insert_rows(rows).await?;
        }
        Ok(())
    }

    /// Begins to change rows, unless it runs already.
    pub fn start(&mut self) {
        if self.idle.is_empty() {
            return;
        }
        self.cancel = CancellationToken::new();
        for mut workload in self.idle.drain(..) {
            let (cancel, pace) = (self.cancel.clone(), self.pace);
            let run = async move {
                let report = workload.run(pace, cancel).await;
                (workload, report)
            };
            self.running.push(tokio::spawn(run));
        }
    }

    /// Ends the changes, once the outcome of each is known. Returns the first error of a run.
    pub async fn stop(&mut self) -> Result<()> {
        self.cancel.cancel();
        let mut result = Ok(());
        for running in self.running.drain(..) {
            let (workload, report) = running.await?;
            self.idle.push(workload);
            if let Err(error) = report
                && result.is_ok()
            {
                result = Err(error);
            }
        }
        result
    }

    /// Has every stopped workload use another server for the source of the endpoint's name.
    pub fn replace_source(&mut self, endpoint: &Endpoint) {
        self.idle.iter_mut().for_each(|workload| workload.replace_source(endpoint));
    }

    /// Returns the number of row changes that were committed so far.
    pub fn changes(&self) -> u64 {
        self.changes_by_entity().into_iter().sum()
    }

    /// Returns that number of each workload, in the order of their topologies.
    pub fn changes_by_entity(&self) -> Vec<u64> {
        self.live.iter().map(|live| live.snapshot().changes).collect()
    }
}
