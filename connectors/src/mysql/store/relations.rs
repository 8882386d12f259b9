//! Reads the relation index of payment documents, on whatever targets its tables are.

use std::collections::BTreeMap;
use std::time::Duration;

use anabranch_pipeline::config::Config;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::RelationStore;
use anabranch_pipeline::projections::flux_relations::FluxRelations;
use anabranch_pipeline::records::RelationRow;
use anabranch_schemas::flux::id::{DIGITS, FluxId, NO_MONTH, Part};
use anabranch_schemas::shard::ShardId;
use futures::{StreamExt, TryStreamExt};

use super::MysqlTarget;
use crate::mysql::connection::{push_bytes, quote_table};
use crate::mysql::pool::Pool;

/// Limit of the query for open documents: a full table has ten million, and each is asked for once.
const OPEN_TIMEOUT: Duration = Duration::from_secs(600);
/// Identifiers in a statement: the server weighs each as a range, and its text stays small.
const STATEMENT_IDS: usize = 200;

/// Id, shard, parent, amount and time of a stored row.
type StoredColumns = (Vec<u8>, u64, Option<Vec<u8>>, Option<Vec<u8>>, Option<Vec<u8>>);

/// The relation tables of one projection. Clones share the connections.
#[derive(Debug, Clone)]
pub struct MysqlRelations {
    relations: FluxRelations,
    /// System code of every stored identifier.
    system: u16,
    /// Connections by the index of the target in the projection's list.
    pools: Vec<Pool>,
    /// Statements of one call that run at once, and whose answers are in memory at once.
    statements: usize,
}

impl MysqlRelations {
    /// Returns `None` when there is no such projection, or it is of another kind. `connections` limits the concurrent
    /// queries of one target.
    pub fn new(config: &Config, projection: &str, connections: usize) -> Option<Self> {
        let configured = config.projections.iter().find(|known| known.name == projection)?;
        let tables = configured.kind.relations()?;
        let pool = |target: &String| {
            Some(MysqlTarget::new(config, target)?.pool(connections).shown(target, "relations"))
        };
        Some(Self {
            relations: FluxRelations::configured(configured)?,
            system: tables.places.system(),
            pools: configured.targets.iter().map(pool).collect::<Option<_>>()?,
            statements: connections.max(1),
        })
    }

    /// Runs a statement for each table and some of its identifiers; returns the first `limit` rows of all.
    async fn rows(
        &self,
        column: &str,
        ids: &[FluxId],
        limit: Option<usize>,
    ) -> Result<Vec<RelationRow>, Fault> {
        let mut of_table: BTreeMap<u32, Vec<&FluxId>> = BTreeMap::new();
        for id in ids {
            of_table.entry(self.relations.table_of(id.parts().partition)).or_default().push(id);
        }
        let mut statements = Vec::new();
        for (table, ids) in of_table {
            let table = &self.relations.tables()[table as usize];
            let name = quote_table(&table.derived.database, &table.derived.table);
            for some in ids.chunks(STATEMENT_IDS) {
                let rows = self.pools[table.target as usize].rows(select(&name, column, some, limit));
                statements.push(rows);
            }
        }
        let mut answers = futures::stream::iter(statements).buffer_unordered(self.statements);
        let mut found = BTreeMap::new();
        while let Some(rows) = answers.try_next().await? {
            for row in rows {
                let row = self.row(row)?;
                found.insert(row.order(), row);
            }
            // Each statement has its own first rows; the others are not kept.
            while limit.is_some_and(|limit| found.len() > limit) {
                found.pop_last();
            }
        }
        Ok(found.into_values().collect())
    }

    /// Returns how many documents of a source table of a user partition have a child without a month whose identifier
    /// is not before `since` (`YYYYMM`): refunds, chargebacks and what clears them.
    ///
    /// The children of a partition's documents are in its own table. The query asks for the children of each document
    /// of the source table, in the order of both indexes: its cost is that of the source table, however many documents
    /// the partition has.
    pub async fn open_documents(&self, partition: u8, shard: ShardId, since: &str) -> Result<u64, Fault> {
        let table = &self.relations.tables()[self.relations.table_of(partition) as usize];
        let sql = open(&quote_table(&table.derived.database, &table.derived.table), shard, since);
        let sets = self.pools[table.target as usize].sets(OPEN_TIMEOUT, sql).await?;
        let count =
            sets.into_iter().flatten().next().and_then(|row| mysql_async::from_row_opt::<(u64,)>(row).ok());
        let (documents,) = count.ok_or_else(|| {
            Fault::new(Code::TargetTableShape, "a table of the relation index", "the count is no number")
                .needs("rows that lanes wrote")
        })?;
        Ok(documents)
    }

