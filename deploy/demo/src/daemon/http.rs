//! Reads the daemon's `/v1/status`: only the fields that a screen shows. Without a token it has codes of faults and not
//! their texts.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;

use crate::json_client::plain_client;

const TIMEOUT: Duration = Duration::from_secs(1);

/// The daemon's own report.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Status {
    #[serde(default)]
    pub sources: Vec<SourceStatus>,
    #[serde(default)]
    pub lanes: Vec<LaneStatus>,
    #[serde(default)]
    pub caches: Vec<CacheStatus>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct SourceStatus {
    pub source: String,
    pub state: String,
    pub code: Option<String>,
    pub position: Option<String>,
    pub lag_seconds: Option<f64>,
    pub messages_per_second: Option<f64>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct LaneStatus {
    pub projection: String,
    pub target: String,
    pub source: String,
    pub lane: u32,
    pub state: String,
    pub code: Option<String>,
    pub lag_seconds: Option<f64>,
    pub rows_per_second: Option<f64>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct CacheStatus {
    pub cache: String,
    pub state: String,
    pub code: Option<String>,
    pub delay_seconds: Option<f64>,
}

/// Returns the daemon's report; `None` when no daemon answers there, or not as expected.
pub(super) async fn status(address: SocketAddr) -> Option<Status> {
    tokio::time::timeout(TIMEOUT, get(address)).await.ok()?
}

async fn get(address: SocketAddr) -> Option<Status> {
    let client = plain_client().ok()?;
    let answer = client.get(format!("http://{address}/v1/status")).send().await.ok()?;
    serde_json::from_slice(&answer.bytes().await.ok()?).ok()
}
