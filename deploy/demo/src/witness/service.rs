//! Answers requests: the routes of the contract under `/v1`, and those for tests under `/control`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{Query, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::book::{Book, Gift, now_ms};
use super::faults::{Dice, Fate, Faults};

/// Most calls or keys of one request, as in the contract.
const CALLS_MAX: usize = 100;
/// Most gifts of one page.
const PAGE_MAX: usize = 10_000;

/// The state that all connections share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) state: Mutex<WitnessState>,
    pub(super) key_memory: Duration,
    pub(super) token: Option<String>,
}

/// The book and the faults.
#[derive(Debug)]
pub(super) struct WitnessState {
    pub(super) book: Book,
    pub(super) dice: Dice,
    /// Number of calls that came, whatever their outcome.
    pub(super) calls: u64,
    /// Number of those that came in a request for one coupon.
    pub(super) single_calls: u64,
}

/// Marks a response in place of which the connection is closed.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClosesConnection;

#[derive(Debug, Deserialize)]
struct Call {
    key: String,
    user: String,
    programme: String,
    occurrence: String,
    coupon: String,
}

#[derive(Debug, Deserialize)]
struct Calls {
    calls: Vec<Call>,
}

#[derive(Debug, Deserialize)]
struct Keys {
    keys: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct PageQuery {
    #[serde(default)]
    after: usize,
    #[serde(default)]
    since_ms: u64,
    #[serde(default = "page_max")]
    limit: usize,
}

fn page_max() -> usize {
    PAGE_MAX
}

#[derive(Debug, Serialize)]
struct Page {
    gifts: Vec<Gift>,
    /// The position of this page, as it was asked for.
    after: usize,
    /// The position of the next page; `None` after the last one.
    next: Option<usize>,
}

#[derive(Debug, Deserialize)]
struct Forget {
    #[serde(default)]
    older_than_seconds: u64,
}

type Witness = State<Arc<Shared>>;

pub(super) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/coupons", post(single))
        .route("/v1/coupons/batch", post(batch))
        .route("/v1/coupons/query", post(query))
        .route("/v1/coupons/given", get(given))
        .route("/control/faults", post(switch).get(show))
        .route("/control/forget", post(forget))
        .route("/control/counts", get(counts))
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), require_token))
        .with_state(shared)
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, WitnessState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the work of a request, unless its fate is another one.
    async fn answer(
        &self,
        calls: Vec<Call>,
        respond: impl Fn(Vec<(String, &'static str)>) -> Response,
    ) -> Response {
        let (fate, late) = {
            let mut state = self.state();
            state.calls += calls.len() as u64;
            state.dice.next()
        };
        tokio::time::sleep(late).await;
        match fate {
            Fate::Busy { retry_after_seconds } => {
                let after = [(header::RETRY_AFTER, retry_after_seconds.to_string())];
                return (StatusCode::TOO_MANY_REQUESTS, after).into_response();
            }
            Fate::Unavailable => return StatusCode::SERVICE_UNAVAILABLE.into_response(),
            Fate::ErrorBefore => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            Fate::LostBefore => return closed(),
            Fate::Answered | Fate::ErrorAfter | Fate::LostAfter => {}
        }
        let (outcomes, written) = {
            let mut state = self.state();
            let outcomes: Vec<_> = calls.into_iter().map(|call| self.outcome(&mut state, call)).collect();
            (outcomes, state.book.flush())
        };
        written.await;
        match fate {
            Fate::ErrorAfter => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            Fate::LostAfter => closed(),
            _ => respond(outcomes),
        }
    }

    fn outcome(&self, state: &mut WitnessState, call: Call) -> (String, &'static str) {
        if let Some(refusal) = state.dice.refusal(&call.key) {
            return (call.key, refusal);
        }
        self.forget_old(state, &call.key);
        if let Some(known) = state.book.keys.get(&call.key) {
            let outcome = if known.coupon == call.coupon { "given" } else { "mismatch" };
            return (call.key, outcome);
        }
        if !state.dice.take_coupon() {
            return (call.key, "pool_empty");
        }
        let Call { key, user, programme, occurrence, coupon } = call;
        let given_at_ms = now_ms();
        state.book.give(Gift { key: key.clone(), user, programme, occurrence, coupon, given_at_ms });
        (key, "given")
    }

    /// Forgets a key whose time is over.
    fn forget_old(&self, state: &mut WitnessState, key: &str) {
        let memory = u64::try_from(self.key_memory.as_millis()).unwrap_or(u64::MAX);
        let given_at_ms = state.book.keys.get(key).map(|known| known.given_at_ms);
        if given_at_ms.is_some_and(|at| now_ms() >= at.saturating_add(memory)) {
            state.book.forget(key.to_owned());
        }
    }
}

async fn require_token(State(shared): Witness, request: Request, next: Next) -> Response {
    let needed = shared.token.as_ref().map(|token| format!("Bearer {token}"));
    let found = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    match needed {
        Some(needed) if found != Some(needed.as_bytes()) => StatusCode::UNAUTHORIZED.into_response(),
        _ => next.run(request).await,
    }
}

async fn single(State(shared): Witness, Json(call): Json<Call>) -> Response {
    let respond = |outcomes: Vec<(String, &'static str)>| {
        let outcome = outcomes.first().map_or("", |(_, outcome)| *outcome);
        let status = match outcome {
            "mismatch" => StatusCode::CONFLICT,
            "rejected" => StatusCode::UNPROCESSABLE_ENTITY,
            "pool_empty" => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::OK,
        };
        (status, Json(json!({ "outcome": outcome }))).into_response()
    };
    shared.state().single_calls += 1;
    shared.answer(vec![call], respond).await
}

async fn batch(State(shared): Witness, Json(calls): Json<Calls>) -> Response {
    if calls.calls.len() > CALLS_MAX {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    }
    let respond = |outcomes: Vec<(String, &'static str)>| {
        let answers = outcomes.iter().map(|(key, outcome)| json!({ "key": key, "outcome": outcome }));
        Json(json!({ "answers": answers.collect::<Vec<_>>() })).into_response()
    };
    shared.answer(calls.calls, respond).await
}

async fn query(State(shared): Witness, Json(keys): Json<Keys>) -> Response {
    if keys.keys.len() > CALLS_MAX {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    }
    let (known, written) = {
        let mut state = shared.state();
        if state.dice.faults.unavailable {
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        }
        let mut known = Vec::with_capacity(keys.keys.len());
        for key in keys.keys {
            shared.forget_old(&mut state, &key);
            known.push(json!({ "is_known": state.book.keys.contains_key(&key), "key": key }));
        }
        (known, state.book.flush())
    };
    // Keys that are reported as known are on the disk.
    written.await;
    Json(json!({ "known": known })).into_response()
}

/// Returns every gift, those of forgotten keys too, in the order in which they were given.
async fn given(State(shared): Witness, Query(place): Query<PageQuery>) -> Response {
    let (page, written) = {
        let mut state = shared.state();
        let limit = place.limit.clamp(1, PAGE_MAX);
        let rest = state.book.gifts.get(place.after..).unwrap_or_default();
        let gifts: Vec<Gift> = rest.iter().take(limit).cloned().collect();
        let end = place.after + gifts.len();
        let next = (end < state.book.gifts.len()).then_some(end);
        let gifts = gifts.into_iter().filter(|gift| gift.given_at_ms >= place.since_ms).collect();
        (Page { gifts, after: place.after, next }, state.book.flush())
    };
    written.await;
    Json(page).into_response()
}

async fn switch(State(shared): Witness, Json(faults): Json<Faults>) -> StatusCode {
    shared.state().dice.faults = faults;
    StatusCode::NO_CONTENT
}

async fn show(State(shared): Witness) -> Json<Faults> {
    Json(shared.state().dice.faults.clone())
}

async fn forget(State(shared): Witness, Json(forget): Json<Forget>) -> Response {
    let (count, written) = {
        let mut state = shared.state();
        let before = now_ms().saturating_sub(forget.older_than_seconds.saturating_mul(1_000));
        let old = state.book.keys.iter().filter(|(_, known)| known.given_at_ms <= before);
        let old: Vec<String> = old.map(|(key, _)| key.clone()).collect();
        let count = old.len();
        old.into_iter().for_each(|key| state.book.forget(key));
        (count, state.book.flush())
    };
    written.await;
    Json(json!({ "forgotten": count })).into_response()
}

async fn counts(State(shared): Witness) -> Response {
    let state = shared.state();
    let WitnessState { book, calls, single_calls, .. } = &*state;
    let (gifts, keys) = (book.gifts.len(), book.keys.len());
    Json(json!({ "calls": calls, "single_calls": single_calls, "gifts": gifts, "keys": keys }))
        .into_response()
}

fn closed() -> Response {
    let mut response = StatusCode::INTERNAL_SERVER_ERROR.into_response();
    response.extensions_mut().insert(ClosesConnection);
    response
}
