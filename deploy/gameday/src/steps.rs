//! Takes the steps of a section of the runbook: commands of the product literally, the others by the drill's table.

use crate::error::{GamedayError, Result};
use crate::runbook::{RUNBOOK, plan, section};
use crate::scenario::{Meaning, Scenario, Section, Step};
use crate::site::{CURRENT_MAX, Site};

/// Commands that only show something: they may end with the exit code of the fault that they show.
const SHOWING: [&str; 5] = ["status", "check", "explain", "dead-letters list", "reconcile show"];
/// Attempts of a command that ends with exit code 3, which says that trying again may help.
const ATTEMPTS_MAX: u32 = 3;
const EXIT_TRANSIENT: i32 = 3;
const OUTPUT_LINES_SHOWN: usize = 20;
/// Option of a command that shows its figures until it is interrupted.
const WATCH: &str = "--watch";

/// Takes all steps of a scenario's sections; returns what was done, a line a step.
pub async fn take(site: &mut Site, scenario: &Scenario) -> Result<Vec<String>> {
    let mut taken = Vec::new();
    for part in scenario.sections {
        take_section(site, scenario, part, &mut taken).await?;
    }
    Ok(taken)
}

/// Returns the steps that a scenario leaves out, each with the reason.
pub fn left_out(scenario: &Scenario) -> Vec<(String, &'static str)> {
    let planned =
        scenario.sections.iter().filter_map(|part| plan(section(RUNBOOK, part.heading)?, part.table).ok());
    let reason = |(said, step): (String, Option<&Step>)| match step?.means {
        Meaning::Leave(reason) => Some((said, reason)),
        Meaning::Do(_) => None,
    };
    planned.flatten().filter_map(reason).collect()
}

async fn take_section(
    site: &mut Site,
    scenario: &Scenario,
    part: &Section,
    taken: &mut Vec<String>,
) -> Result<()> {
    let unfit = |reason: String| GamedayError::RunbookUnfit { heading: part.heading.to_owned(), reason };
    let text = section(RUNBOOK, part.heading).ok_or_else(|| unfit("there is no such heading".to_owned()))?;
    for (said, step) in plan(text, part.table).map_err(unfit)? {
        match step.map(|step| step.means) {
            Some(Meaning::Do(actions)) => {
                for action in actions {
                    site.act(action).await?;
                }
                taken.push(said);
            }
            Some(Meaning::Leave(reason)) => eprintln!("  left out: {said} ({reason})"),
            None => {
                for command in commands(&said, &scenario_words(site, scenario)).map_err(unfit)? {
                    run(site, scenario, &command).await?;
                    taken.push(shown(&command, site));
                }
            }
        }
    }
    Ok(())
}

/// Returns the scenario's words, and those that follow from the site.
fn scenario_words(site: &Site, scenario: &Scenario) -> Vec<(String, Vec<String>)> {
    let own = scenario.words.iter();
    let mut words: Vec<(String, Vec<String>)> = own
        .map(|&(word, values)| (word.to_owned(), values.iter().map(|&value| value.to_owned()).collect()))
        .collect();
    words.push(("FILE".to_owned(), vec![site.file().display().to_string()]));
    words.extend(site.coupon_words());
    words
}

/// Returns the command once for each value of its words in capitals, or the word that has no value.
fn commands(said: &str, words: &[(String, Vec<String>)]) -> Result<Vec<String>, String> {
    let mut commands = vec![String::new()];
    for part in said.split_whitespace() {
        let values: Vec<String> = match words.iter().find(|(word, _)| word == part) {
            Some((_, values)) => values.clone(),
            None if is_placeholder(part) => return Err(format!("the drill has no value for {part}")),
            None => vec![part.to_owned()],
        };
        let longer = |command: &String| {
            let gap = if command.is_empty() { "" } else { " " };
            values.iter().map(|value| format!("{command}{gap}{value}")).collect::<Vec<_>>()
        };
        commands = commands.iter().flat_map(longer).collect();
    }
    Ok(commands)
}

fn is_placeholder(part: &str) -> bool {
    part.len() > 1 && part.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_')
}

