//! Expressions of Prometheus in alerts and dashboards: each metric exists and has the labels that they name.
//!
//! It is no parser of the language: it knows names, strings and brackets. A label in braces must belong to its metric,
//! a label of `by` or `without` to each metric of the group behind it, and one of `on` and the like to each metric of
//! the expression.

use anabranch_pipeline::metrics::{Kind, Metric};

/// Labels that Prometheus adds by itself.
const OF_PROMETHEUS: [&str; 5] = ["alertname", "instance", "job", "le", "severity"];

/// Finds metrics that do not exist, and labels that their metric does not have.
pub fn faults(expression: &str) -> Vec<String> {
    let text = without_strings(expression);
    let tokens = tokens(&text);
    let mut faults = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        let opens = |index: usize| tokens.get(index).is_some_and(|token| matches!(*token, "(" | "{"));
        match *token {
            name if is_ours(name) && metric(name).is_none() => {
                faults.push(format!("no metric is called {name}"));
            }
            name if is_ours(name) && tokens.get(index + 1) == Some(&"{") => {
                faults.extend(lacking(within(&tokens, index + 1), &[name]));
            }
            "by" | "without" if opens(index + 1) => {
                let labels = within(&tokens, index + 1);
                let group_at = index + labels.len() + 3;
                let group = if opens(group_at) { within(&tokens, group_at) } else { &tokens[..] };
                faults.extend(lacking(labels, group));
            }
            "on" | "ignoring" | "group_left" | "group_right" if opens(index + 1) => {
                faults.extend(lacking(within(&tokens, index + 1), &tokens));
            }
            _ => {}
        }
    }
    faults
}

/// Finds labels in a summary or a legend that no metric of its expression has.
pub fn faults_of_text(text: &str, expression: &str) -> Vec<String> {
    let plain = without_strings(expression);
    let metrics: Vec<_> = tokens(&plain).into_iter().filter_map(metric).collect();
    let templates = text.split("{{").skip(1).filter_map(|part| part.split("}}").next());
    let labels = templates.map(|part| part.trim().trim_start_matches("$labels."));
    labels
        .filter(|label| !label.starts_with('$') && !OF_PROMETHEUS.contains(label))
        .filter(|label| metrics.iter().all(|metric| !metric.labels.contains(label)))
        .map(|label| format!("no metric of {expression} has the label {label}"))
        .collect()
}

fn is_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

fn is_ours(name: &str) -> bool {
    name.starts_with("anabranch_") || name.starts_with("process_")
}

/// Returns the metric of a series with this name. A histogram has series of three further names.
fn metric(name: &str) -> Option<&'static Metric> {
    let family = || ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
    let histogram = || Metric::named(family()?).filter(|metric| metric.kind == Kind::Histogram);
    Metric::named(name).or_else(histogram)
}

/// Finds those of the labels that one of the metrics among these tokens does not have.
fn lacking(labels: &[&str], tokens: &[&str]) -> Vec<String> {
    let labels = labels.iter().filter(|label| label.starts_with(is_name) && !OF_PROMETHEUS.contains(label));
    let metrics: Vec<_> = tokens.iter().filter_map(|token| metric(token)).collect();
    let of_label = |label: &&str| {
        let without = metrics.iter().filter(|metric| !metric.labels.contains(label));
        without.map(|metric| format!("{} has no label {label}", metric.name)).collect::<Vec<_>>()
    };
    labels.flat_map(of_label).collect()
}

/// Returns the tokens within the bracket at this index.
fn within<'t, 'a>(tokens: &'t [&'a str], open: usize) -> &'t [&'a str] {
    let mut depth = 0;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        match *token {
            "(" | "{" => depth += 1,
            ")" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &tokens[open + 1..index];
        }
    }
    panic!("a bracket does not close: {tokens:?}");
}

/// Returns names and other characters, without spaces.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let end = match is_name(first) {
            true => rest.find(|character: char| !is_name(character)).unwrap_or(rest.len()),
            false => first.len_utf8(),
        };
        let (token, after) = rest.split_at(end);
        tokens.push(token);
        rest = after.trim_start();
    }
    tokens
}

/// Leaves out strings, whose brackets and words are none of the language.
fn without_strings(expression: &str) -> String {
    let mut plain = String::new();
    let mut characters = expression.chars();
    while let Some(character) = characters.next() {
        if character != '"' {
            plain.push(character);
            continue;
        }
        while let Some(inner) = characters.next() {
            match inner {
                '"' => break,
                '\\' => _ = characters.next(),
                _ => {}
            }
        }
    }
    plain
}

#[test]
fn a_label_that_a_metric_lacks_is_found_in_braces_groups_and_matches() {
    let drift = "anabranch_spot_check_drift_total";
    let sound = format!("sum by (store) (increase({drift}{{job=\"a\", check=~\"last|(by (x))\"}}[1h])) > 0");
    assert_eq!(faults(&sound), Vec::<String>::new());
    assert_eq!(faults_of_text("{{ $labels.store }} {{ $value }} {{source}}", &sound), Vec::<String>::new());
    assert_eq!(faults_of_text("{{ $labels.lane }}", &sound).len(), 1);
    for (expression, fault) in [
        (format!("{drift}{{job=\"a\", age=\"600\"}}"), format!("{drift} has no label age")),
        (format!("sum by (store, lane) (rate({drift}[5m]))"), format!("{drift} has no label lane")),
        (format!("sum(rate({drift}[5m])) by (lane)"), format!("{drift} has no label lane")),
        (
            format!("up{{job=\"a\"}} and on (task) max by (store) ({drift})"),
            format!("{drift} has no label task"),
        ),
        ("anabranch_driftt_total > 0".to_owned(), "no metric is called anabranch_driftt_total".to_owned()),
        ("anabranch_faults_count".to_owned(), "no metric is called anabranch_faults_count".to_owned()),
    ] {
        assert_eq!(faults(&expression), [fault], "{expression}");
    }
    let seconds = "sum by (le, target) (rate(anabranch_lane_flush_seconds_bucket{target=\"t\"}[5m]))";
    assert_eq!(faults(seconds), Vec::<String>::new());
}
