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
pub(super) const ASSETS: [(&str, &str, &str); 27] = [
    ("page.css", CSS, include_str!("page/page.css")),
    ("page.js", JAVASCRIPT, include_str!("page/page.js")),
    ("stream.js", JAVASCRIPT, include_str!("page/stream.js")),
    ("alerts.js", JAVASCRIPT, include_str!("page/alerts.js")),
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

    const RULES: &str = include_str!("../../../../deploy/prometheus/rules.yml");

    /// The product of the numbers of `6 * 3600`.
    fn product(text: &str) -> u64 {
        text.split(" * ").map(|number| number.parse::<u64>().expect("numbers are multiplied")).product()
    }

    /// The seconds of a duration of Prometheus, such as `15m`.
    fn seconds(text: &str) -> u64 {
        let (number, unit) = text.split_at(text.len() - 1);
        let unit = match unit {
            "h" => 3_600,
            "m" => 60,
            other => panic!("{other} is no unit"),
        };
        unit * number.parse::<u64>().expect("a duration begins with a number")
    }

    /// A rule's texts behind the separator, up to the end of a number or duration.
    fn numbers<'t>(rule: &'t str, separator: &'t str) -> impl Iterator<Item = &'t str> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || " *.".contains(c);
        let number = move |text: &'t str| text.split(|c| !is_part(c)).next().unwrap_or_default().trim();
        rule.split(separator).skip(1).map(number)
    }

    /// Expects a field of the page's table to say what the rule says.
    fn check_field(alert: &str, rule: &str, (key, value): (&str, &str)) {
        let is_right = match key {
            "level" => rule.contains("severity: page") == (value == "\"bad\""),
            "runbook" => text_of(rule, "runbook: ") == Some(value.trim_matches('"')),
            "lasts" => text_of(rule, "for: ").map(seconds) == Some(product(value)),
            "over" => numbers(rule, "[").map(seconds).any(|range| range == product(value)),
            _ => numbers(rule, " > ").chain(numbers(rule, " < ")).any(|limit| limit == value),
        };
        assert!(is_right, "the rule of {alert} has another {key} than {value}: {rule}");
    }

    /// The text behind a key of a rule, without quotes.
    fn text_of<'t>(rule: &'t str, key: &str) -> Option<&'t str> {
        rule.lines().find_map(|line| line.trim_start().strip_prefix(key)).map(|text| text.trim_matches('"'))
    }

    /// The page calls a thing wrong from the same limit as its alert, as urgently, and leads to the same heading.
    #[test]
    fn each_alert_is_shown_by_its_own_limits_or_a_reason_is_written() {
        let limits = include_str!("../../../../docs/limits.md");
        let table = include_str!("page/alerts.js");
        let mut shown = BTreeSet::new();
        for line in table.lines().filter_map(|line| line.strip_prefix("  Anabranch")) {
            let (alert, facts) = line.trim_end_matches(" },").split_once(": { ").expect("facts follow");
            let rule = RULES.split_once(&format!("- alert: Anabranch{alert}\n")).expect("the rule exists").1;
            let rule = rule.split("- alert: ").next().unwrap_or_default();
            let fields: Vec<_> = facts.split(", ").filter_map(|field| field.split_once(": ")).collect();
            fields.iter().for_each(|field| check_field(alert, rule, *field));
            assert!(
                ["level", "runbook"].iter().all(|key| fields.iter().any(|(name, _)| name == key)),
                "{alert}"
            );
            shown.insert(alert);
        }
        assert!(shown.len() > 20, "the table was not found: {shown:?}");
        for alert in RULES.lines().filter_map(|line| line.trim().strip_prefix("- alert: Anabranch")) {
            let has_reason = limits.contains(&format!("\n| `Anabranch{alert}` | "));
            assert_ne!(shown.contains(alert), has_reason, "{alert} is shown, or docs/limits.md says why not");
        }
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
