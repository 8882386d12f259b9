//! Finds stored claims of withdrawn shards, so that the lane deletes them in parts.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::ClaimsPage;
use anabranch_pipeline::records::{Cell, CellRef, Mutation, MutationAction, ScanCursor};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use mysql_async::Row;
use mysql_async::prelude::Queryable;

use super::{Connected, MysqlLane, PACKET_TIMEOUT};
use crate::mysql::connection::quote_identifier;
use crate::mysql::keyset::after_key;
use crate::mysql::store::cells::push_cell;
use crate::mysql::store::layout::StoredVersion;
use crate::mysql::store::select::Select;
use crate::scan_cursor;

/// Derived tables in which one call looks for claims, each with a statement. Each may cost the deletion another one.
const TABLES_MAX: usize = 32;

impl MysqlLane {
    /// Finds claims as [`anabranch_pipeline::ports::LaneStore::withdrawn_claims`] does.
    pub(super) async fn claims_of(
        &mut self,
        withdrawals: &[(ShardId, Lsn)],
        page: &ClaimsPage,
        limit: NonZeroUsize,
    ) -> Result<(Vec<Mutation>, Option<ClaimsPage>), Fault> {
        let versions: BTreeMap<ShardId, Lsn> = withdrawals.iter().copied().collect();
        let is_asked = |index: &u32| {
            *index >= page.table && versions.keys().any(|shard| self.present.may_have_in(*index, *shard))
        };
        let mut left = self.owned.iter().copied().filter(is_asked);
        let tables: Vec<u32> = left.by_ref().take(TABLES_MAX).collect();
        let rest = left.next().map(|table| ClaimsPage { table, after: None });
        if tables.is_empty() {
            return Ok((Vec::new(), None));
        }
        let (mut claims, mut rows_left) = (Vec::new(), limit.get());
        let mut connected = self.connected().await?;
        let claim = |StoredVersion { table, shard, key, version }: StoredVersion| {
            let lsn = versions.get(&shard).copied()?;
            let is_retired = self.retired.get(&shard).is_some_and(|at| version <= at.as_u64());
            let is_meant = version <= lsn.as_u64() && !is_retired;
            is_meant.then_some(Mutation { table, shard, key, lsn, action: MutationAction::Delete })
        };
        let mut next = rest;
        for table in tables {
            let after = page.after.as_ref().filter(|_| table == page.table);
            let sql = self.rows_of_shards_sql(table, &versions, after, rows_left)?;
            let found = self.stored_versions(&mut connected, &[sql]).await?;
            rows_left = rows_left.saturating_sub(found.len());
            let last = found.last().filter(|_| rows_left == 0).map(|row| {
                let key: Vec<CellRef<'_>> = row.key.iter().map(Cell::borrowed).collect();
                ClaimsPage { table, after: Some(scan_cursor::after_row(row.shard.as_u64(), &key)) }
            });
            claims.extend(found.into_iter().filter_map(claim));
            // With fewer rows than were asked for, none is left in this table.
            if last.is_some() {
                next = last;
                break;
            }
        }
        self.connection = Some(connected);
        Ok((claims, next))
    }

    /// Selects at most `limit` rows of these shards in a table, by the index of its shards.
    fn rows_of_shards_sql(
        &self,
        index: u32,
        versions: &BTreeMap<ShardId, Lsn>,
        after: Option<&ScanCursor>,
        limit: usize,
    ) -> Result<String, Fault> {
        let table = &self.assignment.projection.tables()[index as usize].derived;
        let (order, columns) = (table.shape.shard_order, table.shape.key_columns);
        let key: Vec<String> = order.iter().map(|place| quote_identifier(columns[*place])).collect();
        let (mut conditions, mut first) = (Vec::new(), 0);
        if let Some(after) = after {
            let place = scan_cursor::decode(after).filter(|(_, key)| key.len() == columns.len());
            let (shard, cells) = place.ok_or_else(|| {
                Fault::new(Code::Internal, self.subject(), "a position that is not one of its tables")
            })?;
            let literal = |place: &usize| {
                let mut literal = String::new();
                push_cell(&mut literal, &cells[*place]);
                literal
            };
            let values: Vec<String> = order.iter().map(literal).collect();
            conditions.push(format!("(`shard_id` = {shard} AND {})", after_key(&key, &values)));
            first = shard + 1;
        }
        let later = versions.keys().map(|shard| shard.as_u64()).filter(|shard| *shard >= first);
        let later: Vec<String> = later.map(|shard| shard.to_string()).collect();
        if !later.is_empty() {
            conditions.push(format!("`shard_id` IN ({})", later.join(",")));
        }
        let mut sql = String::new();
        let index_hint = Some(table.shape.shard_index);
        Select { number: Some(index), table, columns: &["lsn"], expression: None, index: index_hint }
            .push(&mut sql);
        let (condition, key) = (conditions.join(" OR "), key.join(","));
        Ok(format!("{sql}({condition}) ORDER BY `shard_id`,{key} LIMIT {limit}"))
    }

    /// Reads the rows of statements, each a derived row with its version.
    pub(super) async fn stored_versions(
        &self,
        connected: &mut Connected,
        selects: &[String],
    ) -> Result<Vec<StoredVersion>, Fault> {
        let mut stored_versions = Vec::new();
        for sql in selects {
            let rows = tokio::time::timeout(PACKET_TIMEOUT, connected.connection.query::<Row, _>(sql)).await;
            let rows = rows.map_err(|_| self.silent(PACKET_TIMEOUT))?.map_err(|error| self.fault(error))?;
            for row in rows {
                stored_versions.push(StoredVersion::from_row(row).ok_or_else(|| {
                    Fault::new(Code::TargetTableShape, self.subject(), "a derived row of other types")
                        .needs("the columns that set-up makes")
                })?);
            }
        }
        Ok(stored_versions)
    }
}
