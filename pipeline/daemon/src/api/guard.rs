//! Checks of every request to an endpoint for applications: token, size, number at once, time.
//!
//! The guard compares digests of tokens, and always all of them, so that time tells nothing about a token. Connections
//! are plain HTTP, bounded by `serve.rs`; TLS belongs to a proxy in front (nginx, Envoy, HAProxy).

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use anabranch_pipeline::config::Secret;
use anabranch_pipeline::error::Code;
use anabranch_pipeline::metrics as names;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{DefaultBodyLimit, FromRequest, MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use metrics::histogram;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::problem::Problem;

/// Bytes of a body, at most: a thousand codes of 64 bytes.
pub const BODY_BYTES_MAX: usize = 64 * 1024;
/// Requests that are being answered at once; each may hold an answer of some hundred kilobytes.
const REQUESTS_MAX: usize = 256;
/// Time from the head of a request to its answer; longer than any bounded wait inside it.
pub const TIME_LIMIT: Duration = Duration::from_secs(10);

/// The checks, shared by all requests.
#[derive(Debug, Clone)]
pub struct Guard {
    tokens: Arc<[[u8; 32]]>,
    requests: Arc<Semaphore>,
    body_time: Duration,
}

impl Guard {
    /// Makes a guard that accepts these tokens; a body must arrive within `body_time`.
    pub fn new(tokens: &[Secret], body_time: Duration) -> Self {
        let tokens = tokens.iter().map(|token| digest(token.expose().as_bytes())).collect();
        Self { tokens, requests: Arc::new(Semaphore::new(REQUESTS_MAX)), body_time }
    }

    /// Returns the number of requests that are being answered.
    pub fn in_flight(&self) -> usize {
        REQUESTS_MAX.saturating_sub(self.requests.available_permits())
    }

    fn authorise(&self, headers: &HeaderMap) -> Result<(), Problem> {
        if self.tokens.is_empty() {
            let remedy = "set http.tokens in the daemon's configuration and restart it";
            return Err(Problem::new(Code::TokensMissing, "no token is configured", remedy));
        }
        let given = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        let token = given.and_then(|given| given.split_at_checked(BEARER.len()));
        match token {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case(BEARER) => match self.knows(token) {
                true => Ok(()),
                false => Err(unauthorised("the token is none of the configured ones")),
            },
            Some(_) | None => Err(unauthorised("no bearer token was sent")),
        }
    }

    /// Returns whether the request came with a valid token. No token is no error; a wrong token is one.
    pub fn knows_sender(&self, headers: &HeaderMap) -> Result<bool, Problem> {
        match headers.contains_key(header::AUTHORIZATION) {
            true => self.authorise(headers).map(|()| true),
            false => Ok(false),
        }
    }

    /// Returns whether a configured token equals this one; compares every byte of every digest.
    fn knows(&self, token: &[u8]) -> bool {
        let given = digest(token);
        let differs = |known: &[u8; 32]| known.iter().zip(given).fold(0, |all, (one, two)| all | (one ^ two));
        self.tokens.iter().fold(false, |found, known| found | (black_box(differs(known)) == 0))
    }
}

const BEARER: &[u8] = b"Bearer ";

fn digest(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

fn unauthorised(detail: &str) -> Problem {
    let remedy = "send the header authorization: Bearer TOKEN, with one of http.tokens";
    Problem::new(Code::TokenRefused, detail, remedy).with_header(header::WWW_AUTHENTICATE, "Bearer")
}

pub(super) fn too_large() -> Problem {
    let detail = format!("the body is larger than {BODY_BYTES_MAX} bytes");
    Problem::new(Code::BodyTooLarge, detail, "send several smaller requests")
        .with_header(header::CONNECTION, "close")
}

fn late(time: Duration) -> Problem {
    let detail = format!("the body did not arrive within {} s", time.as_secs_f32());
    Problem::new(Code::BodyLate, detail, "send as many bytes as content-length says, and at once")
        .with_header(header::CONNECTION, "close")
}

/// The middleware of all endpoints for applications.
pub async fn admit(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let response = admitted(&guard, request, next).await.unwrap_or_else(IntoResponse::into_response);
    let status = response.status().as_u16().to_string();
    histogram!(names::HTTP_REQUEST_SECONDS, "route" => route.unwrap_or_default(), "status" => status)
        .record(began.elapsed().as_secs_f64());
    response
}

async fn admitted(guard: &Guard, request: Request, next: Next) -> Result<Response, Problem> {
    let deadline = Instant::now() + TIME_LIMIT;
    guard.authorise(request.headers())?;
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    if length.and_then(|length| length.parse::<u64>().ok()).is_some_and(|bytes| bytes > BODY_BYTES_MAX as u64)
    {
        return Err(too_large());
    }
    let request = with_body(request, guard.body_time).await?;
    let _permit = guard.requests.try_acquire().map_err(|_| {
        let detail = format!("{REQUESTS_MAX} requests are being answered");
        Problem::new(Code::TooManyRequests, detail, "send fewer at once, or ask more daemons")
    })?;
    tokio::time::timeout_at(deadline, next.run(request)).await.map_err(|_| {
        let detail = format!("no answer within {} s", TIME_LIMIT.as_secs());
        Problem::new(Code::TimedOut, detail, "GET /readyz says what is down; try again")
    })
}

/// Reads the body. The request takes a place of [`REQUESTS_MAX`] only afterwards, so a slow body holds none.
async fn with_body(request: Request, time: Duration) -> Result<Request, Problem> {
    if request.body().is_end_stream() {
        return Ok(request);
    }
    let (parts, body) = request.into_parts();
    let mut reading = Request::new(body);
    // This bounds bodies without a content-length.
    DefaultBodyLimit::max(BODY_BYTES_MAX).apply(&mut reading);
    let bytes =
        tokio::time::timeout(time, Bytes::from_request(reading, &())).await.map_err(|_| late(time))?;
    let bytes = bytes.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => too_large(),
        _ => Problem::new(Code::BodyUnreadable, "the body broke off", "send the body again"),
    })?;
    Ok(Request::from_parts(parts, Body::from(bytes)))
}
