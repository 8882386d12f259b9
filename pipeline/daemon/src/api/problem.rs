//! Every error of the HTTP API in one form: `application/problem+json` (RFC 9457) with a stable code and a remedy.
//!
//! A fault of the product keeps its code, so `anabranch explain CODE` helps here too. Codes of requests that are wrong
//! in themselves are the API's own.

use std::borrow::Cow;

use anabranch_pipeline::error::{Class, Fault};
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// Seconds after which asking again may help.
const RETRY_AFTER: &str = "1";

/// What is answered instead of a result.
#[derive(Debug)]
pub struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    remedy: Cow<'static, str>,
    header: Option<(HeaderName, &'static str)>,
}

#[derive(Debug, Serialize)]
struct Document<'p> {
    r#type: String,
    title: &'p str,
    status: u16,
    code: &'p str,
    detail: &'p str,
    remedy: &'p str,
}

impl Problem {
    pub fn new(
        status: StatusCode,
        code: &'static str,
        detail: impl Into<String>,
        remedy: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { status, code, detail: detail.into(), remedy: remedy.into(), header: None }
    }

    /// 503: it may pass by itself.
    pub fn passing(
        code: &'static str,
        detail: impl Into<String>,
        remedy: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, detail, remedy)
            .with_header(header::RETRY_AFTER, RETRY_AFTER)
    }

    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: &'static str) -> Self {
        self.header = Some((name, value));
        self
    }
}

impl From<&Fault> for Problem {
    fn from(fault: &Fault) -> Self {
        let code = fault.code().as_str();
        let detail = format!("{}: {}", fault.subject(), fault.found());
        let remedy = fault.remedy_text().map_or_else(|| format!("anabranch explain {code}"), str::to_owned);
        match fault.class() {
            Class::Transient => Self::passing(code, detail, remedy),
            Class::Definite | Class::Bug => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, code, detail, remedy)
            }
        }
    }
}

/// Its text names the place (line, column, key).
impl From<JsonRejection> for Problem {
    fn from(rejection: JsonRejection) -> Self {
        let (code, remedy) = match &rejection {
            JsonRejection::JsonSyntaxError(_) => ("body-not-json", "send one JSON object"),
            JsonRejection::JsonDataError(_) => ("body-not-understood", "see GET /v1/openapi.json"),
            JsonRejection::MissingJsonContentType(_) => {
                ("body-not-json", "send the header content-type: application/json")
            }
            _ if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => return super::guard::too_large(),
            _ => ("body-unreadable", "send the body again"),
        };
        Self::new(rejection.status(), code, rejection.body_text(), remedy)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let document = Document {
            r#type: format!("urn:anabranch:problem:{}", self.code),
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            code: self.code,
            detail: &self.detail,
            remedy: &self.remedy,
        };
        let content_type = HeaderValue::from_static("application/problem+json");
        let mut response = (self.status, Json(document)).into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
        response
            .headers_mut()
            .extend(self.header.map(|(name, value)| (name, HeaderValue::from_static(value))));
        response
    }
}
