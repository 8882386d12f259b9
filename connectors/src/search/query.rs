//! Finds documents for people: by any part of any code, and by agent, warehouse, account, SKU.
//!
//! A part of a code is a phrase of trigrams, so it is found anywhere in a code, in either case, without a scan of all
//! codes; it must have three characters. No part of a query is parsed as a query language. The next page begins after
//! (uuid, shard), which never change, so concurrent writes neither repeat nor hide a document that stays.

use anabranch_pipeline::error::Fault;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{SearchTarget, hits};

/// Least characters of a part of a code: the trigrams of the index.
pub const PART_CHARACTERS_MIN: usize = 3;

/// Conditions on documents; every given one must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DocumentQuery {
    /// A part of any code, in either case.
    pub part: Option<String>,
    pub agent: Option<String>,
    pub warehouse: Option<String>,
    pub account: Option<String>,
    pub sku: Option<String>,
}

/// The position between two pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageEnd {
    pub uuid: String,
    pub shard_id: String,
}

/// A document in the index: one claim of a device.
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
    /// The position at which the next page begins; `None` = this is the last page.
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
    /// Returns at most `limit` documents that answer a query, after `after`. It sees the documents that the index has
    /// refreshed: by default they are a second old.
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