/// Runs a command as the runbook spells it. One that watches is run once, and then everything must become current.
async fn run(site: &Site, scenario: &Scenario, command: &str) -> Result<()> {
    let is_watching = command.split(' ').any(|part| part == WATCH);
    let arguments: Vec<String> =
        command.split(' ').skip(1).filter(|part| *part != WATCH).map(str::to_owned).collect();
    let is_showing = SHOWING.iter().any(|showing| command.contains(&format!(" {showing}")));
    // A command that has a person repeat the source's name reads it here.
    let typed =
        scenario.words.iter().find(|(word, _)| *word == "SOURCE").and_then(|(_, values)| values.first());
    let input = typed.map(|source| format!("{source}\n")).unwrap_or_default();
    let mut attempt = 1;
    loop {
        let finished = site.command(&arguments, &input).await?;
        if is_showing || finished.exit_code == 0 {
            break;
        }
        if finished.exit_code != EXIT_TRANSIENT || attempt == ATTEMPTS_MAX {
            let lines: Vec<&str> = finished.output.lines().collect();
            let output = lines[lines.len().saturating_sub(OUTPUT_LINES_SHOWN)..].join("\n");
            let (command, status) = (command.to_owned(), format!("exit code {}", finished.exit_code));
            return Err(GamedayError::CommandFailed { command, status, output });
        }
        attempt += 1;
    }
    if is_watching {
        site.until_current(CURRENT_MAX).await?;
    }
    Ok(())
}

/// Returns the command as the report shows it: without the configuration, and with the names of other files alone.
fn shown(command: &str, site: &Site) -> String {
    let command = command.replace(&format!(" --config {}", site.file().display()), "");
    match site.file().parent() {
        Some(folder) => command.replace(&format!("{}/", folder.display()), ""),
        None => command,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Action;
    use crate::scenarios;

    #[test]
    fn a_command_runs_once_for_each_value_of_its_words() {
        let words = [
            ("FILE".to_owned(), vec!["/f".to_owned()]),
            ("NAME".to_owned(), vec!["a".to_owned(), "b".to_owned()]),
        ];
        assert_eq!(
            commands("anabranch --config FILE refresh --projection NAME", &words).unwrap(),
            ["anabranch --config /f refresh --projection a", "anabranch --config /f refresh --projection b"]
        );
        assert!(commands("anabranch restart TASK", &words).unwrap_err().contains("TASK"));
    }

    #[test]
    fn the_runbook_says_every_step_of_every_drill_and_each_word_has_a_value() {
        for scenario in scenarios::all() {
            let name = scenario.name;
            assert!(!scenario.sections.is_empty(), "{name} follows no section");
            let mut words: Vec<(String, Vec<String>)> =
                ["FILE", "DAY", "USER"].map(|word| (word.to_owned(), vec!["f".to_owned()])).into();
            words.extend(scenario.words.iter().map(|&(word, values)| {
                (word.to_owned(), values.iter().map(|&value| value.to_owned()).collect())
            }));
            let mut done = 0;
            for part in scenario.sections {
                let heading = part.heading;
                let text = section(RUNBOOK, heading).unwrap_or_else(|| panic!("no heading {heading}"));
                let steps =
                    plan(text, part.table).unwrap_or_else(|reason| panic!("{name}, {heading}: {reason}"));
                for (said, step) in steps {
                    match step {
                        Some(step) => done += usize::from(matches!(step.means, Meaning::Do(_))),
                        None => {
                            let runs = commands(&said, &words);
                            done += runs.unwrap_or_else(|word| panic!("{name}, {said}: {word}")).len();
                        }
                    }
                }
            }
            assert!(done > 0, "{name} takes no step");
        }
    }

    #[test]
    fn the_table_of_a_drill_starts_each_server_that_the_drill_kills() {
        for scenario in scenarios::all() {
            let tables = scenario.sections.iter().flat_map(|part| part.table);
            let done: Vec<Action> = tables
                .filter_map(|step| match step.means {
                    Meaning::Do(actions) => Some(actions),
                    Meaning::Leave(_) => None,
                })
                .flatten()
                .copied()
                .collect();
            for action in scenario.inject {
                if let &Action::Kill(server) = action {
                    assert!(done.contains(&Action::Start(server)), "{} leaves {server} dead", scenario.name);
                }
            }
        }
    }
}
