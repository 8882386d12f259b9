//! Parses a search's answer, and pages through all documents that a query finds.
//!
//! A missing part of an answer is a fault: it must not look like a search that found nothing.

use anabranch_pipeline::error::Fault;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::client::Client;

/// Time for which the server keeps the position between two pages.
const SCROLL_KEEP_ALIVE: &str = "2m";
/// Asks for the whole list of hits: filters on its parts would leave nothing of an empty list.
const PARTS: &str = "filter_path=_scroll_id,hits.hits";

#[derive(Deserialize)]
struct Response<H> {
    hits: Hits<H>,
}

#[derive(Deserialize)]
struct Page<H> {
    _scroll_id: String,
    hits: Hits<H>,
}

#[derive(Deserialize)]
struct Hits<H> {
    hits: Vec<H>,
}

#[derive(Deserialize)]
struct Sourced<D> {
    _source: D,
}

/// Id and version of a document as a search found it.
#[derive(Debug, Deserialize)]
pub(super) struct FoundDocument {
    #[serde(rename = "_id")]
    pub(super) id: String,
    #[serde(rename = "_seq_no")]
    pub(super) sequence: u64,
    #[serde(rename = "_primary_term")]
    pub(super) term: u64,
}

/// Returns the hits of a query, as many as it asks for.
pub(super) async fn search<H: DeserializeOwned>(
    client: &Client,
    index: &str,
    query: &Value,
) -> Result<Vec<H>, Fault> {
    let path = format!("/{index}/_search?allow_partial_search_results=false&{PARTS}");
    let answer = client.post(&path, query.to_string()).await?.success(&format!(", index {index}"))?;
    Ok(answer.read::<Response<H>>()?.hits.hits)
}

/// Returns the documents that a query finds, as many as it asks for.
pub(super) async fn find<D: DeserializeOwned>(
    client: &Client,
    index: &str,
    query: &Value,
) -> Result<Vec<D>, Fault> {
    let hits: Vec<Sourced<D>> = search(client, index, query).await?;
    Ok(hits.into_iter().map(|hit| hit._source).collect())
}

/// Pages of all documents that a query found when its first page was read.
pub(super) struct Pages<'c> {
    client: &'c Client,
    thing: String,
    /// Path of the request for the next page.
    path: String,
    body: String,
}

impl<'c> Pages<'c> {
    /// Prepares the first page. `query` has the size of a page, and asks for sequence numbers and no sources.
    pub(super) fn of(client: &'c Client, index: &str, query: &Value) -> Self {
        let path =
            format!("/{index}/_search?scroll={SCROLL_KEEP_ALIVE}&allow_partial_search_results=false&{PARTS}");
        Self { client, thing: format!(", index {index}"), path, body: query.to_string() }
    }

    /// Returns the next page; an empty one is the end.
    pub(super) async fn next(&mut self) -> Result<Vec<FoundDocument>, Fault> {
        let body = std::mem::take(&mut self.body);
        let answer = self.client.post(&self.path, body).await?.success(&self.thing)?;
        let Page { _scroll_id: scroll, hits: Hits { hits } } = answer.read::<Page<FoundDocument>>()?;
        if hits.is_empty() {
            // Without this the server would keep the position for [`SCROLL_KEEP_ALIVE`].
            self.client.delete("/_search/scroll", json!({ "scroll_id": scroll }).to_string()).await?;
        }
        self.path = format!("/_search/scroll?{PARTS}");
        self.body = json!({ "scroll": SCROLL_KEEP_ALIVE, "scroll_id": scroll }).to_string();
        Ok(hits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_without_its_list_of_hits_is_no_search_that_found_nothing() {
        let read = |text| serde_json::from_str::<Response<Sourced<u8>>>(text);
        assert!(read(r#"{"hits":{"hits":[]}}"#).is_ok_and(|answer| answer.hits.hits.is_empty()));
        for missing in ["{}", r#"{"hits":{}}"#, r#"{"hits":{"hits":[{}]}}"#] {
            assert!(read(missing).is_err(), "{missing}");
        }
        assert!(serde_json::from_str::<Page<FoundDocument>>(r#"{"hits":{"hits":[]}}"#).is_err());
    }
}
