//! Connections to the coupon system: opened, used for one request at a time, kept idle briefly, closed when old.
//!
//! The meaning of a failure depends on whether the request was sent, so nothing is reopened here. `hyper` gives a
//! request back only if it has not begun to write it: only then was nothing sent. Closing discards bytes that the
//! kernel has not sent yet (linger of zero), so a request whose time is over does not arrive later.

use std::error::Error as StdError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anabranch_pipeline::config::{Secret, ServerUrl};
use anabranch_pipeline::error::{Code, Fault};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use nix::time::{ClockId, clock_gettime};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use super::CouponSystemSettings;
use crate::tls;

/// Longest use of a connection after it was handed out. Other granters take an attempt over after half an hour, so a
/// process that slept finds its connection too old long before.
const AGE_MAX: Duration = Duration::from_secs(300);
/// An idle connection is closed after this time: the other side may close it at any moment then.
const IDLE_MAX: Duration = Duration::from_secs(5);
/// Most idle connections that are kept.
const IDLE_CONNECTIONS_MAX: usize = 64;
/// Largest body of an answer. A hundred keys with their outcomes take a tenth of it.
const ANSWER_BYTES_MAX: usize = 256 * 1024;

/// A request that may be sent once.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) headers: Vec<(HeaderName, String)>,
    pub(super) body: Bytes,
}

/// The answer to a request.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Outcome of sending a request.
#[derive(Debug)]
pub(super) enum Exchange {
    /// No byte of the request was sent.
    NotSent,
    /// The request may have arrived.
    Unanswered(Fault),
    Answered(Response),
}

/// Opens connections to one coupon system.
#[derive(Debug)]
pub(super) struct Connector {
    url: ServerUrl,
    authorization: Option<HeaderValue>,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    timeout: Duration,
    subject: Arc<str>,
    idle: Arc<Mutex<Vec<Wire>>>,
}

/// A connection that was handed out. When dropped, it is kept for the next use if it can be used again.
#[derive(Debug)]
pub struct CouponConnection {
    wire: tokio::sync::Mutex<Option<Wire>>,
    handed_out: Duration,
    /// Headers that every request carries.
    headers: Vec<(HeaderName, HeaderValue)>,
    timeout: Duration,
    subject: Arc<str>,
    idle: Arc<Mutex<Vec<Wire>>>,
}

/// The connection itself, and the task that moves its bytes.
#[derive(Debug)]
struct Wire {
    sender: SendRequest<Full<Bytes>>,
    task: JoinHandle<()>,
    idle_since: Duration,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Connector {
    pub(super) fn new(settings: &CouponSystemSettings) -> Result<Self, Fault> {
        let subject: Arc<str> = format!("coupon system {}", settings.url.address()).into();
        let refused = |found: &str| Fault::new(Code::CouponSystemRefused, &*subject, found);
        let authorization = |token: &Secret| {
            let mut value = HeaderValue::try_from(format!("Bearer {}", token.expose()))
                .map_err(|_| refused("the token has a character that an HTTP header cannot carry"))?;
            value.set_sensitive(true);
            Ok::<_, Fault>(value)
        };
        let tls = match settings.url.scheme() {
            "https" => {
                let config = tls::client_config(settings.ca_file.as_deref())
                    .map_err(|error| refused("no CA certificate could be loaded").caused_by(error))?;
                let host = settings.url.host().trim_start_matches('[').trim_end_matches(']').to_owned();
                let name = ServerName::try_from(host).map_err(|error| {
                    refused("the host is not a name that TLS can verify").caused_by(error)
                })?;
                Some((Arc::new(config), name))
            }
            _ => None,
        };
        Ok(Self {
            authorization: settings.token.as_ref().map(authorization).transpose()?,
            url: settings.url.clone(),
            tls,
            timeout: settings.timeout,
            subject: Arc::clone(&subject),
            idle: Arc::default(),
        })
    }

    pub(super) fn subject(&self) -> &str {
        &self.subject
    }

    /// Takes an idle connection that is still open, or opens a new one.
    pub(super) async fn connect(&self) -> Result<CouponConnection, Fault> {
        let wire = match self.waiting().await {
            Some(wire) => wire,
            None => match tokio::time::timeout(self.timeout, self.open()).await {
                Ok(opened) => opened.map_err(|error| self.broken(error))?,
                Err(_) => return Err(super::unreachable(&self.subject, "no connection in time")),
            },
        };
        let mut headers = vec![
            (CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (USER_AGENT, HeaderValue::from_static("anabranch")),
        ];
        // The address of a parsed URL is always a valid header value.
        headers.extend(HeaderValue::try_from(self.url.address()).ok().map(|address| (HOST, address)));
        headers.extend(self.authorization.clone().map(|token| (AUTHORIZATION, token)));
        Ok(CouponConnection {
            wire: tokio::sync::Mutex::new(Some(wire)),
            handed_out: monotonic(),
            headers,
            timeout: self.timeout,
            subject: Arc::clone(&self.subject),
            idle: Arc::clone(&self.idle),
        })
    }

    /// Takes the youngest idle connection that is ready for a request; drops those that are known to have ended.
    async fn waiting(&self) -> Option<Wire> {
        while let Some(mut wire) = self.youngest_kept() {
            if matches!(tokio::time::timeout(self.timeout, wire.sender.ready()).await, Ok(Ok(()))) {
                return Some(wire);
            }
        }
        None
    }

    fn youngest_kept(&self) -> Option<Wire> {
        let mut idle = lock(&self.idle);
        let now = monotonic();
        idle.retain(|wire| now.saturating_sub(wire.idle_since) < IDLE_MAX && !wire.sender.is_closed());
        idle.pop()
    }

    async fn open(&self) -> Result<Wire, Box<dyn StdError + Send + Sync>> {
        let host = self.url.host().trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((host, self.url.port())).await?;
        stream.set_nodelay(true)?;
        stream.set_zero_linger()?;
        let stream: Box<dyn Stream> = match &self.tls {
            Some((config, name)) => {
                let connector = TlsConnector::from(Arc::clone(config));
                Box::new(connector.connect(name.clone(), stream).await?)
            }
            None => Box::new(stream),
        };
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let task = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the coupon system broke");
            }
        });
        Ok(Wire { sender, task, idle_since: monotonic() })
    }

    fn broken(&self, error: Box<dyn StdError + Send + Sync>) -> Fault {
        if tls::is_or_is_beneath(&*error) {
            return Fault::new(Code::CouponSystemRefused, &*self.subject, "no verified TLS connection")
                .needs("a certificate for its host that is signed by an authority of `ca_file`")
                .caused_by(error);
        }
        super::unreachable(&self.subject, "no connection").caused_by(error)
    }
}

