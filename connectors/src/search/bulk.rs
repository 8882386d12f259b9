//! Writes and removes many documents in few requests.
//!
//! Each document is written under its own version. Status 409 is a success: a newer version exists, or the document to
//! remove was changed after it was found. A refused document (400) is returned, because no repetition helps it. A busy
//! server (429) gets the refused documents again after a pause. A request that is too large (413), as a proxy may find
//! it, is sent again as two halves. Their order does not matter: each document has an id of its own. Any other status
//! ends the whole flush, which does no harm: it is repeated.

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
/// Reason of a document that is too large for a request of its own. A proxy answers with no type of error.
const TOO_LARGE: &str = "status 413";

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
    documents: Vec<&O>,
) -> Result<Vec<Rejected>, Fault> {
    // `require_alias` keeps the server from creating a missing index with guessed fields: it never creates an alias.
    let path = format!(
        "/{}/_bulk?require_alias=true&filter_path=items.*.status,items.*.error.type",
        writing_alias(index)
    );
    let thing = format!(", index {index}");
    let mut busy_retry = BusyRetry::new();
    let (mut rejected, mut requests) = (Vec::new(), vec![documents]);
    while let Some(mut documents) = requests.pop() {
        let response = client.post(&path, body(&documents)).await?;
        if response.status == StatusCode::PAYLOAD_TOO_LARGE {
            if documents.len() > 1 {
                requests.push(documents.split_off(documents.len() / 2));
                requests.push(documents);
                continue;
            }
            let refused = documents.first().and_then(|document| document.rejected(TOO_LARGE.to_owned()));
            rejected.push(refused.ok_or_else(|| response.fault(&thing))?);
            continue;
        }
        let answer: BulkAnswer = response.success(&thing)?.read()?;
        let busy = judge(client, &thing, (documents, answer), &mut rejected)?;
        if !busy.is_empty() {
            let refused =
                || fault(&format!("{}{thing}", client.subject()), StatusCode::TOO_MANY_REQUESTS, "");
            busy_retry.pause(refused).await?;
            requests.push(busy);
        }
    }
    Ok(rejected)
}

/// Adds the documents that the server will never take to `rejected`; returns those that it is too busy to take now.
fn judge<'d, O: Operation>(
    client: &Client,
    thing: &str,
    (documents, answer): (Vec<&'d O>, BulkAnswer),
    rejected: &mut Vec<Rejected>,
) -> Result<Vec<&'d O>, Fault> {
    let subject = format!("{}{thing}", client.subject());
    if answer.items.len() != documents.len() {
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
            status => match document.rejected(reason.clone()).filter(|_| status == StatusCode::BAD_REQUEST) {
                Some(refused) => rejected.push(refused),
                None => return Err(fault(&subject, status, &reason)),
            },
        }
    }
    Ok(busy)
}

fn body(documents: &[&impl Operation]) -> Vec<u8> {
    let mut body = Vec::new();
    documents.iter().for_each(|document| document.append_to(&mut body));
    body
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use anabranch_pipeline::config::ServerUrl;
    use bytes::Bytes;
    use http_body_util::{BodyExt, Full};
    use hyper::body::Incoming;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use serde_json::{Value, json};
    use tokio::net::TcpListener;

    use super::*;

    /// Largest request that the server takes, as a proxy before a cluster has a limit.
    const LIMIT: usize = 1_000;

    fn document(bytes: usize) -> Document {
        Document { id: "1-2".into(), lsn: Lsn::ZERO, source: vec![b'x'; bytes] }
    }

    /// Takes documents of requests within [`LIMIT`], and refuses larger requests as a proxy does.
    async fn serve(listener: TcpListener, taken: Arc<Mutex<Vec<String>>>) {
        while let Ok((stream, _)) = listener.accept().await {
            let taken = Arc::clone(&taken);
            let service = service_fn(move |request: hyper::Request<Incoming>| {
                let taken = Arc::clone(&taken);
                async move {
                    let body = request.into_body().collect().await?.to_bytes();
                    Ok::<_, hyper::Error>(answer(&body, &taken))
                }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    }

    fn answer(body: &[u8], taken: &Mutex<Vec<String>>) -> hyper::Response<Full<Bytes>> {
        if body.len() > LIMIT {
            let mut refusal = hyper::Response::new(Full::from("<html>413 Request Entity Too Large</html>"));
            *refusal.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
            return refusal;
        }
        let id = |line: &[u8]| {
            let action: Value = serde_json::from_slice(line).ok()?;
            Some(action["index"]["_id"].as_str()?.to_owned())
        };
        let ids: Vec<String> = body.split(|byte| *byte == b'\n').filter_map(id).collect();
        let items = vec![json!({ "index": { "status": 200 } }); ids.len()];
        taken.lock().unwrap().extend(ids);
        hyper::Response::new(Full::from(json!({ "items": items }).to_string()))
    }

    #[tokio::test]
    async fn a_request_that_is_too_large_is_halved_until_each_document_is_sent_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = ServerUrl::try_from(format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let client = Client::new("target s".to_owned(), &url, None).unwrap();
        let taken = Arc::default();
        tokio::spawn(serve(listener, Arc::clone(&taken)));

        // No request can hold the fourth one.
        let sizes = [300, 10, 600, 2 * LIMIT, 10, 300, 10];
        let numbered = |(id, bytes): (usize, usize)| Document { id: format!("1-{id}"), ..document(bytes) };
        let documents: Vec<Document> = sizes.into_iter().enumerate().map(numbered).collect();
        let rejected = write(&client, "documents-v1", &documents).await.unwrap();
        let rejected: Vec<_> = rejected.iter().map(|one| (one.id.as_str(), one.reason.as_str())).collect();
        assert_eq!(rejected, [("1-3", TOO_LARGE)]);
        let mut taken = std::mem::take(&mut *taken.lock().unwrap());
        taken.sort();
        assert_eq!(taken, ["1-0", "1-1", "1-2", "1-4", "1-5", "1-6"]);

        let found = FoundDocument { id: "x".repeat(2 * LIMIT), sequence: 1, term: 1 };
        let fault = write(&client, "documents-v1", &[found]).await.unwrap_err();
        assert_eq!(fault.code(), Code::TargetRejected, "{fault}");
        assert!(fault.to_string().contains("status 413"), "{fault}");
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
