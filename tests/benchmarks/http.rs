//! A minimal HTTP client: one kept connection and one request after the other.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::site::TOKEN;

/// A kept connection.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    request: String,
    answer: Vec<u8>,
}

/// Status and body of an answer.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'c> {
    pub status: u16,
    pub body: &'c [u8],
}

impl Client {
    pub async fn connect(port: u16) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = TcpStream::connect(address).await.expect("it listens");
        stream.set_nodelay(true).expect("it is a socket");
        Self { stream, request: String::new(), answer: Vec::with_capacity(4096) }
    }

    /// Looks up a code that needs no escapes.
    pub async fn look_up(&mut self, code: &str) -> Answer<'_> {
        self.get(&["/v1/serials/", code]).await
    }

    /// Asks for a page of the documents below a payment document.
    pub async fn relations(&mut self, id: &str) -> Answer<'_> {
        self.get(&["/v1/flux/", id, "/relations"]).await
    }

    /// Asks for a path, which is the joined parts.
    async fn get(&mut self, path: &[&str]) -> Answer<'_> {
        self.request.clear();
        self.request.push_str("GET ");
        path.iter().for_each(|part| self.request.push_str(part));
        self.request.push_str(" HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer ");
        self.request.push_str(TOKEN);
        self.request.push_str("\r\n\r\n");
        self.stream.write_all(self.request.as_bytes()).await.expect("it listens");
        self.answer.clear();
        loop {
            let read = self.stream.read_buf(&mut self.answer).await.expect("it answers");
            assert!(read > 0, "the connection was closed");
            if let Some((status, body, end)) = parse(&self.answer)
                && self.answer.len() >= end
            {
                return Answer { status, body: &self.answer[body..end] };
            }
        }
    }
}

/// Status, start and end of the body; `None` while the answer is not complete.
fn parse(answer: &[u8]) -> Option<(u16, usize, usize)> {
    let head = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let text = std::str::from_utf8(&answer[..head]).expect("a head is ASCII");
    let status = text.get(9..12).and_then(|status| status.parse().ok()).expect("an answer begins so");
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.and_then(|length| length.parse().ok()).expect("the answer has a length");
    Some((status, head + 4, head + 4 + length))
}
