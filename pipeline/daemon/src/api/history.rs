//! `GET /v1/reconciliations`: the past reconciliations by pages, and those that are under way.
//!
//! `reconciliations/book.rs` keeps the list, so any number of requests costs one query of the servers. A client that
//! sends no token gets no reasons, which name hosts and tables.

use std::collections::HashMap;

use anabranch_pipeline::error::Code;
use anabranch_pipeline::wall_clock;
use axum::Json;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use serde::Serialize;

use super::problem::Problem;
use super::{SEE_DESCRIPTION, Shared};
use crate::reconciliations::{HistoryEntry, Progress};

/// Reconciliations a page, unless the request asks for fewer.
const PAGE_MAX: u64 = 100;

#[derive(Debug, Serialize)]
pub(super) struct Answer {
    /// This daemon's clock, so that a page needs none of its own.
    now_ms: u64,
    /// Time of the last read of the history; `None` = never.
    read_at_ms: Option<u64>,
    /// Code of the fault when the history cannot be read now.
    code: Option<&'static str>,
    /// A `reconcile.signing_key` is configured; without one, a seal shows accidents only.
    is_signed: bool,
    /// Number of older reconciliations, which are not listed.
    older: u64,
    /// Number of reconciliations that will be listed and were not read yet; `None` = not known.
    unread: Option<u64>,
    underway: Vec<Progress>,
    /// The newest first.
    reconciliations: Vec<HistoryEntry>,
    /// Value of `before` for the next page; `None` on the last one.
    next: Option<u64>,
}

pub(super) async fn list(
    State(Shared(served)): State<Shared>,
    headers: HeaderMap,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Json<Answer>, Problem> {
    let is_known = served.guard.knows_sender("/v1/reconciliations", &headers)?;
    let before = number(&query, "before", u64::MAX, u64::MAX)?;
    let limit = number(&query, "limit", PAGE_MAX, PAGE_MAX)?;
    let kept = served.context.book.read().await;
    let of_page = kept.entries.range(..before).rev().map(|(_, entry)| entry.clone());
    let mut reconciliations: Vec<HistoryEntry> = of_page.take(limit as usize).collect();
    let last = reconciliations.last().map(|entry| entry.number);
    let next = last.filter(|last| kept.entries.range(..*last).next().is_some());
    let mut underway = kept.underway.clone();
    if !is_known {
        reconciliations.iter_mut().for_each(HistoryEntry::leave_out_reasons);
        underway.iter_mut().for_each(Progress::leave_out_reasons);
    }
    Ok(Json(Answer {
        now_ms: wall_clock::now_ms(),
        read_at_ms: kept.read_at_ms,
        code: kept.code.map(Code::as_str),
        is_signed: kept.is_signed,
        older: kept.older,
        unread: kept.unread(),
        underway,
        reconciliations,
        next,
    }))
}

/// Returns a number of the query, from 1 to `max`.
pub(super) fn number(
    query: &HashMap<String, String>,
    key: &str,
    default: u64,
    max: u64,
) -> Result<u64, Problem> {
    let Some(text) = query.get(key) else { return Ok(default) };
    let wrong = || {
        let detail = format!("`{key}` is no whole number from 1 to {max}");
        Problem::new(Code::CountOutOfRange, detail, SEE_DESCRIPTION)
    };
    text.parse().ok().filter(|number| (1..=max).contains(number)).ok_or_else(wrong)
}
