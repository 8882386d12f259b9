//! What stands in OpenSearch, as its administrator sees it.

use std::collections::BTreeMap;
use std::sync::Arc;

use anabranch_stack::Stack;
use reqwest::{Client, Method};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};

/// The administrator of a stack's server `search`.
#[derive(Debug, Clone)]
pub struct Search {
    client: Client,
    url: String,
}

impl Search {
    pub fn of(stack: &Stack) -> Self {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_file(stack.ca_file()).expect("the stack made it");
        roots.add(authority).expect("a certificate");
        let tls = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has them")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let client =
            Client::builder().tls_backend_preconfigured(tls).build().expect("nothing can be missing");
        Self { client, url: stack.server("search").expect("a server of the stack").admin_url() }
    }

    /// The answer, which must not be an error.
    pub async fn ask(&self, method: Method, path: &str, body: Value) -> Value {
        let (status, text) = self.try_to_ask(method.clone(), path, body).await.expect("it answers");
        assert!((200..300).contains(&status), "{method} {path}: {status} {text}");
        serde_json::from_str(&text).expect("JSON")
    }

    /// Status and text; `None` when the server is down.
    async fn try_to_ask(&self, method: Method, path: &str, body: Value) -> Option<(u16, String)> {
        let request = self.client.request(method, format!("{}/{path}", self.url));
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = request.header("Content-Type", "application/json").body(body).send().await.ok()?;
        Some((answer.status().as_u16(), answer.text().await.ok()?))
    }

    /// The first 10,000 documents of a query, by id.
    pub async fn find(&self, index: &str, query: Value) -> BTreeMap<String, Value> {
        self.ask(Method::POST, &format!("{index}/_refresh"), Value::Null).await;
        let body = json!({ "size": 10_000, "query": query });
        let found = self.ask(Method::POST, &format!("{index}/_search"), body).await;
        let hits = found["hits"]["hits"].as_array().expect("hits are a list").iter();
        hits.map(|hit| (hit["_id"].as_str().expect("ids are texts").to_owned(), hit["_source"].clone()))
            .collect()
    }

    /// The documents that are not withdrawn.
    pub async fn standing(&self, index: &str) -> BTreeMap<String, Value> {
        self.find(index, json!({ "term": { "withdrawn": false } })).await
    }

    /// How many documents are not withdrawn.
    pub async fn count(&self, index: &str) -> u64 {
        self.ask(Method::POST, &format!("{index}/_refresh"), Value::Null).await;
        let body = json!({ "query": { "term": { "withdrawn": false } } });
        let counted = self.ask(Method::POST, &format!("{index}/_count"), body).await;
        counted["count"].as_u64().expect("a number")
    }
}
