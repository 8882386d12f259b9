//! The report: a row for each drill, the alerts that no drill fires, the faults that wake nobody. A row stays until its
//! drill runs again, and says when and how it ran.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::error::{GamedayError, Result};
use crate::prometheus::{Rule, Timing};
use crate::scenario::{Expected, Scenario, Shown};
use crate::scenarios;
use crate::site::Site;
use crate::{steps, undrilled};

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
every derived row was compared with its source, and all were equal. *Run* says when the row was measured, at which
commit, and whether the rules ran as they are shipped or quickly, with their times divided.
";

/// Heads of the table of drills.
const TABLE: &str = "\
| fault | alert fired after (`for`) | shown after | the page said | runbook | steps | ended after | run |
|---|---|---|---|---|---|---|---|
";

/// Explanation of the list of steps that drills leave out.
const LEFT_OUT: &str = "\
A drill takes every step of its sections but these. Before each stands the fault, and behind it the reason.

";

/// Explanation of the list of alerts that no drill fires.
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
    /// Each thing that was not as it should be; empty = the drill is passed.
    pub problems: Vec<String>,
}

/// All rows of a game day, and its circumstances.
#[derive(Debug)]
pub struct Report {
    rows: Vec<Row>,
    rules: Vec<Rule>,
    environment: String,
    /// Day, commit and kind of this run.
    run: String,
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

    fn table_row(&self, run: &str) -> String {
        let headings: Vec<&str> = self.scenario.sections.iter().map(|section| section.heading).collect();
        let steps: Vec<String> = self.taken.iter().map(|step| quoted(step.as_str())).collect();
        format!(
            "| {} | {} | {} | {} | {} | {} | {} | {run} |\n",
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
        let (today, commit) = (jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(), commit());
        let environment = format!(
            "The last run was on {today} at commit {commit}, {cores} cores, Linux {}, {}; scraped every {} s, \
             {rules}.{pictures}",
            kernel.trim(),
            site.database_version().await?,
            timing.scrape_seconds,
        );
        let kind = if timing.is_quick() { "quick" } else { "as shipped" };
        let run = format!("{today}, {commit}, {kind}");
        Ok(Self { rows: Vec::new(), rules: timing.rules.clone(), environment, run })
    }

    pub fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Prints the report of this run. Writes the file when every drill has run and none has a problem, or when it is
    /// asked to. Returns whether none has a problem.
    pub fn finish(&self, is_asked: bool) -> Result<bool> {
        println!("{}", self.text(""));
        let is_good = self.rows.iter().all(|row| row.problems.is_empty());
        if is_asked || is_good && self.rows.len() == scenarios::all().len() {
            self.write()?;
        } else {
            eprintln!("{FILE} stays as it is: a drill is left out or has failed, and --write is not given");
        }
        Ok(is_good)
    }

    /// Replaces the rows of this run in the file.
    fn write(&self) -> Result<()> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(FILE);
        let failed = |action| {
            let path = path.clone();
            move |source| GamedayError::File { action, path, source }
        };
        let earlier = fs::read_to_string(&path).map_err(failed("read"))?;
        fs::write(&path, self.text(&earlier)).map_err(failed("write"))
    }

    /// Returns the report. A drill that has not run now, or has failed, keeps its row of the earlier one.
    fn text(&self, earlier: &str) -> String {
        let mut text = format!("{HEAD}\n{}\n\n{TABLE}", wrapped(&self.environment));
        let mut without = Vec::new();
        for scenario in scenarios::all() {
            let is_of_it = |row: &&Row| row.scenario.name == scenario.name && row.problems.is_empty();
            let row = self.rows.iter().find(is_of_it).map(|row| row.table_row(&self.run));
            match row.or_else(|| earlier_row(earlier, scenario)) {
                Some(row) => text.push_str(&row),
                None => without.push(scenario.name),
            }
        }
        if !without.is_empty() {
            text.push('\n');
            text.push_str(&wrapped(&format!("These drills have no row yet: {}.", without.join(", "))));
            text.push('\n');
        }
        text.push_str("\n## Steps that a drill leaves out\n\n");
        text.push_str(LEFT_OUT);
        for scenario in scenarios::all() {
            for (step, reason) in steps::left_out(scenario) {
                text.push_str(&wrapped(&format!("- {}: {}: {reason}.", scenario.fault, as_code(&step))));
                text.push('\n');
            }
        }
        text.push_str("\n## Faults that wake nobody\n\n");
        for scenario in scenarios::all() {
            if let Expected::Nobody(reason) = scenario.alert {
                text.push_str(&wrapped(&format!("- {}: {reason}", scenario.fault)));
                text.push('\n');
            }
        }
        text.push_str("\n## Alerts that no drill fires\n\n");
        text.push_str(NOT_FIRED);
        for Rule { name, severity, runbook, .. } in &self.rules {
            if let Some(reason) = undrilled::reason(name) {
                text.push_str(&wrapped(&format!("- {name} ({severity}, *{runbook}*): {reason}.")));
                text.push('\n');
            }
        }
        text
    }
}

