//! Tests of the endpoints for applications: their bounds, their answers, and their description.

mod long_names;

use std::time::Duration;

use anabranch_pipeline::config::{Config, HttpConfig, Scope, Secret};
use anabranch_pipeline::supervise::{Supervisor, TaskHandle};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

const CONFIG: &str = include_str!("../../../../deploy/anabranch.example.toml");

async fn get(address: SocketAddr, path: &str) -> String {
    exchange(address, &format!("GET {path} HTTP/1.0\r\n\r\n")).await
}

/// Sends the request as it is and reads the answer to the end.
async fn exchange(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn health_readiness_status_and_metrics_are_served() {
    let config = Config::parse(CONFIG).unwrap();
    let tasks = TaskStates::default();
    let cancel = CancellationToken::new();
    let mut supervisor = Supervisor::new(tasks.clone(), cancel.clone(), Duration::from_secs(1));
    supervisor.spawn("reader/elsewhere", |_: TaskHandle, _| async {
        Err(Fault::new(Code::BinlogStatement, "source elsewhere", "an UPDATE of a captured table as text"))
    });
    supervisor.finished().await;
    let shown = ApiContext {
        name: config.name.clone(),
        observatory: Observatory::new(&config),
        tasks,
        roles: vec![Role::Reader, Role::Api],
        metrics: crate::telemetry::install(&config).unwrap(),
        applications: Vec::new(),
        operators: Vec::new(),
        actions: Actions::new(&crate::wiring::Wiring::new(config.clone()), cancel.child_token()),
        orders: UuidOrders::default(),
        lookup: None,
        documents: None,
        flux: None,
        relations: None,
        book: ReconciliationBook::new(&crate::wiring::Wiring::new(config.clone())),
        days: CouponDays::new(&crate::wiring::Wiring::new(config.clone())),
    };
    metrics::counter!(anabranch_pipeline::metrics::FAULTS, "task" => "t", "code" => "c").increment(1);
    metrics::histogram!(anabranch_pipeline::metrics::LANE_FLUSH_SECONDS).record(0.003);
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.address;
    let server = tokio::spawn(listener.serve(shown, cancel.clone()));

    assert!(get(address, "/healthz").await.starts_with("HTTP/1.0 200"));
    let ready = get(address, "/readyz").await;
    assert!(ready.starts_with("HTTP/1.0 503") && ready.contains("\"code\":\"binlog-statement\""), "{ready}");
    let reader = get(address, "/readyz/reader").await;
    assert!(reader.starts_with("HTTP/1.0 503") && reader.contains("reader/elsewhere"), "{reader}");
    let api = get(address, "/readyz/api").await;
    assert!(api.starts_with("HTTP/1.0 200") && api.ends_with("{\"ready\":true,\"reasons\":[]}"), "{api}");
    for absent in ["/readyz/projector", "/readyz/nobody"] {
        let answer = get(address, absent).await;
        assert!(
            answer.starts_with("HTTP/1.0 404") && answer.contains("application/problem+json"),
            "{answer}"
        );
        assert!(answer.contains("\"code\":\"route-unknown\"") && answer.contains("reader,api"), "{answer}");
    }
    let live = get(address, "/livez").await;
    assert!(live.starts_with("HTTP/1.0 200") && live.ends_with("{\"alive\":true,\"stuck\":[]}"), "{live}");
    let metrics = get(address, "/metrics").await;
    assert!(metrics.contains("anabranch_faults_total{"), "{metrics}");
    assert!(metrics.contains("anabranch_lane_flush_seconds_bucket{le=\"0.005\"} 1"), "{metrics}");
    let http = HttpConfig { listen: Some(address), ..config.http.clone() };
    let answer = client::status(&http).await.expect("the daemon answers");
    assert_eq!(answer.name, config.name);
    assert_eq!(answer.status.tasks[0].state, "stopped");

    let taken = Listener::bind(address).await.unwrap_err();
    assert_eq!(taken.code(), Code::ListenFailed);
    assert!(taken.to_string().contains(&address.to_string()), "{taken}");
    cancel.cancel();
    server.await.unwrap();
    assert!(client::status(&http).await.is_none(), "nobody listens any more");
}

const TOKEN: &str = "0123456789abcdef";

/// An application with every scope.
fn application(token: &str) -> ApplicationConfig {
    ApplicationConfig { name: token.to_owned(), token: Secret::new(token), scopes: Scope::ALL.to_vec() }
}

/// A served API with these tokens, without a task that carries out its orders.
struct Api {
    address: SocketAddr,
    cancel: CancellationToken,
    orders: UuidOrders,
}

impl Api {
    async fn with(tokens: &[&str]) -> Self {
        Self::bounded(tokens, ConnectionBounds::default()).await
    }

    async fn bounded(tokens: &[&str], bounds: ConnectionBounds) -> Self {
        Self::served(tokens, &[], bounds).await
    }

    async fn served(tokens: &[&str], operators: &[(&str, &str)], bounds: ConnectionBounds) -> Self {
        let config = Config::parse(CONFIG).unwrap();
        let cancel = CancellationToken::new();
        let operator = |(name, token): &(&str, &str)| OperatorConfig {
            name: (*name).to_owned(),
            token: Secret::new(*token),
        };
        let orders = UuidOrders::default();
        let shown = ApiContext {
            name: config.name.clone(),
            observatory: Observatory::new(&config),
            tasks: TaskStates::default(),
            roles: Role::ALL.to_vec(),
            metrics: crate::telemetry::uninstalled(),
            applications: tokens.iter().map(|token| application(token)).collect(),
            operators: operators.iter().map(operator).collect(),
            actions: Actions::new(&crate::wiring::Wiring::new(config.clone()), cancel.child_token()),
            orders: orders.clone(),
            documents: None,
            flux: None,
            relations: None,
            book: ReconciliationBook::new(&crate::wiring::Wiring::new(config.clone())),
            days: CouponDays::new(&crate::wiring::Wiring::new(config.clone())),
            lookup: Lookup::new(&crate::wiring::Wiring::new(config)),
        };
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let listener = Listener { bounds, ..listener };
        let address = listener.address;
        tokio::spawn(listener.serve(shown, cancel.clone()));
        Self { address, cancel, orders }
    }

    /// Sends the request as it is; returns the head, and the body as JSON.
    async fn raw(&self, request: &str) -> (String, serde_json::Value) {
        let answer = exchange(self.address, request).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), serde_json::from_str(body).unwrap_or_default())
    }

    async fn post(&self, authorization: &str, body: &str) -> (String, serde_json::Value) {
        self.post_to("/v1/uuids", authorization, body).await
    }

    async fn post_to(&self, path: &str, authorization: &str, body: &str) -> (String, serde_json::Value) {
        let head = format!("Authorization: {authorization}\r\nContent-Type: application/json");
        let length = body.len();
        self.raw(&format!("POST {path} HTTP/1.0\r\n{head}\r\nContent-Length: {length}\r\n\r\n{body}")).await
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

fn expect(answer: &(String, serde_json::Value), status: u16, code: &str) {
    let (head, body) = answer;
    assert!(head.starts_with(&format!("HTTP/1.0 {status} ")), "{status} {code}: {head}");
    assert!(head.to_lowercase().contains("content-type: application/problem+json"), "{head}");
    assert_eq!(
        (body["status"].as_u64(), body["code"].as_str()),
        (Some(u64::from(status)), Some(code)),
        "{body}"
    );
    for key in ["type", "title", "detail", "remedy"] {
        assert!(body[key].as_str().is_some_and(|text| !text.is_empty()), "{key} in {body}");
    }
}

#[tokio::test]
async fn an_application_needs_one_of_the_configured_tokens() {
    let api = Api::with(&["another-token-of-the-file", TOKEN]).await;
    for wrong in
        ["Bearer 0123456789abcdeg", "Bearer 0123456789abcde", "Bearer ", "Bearer", "", TOKEN, "Basic x"]
    {
        let answer = api.post(wrong, r#"{"count": 1}"#).await;
        expect(&answer, 401, "token-refused");
        assert!(answer.0.to_lowercase().contains("www-authenticate: bearer"), "{}", answer.0);
        assert!(!answer.1.to_string().contains(TOKEN), "{}", answer.1);
    }
    expect(&api.raw("POST /v1/uuids HTTP/1.0\r\n\r\n").await, 401, "token-refused");
    // The token is accepted; the request is refused for its count.
    expect(&api.post(&format!("bearer {TOKEN}"), r#"{"count": 0}"#).await, 422, "count-out-of-range");

    let closed = Api::with(&[]).await;
    let answer = closed.post(&format!("Bearer {TOKEN}"), r#"{"count": 1}"#).await;
    expect(&answer, 403, "tokens-missing");
    assert!(answer.1["remedy"].as_str().unwrap().contains("http.tokens"), "{}", answer.1);
    let open = closed.raw("GET /v1/openapi.json HTTP/1.0\r\n\r\n").await;
    assert!(open.0.starts_with("HTTP/1.0 200"), "{}", open.0);
}

#[tokio::test]
async fn an_action_needs_the_token_of_an_operator_who_gets_nothing_of_applications() {
    const OPERATOR: &str = "token-of-ann-0123";
    let operators = [("ann", OPERATOR), ("bob", "token-of-bob-0123")];
    let api = Api::served(&[TOKEN], &operators, ConnectionBounds::default()).await;
    let body = r#"{"action": "restart", "task": "reader/source-a", "dry_run": true}"#;
    let act = async |api: &Api, authorization: &str, body: &str| {
        api.post_to("/v1/operations", authorization, body).await
    };
    let done = act(&api, &format!("Bearer {OPERATOR}"), body).await;
    assert!(done.0.starts_with("HTTP/1.0 200 "), "{done:?}");
    assert_eq!(done.1["command"], "anabranch restart reader/source-a");
    assert!(done.1["dry_run"] == true && done.1["operation"].is_null(), "{}", done.1);
    let line = done.1["lines"][0].as_str().unwrap();
    assert!(line.starts_with("task reader/source-a would be tried again"), "{line}");
    let wrong = r#"{"action": "restart", "task": "reader/nobody", "dry_run": true}"#;
    expect(&act(&api, &format!("Bearer {OPERATOR}"), wrong).await, 422, "config-invalid");

    for (authorization, status, code) in [
        (format!("Bearer {TOKEN}"), 403, "operator-refused"),
        ("Bearer token-of-ann-0124".to_owned(), 401, "token-refused"),
        ("Bearer token-of-ann-012".to_owned(), 401, "token-refused"),
        ("Bearer ".to_owned(), 401, "token-refused"),
        (format!("Basic {OPERATOR}"), 401, "token-refused"),
        (OPERATOR.to_owned(), 401, "token-refused"),
    ] {
        let refused = act(&api, &authorization, body).await;
        expect(&refused, status, code);
        assert!(!refused.1.to_string().contains("token-of"), "{}", refused.1);
        let list = format!("GET /v1/operations HTTP/1.0\r\nAuthorization: {authorization}\r\n\r\n");
        expect(&api.raw(&list).await, status, code);
    }
    expect(&api.raw("POST /v1/operations HTTP/1.0\r\n\r\n").await, 401, "token-refused");
    // An operator is known where texts are shown, and is no application.
    expect(&api.post(&format!("Bearer {OPERATOR}"), r#"{"count": 1}"#).await, 401, "token-refused");
    for (token, status) in [(OPERATOR, "200"), (TOKEN, "200"), ("another-token-0123", "401")] {
        let head = format!("GET /v1/reconciliations HTTP/1.0\r\nAuthorization: Bearer {token}\r\n\r\n");
        let answer = api.raw(&head).await.0;
        assert!(answer.starts_with(&format!("HTTP/1.0 {status} ")), "{token}: {answer}");
    }

    let without = Api::with(&[TOKEN]).await;
    for token in [TOKEN, OPERATOR] {
        let refused = act(&without, &format!("Bearer {token}"), body).await;
        expect(&refused, 403, "operator-refused");
        assert!(refused.1["remedy"].as_str().unwrap().contains("http.operators"), "{}", refused.1);
    }
}

#[tokio::test]
async fn a_wrong_body_is_refused_with_the_place() {
    let api = Api::with(&[TOKEN]).await;
    let bearer = format!("Bearer {TOKEN}");
    for (body, status, code, place) in [
        ("{\"count\":", 400, "body-not-json", "line 1 column 9"),
        ("{\n \"count\": 1,\n}", 400, "body-not-json", "line 3 column 1"),
        ("", 400, "body-not-json", "line 1 column 0"),
        ("\u{0}", 400, "body-not-json", "line 1 column 1"),
        ("{}", 422, "body-not-understood", "`count` is missing"),
        (r#"{"count": null}"#, 422, "body-not-understood", "`count` is missing"),
        ("[1]", 422, "body-not-understood", "the body is a list; an object is needed, with count"),
        ("7", 422, "body-not-understood", "the body is a number; an object is needed"),
        (r#"{"count": "7"}"#, 422, "body-not-understood", "`count` is text; a whole number"),
        (r#"{"count": -1}"#, 422, "body-not-understood", "`count` is a negative number; a whole"),
        (r#"{"count": 1.5}"#, 422, "body-not-understood", "`count` is a number with a fraction"),
        (r#"{"count": 1, "colour": 2}"#, 422, "body-not-understood", "`colour` is not a key of this body"),
        (r#"{"count": 10001}"#, 422, "count-out-of-range", "10000"),
        (r#"{"count": 18446744073709551615}"#, 422, "count-out-of-range", "18446744073709551615"),
    ] {
        let answer = api.post(&bearer, body).await;
        expect(&answer, status, code);
        let detail = answer.1["detail"].as_str().unwrap();
        assert!(detail.contains(place), "{place} is not in {detail}");
        // An answer has no words of our types or of the library that reads JSON.
        for foreign in ["struct", "invalid type", "u32", "deserialize"] {
            assert!(!detail.contains(foreign), "{detail}");
        }
    }
    let head = format!("POST /v1/uuids HTTP/1.0\r\nAuthorization: {bearer}\r\n");
    expect(&api.raw(&format!("{head}Content-Length: 2\r\n\r\n{{}}")).await, 415, "content-type-missing");
}

#[tokio::test]
async fn a_huge_body_is_refused_before_it_is_read_and_one_without_length_at_the_limit() {
    let api = Api::with(&[TOKEN]).await;
    let head = format!("Authorization: Bearer {TOKEN}\r\nContent-Type: application/json");
    let request = format!("POST /v1/uuids HTTP/1.0\r\n{head}\r\nContent-Length: 104857600\r\n\r\n");
    expect(&api.raw(&request).await, 413, "body-too-large");

    let bytes = guard::BODY_BYTES_MAX + 1;
    let chunk = " ".repeat(bytes);
    let request = format!(
        "POST /v1/uuids HTTP/1.1\r\nHost: a\r\n{head}\r\nTransfer-Encoding: chunked\r\n\r\n{bytes:x}\r\n{chunk}\r\n"
    );
    let (head, body) = api.raw(&request).await;
    assert!(head.starts_with("HTTP/1.1 413 "), "{head}");
    assert_eq!(body["code"], "body-too-large");
}

/// More half bodies wait than requests are answered at once, and other requests are answered beside them.
#[tokio::test]
async fn half_bodies_hold_up_nobody_and_are_told_that_they_are_late() {
    let head =
        format!("Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\nContent-Length: 12");
    let half = format!("POST /v1/uuids HTTP/1.1\r\nHost: a\r\n{head}\r\n\r\n{{\"cou");
    let api = Api::bounded(&[TOKEN], ConnectionBounds { body_time: WAIT_MAX, ..Default::default() }).await;
    let mut held = Vec::new();
    for _ in 0..300 {
        let mut stream = TcpStream::connect(api.address).await.unwrap();
        stream.write_all(half.as_bytes()).await.unwrap();
        held.push(stream);
    }
    for _ in 0..10 {
        expect(&api.post(&format!("Bearer {TOKEN}"), r#"{"count": 0}"#).await, 422, "count-out-of-range");
    }
    drop(held);

    let bounds = ConnectionBounds { body_time: Duration::from_millis(200), ..Default::default() };
    let api = Api::bounded(&[TOKEN], bounds).await;
    let (head, body) = api.raw(&half).await;
    assert!(head.starts_with("HTTP/1.1 408 ") && head.to_lowercase().contains("connection: close"), "{head}");
    assert_eq!((&body["code"], body["status"].as_u64()), (&"body-late".into(), Some(408)), "{body}");
}

#[tokio::test]
async fn a_code_that_a_path_cannot_carry_is_told_so() {
    let api = Api::with(&[TOKEN]).await;
    for (path, named) in
        [("/v1/serials/", "the code is empty"), ("/v1/serials/lookup", "/v1/serials/lookup?code=lookup")]
    {
        let head = format!("GET {path} HTTP/1.0\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
        let answer = api.raw(&head).await;
        expect(&answer, 422, "lookup-malformed");
        assert!(answer.1["detail"].as_str().unwrap().contains(named), "{}", answer.1);
    }
    expect(&api.raw("GET /v1/serials/ HTTP/1.0\r\n\r\n").await, 401, "token-refused");
}

/// Far longer than an answer takes: an answer that has not come by then does not come.
const WAIT_MAX: Duration = Duration::from_secs(20);
const KEPT_OPEN: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";

#[tokio::test]
async fn a_client_that_sends_a_byte_and_waits_is_cut_off() {
    let bounds = ConnectionBounds { head_time: Duration::from_millis(200), ..ConnectionBounds::default() };
    let api = Api::bounded(&[], bounds).await;
    for sent in ["G", "", "GET /healthz HTTP/1.1\r\nHost: a\r\n"] {
        let mut slow = TcpStream::connect(api.address).await.unwrap();
        slow.write_all(sent.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(WAIT_MAX, slow.read_to_end(&mut answer)).await;
        assert!(ended.is_ok(), "{sent:?} holds its connection");
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{sent:?} is no request");
    }
    assert!(get(api.address, "/healthz").await.starts_with("HTTP/1.0 200"));
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_until_one_ends() {
    let bounds = ConnectionBounds { connections: 2, head_time: WAIT_MAX, body_time: WAIT_MAX };
    let api = Api::bounded(&[], bounds).await;
    let answered = async |stream: &mut TcpStream| {
        let mut begin = [0; 12];
        stream.read_exact(&mut begin).await.unwrap();
        assert_eq!(&begin, b"HTTP/1.1 200");
    };
    let mut held = Vec::new();
    for _ in 0..bounds.connections {
        let mut stream = TcpStream::connect(api.address).await.unwrap();
        stream.write_all(KEPT_OPEN).await.unwrap();
        answered(&mut stream).await;
        held.push(stream);
    }
    let mut beyond = TcpStream::connect(api.address).await.unwrap();
    beyond.write_all(KEPT_OPEN).await.unwrap();
    let too_early = tokio::time::timeout(Duration::from_millis(500), answered(&mut beyond)).await;
    assert!(too_early.is_err(), "a third connection is served beside two");
    held.pop();
    tokio::time::timeout(WAIT_MAX, answered(&mut beyond)).await.expect("a place has become free");
}

#[tokio::test]
async fn unknown_routes_and_methods_are_named() {
    let api = Api::with(&[TOKEN]).await;
    expect(&api.raw("GET /v2/uuids HTTP/1.0\r\n\r\n").await, 404, "route-unknown");
    expect(&api.raw("GET /v1/uuids HTTP/1.0\r\n\r\n").await, 405, "method-not-allowed");
    expect(&api.raw("DELETE /v1/status HTTP/1.0\r\n\r\n").await, 405, "method-not-allowed");
}

#[tokio::test]
async fn series_are_one_document_also_before_the_first_sample() {
    let api = Api::with(&[TOKEN]).await;
    let (head, body) = api.raw("GET /v1/series HTTP/1.0\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.0 200 ") && body["now_ms"].is_u64(), "{head} {body}");
    let none = serde_json::json!([]);
    assert_eq!((&body["series"], &body["events"]), (&none, &none), "{body}");
    assert_eq!(body["step_seconds"], 10, "{body}");
    expect(&api.raw("GET /v1/series?thing=lane/none HTTP/1.0\r\n\r\n").await, 404, "route-unknown");
    for path in ["/v1/series", "/v1/status"] {
        let head = format!("GET {path} HTTP/1.0\r\nAuthorization: Bearer another\r\n\r\n");
        expect(&api.raw(&head).await, 401, "token-refused");
    }
}

#[tokio::test]
async fn without_an_index_relations_of_documents_are_unconfigured() {
    let api = Api::with(&[TOKEN]).await;
    for path in ["/v1/flux/2016060611031003099052400029904", "/v1/flux/1/relations?limit=7"] {
        let head = format!("GET {path} HTTP/1.0\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
        let answer = api.raw(&head).await;
        expect(&answer, 404, "flux-unconfigured");
        assert!(answer.1["remedy"].as_str().unwrap().contains("flux_relations"), "{}", answer.1);
        expect(&api.raw(&format!("GET {path} HTTP/1.0\r\n\r\n")).await, 401, "token-refused");
    }
}

#[tokio::test]
async fn without_a_machine_number_uuids_are_unavailable_and_not_wrong() {
    let api = Api::with(&[TOKEN]).await;
    let bearer = format!("Bearer {TOKEN}");
    let orders = api.orders.clone();
    let answering = tokio::spawn(async move {
        let mut receiver = orders.receiver.lock().await;
        let first = receiver.recv().await.unwrap();
        assert_eq!(first.key, None);
        first.answer.send(Ok(Some(vec![u64::MAX >> 1; first.count as usize]))).unwrap();
        let keyed = receiver.recv().await.unwrap();
        assert_eq!(keyed.key.as_deref().map(str::len), Some(64), "a digest, whatever was sent");
        keyed.answer.send(Ok(None)).unwrap();
        let refused = receiver.recv().await.unwrap();
        let full = Fault::new(Code::UuidsKeysFull, "bucket demo_intake", "no room").remedy("without a key");
        refused.answer.send(Err(full)).unwrap();
        drop(receiver.recv().await.unwrap());
    });
    let (head, body) = api.post(&bearer, r#"{"count": 2}"#).await;
    assert!(head.starts_with("HTTP/1.0 200"), "{head}");
    assert_eq!(body.to_string(), r#"{"uuids":["9223372036854775807","9223372036854775807"]}"#);
    let keyed = format!("{bearer}\r\nIdempotency-Key: intake 7 of \u{e4}");
    expect(&api.post(&keyed, r#"{"count": 2}"#).await, 422, "key-reused");
    expect(&api.post(&keyed, r#"{"count": 2}"#).await, 507, "uuids-keys-full");
    let long = format!("{bearer}\r\nIdempotency-Key: {}", "x".repeat(256));
    expect(&api.post(&long, r#"{"count": 2}"#).await, 422, "key-malformed");
    let answer = api.post(&bearer, r#"{"count": 2}"#).await;
    expect(&answer, 503, "uuids-unavailable");
    assert!(answer.0.to_lowercase().contains("retry-after: 1"), "{}", answer.0);
    answering.await.unwrap();
}

#[test]
fn the_description_names_exactly_what_is_served_and_to_whom() {
    let document: serde_json::Value = serde_json::from_str(OPENAPI).unwrap();
    let named = |routes: Routes| -> std::collections::BTreeSet<String> {
        routes.into_iter().map(|(path, method, _)| format!("{method} {path}")).collect()
    };
    let (mut open, mut guarded) = (named(open_routes()), named(application_routes()));
    let mut of_operators = named(operator_routes());
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, description) in methods.as_object().unwrap() {
            let name = format!("{} {path}", method.to_uppercase());
            let served = match description.pointer("/security/0/operator") {
                Some(_) => &mut of_operators,
                None if description["security"].is_null() => &mut guarded,
                None => &mut open,
            };
            assert!(served.remove(&name), "{name} is described and not served so");
        }
    }
    assert!(open.is_empty() && guarded.is_empty(), "not described: {open:?} {guarded:?}");
    assert!(of_operators.is_empty(), "not described: {of_operators:?}");
}

/// The description lists every code that can come, and `explain` knows each (`error.rs` has that test).
#[test]
fn the_description_lists_exactly_the_codes_of_this_build() {
    let document: serde_json::Value = serde_json::from_str(OPENAPI).unwrap();
    let described = document.pointer("/components/schemas/Code/enum").unwrap().as_array().unwrap();
    let described: Vec<&str> = described.iter().map(|code| code.as_str().unwrap()).collect();
    let all: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(described, all);
}

/// Each `$ref` of the description leads somewhere.
#[test]
fn the_description_has_no_dangling_reference() {
    let document: serde_json::Value = serde_json::from_str(OPENAPI).unwrap();
    let references = OPENAPI.split("\"$ref\": \"#").skip(1).map(|rest| rest.split('"').next().unwrap());
    for reference in references {
        assert!(document.pointer(reference).is_some(), "{reference}");
    }
}
