//! Bodies of requests: one JSON object, read key by key, so that errors are in words of this API and not of the parser.

use anabranch_pipeline::error::Code;
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use serde_json::{Map, Value};

use super::SEE_DESCRIPTION;
use super::guard::too_large;
use super::problem::Problem;

/// Characters of an unknown JSON key that the answer repeats, at most.
const KEY_CHARACTERS_MAX: usize = 40;

/// A type that is built from the keys of a body.
pub trait FromFields: Sized {
    /// All keys that the body may have; any other key is an error.
    const KEYS: &'static [&'static str];

    fn from_fields(fields: &mut Fields) -> Result<Self, Problem>;
}

/// The keys of a body that were not read yet. Each method takes one key with its value: `None` if the key is absent or
/// `null`, an error if the value has another type.
#[derive(Debug)]
pub struct Fields(Map<String, Value>);

impl Fields {
    pub(super) fn of<T: FromFields>(body: Value) -> Result<Self, Problem> {
        let keys = || T::KEYS.join(", ");
        let Value::Object(fields) = body else {
            let found = kind(&body);
            return Err(wrong(format!("the body is {found}; an object is needed, with {}", keys())));
        };
        match fields.keys().find(|key| !T::KEYS.contains(&key.as_str())) {
            Some(key) => {
                let key: String = key.chars().take(KEY_CHARACTERS_MAX).collect();
                Err(wrong(format!("`{key}` is not a key of this body; it can have {}", keys())))
            }
            None => Ok(Self(fields)),
        }
    }

    pub fn text(&mut self, key: &str) -> Result<Option<String>, Problem> {
        self.take(key).map(|value| text(key, value)).transpose()
    }

    pub fn texts(&mut self, key: &str) -> Result<Option<Vec<String>>, Problem> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let Value::Array(values) = value else { return Err(unfit(key, &value, "a list")) };
        let texts =
            values.into_iter().enumerate().map(|(place, value)| text(&format!("{key}[{place}]"), value));
        texts.collect::<Result<_, _>>().map(Some)
    }

    pub fn number(&mut self, key: &str) -> Result<Option<u64>, Problem> {
        let Some(value) = self.take(key) else { return Ok(None) };
        value.as_u64().map(Some).ok_or_else(|| unfit(key, &value, "a whole number, not negative,"))
    }

    pub fn flag(&mut self, key: &str) -> Result<Option<bool>, Problem> {
        let Some(value) = self.take(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| unfit(key, &value, "true or false"))
    }

    /// Returns a key that was not read.
    pub fn rest(&self) -> Option<&str> {
        self.0.keys().next().map(String::as_str)
    }

    fn take(&mut self, key: &str) -> Option<Value> {
        self.0.remove(key).filter(|value| !value.is_null())
    }
}

/// Returns the value of a key that a body must have; a problem if it is absent.
pub fn required<T>(key: &str, value: Option<T>) -> Result<T, Problem> {
    value.ok_or_else(|| wrong(format!("`{key}` is missing")))
}

fn text(name: &str, value: Value) -> Result<String, Problem> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(unfit(name, &other, "text")),
    }
}

fn unfit(name: &str, value: &Value, needed: &str) -> Problem {
    wrong(format!("`{name}` is {}; {needed} is needed", kind(value)))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(number) if number.is_u64() => "a number",
        Value::Number(number) if number.is_i64() => "a negative number",
        Value::Number(_) => "a number with a fraction, or too large",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Returns the problem of a body that has another shape than the route reads.
pub fn wrong(detail: String) -> Problem {
    Problem::new(Code::BodyNotUnderstood, detail, SEE_DESCRIPTION)
}

/// A JSON body. Every error in it becomes a [`Problem`].
#[derive(Debug)]
pub struct Body<T>(pub T);

impl<T: FromFields, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let Json(body) = Json::<Value>::from_request(request, state).await?;
        T::from_fields(&mut Fields::of::<T>(body)?).map(Self)
    }
}

/// Makes a problem of an unreadable body. Except for a body that is too large, it has the text of the rejection, which
/// names line and column.
impl From<JsonRejection> for Problem {
    fn from(rejection: JsonRejection) -> Self {
        let (code, remedy) = match &rejection {
            JsonRejection::JsonSyntaxError(_) => (Code::BodyNotJson, "send one JSON object"),
            JsonRejection::JsonDataError(_) => (Code::BodyNotUnderstood, SEE_DESCRIPTION),
            JsonRejection::MissingJsonContentType(_) => {
                (Code::ContentTypeMissing, "send the header content-type: application/json")
            }
            _ if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => return too_large(),
            _ => (Code::BodyUnreadable, "send the body again"),
        };
        Self::new(code, rejection.body_text(), remedy)
    }
}
