//! Reads the runbook: the sections by their headings, and the steps of a section in the order of its text.
//!
//! A step is an indented line, or a command of `anabranch` between back-ticks that names the configuration. A drill
//! adds what the text says in prose and what belongs to other systems. Each step of such a table must be in the text,
//! and each line of the text must be a command of `anabranch` or be in the table: so neither can change alone.

use crate::scenario::Step;

/// The runbook that engineers read.
pub const RUNBOOK: &str = include_str!("../../RUNBOOK.md");

const WHAT_TO_DO: &str = "**What to do.**";
const IF_THAT_FAILS: &str = "**If that fails.**";
/// Indentation of code outside of lists; the prose of a list has less.
const CODE_INDENTATION: usize = 4;
const PRODUCT: &str = "anabranch ";
/// Beginning of a command between back-ticks that is a step; other such texts only name a command.
const INLINE: &str = "`anabranch --config FILE ";

/// A text as one line, with the places of its commands.
struct Flat {
    text: String,
    /// Begin and end of each command.
    commands: Vec<(usize, usize)>,
}

/// Returns all headings of the runbook, in their order.
#[cfg(test)]
pub fn headings(runbook: &str) -> impl Iterator<Item = &str> {
    runbook.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim())
}

/// Returns the text from the heading to the next heading of any level.
pub fn section<'r>(runbook: &'r str, heading: &str) -> Option<&'r str> {
    let mut begin = None;
    let mut offset = 0;
    for line in runbook.split_inclusive('\n') {
        if line.starts_with('#') {
            if let Some(begin) = begin {
                return Some(&runbook[begin..offset]);
            }
            if line.trim_start_matches('#').trim() == heading {
                begin = Some(offset + line.len());
            }
        }
        offset += line.len();
    }
    begin.map(|begin| &runbook[begin..])
}

/// Returns the part of a section that says what to do; a section without this part says it throughout.
pub fn what_to_do(section: &str) -> &str {
    let Some(begin) = section.find(WHAT_TO_DO) else { return section };
    let rest = &section[begin + WHAT_TO_DO.len()..];
    &rest[..rest.find(IF_THAT_FAILS).unwrap_or(rest.len())]
}

/// Returns the indented lines of a text: its commands, statements and expressions.
pub fn commands(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    // A paragraph of a list may be indented as far as code, but code begins after an empty line.
    let (mut was_blank, mut was_code) = (true, false);
    for line in text.lines() {
        let indentation = line.len() - line.trim_start().len();
        let is_blank = line.trim().is_empty();
        let is_code = !is_blank && indentation >= CODE_INDENTATION && (was_blank || was_code);
        if is_code {
            found.push(line.trim());
        }
        (was_blank, was_code) = (is_blank, is_code);
    }
    found
}

impl Flat {
    fn of(text: &str) -> Self {
        let code = commands(text);
        let mut flat = Self { text: String::new(), commands: Vec::new() };
        let mut left = code.into_iter().peekable();
        for line in text.lines() {
            let trimmed = line.trim();
            let begin = flat.text.len();
            flat.text.push_str(trimmed);
            // Commands come in the order of the lines, and no line of prose is one of them.
            let is_indented = line.len() - line.trim_start().len() >= CODE_INDENTATION;
            if is_indented && left.next_if_eq(&trimmed).is_some() {
                flat.commands.push((begin, flat.text.len()));
            }
            flat.text.push(' ');
        }
        let mut from = 0;
        while let Some(begin) = flat.text[from..].find(INLINE).map(|found| from + found + 1) {
            let end = flat.text[begin..].find('`').map_or(flat.text.len(), |length| begin + length);
            flat.commands.push((begin, end));
            from = end;
        }
        flat.commands.sort_unstable();
        flat
    }

    /// Returns the place of the first command that is this text as a whole.
    fn whole(&self, text: &str) -> Option<usize> {
        let is_it = |&&(begin, end): &&(usize, usize)| self.text[begin..end] == *text;
        self.commands.iter().find(is_it).map(|&(begin, _)| begin)
    }
}

