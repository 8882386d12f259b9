//! `POST /v1/uuids`: new uuids, each given out once in the world.
//!
//! The answer is a list and no range: the layout gives no consecutive numbers (`identifiers` says why). Uuids are text,
//! because many JSON readers lose digits of numbers above 2⁵³.

use anabranch_pipeline::error::Code;
use anabranch_pipeline::identifiers::{ORDERS_MAX, UuidOrder, UuidOrders};
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue};
use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use super::body::{Body, Fields, FromFields, required};
use super::problem::Problem;

/// Uuids of one request, at most: an answer of about 200 KB, given out within 3 ms of a machine's sequence.
const COUNT_MAX: u32 = 10_000;
/// Header with the caller's key, as the IETF's draft of that name calls it.
const KEY_HEADER: &str = "idempotency-key";
const KEY_BYTES_MAX: usize = 255;

#[derive(Debug)]
pub struct UuidRequest {
    count: u64,
}

impl FromFields for UuidRequest {
    const KEYS: &'static [&'static str] = &["count"];

    fn from_fields(fields: &mut Fields) -> Result<Self, Problem> {
        Ok(Self { count: required("count", fields.number("count")?)? })
    }
}

#[derive(Debug, Serialize)]
pub struct IssuedUuids {
    uuids: Vec<String>,
}

/// Returns the caller's key as a digest, because any bytes must make a name of a register; `None` without a key.
fn key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let digits = |key| Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(sent_key(headers)?.map(digits))
}

/// Returns the key that the caller sent, byte for byte; `None` without a key.
pub(super) fn sent_key(headers: &HeaderMap) -> Result<Option<&[u8]>, Problem> {
    let Some(key) = headers.get(KEY_HEADER).map(HeaderValue::as_bytes) else { return Ok(None) };
    if !(1..=KEY_BYTES_MAX).contains(&key.len()) {
        let detail = format!("idempotency-key has {} bytes; it can have 1 to {KEY_BYTES_MAX}", key.len());
        let remedy = "send a key of the intake or payment, such as its number";
        return Err(Problem::new(Code::KeyMalformed, detail, remedy));
    }
    Ok(Some(key))
}

pub async fn give(
    State(orders): State<UuidOrders>,
    headers: HeaderMap,
    Body(wanted): Body<UuidRequest>,
) -> Result<Json<IssuedUuids>, Problem> {
    let key = key(&headers)?;
    let count = u32::try_from(wanted.count).ok().filter(|count| (1..=COUNT_MAX).contains(count));
    let count = count.ok_or_else(|| {
        let detail = format!("count is {}; 1 to {COUNT_MAX} are given at once", wanted.count);
        Problem::new(Code::CountOutOfRange, detail, "ask again for the rest")
    })?;
    let (answer, given) = oneshot::channel();
    let unavailable = |detail: &str| {
        Problem::new(Code::UuidsUnavailable, detail, "the task uuids in GET /v1/status says why; try again")
    };
    orders
        .sender
        .try_send(UuidOrder { count, key, answer })
        .map_err(|_| unavailable(&format!("{ORDERS_MAX} requests wait already")))?;
    let given = given.await.map_err(|_| unavailable("the machine number was lost"))?;
    let given = given.map_err(|fault| Problem::from(&fault))?;
    let uuids = given.ok_or_else(|| {
        let detail = "with this idempotency-key another count was asked for";
        Problem::new(Code::KeyReused, detail, "send another key, or the first count")
    })?;
    Ok(Json(IssuedUuids { uuids: uuids.iter().map(u64::to_string).collect() }))
}
