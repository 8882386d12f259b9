//! The relation index of payment documents: SQL for the rows that a document claims, and the comparison of all of them.
//!
//! Rules:
//! - An identifier is 31 digits of system 031: digit 9 is 0, 1 or 8, digits 10, 14 and 17 are 0 or 1, digits 18 and
//!   19 are a month from 00 to 11, or 99.
//! - A document is in `flux_relation_PP`, where PP is its digits 20 and 21. If digits 20 and 21 of its parent differ,
//!   it is in the table of that number, too.
//! - A row repeats parent, amount and time of the source as text; a time without a fraction of a second has none.
//! - The name of a source table says digits 14 and 18 to 21, and its server says digit 17.
//! - Digits 14 to 16 say the kind of a document, and so the kind of its parent and which of the digits 17 to 21 both
//!   have in common.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anabranch_schemas::flux::placement::StorageAddress;

use super::UNION_TABLES;
use super::comparison::Comparison;
use super::tables::{Column, DerivedTables, shard_id_sql};
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::topology::{FLUX_REGION, SourceTable, Topology, place_of};

/// The database `flux_relations` with tables `flux_relation_00` to `flux_relation_99`.
#[derive(Debug, Clone)]
pub struct RelationLayer {
    /// User partitions of documents in each of the 10 source databases.
    pub partitions: u32,
    /// Targets: the tables of source database i are on target i modulo their number.
    pub targets: Vec<Endpoint>,
}

const DATABASE: &str = "flux_relations";
/// Groups of ten tables, each with the user partitions of one source database.
const GROUPS: u32 = 10;
/// Condition that the text `{}` is an identifier, whatever day its date names.
const IS_AN_ID: &str = "(LENGTH({}) = 31 AND {} REGEXP \
    '^[0-9]{8}[018][01]031[01][0-9]{2}[01](0[0-9]|1[01]|99)[0-9]{12}$')";
/// Condition that the digits 17 to 21 of a document are not those of the rule for its digits 14 to 16. Documents with
/// other digits there have no rule.
const IS_BESIDE_ITS_PARENT: &str = "NOT IFNULL(CASE SUBSTRING(id, 14, 3) \
      WHEN '001' THEN parent_id IS NULL AND SUBSTRING(id, 18, 2) + 1 = SUBSTRING(id, 5, 2) + 0 \
      WHEN '010' THEN parent_id IS NULL AND SUBSTRING(id, 17, 3) = '099' \
      WHEN '002' THEN SUBSTRING(parent_id, 14, 3) = '001' AND SUBSTRING(id, 17, 5) = SUBSTRING(parent_id, 17, 5) \
      WHEN '004' THEN SUBSTRING(parent_id, 14, 3) = '001' AND SUBSTRING(id, 17, 5) = SUBSTRING(parent_id, 17, 5) \
      WHEN '105' THEN SUBSTRING(parent_id, 14, 3) = '001' AND SUBSTRING(id, 17, 5) = SUBSTRING(parent_id, 17, 5) \
      WHEN '101' THEN SUBSTRING(parent_id, 14, 3) = '001' AND SUBSTRING(id, 17, 5) = SUBSTRING(parent_id, 17, 5) \
      WHEN '102' THEN SUBSTRING(parent_id, 14, 3) = '002' AND SUBSTRING(id, 17, 5) = SUBSTRING(parent_id, 17, 5) \
      WHEN '103' THEN SUBSTRING(parent_id, 14, 3) = '003' AND SUBSTRING(id, 17, 5) = SUBSTRING(parent_id, 17, 5) \
      WHEN '104' THEN SUBSTRING(parent_id, 14, 3) = '004' AND SUBSTRING(id, 17, 5) = SUBSTRING(parent_id, 17, 5) \
      WHEN '003' THEN SUBSTRING(parent_id, 14, 3) = '001' AND {without_month} \
      WHEN '108' THEN SUBSTRING(parent_id, 14, 3) = '001' AND {without_month} \
      WHEN '109' THEN SUBSTRING(parent_id, 14, 3) = '001' AND {without_month} \
      WHEN '106' THEN SUBSTRING(parent_id, 14, 3) = '003' AND {without_month} \
      WHEN '107' THEN SUBSTRING(parent_id, 14, 3) = '003' AND {without_month} \
      WHEN '110' THEN SUBSTRING(parent_id, 14, 3) = '010' AND SUBSTRING(id, 17, 1) = '0' AND {without_month} \
      ELSE TRUE END, FALSE)";