/// Returns the steps of a section in the order of its text, or the reason why the table does not fit the text. A text
/// of the table that is a whole command means that command alone, and no longer one.
pub fn plan<'t>(section: &str, table: &'t [Step]) -> Result<Vec<(String, Option<&'t Step>)>, String> {
    let flat = Flat::of(what_to_do(section));
    let mut planned: Vec<(usize, String, Option<&Step>)> = Vec::new();
    for step in table {
        let Some(place) = flat.whole(step.text).or_else(|| flat.text.find(step.text)) else {
            return Err(format!("it does not say `{}`", step.text));
        };
        let is_inside = |&&(begin, end): &&(usize, usize)| begin <= place && place < end;
        let said = match flat.commands.iter().find(is_inside) {
            Some(&(begin, end)) => flat.text[begin..end].to_owned(),
            None => step.text.to_owned(),
        };
        planned.push((place, said, Some(step)));
    }
    for &(begin, end) in &flat.commands {
        let command = &flat.text[begin..end];
        let is_it = |step: &Step| match flat.whole(step.text) {
            Some(_) => command == step.text,
            None => command.contains(step.text),
        };
        if table.iter().any(is_it) {
            continue;
        }
        if !command.starts_with(PRODUCT) {
            return Err(format!("the drill does not know its step `{command}`"));
        }
        planned.push((begin, command.to_owned(), None));
    }
    planned.sort_by_key(|(place, ..)| *place);
    Ok(planned.into_iter().map(|(_, said, step)| (said, step)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Meaning;

    const TEXT: &str = "\
## One\n\nNo step.\n\n#### Two\n\n**What happened.** See `anabranch --config FILE check`.\n\n**What to do.** Start the\n\
server again. Look:\n\n    anabranch --config FILE status\n    systemctl restart it\n\n1. Further:\n\n       SELECT 1;\n\n   \
Then run `anabranch --config FILE reconcile --now`, not `reconcile`.\n\n**If that fails.** Wait:\n\n    sleep 1\n\n### \
Three\n\nThe end.\n";

    const fn step(text: &'static str) -> Step {
        Step { text, means: Meaning::Leave("a test") }
    }

    fn said(table: &[Step]) -> Result<Vec<String>, String> {
        let section = section(TEXT, "Two").unwrap();
        plan(section, table).map(|steps| steps.into_iter().map(|(said, _)| said).collect())
    }

    #[test]
    fn steps_come_in_the_order_of_the_text_and_prose_may_be_one() {
        let table = [step("SELECT 1"), step("restart it"), step("Start the server again")];
        assert_eq!(
            said(&table).unwrap(),
            [
                "Start the server again",
                "anabranch --config FILE status",
                "systemctl restart it",
                "SELECT 1;",
                "anabranch --config FILE reconcile --now"
            ]
        );
    }

    #[test]
    fn a_step_that_only_one_of_both_has_is_an_error() {
        let unknown = said(&[step("restart it")]).unwrap_err();
        assert!(unknown.contains("SELECT 1;"), "{unknown}");
        let gone = said(&[step("restart it"), step("SELECT 1"), step("Wait")]).unwrap_err();
        assert!(gone.contains("does not say `Wait`"), "{gone}");
    }

    #[test]
    fn a_whole_command_in_the_table_is_no_longer_command() {
        let text = "**What to do.** Try:\n\n    anabranch begin --part\n    anabranch begin\n";
        let known = |named: &'static str| -> Vec<bool> {
            let table = [step(named)];
            let planned = plan(text, &table).unwrap();
            planned.into_iter().map(|(_, step)| step.is_some()).collect()
        };
        assert_eq!(known("anabranch begin"), [false, true]);
        assert_eq!(known("begin --"), [true, false]);
    }

    #[test]
    fn every_heading_of_the_runbook_has_a_section_and_no_command_is_lost() {
        let mut found = 0;
        let mut seen = std::collections::BTreeSet::new();
        for heading in headings(RUNBOOK) {
            assert!(seen.insert(heading), "the heading {heading} stands twice");
            let text = section(RUNBOOK, heading).unwrap();
            found += commands(text).len();
            if text.contains(WHAT_TO_DO) {
                assert!(!what_to_do(text).trim().is_empty(), "{heading} says nothing to do");
                assert!(text.contains(IF_THAT_FAILS), "{heading} does not say what to do if that fails");
            }
        }
        let indented = RUNBOOK.lines().filter(|line| line.starts_with("    ") && !line.trim().is_empty());
        assert_eq!(found, indented.count());
        assert!(found > 100, "only {found} commands");
        assert_eq!(section(RUNBOOK, "no heading"), None);
    }
}
