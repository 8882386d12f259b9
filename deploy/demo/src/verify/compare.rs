//! Compares every row of a layer's derived tables with what the sources claim, by SQL over whole sets.
//!
//! SQL on the sources gives the claims that there must be. Every row of every derived table of every target is loaded
//! beside them into scratch tables on one server, and joins find the differences. Both sides must not change meanwhile.

use std::collections::{BTreeMap, HashMap};

use super::UNION_TABLES;
use super::comparison::{Comparison, EXAMPLES_MAX, Example};
use super::scratch::Scratch;
use super::tables::{Column, DerivedTables, literals, shard_id_sql};
use crate::error::Result;
use crate::topology::{SourceTable, Topology};

/// Compares a layer. `lanes` is the number of lanes that share the tables of each target.
pub(super) async fn compare(
    topology: &Topology,
    layer: &impl DerivedTables,
    lanes: u32,
) -> Result<Comparison> {
    let mut scratch = Scratch::create(layer).await?;
    let result = compare_in(&mut scratch, topology, layer, lanes).await;
    let dropped = scratch.drop_tables().await;
    let comparison = result?;
    dropped.map(|()| comparison)
}

async fn compare_in(
    scratch: &mut Scratch,
    topology: &Topology,
    layer: &impl DerivedTables,
    lanes: u32,
) -> Result<Comparison> {
    let mut comparison = Comparison { tables_filled_min: layer.filled_min(), ..Comparison::default() };
    load_sources(scratch, topology, layer, &mut comparison).await?;
    load_derived(scratch, layer, lanes, &mut comparison).await?;
    place_claims(scratch, layer).await?;
    find_differences(scratch, layer, &mut comparison).await?;
    count(scratch, layer, &mut comparison).await?;
    Ok(comparison)
}

fn columns(layer: &impl DerivedTables) -> impl Iterator<Item = Column> {
    layer.key().iter().copied().chain([layer.checked()])
}

/// Loads the sources' claims into `source_table` and `expected`.
async fn load_sources(
    scratch: &mut Scratch,
    topology: &Topology,
    layer: &impl DerivedTables,
    comparison: &mut Comparison,
) -> Result<()> {
    let expected = literals(
        [Column::number("number")]
            .into_iter()
            .chain(columns(layer))
            .chain([Column::number("database_number"), Column::bytes("table_name", "")]),
    );
    let numbered: Vec<(usize, SourceTable)> = topology.source_tables().enumerate().collect();
    for (index, source) in topology.sources.iter().enumerate() {
        let mut connection = source.connect(&[]).await?;
        let is_own = |(_, place): &&(usize, SourceTable)| topology.source_of(*place) == index;
        let own: Vec<(usize, SourceTable)> = numbered.iter().filter(is_own).copied().collect();
        for part in own.chunks(UNION_TABLES) {
            let count = |(number, place): &(usize, SourceTable)| {
                format!("SELECT {number}, COUNT(*) FROM {}", place.quoted())
            };
            let counts: Vec<String> = part.iter().map(count).collect();
            let counts: HashMap<usize, u64> =
                connection.rows("count rows", counts.join(" UNION ALL ")).await?.into_iter().collect();
            let mut tables = Vec::new();
            for (number, place) in part {
                let rows = counts.get(number).copied().unwrap_or(0);
                comparison.source_rows += rows;
                if rows == 0 && topology.is_reachable(*place) {
                    comparison.empty_source_tables.push(place.name());
                }
                tables.push(format!("{number}, {}, {rows}", shard_id_sql(&source.name, *place)));
            }
            scratch.insert("source_table", &tables).await?;
            let claims = |(number, place): &(usize, SourceTable)| {
                let claims = layer.claims(*place);
                format!("SELECT {expected} FROM (SELECT {number} AS number, c.* FROM ({claims}) AS c) AS n")
            };
            let claims: Vec<String> = part.iter().map(claims).collect();
            let rows: Vec<String> = connection.rows("read claims", claims.join(" UNION ALL ")).await?;
            scratch.insert("expected", &rows).await?;
        }
    }
    Ok(())
}

/// Loads every row of every derived table into `place` and `actual`, even of tables that should not exist.
async fn load_derived(
    scratch: &mut Scratch,
    layer: &impl DerivedTables,
    lanes: u32,
    comparison: &mut Comparison,
) -> Result<()> {
    let (databases_like, tables_like) = layer.names_like();
    let mut found: Vec<(usize, String, String)> = Vec::new();
    for (target, endpoint) in layer.targets().iter().enumerate() {
        let mut connection = endpoint.connect(&[]).await?;
        let tables = format!(
            "SELECT table_schema, table_name FROM information_schema.tables \
             WHERE table_schema LIKE '{databases_like}' AND table_name LIKE '{tables_like}' ORDER BY 1, 2"
        );
        let tables: Vec<(String, String)> = connection.rows("list derived tables", tables).await?;
        let own = layer.names_on(target);
        let (mut places, mut selects) = (Vec::new(), Vec::new());
        for (number, (database, table)) in (found.len()..).zip(&tables) {
            let named = (0..layer.databases()).find(|number| layer.database_name(*number) == *database);
            let placed = named.filter(|number| layer.target_of(*number) == target);
            let placed = placed.map_or("NULL".to_owned(), |number| number.to_string());
            // Lanes take tables in turn, in the order of the layout.
            let lane = own.iter().position(|name| *name == format!("{database}.{table}"));
            let lane = lane.map_or("NULL".to_owned(), |index| (index as u32 % lanes).to_string());
            places.push(format!("{number}, {placed}, '{database}', '{table}', {lane}"));
            let columns =
                [Column::number("number"), Column::number("shard_id")].into_iter().chain(columns(layer));
            selects.push(format!(
                "SELECT {} FROM (SELECT {number} AS number, t.* FROM `{database}`.`{table}` AS t) AS n",
                literals(columns)
            ));
        }
        scratch.insert("place", &places).await?;
        for part in selects.chunks(UNION_TABLES) {
            let rows: Vec<String> = connection.rows("read derived tables", part.join(" UNION ALL ")).await?;
            scratch.insert("actual", &rows).await?;
        }
        found.extend(tables.into_iter().map(|(database, table)| (target, database, table)));
    }
    for (database, table) in layer.tables() {
        let wanted = (layer.target_of(database), layer.database_name(database), table);
        if !found.contains(&wanted) {
            comparison.absent_tables.push(format!("{}.{}", wanted.1, wanted.2));
        }
    }
    Ok(())
}

