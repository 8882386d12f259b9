//! Stores the progress of lanes as documents of an index of its own.
//!
//! A document is read by its id, which shows every write at once. It is written only over the very version that was
//! read (`if_seq_no`, `if_primary_term`): that is a lane's fence. Once a projection was rebuilt, a document beside them
//! lists the indexes that its lanes write. It is read together with progress, so each flush knows the present ones.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::records::{LaneId, Progress};
use reqwest::StatusCode;
use serde::{Deserialize, Serializer as _};
use serde_json::Value as Json;

use super::client::Client;
use super::error::{TypedError, fault as fault_of};
use super::{SETUP_COMMAND, SearchTarget};
use crate::progress::{Enrolment, StoredProgress, Value, row};

/// A document that was read by its id.
#[derive(Debug, Deserialize)]
struct FetchedDocument {
    _id: String,
    #[serde(default)]
    found: bool,
    /// The error that replaces the other fields when the cluster could not read the document.
    error: Option<TypedError>,
    #[serde(default)]
    _seq_no: u64,
    #[serde(default)]
    _primary_term: u64,
    _source: Option<serde_json::Value>,
}

/// The version of a document that a write must find unchanged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Version {
    sequence: u64,
    term: u64,
}

fn document_id(lane: &LaneId) -> String {
    format!("{}:{}:{}", lane.projection, lane.source, lane.lane)
}

fn enrolled_id(projection: &str, source: &str) -> String {
    format!("enrolled:{projection}:{source}")
}

/// Returns the progress document of a lane; its fields are those of the index.
fn document(lane: &LaneId, lanes: u32, layout: &str, progress: &Progress) -> Vec<u8> {
    let mut document = Vec::new();
    serde_json::Serializer::new(&mut document)
        .collect_map(row(lane, lanes, layout, progress))
        .expect("texts and numbers are always JSON");
    document
}

fn stored(subject: &str, got: FetchedDocument) -> Result<StoredProgress, Fault> {
    let source = got._source.unwrap_or_default();
    let cell = |name: &'static str, _: bool| match source.get(name) {
        None | Some(Json::Null) => Some(Value::Null),
        Some(Json::Number(number)) => number.as_u64().map(Value::Number),
        Some(Json::String(text)) => Some(Value::Text(text.into())),
        Some(_) => None,
    };
    StoredProgress::read(cell).map_err(|invalid| {
        Fault::new(
            Code::TargetProgressLost,
            format!("{subject}, progress {}", got._id),
            "it holds no valid values",
        )
        .needs("the document as Anabranch wrote it")
        .remedy("restore the index of progress together with the documents")
        .caused_by(invalid)
    })
}

fn indexes_id(projection: &str) -> String {
    format!("indexes:{projection}")
}

/// A lane's progress and the version in which it was read.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) stored: StoredProgress,
    pub(super) version: Version,
    /// The indexes that the projection's lanes write, the serving one first; empty = none are stored.
    pub(super) indexes: Vec<String>,
}

#[derive(Deserialize)]
struct Documents {
    docs: Vec<FetchedDocument>,
}

/// Reads one lane's progress, its version for the next write, and the indexes of its projection.
pub(super) async fn read(client: &Client, target: &SearchTarget, lane: &LaneId) -> Result<Read, Fault> {
    let index = target.progress_index();
    let ids = [document_id(lane), indexes_id(&lane.projection)];
    let [got, noted]: [FetchedDocument; 2] =
        get_all(client, target, &ids).await?.try_into().map_err(|_| {
            Fault::new(Code::TargetUnreachable, target.subject(), "it did not answer for every document")
        })?;
    if !got.found {
        let found = format!("no document {} in {index}", got._id);
        return Err(Fault::new(Code::TargetProgressLost, format!("lane {lane}"), found)
            .needs("the document that set-up made")
            .remedy(format!("`{SETUP_COMMAND}` creates it for a new source, or prints how to begin anew")));
    }
    let version = Version { sequence: got._seq_no, term: got._primary_term };
    Ok(Read { stored: stored(&target.subject(), got)?, version, indexes: indexes_in(noted) })
}

/// Reads documents by their ids, in the order of the ids.
async fn get_all(
    client: &Client,
    target: &SearchTarget,
    ids: &[String],
) -> Result<Vec<FetchedDocument>, Fault> {
    let index = target.progress_index();
    let body = serde_json::json!({ "ids": ids }).to_string();
    let answer = client.post(&format!("/{index}/_mget"), body).await?.success(&format!(", index {index}"))?;
    let documents: Documents = answer.read()?;
    // A missing index, or a shard that no node has at present, is an error of each document.
    match documents.docs.iter().find_map(|got| got.error.as_ref()) {
        Some(error) => Err(unread(&format!("{}, index {index}", target.subject()), &error.kind)),
        None => Ok(documents.docs),
    }
}

