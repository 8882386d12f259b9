//! `POST /v1/dispatch/{programme}/{day}`: begins a coupon day, as its schedule does.
//!
//! The handler begins the run in the ledger, and a dispatcher continues it within seconds. So a client may repeat the
//! request. A day that has not come is refused.

use anabranch_pipeline::error::Code;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use jiff::civil::Date;
use serde::Serialize;

use super::problem::Problem;
use super::{SEE_DESCRIPTION, Shared};

/// A run that was begun, now or before.
#[derive(Debug, Serialize)]
pub(super) struct BegunRun {
    programme: String,
    day: String,
    /// Waves that are frozen: midnight, noon, catch-up.
    frozen: u8,
    is_closed: bool,
    /// Members of the cohort so far.
    eligible: u64,
}

pub(super) async fn begin(
    State(Shared(served)): State<Shared>,
    Path((programme, day)): Path<(String, String)>,
) -> Result<(StatusCode, Json<BegunRun>), Problem> {
    let date: Date = day.parse().map_err(|_| {
        Problem::new(Code::DispatchRefused, "the path names no day", "a day such as 2027-02-28")
    })?;
    let days = &served.context.days;
    if !days.knows(&programme) {
        return Err(Problem::new(Code::RouteUnknown, "no programme has this name", SEE_DESCRIPTION));
    }
    let begun = days.begin(&programme, date).await.map_err(|fault| Problem::from(&fault))?;
    let run = BegunRun {
        programme,
        day: date.to_string(),
        frozen: begun.frozen,
        is_closed: begun.is_closed,
        eligible: begun.count,
    };
    Ok((StatusCode::ACCEPTED, Json(run)))
}
