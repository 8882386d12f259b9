//! The live page: its files, which are part of the binary, and the runbook's sections that it shows.
//!
//! The page's headers forbid it to load anything from outside this listener. It changes something only with an
//! operator's token, by `POST /v1/operations`. `page/model.js` alone knows the field names of the status, and
//! `page/answers.js` those of the other answers.

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
pub(super) const ASSETS: [(&str, &str, &str); 26] = [
    ("page.css", CSS, include_str!("page/page.css")),
    ("page.js", JAVASCRIPT, include_str!("page/page.js")),
    ("stream.js", JAVASCRIPT, include_str!("page/stream.js")),
    ("model.js", JAVASCRIPT, include_str!("page/model.js")),
    ("answers.js", JAVASCRIPT, include_str!("page/answers.js")),
    ("time.js", JAVASCRIPT, include_str!("page/time.js")),
    ("elements.js", JAVASCRIPT, include_str!("page/elements.js")),
    ("rows.js", JAVASCRIPT, include_str!("page/rows.js")),
    ("dialogs.js", JAVASCRIPT, include_str!("page/dialogs.js")),
    ("verdict.js", JAVASCRIPT, include_str!("page/verdict.js")),
    ("sentence.js", JAVASCRIPT, include_str!("page/sentence.js")),
    ("drawing.js", JAVASCRIPT, include_str!("page/drawing.js")),
    ("tables.js", JAVASCRIPT, include_str!("page/tables.js")),
    ("lanes.js", JAVASCRIPT, include_str!("page/lanes.js")),
    ("heat.js", JAVASCRIPT, include_str!("page/heat.js")),
    ("rings.js", JAVASCRIPT, include_str!("page/rings.js")),
    ("series.js", JAVASCRIPT, include_str!("page/series.js")),
    ("chart.js", JAVASCRIPT, include_str!("page/chart.js")),
    ("calendar.js", JAVASCRIPT, include_str!("page/calendar.js")),
    ("history.js", JAVASCRIPT, include_str!("page/history.js")),
    ("pace.js", JAVASCRIPT, include_str!("page/pace.js")),
    ("changes.js", JAVASCRIPT, include_str!("page/changes.js")),
    ("operations.js", JAVASCRIPT, include_str!("page/operations.js")),
    ("actions.js", JAVASCRIPT, include_str!("page/actions.js")),
    ("trace.js", JAVASCRIPT, include_str!("page/trace.js")),
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

/// Returns a section of the runbook of this build, as Markdown: that of a code, or that of a heading by its slug.
pub(super) async fn runbook_section(Path(slug): Path<String>) -> Result<impl IntoResponse, Problem> {
    let section = runbook::section_by_slug(&slug).ok_or_else(|| {
        let detail = "the runbook of this build has no such code or heading";
        Problem::new(Code::CodeUnknown, detail, "GET /v1/openapi.json lists all codes")
    })?;
    let content_type = (header::CONTENT_TYPE, "text/markdown; charset=utf-8");
    Ok(([content_type, (header::X_CONTENT_TYPE_OPTIONS, "nosniff")], section))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Ways to make elements, styles or programs from text, and to keep something beyond the tab.
    const FORBIDDEN: [&str; 12] = [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "style=\"",
        "onclick=",
        "localStorage",
        "sessionStorage",
        "document.cookie",
        "history.pushState",
    ];

    fn texts() -> impl Iterator<Item = &'static str> {
        ASSETS.iter().map(|(_, _, text)| *text).chain([INDEX])
    }

    /// The page's other promises need a browser: `tests/end_to_end/page.rs` checks them.
    #[test]
    fn the_page_is_small_and_refers_to_nothing_outside() {
        assert!(texts().map(str::len).sum::<usize>() < 300_000);
        for text in texts() {
            let outside = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!outside.contains("http://") && !outside.contains("https://"));
            let found = FORBIDDEN.iter().find(|forbidden| text.contains(**forbidden));
            assert_eq!(found, None, "{}", text.lines().next().unwrap_or_default());
        }
    }

    /// A problem without a code has no section of the runbook, so the page itself has its steps.
    #[test]
    fn the_steps_for_problems_without_a_code_are_those_of_the_runbook() {
        const RUNBOOK: &str = include_str!("../../../../deploy/RUNBOOK.md");
        let begin = "const STEPS = {";
        let model = texts().find(|text| text.contains(begin)).expect("one file has the steps");
        let (_, steps) = model.split_once(begin).expect("it begins there");
        let (steps, _) = steps.split_once("\n};").expect("it ends there");
        let steps = steps.replace("\" +\n    \"", "");
        let commands: Vec<&str> = steps.split('`').skip(1).step_by(2).collect();
        let headings = steps.split("Runbook: ").skip(1).filter_map(|text| text.split('.').next());
        let headings: Vec<&str> = headings.collect();
        assert!(commands.len() >= 5 && headings.len() >= 3, "{commands:?} {headings:?}");
        for command in commands {
            assert!(RUNBOOK.contains(&format!("    {command}\n")), "the runbook has no step {command}");
        }
        for heading in headings {
            let is_it = |line: &str| line.starts_with('#') && line.trim_start_matches('#').trim() == heading;
            assert!(RUNBOOK.lines().any(is_it), "the runbook has no heading {heading}");
        }
    }

    /// The sentence calls a thing wrong from the same limit as its alert, and leads to the same heading.
    #[test]
    fn the_limits_of_the_sentence_are_those_of_the_alerts() {
        const RULES: &str = include_str!("../../../../deploy/prometheus/rules.yml");
        let lines = include_str!("page/sentence.js").lines();
        let alerts = lines.filter_map(|line| line.strip_prefix("  Anabranch")?.split_once(": { limit: "));
        let mut compared = 0;
        for (alert, facts) in alerts {
            let (limit, facts) = facts.split_once(", level: \"").expect("a level follows");
            let (level, heading) = facts.split_once("\", runbook: \"").expect("a heading follows");
            let heading = heading.trim_end_matches("\" },");
            let rule = RULES.split_once(&format!("- alert: Anabranch{alert}\n")).expect("the rule exists").1;
            let rule = rule.split("- alert: ").next().unwrap_or_default();
            let expression = rule.lines().next().unwrap_or_default();
            let is_limit = [" < ", " > "].iter().any(|sign| expression.ends_with(&format!("{sign}{limit}")));
            assert!(is_limit, "{alert} has another limit than {limit}: {expression}");
            assert_eq!(rule.contains("severity: page"), level == "bad", "{alert}");
            let headings = rule.lines().filter_map(|line| line.trim_start().strip_prefix("runbook: "));
            let headings: Vec<&str> = headings.map(|found| found.trim_matches('"')).collect();
            assert_eq!(headings, [heading], "{alert}");
            compared += 1;
        }
        assert_eq!(compared, 5);
    }

    /// A module that is not served leaves the whole page empty.
    #[test]
    fn each_file_that_the_page_loads_is_served_and_each_served_file_is_loaded() {
        let paths = texts().flat_map(|text| text.split('"'));
        let loaded: BTreeSet<&str> = paths.filter_map(|path| path.strip_prefix("/page/")).collect();
        let served: BTreeSet<&str> = ASSETS.iter().map(|(name, ..)| *name).collect();
        assert_eq!(loaded, served);
    }
}