/// Returns the fault of a document that the cluster could not read.
fn unread(subject: &str, kind: &str) -> Fault {
    let status = match kind {
        "index_not_found_exception" => StatusCode::NOT_FOUND,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    fault_of(subject, status, kind)
}

fn indexes_in(noted: FetchedDocument) -> Vec<String> {
    #[derive(Deserialize)]
    struct GenerationsRecord {
        indexes: Vec<String>,
    }
    let noted = noted._source.and_then(|source| serde_json::from_value::<GenerationsRecord>(source).ok());
    noted.map(|noted| noted.indexes).unwrap_or_default()
}

/// Reads the stored list of a projection's indexes.
pub(super) async fn read_indexes(
    client: &Client,
    target: &SearchTarget,
    projection: &str,
) -> Result<Vec<String>, Fault> {
    let found = get_all(client, target, &[indexes_id(projection)]).await?;
    Ok(found.into_iter().flat_map(indexes_in).collect())
}

/// Stores the list of indexes that a projection's lanes write: every flush that begins from now on writes all of them.
pub(super) async fn note_indexes(
    client: &Client,
    target: &SearchTarget,
    projection: &str,
    indexes: &[&str],
) -> Result<(), Fault> {
    let index = target.progress_index();
    let note = serde_json::json!({ "projection": projection, "indexes": indexes }).to_string();
    let path = format!("/{index}/_doc/{}", indexes_id(projection));
    client.put(&path, note).await?.success(&format!(", index {index}")).map(drop)
}

/// Removes a lane's progress document, if it exists.
pub(super) async fn remove(client: &Client, target: &SearchTarget, lane: &LaneId) -> Result<(), Fault> {
    let index = target.progress_index();
    let answer = client.delete(&format!("/{index}/_doc/{}", document_id(lane)), Vec::new()).await?;
    match answer.status {
        StatusCode::NOT_FOUND => Ok(()),
        _ => answer.success(&format!(", index {index}")).map(drop),
    }
}

/// Writes progress over the version that was read; returns false if another writer has changed it since.
pub(super) async fn replace(
    client: &Client,
    target: &SearchTarget,
    lane: &LaneId,
    read: &StoredProgress,
    version: Version,
    progress: &Progress,
) -> Result<bool, Fault> {
    let index = target.progress_index();
    let Version { sequence, term } = version;
    let path = format!("/{index}/_doc/{}?if_seq_no={sequence}&if_primary_term={term}", document_id(lane));
    let answer = client.put(&path, document(lane, read.lanes, &read.layout, progress)).await?;
    if answer.status == StatusCode::CONFLICT {
        return Ok(false);
    }
    answer.success(&format!(", index {index}")).map(|_| true)
}

/// Reads the progress of the configured lanes that have it.
pub(super) async fn read_all(target: &SearchTarget) -> Result<Vec<StoredProgress>, Fault> {
    Ok(read_enrolment(target.client().await?, target).await?.rows)
}

/// Reads the progress and enrolment of the configured lanes. The index must exist.
pub(super) async fn read_enrolment(client: &Client, target: &SearchTarget) -> Result<Enrolment, Fault> {
    let index = target.progress_index();
    let mut enrolment = Enrolment::at(format!("index {index}"));
    let mut pairs = Vec::new();
    let mut ids: Vec<String> = target.lane_ids().iter().map(document_id).collect();
    for assignment in target.0.assignments.iter() {
        for source in &assignment.sources {
            pairs.push((assignment.name.clone(), source.clone()));
            ids.push(enrolled_id(&assignment.name, source));
        }
    }
    if ids.is_empty() {
        return Ok(enrolment);
    }
    let documents = get_all(client, target, &ids).await?;
    let mut found: Vec<FetchedDocument> = documents.into_iter().filter(|got| got.found).collect();
    pairs.retain(|(projection, source)| {
        let id = enrolled_id(projection, source);
        found.iter().any(|got| got._id == id)
    });
    enrolment.enrolled.extend(pairs);
    found.retain(|got| !got._id.starts_with("enrolled:"));
    for got in found {
        enrolment.rows.push(stored(&target.subject(), got)?);
    }
    Ok(enrolment)
}

/// Whether the progress of any lane of a projection is stored, also of a source that left the configuration.
pub(super) async fn has_any_of(
    client: &Client,
    target: &SearchTarget,
    projection: &str,
) -> Result<bool, Fault> {
    let index = target.progress_index();
    let refreshed = client.post(&format!("/{index}/_refresh"), Vec::new()).await?;
    if refreshed.status == StatusCode::NOT_FOUND {
        return Ok(false);
    }
    refreshed.success(&format!(", index {index}"))?;
    let query = serde_json::json!({ "term": { "projection": projection } });
    Ok(client.count(&index, &query).await? > 0)
}

/// Writes the document of a lane whose progress is lost or damaged, over any version. A task that still runs the lane
/// finds another version than the one that it read, so its next write fails.
pub(super) async fn write_lost(
    client: &Client,
    target: &SearchTarget,
    (lane, progress): (&LaneId, &Progress),
    lanes: u32,
    layout: &str,
) -> Result<(), Fault> {
    let index = target.progress_index();
    let path = format!("/{index}/_doc/{}", document_id(lane));
    let answer = client.put(&path, document(lane, lanes, layout, progress)).await?;
    answer.success(&format!(", index {index}")).map(drop)
}

/// Creates the document of a new lane unless it exists; returns whether it created it.
pub(super) async fn create(
    client: &Client,
    target: &SearchTarget,
    lane: &LaneId,
    lanes: u32,
    layout: &str,
) -> Result<bool, Fault> {
    create_document(client, target, &document_id(lane), document(lane, lanes, layout, &Progress::default()))
        .await
}

/// Stores that the lanes of a source have got their progress.
pub(super) async fn enrol(
    client: &Client,
    target: &SearchTarget,
    projection: &str,
    source: &str,
) -> Result<(), Fault> {
    let note = serde_json::json!({ "projection": projection, "source": source }).to_string();
    create_document(client, target, &enrolled_id(projection, source), note.into()).await.map(drop)
}

/// Stores enrolments in one request: set-up takes a source of a known projection for new if its enrolment is missing.
pub(super) async fn enrol_all(
    client: &Client,
    target: &SearchTarget,
    pairs: &BTreeSet<(&str, &str)>,
) -> Result<(), Fault> {
    #[derive(Deserialize)]
    struct Reply {
        errors: bool,
    }
    let index = target.progress_index();
    let mut lines = String::new();
    for (projection, source) in pairs {
        let action = serde_json::json!({ "index": { "_id": enrolled_id(projection, source) } });
        let note = serde_json::json!({ "projection": projection, "source": source });
        let _ = writeln!(lines, "{action}\n{note}");
    }
    let thing = format!(", index {index}");
    let answer = client.post(&format!("/{index}/_bulk"), lines).await?.success(&thing)?;
    match answer.read::<Reply>()?.errors {
        false => Ok(()),
        true => Err(Fault::new(
            Code::TargetUnreachable,
            format!("{}{thing}", target.subject()),
            "it did not store every enrolment",
        )),
    }
}

async fn create_document(
    client: &Client,
    target: &SearchTarget,
    id: &str,
    document: Vec<u8>,
) -> Result<bool, Fault> {
    let index = target.progress_index();
    let answer = client.put(&format!("/{index}/_create/{id}"), document).await?;
    if answer.status == StatusCode::CONFLICT {
        return Ok(false);
    }
    answer.success(&format!(", index {index}")).map(|_| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Earlier versions wrote these very bytes.
    #[test]
    fn a_progress_document_has_the_fields_of_the_row_in_their_order() {
        let lane = LaneId { projection: "p".into(), target: "t".into(), source: "s".into(), lane: 1 };
        let progress = Progress { message: Some((7, "m".into())), rows: 3, ..Progress::default() };
        let document = document(&lane, 2, "l", &progress);
        let checksum = 2_614_435_880_u32;
        let expected = format!(
            "{{\"projection\":\"p\",\"source\":\"s\",\"lane\":1,\"lanes\":2,\"layout\":\"l\",\"revision\":0,\
             \"position\":0,\"highest_position\":0,\"highest_change\":0,\"resume_file\":\"\",\"resume_position\":0,\
             \"resume_gtid_set\":\"\",\"server_flavor\":\"\",\"server_id\":\"\",\"message_sequence\":7,\
             \"message_id\":\"m\",\"committed_at_us\":0,\"rows_applied\":3,\"refresh\":null,\
             \"checksum\":{checksum}}}"
        );
        assert_eq!(String::from_utf8(document).unwrap(), expected);
    }

    #[test]
    fn a_shard_that_is_away_is_no_missing_index() {
        let answer = |kind: &str| {
            format!(
                r#"{{"docs":[{{"_index":"i","_id":"a","error":{{"type":"{kind}","reason":"it is away"}}}}]}}"#
            )
        };
        for (kind, code) in [
            ("index_not_found_exception", Code::TargetTableMissing),
            ("no_shard_available_action_exception", Code::TargetUnreachable),
        ] {
            let documents: Documents = serde_json::from_str(&answer(kind)).unwrap();
            let error = documents.docs[0].error.as_ref().unwrap();
            let fault = unread("target s, index i", &error.kind);
            assert_eq!(fault.code(), code, "{fault}");
        }
    }
}
