//! Reads the daemon's `/v1/status`: one HTTP/1.0 request, only the fields that a screen shows.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const TIMEOUT: Duration = Duration::from_secs(1);
const ANSWER_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// What the daemon says about itself.
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
    pub fault: Option<String>,
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
    pub fault: Option<String>,
    pub lag_seconds: Option<f64>,
    pub rows_per_second: Option<f64>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct CacheStatus {
    pub cache: String,
    pub state: String,
    pub fault: Option<String>,
    pub delay_seconds: Option<f64>,
}

/// `None` when nobody answers there, or not as expected.
pub(super) async fn status(address: SocketAddr) -> Option<Status> {
    tokio::time::timeout(TIMEOUT, get(address)).await.ok()?
}

async fn get(address: SocketAddr) -> Option<Status> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET /v1/status HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await.ok()?;
    let answer = String::from_utf8(answer).ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    serde_json::from_str(body).ok()
}