/// Returns the row of a drill in an earlier report.
fn earlier_row(earlier: &str, scenario: &Scenario) -> Option<String> {
    let begin = format!("| {} |", scenario.fault);
    earlier.lines().find(|line| line.starts_with(&begin)).map(|line| format!("{line}\n"))
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

/// Returns a step as code in the cell of a table.
fn quoted(step: &str) -> String {
    as_code(&escaped(step))
}

/// Returns a step as code; one that has code in it keeps its own quotes.
fn as_code(step: &str) -> String {
    if step.contains('`') { step.to_owned() } else { format!("`{step}`") }
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
            problems: Vec::new(),
            ..Row::failed(scenario, String::new())
        }
    }

    fn report(rows: Vec<Row>) -> Report {
        let is_wanted = |rule: &Rule| {
            ["AnabranchServerUnreachable", "AnabranchPaymentNumbersScarce"].contains(&&*rule.name)
        };
        let rules = prometheus::rules(prometheus::RULES).into_iter().filter(is_wanted).collect();
        Report { rows, rules, environment: "here".to_owned(), run: "today, abc, quick".to_owned() }
    }

    fn named(name: &str) -> &'static Scenario {
        scenarios::all().into_iter().find(|one| one.name == name).unwrap()
    }

    #[test]
    fn a_row_has_every_figure_and_a_bar_breaks_no_table() {
        let text = report(vec![row(named("source-killed"))]).text("");
        for wanted in [
            "| AnabranchServerUnreachable after 310.5 s (300 s) | 1.2 s |",
            "Source a \\| b cannot be reached [source-unreachable] | source-unreachable |",
            "| `anabranch check` | 20.0 s | today, abc, quick |\n",
            "\n- AnabranchPaymentNumbersScarce (ticket, *flux-sequence-exhausted*): no step of",
            "\n- a source is killed and stays down: `systemctl restart anabranch`: it is a step of",
        ] {
            assert!(text.contains(wanted), "{wanted} is not in {text}");
        }
        assert!(!text.contains("\n- AnabranchServerUnreachable"), "{text}");
    }

    #[test]
    fn a_drill_that_does_not_run_or_fails_keeps_its_row_and_its_place() {
        let first = report(vec![row(named("source-killed")), row(named("redis-killed"))]).text("");
        let again =
            Report { run: "later, def, quick".to_owned(), ..report(vec![row(named("source-killed"))]) };
        let text = again.text(&first);
        let lines = |begin: &str| text.lines().filter(|line| line.starts_with(begin)).collect::<Vec<_>>();
        let (source, redis) = (lines("| a source is killed |"), lines("| Redis is killed |"));
        assert!(source.len() == 1 && source[0].ends_with("| later, def, quick |"), "{text}");
        assert!(redis.len() == 1 && redis[0].ends_with("| today, abc, quick |"), "{text}");
        assert!(text.find(redis[0]) < text.find(source[0]), "{text}");
        assert!(text.contains("These drills have no row yet: target-read-only, "), "{text}");
        let failed = report(vec![Row::failed(named("source-killed"), "it broke off".to_owned())]);
        assert!(failed.text(&text).contains(source[0]));
    }

    #[test]
    fn a_failed_drill_is_said_and_prose_is_wrapped() {
        let line = Row::failed(scenarios::all()[0], "it broke off".to_owned()).line();
        assert!(line.contains("FAILED: it broke off"), "{line}");
        let long = wrapped(&format!("- {}", "word ".repeat(60).trim_end()));
        assert!(long.lines().count() == 3 && long.lines().all(|line| line.len() <= 120), "{long}");
        assert!(long.lines().skip(1).all(|line| line.starts_with("  word")), "{long}");
    }
}
