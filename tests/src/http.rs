//! One HTTP/1.0 request, with the answer that `curl` would show. Requests are written as bytes, because some tests ask
//! for paths that a client's library would change.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Time limit of a request, for a busy machine; a paused daemon accepts and answers nothing.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of an application's request, above the API's own.
const APPLICATION_TIMEOUT: Duration = Duration::from_secs(15);

/// Sends a GET; returns status code and body, `None` when nothing answers.
pub async fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let answer = tokio::time::timeout(TIMEOUT, ask(address, request.as_bytes())).await.ok()??;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

/// Sends a request as raw bytes; returns head and body of the answer, `None` when no daemon answers. A daemon that
/// refuses a body does not wait for it.
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
