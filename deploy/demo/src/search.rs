//! An OpenSearch node for an auditor: with its administrator's account, over verified TLS.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anabranch_stack::Stack;
use backoff::ExponentialBackoffBuilder;
use backoff::backoff::Backoff;
use reqwest::{Client, Method, StatusCode};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};

use crate::endpoint::SILENCE_MAX;
use crate::error::{DemoError, Result};

/// Documents in a page.
const PAGE_DOCUMENTS: usize = 2_000;
/// Limit of retries: a node that has no room for a request for so long has no room for the demo.
const BUSY_BUDGET: Duration = Duration::from_secs(60);

/// Address and account of one node. Cheap to clone; keeps its connections.
#[derive(Clone)]
pub struct SearchServer {
    /// Name of the server in the stack, and of the target in the daemon's configuration.
    pub name: String,
    admin_url: String,
    /// Token that every request has, for a server that wants one.
    token: Option<String>,
    client: Client,
}

impl SearchServer {
    /// Returns a server of the stack, with the account that may do everything.
    pub fn admin(stack: &Stack, name: &str) -> Result<Self> {
        let roots = authority(&stack.ca_file()).map_err(|reason| failed(name, "connect", reason))?;
        Self::at(name, stack.server(name)?.admin_url(), roots)
    }

    /// Returns any server without TLS.
    pub fn without_tls(name: &str, url: String) -> Result<Self> {
        Self::at(name, url, RootCertStore::empty())
    }

    fn at(name: &str, admin_url: String, roots: RootCertStore) -> Result<Self> {
        let client = client(roots).map_err(|reason| failed(name, "connect", reason))?;
        Ok(Self { name: name.to_owned(), admin_url, token: None, client })
    }

    /// Returns the same server, which is asked with a token.
    #[must_use]
    pub fn with_token(self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self }
    }

    /// Sends a request and returns its answer; an error status is an error. `Null` sends no body.
    pub async fn ask(&self, action: &'static str, method: Method, path: &str, body: Value) -> Result<Value> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send(action, method, path, body).await
    }

    /// Sends a body that is not one value, see [`Self::ask`]. Repeats it when the node is too busy (429).
    pub async fn send(
        &self,
        action: &'static str,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<Value> {
        let mut pauses = ExponentialBackoffBuilder::new().with_max_elapsed_time(Some(BUSY_BUDGET)).build();
        loop {
            let request = self.client.request(method.clone(), format!("{}/{path}", self.admin_url));
            let request = request.header("Content-Type", "application/json").body(body.clone());
            let request = match &self.token {
                Some(token) => request.bearer_auth(token),
                None => request,
            };
            let answer = request.send().await;
            // The address is removed, because it holds the password.
            let failed = |error: reqwest::Error| self.failed(action, error.without_url().to_string());
            let answer = answer.map_err(failed)?;
            let status = answer.status();
            let text = answer.text().await.map_err(failed)?;
            if status == StatusCode::TOO_MANY_REQUESTS
                && let Some(pause) = pauses.next_backoff()
            {
                tokio::time::sleep(pause).await;
                continue;
            }
            if !status.is_success() {
                return Err(self.failed(action, format!("{status}: {text}")));
            }
            return serde_json::from_str(&text).map_err(|error| self.failed(action, error.to_string()));
        }
    }

    /// Returns every hit of a query, with version and source; refreshes the index first.
    pub async fn hits(&self, action: &'static str, index: &str, query: Value) -> Result<Vec<Value>> {
        self.ask(action, Method::POST, &format!("{index}/_refresh"), Value::Null).await?;
        let body = json!({ "size": PAGE_DOCUMENTS, "sort": ["_doc"], "version": true, "query": query });
        let first = format!("{index}/_search?scroll=1m&allow_partial_search_results=false");
        let mut page = self.ask(action, Method::POST, &first, body).await?;
        let mut hits = Vec::new();
        loop {
            let Some(found) = page.pointer_mut("/hits/hits").and_then(Value::as_array_mut) else {
                return Err(self.failed(action, "an answer without hits".to_owned()));
            };
            let is_last = found.is_empty();
            hits.append(found);
            let scroll = json!({ "scroll_id": page["_scroll_id"] });
            if is_last {
                self.ask(action, Method::DELETE, "_search/scroll", scroll).await?;
                return Ok(hits);
            }
            let next = json!({ "scroll": "1m", "scroll_id": page["_scroll_id"] });
            page = self.ask(action, Method::POST, "_search/scroll", next).await?;
        }
    }

    pub(crate) fn failed(&self, action: &'static str, reason: String) -> DemoError {
        failed(&self.name, action, reason)
    }
}

impl fmt::Debug for SearchServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)
    }
}

fn failed(server: &str, action: &'static str, reason: String) -> DemoError {
    DemoError::Search { server: server.to_owned(), action, reason }
}

fn authority(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(file).map_err(|error| error.to_string())?;
    roots.add(authority).map_err(|error| error.to_string())?;
    Ok(roots)
}

/// Makes a client for addresses without TLS.
pub(crate) fn plain_client() -> Result<Client, String> {
    client(RootCertStore::empty())
}

/// Makes a client. The library needs TLS set up even for an address without it.
fn client(roots: RootCertStore) -> Result<Client, String> {
    let tls = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = Client::builder().tls_backend_preconfigured(tls).timeout(SILENCE_MAX).build();
    client.map_err(|error| error.to_string())
}
