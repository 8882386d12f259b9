//! Says of which shards a lane's tables may have rows: by a search for a few shards, or from a census.

use std::collections::BTreeSet;

use anabranch_pipeline::error::Fault;
use anabranch_schemas::shard::ShardId;

use super::MysqlLane;
use crate::mysql::store::layout::FlushLayout;
use crate::mysql::store::withdraw::{Census, PresentShards, Search};

/// Shards that are searched while there is no census, at most. A refresh asks for fewer at a time. A census lists every
/// shard of every table first, and of a store with many shards it says nothing.
const SEARCHED_MAX: usize = 64;

impl MysqlLane {
    /// Answers as [`anabranch_pipeline::ports::LaneStore::shards_with_rows`] does.
    pub(super) async fn present_of(
        &mut self,
        mut shards: BTreeSet<ShardId>,
    ) -> Result<BTreeSet<ShardId>, Fault> {
        let has_census = matches!(self.present, PresentShards::Shards(_));
        if !has_census && shards.len() <= SEARCHED_MAX {
            return self.search(shards).await;
        }
        if let PresentShards::Unknown = self.present {
            self.present = self.census().await?;
        }
        shards.retain(|shard| self.present.may_have(*shard));
        Ok(shards)
    }

    async fn search(&mut self, shards: BTreeSet<ShardId>) -> Result<BTreeSet<ShardId>, Fault> {
        let mut connected = self.connected().await?;
        let layout = self.tables_alone();
        let mut search = Search::of_shards(&layout, shards);
        self.ask(&mut connected, &mut search, |search| search.ask(&layout), Search::answer).await?;
        self.connection = Some(connected);
        Ok(search.into_found().into_iter().map(|occupied| occupied.shard).collect())
    }

    async fn census(&mut self) -> Result<PresentShards, Fault> {
        let mut connected = self.connected().await?;
        let layout = self.tables_alone();
        let mut census = Census::of(&layout);
        self.ask(&mut connected, &mut census, |census| census.ask(&layout), Census::answer).await?;
        self.connection = Some(connected);
        Ok(census.into_present())
    }

    /// Returns the lane's tables, without the work of a flush.
    fn tables_alone(&self) -> FlushLayout<'_> {
        FlushLayout {
            tables: self.assignment.projection.tables(),
            owned: &self.owned,
            outbox: None,
            stored_versions: &[],
            withdrawn: &[],
            retired: &self.retired,
        }
    }
}
