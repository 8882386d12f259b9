//! Proves derived tables equal to their sources, by SQL over whole sets.
//!
//! Independent of the product: it shares no code with reader, projector or target, only the documented rules. The
//! sources say in SQL which claims there must be; every row of every derived table of every target is loaded beside
//! them into scratch tables on one server, and joins name what differs. Both sides must stand still meanwhile.

mod comparison;
mod drain;
mod layer;
mod scratch;
mod source_side;
mod spot;

use std::collections::{BTreeMap, HashMap};

pub use self::comparison::{Comparison, Differences, Example};
pub use self::drain::{Drained, drain, drain_and_compare};
pub use self::layer::{DerivedLayer, DerivedLayout};
use self::scratch::Scratch;
use self::source_side::{claims_sql, count_sql, shard_id_sql};
pub use self::spot::{SpotCheck, spot_check};
use crate::error::Result;
use crate::topology::{Place, Topology};

/// Tables read by one statement.
const UNION_TABLES: usize = 61;
const EXAMPLES_MAX: usize = 10;

/// Compares every derived row with the sources.
pub async fn compare(topology: &Topology, layer: &DerivedLayer) -> Result<Comparison> {
    let mut scratch = Scratch::create(&layer.targets[0]).await?;
    let result = compare_in(&mut scratch, topology, layer).await;
    let dropped = scratch.drop_tables().await;
    let comparison = result?;
    dropped.map(|()| comparison)
}

async fn compare_in(scratch: &mut Scratch, topology: &Topology, layer: &DerivedLayer) -> Result<Comparison> {
    let mut comparison = Comparison::default();
    load_sources(scratch, topology, &mut comparison).await?;
    load_derived(scratch, layer, &mut comparison).await?;
    place_claims(scratch, layer).await?;
    find_differences(scratch, &mut comparison).await?;
    Ok(comparison)
}

/// Loads what the sources say into `source_table` and `expected`.
async fn load_sources(scratch: &mut Scratch, topology: &Topology, comparison: &mut Comparison) -> Result<()> {
    let numbered: Vec<(usize, Place)> = topology.places().enumerate().collect();
    for (index, source) in topology.sources.iter().enumerate() {
        let mut connection = source.connect(&[]).await?;
        let own: Vec<(usize, Place)> = numbered
            .iter()
            .copied()
            .filter(|(_, place)| topology.source_of(place.database) == index)
            .collect();
        for part in own.chunks(UNION_TABLES) {
            let counts: Vec<String> = part.iter().map(|(number, place)| count_sql(*number, *place)).collect();
            let counts: HashMap<usize, u64> = connection
                .rows::<(usize, u64)>("count users", counts.join(" UNION ALL "))
                .await?
                .into_iter()
                .collect();
            let mut tables = Vec::new();
            for (number, place) in part {
                let users = counts.get(number).copied().unwrap_or(0);
                comparison.source_users += users;
                if users == 0 && topology.is_reachable(*place) {
                    comparison.empty_source_tables.push(format!(
                        "{}.{}",
                        place.database_name(),
                        place.table_name()
                    ));
                }
                tables.push(format!("({number}, {}, {users})", shard_id_sql(&source.name, *place)));
            }
            scratch.insert("source_table", &tables).await?;
            let claims: Vec<String> = part
                .iter()
                .map(|(number, place)| claims_sql(*number, *place, topology.birthday_type(place.database)))
                .collect();
            let rows: Vec<(u32, u64, String)> =
                connection.rows("read users", claims.join(" UNION ALL ")).await?;
            let tuples: Vec<String> =
                rows.iter().map(|(number, user, day)| format!("({number},{user},'{day}')")).collect();
            scratch.insert("expected", &tuples).await?;
        }
    }
    Ok(())
}

