//! One HTTP/1.0 request to a daemon: what `curl` would show.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A paused daemon accepts nothing and answers nothing.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Longer than the API's own time limit.
const APPLICATION_TIMEOUT: Duration = Duration::from_secs(15);

/// Status code and body; `None` when nobody answers.
pub(crate) async fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let answer = tokio::time::timeout(TIMEOUT, ask(address, request.as_bytes())).await.ok()??;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

/// Head and body of the answer to a request as it goes over the wire; `None` when nobody answers. A daemon that refuses
/// a body does not wait for it.
pub(crate) async fn raw(address: SocketAddr, request: &[u8]) -> Option<String> {
    tokio::time::timeout(APPLICATION_TIMEOUT, ask(address, request)).await.ok()?
}

async fn ask(address: SocketAddr, request: &[u8]) -> Option<String> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream.write_all(request).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer)
}
