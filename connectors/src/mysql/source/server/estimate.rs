//! Estimates the sizes of the captured tables from the server's statistics, without reading the tables.

use std::collections::{BTreeSet, HashMap};

use anabranch_pipeline::error::Fault;
use anabranch_schemas::change::TableIdentity;

use super::session::{Session, column_text, literal};
use crate::mysql::source::MysqlSource;

impl MysqlSource {
    /// Returns every captured table that exists, with its approximate number of rows.
    pub async fn estimated_rows(&self) -> Result<Vec<(TableIdentity<'static>, u64)>, Fault> {
        let tables = self.captured_tables().await?;
        let databases: BTreeSet<&str> = tables.iter().map(|table| &*table.identity.database).collect();
        if databases.is_empty() {
            return Ok(Vec::new());
        }
        let databases: Vec<String> = databases.into_iter().map(literal).collect();
        let mut session = Session::open(&self.address).await?;
        let sql = format!(
            "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_ROWS FROM information_schema.TABLES WHERE TABLE_SCHEMA IN ({})",
            databases.join(", ")
        );
        let rows = session.rows(sql).await?;
        session.close().await;
        let known: HashMap<(String, String), u64> = rows
            .iter()
            .filter_map(|row| {
                let name = (column_text(row, 0)?, column_text(row, 1)?);
                Some((name, column_text(row, 2)?.parse().ok()?))
            })
            .collect();
        let rows = |table: &TableIdentity<'_>| {
            let name = (table.database.clone().into_owned(), table.table.clone().into_owned());
            known.get(&name).copied().unwrap_or_default()
        };
        Ok(tables.iter().map(|table| (table.identity.clone(), rows(&table.identity))).collect())
    }
}