/// Condition that a document has side and user partition of its parent, and no month.
const WITHOUT_MONTH: &str = "SUBSTRING(id, 17, 1) = SUBSTRING(parent_id, 17, 1) AND SUBSTRING(id, 18, 2) = '99' \
      AND SUBSTRING(id, 20, 2) = SUBSTRING(parent_id, 20, 2)";

/// Parent, amount and time of a document, as text.
type Values = [Option<Vec<u8>>; 3];
/// Number of a source table, its shard, its rows, those in a wrong table, those with digits of a wrong place.
type Counts = (usize, u64, u64, u64, u64);
/// A row of a query for claims: number of the source table, identifier, values, table.
type ClaimRow = (usize, Vec<u8>, Option<Vec<u8>>, Option<Vec<u8>>, Option<Vec<u8>>, String);
/// A derived row: shard, identifier, version, values.
type DerivedRow = (u64, Vec<u8>, u64, Option<Vec<u8>>, Option<Vec<u8>>, Option<Vec<u8>>);

/// Both sides of one document of one shard, by derived table.
#[derive(Debug, Default)]
struct Sides {
    claims: BTreeMap<String, Values>,
    rows: BTreeMap<String, (u64, Values)>,
}

/// Both sides by identifier and shard.
type Documents = HashMap<(Vec<u8>, u64), Sides>;

impl DerivedTables for RelationLayer {
    fn targets(&self) -> &[Endpoint] {
        &self.targets
    }

    fn databases(&self) -> u32 {
        GROUPS
    }

    fn database_name(&self, _database: u32) -> String {
        DATABASE.to_owned()
    }

    fn tables(&self) -> Vec<(u32, String)> {
        let of = |group| (0..10).map(move |second| (group, format!("flux_relation_{group}{second}")));
        (0..GROUPS).flat_map(of).collect()
    }

    fn names_like(&self) -> (&'static str, &'static str) {
        ("flux\\_relations", "flux\\_relation\\_%")
    }

    /// Returns the tables of all user partitions that have documents; a few hundred recharges fill every one.
    fn filled_min(&self) -> u64 {
        u64::from(GROUPS * self.partitions)
    }

    fn key(&self) -> &'static [Column] {
        const { &[Column::bytes("id", "VARBINARY(31)")] }
    }

    fn checked(&self) -> Column {
        Column::bytes("parent_id", "VARBINARY(64)")
    }

    fn flaw(&self) -> (&'static str, &'static str) {
        ("no_version", "a.lsn = 0")
    }

    fn row_name(&self, prefix: &str) -> String {
        format!("CONCAT('id ', CONVERT({prefix}id USING utf8mb4))")
    }

    fn claims(&self, source_table: SourceTable) -> String {
        let table = source_table.quoted();
        let [id, parent] = ["id", "parent_id"].map(|column| IS_AN_ID.replace("{}", column));
        let columns = "CAST(id AS BINARY) AS id, CAST(parent_id AS BINARY) AS parent_id, \
             CAST(CAST(amount AS CHAR) AS BINARY) AS amount, \
             CAST(CONCAT(DATE_FORMAT(created, '%Y-%m-%d %H:%i:%s'), \
               IF(MICROSECOND(created) = 0, '', DATE_FORMAT(created, '.%f'))) AS BINARY) AS created";
        format!(
            "SELECT id, parent_id, amount, created, CAST(LEFT(place, 1) AS UNSIGNED) AS database_number,
               CONCAT('flux_relation_', place) AS table_name
             FROM (
               SELECT {columns}, SUBSTRING(id, 20, 2) AS place FROM {table} WHERE {id}
               UNION ALL
               SELECT {columns}, SUBSTRING(parent_id, 20, 2) FROM {table}
               WHERE {id} AND {parent} AND SUBSTRING(parent_id, 20, 2) <> SUBSTRING(id, 20, 2)
             ) AS places"
        )
    }
}

