//! The store of a lane: whichever server its target is.

use std::collections::BTreeSet;

use anabranch_connectors::mysql::store::MysqlLane;
use anabranch_connectors::search::SearchLane;
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports;
use anabranch_pipeline::projections::LaneScope;
use anabranch_pipeline::records::{Flush, Progress};
use anabranch_schemas::shard::ShardId;

/// The store of a lane on either kind of server.
#[derive(Debug)]
pub enum LaneStore {
    Mysql(MysqlLane),
    Search(SearchLane),
}

impl LaneStore {
    /// The tables that the lane owns, as its projection wants them named.
    pub fn scope(&self) -> LaneScope {
        match self {
            Self::Mysql(lane) => lane.scope(),
            Self::Search(lane) => lane.scope(),
        }
    }
}

impl ports::LaneStore for LaneStore {
    async fn load(&mut self) -> Result<Progress, Fault> {
        match self {
            Self::Mysql(lane) => lane.load().await,
            Self::Search(lane) => lane.load().await,
        }
    }

    async fn commit(&mut self, flush: &Flush) -> Result<(), Fault> {
        match self {
            Self::Mysql(lane) => lane.commit(flush).await,
            Self::Search(lane) => lane.commit(flush).await,
        }
    }

    async fn may_stand(&mut self, shards: BTreeSet<ShardId>) -> Result<BTreeSet<ShardId>, Fault> {
        match self {
            Self::Mysql(lane) => lane.may_stand(shards).await,
            Self::Search(lane) => lane.may_stand(shards).await,
        }
    }

    fn is_atomic(&self) -> bool {
        match self {
            Self::Mysql(lane) => lane.is_atomic(),
            Self::Search(lane) => lane.is_atomic(),
        }
    }
}
