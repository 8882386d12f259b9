//! `GET /v1/serials/{code}`, `GET /v1/serials/lookup?code=` and `POST /v1/serials/lookup`: from any code of a device to
//! the device.
//!
//! The code in the path or query is any bytes, percent-encoded. A path carries neither `.` nor `..`, which clients take
//! out of it, nor `lookup`, which is a route; the query carries every code.

use anabranch_pipeline::error::Code;
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, RawQuery, State};
use axum::http::Uri;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::SEE_DESCRIPTION;
use super::body::{Body, Fields, FromFields, required};
use super::problem::Problem;
use crate::lookup::{Answers, AtLeast, Lookup, LookupAnswer, LookupQuestion, Refusal, code};

/// Codes of one request, at most: few enough for one query of each target.
const CODES_MAX: usize = 1000;
/// Claims of each code that a batch shows, at most, so that its answer stays below some megabytes.
const BATCH_LIMIT: usize = 20;
const PREFIX: &str = "/v1/serials/";
const CODE_KEY: &[u8] = b"code";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SerialRequest {
    kind: Option<String>,
    limit: Option<usize>,
    after: Option<String>,
    #[serde(default)]
    rows: bool,
    at_least: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WantedByQuery {
    /// Ignored here, where bytes that are not UTF-8 are lost; `code_of` reads it from the query itself.
    #[serde(rename = "code")]
    _code: Option<IgnoredAny>,
    kind: Option<String>,
    limit: Option<usize>,
    after: Option<String>,
    #[serde(default)]
    rows: bool,
    at_least: Option<String>,
}

#[derive(Debug)]
pub struct Batch {
    codes: Vec<String>,
    kind: Option<String>,
    /// Claims of each code, at most.
    limit: Option<u64>,
    at_least: Option<String>,
}

impl FromFields for Batch {
    const KEYS: &'static [&'static str] = &["codes", "kind", "limit", "at_least"];

    fn from_fields(fields: &mut Fields) -> Result<Self, Problem> {
        Ok(Self {
            codes: required("codes", fields.texts("codes")?)?,
            kind: fields.text("kind")?,
            limit: fields.number("limit")?,
            at_least: fields.text("at_least")?,
        })
    }
}

pub async fn by_code(
    State(lookup): State<Option<Lookup>>,
    uri: Uri,
    wanted: Result<Query<SerialRequest>, QueryRejection>,
) -> Result<Json<LookupAnswer>, Problem> {
    let Query(wanted) = wanted.map_err(|rejection| malformed(rejection.body_text()))?;
    let code = percent_decode_str(uri.path().strip_prefix(PREFIX).unwrap_or_default()).collect();
    one(lookup, code, wanted).await
}

pub async fn by_query(
    State(lookup): State<Option<Lookup>>,
    RawQuery(query): RawQuery,
    wanted: Result<Query<WantedByQuery>, QueryRejection>,
) -> Result<Json<LookupAnswer>, Problem> {
    let Query(wanted) = wanted.map_err(|rejection| malformed(rejection.body_text()))?;
    let code = code_of(query.as_deref().unwrap_or_default()).ok_or_else(|| {
        let detail =
            "code is missing; the code `lookup` itself is asked for as /v1/serials/lookup?code=lookup";
        malformed(detail.to_owned())
    })?;
    let WantedByQuery { kind, limit, after, rows, at_least, .. } = wanted;
    one(lookup, code, SerialRequest { kind, limit, after, rows, at_least }).await
}

/// Refuses a path without a code; clients also make it of a path that ends with `.`.
pub async fn without_code() -> Problem {
    match code(Vec::new()) {
        Ok(_) => malformed("the code is empty".to_owned()),
        Err(refusal) => refusal.into(),
    }
}

/// Returns the bytes of `code`, percent-encoded and with `+` for a blank, as forms send it; `None` without it.
fn code_of(query: &str) -> Option<Vec<u8>> {
    let decoded = |text: &str| percent_decode_str(&text.replace('+', " ")).collect::<Vec<u8>>();
    let mut pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.find(|(key, _)| decoded(key) == CODE_KEY).map(|(_, code)| decoded(code))
}

async fn one(
    lookup: Option<Lookup>,
    code: Vec<u8>,
    wanted: SerialRequest,
) -> Result<Json<LookupAnswer>, Problem> {
    let lookup = lookup.ok_or_else(unconfigured)?;
    let place = wanted.at_least.as_deref().map(str::parse::<AtLeast>).transpose()?;
    let question = LookupQuestion::new(
        code,
        wanted.kind.as_deref(),
        wanted.limit,
        wanted.after.as_deref(),
        wanted.rows,
    )?;
    Ok(Json(lookup.ask(&[question], place.as_ref()).await?.only()?))
}

pub async fn batch(
    State(lookup): State<Option<Lookup>>,
    Body(batch): Body<Batch>,
) -> Result<Json<Answers>, Problem> {
    let lookup = lookup.ok_or_else(unconfigured)?;
    if !(1..=CODES_MAX).contains(&batch.codes.len()) {
        return Err(malformed(format!(
            "{} codes; 1 to {CODES_MAX} are looked up at once",
            batch.codes.len()
        )));
    }
    let place = batch.at_least.as_deref().map(str::parse::<AtLeast>).transpose()?;
    let limit = batch.limit.unwrap_or(BATCH_LIMIT as u64);
    let shown = usize::try_from(limit).ok().filter(|limit| (1..=BATCH_LIMIT).contains(limit));
    let shown = shown
        .ok_or_else(|| malformed(format!("limit is {limit}; it can be 1 to {BATCH_LIMIT} in a batch")))?;
    let mut questions = Vec::with_capacity(batch.codes.len());
    for (place, code) in batch.codes.into_iter().enumerate() {
        let question =
            LookupQuestion::new(code.into_bytes(), batch.kind.as_deref(), Some(shown), None, false);
        questions.push(question.map_err(|refusal| match refusal {
            Refusal::Malformed(detail) => malformed(format!("codes[{place}]: {detail}")),
            refusal => refusal.into(),
        })?);
    }
    Ok(Json(lookup.ask(&questions, place.as_ref()).await?))
}

fn unconfigured() -> Problem {
    let detail = "this daemon's configuration has no mapping tables";
    Problem::new(Code::LookupUnconfigured, detail, "see deploy/serial-codes.example.toml")
}

pub(super) fn malformed(detail: String) -> Problem {
    Problem::new(Code::LookupMalformed, detail, SEE_DESCRIPTION)
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let code = refusal.code();
        match refusal {
            Refusal::Malformed(detail) => malformed(detail),
            Refusal::Busy => Self::new(code, refusal.to_string(), "send fewer at once, or ask more daemons"),
            Refusal::Lagging(missing) => {
                let remedy =
                    "ask again, or without at_least for the present claims; GET /v1/status shows the lag";
                Self::new(code, missing, remedy)
            }
            Refusal::Failed(fault) => Self::from(&*fault),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_carries_every_code_also_bytes_that_are_no_text() {
        for (query, expected) in [
            ("code=lookup", Some(&b"lookup"[..])),
            ("kind=meid&code=..", Some(b"..")),
            ("code=.", Some(b".")),
            ("code=%FF%00%2F%26%3D%2B&limit=1", Some(b"\xff\0/&=+")),
            ("code=BOX+7", Some(b"BOX 7")),
            ("c%6Fde=a=b", Some(b"a=b")),
            ("code=", Some(b"")),
            ("code", Some(b"")),
            ("kind=code", None),
            ("", None),
        ] {
            assert_eq!(code_of(query).as_deref(), expected, "{query}");
        }
    }
}
