//! Prometheus: its alerts over HTTP, the targets that it scrapes, and the rules with their times.
//!
//! The shipped rules run as they are, or with every `for` and range divided, so that work on the drills is fast.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anabranch_demo::JsonClient;
use reqwest::Method;
use serde_json::{Value, json};

use crate::error::{GamedayError, Result};

/// The rules that users load.
pub const RULES: &str = include_str!("../../prometheus/rules.yml");

/// Divisor of every `for` and range of quick drills.
const QUICK_FACTOR: u64 = 20;
/// Ages at which spot checks look, as they are by default and in quick drills.
const SPOT_CHECKS: [u64; 3] = [60, 300, 600];
const QUICK_SPOT_CHECKS: [u64; 3] = [5, 15, 30];
/// Time between two scrapes, as the rules are written for and in quick drills.
const SCRAPE_SECONDS: u32 = 15;
const QUICK_SCRAPE_SECONDS: u32 = 1;

/// One rule as its file defines it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub name: String,
    /// Time for which its expression must hold.
    pub hold: Duration,
    pub severity: String,
    /// Heading of the runbook.
    pub runbook: String,
}

/// The rules of a game day and the times that follow from them.
#[derive(Debug, Clone)]
pub struct Timing {
    pub rules_text: String,
    pub rules: Vec<Rule>,
    pub scrape_seconds: u32,
    pub spot_check_seconds: [u64; 3],
    /// 1 = the rules are the shipped ones.
    pub factor: u64,
}

/// A firing alert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alert {
    pub name: String,
    pub labels: BTreeMap<String, String>,
}

/// The server of a stack.
#[derive(Debug)]
pub struct Prometheus {
    client: JsonClient,
    /// File of the further targets.
    targets: PathBuf,
}

impl Timing {
    pub fn of(is_quick: bool) -> Self {
        let (factor, spot_check_seconds, scrape_seconds) = match is_quick {
            true => (QUICK_FACTOR, QUICK_SPOT_CHECKS, QUICK_SCRAPE_SECONDS),
            false => (1, SPOT_CHECKS, SCRAPE_SECONDS),
        };
        let rules_text = match is_quick {
            true => hastened(RULES, factor),
            false => RULES.to_owned(),
        };
        let rules = rules(&rules_text);
        Self { rules_text, rules, scrape_seconds, spot_check_seconds, factor }
    }

    pub fn is_quick(&self) -> bool {
        self.factor > 1
    }

    /// Returns the rule of this name.
    pub fn rule(&self, name: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.name == name)
    }

    /// Returns the time from a change of a row until its last spot check.
    pub fn spot_check_max(&self) -> Duration {
        Duration::from_secs(self.spot_check_seconds[2])
    }
}

impl Prometheus {
    /// Returns the server at this address, whose files are in this folder.
    pub fn at(url: String, folder: &Path) -> Result<Self> {
        let client = JsonClient::without_tls("prometheus", url)?;
        Ok(Self { client, targets: folder.join("further.json") })
    }

    /// Returns the alerts that fire now.
    pub async fn firing(&self) -> Result<Vec<Alert>> {
        let answer = self.client.ask("ask for alerts", Method::GET, "api/v1/alerts", Value::Null).await?;
        let Some(alerts) = answer["data"]["alerts"].as_array() else {
            let reason = "it has no list of alerts".to_owned();
            return Err(GamedayError::AnswerUnfit { server: "Prometheus", reason });
        };
        Ok(alerts.iter().filter(|alert| alert["state"] == "firing").map(alert_of).collect())
    }

    /// Returns whether an expression has a result now.
    pub async fn has(&self, expression: &str) -> Result<bool> {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let path = format!("api/v1/query?query={encoded}");
        let answer = self.client.ask("ask for series", Method::GET, &path, Value::Null).await?;
        let Some(series) = answer["data"]["result"].as_array() else {
            let reason = "it has no list of series".to_owned();
            return Err(GamedayError::AnswerUnfit { server: "Prometheus", reason });
        };
        Ok(!series.is_empty())
    }

    /// Scrapes the daemon on this port of 127.0.0.1 beside the first one; `None` scrapes only the first.
    pub fn scrape_also(&self, port: Option<u16>) -> Result<()> {
        let groups: Vec<Value> =
            port.map(|port| json!({ "targets": [format!("127.0.0.1:{port}")] })).into_iter().collect();
        // The server may read the file at any moment, so the new one appears whole.
        let draft = self.targets.with_extension("draft");
        let written = fs::write(&draft, Value::from(groups).to_string());
        written.and_then(|()| fs::rename(&draft, &self.targets)).map_err(|source| GamedayError::File {
            action: "write",
            path: self.targets.clone(),
            source,
        })
    }
}

