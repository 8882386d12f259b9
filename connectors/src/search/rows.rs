//! Reads documents, for their comparison with the source.
//!
//! A document's id says which claim it is: a lane writes over that id. A document that is not exactly as its lane
//! writes it (another lane or version, a missing or additional field) has no values, so it equals no claim and is
//! written again. Tombstones are no rows. The next page begins after (shard, uuid), which both products sort alike.
//! Reads by id show every write at once; searches show the state that was refreshed before the first page.

use std::collections::{BTreeSet, HashSet};
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::sync::Arc;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{DerivedRowQuery, DerivedRows, ForeignRow, ForeignRows};
use anabranch_pipeline::projections::Assignment;
use anabranch_pipeline::records::{Cell, CellRef, Claimed, DerivedRow, ScanCursor, Stray, TableShape};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::client::Client;
use super::lane::document_id;
use super::{SearchTarget, bulk, hits};

/// Most documents that servers return at once (`index.max_result_window`).
const PAGE_DOCUMENTS_MAX: usize = 10_000;
/// Ids in a request: its answer takes some hundred kilobytes.
const REQUEST_IDS: usize = 500;
/// Digits of the largest shard id.
const DIGITS_MAX: u32 = 19;
/// Fields of a document besides those of its shape.
const OWN_FIELDS: usize = 5;

/// The documents of one projection. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SearchRows {
    target: SearchTarget,
    assignment: Arc<Assignment>,
}

/// A document in the answer to a search or a request by id.
#[derive(Debug, Deserialize)]
struct StoredDocument {
    _id: String,
    _version: u64,
    #[serde(default)]
    _seq_no: u64,
    #[serde(default)]
    _primary_term: u64,
    _source: Map<String, Value>,
    /// Position in the order of pages.
    #[serde(default)]
    sort: Vec<Value>,
}

impl SearchRows {
    pub(super) fn new(target: SearchTarget, assignment: Arc<Assignment>) -> Self {
        Self { target, assignment }
    }

    fn shape(&self) -> &'static TableShape {
        self.assignment.projection.tables()[0].derived.shape
    }

    fn table_of(&self, uuid: &[u8]) -> Option<u32> {
        self.assignment.projection.table_of_source_key(uuid)
    }

    /// Visits a document of the part `of`, unless it is a tombstone.
    fn show(&self, of: u32, stored: &StoredDocument, visit: &mut (dyn FnMut(DerivedRow<'_>) + Send)) {
        let StoredDocument { _id: id, _version: version, _source: source, .. } = stored;
        if source.get("withdrawn") == Some(&Value::Bool(true)) {
            return;
        }
        let meant = id.split_once('-').and_then(|(shard, uuid)| {
            let id = ShardId::from_u64(shard.parse().ok()?).filter(|id| id.to_string() == shard)?;
            Some((id, uuid, self.table_of(uuid.as_bytes())?))
        });
        let Some((shard, uuid, table)) = meant else {
            // The field may hold anything, so it is shown only if it is a number.
            let shard = source.get("shard_id");
            let shard = shard.and_then(|shard| shard.as_u64().or_else(|| shard.as_str()?.parse().ok()));
            let key = [CellRef::Bytes(id.as_bytes())];
            return visit(DerivedRow::Stray(Stray { table: of, shard, key: &key }));
        };
        let text = |name: &str| source.get(name).and_then(Value::as_str);
        let number = |name: &str| source.get(name).and_then(Value::as_u64);
        let is_its_own = text("shard_id").is_some_and(|text| *text == shard.to_string())
            && text("uuid") == Some(uuid)
            && text("source").is_some()
            && number("lane") == Some(table.into())
            && number("lsn") == Some(*version)
            && source.get("withdrawn") == Some(&Value::Bool(false));
        let key = [CellRef::Bytes(uuid.as_bytes())];
        let cells = self.shape().value_columns.iter().map(|name| match source.get(*name) {
            None => Some(CellRef::Null),
            Some(value) => Some(CellRef::Bytes(value.as_str()?.as_bytes())),
        });
        let values: Option<Vec<CellRef<'_>>> = cells.collect();
        let is_whole = |values: &Vec<CellRef<'_>>| {
            let there = values.iter().filter(|cell| **cell != CellRef::Null).count();
            is_its_own && source.len() == OWN_FIELDS + key.len() + there
        };
        let values = values.filter(is_whole).unwrap_or_default();
        visit(DerivedRow::Claimed(Claimed { table, shard, key: &key, values: &values }));
    }

    /// Returns the filter for the documents of a lane's part and of these shards.
    fn filter(&self, table: u32, shards: &RangeInclusive<ShardId>) -> Value {
        let lanes = self.assignment.lanes;
        // The first part includes documents that name no existing lane.
        let of_table = match table {
            0 => json!({ "bool": { "must_not": { "terms": { "lane": (1..lanes).collect::<Vec<_>>() } } } }),
            table => json!({ "term": { "lane": table } }),
        };
        let mut filter = vec![of_table];
        filter.extend(of_shards(shards));
        json!({ "bool": { "filter": filter, "must_not": { "term": { "withdrawn": true } } } })
    }
}

