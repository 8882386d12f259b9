//! A client of servers that speak JSON over HTTP: OpenSearch, Prometheus and the daemon itself. `search.rs` has what
//! only OpenSearch answers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use backoff::ExponentialBackoffBuilder;
use backoff::backoff::Backoff;
use reqwest::{Client, Method, StatusCode};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;

use crate::endpoint::SILENCE_MAX;
use crate::error::{DemoError, Result};

/// Limit of retries: a server that has no room for a request for so long has no room for the demo.
const BUSY_BUDGET: Duration = Duration::from_secs(60);

/// Address and account of one server. Cheap to clone; keeps its connections.
#[derive(Clone)]
pub struct JsonClient {
    /// Name of the server. A server of the stack has its name there, which is also that of the target in the daemon's
    /// configuration.
    pub name: String,
    /// Address; with user and password where the server wants them.
    url: String,
    /// Token that every request has, for a server that wants one.
    token: Option<String>,
    client: Client,
}

impl JsonClient {
    /// Returns a client of any server without TLS.
    pub fn without_tls(name: &str, url: String) -> Result<Self> {
        Self::at(name, url, RootCertStore::empty())
    }

    /// Returns a client of a server whose certificate is of one of these authorities.
    pub(crate) fn at(name: &str, url: String, roots: RootCertStore) -> Result<Self> {
        let client = client(roots).map_err(|reason| failed(name, "connect", reason))?;
        Ok(Self { name: name.to_owned(), url, token: None, client })
    }

    /// Returns the same client, which sends a token.
    #[must_use]
    pub fn with_token(self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self }
    }

    /// Sends a request and returns its answer; an error status is an error. `Null` sends no body.
    pub async fn ask(&self, action: &'static str, method: Method, path: &str, body: Value) -> Result<Value> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send(action, method, path, body).await
    }

    /// Sends a body that is not one value, see [`Self::ask`]. Repeats it when the server is too busy (429).
    pub async fn send(
        &self,
        action: &'static str,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<Value> {
        let mut pauses = ExponentialBackoffBuilder::new().with_max_elapsed_time(Some(BUSY_BUDGET)).build();
        loop {
            let request = self.client.request(method.clone(), format!("{}/{path}", self.url));
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

    pub(crate) fn failed(&self, action: &'static str, reason: String) -> DemoError {
        failed(&self.name, action, reason)
    }
}

impl fmt::Debug for JsonClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)
    }
}

fn failed(server: &str, action: &'static str, reason: String) -> DemoError {
    DemoError::Http { server: server.to_owned(), action, reason }
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