    fn row(&self, row: mysql_async::Row) -> Result<RelationRow, Fault> {
        let odd = || {
            let found = "a row has values that lanes never write";
            Fault::new(Code::TargetTableShape, "a table of the relation index", found)
                .needs("rows that lanes wrote")
        };
        let (id, shard, parent, amount, created): StoredColumns =
            mysql_async::from_row_opt(row).map_err(|_| odd())?;
        Ok(RelationRow {
            id: FluxId::parse_of(&id, self.system).map_err(|_| odd())?,
            shard: ShardId::from_u64(shard).ok_or_else(odd)?,
            parent: parent.map(Into::into),
            amount: amount.map(Into::into),
            created: created.map(Into::into),
        })
    }
}

/// Selects the rows whose `column` is one of these identifiers: all of them, or the first `limit`.
fn select(table: &str, column: &str, ids: &[&FluxId], limit: Option<usize>) -> String {
    let mut sql = format!(
        "SELECT `id`, `shard_id`, `parent_id`, `amount`, `created` FROM {table} WHERE `{column}` IN ("
    );
    sql.reserve(ids.len() * (2 * DIGITS + 4));
    for (place, id) in ids.iter().enumerate() {
        sql.push_str(if place > 0 { "," } else { "" });
        push_bytes(&mut sql, &id.digits());
    }
    sql.push(')');
    if let Some(limit) = limit {
        sql.push_str(&format!(" ORDER BY `id`, `shard_id` LIMIT {limit}"));
    }
    sql
}

/// Counts the documents of a source table that a child without a month follows; `since` is digits.
///
/// The subquery is one value of each document, so no optimizer reads the children of all documents first. The hints
/// name the indexes because the statistics of `parent_id`, which is mostly NULL, speak against its index.
fn open(table: &str, shard: ShardId, since: &str) -> String {
    let (first, last) = Part::Month.digits();
    let mut sql = format!(
        "SELECT COUNT((SELECT 1 FROM {table} AS `c` FORCE INDEX (`parent_id`) WHERE `c`.`parent_id` = `d`.`id` \
         AND SUBSTRING(`c`.`id`, {first}, {}) = ",
        last + 1 - first
    );
    push_bytes(&mut sql, NO_MONTH.to_string().as_bytes());
    sql.push_str(" AND `c`.`id` >= ");
    push_bytes(&mut sql, since.as_bytes());
    sql + &format!(" LIMIT 1)) FROM {table} AS `d` FORCE INDEX (`shard_id`) WHERE `d`.`shard_id` = {shard}")
}

impl RelationStore for MysqlRelations {
    async fn documents(&self, ids: &[FluxId]) -> Result<Vec<RelationRow>, Fault> {
        self.rows("id", ids, None).await
    }

    async fn children(&self, parents: &[FluxId], limit: usize) -> Result<Vec<RelationRow>, Fault> {
        self.rows("parent_id", parents, Some(limit)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_names_its_identifiers_as_bytes_and_its_limit() {
        let id: FluxId = "2016060611031103099052400029904".parse().unwrap();
        let digits = id.to_string().bytes().map(|digit| format!("{digit:02x}")).collect::<String>();
        let sql = select("`d`.`t`", "parent_id", &[&id, &id], Some(7));
        assert!(sql.ends_with(&format!(
            "FROM `d`.`t` WHERE `parent_id` IN (x'{digits}',x'{digits}') ORDER BY `id`, `shard_id` LIMIT 7"
        )));
        let open = open("`d`.`t`", ShardId::from_u64(7).unwrap(), "201505");
        assert!(
            open.contains("`c`.`parent_id` = `d`.`id` AND SUBSTRING(`c`.`id`, 18, 2) = x'3939' AND"),
            "{open}"
        );
        assert!(open.contains("`c`.`id` >= x'323031353035' LIMIT 1)) FROM"), "{open}");
        assert!(open.ends_with("FORCE INDEX (`shard_id`) WHERE `d`.`shard_id` = 7"), "{open}");
        assert!(select("`d`.`t`", "id", &[&id], None).ends_with(&format!("WHERE `id` IN (x'{digits}')")));
    }
}
