//! The report: a row for each drill, the alerts that no drill fired, the faults that wake nobody.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::error::{GamedayError, Result};
use crate::prometheus::{Rule, Timing};
use crate::scenario::{Expected, Scenario, Shown};
use crate::scenarios;
use crate::site::Site;
use crate::undrilled;

/// The written report, below the root of the checkout.
const FILE: &str = "deploy/GAMEDAY.md";
/// Explanation of the figures, which the report begins with.
const HEAD: &str = "\
# Game day

`cargo gameday` wrote this page: it breaks a real installation and measures. Its drills are `deploy/gameday/`, the
rules `deploy/prometheus/rules.yml`, and the steps are those of `deploy/RUNBOOK.md`: each command of `anabranch` was
run as it stands there, each other step was done to the servers that it means.

*Fired after* is the time from the fault until Prometheus said that the alert fires; the `for` of its rule is in
parentheses. *Shown after* is the time from the fault until the daemon's status, which the page draws, had the code.
*Ended after* is the time from the first step until everything was current and the alert was over. After each drill
every derived row was compared with its source, and all were equal.
";

/// Explanation of the list of alerts that no drill fired.
const NOT_FIRED: &str = "\
`promtool test rules` has a case in which each of them fires. In parentheses stands the heading of the runbook, and
behind it the reason why no drill fires the alert.

";

/// The outcome of one drill.
#[derive(Debug)]
pub struct Row {
    pub scenario: &'static Scenario,
    /// The `for` of the expected alert.
    pub hold: Duration,
    pub alert_after: Option<Duration>,
    pub shown_after: Option<Duration>,
    /// The page's sentence; `None` without a page or a browser.
    pub sentence: Option<String>,
    /// Codes that daemons showed during the drill.
    pub codes: Vec<String>,
    /// Steps of the runbook that were taken.
    pub taken: Vec<String>,
    pub ended_after: Duration,
    /// The alert fires on for the range of its expression, which was not waited for.
    pub is_alert_left: bool,
    /// Names of all alerts that fired.
    pub fired: BTreeSet<String>,
    /// Each thing that was not as it should be; empty = the drill is passed.
    pub problems: Vec<String>,
}

/// All rows of a game day, and its circumstances.
#[derive(Debug)]
pub struct Report {
    rows: Vec<Row>,
    rules: Vec<Rule>,
    environment: String,
}

impl Row {
    /// Returns the row of a drill that broke off.
    pub fn failed(scenario: &'static Scenario, problem: String) -> Self {
        Self {
            scenario,
            hold: Duration::ZERO,
            alert_after: None,
            shown_after: None,
            sentence: None,
            codes: Vec::new(),
            taken: Vec::new(),
            ended_after: Duration::ZERO,
            is_alert_left: false,
            fired: BTreeSet::new(),
            problems: vec![problem],
        }
    }

    /// Returns one line for the screen.
    pub fn line(&self) -> String {
        let name = self.scenario.name;
        match self.problems.is_empty() {
            true => {
                let (alert, shown) = (self.fired_cell(), seconds(self.shown_after));
                format!("{name}: {alert}; shown after {shown}; ended after {}", self.ended_cell())
            }
            false => format!("{name}: FAILED: {}", self.problems.join("; ")),
        }
    }

    fn fired_cell(&self) -> String {
        match self.scenario.alert {
            Expected::Alert { name, .. } => {
                format!("{name} after {} ({} s)", seconds(self.alert_after), self.hold.as_secs())
            }
            Expected::Nobody(_) => "nobody is woken".to_owned(),
        }
    }

    fn shown_cell(&self) -> String {
        match self.scenario.shown {
            Shown::NoAnswer => "no page".to_owned(),
            Shown::Current(reason) => format!("stays current: {reason}"),
            _ => seconds(self.shown_after),
        }
    }

    fn sentence_cell(&self) -> String {
        let sentence = self.sentence.as_deref().unwrap_or("—");
        match self.codes.is_empty() {
            true => escaped(sentence),
            false => format!("{} [{}]", escaped(sentence), self.codes.join(", ")),
        }
    }

    fn ended_cell(&self) -> String {
        let left = if self.is_alert_left { ", the alert with its range" } else { "" };
        format!("{:.1} s{left}", self.ended_after.as_secs_f64())
    }

    fn table_row(&self) -> String {
        let headings: Vec<&str> = self.scenario.sections.iter().map(|section| section.heading).collect();
        let steps: Vec<String> = self.taken.iter().map(|step| quoted(step.as_str())).collect();
        format!(
            "| {} | {} | {} | {} | {} | {} | {} |\n",
            self.scenario.fault,
            self.fired_cell(),
            self.shown_cell(),
            self.sentence_cell(),
            headings.join(", "),
            steps.join("<br>"),
            self.ended_cell(),
        )
    }
}

impl Report {
    /// Begins a report of drills on this site.
    pub async fn begin(site: &Site, timing: &Timing, has_pictures: bool) -> Result<Self> {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let rules = match timing.is_quick() {
            true => format!("the times of the rules were divided by {}", timing.factor),
            false => "the rules ran as they are shipped".to_owned(),
        };
        let pictures = if has_pictures { "" } else { " No browser was there, so no sentence was read." };
        let environment = format!(
            "{} at commit {}, {cores} cores, Linux {}, {}; scraped every {} s, {rules}.{pictures}",
            jiff::Timestamp::now().strftime("%Y-%m-%d"),
            commit(),
            kernel.trim(),
            site.database_version().await?,
            timing.scrape_seconds,
        );
        Ok(Self { rows: Vec::new(), rules: timing.rules.clone(), environment })
    }

