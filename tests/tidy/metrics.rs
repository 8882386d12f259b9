//! The page of metrics equals the list in `metrics.rs`, and labels stay few whatever the number of tables and rows.
//!
//! `ANABRANCH_WRITE_METRICS=1 cargo test --test tidy metrics` writes the page.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anabranch_pipeline::metrics::{ALL, Kind, Metric};

use crate::tree::root;

const PAGE: &str = "docs/metrics.md";
const WRITE: &str = "ANABRANCH_WRITE_METRICS";
const HEAD: &str = "# Metrics

`GET /metrics` of `http.listen` shows them in the text format of Prometheus. This page is made from
`pipeline/src/metrics.rs`; a test compares both. `deploy/prometheus/rules.yml` has alerts on them.

Counters rise from 0 at the start of a process. A metric appears once its task has begun, and a gauge of something that
is not known has no sample. `anabranch_faults_total` and `anabranch_row_defects_total` begin each series with its first
event: every code of every task, or every reason of every projection and source, would be tens of thousands of series at
0. So `increase()` misses the first event of a series, and an alert asks with `unless … offset` for series that are new,
as `deploy/prometheus/rules.yml` does. `anabranch_retries_total` has a series for every code from the start.

Labels are named sources, targets, projections, stores, tasks and codes: more tables or rows make no more series. No
metric holds a row value or a secret.

| metric | type | unit | labels | meaning |
|---|---|---|---|---|
";
/// Labels of metrics: each names a configured thing, or one of a short list in the code.
const LABELS: [&str; 24] = [
    "after",
    "application",
    "cache",
    "check",
    "code",
    "commit",
    "configuration",
    "dependency",
    "lane",
    "name",
    "outcome",
    "pool",
    "programme",
    "projection",
    "reason",
    "route",
    "source",
    "status",
    "store",
    "target",
    "task",
    "verdict",
    "version",
    "wave",
];

#[test]
fn the_page_says_what_the_code_says() {
    let page = root().join(PAGE);
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&page, made()).expect("the page is written");
    }
    let is = std::fs::read_to_string(&page).unwrap_or_default();
    assert!(is == made(), "{PAGE} is not as pipeline/src/metrics.rs: write it with {WRITE}=1");
}

#[test]
fn names_are_unique_end_as_prometheus_wants_and_their_labels_are_bounded() {
    let names: BTreeSet<_> = ALL.iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), ALL.len(), "a name stands twice");
    for Metric { name, kind, labels, help } in ALL {
        assert!(name.starts_with("anabranch_") || name.starts_with("process_"), "{name}");
        assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
        assert!(help.ends_with('.') && !help.contains(['|', '\n', '\\']), "{name}: {help}");
        for label in *labels {
            assert!(LABELS.contains(label), "{name}: may {label} have very many values?");
        }
    }
    let used: BTreeSet<&str> = ALL.iter().flat_map(|metric| metric.labels).copied().collect();
    let listed: BTreeSet<&str> = LABELS.into_iter().collect();
    assert_eq!(used, listed, "a label of the list belongs to no metric");
}

fn made() -> String {
    let mut page = HEAD.to_owned();
    for metric in ALL {
        let Metric { name, kind, labels, help } = metric;
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        let unit = metric.unit().as_str();
        _ = writeln!(page, "| `{name}` | {} | {unit} | {} | {help} |", kind.name(), labels.join(", "));
    }
    page
}
