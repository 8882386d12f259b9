//! A minimal HTTP client: one kept connection and one request after the other, or one stream of events.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
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
    pub async fn lookup(&mut self, code: &str) -> Answer<'_> {
        self.get(&["/v1/serials/", code]).await
    }

    /// Asks for a page of the documents below a payment document.
    pub async fn relations(&mut self, id: &str) -> Answer<'_> {
        self.get(&["/v1/flux/", id, "/relations"]).await
    }

    /// Asks for a path, which is the joined parts.
    pub async fn get(&mut self, path: &[&str]) -> Answer<'_> {
        self.send(path).await;
        self.answered().await
    }

    /// Posts a body of JSON.
    pub async fn post(&mut self, path: &str, body: &str) -> Answer<'_> {
        self.request.clear();
        let length = body.len();
        write!(
            self.request,
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .expect("writing to a String cannot fail");
        self.stream.write_all(self.request.as_bytes()).await.expect("it listens");
        self.answered().await
    }

    /// Waits for the whole answer to the request that was sent.
    async fn answered(&mut self) -> Answer<'_> {
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

    async fn send(&mut self, path: &[&str]) {
        self.request.clear();
        self.request.push_str("GET ");
        path.iter().for_each(|part| self.request.push_str(part));
        self.request.push_str(" HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer ");
        self.request.push_str(TOKEN);
        self.request.push_str("\r\n\r\n");
        self.stream.write_all(self.request.as_bytes()).await.expect("it listens");
    }
}

/// Asks for a path over a connection of its own, whose end is the end of the answer; returns the answer with its head.
pub async fn ask_once(port: u16, path: &str) -> Vec<u8> {
    let Client { mut stream, mut answer, .. } = Client::connect(port).await;
    let request = format!("GET {path} HTTP/1.0\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it listens");
    stream.read_to_end(&mut answer).await.expect("it answers");
    let is_answered = answer.get(9..12) == Some(&b"200"[..]);
    assert!(is_answered, "{path}: {}", String::from_utf8_lossy(&answer));
    answer
}

/// The stream of events of an open page.
#[derive(Debug)]
pub struct EventStream {
    stream: BufReader<TcpStream>,
    line: Vec<u8>,
}

impl EventStream {
    /// Opens the stream with the token, as a page of an operator or an application does.
    pub async fn open(port: u16) -> Self {
        let mut client = Client::connect(port).await;
        client.send(&["/v1/events"]).await;
        let mut events = Self { stream: BufReader::new(client.stream), line: Vec::new() };
        events.read_line().await;
        let is_open = events.line.starts_with(b"HTTP/1.1 200");
        assert!(is_open, "the stream was refused: {}", String::from_utf8_lossy(&events.line));
        events
    }

    /// Waits for the next document; returns its bytes.
    pub async fn next(&mut self) -> usize {
        loop {
            self.read_line().await;
            if self.line.starts_with(b"data: ") {
                return self.line.len();
            }
        }
    }

    async fn read_line(&mut self) {
        self.line.clear();
        let read = self.stream.read_until(b'\n', &mut self.line).await.expect("it answers");
        assert!(read > 0, "the stream was closed");
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
