//! A layer of derived tables for an auditor, and the common part of both such layers.
//!
//! A layer states in SQL which rows a source table claims, and in which derived table each belongs. It is written from
//! the documented layout and not from the projector's code, so that both must be right to agree.

use std::collections::BTreeMap;

use super::UNION_TABLES;
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::topology::SourceTable;

/// A column of derived rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    pub name: &'static str,
    pub sql_type: &'static str,
    /// Whether it holds bytes; otherwise it holds a number.
    pub is_bytes: bool,
}

impl Column {
    pub const fn number(name: &'static str) -> Self {
        Self { name, sql_type: "BIGINT UNSIGNED", is_bytes: false }
    }

    pub const fn bytes(name: &'static str, sql_type: &'static str) -> Self {
        Self { name, sql_type, is_bytes: true }
    }
}

/// Numbered databases with derived tables; database i is on target i modulo their number.
pub(crate) trait DerivedTables {
    fn targets(&self) -> &[Endpoint];

    fn databases(&self) -> u32;

    fn database_name(&self, database: u32) -> String;

    /// Returns every table that must exist: database number and table name.
    fn tables(&self) -> Vec<(u32, String)>;

    /// Returns patterns of the names of databases and tables, for `LIKE`.
    fn names_like(&self) -> (&'static str, &'static str);

    /// Returns the number of different table names with rows from which on a comparison proves something.
    fn filled_min(&self) -> u64;

    /// Returns the columns that identify a claim beside its shard; the first one identifies the source row.
    fn key(&self) -> &'static [Column];

    /// Returns one more column of derived rows, which is compared.
    fn checked(&self) -> Column;

    /// Returns the flaw that a derived row `a` of claim `c` in the right table may have: its kind and SQL condition.
    fn flaw(&self) -> (&'static str, &'static str);

    /// Returns the SQL for a row's name for people, from its key columns with this prefix.
    fn row_name(&self, prefix: &str) -> String;

    /// Returns a query for the claims of one source table: key columns, `checked`, `database_number`, `table_name`.
    fn claims(&self, source_table: SourceTable) -> String;

    fn target_of(&self, database: u32) -> usize {
        database as usize % self.targets().len().max(1)
    }

    /// Returns the names (database.table) of the tables on one target.
    fn names_on(&self, target: usize) -> Vec<String> {
        let own = self.tables().into_iter().filter(|(database, _)| self.target_of(*database) == target);
        own.map(|(database, table)| format!("{}.{table}", self.database_name(database))).collect()
    }
}

/// Returns the SQL for columns as a list of literals, which can be inserted as they are.
pub(crate) fn literals(columns: impl IntoIterator<Item = Column>) -> String {
    let literal = |column: Column| match column.is_bytes {
        true => format!("CONCAT('x''', IFNULL(HEX({}), ''), '''')", column.name),
        false => column.name.to_owned(),
    };
    format!("CONCAT_WS(',', {})", columns.into_iter().map(literal).collect::<Vec<_>>().join(", "))
}

/// Returns the SQL for the shard id under which a table's rows are claimed: the first 8 bytes of SHA-256(source, NUL,
/// database, NUL, table, NUL, generation) without the top bit. The demo's generation is 0.
pub(crate) fn shard_id_sql(source: &str, source_table: SourceTable) -> String {
    format!(
        "CAST(CONV(LEFT(SHA2(CONCAT('{source}', x'00', '{}', x'00', '{}', x'00', '0'), 256), 16), 16, 10) \
         AS UNSIGNED) & 9223372036854775807",
        source_table.database_name(),
        source_table.table_name()
    )
}

/// Counts the present rows of each derived database.
pub(super) async fn count_rows(layer: &impl DerivedTables) -> Result<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    for (target, endpoint) in layer.targets().iter().enumerate() {
        let mut connection = endpoint.connect(&[]).await?;
        let select = |name: &String| format!("SELECT '{name}', COUNT(*) FROM {name}");
        let selects: Vec<String> = layer.names_on(target).iter().map(select).collect();
        for part in selects.chunks(UNION_TABLES) {
            let sql = part.join(" UNION ALL ");
            for (name, rows) in connection.rows::<(String, u64)>("count derived rows", sql).await? {
                let database = name.split('.').next().unwrap_or_default().to_owned();
                *counts.entry(database).or_default() += rows;
            }
        }
    }
    Ok(counts)
}
