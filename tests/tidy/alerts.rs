//! Alerts use existing metrics by labels that they have, and name a heading of the runbook. Each has a case in which it
//! fires and one in which it does not. `promtool` runs these cases where the machine can have it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anabranch_stack::Layout;

use crate::expressions::{faults, faults_of_text};
use crate::tree::root;

const RULES: &str = "deploy/prometheus/rules.yml";
const CASES: &str = "deploy/prometheus/rules.test.yml";
/// Keys behind the expression of an alert.
const KEYS: [&str; 4] = ["for:", "labels:", "annotations:", "runbook:"];

/// An alert as the file of rules has it.
struct Alert<'t> {
    name: &'t str,
    /// Its lines in one.
    expression: String,
    summary: &'t str,
}

#[test]
fn alerts_ask_for_metrics_that_there_are_and_name_a_heading_of_the_runbook() {
    let rules = read(RULES);
    let alerts = values(&rules, "alert:");
    assert!(alerts.len() > 10, "the rules were not found: {alerts:?}");
    assert_eq!(alerts.iter().collect::<BTreeSet<_>>().len(), alerts.len(), "a name stands twice");
    for Alert { name, expression, summary } in alerts_of(&rules) {
        assert!(!expression.is_empty() && !summary.is_empty(), "{name} was not read");
        assert_eq!(faults(&expression), Vec::<String>::new(), "{name}");
        assert_eq!(faults_of_text(summary, &expression), Vec::<String>::new(), "{name}");
    }
    let runbook = read("deploy/RUNBOOK.md");
    let headings: BTreeSet<&str> = runbook
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| line.trim_start_matches('#').trim())
        .collect();
    let named: Vec<_> =
        values(&rules, "runbook:").into_iter().map(|heading| heading.trim_matches('"')).collect();
    assert_eq!(named.len(), alerts.len(), "an alert names no heading");
    for heading in named {
        assert!(headings.contains(heading), "the runbook has no heading {heading}");
    }
}

#[test]
fn each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() {
    let (rules, cases) = (read(RULES), read(CASES));
    let names: BTreeSet<&str> = values(&cases, "- name:").into_iter().collect();
    for alert in values(&rules, "alert:") {
        for case in ["fires", "does not fire"] {
            assert!(names.contains(&*format!("{alert} {case}")), "{alert} has no case that it {case}");
        }
    }
    let folder = root().join("deploy/prometheus");
    let layout = Layout::find().expect("the tests run in a checkout");
    let found = anabranch_stack::promtool(&layout).expect("an installed program is found");
    let Some(promtool) = found else { return };
    let mut command = Command::new(promtool.file);
    command.args(["test", "rules", "rules.test.yml"]).envs(promtool.environment).current_dir(folder);
    let output = command.output().expect("promtool runs");
    assert!(output.status.success(), "{output:?}");
}

/// Reads the alerts of a file of rules.
fn alerts_of(rules: &str) -> Vec<Alert<'_>> {
    let mut alerts: Vec<Alert<'_>> = Vec::new();
    let mut is_expression = false;
    for line in rules.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix("- alert: ") {
            alerts.push(Alert { name, expression: String::new(), summary: "" });
            continue;
        }
        let Some(alert) = alerts.last_mut() else { continue };
        if let Some(first) = line.strip_prefix("expr: ") {
            // `|` and `>-` begin an expression of several lines.
            alert.expression.push_str(first.trim_start_matches(['|', '>', '-']));
            is_expression = true;
        } else if let Some(summary) = line.strip_prefix("summary: ") {
            alert.summary = summary;
        } else if KEYS.iter().any(|key| line.starts_with(key)) {
            is_expression = false;
        } else if is_expression {
            alert.expression.push(' ');
            alert.expression.push_str(line);
        }
    }
    alerts
}

/// The values of a key, in the order of the lines.
fn values<'t>(text: &'t str, key: &str) -> Vec<&'t str> {
    let value =
        |line: &'t str| line.trim().trim_start_matches("- ").strip_prefix(key.trim_start_matches("- "));
    text.lines().filter_map(value).map(str::trim).collect()
}

fn read(path: &str) -> String {
    let path: &Path = &root().join(path);
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
