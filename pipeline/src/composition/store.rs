//! The store of a lane, whose target has tables or documents.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;

use crate::error::Fault;
use crate::ports::{ClaimsPage, LaneStore, ShardPage};
use crate::records::{DerivedRow, Flush, Mutation, Progress};

/// The store of a lane on either kind of target.
#[derive(Debug)]
pub enum EitherStore<T, D> {
    Tables(T),
    Documents(D),
}

impl<T: LaneStore, D: LaneStore> LaneStore for EitherStore<T, D> {
    async fn load(&mut self) -> Result<Progress, Fault> {
        match self {
            Self::Tables(store) => store.load().await,
            Self::Documents(store) => store.load().await,
        }
    }

    async fn commit(&mut self, flush: &Flush) -> Result<(), Fault> {
        match self {
            Self::Tables(store) => store.commit(flush).await,
            Self::Documents(store) => store.commit(flush).await,
        }
    }

    async fn shards_with_rows(&mut self, shards: BTreeSet<ShardId>) -> Result<BTreeSet<ShardId>, Fault> {
        match self {
            Self::Tables(store) => store.shards_with_rows(shards).await,
            Self::Documents(store) => store.shards_with_rows(shards).await,
        }
    }

    async fn withdrawn_claims(
        &mut self,
        withdrawals: &[(ShardId, Lsn)],
        page: &ClaimsPage,
        limit: NonZeroUsize,
    ) -> Result<(Vec<Mutation>, Option<ClaimsPage>), Fault> {
        match self {
            Self::Tables(store) => store.withdrawn_claims(withdrawals, page, limit).await,
            Self::Documents(store) => store.withdrawn_claims(withdrawals, page, limit).await,
        }
    }

    async fn rows_of_shard(
        &mut self,
        page: &ShardPage,
        limit: NonZeroUsize,
        visit: &mut (dyn FnMut(DerivedRow<'_>) + Send),
    ) -> Result<Option<ShardPage>, Fault> {
        match self {
            Self::Tables(store) => store.rows_of_shard(page, limit, visit).await,
            Self::Documents(store) => store.rows_of_shard(page, limit, visit).await,
        }
    }

    fn is_atomic(&self) -> bool {
        match self {
            Self::Tables(store) => store.is_atomic(),
            Self::Documents(store) => store.is_atomic(),
        }
    }
}
