//! The birthday tables of a day: read page by page in the order of users, and their columns that follow the ledger.

use anabranch_coupons::ports::CohortRow;
use anabranch_pipeline::config::Config;
use anabranch_pipeline::error::Fault;
use anabranch_schemas::celebration::{Birthday, Occurrence};

/// Birthday tables of one projection of each calendar.
#[derive(Debug, Clone)]
pub struct MysqlCohort {}

impl MysqlCohort {
    /// Of the projections of these names, over so many connections a target. Nothing is connected yet.
    pub fn new(_config: &Config, _projections: &[&str], _connections: usize) -> Result<Self, Fault> {
        todo!()
    }

    /// As [`anabranch_coupons::ports::CohortRows::page`].
    pub async fn page(
        &self,
        _table: Birthday,
        _after: Option<u64>,
        _limit: usize,
    ) -> Result<Vec<CohortRow>, Fault> {
        todo!()
    }

    /// As [`anabranch_coupons::ports::CohortRows::follow`].
    pub async fn follow(&self, _tables: &[Birthday], _granted: &[(u64, Occurrence)]) -> Result<(), Fault> {
        todo!()
    }
}
