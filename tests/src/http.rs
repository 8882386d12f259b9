//! One HTTP/1.0 request to a daemon: what `curl` would show.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A paused daemon accepts nothing and answers nothing.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Status code and body; `None` when nobody answers.
pub(crate) async fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    tokio::time::timeout(TIMEOUT, ask(address, path)).await.ok()?
}

async fn ask(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}
