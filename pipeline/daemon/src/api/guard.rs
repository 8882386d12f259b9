//! Checks of every request to an endpoint for applications or operators: token, size, number at once, time.
//!
//! Each kind of endpoint takes its own tokens: an application changes nothing, and an operator's token finds no device.
//! A token of an application opens the routes of its scopes. An operator's token, or one with the scope `status`, shows
//! the full texts of open endpoints. A command of the daemon's configuration sends a token that is derived from such a
//! one, because another program may listen where no daemon does. The guard compares digests of tokens, and always all
//! of them, so that time tells nothing about a token. Connections are plain HTTP, bounded by `serve.rs`; TLS belongs to
//! a proxy in front (nginx, Envoy, HAProxy).

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use anabranch_pipeline::config::{ApplicationConfig, HttpConfig, OperatorConfig, Scope, Secret};
use anabranch_pipeline::error::Code;
use anabranch_pipeline::metrics as names;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{DefaultBodyLimit, FromRequest, MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use metrics::{Counter, counter, histogram};
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
/// Time from the head of an operator's request to its answer: an action asks several servers one after another.
const OPERATOR_TIME_LIMIT: Duration = Duration::from_secs(30);

/// The operator whose token came with a request; handlers of operators' endpoints get it as an extension.
#[derive(Debug, Clone)]
pub struct Operator {
    pub name: String,
}

/// An application, and the number of its requests.
#[derive(Debug)]
struct Application {
    name: String,
    scopes: Vec<Scope>,
    requests: Counter,
}

/// The checks, shared by all requests.
#[derive(Debug, Clone)]
pub struct Guard {
    applications: Arc<[(Application, [u8; 32])]>,
    operators: Arc<[(Operator, [u8; 32])]>,
    /// Digests of the tokens that commands send.
    of_commands: Arc<[[u8; 32]]>,
    requests: Arc<Semaphore>,
    body_time: Duration,
}

impl Guard {
    /// Makes a guard that accepts these tokens; a body must arrive within `body_time`.
    pub fn new(
        applications: &[ApplicationConfig],
        operators: &[OperatorConfig],
        body_time: Duration,
    ) -> Self {
        let digest_of = |token: &Secret| digest(token.expose().as_bytes());
        let operator =
            |known: &OperatorConfig| (Operator { name: known.name.clone() }, digest_of(&known.token));
        let application = |known: &ApplicationConfig| {
            let requests = counter!(names::HTTP_APPLICATION_REQUESTS, "application" => known.name.clone());
            Application { name: known.name.clone(), scopes: known.scopes.clone(), requests }
        };
        Self {
            applications: applications
                .iter()
                .map(|known| (application(known), digest_of(&known.token)))
                .collect(),
            operators: operators.iter().map(operator).collect(),
            of_commands: showing(applications, operators)
                .map(|token| digest(derived(token).as_bytes()))
                .collect(),
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
            body_time,
        }
    }

    /// Returns the number of requests that are being answered.
    pub fn in_flight(&self) -> usize {
        REQUESTS_MAX.saturating_sub(self.requests.available_permits())
    }

    /// Returns the application whose token came with the request, and counts the request.
    fn authorise(&self, route: &str, headers: &HeaderMap) -> Result<&Application, Problem> {
        let application = self.sender(headers)?;
        application.requests.increment(1);
        tracing::debug!(application = application.name, route, "request");
        Ok(application)
    }

    fn sender(&self, headers: &HeaderMap) -> Result<&Application, Problem> {
        if self.applications.is_empty() {
            return Err(closed("no token is configured"));
        }
        let token = bearer(headers).ok_or_else(|| unauthorised("no bearer token was sent"))?;
        self.application(token).ok_or_else(|| unauthorised("the token is none of the configured ones"))
    }

    /// Counts a request of an application, and refuses it unless its token has the scope of the route.
    fn authorise_for(&self, route: &str, headers: &HeaderMap) -> Result<(), Problem> {
        let opens = |scope: &Scope| *scope != Scope::Status;
        if !self.applications.iter().any(|(application, _)| application.scopes.iter().any(opens)) {
            return Err(closed("no token opens an endpoint for applications in this process"));
        }
        let application = self.authorise(route, headers)?;
        let scope = scope_of(route);
        if scope.is_some_and(|scope| application.scopes.contains(&scope)) {
            return Ok(());
        }
        let needed = scope.map_or_else(|| "none that exists".to_owned(), |scope| format!("`{scope}`"));
        let detail = format!("the token of {} lacks the scope {needed}", application.name);
        let remedy = "add the scope to the application in [[http.applications]], and restart the daemon";
        Err(Problem::new(Code::TokenScopeMissing, detail, remedy))
    }

    /// Returns the operator whose token came with the request.
    fn authorise_operator(&self, headers: &HeaderMap) -> Result<Operator, Problem> {
        if self.operators.is_empty() {
            let remedy = "set [[http.operators]] in the daemon's configuration and restart it";
            return Err(Problem::new(Code::OperatorRefused, "no operator is configured", remedy));
        }
        let token = bearer(headers).ok_or_else(|| unauthorised_operator("no bearer token was sent"))?;
        match self.operator(token) {
            Some(operator) => Ok(operator.clone()),
            None if self.knows(token) => {
                let remedy = "send the token of one of [[http.operators]]";
                Err(Problem::new(Code::OperatorRefused, "the token is an application's", remedy))
            }
            None => Err(unauthorised_operator("the token is none of the configured ones")),
        }
    }

    /// Returns whether `/v1/status` and `/readyz` leave out texts of faults for a sender without a token. They do so if
    /// some token shows them. Without such a token the commands of this machine could not show them either.
    pub fn hides_texts(&self) -> bool {
        !self.of_commands.is_empty()
    }

    /// Returns whether the request came with the token of an operator or a command, or of an application with the scope
    /// `status`. No token is no error; a wrong token is one. A request of an application is counted.
    pub fn knows_sender(&self, route: &str, headers: &HeaderMap) -> Result<bool, Problem> {
        if !headers.contains_key(header::AUTHORIZATION) {
            return Ok(false);
        }
        if bearer(headers).is_some_and(|token| self.operator(token).is_some() || self.is_of_command(token)) {
            return Ok(true);
        }
        self.authorise(route, headers).map(|application| application.scopes.contains(&Scope::Status))
    }

    /// Returns whether a configured token of an application equals this one.
    fn knows(&self, token: &[u8]) -> bool {
        self.application(token).is_some()
    }

    /// Returns the application with this token.
    fn application(&self, token: &[u8]) -> Option<&Application> {
        let given = digest(token);
        self.applications.iter().fold(None, |found, (application, known)| match equals(known, &given) {
            true => Some(application),
            false => found,
        })
    }

    /// Returns whether a command of this configuration sends this token.
    fn is_of_command(&self, token: &[u8]) -> bool {
        let given = digest(token);
        self.of_commands.iter().fold(false, |found, known| found | equals(known, &given))
    }

    /// Returns the operator with this token.
    fn operator(&self, token: &[u8]) -> Option<&Operator> {
        let given = digest(token);
        self.operators.iter().fold(None, |found, (operator, known)| match equals(known, &given) {
            true => Some(operator),
            false => found,
        })
    }
}

/// Returns the token by which a command shows the full texts of open endpoints; `None` = no token shows them.
pub fn token_of_command(http: &HttpConfig) -> Option<String> {
    showing(&http.applications, &http.operators).next().map(derived)
}

/// Returns the tokens that show the full texts of open endpoints.
fn showing<'t>(
    applications: &'t [ApplicationConfig],
    operators: &'t [OperatorConfig],
) -> impl Iterator<Item = &'t Secret> {
    let applications = applications.iter().filter(|known| known.scopes.contains(&Scope::Status));
    operators.iter().map(|known| &known.token).chain(applications.map(|known| &known.token))
}