/// Compares every row of the index with the rows that the sources claim. Both sides must not change meanwhile.
pub(super) async fn compare(topology: &Topology, layer: &RelationLayer) -> Result<Comparison> {
    let mut comparison = Comparison { tables_filled_min: layer.filled_min(), ..Comparison::default() };
    let mut documents = Documents::new();
    read_sources(topology, layer, &mut documents, &mut comparison).await?;
    read_derived(layer, &mut documents, &mut comparison).await?;
    let mut shards: HashMap<&[u8], BTreeSet<u64>> = HashMap::new();
    for ((id, shard), sides) in &documents {
        if !sides.claims.is_empty() {
            shards.entry(id).or_default().insert(*shard);
        }
    }
    comparison.doubled_source_rows = shards.values().filter(|shards| shards.len() > 1).count() as u64;
    let mut sorted: Vec<_> = documents.iter().collect();
    sorted.sort_unstable_by_key(|(key, _)| *key);
    for ((id, _), sides) in sorted {
        differences(id, sides, shards.contains_key(id.as_slice()), &mut comparison);
    }
    Ok(comparison)
}

/// Reads the claims of all source tables. Counts their rows, those whose table is not the one of their digits, and
/// those whose digits are not the ones of their rule.
async fn read_sources(
    topology: &Topology,
    layer: &RelationLayer,
    documents: &mut Documents,
    comparison: &mut Comparison,
) -> Result<()> {
    let is_beside_its_parent = IS_BESIDE_ITS_PARENT.replace("{without_month}", WITHOUT_MONTH);
    for (index, source) in topology.sources.iter().enumerate() {
        let mut connection = source.connect(&[]).await?;
        let own: Vec<SourceTable> = topology.tables_of(index).collect();
        for part in own.chunks(UNION_TABLES) {
            let count = |(number, source_table): (usize, &SourceTable)| {
                let (shard, table) = (shard_id_sql(&source.name, *source_table), source_table.quoted());
                let is_elsewhere = is_elsewhere(*source_table);
                format!(
                    "SELECT {number}, {shard}, COUNT(*), COUNT(IF({is_elsewhere}, 1, NULL)), \
                       COUNT(IF({is_beside_its_parent}, 1, NULL)) FROM {table}"
                )
            };
            let counts: Vec<String> = part.iter().enumerate().map(count).collect();
            let mut shards = vec![0; part.len()];
            let counts: Vec<Counts> = connection.rows("count rows", counts.join(" UNION ALL ")).await?;
            for (number, shard, rows, misplaced, misplaced_children) in counts {
                shards[number] = shard;
                comparison.source_rows += rows;
                comparison.misplaced_source_rows += misplaced;
                comparison.misplaced_children += misplaced_children;
            }
            let claims = |(number, source_table): (usize, &SourceTable)| {
                let claims = layer.claims(*source_table);
                format!(
                    "SELECT {number}, id, parent_id, amount, created, table_name FROM ({claims}) AS claims"
                )
            };
            let claims: Vec<String> = part.iter().enumerate().map(claims).collect();
            let rows: Vec<ClaimRow> = connection.rows("read claims", claims.join(" UNION ALL ")).await?;
            comparison.claims += rows.len() as u64;
            for (number, id, parent, amount, created, table) in rows {
                let sides = documents.entry((id, shards[number])).or_default();
                sides.claims.insert(table, [parent, amount, created]);
            }
        }
    }
    Ok(())
}

/// Reads every row of every derived table, even of tables that should not exist.
async fn read_derived(
    layer: &RelationLayer,
    documents: &mut Documents,
    comparison: &mut Comparison,
) -> Result<()> {
    let (databases_like, tables_like) = layer.names_like();
    let mut found = BTreeSet::new();
    let mut filled = BTreeSet::new();
    for (target, endpoint) in layer.targets().iter().enumerate() {
        let mut connection = endpoint.connect(&[]).await?;
        let tables = format!(
            "SELECT table_name FROM information_schema.tables \
             WHERE table_schema LIKE '{databases_like}' AND table_name LIKE '{tables_like}' ORDER BY 1"
        );
        for table in connection.rows::<String>("list derived tables", tables).await? {
            let sql =
                format!("SELECT shard_id, id, lsn, parent_id, amount, created FROM {DATABASE}.`{table}`");
            let rows: Vec<DerivedRow> = connection.rows("read derived tables", sql).await?;
            comparison.derived_rows += rows.len() as u64;
            if !rows.is_empty() {
                filled.insert(table.clone());
            }
            // A table on a wrong target is in no claim.
            let is_own = layer.names_on(target).contains(&format!("{DATABASE}.{table}"));
            let name = if is_own { table.clone() } else { format!("{table} at {}", endpoint.name) };
            for (shard, id, lsn, parent, amount, created) in rows {
                let sides = documents.entry((id, shard)).or_default();
                sides.rows.insert(name.clone(), (lsn, [parent, amount, created]));
            }
            found.insert(name);
        }
    }
    let wanted = layer.tables().into_iter().map(|(_, table)| table);
    let absent = wanted.filter(|table| !found.contains(table));
    comparison.absent_tables.extend(absent.map(|table| format!("{DATABASE}.{table}")));
    comparison.tables_filled = filled.len() as u64;
    comparison.rows_by_database = BTreeMap::from([(DATABASE.to_owned(), comparison.derived_rows)]);
    Ok(())
}

