//! The document layer: compares every document of the index with its row.
//!
//! Rules:
//! - A row with a uuid of 1 to 64 bytes of text has one document `<shard>-<uuid>`. Its fields are the row's codes,
//!   agent, warehouse, account and SKU as text (NULL and the empty text are absent), its table and its source.
//! - A document's external version is its `lsn`.
//! - A document that is marked `withdrawn` stands for a row that is gone.
//! - Documents of a lane have its number: CRC-32 of the uuid modulo the number of lanes.

use std::collections::{BTreeMap, HashMap, HashSet};

use mysql_async::Row;
use serde_json::{Map, Value, json};

use super::comparison::Comparison;
use super::tables::shard_id_sql;
use super::{ProgressRow, sources};
use crate::error::Result;
use crate::json_client::JsonClient;
use crate::topology::Topology;

/// The documents of an alias.
#[derive(Debug, Clone)]
pub struct DocumentLayer {
    pub server: JsonClient,
    /// The alias.
    pub index: String,
}

/// The index of progress in the demo's configuration.
const PROGRESS_INDEX: &str = "anabranch-progress";
/// Fields that are columns of the row.
const COLUMNS: [&str; 9] = [
    "imei1",
    "imei2",
    "meid",
    "box_no",
    "item_code",
    "first_agent_code",
    "warehouse_code",
    "account_id",
    "sku_code",
];

/// A claim: shard and uuid.
type Claim = (String, String);

pub(super) async fn compare(topology: &Topology, layer: &DocumentLayer) -> Result<Comparison> {
    let expected = expected(topology, layer).await?;
    let hits = layer.server.hits("read documents", &layer.index, json!({ "match_all": {} })).await?;
    let mut comparison = Comparison {
        source_rows: sources::count(topology).await?,
        claims: expected.len() as u64,
        ..Comparison::default()
    };
    let uuids: HashSet<&String> = expected.keys().map(|(_, uuid)| uuid).collect();
    let living: HashSet<&str> = hits.iter().filter(|hit| !is_withdrawn(hit)).map(id).collect();
    let mut found: HashSet<Claim> = HashSet::new();
    for hit in hits.iter().filter(|hit| !is_withdrawn(hit)) {
        comparison.derived_rows += 1;
        let claim = claim(hit);
        let right_id = format!("{}-{}", claim.0, claim.1);
        let kind = match expected.get(&claim) {
            None if uuids.contains(&claim.1) => Some("duplicate"),
            None => Some("orphan"),
            Some(_) if id(hit) != right_id && living.contains(right_id.as_str()) => Some("duplicate"),
            Some(_) if id(hit) != right_id => Some("wrong_table"),
            Some(_) if hit["_version"] != hit["_source"]["lsn"] => Some("stale_version"),
            Some(wanted) => (!is_same(hit, wanted)).then_some("wrong_field"),
        };
        if let Some(kind) = kind {
            comparison.differs(kind, format!("uuid {}", claim.1), &layer.index);
        }
        found.insert(claim);
    }
    let withdrawn: HashSet<&str> = hits.iter().filter(|hit| is_withdrawn(hit)).map(id).collect();
    for (shard, uuid) in expected.keys().filter(|claim| !found.contains(*claim)) {
        let is_withdrawn = withdrawn.contains(format!("{shard}-{uuid}").as_str());
        let kind = if is_withdrawn { "withdrawn" } else { "missing" };
        comparison.differs(kind, format!("uuid {uuid}"), &layer.index);
    }
    comparison.rows_by_database = BTreeMap::from([(layer.index.clone(), comparison.derived_rows)]);
    Ok(comparison)
}

/// Counts the present documents that are not withdrawn.
pub(super) async fn count(layer: &DocumentLayer) -> Result<u64> {
    let query = json!({ "query": { "term": { "withdrawn": false } } });
    let path = format!("{}/_count", layer.index);
    let answer = layer.server.ask("count documents", reqwest::Method::POST, &path, query).await?;
    answer["count"].as_u64().ok_or_else(|| layer.server.failed("count documents", "no count".to_owned()))
}