/// Returns the token that shows the texts which this one shows, and opens nothing else.
fn derived(token: &Secret) -> String {
    let digest = digest(format!("anabranch texts {}", token.expose()).as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the scope that opens a route for applications; `None` = no such route is known, and no token opens it.
fn scope_of(route: &str) -> Option<Scope> {
    let part = route.strip_prefix("/v1/")?.split('/').next()?;
    Some(match part {
        "serials" => Scope::Lookup,
        "uuids" => Scope::Uuids,
        "flux" => Scope::Flux,
        "dispatch" => Scope::Dispatch,
        _ => return None,
    })
}

/// Compares every byte of two digests.
fn equals(known: &[u8; 32], given: &[u8; 32]) -> bool {
    let differs = known.iter().zip(given).fold(0, |all, (one, two)| all | (one ^ two));
    black_box(differs) == 0
}

/// Returns the bearer token of a request.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let given = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes)?;
    let (scheme, token) = given.split_at_checked(BEARER.len())?;
    scheme.eq_ignore_ascii_case(BEARER).then_some(token)
}

const BEARER: &[u8] = b"Bearer ";

fn digest(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

fn closed(detail: &str) -> Problem {
    let remedy = "set http.tokens or [[http.applications]] in the daemon's configuration, and restart it with the \
                  role `api`";
    Problem::new(Code::TokensMissing, detail, remedy)
}

fn unauthorised(detail: &str) -> Problem {
    let remedy =
        "send the header authorization: Bearer TOKEN, with one of http.tokens or [[http.applications]]";
    Problem::new(Code::TokenRefused, detail, remedy).with_header(header::WWW_AUTHENTICATE, "Bearer")
}

fn unauthorised_operator(detail: &str) -> Problem {
    let remedy = "send the header authorization: Bearer TOKEN, with the token of one of [[http.operators]]";
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
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let allowed = guard.authorise_for(route, request.headers()).map(|()| None);
    answered(&guard, (request, allowed), TIME_LIMIT, next).await
}

/// The middleware of all endpoints for operators, whose handlers get an [`Operator`] as an extension.
pub async fn admit_operator(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let allowed = guard.authorise_operator(request.headers()).map(Some);
    answered(&guard, (request, allowed), OPERATOR_TIME_LIMIT, next).await
}

/// Answers a request that may have been refused, and records how long that took.
async fn answered(
    guard: &Guard,
    (mut request, allowed): (Request, Result<Option<Operator>, Problem>),
    limit: Duration,
    next: Next,
) -> Response {
    let began = Instant::now();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let response = match allowed {
        Ok(operator) => {
            if let Some(operator) = operator {
                request.extensions_mut().insert(operator);
            }
            admitted(guard, request, limit, next).await.unwrap_or_else(IntoResponse::into_response)
        }
        Err(refused) => refused.into_response(),
    };
    let status = response.status().as_u16().to_string();
    histogram!(names::HTTP_REQUEST_SECONDS, "route" => route.unwrap_or_default(), "status" => status)
        .record(began.elapsed().as_secs_f64());
    response
}

async fn admitted(guard: &Guard, request: Request, limit: Duration, next: Next) -> Result<Response, Problem> {
    let deadline = Instant::now() + limit;
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
        let detail = format!("no answer within {} s", limit.as_secs());
        // An action that has begun goes on, so its operator looks before asking again.
        let remedy = match limit {
            OPERATOR_TIME_LIMIT => "an action goes on: GET /v1/operations shows its end",
            _ => "GET /readyz says what is down; try again",
        };
        Problem::new(Code::TimedOut, detail, remedy)
    })
}

