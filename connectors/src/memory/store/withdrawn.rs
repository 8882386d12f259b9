//! Finds stored claims of withdrawn shards, few at a time, so that their removal has parts.

use std::num::NonZeroUsize;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{ClaimsPage, LaneStore as _};
use anabranch_pipeline::records::{Cell, CellRef, Mutation, MutationAction};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;

use super::{Claim, MemoryStore, Refused, is_withdrawn};
use crate::scan_cursor;

/// Rows of one part, at most.
const ROWS_MAX: usize = 3;

impl MemoryStore {
    /// Finds claims as [`anabranch_pipeline::ports::LaneStore::withdrawn_claims`] does.
    pub(super) async fn claims_of(
        &self,
        withdrawals: &[(ShardId, Lsn)],
        page: &ClaimsPage,
        limit: NonZeroUsize,
    ) -> Result<(Vec<Mutation>, Option<ClaimsPage>), Fault> {
        if !self.is_atomic() {
            let found = "documents are not withdrawn in parts";
            return Err(Fault::new(Code::Internal, format!("lane {}", self.id), found));
        }
        self.target.weather.pause().await;
        self.target.weather.answer(Refused::Target)?;
        if self.target.is_down() {
            return Err(self.broken());
        }
        let limit = limit.get().min(ROWS_MAX);
        let after = page.after.as_ref().and_then(scan_cursor::decode);
        let (rows, retired) = self.target.with(|state| {
            let is_asked = |(table, shard, key): &Claim| {
                let is_after = *table > page.table
                    || *table == page.table
                        && after.as_ref().is_none_or(|(of, last)| (shard.as_u64(), key) > (*of, last));
                is_after && self.tables.contains(table) && withdrawals.iter().any(|(of, _)| of == shard)
            };
            let rows = state.rows.iter().filter(|(claim, _)| is_asked(claim)).take(limit);
            let rows: Vec<(Claim, Lsn)> =
                rows.map(|(claim, (version, _))| (claim.clone(), *version)).collect();
            (rows, state.retired.get(&self.id).cloned().unwrap_or_default())
        });
        let next = rows.last().filter(|_| rows.len() == limit).map(|((table, shard, key), _)| {
            let key: Vec<CellRef<'_>> = key.iter().map(Cell::borrowed).collect();
            ClaimsPage { table: *table, after: Some(scan_cursor::after_row(shard.as_u64(), &key)) }
        });
        let claims = rows.into_iter().filter_map(|(claim, version)| {
            let is_of = |(shard, lsn): &&(ShardId, Lsn)| {
                let above = retired.get(shard).copied();
                is_withdrawn(&claim, version, &self.tables, ((*shard, above), *lsn))
            };
            let lsn = withdrawals.iter().find(is_of).map(|(_, lsn)| *lsn)?;
            let (table, shard, key) = claim;
            Some(Mutation { table, shard, key, lsn, action: MutationAction::Delete })
        });
        Ok((claims.collect(), next))
    }
}
