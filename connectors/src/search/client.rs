//! Requests to a cluster and their answers: TLS, account, time-outs, and pauses for a busy cluster.
//!
//! Status 429 is no failure: the request is repeated after a growing pause. The caller judges every other answer.

use std::path::Path;
use std::time::Duration;

use anabranch_pipeline::config::ServerUrl;
use anabranch_pipeline::error::{Code, Fault};
use bytes::Bytes;
use rand::RngExt;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, StatusCode};
use rustls::RootCertStore;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::error::{fault_of, is_busy_answer};
use crate::refusals::Account;
use crate::tls;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Wait for an answer: enough for a bulk of megabytes on a busy cluster, and a frozen cluster is given up.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(3);
/// A cluster that is busy for longer is a fault that an operator should see.
const BUSY_BUDGET: Duration = Duration::from_secs(60);

/// A client of one cluster.
#[derive(Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    url: ServerUrl,
    account: Account,
    subject: String,
}

/// The answer to a request.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: StatusCode,
    body: Bytes,
    subject: String,
}

impl Response {
    /// Parses the body.
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, Fault> {
        // The parser's error quotes values of the wrong type, so it is left out.
        serde_json::from_slice(&self.body).map_err(|_| self.odd())
    }

    /// Returns the fault of an answer that cannot be understood.
    pub(super) fn odd(&self) -> Fault {
        Fault::new(Code::TargetRejected, &self.subject, "its answer cannot be understood")
            .needs("OpenSearch or Elasticsearch at this address")
    }

    /// Returns the fault of a status that is no success.
    pub(super) fn fault(&self, thing: &str) -> Fault {
        fault_of(&format!("{}{thing}", self.subject), self.status, &self.body)
    }

    /// Returns the answer if its status is a success, and its fault otherwise.
    pub(super) fn success(self, thing: &str) -> Result<Self, Fault> {
        if self.status.is_success() { Ok(self) } else { Err(self.fault(thing)) }
    }
}