impl CouponConnection {
    /// Sends a request once.
    pub(super) async fn send(&self, request: Request) -> Exchange {
        let mut held = self.wire.lock().await;
        let is_old = is_too_old(self.handed_out, monotonic());
        // The connection is taken out: it is closed unless its answer is read to the end.
        let Some(mut wire) = held.take().filter(|_| !is_old) else { return Exchange::NotSent };
        let sending = async {
            // Nothing is written until the connection is ready.
            if wire.sender.ready().await.is_err() {
                return Ok(None);
            }
            let request = self.request(request)?;
            match wire.sender.try_send_request(request).await {
                Ok(response) => read(response).await.map(Some),
                Err(mut error) => match error.take_message() {
                    Some(_) => Ok(None),
                    None => Err(error.into_error().into()),
                },
            }
        };
        match tokio::time::timeout(self.timeout, sending).await {
            Ok(Ok(Some(response))) => {
                *held = Some(wire);
                Exchange::Answered(response)
            }
            Ok(Ok(None)) => Exchange::NotSent,
            Ok(Err(error)) => Exchange::Unanswered(
                super::unreachable(&self.subject, "the connection broke").caused_by(error),
            ),
            Err(_) => Exchange::Unanswered(super::unreachable(&self.subject, "no answer in time")),
        }
    }

    fn request(&self, request: Request) -> Result<hyper::Request<Full<Bytes>>, hyper::http::Error> {
        let mut builder = hyper::Request::builder().method(request.method).uri(request.path);
        for (name, value) in &self.headers {
            builder = builder.header(name, value);
        }
        for (name, value) in request.headers {
            builder = builder.header(name, value);
        }
        builder.body(Full::new(request.body))
    }
}

impl Drop for CouponConnection {
    fn drop(&mut self) {
        let Some(mut wire) = self.wire.get_mut().take().filter(|wire| !wire.sender.is_closed()) else {
            return;
        };
        wire.idle_since = monotonic();
        let mut idle = lock(&self.idle);
        if idle.len() < IDLE_CONNECTIONS_MAX {
            idle.push(wire);
        }
    }
}

async fn read(response: hyper::Response<Incoming>) -> Result<Response, Box<dyn StdError + Send + Sync>> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await?.to_bytes();
    Ok(Response { status: head.status, headers: head.headers, body })
}

fn lock(idle: &Mutex<Vec<Wire>>) -> MutexGuard<'_, Vec<Wire>> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether a connection was handed out too long ago to send a request now.
fn is_too_old(handed_out: Duration, now: Duration) -> bool {
    now.saturating_sub(handed_out) > AGE_MAX
}

/// Time since boot, sleep of the machine included; nothing sets it back.
fn monotonic() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use anabranch_coupons::records::ATTEMPT_TIMEOUT;

    use super::*;

    #[test]
    fn a_connection_is_too_old_for_a_call_long_before_other_granters_take_over() {
        let handed_out = Duration::from_secs(1_000);
        let taken_over = Duration::try_from(ATTEMPT_TIMEOUT).unwrap();
        assert!(!is_too_old(handed_out, handed_out + AGE_MAX));
        assert!(is_too_old(handed_out, handed_out + taken_over / 2));
    }

    #[tokio::test]
    async fn a_connection_that_is_too_old_sends_nothing() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let settings = CouponSystemSettings {
            url: ServerUrl::try_from(format!("http://{}", listener.local_addr().unwrap())).unwrap(),
            token: None,
            ca_file: None,
            is_batched: true,
            timeout: Duration::from_secs(1),
        };
        let connector = Connector::new(&settings).unwrap();
        for (age, is_sent) in [(Duration::ZERO, true), (AGE_MAX + Duration::from_secs(1), false)] {
            let mut connection = connector.connect().await.unwrap();
            connection.handed_out =
                monotonic().checked_sub(age).expect("the machine has run for some minutes");
            let request = Request {
                method: Method::POST,
                path: "/".to_owned(),
                headers: Vec::new(),
                body: Bytes::new(),
            };
            let exchange = connection.send(request).await;
            // The listener answers nothing.
            assert_eq!(matches!(exchange, Exchange::Unanswered(_)), is_sent, "{exchange:?}");
            assert_eq!(matches!(exchange, Exchange::NotSent), !is_sent, "{exchange:?}");
        }
    }
}