fn alert_of(alert: &Value) -> Alert {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let labels = alert["labels"].as_object().into_iter().flatten();
    let labels: BTreeMap<String, String> = labels.map(|(name, value)| (name.clone(), text(value))).collect();
    Alert { name: labels.get("alertname").cloned().unwrap_or_default(), labels }
}

impl Alert {
    /// Returns whether this is the alert of this name with these labels.
    pub fn is(&self, name: &str, labels: &[(&str, &str)]) -> bool {
        let has = |(name, value): &(&str, &str)| self.labels.get(*name).is_some_and(|found| found == value);
        self.name == name && labels.iter().all(has)
    }
}

/// Reads the rules of a file: one entry a line, as the documented file is written.
pub fn rules(text: &str) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("- alert: ") {
            let (name, severity, runbook) = (name.to_owned(), String::new(), String::new());
            rules.push(Rule { name, hold: Duration::ZERO, severity, runbook });
            continue;
        }
        let Some(rule) = rules.last_mut() else { continue };
        if let Some(hold) = line.strip_prefix("for: ") {
            rule.hold = Duration::from_secs(seconds(hold).unwrap_or_default());
        } else if let Some(rest) = line.strip_prefix("labels: { severity: ") {
            rule.severity = rest.trim_end_matches(" }").to_owned();
        } else if let Some(heading) = line.strip_prefix("runbook: ") {
            rule.runbook = heading.trim_matches('"').to_owned();
        }
    }
    rules
}

/// Returns the seconds of a duration such as `15m`; `None` for any other text.
fn seconds(duration: &str) -> Option<u64> {
    let unit = duration.chars().last()?;
    let of_unit = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return None,
    };
    duration.strip_suffix(unit)?.parse::<u64>().ok().map(|count| count * of_unit)
}

/// Returns the rules with every `for`, range and offset divided.
fn hastened(text: &str, factor: u64) -> String {
    let shorter = |duration: &str| match seconds(duration) {
        Some(seconds) => format!("{}s", (seconds / factor).max(1)),
        None => duration.to_owned(),
    };
    let mut hastened = String::new();
    for line in text.lines() {
        // A comment or an annotation has none of these.
        let line = replaced(line, "for: ", shorter);
        let line = replaced(&line, "offset ", shorter);
        hastened.push_str(&replaced(&line, "[", shorter));
        hastened.push('\n');
    }
    hastened
}

/// Replaces the letters and digits behind each occurrence of a text.
fn replaced(line: &str, before: &str, shorter: impl Fn(&str) -> String) -> String {
    let mut parts = line.split(before);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|letter: char| !letter.is_ascii_alphanumeric()).unwrap_or(part.len());
        text.push_str(before);
        text.push_str(&shorter(&part[..end]));
        text.push_str(&part[end..]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_of_the_file_is_read_with_its_times() {
        let rules = rules(RULES);
        assert_eq!(rules.len(), RULES.matches("- alert: ").count());
        assert!(rules.iter().all(|rule| ["page", "ticket"].contains(&rule.severity.as_str())), "{rules:?}");
        assert!(rules.iter().all(|rule| !rule.runbook.is_empty()), "{rules:?}");
        let retrying = rules.iter().find(|rule| rule.name == "AnabranchTaskRetrying").unwrap();
        assert_eq!(retrying.hold, Duration::from_secs(900));
        let held = rules.iter().filter(|rule| !rule.hold.is_zero()).count();
        assert_eq!(held, RULES.lines().filter(|line| line.trim().starts_with("for: ")).count());
    }

    #[test]
    fn quick_rules_differ_in_their_times_alone() {
        let text =
            "for: 15m\n  expr: increase(a[1h]) > 3600 unless b{c=\"d\"} offset 1h\n  summary: for 4h\n";
        let expected =
            "for: 45s\n  expr: increase(a[180s]) > 3600 unless b{c=\"d\"} offset 180s\n  summary: for 4h\n";
        assert_eq!(hastened(text, 20), expected);
        let quick = Timing::of(true);
        let names = |rules: &[Rule]| rules.iter().map(|rule| rule.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&quick.rules), names(&rules(RULES)));
        assert_eq!(quick.rule("AnabranchTaskRetrying").unwrap().hold, Duration::from_secs(45));
        assert_eq!(Timing::of(false).rules_text, RULES);
    }

    #[test]
    fn an_alert_is_known_by_its_name_and_labels() {
        let labels = json!({ "labels": { "alertname": "A", "name": "source-a" }, "state": "firing" });
        let alert = alert_of(&labels);
        assert!(alert.is("A", &[("name", "source-a")]) && alert.is("A", &[]));
        assert!(!alert.is("A", &[("name", "source-b")]) && !alert.is("B", &[]));
    }
}
