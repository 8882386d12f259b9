//! Asks a running daemon of this machine: one request over a connection of its own.
//!
//! If the configuration has a token that shows full texts, the request has one that shows them and opens nothing else.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anabranch_pipeline::config::HttpConfig;
use axum::body::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, HOST};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use super::StatusAnswer;
use super::guard::token_of_command;

/// A daemon on the same machine answers in milliseconds; `status` must not wait for a dead one.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Thousands of lanes fit; a foreign service on that port cannot fill the memory.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Returns the status of a daemon; `None` when none answers in time or another service does.
pub async fn status(http: &HttpConfig) -> Option<StatusAnswer> {
    let (code, body) = get(http, "/v1/status", TIMEOUT).await?;
    (code == 200).then(|| serde_json::from_str(&body).ok()).flatten()
}

/// Returns the status code and body of a path; `None` when no answer comes in `time`.
pub async fn get(http: &HttpConfig, path: &str, time: Duration) -> Option<(u16, String)> {
    // Port 0 was replaced by a port that only the daemon's log knows.
    let address = reachable(http.listen.filter(|listen| listen.port() != 0)?);
    let token = token_of_command(http);
    let asked = async {
        let answer = ask(address, path, token.as_deref()).await?;
        // A daemon that started before the tokens were changed knows the old ones, and shows the rest without any.
        match answer.0 == StatusCode::UNAUTHORIZED.as_u16() && token.is_some() {
            true => ask(address, path, None).await,
            false => Some(answer),
        }
    };
    tokio::time::timeout(time, asked).await.ok()?
}

/// Replaces the address of a listener on all addresses by the loopback address.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let address = match listen.ip() {
        IpAddr::V4(address) if address.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(address) if address.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        address => address,
    };
    SocketAddr::new(address, listen.port())
}

async fn ask(address: SocketAddr, path: &str, token: Option<&str>) -> Option<(u16, String)> {
    let stream = TcpStream::connect(address).await.ok()?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let mut request = Request::get(path).header(HOST, address.to_string());
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Empty::<Bytes>::new()).ok()?;
    let response = sender.send_request(request).await.ok()?;
    let status = response.status().as_u16();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await.ok()?;
    Some((status, String::from_utf8(body.to_bytes().into()).ok()?))
}
