//! Every error of the HTTP API in one form: `application/problem+json` (RFC 9457) with a stable code and a remedy.
//!
//! The codes are those of the whole product, so `anabranch explain CODE` helps here too; the code decides the status.

use std::borrow::Cow;

use anabranch_pipeline::error::{Class, Code, Fault};
use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// Seconds after which asking again may help.
const RETRY_AFTER: &str = "1";

/// The answer to a request that failed.
#[derive(Debug)]
pub struct Problem {
    code: Code,
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
    pub fn new(code: Code, detail: impl Into<String>, remedy: impl Into<Cow<'static, str>>) -> Self {
        let problem = Self { code, detail: detail.into(), remedy: remedy.into(), header: None };
        match status(code) {
            StatusCode::SERVICE_UNAVAILABLE => problem.with_header(header::RETRY_AFTER, RETRY_AFTER),
            _ => problem,
        }
    }

    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: &'static str) -> Self {
        self.header = Some((name, value));
        self
    }
}

/// Returns the HTTP status of a code.
fn status(code: Code) -> StatusCode {
    match code {
        Code::BodyNotJson | Code::BodyUnreadable => StatusCode::BAD_REQUEST,
        Code::TokenRefused => StatusCode::UNAUTHORIZED,
        Code::TokensMissing | Code::TokenScopeMissing | Code::OperatorRefused => StatusCode::FORBIDDEN,
        Code::RouteUnknown
        | Code::CodeUnknown
        | Code::LookupUnconfigured
        | Code::SearchUnconfigured
        | Code::FluxUnconfigured => StatusCode::NOT_FOUND,
        Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Code::BodyLate => StatusCode::REQUEST_TIMEOUT,
        Code::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::ContentTypeMissing => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Code::LookupMalformed
        | Code::BodyNotUnderstood
        | Code::CountOutOfRange
        | Code::FluxIdMalformed
        | Code::FluxParentUnfit
        | Code::FluxDateRefused
        | Code::KeyMalformed
        | Code::KeyReused
        | Code::ConfigInvalid => StatusCode::UNPROCESSABLE_ENTITY,
        Code::DispatchRefused | Code::RefreshRefused | Code::ReconcileRefused | Code::ReplayRefused => {
            StatusCode::CONFLICT
        }
        Code::UuidsKeysFull | Code::FluxKeysFull | Code::FluxSequenceExhausted => {
            StatusCode::INSUFFICIENT_STORAGE
        }
        code => match code.class() {
            Class::Transient => StatusCode::SERVICE_UNAVAILABLE,
            Class::Definite | Class::Bug => StatusCode::INTERNAL_SERVER_ERROR,
        },
    }
}

impl From<&Fault> for Problem {
    fn from(fault: &Fault) -> Self {
        let code = fault.code();
        let needed = fault.needed().map_or_else(String::new, |needed| format!("; needed: {needed}"));
        let detail = format!("{}: {}{needed}", fault.subject(), fault.found());
        let remedy = fault.remedy_text().map_or_else(|| format!("anabranch explain {code}"), str::to_owned);
        Self::new(code, detail, remedy)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = status(self.code);
        let document = Document {
            r#type: format!("urn:anabranch:problem:{}", self.code),
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            code: self.code.as_str(),
            detail: &self.detail,
            remedy: &self.remedy,
        };
        let content_type = HeaderValue::from_static("application/problem+json");
        let mut response = (status, Json(document)).into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
        response
            .headers_mut()
            .extend(self.header.map(|(name, value)| (name, HeaderValue::from_static(value))));
        response
    }
}
