//! The meaning of a status and a body of the coupon system: the table of `docs/coupon-system.md`.
//!
//! Only an answer of the contract proves that nothing was done. Every other answer (5xx, a body that cannot be parsed)
//! leaves the outcome open: the granter then asks by key. If it answers a request for one key, it is [`Answer::Error`],
//! and otherwise [`Answer::Unknown`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anabranch_coupons::ports::{Answer, GiftPage};
use anabranch_coupons::records::CouponKey;
use anabranch_pipeline::error::{Code, Fault};
use hyper::StatusCode;
use hyper::header::RETRY_AFTER;

use super::connection::Response;
use super::messages::{Answers, Known, Page, PageGift, SingleAnswer, text};

/// Longest pause, whatever the other side asks for.
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// Pause after a 429 that names none or a shorter one.
const PAUSE_DEFAULT: Duration = Duration::from_secs(1);

/// A request that was refused as a whole: nothing was done.
#[derive(Debug, Clone, Copy)]
pub(super) enum Refusal {
    Busy { pause: Duration },
    Status(StatusCode),
}

impl Refusal {
    /// Returns the time without requests; `None` = the time after every refusal.
    pub(super) fn pause(self) -> Option<Duration> {
        match self {
            Self::Busy { pause } => Some(pause),
            Self::Status(_) => None,
        }
    }

    pub(super) fn fault(self, subject: &str) -> Fault {
        match self {
            Self::Busy { pause } => {
                let found = format!("it asks for a pause of {} s", pause.as_secs_f64());
                Fault::new(Code::CouponSystemUnreachable, subject, found)
            }
            Self::Status(status) => {
                Fault::new(Code::CouponSystemRefused, subject, format!("it answered {}", status.as_u16()))
                    .needs(
                        "a coupon system as docs/coupon-system.md describes it, and a token that it accepts",
                    )
            }
        }
    }
}

/// Returns the refusal that a status stands for; `None` if it is no refusal.
fn refusal(response: &Response) -> Option<Refusal> {
    let status = response.status;
    match status {
        StatusCode::TOO_MANY_REQUESTS => {
            let seconds =
                response.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
            let pause = seconds.map_or(PAUSE_DEFAULT, Duration::from_secs).clamp(PAUSE_DEFAULT, PAUSE_MAX);
            Some(Refusal::Busy { pause })
        }
        // A gateway may answer this while the system behind it works on.
        StatusCode::REQUEST_TIMEOUT => None,
        status if status.is_client_error() || status.is_redirection() => Some(Refusal::Status(status)),
        _ => None,
    }
}

/// Returns the answer to each call of a batch, in the order of the calls.
pub(super) fn of_batch(
    response: &Response,
    coupons: &[(CouponKey, Arc<str>)],
) -> Result<Vec<Answer>, Refusal> {
    if let Some(refusal) = refusal(response) {
        return Err(refusal);
    }
    let mut outcomes: HashMap<String, Answer> = HashMap::new();
    if response.status == StatusCode::OK
        && let Ok(answers) = serde_json::from_slice::<Answers>(&response.body)
    {
        for answer in answers.answers {
            let outcome = of_outcome(&answer.outcome);
            let reported = outcomes.entry(answer.key).or_insert(outcome);
            // Two answers that contradict each other count as unknown.
            if *reported != outcome {
                *reported = Answer::Unknown;
            }
        }
    }
    let is_alone = coupons.len() == 1;
    let answer = |(key, _): &(CouponKey, Arc<str>)| match outcomes.get(&text(key)) {
        Some(outcome) if *outcome != Answer::Unknown => *outcome,
        _ if is_alone => error(response.status),
        _ => Answer::Unknown,
    };
    Ok(coupons.iter().map(answer).collect())
}

/// Returns the answer to a single call.
pub(super) fn of_single(response: &Response) -> Result<Answer, Refusal> {
    let is_of_user = matches!(
        response.status,
        StatusCode::OK
            | StatusCode::CONFLICT
            | StatusCode::UNPROCESSABLE_ENTITY
            | StatusCode::SERVICE_UNAVAILABLE
    );
    if is_of_user {
        let answer = serde_json::from_slice::<SingleAnswer>(&response.body);
        let outcome = answer.map_or(Answer::Unknown, |answer| of_outcome(&answer.outcome));
        return Ok(if outcome == Answer::Unknown { error(response.status) } else { outcome });
    }
    refusal(response).map_or_else(|| Ok(error(response.status)), Err)
}

/// Returns the answer to a request for one key whose outcome is open. Statuses of a gateway, or of a system that is
/// unavailable, say nothing about the user.
fn error(status: StatusCode) -> Answer {
    match status {
        StatusCode::REQUEST_TIMEOUT
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Answer::Unknown,
        _ => Answer::Error,
    }
}