/// Loads every row of every derived table into `place` and `actual`, also of tables that should not be there.
async fn load_derived(
    scratch: &mut Scratch,
    layer: &DerivedLayer,
    comparison: &mut Comparison,
) -> Result<()> {
    let mut found: Vec<(usize, String, String)> = Vec::new();
    for (target, endpoint) in layer.targets.iter().enumerate() {
        let mut connection = endpoint.connect(&[]).await?;
        let tables: Vec<(String, String)> = connection
            .rows(
                "list derived tables",
                "SELECT table_schema, table_name FROM information_schema.tables \
                 WHERE table_schema LIKE 'birthday\\_%' AND table_name LIKE 'birthday\\_%' ORDER BY 1, 2",
            )
            .await?;
        let first = found.len();
        found.extend(tables.into_iter().map(|(database, table)| (target, database, table)));
        let places: Vec<String> = (first..)
            .zip(&found[first..])
            .map(|(number, (target, database, table))| {
                format!("({number}, {target}, '{database}', '{table}')")
            })
            .collect();
        scratch.insert("place", &places).await?;
        let selects: Vec<String> = (first..)
            .zip(&found[first..])
            .map(|(number, (_, database, table))| {
                format!("SELECT {number}, shard_id, user_id, IFNULL(HEX(birthday), '') FROM `{database}`.`{table}`")
            })
            .collect();
        for part in selects.chunks(UNION_TABLES) {
            let rows: Vec<(u32, u64, u64, String)> =
                connection.rows("read derived tables", part.join(" UNION ALL ")).await?;
            let tuples: Vec<String> = rows
                .iter()
                .map(|(number, shard, user, birthday)| format!("({number},{shard},{user},x'{birthday}')"))
                .collect();
            scratch.insert("actual", &tuples).await?;
        }
    }
    for (database, table) in layer.tables() {
        let wanted = (layer.target_of(database), DerivedLayer::database_name(database), table);
        if !found.contains(&wanted) {
            comparison.absent_tables.push(format!("{}.{}", wanted.1, wanted.2));
        }
    }
    comparison.rows_by_database = rows_by_database(scratch, layer).await?;
    let days = "SELECT COUNT(DISTINCT p.table_name) FROM {actual} a JOIN {place} p USING (number)";
    comparison.days_filled = scratch.rows(days).await?.first().copied().unwrap_or(0);
    Ok(())
}

/// Rows of each derived database, counted now.
pub async fn count_rows(layer: &DerivedLayer) -> Result<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    for (target, endpoint) in layer.targets.iter().enumerate() {
        let mut connection = endpoint.connect(&[]).await?;
        let own = layer.tables().into_iter().filter(|(database, _)| layer.target_of(*database) == target);
        let selects: Vec<String> = own
            .map(|(database, table)| {
                let database = DerivedLayer::database_name(database);
                format!("SELECT '{database}', COUNT(*) FROM {database}.{table}")
            })
            .collect();
        for part in selects.chunks(UNION_TABLES) {
            let sql = part.join(" UNION ALL ");
            for (database, rows) in connection.rows::<(String, u64)>("count derived rows", sql).await? {
                *counts.entry(database).or_default() += rows;
            }
        }
    }
    Ok(counts)
}

async fn rows_by_database(scratch: &mut Scratch, layer: &DerivedLayer) -> Result<BTreeMap<String, u64>> {
    let rows: Vec<(String, u64)> = scratch
        .rows("SELECT p.database_name, COUNT(*) FROM {actual} a JOIN {place} p USING (number) GROUP BY 1")
        .await?;
    let mut by_database: BTreeMap<String, u64> =
        (0..layer.databases).map(|database| (DerivedLayer::database_name(database), 0)).collect();
    by_database.extend(rows);
    Ok(by_database)
}