/// Reads the body. The request takes a place of [`REQUESTS_MAX`] only afterwards, so a slow body holds none.
async fn with_body(request: Request, time: Duration) -> Result<Request, Problem> {
    if request.body().is_end_stream() {
        return Ok(request);
    }
    let (parts, body) = request.into_parts();
    let mut bounded = Request::new(body);
    // This bounds bodies without a content-length.
    DefaultBodyLimit::max(BODY_BYTES_MAX).apply(&mut bounded);
    let bytes =
        tokio::time::timeout(time, Bytes::from_request(bounded, &())).await.map_err(|_| late(time))?;
    let bytes = bytes.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => too_large(),
        _ => Problem::new(Code::BodyUnreadable, "the body broke off", "send the body again"),
    })?;
    Ok(Request::from_parts(parts, Body::from(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::application_routes;
    use crate::telemetry::SECONDS;

    #[test]
    fn each_route_for_applications_has_one_scope_and_a_token_opens_those_of_its_own_alone() {
        let token = |name: &str| format!("token-of-{name}-0123");
        let application = |scope: &Scope| ApplicationConfig {
            name: scope.to_string(),
            token: Secret::new(token(&scope.to_string())),
            scopes: vec![*scope],
        };
        let applications: Vec<_> = Scope::ALL.iter().map(application).collect();
        let guard = Guard::new(&applications, &[], TIME_LIMIT);
        let mut opened = Vec::new();
        for (route, _, _) in application_routes() {
            let scope = scope_of(route).unwrap_or_else(|| panic!("no scope opens {route}"));
            opened.push(scope);
            for known in &applications {
                let mut headers = HeaderMap::new();
                let value = format!("Bearer {}", known.token.expose());
                headers.insert(header::AUTHORIZATION, value.parse().unwrap());
                let is_open = guard.authorise_for(route, &headers).is_ok();
                assert_eq!(is_open, known.scopes == [scope], "{route} {}", known.name);
                let shows_all = guard.knows_sender("/v1/status", &headers).is_ok_and(|is_known| is_known);
                assert_eq!(shows_all, known.scopes == [Scope::Status], "{}", known.name);
            }
        }
        let idle = Scope::ALL.into_iter().filter(|scope| !opened.contains(scope)).collect::<Vec<_>>();
        assert_eq!(idle, [Scope::Status]);
        assert_eq!(scope_of("/v1/operations"), None);
    }

    #[test]
    fn a_process_without_the_role_shows_the_texts_to_status_tokens_and_opens_no_route_for_applications() {
        let application = |name: &str, scopes: Vec<Scope>| ApplicationConfig {
            name: name.to_owned(),
            token: Secret::new(format!("token-of-{name}-0123")),
            scopes,
        };
        let known = [application("monitor", vec![Scope::Status]), application("shop", Vec::new())];
        let guard = Guard::new(&known, &[], TIME_LIMIT);
        for (name, shows) in [("monitor", Some(true)), ("shop", Some(false)), ("stranger", None)] {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, format!("Bearer token-of-{name}-0123").parse().unwrap());
            assert_eq!(guard.knows_sender("/v1/status", &headers).ok(), shows, "{name}");
            for (route, _, _) in application_routes() {
                assert!(guard.authorise_for(route, &headers).is_err(), "{name} {route}");
            }
        }
    }

    #[test]
    fn the_token_of_a_command_shows_the_texts_and_opens_nothing() {
        let token = Secret::new("token-of-ann-0123456");
        let operators = [OperatorConfig { name: "ann".to_owned(), token }];
        let everything = ApplicationConfig {
            name: "shop".to_owned(),
            token: Secret::new("token-of-shop-012345"),
            scopes: Scope::ALL.to_vec(),
        };
        for (applications, operators) in
            [(vec![], &operators[..]), (vec![everything.clone()], &operators[..0])]
        {
            let guard = Guard::new(&applications, operators, TIME_LIMIT);
            assert!(guard.hides_texts());
            let http = HttpConfig { listen: None, applications, operators: operators.to_vec() };
            let mut headers = HeaderMap::new();
            let sent = format!("Bearer {}", token_of_command(&http).unwrap());
            headers.insert(header::AUTHORIZATION, sent.parse().unwrap());
            assert_eq!(guard.knows_sender("/v1/status", &headers).ok(), Some(true));
            assert!(guard.authorise_operator(&headers).is_err());
            assert!(
                application_routes().iter().all(|(route, ..)| guard.authorise_for(route, &headers).is_err())
            );
        }
        let finder = ApplicationConfig { scopes: vec![Scope::Lookup], ..everything };
        assert!(!Guard::new(&[finder], &[], TIME_LIMIT).hides_texts(), "no token would show them");
    }

    #[test]
    fn the_histogram_of_requests_reaches_beyond_their_time_limits() {
        for limit in [TIME_LIMIT, OPERATOR_TIME_LIMIT] {
            let beyond = SECONDS.iter().filter(|end| **end >= limit.as_secs_f64()).count();
            assert!(beyond >= 2, "{limit:?}: {SECONDS:?}");
        }
        assert!(SECONDS.is_sorted(), "{SECONDS:?}");
    }
}
