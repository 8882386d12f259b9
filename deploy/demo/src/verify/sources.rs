//! Reads the source tables for stores that are no SQL tables.

use mysql_async::prelude::FromRow;

use super::UNION_TABLES;
use crate::error::Result;
use crate::topology::{SourceTable, Topology};

/// Returns the rows of one query for each source table. `select` gets the name of the source and the table.
pub(super) async fn rows<T: FromRow + Send + 'static>(
    topology: &Topology,
    action: &'static str,
    select: impl Fn(&str, SourceTable) -> String,
) -> Result<Vec<T>> {
    let mut all = Vec::new();
    for (index, source) in topology.sources.iter().enumerate() {
        let mut connection = source.connect(&[]).await?;
        let selects: Vec<String> =
            topology.tables_of(index).map(|source_table| select(&source.name, source_table)).collect();
        for part in selects.chunks(UNION_TABLES) {
            all.extend(connection.rows(action, part.join(" UNION ALL ")).await?);
        }
    }
    Ok(all)
}

/// Counts the rows of all source tables.
pub(super) async fn count(topology: &Topology) -> Result<u64> {
    let select =
        |_: &str, source_table: SourceTable| format!("SELECT COUNT(*) FROM {}", source_table.quoted());
    Ok(rows::<u64>(topology, "count rows", select).await?.into_iter().sum())
}
