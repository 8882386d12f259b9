//! `POST /v1/flux/identifiers`: new identifiers of payment documents, each given out once.
//!
//! The caller names the document's kind and its parent; its database and table follow from them. A wrong request is
//! refused before a number is used.

use std::time::Instant;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::identifiers::flux::{FluxOrder, VERSION};
use anabranch_pipeline::records::RequestKey;
use anabranch_schemas::flux::id::{DIGITS, FluxId};
use anabranch_schemas::flux::placement::Kind;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use jiff::civil::Date;

use super::body::{Body, Fields, FromFields, required};
use super::problem::Problem;
use super::uuids::sent_key;
use super::{SEE_DESCRIPTION, Shared};
use crate::wiring::FluxIdentifiers;

/// Identifiers of one request, at most: an answer of about 340 KB.
const COUNT_MAX: u32 = 10_000;
/// Length to which a text of a client is cut when an answer names it.
const SHOWN_CHARACTERS: usize = 40;

/// The body, before the parent's system code is known.
#[derive(Debug)]
pub struct FluxWanted {
    order: FluxOrder,
    parent: Option<String>,
    count: u64,
}

impl FromFields for FluxWanted {
    const KEYS: &'static [&'static str] =
        &["kind", "parent", "partition", "fail_over", "date", "version", "business", "reserved", "count"];

    fn from_fields(fields: &mut Fields) -> Result<Self, Problem> {
        let kind = required("kind", fields.text("kind")?)?;
        let kind = Kind::from_name(&kind).ok_or_else(|| {
            wrong("kind", &kind, &format!("one of {}", Kind::ALL.map(Kind::name).join(", ")))
        })?;
        let date = fields.text("date")?;
        let parsed =
            |text: String| text.parse::<Date>().map_err(|_| wrong("date", &text, "a day such as 2026-11-26"));
        let order = FluxOrder {
            kind,
            parent: None,
            partition: fields
                .number("partition")?
                .map(|number| small("partition", number, 99))
                .transpose()?,
            is_failed_over: fields.flag("fail_over")?.unwrap_or(false),
            date: date.map(parsed).transpose()?,
            version: small("version", fields.number("version")?.unwrap_or(VERSION.into()), 9)?,
            business: small("business", required("business", fields.number("business")?)?, 99)?,
            reserved: small("reserved", fields.number("reserved")?.unwrap_or(0), 99)?,
            count: 1,
        };
        let count = fields.number("count")?.unwrap_or(1);
        Ok(Self { order, parent: fields.text("parent")?, count })
    }
}

fn small(key: &str, number: u64, most: u8) -> Result<u8, Problem> {
    let fits = u8::try_from(number).ok().filter(|number| *number <= most);
    fits.ok_or_else(|| wrong(key, &number.to_string(), &format!("a number from 0 to {most}")))
}

fn wrong(key: &str, found: &str, needed: &str) -> Problem {
    let found: String = found.chars().take(SHOWN_CHARACTERS).collect();
    let detail = format!("`{key}` is `{}`; {needed} is needed", found.escape_debug());
    Problem::new(Code::BodyNotUnderstood, detail, SEE_DESCRIPTION)
}

/// The answer, with the identifiers as texts.
#[derive(Debug)]
pub struct GivenIdentifiers(Vec<FluxId>);

impl GivenIdentifiers {
    /// Writes the answer into one buffer. Digits need no escapes, and identifiers of one lease share 23 of theirs.
    fn json(&self) -> Vec<u8> {
        const OPENING: &[u8] = br#"{"identifiers":["#;
        const CLOSING: &[u8] = b"]}";
        let quoted = self.0.len() * (DIGITS + 3);
        let mut text = Vec::with_capacity(OPENING.len() + quoted + CLOSING.len());
        text.extend_from_slice(OPENING);
        let mut before: Option<(&FluxId, [u8; DIGITS])> = None;
        for id in &self.0 {
            let digits = before.map_or_else(|| id.digits(), |before| id.digits_beside(before));
            text.extend_from_slice(if before.is_none() { b"\"".as_slice() } else { b",\"" });
            text.extend_from_slice(&digits);
            text.push(b'"');
            before = Some((id, digits));
        }
        text.extend_from_slice(CLOSING);
        text
    }
}

impl IntoResponse for GivenIdentifiers {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, "application/json")], self.json()).into_response()
    }
}

pub async fn give(
    State(flux): State<Option<FluxIdentifiers>>,
    State(Shared(served)): State<Shared>,
    headers: HeaderMap,
    Body(wanted): Body<FluxWanted>,
) -> Result<GivenIdentifiers, Problem> {
    let flux = flux.ok_or_else(|| {
        let remedy = "add region and sequence_url to [flux], or ask a daemon that has them";
        Problem::new(
            Code::FluxUnconfigured,
            "this installation makes no identifiers of payment documents",
            remedy,
        )
    })?;
    let key = sent_key(&headers)?.map(RequestKey::of);
    let count = u32::try_from(wanted.count).ok().filter(|count| (1..=COUNT_MAX).contains(count));
    let count = count.ok_or_else(|| {
        let detail = format!("count is {}; 1 to {COUNT_MAX} are given at once", wanted.count);
        Problem::new(Code::CountOutOfRange, detail, "ask again for the rest")
    })?;
    let parent = wanted.parent.map(|parent| read_parent(&parent, flux.system())).transpose()?;
    let order = FluxOrder { parent, count, ..wanted.order };
    let identifiers = flux.issue(key.as_ref(), &order).await.map_err(|fault| {
        served.context.observatory.order_refused(fault.code(), Instant::now());
        Problem::from(&fault)
    })?;
    Ok(GivenIdentifiers(identifiers))
}

fn read_parent(parent: &str, system: u16) -> Result<FluxId, Problem> {
    FluxId::parse_of(parent.as_bytes(), system).map_err(|defect| {
        let remedy = "send the 31 digits of the document that it follows";
        let fault = Fault::new(Code::FluxIdMalformed, "parent", defect.to_string()).remedy(remedy);
        Problem::from(&fault)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The samples differ in their sequences, in a date and in reserved digits.
    #[test]
    fn the_answer_is_the_json_text_of_all_identifiers_in_their_order() {
        let texts = [
            "2016060611031103099052400029904",
            "2016060611031103099052400029905",
            "2016060611031103099052499999999",
            "2016060711031103099052400000000",
            "2016060711031103099052500000001",
        ];
        for count in 0..=texts.len() {
            let identifiers = texts[..count].iter().map(|text| text.parse().unwrap()).collect();
            let answer = GivenIdentifiers(identifiers).json();
            let expected = serde_json::json!({ "identifiers": texts[..count] });
            assert_eq!(String::from_utf8(answer).unwrap(), expected.to_string());
        }
    }
}