/// Counts the differences of one document of one shard. `is_claimed` says whether any shard claims the document.
fn differences(id: &[u8], sides: &Sides, is_claimed: bool, comparison: &mut Comparison) {
    let name = || format!("id {}", String::from_utf8_lossy(id));
    let place = |table: &str| format!("{DATABASE}.{table}");
    let mut lacking: Vec<&String> =
        sides.claims.keys().filter(|table| !sides.rows.contains_key(*table)).collect();
    for (table, (lsn, values)) in &sides.rows {
        let kind = match sides.claims.get(table) {
            Some(claimed) if claimed != values => "wrong_field",
            Some(_) if *lsn == 0 => "no_version",
            Some(_) => continue,
            None if lacking.pop().is_some() => "wrong_table",
            None if is_claimed => "duplicate",
            None => "orphan",
        };
        comparison.differs(kind, name(), &place(table));
    }
    for table in lacking {
        comparison.differs("missing", name(), &place(table));
    }
}

/// Returns the condition that a document of this table belongs in another one, or on another server.
fn is_elsewhere(source_table: SourceTable) -> String {
    let (level, StorageAddress { side, partition, month }) = place_of(source_table);
    format!(
        "SUBSTRING(id, 10, 1) <> '{}' OR SUBSTRING(id, 14, 1) <> '{}' OR SUBSTRING(id, 17, 1) <> '{}' \
         OR SUBSTRING(id, 18, 2) <> '{:02}' OR SUBSTRING(id, 20, 2) <> '{partition:02}'",
        FLUX_REGION.digit(),
        level.digit(),
        side.digit(),
        month.digits()
    )
}

#[cfg(test)]
mod tests {
    use super::super::comparison::Differences;
    use super::*;

    fn values(parent: &str) -> Values {
        [Some(parent.as_bytes().to_vec()), None, None]
    }

    fn found(claims: &[(&str, &str)], rows: &[(&str, &str, u64)], is_claimed: bool) -> Differences {
        let claims = claims.iter().map(|(table, parent)| ((*table).to_owned(), values(parent)));
        let rows = rows.iter().map(|(table, parent, lsn)| ((*table).to_owned(), (*lsn, values(parent))));
        let sides = Sides { claims: claims.collect(), rows: rows.collect() };
        let mut comparison = Comparison::default();
        differences(b"1", &sides, is_claimed, &mut comparison);
        comparison.differences
    }

    #[test]
    fn each_difference_of_a_document_has_its_kind() {
        let none = Differences::default();
        let both = [("a", "p"), ("b", "p")];
        assert_eq!(found(&both, &[("a", "p", 1), ("b", "p", 1)], true), none);
        assert_eq!(found(&both, &[("a", "p", 1)], true), Differences { missing: 1, ..none });
        assert_eq!(
            found(&both, &[("a", "p", 1), ("c", "p", 1)], true),
            Differences { wrong_table: 1, ..none }
        );
        assert_eq!(
            found(&both, &[("a", "p", 1), ("b", "p", 1), ("c", "p", 1)], true),
            Differences { duplicate: 1, ..none }
        );
        assert_eq!(
            found(&both, &[("a", "q", 1), ("b", "p", 0)], true),
            Differences { wrong_field: 1, no_version: 1, ..none }
        );
        assert_eq!(found(&[], &[("a", "p", 1)], false), Differences { orphan: 1, ..none });
        assert_eq!(found(&[], &[("a", "p", 1)], true), Differences { duplicate: 1, ..none });
    }

    #[test]
    fn there_are_100_tables_in_groups_of_the_source_databases() {
        let tables = RelationLayer { partitions: 3, targets: Vec::new() }.tables();
        assert_eq!(tables.len(), 100);
        assert_eq!(tables[52], (5, "flux_relation_52".to_owned()));
    }
}
