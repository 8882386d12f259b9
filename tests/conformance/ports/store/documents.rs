//! A lane of documents under the tests of every store: an index of devices replaces all derived tables.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use anabranch_connectors::search::SearchLane;
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::{ClaimsPage, LaneStore, ShardPage};
use anabranch_pipeline::projections::Projection;
use anabranch_pipeline::records::{Cell, DerivedRow, Flush, Mutation, MutationAction, Progress, Replacement};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;

use super::{Ground, Twin};
use crate::derived::Rows;

/// An index of devices in place of all tables: a row is the device `table.user`, its birthday the first code.
pub struct Documents {
    projection: Projection,
    site: crate::search::SearchSite,
}

/// A lane of documents that takes the flushes of a lane of tables.
pub struct AsDocuments(SearchLane);

impl LaneStore for AsDocuments {
    async fn load(&mut self) -> Result<Progress, Fault> {
        self.0.load().await
    }

    async fn commit(&mut self, flush: &Flush) -> Result<(), Fault> {
        let mut documents = Flush::new(flush.progress.clone());
        flush.withdrawals.iter().for_each(|(shard, lsn)| documents.withdraw(*shard, *lsn));
        let values = self.0.projection().tables()[0].derived.shape.value_columns.len();
        for mutation in flush.ordered() {
            let [Cell::UInt(user)] = mutation.key else { panic!("{:?}", mutation.key) };
            let key = format!("{}.{user}", mutation.table).into_bytes();
            let action = match mutation.action {
                MutationAction::Delete => MutationAction::Delete,
                MutationAction::Upsert(birthday) => {
                    let none = std::iter::repeat_n(Cell::Null, values - birthday.len());
                    MutationAction::Upsert(birthday.iter().cloned().chain(none).collect())
                }
            };
            let key = Box::new([Cell::Bytes(key.into())]);
            documents.push(Mutation { table: 0, key, action, ..mutation.to_owned() });
        }
        // A user is a device in each table.
        documents.replacement = flush.replacement.as_ref().map(|replacement| {
            let device = |(shard, key): &(_, Cell)| {
                let Cell::UInt(user) = key else { panic!("{key:?}") };
                let keys =
                    (0..366).map(move |table| Cell::Bytes(format!("{table}.{user}").into_bytes().into()));
                keys.map(move |key| (*shard, key)).collect::<Vec<_>>()
            };
            Replacement { rows: replacement.rows.iter().flat_map(device).collect(), ..replacement.clone() }
        });
        self.0.commit(&documents).await
    }

    async fn shards_with_rows(&mut self, shards: BTreeSet<ShardId>) -> Result<BTreeSet<ShardId>, Fault> {
        self.0.shards_with_rows(shards).await
    }

    async fn withdrawn_claims(
        &mut self,
        withdrawals: &[(ShardId, Lsn)],
        page: &ClaimsPage,
        limit: NonZeroUsize,
    ) -> Result<(Vec<Mutation>, Option<ClaimsPage>), Fault> {
        self.0.withdrawn_claims(withdrawals, page, limit).await
    }

    async fn rows_of_shard(
        &mut self,
        page: &ShardPage,
        limit: NonZeroUsize,
        visit: &mut (dyn FnMut(DerivedRow<'_>) + Send),
    ) -> Result<Option<ShardPage>, Fault> {
        self.0.rows_of_shard(page, limit, visit).await
    }

    fn is_atomic(&self) -> bool {
        self.0.is_atomic()
    }
}

impl Ground for Documents {
    type Store = AsDocuments;

    async fn start() -> Self {
        let site = crate::search::SearchSite::new().await.ready().await;
        Self { projection: Twin::start().await.projection, site }
    }

    async fn lane(&self) -> (AsDocuments, Progress) {
        let (lane, progress) = self.site.lane("source-a", 0).await;
        (AsDocuments(lane), progress)
    }

    fn projection(&self) -> Projection {
        self.projection.clone()
    }

    async fn rows(&self) -> Rows {
        let text = |document: &serde_json::Value, name: &str| document[name].as_str().unwrap().to_owned();
        let row = |document: &serde_json::Value| {
            let device = text(document, "uuid");
            let (table, user) = device.split_once('.').unwrap();
            let derived = &self.projection.tables()[table.parse::<usize>().unwrap()].derived;
            let shard = text(document, "shard_id").parse().unwrap();
            let name = format!("{}.{}", derived.database, derived.table);
            let lsn = document["lsn"].as_u64().unwrap();
            ((name, shard, user.parse().unwrap()), (text(document, "imei1"), lsn, 0))
        };
        self.site.documents().await.values().map(row).collect()
    }
}