/// Says for each claim in which derived table it belongs.
async fn place_claims(scratch: &mut Scratch, layer: &DerivedLayer) -> Result<()> {
    let targets = layer.targets.len();
    let number = layer.database_number_sql();
    let sql = format!(
        "INSERT INTO {{claim}} (shard_id, user_id, birthday, place, wanted)
         SELECT c.shard_id, c.user_id, c.birthday, p.number, CONCAT(c.database_name, '.', c.table_name)
         FROM (
           SELECT shard_id, user_id, birthday, database_number % {targets} AS target,
             CONCAT('birthday_', LPAD(database_number, GREATEST(2, LENGTH(database_number)), '0')) AS database_name,
             CONCAT('birthday_', REPLACE(birthday, '-', '')) AS table_name
           FROM (
             SELECT s.shard_id, e.user_id, e.birthday, {number} AS database_number
             FROM {{expected}} e JOIN {{source_table}} s USING (number)
           ) AS numbered
         ) AS c
         LEFT JOIN {{place}} p ON p.target = c.target AND p.database_name = c.database_name
           AND p.table_name = c.table_name"
    );
    scratch.execute(&sql).await
}

const FIND_DIFFERENCES: [&str; 2] = [
    "INSERT INTO {difference}
     SELECT 'missing', c.user_id, c.wanted FROM {claim} c
     LEFT JOIN {actual} a ON a.shard_id = c.shard_id AND a.user_id = c.user_id
     WHERE a.user_id IS NULL",
    "INSERT INTO {difference}
     SELECT
       CASE
         WHEN c.user_id IS NULL AND EXISTS (SELECT 1 FROM {claim} o WHERE o.user_id = a.user_id) THEN 'duplicate'
         WHEN c.user_id IS NULL THEN 'orphan'
         WHEN a.number = c.place THEN 'wrong_birthday'
         WHEN EXISTS (SELECT 1 FROM {actual} r
           WHERE r.shard_id = c.shard_id AND r.user_id = c.user_id AND r.number = c.place) THEN 'duplicate'
         ELSE 'wrong_table'
       END,
       a.user_id, CONCAT(p.database_name, '.', p.table_name)
     FROM {actual} a
     JOIN {place} p USING (number)
     LEFT JOIN {claim} c ON c.shard_id = a.shard_id AND c.user_id = a.user_id
     WHERE c.user_id IS NULL OR c.place IS NULL OR a.number <> c.place OR a.birthday <> c.birthday",
];

async fn find_differences(scratch: &mut Scratch, comparison: &mut Comparison) -> Result<()> {
    for sql in FIND_DIFFERENCES {
        scratch.execute(sql).await?;
    }
    let counts: Vec<(String, u64)> =
        scratch.rows("SELECT kind, COUNT(*) FROM {difference} GROUP BY kind").await?;
    for (kind, count) in counts {
        let differences = &mut comparison.differences;
        match kind.as_str() {
            "missing" => differences.missing = count,
            "orphan" => differences.orphan = count,
            "wrong_table" => differences.wrong_table = count,
            "duplicate" => differences.duplicate = count,
            _ => differences.wrong_birthday = count,
        }
    }
    // Some of each kind rather than ten of one.
    let examples = format!(
        "SELECT kind, user_id, wanted FROM (
           SELECT *, ROW_NUMBER() OVER (PARTITION BY kind ORDER BY user_id) AS place_in_kind FROM {{difference}}
         ) AS numbered ORDER BY place_in_kind, kind LIMIT {EXAMPLES_MAX}"
    );
    let examples: Vec<(String, u64, String)> = scratch.rows(&examples).await?;
    comparison.examples =
        examples.into_iter().map(|(kind, user_id, table)| Example { kind, user_id, table }).collect();
    let counts = "SELECT (SELECT COUNT(*) FROM {claim}), (SELECT COUNT(*) FROM {actual}),
      (SELECT COUNT(*) FROM (SELECT user_id FROM {claim} GROUP BY user_id HAVING COUNT(*) > 1) AS doubled)";
    if let Some((claims, rows, doubled)) = scratch.rows::<(u64, u64, u64)>(counts).await?.first() {
        (comparison.claims, comparison.derived_rows) = (*claims, *rows);
        comparison.doubled_source_users = *doubled;
    }
    Ok(())
}
