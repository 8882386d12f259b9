//! Finding documents for people: by any part of any code, and by agent, warehouse, account, SKU.
//!
//! A part of a code is a phrase of trigrams, so it is found wherever it stands, in either case, without a look at every
//! code; it must have three characters. Nothing of a question is taken for a query language. Pages go on behind (uuid,
//! shard), which never change, so what is written meanwhile neither repeats nor hides a document that stays.

use anabranch_pipeline::error::Fault;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{SearchTarget, hits};

/// Characters of a part of a code, at least: the trigrams of the index.
pub const PART_CHARACTERS_MIN: usize = 3;

/// What documents must have; everything that is given must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DocumentQuery {
    /// A part of any code, in either case.
    pub part: Option<String>,
    pub agent: Option<String>,
    pub warehouse: Option<String>,
    pub account: Option<String>,
    pub sku: Option<String>,
}

/// A place between two pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageEnd {
    pub uuid: String,
    pub shard_id: String,
}

/// A document as it stands: one claim of a device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FoundDocument {
    pub uuid: String,
    pub shard_id: String,
    pub source: String,
    pub database: String,
    pub table: String,
    pub lsn: u64,
    pub imei1: Option<String>,
    pub imei2: Option<String>,
    pub meid: Option<String>,
    pub box_no: Option<String>,
    pub item_code: Option<String>,
    pub first_agent_code: Option<String>,
    pub warehouse_code: Option<String>,
    pub account_id: Option<String>,
    pub sku_code: Option<String>,
}

/// Documents in the order of uuid and shard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    pub found: Vec<FoundDocument>,
    /// Where the next page begins; `None` = this is the last.
    pub next: Option<PageEnd>,
}

impl DocumentQuery {
    fn filter(&self) -> Value {
        let mut filter = vec![json!({ "term": { "withdrawn": false } })];
        let exact = [
            ("first_agent_code", &self.agent),
            ("warehouse_code", &self.warehouse),
            ("account_id", &self.account),
            ("sku_code", &self.sku),
        ];
        let given = exact.into_iter().filter_map(|(field, value)| Some((field, value.as_ref()?)));
        filter.extend(given.map(|(field, value)| json!({ "term": { field: value } })));
        filter.extend(self.part.iter().map(|part| json!({ "match_phrase": { "codes": part } })));
        Value::Array(filter)
    }
}

impl SearchTarget {
    /// The documents that answer a question behind `after`, at most `limit`. Seen is what the index has refreshed: a
    /// second old by default.
    pub async fn find(
        &self,
        alias: &str,
        question: &DocumentQuery,
        after: Option<&PageEnd>,
        limit: usize,
    ) -> Result<Page, Fault> {
        let mut query = json!({
            "size": limit + 1,
            "sort": [{ "uuid": "asc" }, { "shard_id": "asc" }],
            "query": { "bool": { "filter": question.filter() } },
        });
        if let Some(PageEnd { uuid, shard_id }) = after {
            query["search_after"] = json!([uuid, shard_id]);
        }
        let mut found: Vec<FoundDocument> = hits::find(self.client().await?, alias, &query).await?;
        let has_more = found.len() > limit;
        found.truncate(limit);
        let last = found.last().filter(|_| has_more);
        let next = last.map(|last| PageEnd { uuid: last.uuid.clone(), shard_id: last.shard_id.clone() });
        Ok(Page { found, next })
    }
}
