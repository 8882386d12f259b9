//! The records of operations, in the control database of the first MySQL target.

pub use anabranch_connectors::mysql::store::MysqlOperations as OperationRecords;
use anabranch_pipeline::error::{Code, Fault};

use super::{TargetServer, Wiring};

impl Wiring {
    /// Returns the records of operations, which lie beside the history of reconciliations. Connects nothing yet.
    pub fn operations(&self) -> Result<OperationRecords, Fault> {
        let records = |name: &String| match &self.target(name).ok()?.server {
            TargetServer::Mysql(server) => Some(OperationRecords::new(server)),
            TargetServer::Search(_) => None,
        };
        self.config().targets.iter().find_map(|target| records(&target.name)).ok_or_else(|| {
            Fault::new(Code::TargetTableMissing, "configuration", "no target can keep records of operations")
                .needs("a target with mysql://, whose control database keeps them")
        })
    }
}
