//! A client of the witness for tests and verifications: faults, forgetting, and the whole book.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::book::Gift;
use super::faults::Faults;
use crate::error::{DemoError, Result};
use crate::json_client::plain_client;

/// Sends requests to a running witness in plain text.
#[derive(Debug, Clone)]
pub struct WitnessClient {
    http: reqwest::Client,
    url: String,
    token: Option<String>,
}

impl WitnessClient {
    /// Makes a client; `url` is such as `http://127.0.0.1:8080`.
    pub fn new(url: impl Into<String>, token: Option<&str>) -> Result<Self> {
        let (url, token) = (url.into(), token.map(str::to_owned));
        let http = plain_client().map_err(|reason| failed(&url, reason))?;
        Ok(Self { http, url, token })
    }

    /// Switches these faults on, and all others off.
    pub async fn set_faults(&self, faults: &Faults) -> Result<()> {
        let body = serde_json::to_value(faults).expect("numbers and texts are always JSON");
        self.send(self.http.post(self.at("/control/faults")).body(body.to_string())).await.map(drop)
    }

    /// Forgets every key, as after the time that the system promises; returns how many there were.
    pub async fn forget_keys(&self) -> Result<u64> {
        let body = json!({ "older_than_seconds": 0 }).to_string();
        let answer = self.send(self.http.post(self.at("/control/forget")).body(body)).await?;
        Ok(answer["forgotten"].as_u64().unwrap_or_default())
    }

    /// Returns the number of calls that came, whatever their outcome.
    pub async fn calls(&self) -> Result<u64> {
        self.count("calls").await
    }

    /// Returns the number of those calls that came in a request for one coupon.
    pub async fn single_calls(&self) -> Result<u64> {
        self.count("single_calls").await
    }

    async fn count(&self, name: &str) -> Result<u64> {
        let answer = self.send(self.http.get(self.at("/control/counts"))).await?;
        Ok(answer[name].as_u64().unwrap_or_default())
    }

    /// Whether the witness answers.
    pub async fn is_up(&self) -> bool {
        self.calls().await.is_ok()
    }

    /// Returns every gift, in the order in which they were given.
    pub async fn gifts(&self) -> Result<Vec<Gift>> {
        let (mut gifts, mut after) = (Vec::new(), Some(0));
        while let Some(place) = after {
            let path = format!("/v1/coupons/given?after={place}");
            let mut page = self.send(self.http.get(self.at(&path))).await?;
            let of_page: Vec<Gift> =
                serde_json::from_value(page["gifts"].take()).map_err(|error| self.odd(&error.to_string()))?;
            gifts.extend(of_page);
            after = page["next"].as_u64();
        }
        Ok(gifts)
    }

    /// Returns the keys that were given more than once, with their number.
    pub async fn doubles(&self) -> Result<BTreeMap<String, u64>> {
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for gift in self.gifts().await? {
            *counts.entry(gift.key).or_default() += 1;
        }
        counts.retain(|_, count| *count > 1);
        Ok(counts)
    }

    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    fn odd(&self, reason: &str) -> DemoError {
        failed(&self.url, reason.to_owned())
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<Json> {
        let request = request.header(reqwest::header::CONTENT_TYPE, "application/json");
        let request = match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        let answered = async {
            let response = request.send().await?.error_for_status()?;
            response.bytes().await
        };
        let body = answered.await.map_err(|error| self.odd(&error.to_string()))?;
        match body.is_empty() {
            true => Ok(Json::Null),
            false => serde_json::from_slice(&body).map_err(|error| self.odd(&error.to_string())),
        }
    }
}

fn failed(url: &str, reason: String) -> DemoError {
    DemoError::Witness { url: url.to_owned(), reason }
}
