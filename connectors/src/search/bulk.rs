//! Writes and removes many documents in few requests.
//!
//! Each document is written under its own version. Status 409 is a success: a newer version exists, or the document to
//! remove was changed after it was found. A refused document (400) is returned, because no repetition helps it. A busy
//! server (429) gets the refused documents again after a pause. Any other status ends the whole flush, which does no
//! harm: it is repeated.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::search::writing_alias;
use futures::TryStreamExt;
use futures::stream::FuturesUnordered;
use reqwest::StatusCode;
use serde::{Deserialize, Serialize};

use super::client::{BusyRetry, Client};
use super::error::{TypedError, fault, is_busy};
use super::hits::FoundDocument;

/// Bytes of a request: well below the 100 MB that servers take, and enough that the round trip does not count.
const REQUEST_BYTES: usize = 2 * 1024 * 1024;
/// Requests of one lane at the same time: one is written while the next is read.
const REQUESTS_AT_ONCE: usize = 2;

/// One document to write.
#[derive(Debug, Clone)]
pub(super) struct Document {
    pub(super) id: String,
    pub(super) lsn: Lsn,
    /// The document itself, one line of JSON.
    pub(super) source: Vec<u8>,
}

/// One document's operation in a bulk request.
pub(super) trait Operation {
    fn bytes(&self) -> usize;
    /// Appends the operation's lines to the body of a request.
    fn append_to(&self, body: &mut Vec<u8>);
    /// Returns the document if it can be one that the server will never take.
    fn rejected(&self, reason: String) -> Option<Rejected>;
}

impl Operation for Document {
    fn bytes(&self) -> usize {
        self.id.len() + self.source.len()
    }

    fn append_to(&self, body: &mut Vec<u8>) {
        let version = self.lsn.as_u64();
        append_line(body, &Action::Index { _id: &self.id, version, version_type: "external_gte" });
        body.extend_from_slice(&self.source);
        body.push(b'\n');
    }

    fn rejected(&self, reason: String) -> Option<Rejected> {
        Some(Rejected { id: self.id.clone(), lsn: self.lsn, reason })
    }
}

impl Operation for FoundDocument {
    fn bytes(&self) -> usize {
        self.id.len()
    }

    fn append_to(&self, body: &mut Vec<u8>) {
        append_line(
            body,
            &Action::Delete { _id: &self.id, if_seq_no: self.sequence, if_primary_term: self.term },
        );
    }

    fn rejected(&self, _: String) -> Option<Rejected> {
        None
    }
}

/// The line before a document; a removal has no other line.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Action<'d> {
    Index { _id: &'d str, version: u64, version_type: &'static str },
    Delete { _id: &'d str, if_seq_no: u64, if_primary_term: u64 },
}

fn append_line(body: &mut Vec<u8>, action: &Action<'_>) {
    serde_json::to_writer(&mut *body, action).expect("texts and numbers are always JSON");
    body.push(b'\n');
}

/// A document that the server will never take.
#[derive(Debug)]
pub(super) struct Rejected {
    pub(super) id: String,
    pub(super) lsn: Lsn,
    /// The server's type of error.
    pub(super) reason: String,
}

#[derive(Deserialize)]
struct BulkAnswer {
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    #[serde(alias = "delete")]
    index: Outcome,
}

#[derive(Deserialize)]
struct Outcome {
    status: u16,
    error: Option<TypedError>,
}

/// Writes or removes the documents, whose ids must all differ; returns the refused ones.
pub(super) async fn write<O: Operation>(
    client: &Client,
    index: &str,
    documents: &[O],
) -> Result<Vec<Rejected>, Fault> {
    let mut rejected = Vec::new();
    let mut under_way = FuturesUnordered::new();
    for request in requests(documents) {
        if under_way.len() == REQUESTS_AT_ONCE {
            rejected.extend(under_way.try_next().await?.unwrap_or_default());
        }
        under_way.push(send(client, index, request));
    }
    while let Some(more) = under_way.try_next().await? {
        rejected.extend(more);
    }
    Ok(rejected)
}

/// Cuts the documents into requests of bounded size.
fn requests<O: Operation>(documents: &[O]) -> Vec<Vec<&O>> {
    let mut requests: Vec<Vec<&O>> = Vec::new();
    let mut bytes = REQUEST_BYTES;
    for document in documents {
        let size = document.bytes();
        if bytes + size > REQUEST_BYTES {
            requests.push(Vec::new());
            bytes = 0;
        }
        bytes += size;
        requests.last_mut().expect("the first document begins a request").push(document);
    }
    requests
}

async fn send<O: Operation>(
    client: &Client,
    index: &str,
    mut documents: Vec<&O>,
) -> Result<Vec<Rejected>, Fault> {
    // `require_alias` keeps the server from creating a missing index with guessed fields: it never creates an alias.
    let path = format!(
        "/{}/_bulk?require_alias=true&filter_path=items.*.status,items.*.error.type",
        writing_alias(index)
    );
    let mut busy_retry = BusyRetry::new();
    let mut rejected = Vec::new();
    loop {
        let thing = format!(", index {index}");
        let answer: BulkAnswer = client.post(&path, body(&documents)).await?.success(&thing)?.read()?;
        if answer.items.len() != documents.len() {
            let subject = format!("{}{thing}", client.subject());
            return Err(Fault::new(Code::TargetUnreachable, subject, "it did not answer for every document"));
        }
        let mut busy = Vec::new();
        for (document, Item { index: outcome }) in documents.into_iter().zip(answer.items) {
            let status = StatusCode::from_u16(outcome.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            let reason = outcome.error.map(|error| error.kind).unwrap_or_default();
            match status {
                status if status.is_success() => {}
                StatusCode::CONFLICT => {}
                status if is_busy(status, &reason) => busy.push(document),
                status => {
                    match document.rejected(reason.clone()).filter(|_| status == StatusCode::BAD_REQUEST) {
                        Some(refused) => rejected.push(refused),
                        None => return Err(fault(&format!("{}{thing}", client.subject()), status, &reason)),
                    }
                }
            }
        }
        if busy.is_empty() {
            return Ok(rejected);
        }
        let refused = || fault(&format!("{}{thing}", client.subject()), StatusCode::TOO_MANY_REQUESTS, "");
        busy_retry.pause(refused).await?;
        documents = busy;
    }
}

fn body(documents: &[&impl Operation]) -> Vec<u8> {
    let mut body = Vec::new();
    documents.iter().for_each(|document| document.append_to(&mut body));
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(bytes: usize) -> Document {
        Document { id: "1-2".into(), lsn: Lsn::ZERO, source: vec![b'x'; bytes] }
    }

    #[test]
    fn requests_are_bounded_and_hold_every_document_once() {
        let sizes = [10, REQUEST_BYTES - 20, 10, 10, 3 * REQUEST_BYTES, 10];
        let documents: Vec<Document> = sizes.into_iter().map(document).collect();
        let lengths: Vec<usize> = requests(&documents).iter().map(Vec::len).collect();
        assert_eq!(lengths, [2, 2, 1, 1]);
        assert!(requests::<Document>(&[]).is_empty());
    }
}
