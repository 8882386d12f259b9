//! Lanes whose progress is lost or damaged, on every kind of target.

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::records::{LaneId, Progress};

use super::{TargetServer, Wiring};

impl Wiring {
    /// Returns the lanes of a source whose progress is lost or damaged, on all targets.
    pub async fn lost_lanes(&self, source: &str) -> Result<Vec<LaneId>, Fault> {
        let mut lost = Vec::new();
        for target in self.0.targets.values() {
            lost.extend(match &target.server {
                TargetServer::Mysql(server) => server.lost_lanes(source).await?,
                TargetServer::Search(server) => server.lost_lanes(source).await?,
            });
        }
        Ok(lost)
    }

    /// Stores progress of lanes in place of what they lost.
    pub async fn begin_lost_lanes(&self, lanes: &[(LaneId, Progress)]) -> Result<(), Fault> {
        for target in self.0.targets.values() {
            let mut own = lanes.to_vec();
            own.retain(|(lane, _)| lane.target == target.server.name());
            if own.is_empty() {
                continue;
            }
            match &target.server {
                TargetServer::Mysql(server) => server.begin_lost_lanes(&own).await?,
                TargetServer::Search(server) => server.begin_lost_lanes(&own).await?,
            }
        }
        Ok(())
    }
}
