//! An OpenSearch node for an auditor: with its administrator's account, over verified TLS.

use std::path::Path;

use anabranch_stack::Stack;
use reqwest::Method;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};

use crate::error::{DemoError, Result};
use crate::json_client::JsonClient;

/// Documents in a page.
const PAGE_DOCUMENTS: usize = 2_000;

impl JsonClient {
    /// Returns a client of a search server of the stack, with the account that may do everything.
    pub fn search_admin(stack: &Stack, name: &str) -> Result<Self> {
        let failed = |reason| DemoError::Http { server: name.to_owned(), action: "connect", reason };
        let roots = authority(&stack.ca_file()).map_err(failed)?;
        Self::at(name, stack.server(name)?.admin_url(), roots)
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
}

fn authority(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(file).map_err(|error| error.to_string())?;
    roots.add(authority).map_err(|error| error.to_string())?;
    Ok(roots)
}
