//! Lanes whose progress is lost or damaged, on every kind of target.

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::records::{LaneId, Progress};

use super::{TargetServer, Wiring};

impl Wiring {
    /// Returns the lanes of a source whose progress is lost or damaged, on the targets that have lanes of it, and the
    /// faults of those targets that do not answer.
    pub async fn lost_lanes(&self, source: &str) -> (Vec<LaneId>, Vec<Fault>) {
        let (mut lost, mut faults) = (Vec::new(), Vec::new());
        for target in self.0.targets.values() {
            if !target.server.lane_ids().iter().any(|lane| lane.source == source) {
                continue;
            }
            let found = match &target.server {
                TargetServer::Mysql(server) => server.lost_lanes(source).await,
                TargetServer::Search(server) => server.lost_lanes(source).await,
            };
            match found {
                Ok(lanes) => lost.extend(lanes),
                Err(fault) => faults.push(fault),
            }
        }
        (lost, faults)
    }

    /// Stores progress of lanes in place of what they lost, on each target that takes it.
    pub async fn begin_lost_lanes(&self, lanes: &[(LaneId, Progress)]) -> Result<(), Fault> {
        let mut faults = Vec::new();
        for target in self.0.targets.values() {
            let mut own = lanes.to_vec();
            own.retain(|(lane, _)| lane.target == target.server.name());
            if own.is_empty() {
                continue;
            }
            let stored = match &target.server {
                TargetServer::Mysql(server) => server.begin_lost_lanes(&own).await,
                TargetServer::Search(server) => server.begin_lost_lanes(&own).await,
            };
            faults.extend(stored.err());
        }
        faults.into_iter().next().map_or(Ok(()), Err)
    }
}
