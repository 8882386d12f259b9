//! Rows of users by key, from the source tables that claims name, on their primaries.

use anabranch_pipeline::config::Config;
use anabranch_pipeline::error::Fault;

use super::cohort::MysqlCohort;

/// The source tables of all users. It is a [`anabranch_coupons::ports::SourceRows`].
#[derive(Debug)]
pub struct MysqlSourceRows {}

impl MysqlSourceRows {
    /// `cohort` tells claims of users whom no given shard has. Nothing is connected yet.
    pub fn new(_config: &Config, _cohort: MysqlCohort) -> Result<Self, Fault> {
        todo!()
    }
}
