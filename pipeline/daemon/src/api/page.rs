//! The live page: its files, which are part of the binary, and the runbook's sections that it shows.
//!
//! The page is read-only, and its headers forbid it to load anything from outside this listener. `page/model.js` alone
//! knows the field names of the status.

use anabranch_pipeline::error::Code;
use axum::extract::Path;
use axum::http::header;
use axum::response::IntoResponse;

use super::problem::Problem;
use crate::runbook;

/// Lets the page load and request paths of this listener only (and images of its own text), and forbids frames.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                                       img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

const INDEX: &str = include_str!("page/index.html");
/// Name below `/page/`, content type, text.
pub(super) const ASSETS: [(&str, &str, &str); 9] = [
    ("page.css", CSS, include_str!("page/page.css")),
    ("page.js", JAVASCRIPT, include_str!("page/page.js")),
    ("stream.js", JAVASCRIPT, include_str!("page/stream.js")),
    ("model.js", JAVASCRIPT, include_str!("page/model.js")),
    ("elements.js", JAVASCRIPT, include_str!("page/elements.js")),
    ("drawing.js", JAVASCRIPT, include_str!("page/drawing.js")),
    ("tables.js", JAVASCRIPT, include_str!("page/tables.js")),
    ("calendar.js", JAVASCRIPT, include_str!("page/calendar.js")),
    ("runbook.js", JAVASCRIPT, include_str!("page/runbook.js")),
];

pub(super) async fn index() -> impl IntoResponse {
    file(HTML, INDEX)
}

pub(super) async fn asset(Path(name): Path<String>) -> Result<impl IntoResponse, Problem> {
    let found = ASSETS.iter().find(|(known, ..)| *known == name);
    let (_, content_type, text) = found.ok_or_else(|| {
        Problem::new(Code::RouteUnknown, "the page has no such file", "open the page itself: GET /")
    })?;
    Ok(file(content_type, text))
}

/// Answers with a file that the browser validates each time, so that no page mixes files of two versions.
fn file(content_type: &'static str, text: &'static str) -> impl IntoResponse {
    let head = [
        (header::CONTENT_TYPE, content_type),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (head, text)
}

/// Returns the section of a code in the runbook of this build, as Markdown.
pub(super) async fn runbook_section(Path(code): Path<String>) -> Result<impl IntoResponse, Problem> {
    let section = Code::from_text(&code).and_then(runbook::section).ok_or_else(|| {
        Problem::new(Code::CodeUnknown, "this build has no such code", "GET /v1/openapi.json lists all codes")
    })?;
    let content_type = (header::CONTENT_TYPE, "text/markdown; charset=utf-8");
    Ok(([content_type, (header::X_CONTENT_TYPE_OPTIONS, "nosniff")], section))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page's other promises need a browser: `tests/end_to_end/page.rs` checks them.
    #[test]
    fn the_page_is_small_and_refers_to_nothing_outside() {
        let texts = || ASSETS.iter().map(|(_, _, text)| *text).chain([INDEX]);
        assert!(texts().map(str::len).sum::<usize>() < 300_000);
        for text in texts() {
            let outside = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!outside.contains("http://") && !outside.contains("https://"));
            assert!(!text.contains("innerHTML") && !text.contains("style=\"") && !text.contains("onclick="));
        }
    }
}
