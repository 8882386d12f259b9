//! Alerts use existing metrics and name a heading of the runbook. Each has a case in which it fires and one in which it
//! does not. `promtool` runs these cases where the machine can have it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anabranch_stack::Layout;

use crate::tree::root;

const RULES: &str = "deploy/prometheus/rules.yml";
const CASES: &str = "deploy/prometheus/rules.test.yml";

#[test]
fn alerts_ask_for_metrics_that_there_are_and_name_a_heading_of_the_runbook() {
    let (rules, metrics) = (read(RULES), read("pipeline/src/metrics.rs"));
    let alerts = values(&rules, "alert:");
    assert!(alerts.len() > 10, "the rules were not found: {alerts:?}");
    assert_eq!(alerts.iter().collect::<BTreeSet<_>>().len(), alerts.len(), "a name stands twice");
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_ours = |name: &&str| name.starts_with("anabranch_") || name.starts_with("process_");
    for name in rules.split(|c| !is_name(c)).filter(is_ours) {
        assert!(metrics.contains(&format!("\"{name}\"")), "no metric is called {name}");
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
