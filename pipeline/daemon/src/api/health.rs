//! Answers probes whether the process lives and is ready: `/healthz`, `/livez`, `/readyz`, `/readyz/{role}`.
//!
//! A process is alive while its tasks turn, whatever its servers do: a probe that restarts it must not do so because a
//! server is away. A process is ready while it does its work, or while another process does its part. If some token
//! shows the texts of faults, which name hosts and accounts, the reasons have them only for a sender with a token.

use std::time::Instant;

use anabranch_pipeline::error::Code;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::Shared;
use super::problem::Problem;
use crate::observe::Reason;
use crate::roles::{self, Role};
use crate::watchdog::TURN_AGE_MAX;

/// The answer of `/livez`.
#[derive(Debug, Serialize)]
struct LiveAnswer {
    alive: bool,
    /// Tasks whose loops do not turn.
    stuck: Vec<String>,
}

/// The answer of `/readyz`.
#[derive(Debug, Serialize)]
struct ReadyAnswer {
    ready: bool,
    reasons: Vec<Reason>,
}

/// Answers whenever the listener works.
pub(super) async fn healthy() -> &'static str {
    "ok\n"
}

pub(super) async fn live(State(Shared(shown)): State<Shared>) -> Response {
    let stuck = shown.context.tasks.stuck(TURN_AGE_MAX);
    (status(stuck.is_empty()), Json(LiveAnswer { alive: stuck.is_empty(), stuck })).into_response()
}

pub(super) async fn ready(State(shared): State<Shared>, headers: HeaderMap) -> Response {
    readiness(&shared, &headers, |_| true)
}

/// Answers for the tasks of one role; a process without that role answers with a problem.
pub(super) async fn ready_in_role(
    State(shared): State<Shared>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let own = &shared.0.context.roles;
    match Role::named(&name).filter(|role| own.contains(role)) {
        Some(role) => Ok(readiness(&shared, &headers, |task| Role::of_task(task) == role)),
        None => {
            let detail = format!("this process has the roles {}, and no role {name}", roles::names(own));
            Err(Problem::new(Code::RouteUnknown, detail, "ask for one of its roles, or GET /readyz for all"))
        }
    }
}

fn readiness(Shared(served): &Shared, headers: &HeaderMap, is_meant: impl Fn(&str) -> bool) -> Response {
    let (shown, guard) = (&served.context, &served.guard);
    let mut tasks = shown.tasks.snapshot();
    tasks.retain(|name, _| is_meant(name));
    let mut reasons = shown.observatory.reasons_against_ready(&tasks, Instant::now());
    // A probe with a wrong token is answered too: a token that was changed takes no process out of use.
    if guard.hides_texts() && !guard.knows_sender("/readyz", headers).unwrap_or(false) {
        reasons.iter_mut().for_each(Reason::leave_out_fault);
    }
    (status(reasons.is_empty()), Json(ReadyAnswer { ready: reasons.is_empty(), reasons })).into_response()
}

fn status(is_well: bool) -> StatusCode {
    if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}