impl SearchRows {
    /// Returns at most `limit` documents and the position of the next page. For documents to be removed it also reads
    /// the version that tells each from a later write.
    async fn find(
        &self,
        (table, is_to_be_removed): (u32, bool),
        shards: RangeInclusive<ShardId>,
        after: Option<&ScanCursor>,
        limit: NonZeroUsize,
    ) -> Result<(Vec<StoredDocument>, Option<ScanCursor>), Fault> {
        let (client, index) = (self.target.client().await?, self.assignment.alias());
        let size = limit.get().min(PAGE_DOCUMENTS_MAX);
        // The sequence number orders documents that a manual write has made alike.
        let mut query = json!({
            "size": size, "sort": [{ "shard_id": "asc" }, { "uuid": "asc" }, { "_seq_no": "asc" }], "version": true,
            "seq_no_primary_term": is_to_be_removed,
            "query": self.filter(table, &shards),
        });
        match after {
            None => {
                let refreshed = client.post(&format!("/{index}/_refresh"), Vec::new()).await?;
                refreshed.success(&format!(", index {index}"))?;
            }
            Some(place) => {
                let place: Value = serde_json::from_slice(&place.0).map_err(|_| {
                    Fault::new(
                        Code::Internal,
                        self.target.subject(),
                        "a position that is not one of a search",
                    )
                })?;
                query["search_after"] = place;
            }
        }
        let found: Vec<StoredDocument> = hits::search(client, index, &query).await?;
        let last = found.last().filter(|_| found.len() == size);
        let next = last.map(|last| ScanCursor(json!(last.sort).to_string().into_bytes().into()));
        Ok((found, next))
    }
}