/// Returns whether each key is known, in the order of the keys.
pub(super) fn of_query(
    response: &Response,
    keys: &[CouponKey],
    subject: &str,
) -> Result<Result<Vec<bool>, Refusal>, Fault> {
    if let Some(refusal) = refusal(response) {
        return Ok(Err(refusal));
    }
    let odd = |found: String| super::unreachable(subject, &found);
    if response.status != StatusCode::OK {
        return Err(odd(format!("it answered {} to the query for keys", response.status.as_u16())));
    }
    // The parser's error quotes values, so it stays out.
    let answer: Known = serde_json::from_slice(&response.body)
        .map_err(|_| odd("its answer to the query for keys cannot be parsed".to_owned()))?;
    let known: HashMap<String, bool> =
        answer.known.into_iter().map(|known| (known.key, known.is_known)).collect();
    let answers = keys.iter().map(|key| known.get(&text(key)).copied());
    let answers = answers.collect::<Option<Vec<bool>>>();
    answers.map(Ok).ok_or_else(|| odd("its answer to the query for keys lacks a key of the query".to_owned()))
}

/// Returns a page of the statement; `None` if the system has no statement.
pub(super) fn of_given(
    response: &Response,
    after: u64,
    subject: &str,
) -> Result<Result<Option<GiftPage>, Refusal>, Fault> {
    let status = response.status;
    if matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE) {
        return Ok(Ok(None));
    }
    if let Some(refusal) = refusal(response) {
        return Ok(Err(refusal));
    }
    let odd = |found: String| super::unreachable(subject, &found);
    if status != StatusCode::OK {
        return Err(odd(format!("it answered {} to the request for its statement", status.as_u16())));
    }
    let page: Option<Page> = serde_json::from_slice(&response.body).ok();
    let is_next =
        |page: &Page| page.after.is_none_or(|of| of == after) && page.next.is_none_or(|next| next > after);
    let page = page.filter(is_next).and_then(|page| {
        let gifts = page.gifts.into_iter().map(PageGift::gift).collect::<Option<Vec<_>>>()?;
        Some(GiftPage { gifts, next: page.next })
    });
    page.map(|page| Ok(Some(page))).ok_or_else(|| odd("a page of its statement is not whole".to_owned()))
}

fn of_outcome(text: &str) -> Answer {
    match text {
        "given" => Answer::Given,
        "rejected" => Answer::Rejected,
        "mismatch" => Answer::Mismatch,
        "busy" => Answer::Busy,
        "pool_empty" => Answer::PoolEmpty,
        _ => Answer::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use hyper::header::{HeaderMap, HeaderValue};

    use super::*;

    #[test]
    fn a_page_of_the_statement_that_is_not_whole_is_refused_and_a_system_without_statements_is_none() {
        let of = |status, body: &'static str| {
            let response =
                Response { status, headers: HeaderMap::new(), body: Bytes::from_static(body.as_bytes()) };
            of_given(&response, 200, "coupons").map(|page| page.ok().map(|page| page.map(|page| page.next)))
        };
        let ok = StatusCode::OK;
        assert_eq!(of(ok, r#"{"gifts": [], "next": null}"#).unwrap(), Some(Some(None)));
        assert_eq!(of(ok, r#"{"gifts": [], "after": 200, "next": 400}"#).unwrap(), Some(Some(Some(400))));
        assert_eq!(of(StatusCode::NOT_FOUND, "").unwrap(), Some(None));
        assert_eq!(of(StatusCode::FORBIDDEN, "").unwrap(), None, "a refusal");
        let gift = r#"{"gifts": [{"user": "x", "programme": "p", "occurrence": "solar:2027", "coupon": "c",
                       "given_at_ms": 1}], "next": null}"#;
        let odd = [
            r#"{"gifts": []}"#,
            r#"{"gifts": [], "after": 0, "next": null}"#,
            r#"{"gifts": [], "next": 200}"#,
            gift,
        ];
        for body in odd {
            assert_eq!(of(ok, body).unwrap_err().code(), Code::CouponSystemUnreachable, "{body}");
        }
        assert!(of(StatusCode::BAD_GATEWAY, "").is_err());
    }

    #[test]
    fn a_pause_has_a_second_at_least_and_five_minutes_at_most() {
        let asked = [(None, 1), (Some("0"), 1), (Some("7"), 7), (Some("9000"), 300), (Some("soon"), 1)];
        for (retry_after, seconds) in asked {
            let mut headers = HeaderMap::new();
            if let Some(text) = retry_after {
                headers.insert(RETRY_AFTER, HeaderValue::from_static(text));
            }
            let response = Response { status: StatusCode::TOO_MANY_REQUESTS, headers, body: Bytes::new() };
            let pause = refusal(&response).and_then(Refusal::pause);
            assert_eq!(pause, Some(Duration::from_secs(seconds)), "{retry_after:?}");
        }
    }
}
