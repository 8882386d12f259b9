//! `GET /v1/serials?…`: devices by any part of any code, and by agent, warehouse, account, SKU.
//!
//! Texts of the request are compared as they are; no part of them is a query language. Answers come from the search
//! documents, which lag about a second after the exact lookup, and are merged by uuid.

use anabranch_pipeline::error::Code;
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::{Deserialize, Serialize};

use super::problem::Problem;
use super::serials::malformed;
use crate::wiring::{Document, DocumentQuery, Documents, PART_CHARACTERS_MIN, PageEnd};

/// Documents a page, at most: as many as a person reads.
const LIMIT_MAX: usize = 100;
const LIMIT: usize = 20;
/// Bytes of a searched text, at most: longer than any code that search keeps whole.
const TEXT_BYTES_MAX: usize = 512;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchRequest {
    part: Option<String>,
    agent: Option<String>,
    warehouse: Option<String>,
    account: Option<String>,
    sku: Option<String>,
    limit: Option<usize>,
    after: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct SearchAnswer {
    devices: Vec<Device>,
    /// Start of the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

#[derive(Debug, Serialize)]
struct Device {
    uuid: String,
    /// One document for each table that has the device; more than one while it is being moved.
    documents: Vec<Document>,
}

impl SearchRequest {
    fn question(&self) -> Result<DocumentQuery, Problem> {
        let given = [
            ("part", &self.part),
            ("agent", &self.agent),
            ("warehouse", &self.warehouse),
            ("account", &self.account),
            ("sku", &self.sku),
        ];
        if given.iter().all(|(_, text)| text.is_none()) {
            return Err(malformed("one of part, agent, warehouse, account, sku is needed".to_owned()));
        }
        for (name, text) in given {
            let bytes = text.as_ref().map_or(1, String::len);
            if !(1..=TEXT_BYTES_MAX).contains(&bytes) {
                return Err(malformed(format!(
                    "{name} has {bytes} bytes; it can have 1 to {TEXT_BYTES_MAX}"
                )));
            }
        }
        let characters = self.part.as_ref().map_or(PART_CHARACTERS_MIN, |part| part.chars().count());
        if characters < PART_CHARACTERS_MIN {
            return Err(malformed(format!(
                "part has {characters} characters; it needs {PART_CHARACTERS_MIN} at least"
            )));
        }
        Ok(DocumentQuery {
            part: self.part.clone(),
            agent: self.agent.clone(),
            warehouse: self.warehouse.clone(),
            account: self.account.clone(),
            sku: self.sku.clone(),
        })
    }

    fn limit(&self) -> Result<usize, Problem> {
        let limit = self.limit.unwrap_or(LIMIT);
        if !(1..=LIMIT_MAX).contains(&limit) {
            return Err(malformed(format!("limit is {limit}; it can be 1 to {LIMIT_MAX}")));
        }
        Ok(limit)
    }

    fn after(&self) -> Result<Option<PageEnd>, Problem> {
        let Some(text) = &self.after else { return Ok(None) };
        let place =
            text.split_once(':').filter(|(shard, uuid)| shard.parse::<u64>().is_ok() && !uuid.is_empty());
        let (shard_id, uuid) =
            place.ok_or_else(|| malformed("after is not the `next` of a page".to_owned()))?;
        Ok(Some(PageEnd { uuid: uuid.to_owned(), shard_id: shard_id.to_owned() }))
    }
}

pub async fn find(
    State(documents): State<Option<Documents>>,
    wanted: Result<Query<SearchRequest>, QueryRejection>,
) -> Result<Json<SearchAnswer>, Problem> {
    let documents = documents.ok_or_else(unconfigured)?;
    let Query(wanted) = wanted.map_err(|rejection| malformed(rejection.body_text()))?;
    let (question, limit, after) = (wanted.question()?, wanted.limit()?, wanted.after()?);
    let page =
        documents.find(&question, after.as_ref(), limit).await.map_err(|fault| Problem::from(&fault))?;
    let next = page.next.map(|place| format!("{}:{}", place.shard_id, place.uuid));
    // Documents are ordered by uuid, so those of one device follow one another.
    let of_device = page.found.chunk_by(|one, other| one.uuid == other.uuid);
    let device =
        |documents: &[Document]| Device { uuid: documents[0].uuid.clone(), documents: documents.to_vec() };
    Ok(Json(SearchAnswer { devices: of_device.map(device).collect(), next }))
}

fn unconfigured() -> Problem {
    let detail = "this daemon's configuration has no search documents";
    Problem::new(Code::SearchUnconfigured, detail, "see deploy/serial-codes.example.toml")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(part: Option<&str>, limit: Option<usize>, after: Option<&str>) -> SearchRequest {
        SearchRequest {
            part: part.map(str::to_owned),
            agent: None,
            warehouse: None,
            account: None,
            sku: None,
            limit,
            after: after.map(str::to_owned),
        }
    }

    #[test]
    fn what_cannot_be_asked_is_refused() {
        for part in [None, Some(""), Some("ab"), Some(&*"x".repeat(TEXT_BYTES_MAX + 1))] {
            assert!(wanted(part, None, None).question().is_err(), "{part:?}");
        }
        assert!(wanted(Some("äöü"), None, None).question().is_ok(), "characters, and not bytes");
        for limit in [0, LIMIT_MAX + 1] {
            assert!(wanted(None, Some(limit), None).limit().is_err(), "{limit}");
        }
        for after in ["", "7", "x:7", "7:"] {
            assert!(wanted(None, None, Some(after)).after().is_err(), "{after}");
        }
        let place = wanted(None, None, Some("7:a:b")).after().unwrap().unwrap();
        assert_eq!((place.shard_id.as_str(), place.uuid.as_str()), ("7", "a:b"));
    }
}
