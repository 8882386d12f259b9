//! Asks a running daemon of this machine for its status: one HTTP/1.0 request, so no chunks and no kept connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::StatusAnswer;

/// A daemon on the same machine answers in milliseconds; `status` must not wait for a dead one.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Thousands of lanes fit; a foreign service on that port cannot fill the memory.
const ANSWER_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// `None` when nobody answers there, or somebody else.
pub async fn status(listen: SocketAddr) -> Option<StatusAnswer> {
    // Port 0 was replaced by a port that only the daemon's log knows.
    if listen.port() == 0 {
        return None;
    }
    tokio::time::timeout(TIMEOUT, get(reachable(listen))).await.ok()?
}

/// A listener on all addresses is reached through the loopback one.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let address = match listen.ip() {
        IpAddr::V4(address) if address.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(address) if address.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        address => address,
    };
    SocketAddr::new(address, listen.port())
}

async fn get(address: SocketAddr) -> Option<StatusAnswer> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET /v1/status HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await.ok()?;
    let answer = String::from_utf8(answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let ok = head.split(' ').nth(1) == Some("200");
    ok.then(|| serde_json::from_str(body).ok()).flatten()
}
