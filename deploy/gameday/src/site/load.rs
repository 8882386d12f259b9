//! The workload: a few changes a second on each entity, which go on while servers die.

use anabranch_demo::{Pace, Topology, Workload, WorkloadOptions, WorkloadReport};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::error::Result;

/// Changes a second of each entity: every second has one, and a spot check looks at each.
const CHANGES_PER_SECOND: u32 = 8;

/// A workload that has run, and how its run ended.
type Ended = (Workload, anabranch_demo::Result<WorkloadReport>);

/// One workload for each entity.
#[derive(Debug)]
pub struct Load {
    idle: Vec<Workload>,
    running: Vec<JoinHandle<Ended>>,
    cancel: CancellationToken,
}

impl Load {
    pub fn new(topologies: Vec<Topology>) -> Self {
        let options = WorkloadOptions::new(u64::from(rand::random::<u32>())).tolerating_crashes();
        let idle = topologies.into_iter().map(|topology| Workload::new(topology, options)).collect();
        Self { idle, running: Vec::new(), cancel: CancellationToken::new() }
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
            let cancel = self.cancel.clone();
            let run = async move {
                let report = workload.run(Pace::of(CHANGES_PER_SECOND), cancel).await;
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
            let (workload, report) = running.await.map_err(anabranch_demo::DemoError::from)?;
            self.idle.push(workload);
            if let Err(error) = report
                && result.is_ok()
            {
                result = Err(error.into());
            }
        }
        result
    }
}
