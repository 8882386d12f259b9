//! Many versioned documents in few requests.
//!
//! Each document is written under its own version: what already stands in a newer one stays, which the server says with
//! status 409, and that is a success. A refused document (400) is given back, since no repetition helps it; a busy
//! server (429) gets the documents that it refused again after a pause. Anything else ends the whole flush, which is
//! harmless: it is repeated.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::search::writing_alias;
use futures::TryStreamExt;
use futures::stream::FuturesUnordered;
use reqwest::StatusCode;
use serde::{Deserialize, Serialize};

use super::client::{Client, Patience};
use super::error::{TypedError, fault};

/// Well below the 100 MB that servers take, and enough that the round trip does not count.
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

/// A document that the server will never take.
#[derive(Debug)]
pub(super) struct Rejected {
    pub(super) id: String,
    pub(super) lsn: Lsn,
    /// The server's word for it.
    pub(super) reason: String,
}

#[derive(Serialize)]
struct ActionLine<'d> {
    index: Action<'d>,
}

#[derive(Serialize)]
struct Action<'d> {
    _id: &'d str,
    version: u64,
    version_type: &'static str,
}

#[derive(Deserialize)]
struct BulkAnswer {
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    index: Outcome,
}

#[derive(Deserialize)]
struct Outcome {
    status: u16,
    error: Option<TypedError>,
}

/// Writes the documents, which must all be different ones; those that were refused.
pub(super) async fn write(
    client: &Client,
    index: &str,
    documents: &[Document],
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
fn requests(documents: &[Document]) -> Vec<Vec<&Document>> {
    let mut requests: Vec<Vec<&Document>> = Vec::new();
    let mut bytes = REQUEST_BYTES;
    for document in documents {
        let size = document.id.len() + document.source.len();
        if bytes + size > REQUEST_BYTES {
            requests.push(Vec::new());
            bytes = 0;
        }
        bytes += size;
        requests.last_mut().expect("the first document begins a request").push(document);
    }
    requests
}

async fn send(client: &Client, index: &str, mut documents: Vec<&Document>) -> Result<Vec<Rejected>, Fault> {
    // An index that is gone must not be made by the server, which would guess the fields: an alias it never makes.
    let path = format!(
        "/{}/_bulk?require_alias=true&filter_path=items.*.status,items.*.error.type",
        writing_alias(index)
    );
    let mut patience = Patience::new();
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
                StatusCode::TOO_MANY_REQUESTS => busy.push(document),
                StatusCode::BAD_REQUEST => {
                    rejected.push(Rejected { id: document.id.clone(), lsn: document.lsn, reason });
                }
                status => return Err(fault(&format!("{}{thing}", client.subject()), status, &reason)),
            }
        }
        if busy.is_empty() {
            return Ok(rejected);
        }
        let refused = || fault(&format!("{}{thing}", client.subject()), StatusCode::TOO_MANY_REQUESTS, "");
        patience.pause(refused).await?;
        documents = busy;
    }
}

fn body(documents: &[&Document]) -> Vec<u8> {
    let mut body = Vec::new();
    for document in documents {
        let version = document.lsn.as_u64();
        let action =
            ActionLine { index: Action { _id: &document.id, version, version_type: "external_gte" } };
        serde_json::to_writer(&mut body, &action).expect("texts and numbers are always JSON");
        body.push(b'\n');
        body.extend_from_slice(&document.source);
        body.push(b'\n');
    }
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
        assert!(requests(&[]).is_empty());
    }
}