/// Computes for each claim the derived table in which it belongs.
async fn place_claims(scratch: &mut Scratch, layer: &impl DerivedTables) -> Result<()> {
    let columns: Vec<String> = columns(layer).map(|column| format!("e.{}", column.name)).collect();
    let sql = format!(
        "INSERT INTO {{claim}}
         SELECT s.shard_id, {}, p.number,
           IFNULL(CONCAT(p.database_name, '.', p.table_name),
             CONCAT('database ', e.database_number, ', ', e.table_name))
         FROM {{expected}} e JOIN {{source_table}} s USING (number)
         LEFT JOIN {{place}} p ON p.database_number = e.database_number AND p.table_name = e.table_name",
        columns.join(", ")
    );
    scratch.execute(&sql).await
}

async fn find_differences(
    scratch: &mut Scratch,
    layer: &impl DerivedTables,
    comparison: &mut Comparison,
) -> Result<()> {
    let same = |one: &str, other: &str| {
        let equal = |column: &Column| format!("{one}.{} = {other}.{}", column.name, column.name);
        layer.key().iter().map(equal).collect::<Vec<_>>().join(" AND ")
    };
    let (name_of_claim, name_of_row) = (layer.row_name("c."), layer.row_name("a."));
    let (flaw, is_flawed) = layer.flaw();
    let missing = format!(
        "INSERT INTO {{difference}}
         SELECT 'missing', {name_of_claim}, c.wanted FROM {{claim}} c
         LEFT JOIN {{actual}} a ON a.shard_id = c.shard_id AND {}
         WHERE a.shard_id IS NULL",
        same("a", "c")
    );
    let wrong = format!(
        "INSERT INTO {{difference}}
         SELECT
           CASE
             WHEN c.shard_id IS NULL AND EXISTS (SELECT 1 FROM {{claim}} o WHERE {}) THEN 'duplicate'
             WHEN c.shard_id IS NULL THEN 'orphan'
             WHEN a.number = c.place THEN '{flaw}'
             WHEN EXISTS (SELECT 1 FROM {{actual}} r
               WHERE r.shard_id = c.shard_id AND {} AND r.number = c.place) THEN 'duplicate'
             ELSE 'wrong_table'
           END,
           {name_of_row}, CONCAT(p.database_name, '.', p.table_name)
         FROM {{actual}} a
         JOIN {{place}} p USING (number)
         LEFT JOIN {{claim}} c ON c.shard_id = a.shard_id AND {}
         WHERE c.shard_id IS NULL OR c.place IS NULL OR a.number <> c.place OR {is_flawed}",
        same("o", "a"),
        same("r", "c"),
        same("c", "a")
    );
    scratch.execute(&missing).await?;
    scratch.execute(&wrong).await?;
    let counts: Vec<(String, u64)> =
        scratch.rows("SELECT kind, COUNT(*) FROM {difference} GROUP BY kind").await?;
    for (kind, count) in counts {
        comparison.differences.count(&kind, count);
    }
    // These are some examples of each kind instead of ten of one.
    let examples = format!(
        "SELECT kind, row_name, wanted FROM (
           SELECT *, ROW_NUMBER() OVER (PARTITION BY kind ORDER BY row_name) AS place_in_kind FROM {{difference}}
         ) AS numbered ORDER BY place_in_kind, kind LIMIT {EXAMPLES_MAX}"
    );
    let examples: Vec<(String, String, String)> = scratch.rows(&examples).await?;
    comparison.examples =
        examples.into_iter().map(|(kind, row, table)| Example { kind, row, table }).collect();
    Ok(())
}

async fn count(scratch: &mut Scratch, layer: &impl DerivedTables, comparison: &mut Comparison) -> Result<()> {
    let row = layer.key()[0].name;
    let counts = format!(
        "SELECT (SELECT COUNT(*) FROM {{claim}}), (SELECT COUNT(*) FROM {{actual}}),
           (SELECT COUNT(*) FROM (
             SELECT {row} FROM {{claim}} GROUP BY {row} HAVING COUNT(DISTINCT shard_id) > 1) AS doubled),
           (SELECT COUNT(DISTINCT p.table_name) FROM {{actual}} a JOIN {{place}} p USING (number))"
    );
    if let Some((claims, rows, doubled, filled)) =
        scratch.rows::<(u64, u64, u64, u64)>(&counts).await?.first()
    {
        (comparison.claims, comparison.derived_rows) = (*claims, *rows);
        (comparison.doubled_source_rows, comparison.tables_filled) = (*doubled, *filled);
    }
    let rows: Vec<(String, u64)> = scratch
        .rows("SELECT p.database_name, COUNT(*) FROM {actual} a JOIN {place} p USING (number) GROUP BY 1")
        .await?;
    let mut by_database: BTreeMap<String, u64> =
        (0..layer.databases()).map(|database| (layer.database_name(database), 0)).collect();
    by_database.extend(rows);
    comparison.rows_by_database = by_database;
    Ok(())
}
