//! Each panel of the dashboards for Grafana uses existing metrics by labels that they have, has a unit and links a
//! heading of the runbook. A test of `end_to_end` shows that Prometheus answers them.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use crate::expressions::{faults, faults_of_text};
use crate::tree::root;

const DASHBOARDS: [&str; 3] = ["overview", "lanes", "reconciliation"];

#[test]
fn each_panel_asks_for_metrics_that_there_are_and_links_a_heading_of_the_runbook() {
    let runbook = read("deploy/RUNBOOK.md");
    let anchors: BTreeSet<String> =
        runbook.lines().filter(|line| line.starts_with('#')).map(anchor_of).collect();
    for name in DASHBOARDS {
        let dashboard: Json = serde_json::from_str(&read(&format!("deploy/grafana/{name}.json")))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(dashboard["schemaVersion"].as_u64() >= Some(39), "{name} is of an old Grafana");
        let panels = dashboard["panels"].as_array().expect("panels").iter();
        let mut ids = BTreeSet::new();
        for panel in panels.filter(|panel| panel["type"] != "row") {
            let title = format!("{name}: {}", panel["title"]);
            assert!(ids.insert(panel["id"].as_u64()), "{title}: its number stands twice");
            assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title} has no unit");
            assert!(panel["description"].as_str().is_some_and(|text| text.ends_with('.')), "{title}");
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
            let link = panel["links"][0]["url"].as_str().unwrap_or_default();
            let anchor = link.strip_prefix("${runbook}#").unwrap_or_else(|| panic!("{title} links {link}"));
            assert!(anchors.contains(anchor), "{title}: the runbook has no heading {anchor}");
            let targets = panel["targets"].as_array().expect("targets");
            assert!(!targets.is_empty(), "{title} asks for nothing");
            for target in targets {
                let expression = target["expr"].as_str().expect("an expression");
                let asks = ["anabranch_", "process_", "up{"].iter().any(|name| expression.contains(name));
                assert!(asks, "{title}: {expression}");
                assert_eq!(faults(expression), Vec::<String>::new(), "{title}: {expression}");
                let legend = target["legendFormat"].as_str().unwrap_or_default();
                assert_eq!(faults_of_text(legend, expression), Vec::<String>::new(), "{title}");
            }
        }
    }
}

/// The anchor that a heading has where the document is rendered.
fn anchor_of(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}