    pub fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Prints the report, and writes its file when every drill has run and none has a problem. Returns whether none
    /// has.
    pub fn finish(&self) -> Result<bool> {
        let text = self.text();
        println!("{text}");
        let is_good = self.rows.iter().all(|row| row.problems.is_empty());
        if is_good && self.rows.len() == scenarios::all().len() {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(FILE);
            fs::write(&path, text).map_err(|source| GamedayError::File { action: "write", path, source })?;
        } else {
            eprintln!("{FILE} stays as it is: it is written when every drill has run and ended as it should");
        }
        Ok(is_good)
    }

    fn text(&self) -> String {
        let mut text = format!("{HEAD}\n{}\n\n", wrapped(&self.environment));
        text.push_str("| fault | alert fired after (`for`) | shown after | the page said | runbook | steps | ended after |\n");
        text.push_str("|---|---|---|---|---|---|---|\n");
        for row in &self.rows {
            text.push_str(&match row.problems.is_empty() {
                true => row.table_row(),
                false => format!("| {} | {} | | | | | |\n", row.scenario.fault, escaped(&row.line())),
            });
        }
        text.push_str("\n## Faults that wake nobody\n\n");
        for row in &self.rows {
            if let Expected::Nobody(reason) = row.scenario.alert {
                text.push_str(&wrapped(&format!("- {}: {reason}", row.scenario.fault)));
                text.push('\n');
            }
        }
        text.push_str("\n## Alerts that no drill fired\n\n");
        text.push_str(NOT_FIRED);
        let fired: BTreeSet<&String> = self.rows.iter().flat_map(|row| &row.fired).collect();
        for rule in self.rules.iter().filter(|rule| !fired.contains(&rule.name)) {
            let Rule { name, severity, runbook, .. } = rule;
            let reason = undrilled::reason(name).unwrap_or("its drill did not run to its end");
            text.push_str(&wrapped(&format!("- {name} ({severity}, *{runbook}*): {reason}.")));
            text.push('\n');
        }
        text
    }
}

/// Returns the line that `--list` prints of a drill.
pub fn listed(scenario: &Scenario) -> String {
    let alert = match scenario.alert {
        Expected::Alert { name, .. } => name.to_owned(),
        Expected::Nobody(reason) => format!("wakes nobody: {reason}"),
    };
    format!("{:<18} {}: {alert}", scenario.name, scenario.fault)
}

fn seconds(time: Option<Duration>) -> String {
    time.map_or_else(|| "—".to_owned(), |time| format!("{:.1} s", time.as_secs_f64()))
}

/// Returns a step as code; one that has code in it keeps its own quotes.
fn quoted(step: &str) -> String {
    if step.contains('`') { escaped(step) } else { format!("`{}`", escaped(step)) }
}

/// Returns a text as the cell of a table.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// Breaks a paragraph or an item of a list into lines of prose; further lines of an item are indented.
fn wrapped(text: &str) -> String {
    const LINE_CHARACTERS_MAX: usize = 120;
    let indentation = if text.starts_with("- ") { "  " } else { "" };
    let (mut lines, mut line) = (String::new(), String::new());
    for word in text.split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > LINE_CHARACTERS_MAX {
            lines.push_str(&line);
            lines.push('\n');
            line = format!("{indentation}{word}");
            continue;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines + &line
}

/// Returns the short name of the last commit; `unknown` outside of a repository.
fn commit() -> String {
    let mut git = Command::new("git");
    git.args(["rev-parse", "--short", "HEAD"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    match git.output() {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        _ => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prometheus;

    fn row(scenario: &'static Scenario) -> Row {
        Row {
            alert_after: Some(Duration::from_millis(310_500)),
            hold: Duration::from_secs(300),
            shown_after: Some(Duration::from_millis(1_200)),
            sentence: Some("Source a | b cannot be reached".to_owned()),
            codes: vec!["source-unreachable".to_owned()],
            taken: vec!["anabranch check".to_owned()],
            ended_after: Duration::from_secs(20),
            fired: BTreeSet::from(["AnabranchServerUnreachable".to_owned()]),
            problems: Vec::new(),
            ..Row::failed(scenario, String::new())
        }
    }

    fn report(rows: Vec<Row>) -> Report {
        let is_wanted =
            |rule: &Rule| ["AnabranchServerUnreachable", "AnabranchLagUnknown"].contains(&&*rule.name);
        let rules = prometheus::rules(prometheus::RULES).into_iter().filter(is_wanted).collect();
        Report { rows, rules, environment: "here".to_owned() }
    }

    #[test]
    fn a_row_has_every_figure_and_a_bar_breaks_no_table() {
        let scenario = scenarios::all().into_iter().find(|one| one.name == "source-killed").unwrap();
        let text = report(vec![row(scenario)]).text();
        for wanted in [
            "| AnabranchServerUnreachable after 310.5 s (300 s) | 1.2 s |",
            "Source a \\| b cannot be reached [source-unreachable] | source-unreachable |",
            "| `anabranch check` | 20.0 s |",
            "\n- AnabranchLagUnknown (ticket, *First look*): every lane must lose its lag at once",
        ] {
            assert!(text.contains(wanted), "{wanted} is not in {text}");
        }
        assert!(!text.contains("\n- AnabranchServerUnreachable"), "{text}");
    }

    #[test]
    fn a_failed_drill_is_said_and_prose_is_wrapped() {
        let scenario = scenarios::all()[0];
        let text = report(vec![Row::failed(scenario, "it broke off".to_owned())]).text();
        assert!(text.contains("FAILED: it broke off"), "{text}");
        let long = wrapped(&format!("- {}", "word ".repeat(60).trim_end()));
        assert!(long.lines().count() == 3 && long.lines().all(|line| line.len() <= 120), "{long}");
        assert!(long.lines().skip(1).all(|line| line.starts_with("  word")), "{long}");
    }
}
