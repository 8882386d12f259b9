//! Asks a running daemon of this machine: one HTTP/1.0 request, so no chunks and no kept connection.

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
    let (code, body) = get(listen, "/v1/status", TIMEOUT).await?;
    (code == 200).then(|| serde_json::from_str(&body).ok()).flatten()
}

/// Status and body of what stands at a path; `None` when nobody answers in time.
pub async fn get(listen: SocketAddr, path: &str, time: Duration) -> Option<(u16, String)> {
    // Port 0 was replaced by a port that only the daemon's log knows.
    if listen.port() == 0 {
        return None;
    }
    tokio::time::timeout(time, ask(reachable(listen), path)).await.ok()?
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

async fn ask(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await.ok()?;
    let answer = String::from_utf8(answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}
