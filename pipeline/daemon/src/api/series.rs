//! `GET /v1/series`: rates and lags of sources and lanes over the last hours, and the last changes of state.
//!
//! `observe/ring.rs` bounds the samples, and `observe/recent.rs` makes their text once for all clients. Everything here
//! stands in the status of a client without a token too.

use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Instant;

use anabranch_pipeline::error::Code;
use anabranch_pipeline::wall_clock;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::sync::Semaphore;

use super::Shared;
use super::problem::Problem;
use crate::observe::StateChange;

/// The answer without the series, which follow as a text of their own.
#[derive(Debug, Serialize)]
struct Head {
    /// This daemon's clock, so that a page needs none of its own.
    now_ms: u64,
    step_seconds: u64,
    /// End of the newest sample of each series.
    ends_at_ms: u64,
    events: Vec<StateChange>,
}

/// Answers that clients may be reading at once.
const ANSWERS_MAX: usize = 8;
static ANSWERS: Semaphore = Semaphore::const_new(ANSWERS_MAX);

pub(super) async fn recent(
    State(Shared(served)): State<Shared>,
    headers: HeaderMap,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response, Problem> {
    served.guard.knows_sender("/v1/series", &headers)?;
    let thing = query.get("thing").map(String::as_str);
    // Each answer may hold some megabytes until its client has read them.
    let Ok(permit) = ANSWERS.try_acquire() else {
        let detail = format!("{ANSWERS_MAX} answers are being read");
        return Err(Problem::new(Code::TooManyRequests, detail, "ask again in some seconds"));
    };
    let hours = served.context.observatory.recent_hours(thing, Instant::now()).ok_or_else(|| {
        let detail = "the daemon has no series of this thing";
        Problem::new(Code::RouteUnknown, detail, "GET /v1/series lists all of them")
    })?;
    let now_ms = wall_clock::now_ms();
    let age_ms = u64::try_from(hours.age.as_millis()).unwrap_or(u64::MAX);
    let head = Head {
        now_ms,
        step_seconds: hours.step_seconds,
        ends_at_ms: now_ms.saturating_sub(age_ms),
        events: hours.changes,
    };
    let head = serde_json::to_string(&head).expect("a head holds text and numbers only");
    let before = format!("{},\"series\":", head.strip_suffix('}').unwrap_or(&head));
    let parts = [before.into(), hours.series, Bytes::from_static(b"}")];
    let parts = parts.into_iter().map(move |part| {
        let _held = &permit;
        Ok::<Bytes, Infallible>(part)
    });
    let head = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    Ok((head, Body::from_stream(futures::stream::iter(parts))).into_response())
}
