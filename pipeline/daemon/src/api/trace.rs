//! `POST /v1/trace`: follows one key, for operators. The key comes in the body, so that no path and no log has it.

use std::time::Instant;

use axum::Json;
use axum::extract::State;

use super::Shared;
use super::body::{Body, Fields, FromFields, required};
use super::problem::Problem;
use crate::trace::{self, TraceAnswer, TraceLimits, TraceQuestion};

pub(super) struct TraceRequest {
    key: String,
    projection: Option<String>,
}

impl FromFields for TraceRequest {
    const KEYS: &'static [&'static str] = &["key", "projection"];

    fn from_fields(fields: &mut Fields) -> Result<Self, Problem> {
        Ok(Self { key: required("key", fields.text("key")?)?, projection: fields.text("projection")? })
    }
}

pub(super) async fn follow(
    State(Shared(served)): State<Shared>,
    Body(request): Body<TraceRequest>,
) -> Result<Json<TraceAnswer>, Problem> {
    let TraceRequest { key, projection } = request;
    let question = TraceQuestion::new(key.into_bytes(), projection).map_err(|fault| Problem::from(&fault))?;
    let status = served.status(Instant::now()).status;
    let wiring = served.context.actions.wiring();
    let answer = trace::follow(wiring, &status, &question, TraceLimits::REQUEST).await;
    answer.map(Json).map_err(|fault| Problem::from(&fault))
}
