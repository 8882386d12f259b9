//! A small check while everything runs: one source table against all derived rows that it claims.
//!
//! A change on its way is no difference: a row counts only if its claim did not change and it was still wrong some time
//! later. [`super::Verification::compare`] gives proofs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::UNION_TABLES;
use super::tables::{DerivedTables, literals, shard_id_sql};
use crate::error::Result;
use crate::topology::{SourceTable, Topology};

/// Time for a change to arrive before a spot check counts it as a difference.
const GRACE: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpotCheck {
    pub table: String,
    pub rows: u64,
    pub differences: u64,
}

/// Claims by their key, with the derived tables in which they belong or that hold them.
type Tables = BTreeMap<String, BTreeSet<String>>;

/// Checks one source table.
pub(super) async fn spot_check(
    topology: &Topology,
    layer: &impl DerivedTables,
    source_table: SourceTable,
) -> Result<SpotCheck> {
    let source = &topology.sources[topology.source_of(source_table)];
    let mut reader = source.connect(&[]).await?;
    let key = literals(layer.key().iter().copied());
    let claims_sql =
        format!("SELECT {key}, database_number, table_name FROM ({}) AS claims", layer.claims(source_table));
    let shard = format!("SELECT {}", shard_id_sql(&source.name, source_table));
    let shard: u64 = reader.first("compute a shard id", shard).await?.unwrap_or(0);
    let mut targets = Vec::new();
    for (index, target) in layer.targets().iter().enumerate() {
        let select = |name: &String| format!("SELECT {key}, '{name}' FROM {name} WHERE shard_id = {shard}");
        let selects: Vec<String> = layer.names_on(index).iter().map(select).collect();
        targets.push((target.connect(&[]).await?, selects));
    }
    let deadline = tokio::time::Instant::now() + GRACE;
    let mut suspects: Option<Tables> = None;
    loop {
        let mut claims = Tables::new();
        for (key, database, table) in reader.rows::<(String, u32, String)>("read claims", &claims_sql).await?
        {
            let table = format!("{}.{table}", layer.database_name(database));
            claims.entry(key).or_default().insert(table);
        }
        let mut derived = Tables::new();
        for (connection, selects) in &mut targets {
            for part in selects.chunks(UNION_TABLES) {
                let rows = connection.rows("read derived tables", part.join(" UNION ALL ")).await?;
                for (key, table) in rows {
                    derived.entry(key).or_default().insert(table);
                }
            }
        }
        let keys: BTreeSet<&String> = claims.keys().chain(derived.keys()).collect();
        let wrong = |key: &String| claims.get(key) != derived.get(key);
        let said = |key: &String| claims.get(key).cloned().unwrap_or_default();
        suspects = Some(match suspects {
            None => keys.into_iter().filter(|key| wrong(key)).map(|key| (key.clone(), said(key))).collect(),
            Some(before) => {
                before.into_iter().filter(|(key, tables)| wrong(key) && said(key) == *tables).collect()
            }
        });
        let differences = suspects.as_ref().map_or(0, BTreeMap::len) as u64;
        if differences == 0 || tokio::time::Instant::now() >= deadline {
            return Ok(SpotCheck { table: source_table.name(), rows: claims.len() as u64, differences });
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
