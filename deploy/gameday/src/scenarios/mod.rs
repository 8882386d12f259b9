//! All drills. One that reads the whole past of the sources comes before those that take the past away.

mod coupons;
mod daemons;
mod lanes;
mod log;
mod payments;
mod sources;
mod stops;
mod stores;

use std::time::Duration;

use crate::scenario::{Action, Meaning, Scenario, Step};

/// Limit until the daemon shows a server that was killed.
const KILLED_SHOWN: Duration = Duration::from_secs(5);
/// Limit until it shows another fault: a lane may have to fail first, and an index is asked every ten seconds.
const SHOWN: Duration = Duration::from_secs(90);
/// Limit until it shows a wrong row: the last spot check comes ten minutes after a change.
const SPOT_CHECK_SHOWN: Duration = Duration::from_secs(600 + 90);
/// Lag above which the rules count a reader or a lane as late. Quick drills wait for it too.
const LAG: Duration = Duration::from_secs(300);
/// Five hours: less than the six before which the end of a binlog is an alert. The present file becomes one that the
/// server may purge.
const SHORT_RETENTION: &str = "SET GLOBAL binlog_expire_logs_seconds = 18000; FLUSH BINARY LOGS";
/// Three days.
const RAISE_RETENTION: &str = "SET GLOBAL binlog_expire_logs_seconds = 259200";

/// Returns every drill, in the order of a game day.
pub fn all() -> Vec<&'static Scenario> {
    let groups: [&[Scenario]; 8] = [
        &stores::ALL,
        &log::ALL,
        &daemons::ALL,
        &lanes::ALL,
        &coupons::ALL,
        &payments::ALL,
        &sources::ALL,
        &stops::ALL,
    ];
    groups.into_iter().flatten().collect()
}

/// Leaves a step of the runbook out, for a reason.
const fn leave(text: &'static str, reason: &'static str) -> Step {
    Step { text, means: Meaning::Leave(reason) }
}

/// Gives a step of the runbook its meaning in the stack.
const fn means(text: &'static str, actions: &'static [Action]) -> Step {
    Step { text, means: Meaning::Do(actions) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::prometheus::{RULES, rules};
    use crate::runbook::{RUNBOOK, headings};
    use crate::scenario::{Expected, Shown};

    #[test]
    fn there_are_at_least_twelve_drills_and_each_has_a_name_of_its_own() {
        let names: BTreeSet<&str> = all().iter().map(|scenario| scenario.name).collect();
        assert_eq!(names.len(), all().len());
        assert!(names.len() >= 12, "{names:?}");
        for scenario in all() {
            assert!(!scenario.inject.is_empty(), "{} breaks nothing", scenario.name);
            let is_name = |letter: char| letter.is_ascii_lowercase() || letter == '-';
            assert!(scenario.name.chars().all(is_name), "{}", scenario.name);
        }
    }

    #[test]
    fn each_alert_is_a_rule_and_each_code_has_a_section() {
        let rules = rules(RULES);
        let headings: BTreeSet<&str> = headings(RUNBOOK).collect();
        for scenario in all() {
            match scenario.alert {
                Expected::Alert { name, .. } => {
                    let rule = rules.iter().find(|rule| rule.name == name);
                    let rule = rule.unwrap_or_else(|| panic!("{}: no rule is called {name}", scenario.name));
                    assert!(headings.contains(&*rule.runbook), "{name} leads to {}", rule.runbook);
                }
                Expected::Nobody(reason) => assert!(reason.len() > 20, "{}: why?", scenario.name),
            }
            if let Shown::Code(code) = scenario.shown {
                assert!(headings.contains(code), "{}: the runbook has no {code}", scenario.name);
            }
        }
    }

    #[test]
    fn what_a_drill_starts_beside_the_installation_ends_with_it() {
        for scenario in all() {
            let name = scenario.name;
            let (inject, after) = (scenario.inject, scenario.afterwards);
            let second = [Action::StartSecondDaemon, Action::StartOtherDaemon];
            let second = second.iter().any(|start| inject.contains(start));
            assert_eq!(second, after.contains(&Action::EndSecondDaemon), "{name}");
            let clock = inject.contains(&Action::StartDaemonWithClock);
            let ends = after.contains(&Action::StartDaemon) || after.contains(&Action::EndProgramme);
            assert!(!clock || ends, "{name}");
            let begins = |action: &Action| matches!(action, Action::BeginProgramme { .. });
            assert_eq!(inject.iter().any(begins), after.contains(&Action::EndProgramme), "{name}");
            let is_of_file = |action: &Action| {
                matches!(
                    action,
                    Action::StopAtUnseenChanges | Action::TakeSourceOut(_) | Action::BeginPayments
                )
            };
            assert_eq!(inject.iter().any(is_of_file), after.contains(&Action::RestoreFile), "{name}");
            let pause = inject.contains(&Action::PauseLoad);
            assert_eq!(pause, after.contains(&Action::ResumeLoad), "{name}");
        }
    }

    #[test]
    fn the_index_is_rebuilt_from_the_past_before_a_binlog_is_purged() {
        let place = |name: &str| all().iter().position(|scenario| scenario.name == name).unwrap();
        assert!(place("document-rejected") < place("binlog-purged"));
        assert!(place("document-rejected") < place("source-reset"));
    }
}