/// Reads the progress of the lanes of a projection.
pub(super) async fn progress(server: &JsonClient, projection: &str) -> Result<Vec<ProgressRow>> {
    let lanes = json!({ "bool": { "filter": [
        { "term": { "projection": projection } }, { "exists": { "field": "lane" } },
    ] } });
    let hits = server.hits("read progress", PROGRESS_INDEX, lanes).await?;
    let row = |hit: &Value| {
        let number = |field: &str| hit["_source"][field].as_u64();
        let source = hit["_source"]["source"].as_str()?.to_owned();
        let (lane, lanes) = (number("lane")? as u32, number("lanes")? as u32);
        // The numbers of a beginning and of fields alone mean no refresh.
        let is_number = |word: &str| word.starts_with("beginning:") || word.starts_with("fields:");
        let is_under_way = |refresh: &str| refresh.split_whitespace().any(|word| !is_number(word));
        let is_refreshing = hit["_source"]["refresh"].as_str().is_some_and(is_under_way);
        Some((source, lane, lanes, number("position")?, number("revision")?, is_refreshing))
    };
    Ok(hits.iter().filter_map(row).collect())
}

/// Returns the fields that each document must have, but for its version.
async fn expected(topology: &Topology, layer: &DocumentLayer) -> Result<HashMap<Claim, Map<String, Value>>> {
    let lanes = progress(&layer.server, "documents").await?.iter().map(|row| row.2).max().unwrap_or(1);
    let columns = COLUMNS.map(|column| format!("CAST({column} AS BINARY)")).join(", ");
    let rows = sources::rows::<Row>(topology, "read devices", |source, source_table| {
        let (shard, table) = (shard_id_sql(source, source_table), source_table.quoted());
        format!(
            "SELECT '{source}', '{}', '{}', {shard}, CAST(uuid AS BINARY), {columns} FROM {table} \
             WHERE LENGTH(uuid) BETWEEN 1 AND 64",
            source_table.database_name(),
            source_table.table_name()
        )
    });
    let mut expected = HashMap::new();
    for row in rows.await? {
        let text = |column: usize| {
            let bytes = row.get::<Option<Vec<u8>>, usize>(column).flatten().unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let uuid = row.get::<Vec<u8>, usize>(4).unwrap_or_default();
        let lane = crc32fast::hash(&uuid) % lanes.max(1);
        let claim = (row.get::<u64, usize>(3).unwrap_or_default().to_string(), text(4));
        let mut document = Map::new();
        document.insert("shard_id".to_owned(), claim.0.clone().into());
        document.insert("uuid".to_owned(), claim.1.clone().into());
        document.insert("source".to_owned(), text(0).into());
        document.insert("database".to_owned(), text(1).into());
        document.insert("table".to_owned(), text(2).into());
        document.insert("lane".to_owned(), lane.into());
        document.insert("withdrawn".to_owned(), false.into());
        let named = COLUMNS.iter().zip(5..).map(|(name, column)| (*name, text(column)));
        document.extend(
            named.filter(|(_, text)| !text.is_empty()).map(|(name, text)| (name.to_owned(), text.into())),
        );
        expected.insert(claim, document);
    }
    Ok(expected)
}

fn id(hit: &Value) -> &str {
    hit["_id"].as_str().unwrap_or_default()
}

fn is_withdrawn(hit: &Value) -> bool {
    hit["_source"]["withdrawn"] == true
}

fn claim(hit: &Value) -> Claim {
    let text = |field: &str| hit["_source"][field].as_str().unwrap_or_default().to_owned();
    (text("shard_id"), text("uuid"))
}

/// Whether all fields but the version are as they must be, and no other field exists.
fn is_same(hit: &Value, wanted: &Map<String, Value>) -> bool {
    let Some(fields) = hit["_source"].as_object() else { return false };
    let versioned = usize::from(fields.contains_key("lsn"));
    fields.len() == wanted.len() + versioned
        && wanted.iter().all(|(name, value)| fields.get(name) == Some(value))
}