impl Client {
    pub(super) fn new(subject: String, url: &ServerUrl, ca_file: Option<&Path>) -> Result<Self, Fault> {
        let unusable = |found: &str| Fault::new(Code::TargetAccessDenied, &subject, found);
        // The library needs TLS set up even for an address without it.
        let tls = match url.scheme() {
            "https" => tls::client_config(ca_file)
                .map_err(|error| unusable("no CA certificate could be loaded").caused_by(error))?,
            _ => tls::trusting(RootCertStore::empty())
                .map_err(|error| unusable("TLS cannot be set up").caused_by(error))?,
        };
        let builder = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(ANSWER_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .tls_backend_preconfigured(tls);
        let http = builder.build().map_err(|error| unusable("the client cannot be made").caused_by(error))?;
        Ok(Self { http, url: url.clone(), account: Account::of(url, ca_file), subject })
    }

    /// The cluster, as faults name it.
    pub(super) fn subject(&self) -> &str {
        &self.subject
    }

    pub(super) async fn get(&self, path: &str) -> Result<Response, Fault> {
        self.ask(Method::GET, path, Bytes::new()).await
    }

    pub(super) async fn put(&self, path: &str, body: impl Into<Bytes>) -> Result<Response, Fault> {
        self.ask(Method::PUT, path, body.into()).await
    }

    pub(super) async fn post(&self, path: &str, body: impl Into<Bytes>) -> Result<Response, Fault> {
        self.ask(Method::POST, path, body.into()).await
    }

    pub(super) async fn delete(&self, path: &str, body: impl Into<Bytes>) -> Result<Response, Fault> {
        self.ask(Method::DELETE, path, body.into()).await
    }

    /// Asks for a head without a body; any answer will do but one that refuses the account.
    pub(super) async fn reach(&self) -> Result<(), Fault> {
        let asking = self.ask_once(Method::HEAD, "/", Bytes::new());
        self.account.connect(Code::TargetAccessDenied, &self.subject, asking).await.map(drop)
    }

    /// Lets the next searches and counts find everything that was written to an index.
    pub(super) async fn refresh(&self, index: &str) -> Result<(), Fault> {
        let answer = self.post(&format!("/{index}/_refresh"), Vec::new()).await?;
        answer.success(&format!(", index {index}")).map(drop)
    }

    /// Counts the documents of an index that a query finds, as of its last refresh.
    pub(super) async fn count(&self, index: &str, query: &Value) -> Result<u64, Fault> {
        #[derive(Deserialize)]
        struct Reply {
            count: u64,
        }
        let body = json!({ "query": query }).to_string();
        let answer = self.post(&format!("/{index}/_count"), body).await?;
        Ok(answer.success(&format!(", index {index}"))?.read::<Reply>()?.count)
    }

    /// Repeats the request until the cluster is not too busy to answer, within [`BUSY_BUDGET`].
    async fn ask(&self, method: Method, path: &str, body: Bytes) -> Result<Response, Fault> {
        let mut busy_retry = BusyRetry::new();
        loop {
            let asking = self.ask_once(method.clone(), path, body.clone());
            let answer = self.account.connect(Code::TargetAccessDenied, &self.subject, asking).await?;
            if !is_busy_answer(answer.status, &answer.body) {
                return Ok(answer);
            }
            busy_retry.pause(|| answer.fault("")).await?;
        }
    }

    /// Sends the request once; an answer that refuses the account is a fault.
    async fn ask_once(&self, method: Method, path: &str, body: Bytes) -> Result<Response, Fault> {
        let url = format!("{}://{}{path}", self.url.scheme(), self.url.address());
        let mut request = self.http.request(method, url);
        if !self.url.user().is_empty() {
            request = request.basic_auth(self.url.user(), Some(self.url.password().expose()));
        }
        if !body.is_empty() {
            let lines = path.contains("/_bulk");
            request =
                request.header(CONTENT_TYPE, if lines { "application/x-ndjson" } else { "application/json" });
        }
        let answered = async {
            let response = request.body(body).send().await?;
            Ok((response.status(), response.bytes().await?))
        };
        let (status, body) = answered.await.map_err(|error| self.broken(error))?;
        let answer = Response { status, body, subject: self.subject.clone() };
        if status == StatusCode::UNAUTHORIZED { Err(answer.fault("")) } else { Ok(answer) }
    }

    /// The fault of a request without an answer. The address holds the path of a document, so it is removed.
    fn broken(&self, error: reqwest::Error) -> Fault {
        let error = error.without_url();
        if tls::is_beneath(&error) {
            return Fault::new(Code::TargetAccessDenied, &self.subject, "TLS failed")
                .needs("a certificate that is signed by an authority of `ca_file`")
                .caused_by(error);
        }
        Fault::new(Code::TargetUnreachable, &self.subject, "the connection failed").caused_by(error)
    }
}

/// Growing pauses, up to a budget.
#[derive(Debug)]
pub(super) struct BusyRetry {
    began: Instant,
    next: Duration,
}

impl BusyRetry {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), next: PAUSE_FIRST }
    }

    /// Waits; the fault once the budget is spent. Its random part separates lanes that were refused together.
    pub(super) async fn pause(&mut self, fault: impl FnOnce() -> Fault) -> Result<(), Fault> {
        if self.began.elapsed() >= BUSY_BUDGET {
            return Err(fault());
        }
        let pause = self.next.mul_f64(rand::rng().random_range(0.5..1.0));
        self.next = (self.next * 2).min(PAUSE_MAX);
        tracing::debug!(pause_milliseconds = pause.as_millis(), "the cluster is busy");
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_tls_needs_no_certificates() {
        let url = ServerUrl::try_from("http://127.0.0.1:9200".to_owned()).unwrap();
        assert!(Client::new("search".to_owned(), &url, None).is_ok());
    }
}
