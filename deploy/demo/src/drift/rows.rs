//! Rows of derived tables as literals: finds them, and writes others in their place.

use std::collections::HashMap;

use super::Hand;
use crate::endpoint::Connection;
use crate::error::Result;
use crate::topology::{SourceTable, Topology};
use crate::verify::{Column, DerivedTables, UNION_TABLES, literals, shard_id_sql};
use crate::workload::SetAside;

const ACTION: &str = "plant drift";
/// Attempts of a step: a lane may hold its locks, or wait for them.
const TRIES: u32 = 20;

/// A derived row.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub database: u32,
    pub table: String,
    pub shard: u64,
    /// Literals of the layer's key, in its order.
    pub key: Vec<String>,
    /// Literal of the layer's column after the key; for the mapping layer it is the version.
    pub checked: String,
    pub lsn: u64,
}

/// A change of a table.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Remove(Row),
    /// Writes a row in place of an existing one with the same key.
    Put(Row),
}

/// Returns the existing rows of the rows set aside, grouped by source row.
pub(super) async fn stored(
    topology: &Topology,
    layer: &impl DerivedTables,
    aside: &[SetAside],
) -> Result<Vec<Vec<Row>>> {
    let mut by_place: HashMap<SourceTable, Vec<u64>> = HashMap::new();
    aside.iter().for_each(|row| by_place.entry(row.source_table).or_default().push(row.number));
    let mut found: Vec<Row> = Vec::new();
    for (index, source) in topology.sources.iter().enumerate() {
        let mut connection = source.connect(&[]).await?;
        let selects: Vec<String> = topology
            .tables_of(index)
            .filter_map(|source_table| Some((source_table, by_place.get(&source_table)?)))
            .map(|(source_table, numbers)| {
                let keys: Vec<String> = numbers.iter().map(|number| source_table.key(*number)).collect();
                let (claims, key) = (layer.claims(source_table), layer.key()[0].name);
                let columns = literals(layer.key().iter().copied().chain([layer.checked()]));
                format!(
                    "SELECT database_number, table_name, {}, {columns} FROM ({claims}) AS c WHERE {key} IN ({})",
                    shard_id_sql(&source.name, source_table),
                    keys.join(", ")
                )
            })
            .collect();
        for part in selects.chunks(UNION_TABLES) {
            let rows = connection.rows("read claims", part.join(" UNION ALL ")).await?;
            found.extend(rows.into_iter().map(
                |(database, table, shard, columns): (u32, String, u64, String)| {
                    let mut key: Vec<String> = columns.split(',').map(str::to_owned).collect();
                    let checked = key.pop().unwrap_or_default();
                    Row { database, table, shard, key, checked, lsn: 0 }
                },
            ));
        }
    }
    read_versions(layer, &mut found).await?;
    found.retain(|row| row.lsn > 0);
    found.sort_by(|a, b| (a.shard, &a.key).cmp(&(b.shard, &b.key)));
    let same = |a: &Row, b: &Row| (a.shard, &a.key[0]) == (b.shard, &b.key[0]);
    Ok(found.chunk_by(same).map(<[Row]>::to_vec).collect())
}

/// Reads the versions of existing rows; the other rows stay without a version.
async fn read_versions(layer: &impl DerivedTables, rows: &mut [Row]) -> Result<()> {
    for (target, endpoint) in layer.targets().iter().enumerate() {
        let mut connection = endpoint.connect(&[]).await?;
        let own = rows.iter().enumerate().filter(|(_, row)| layer.target_of(row.database) == target);
        let selects: Vec<String> = own
            .map(|(number, row)| {
                format!("SELECT {number}, lsn FROM {} WHERE {}", name(layer, row), chosen(layer, row))
            })
            .collect();
        for part in selects.chunks(UNION_TABLES) {
            let found: Vec<(usize, u64)> = connection.rows("read versions", part.join(" UNION ALL ")).await?;
            found.into_iter().for_each(|(number, lsn)| rows[number].lsn = lsn);
        }
    }
    Ok(())
}

/// Returns the row in another table of the same layer.
pub(super) fn elsewhere(layer: &impl DerivedTables, row: &Row, hand: &mut Hand<'_>) -> Row {
    let tables = layer.tables();
    loop {
        let (database, table) = tables[hand.below(tables.len())].clone();
        if (database, &table) != (row.database, &row.table) {
            return Row { database, table, ..row.clone() };
        }
    }
}

/// Carries out the steps, each as a statement of its own, as a manual write does.
pub(super) async fn carry_out(layer: &impl DerivedTables, steps: &[Step]) -> Result<()> {
    let mut connections = connect(layer).await?;
    for step in steps {
        let (Step::Remove(row) | Step::Put(row)) = step;
        let sql = match step {
            Step::Remove(row) => format!("DELETE FROM {} WHERE {}", name(layer, row), chosen(layer, row)),
            Step::Put(row) => put(layer, row),
        };
        execute(&mut connections[layer.target_of(row.database)], &sql).await?;
    }
    Ok(())
}

/// Executes statements, each with the database number of its table, as [`carry_out`] does with steps.
pub(super) async fn execute_all(layer: &impl DerivedTables, statements: &[(u32, String)]) -> Result<()> {
    let mut connections = connect(layer).await?;
    for (database, sql) in statements {
        execute(&mut connections[layer.target_of(*database)], sql).await?;
    }
    Ok(())
}

async fn connect(layer: &impl DerivedTables) -> Result<Vec<Connection>> {
    let mut connections = Vec::new();
    for target in layer.targets() {
        connections.push(target.connect(&["SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"]).await?);
    }
    Ok(connections)
}

/// Executes one statement, again after a lock conflict.
async fn execute(connection: &mut Connection, sql: &str) -> Result<()> {
    let mut tries = 0;
    while let Err(error) = connection.execute(ACTION, sql).await {
        tries += 1;
        if !error.is_lock_conflict() || tries == TRIES {
            return Err(error);
        }
    }
    Ok(())
}

fn put(layer: &impl DerivedTables, row: &Row) -> String {
    let mut columns: Vec<&str> = layer.key().iter().map(|column| column.name).collect();
    let mut values: Vec<&str> = row.key.iter().map(String::as_str).collect();
    let Column { name: checked, .. } = layer.checked();
    if checked != "lsn" {
        columns.push(checked);
        values.push(&row.checked);
    }
    format!(
        "REPLACE INTO {} (shard_id, {}, lsn) VALUES ({}, {}, {})",
        name(layer, row),
        columns.join(", "),
        row.shard,
        values.join(", "),
        row.lsn
    )
}

pub(super) fn name(layer: &impl DerivedTables, row: &Row) -> String {
    format!("`{}`.`{}`", layer.database_name(row.database), row.table)
}

pub(super) fn chosen(layer: &impl DerivedTables, row: &Row) -> String {
    let equal = |(column, value): (&Column, &String)| format!(" AND {} = {value}", column.name);
    let key: String = layer.key().iter().zip(&row.key).map(equal).collect();
    format!("shard_id = {}{key}", row.shard)
}