impl SearchRows {
    /// Visits each document that the sought source rows claim, with its version.
    pub async fn versions(
        &self,
        sought: &[DerivedRowQuery],
        visit: &mut (dyn FnMut(Claimed<'_>, Lsn) + Send),
    ) -> Result<(), Fault> {
        for stored in self.sought_documents(sought).await? {
            let Ok(version) = Lsn::from_u64(stored._version) else { continue };
            let mut claimed =
                |row: DerivedRow<'_>| row.claimed().into_iter().for_each(|row| visit(row, version));
            self.show(0, &stored, &mut claimed);
        }
        Ok(())
    }

    /// Returns the documents with the ids of these claims, tombstones included.
    async fn sought_documents(&self, sought: &[DerivedRowQuery]) -> Result<Vec<StoredDocument>, Fault> {
        #[derive(Deserialize)]
        struct Response {
            docs: Vec<FetchedRow>,
        }
        #[derive(Deserialize)]
        struct FetchedRow {
            found: bool,
            #[serde(flatten)]
            rest: Map<String, Value>,
        }
        // Parts share one index: a document that belongs to another part does not count for the one that is asked for.
        let is_there = |sought: &&DerivedRowQuery| matches!(&sought.key, Cell::Bytes(uuid) if self.table_of(uuid) == Some(sought.table));
        let id = |sought: &DerivedRowQuery| document_id(sought.shard, std::slice::from_ref(&sought.key));
        let ids: HashSet<String> = sought.iter().filter(is_there).map(id).collect();
        let (client, index) = (self.target.client().await?, self.assignment.alias());
        let mut documents = Vec::new();
        for some in ids.into_iter().collect::<Vec<_>>().chunks(REQUEST_IDS) {
            let answer = client.post(&format!("/{index}/_mget"), json!({ "ids": some }).to_string()).await?;
            let answer = answer.success(&format!(", index {index}"))?;
            for asked in answer.read::<Response>()?.docs.into_iter().filter(|asked| asked.found) {
                documents.push(serde_json::from_value(Value::Object(asked.rest)).map_err(|_| answer.odd())?);
            }
        }
        Ok(documents)
    }
}

impl DerivedRows for SearchRows {
    async fn page(
        &self,
        table: u32,
        shards: RangeInclusive<ShardId>,
        after: Option<&ScanCursor>,
        limit: NonZeroUsize,
        visit: &mut (dyn FnMut(DerivedRow<'_>) + Send),
    ) -> Result<Option<ScanCursor>, Fault> {
        let (found, next) = self.find((table, false), shards, after, limit).await?;
        found.iter().for_each(|stored| self.show(table, stored, visit));
        Ok(next)
    }

    async fn rows(
        &self,
        sought: &[DerivedRowQuery],
        visit: &mut (dyn FnMut(Claimed<'_>) + Send),
    ) -> Result<(), Fault> {
        for stored in self.sought_documents(sought).await? {
            // A document that no lane writes is never sought.
            let mut claimed = |row: DerivedRow<'_>| row.claimed().into_iter().for_each(&mut *visit);
            self.show(0, &stored, &mut claimed);
        }
        Ok(())
    }
}

impl ForeignRows for SearchRows {
    /// Reads all documents, as ids have no order; the id says whose document each is.
    async fn foreign(
        &self,
        table: u32,
        known: &BTreeSet<ShardId>,
        after: Option<&ScanCursor>,
        limit: NonZeroUsize,
    ) -> Result<(Vec<ForeignRow>, Option<ScanCursor>), Fault> {
        let [first, last] = [0, u64::MAX >> 1].map(|number| ShardId::from_u64(number).expect("63 bits"));
        let (found, next) = self.find((table, true), first..=last, after, limit).await?;
        let mut rows = Vec::new();
        for stored in &found {
            let version = (stored._seq_no, stored._primary_term);
            self.show(table, stored, &mut |row| {
                let (shard, owner, key) = match row {
                    DerivedRow::Claimed(row) | DerivedRow::Retired(row) => {
                        (Some(row.shard.as_u64()), Some(row.shard), row.key)
                    }
                    DerivedRow::Stray(row) => (row.shard, None, row.key),
                };
                if owner.is_none_or(|owner| !known.contains(&owner)) {
                    let key = key.iter().map(|cell| CellRef::to_owned(*cell)).collect();
                    rows.push(ForeignRow { table, shard, owner, key, version });
                }
            });
        }
        Ok((rows, next))
    }

    async fn remove(&self, rows: &[ForeignRow]) -> Result<u64, Fault> {
        let id = |row: &ForeignRow| match (row.owner, &*row.key) {
            (Some(shard), key) => document_id(shard, key),
            (None, [Cell::Bytes(id)]) => String::from_utf8_lossy(id).into_owned(),
            (None, _) => String::new(),
        };
        let found = |row: &ForeignRow| hits::FoundDocument {
            id: id(row),
            sequence: row.version.0,
            term: row.version.1,
        };
        let documents: Vec<hits::FoundDocument> = rows.iter().map(found).collect();
        let client = self.target.client().await?;
        let index = self.target.generations(&self.assignment.name).await?.serving;
        // A later write stays: the server reports it with a status that counts as success.
        let before = as_found(client, &index, &documents).await?;
        bulk::write(client, &index, &documents).await?;
        let after = as_found(client, &index, &documents).await?;
        Ok(before.difference(&after).count() as u64)
    }
}

/// Returns the ids of the documents that are still as they were found.
async fn as_found<'d>(
    client: &Client,
    index: &str,
    documents: &'d [hits::FoundDocument],
) -> Result<HashSet<&'d str>, Fault> {
    #[derive(Deserialize)]
    struct Response {
        docs: Vec<FetchedRow>,
    }
    #[derive(Deserialize)]
    struct FetchedRow {
        _seq_no: Option<u64>,
        _primary_term: Option<u64>,
    }
    let mut stored = HashSet::new();
    for some in documents.chunks(REQUEST_IDS) {
        let ids: Vec<&str> = some.iter().map(|document| document.id.as_str()).collect();
        let (path, ids) = (format!("/{index}/_mget?_source=false"), json!({ "ids": ids }).to_string());
        let answer = client.post(&path, ids).await?.success(&format!(", index {index}"))?;
        let docs = answer.read::<Response>()?.docs;
        let is_it = |(document, asked): &(&hits::FoundDocument, FetchedRow)| {
            (Some(document.sequence), Some(document.term)) == (asked._seq_no, asked._primary_term)
        };
        // Answers have the order of the ids.
        stored.extend(some.iter().zip(docs).filter(is_it).map(|(document, _)| document.id.as_str()));
    }
    Ok(stored)
}

/// Returns the filter for these shards; `None` = all shards. Ids are texts, so the numbers of each length form a range
/// of their own; a document without a number counts as one of the first shards.
fn of_shards(shards: &RangeInclusive<ShardId>) -> Option<Value> {
    let (first, last) = (shards.start().as_u64(), shards.end().as_u64());
    let (from_start, to_end) = (first == 0, ShardId::from_u64(last + 1).is_none());
    if from_start && to_end {
        return None;
    }
    let length = |digits: u32| {
        let (least, most) = (10_u64.pow(digits - 1), 10_u128.pow(digits) - 1);
        let least = if digits == 1 { 0 } else { least };
        let most = if digits == DIGITS_MAX && to_end { most } else { most.min(last.into()) };
        let least = least.max(first);
        (u128::from(least) <= most).then(|| {
            json!({ "bool": { "filter": [
                { "regexp": { "shard_id": format!("[0-9]{{{digits}}}") } },
                { "range": { "shard_id": { "gte": least.to_string(), "lte": most.to_string() } } },
            ] } })
        })
    };
    let mut parts: Vec<Value> = (1..=DIGITS_MAX).filter_map(length).collect();
    if from_start {
        let digits = format!("[0-9]{{1,{DIGITS_MAX}}}");
        parts.push(json!({ "bool": { "must_not": { "regexp": { "shard_id": digits } } } }));
    }
    Some(json!({ "bool": { "should": parts, "minimum_should_match": 1 } }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(first: u64, last: u64) -> Vec<(String, String)> {
        let [first, last] = [first, last].map(|number| ShardId::from_u64(number).unwrap());
        let Some(query) = of_shards(&(first..=last)) else { return Vec::new() };
        let parts = query["bool"]["should"].as_array().unwrap().clone();
        let range = |part: &Value| {
            let range = &part["bool"]["filter"].get(1)?["range"]["shard_id"];
            Some((range["gte"].as_str()?.to_owned(), range["lte"].as_str()?.to_owned()))
        };
        parts.iter().filter_map(range).collect()
    }

    #[test]
    fn numbers_of_each_length_are_a_range_of_texts() {
        let text = |(one, two): (&str, &str)| (one.to_owned(), two.to_owned());
        assert_eq!(ranges(5, 1234), [("5", "9"), ("10", "99"), ("100", "999"), ("1000", "1234")].map(text));
        assert_eq!(ranges(250, 299), [("250", "299")].map(text));
        let whole = u64::MAX >> 1;
        assert_eq!(ranges(whole - 1, whole), [("9223372036854775806", "9999999999999999999")].map(text));
        assert!(ranges(0, whole).is_empty());
        assert_eq!(ranges(0, 7), [("0", "7")].map(text));
    }
}
