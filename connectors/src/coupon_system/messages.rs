//! Requests to the coupon system, and the bodies of its answers.

use std::sync::Arc;

use anabranch_coupons::ports::Gift;
use anabranch_coupons::records::CouponKey;
use bytes::Bytes;
use hyper::Method;
use hyper::header::HeaderName;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::connection::Request;

const SINGLE: &str = "/v1/coupons";
const BATCH: &str = "/v1/coupons/batch";
const QUERY: &str = "/v1/coupons/query";
const GIVEN: &str = "/v1/coupons/given";
/// Coupons of a page, at most; their texts fit into the largest body of an answer.
const PAGE_GIFTS: usize = 200;
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The text of a key: `birthday/solar:2027/4711`. Names of programmes have no slash.
pub(super) fn text(key: &CouponKey) -> String {
    format!("{}/{}/{}", key.programme, key.occurrence, key.user)
}

/// A call for one coupon.
#[derive(Debug, Serialize)]
struct Call<'c> {
    key: String,
    /// Text, since a number in JSON is not exact above 2^53.
    user: String,
    programme: &'c str,
    occurrence: String,
    coupon: &'c str,
}

impl<'c> Call<'c> {
    fn of(key: &'c CouponKey, coupon: &'c str) -> Self {
        let (user, occurrence) = (key.user.to_string(), key.occurrence.to_string());
        Self { key: text(key), user, programme: &key.programme, occurrence, coupon }
    }
}

#[derive(Debug, Serialize)]
struct Calls<'c> {
    calls: Vec<Call<'c>>,
}

#[derive(Debug, Serialize)]
struct Keys {
    keys: Vec<String>,
}

/// The answer to a batch of calls.
#[derive(Debug, Deserialize)]
pub(super) struct Answers {
    pub(super) answers: Vec<OneAnswer>,
}

#[derive(Debug, Deserialize)]
pub(super) struct OneAnswer {
    pub(super) key: String,
    pub(super) outcome: String,
}

/// The answer to a call for one coupon.
#[derive(Debug, Deserialize)]
pub(super) struct SingleAnswer {
    pub(super) outcome: String,
}

/// The answer to a query by key.
#[derive(Debug, Deserialize)]
pub(super) struct Known {
    pub(super) known: Vec<KnownKey>,
}

#[derive(Debug, Deserialize)]
pub(super) struct KnownKey {
    pub(super) key: String,
    pub(super) is_known: bool,
}

/// A page of the statement.
#[derive(Debug, Deserialize)]
pub(super) struct Page {
    pub(super) gifts: Vec<PageGift>,
    pub(super) after: Option<u64>,
    /// A page without this field is not whole.
    #[serde(deserialize_with = "Option::deserialize")]
    pub(super) next: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct PageGift {
    user: String,
    programme: String,
    occurrence: String,
    coupon: String,
    given_at_ms: i64,
}

impl PageGift {
    /// Returns the coupon; `None` if its texts are not those of a call.
    pub(super) fn gift(self) -> Option<Gift> {
        let key = CouponKey {
            user: self.user.parse().ok()?,
            programme: self.programme.into(),
            occurrence: self.occurrence.parse().ok()?,
        };
        let given_at = Timestamp::from_millisecond(self.given_at_ms).ok()?;
        Some(Gift { key, coupon: self.coupon.into(), given_at })
    }
}

pub(super) fn given(since: Timestamp, after: u64) -> Request {
    let since = since.as_millisecond().max(0);
    let path = format!("{GIVEN}?since_ms={since}&after={after}&limit={PAGE_GIFTS}");
    Request { method: Method::GET, path, headers: Vec::new(), body: Bytes::new() }
}

pub(super) fn single(key: &CouponKey, coupon: &str) -> Request {
    let headers = vec![(IDEMPOTENCY_KEY, text(key))];
    Request { method: Method::POST, path: SINGLE.to_owned(), headers, body: json(&Call::of(key, coupon)) }
}

pub(super) fn batch(coupons: &[(CouponKey, Arc<str>)]) -> Request {
    let calls = coupons.iter().map(|(key, coupon)| Call::of(key, coupon)).collect();
    post(BATCH, json(&Calls { calls }))
}

pub(super) fn query(keys: &[CouponKey]) -> Request {
    post(QUERY, json(&Keys { keys: keys.iter().map(text).collect() }))
}

fn post(path: &str, body: Bytes) -> Request {
    Request { method: Method::POST, path: path.to_owned(), headers: Vec::new(), body }
}

fn json(body: &impl Serialize) -> Bytes {
    serde_json::to_vec(body).expect("texts and lists of them are always JSON").into()
}
