//! The derived rows of a projection, whichever kind of server has them.

use std::num::NonZeroUsize;
use std::ops::RangeInclusive;

use anabranch_connectors::mysql::target::MysqlRows;
use anabranch_connectors::search::SearchRows;
use anabranch_pipeline::deliver::Claimed;
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::{ChunkKey, DerivedRows, Sought};
use anabranch_schemas::shard::ShardId;

/// The derived rows of a projection on either kind of server.
#[derive(Debug)]
pub enum DerivedStore {
    Mysql(MysqlRows),
    Search(SearchRows),
}

impl DerivedRows for DerivedStore {
    async fn page(
        &self,
        table: u32,
        shards: RangeInclusive<ShardId>,
        after: Option<&ChunkKey>,
        limit: NonZeroUsize,
        visit: &mut (dyn FnMut(Claimed<'_>) + Send),
    ) -> Result<Option<ChunkKey>, Fault> {
        match self {
            Self::Mysql(rows) => rows.page(table, shards, after, limit, visit).await,
            Self::Search(rows) => rows.page(table, shards, after, limit, visit).await,
        }
    }

    async fn rows(
        &self,
        sought: &[Sought],
        visit: &mut (dyn FnMut(Claimed<'_>) + Send),
    ) -> Result<(), Fault> {
        match self {
            Self::Mysql(rows) => rows.rows(sought, visit).await,
            Self::Search(rows) => rows.rows(sought, visit).await,
        }
    }
}
