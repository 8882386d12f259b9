//! Contents of OpenSearch, as its administrator sees them.

use std::collections::BTreeMap;

use anabranch_demo::JsonClient;
use anabranch_stack::Stack;
use reqwest::Method;
use serde_json::{Value, json};

/// The administrator of a stack's server `search`.
#[derive(Debug, Clone)]
pub struct Search(JsonClient);

impl Search {
    pub fn of(stack: &Stack) -> Self {
        Self(JsonClient::search_admin(stack, "search").expect("a server of the stack"))
    }

    pub fn without_tls(url: String) -> Self {
        Self(JsonClient::without_tls("search", url).expect("nothing can be missing"))
    }

    /// Sends a request and returns its answer, which must not be an error.
    pub async fn ask(&self, method: Method, path: &str, body: Value) -> Value {
        self.0.ask("ask for a test", method, path, body).await.expect("it answers")
    }

    /// Sends a request that must fail; returns status and text of the error.
    pub async fn refusal(&self, method: Method, path: &str) -> String {
        self.0.ask("ask for a test", method, path, Value::Null).await.expect_err("it refuses").to_string()
    }

    /// Removes all indexes but the server's own, which begin with a dot.
    pub async fn clear(&self) {
        let indexes = self.ask(Method::GET, "_cat/indices?format=json&h=index", Value::Null).await;
        let indexes = indexes.as_array().into_iter().flatten();
        for index in indexes.filter_map(|index| index["index"].as_str()).filter(|name| !name.starts_with('.'))
        {
            self.ask(Method::DELETE, index, Value::Null).await;
        }
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

    /// The documents of an index that are not withdrawn.
    pub async fn documents(&self, index: &str) -> BTreeMap<String, Value> {
        self.find(index, json!({ "term": { "withdrawn": false } })).await
    }

    /// The number of documents of an index that are not withdrawn.
    pub async fn count(&self, index: &str) -> u64 {
        self.ask(Method::POST, &format!("{index}/_refresh"), Value::Null).await;
        let body = json!({ "query": { "term": { "withdrawn": false } } });
        let counted = self.ask(Method::POST, &format!("{index}/_count"), body).await;
        counted["count"].as_u64().expect("a number")
    }
}
