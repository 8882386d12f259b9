//! A section of the runbook has four parts, in the order in which a person who is woken asks for them.
//!
//! A section stands between two headings. Those that explain, list or plan have no parts; they are listed by name, so
//! that a new section without them is a decision.

use crate::Fault;
use crate::tree::Text;

const RUNBOOK: &str = "deploy/RUNBOOK.md";
/// Beginnings of the four paragraphs, in their order.
const PARTS: [&str; 4] =
    ["**What happened.**", "**Can it wait until morning?**", "**What to do.**", "**If that fails.**"];
/// Sections that repair no single fault: beginnings of other sections, explanations, planned work, and lists of alerts
/// or verdicts that lead to a section with parts.
const WITHOUT_PARTS: &[&str] = &[
    "Runbook",
    "First look",
    "Servers and certificates",
    "How lag is defined",
    "Procedures",
    "Refresh and restart",
    "Follow one key",
    "Begin anew",
    "Remove a source or a table",
    "Replace the stream",
    "Fill derived tables again",
    "Build derived tables beside the old ones",
    "Drop old tables of payment documents",
    "Collect a report",
    "The nightly reconciliation",
    "Verdicts",
    "One that was cut off",
    "Placement",
    "Alerts",
    "Between two nightly reconciliations",
    "Counts of changes",
    "Coupon days",
    "Configuration",
    "Sources",
    "Log",
    "Targets",
    "Cache",
    "Lookups",
    "Payment documents and plans",
    "Requests",
    "Operators",
    "Anabranch itself",
];
const REMEDY: &str = "Write all four parts in their order.";

/// Sections of the runbook that lack a part, or have the parts in another order.
pub fn faults(documents: &[Text]) -> Vec<Fault> {
    let runbook = documents.iter().find(|document| document.path == RUNBOOK);
    let runbook = runbook.expect("the tree has a runbook");
    faults_of_sections(runbook, WITHOUT_PARTS)
}

fn faults_of_sections(runbook: &Text, without_parts: &[&str]) -> Vec<Fault> {
    let fault = |line, what| Fault { path: runbook.path.clone(), line, what, remedy: REMEDY };
    let sections = sections(&runbook.text);
    let mut faults = Vec::new();
    for Section { heading, line, parts } in &sections {
        let expected: &[&str] = if without_parts.contains(heading) { &[] } else { &PARTS };
        if parts != expected {
            faults.push(fault(*line, format!("`{heading}` has the parts {parts:?}, not {expected:?}")));
        }
    }
    let is_absent = |name: &&&str| !sections.iter().any(|section| section.heading == **name);
    for name in without_parts.iter().filter(is_absent) {
        faults.push(fault(1, format!("`{name}` is listed as a section without parts, and does not exist")));
    }
    faults
}

struct Section<'t> {
    heading: &'t str,
    /// Line of the heading.
    line: usize,
    /// The parts in the order of the text.
    parts: Vec<&'static str>,
}

fn sections(text: &str) -> Vec<Section<'_>> {
    let mut sections: Vec<Section<'_>> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.starts_with('#') {
            let heading = line.trim_start_matches('#').trim();
            sections.push(Section { heading, line: number, parts: Vec::new() });
        } else if let Some(section) = sections.last_mut() {
            section.parts.extend(PARTS.iter().filter(|part| line.starts_with(**part)));
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found_faults(sections: &str) -> Vec<usize> {
        let runbook = Text { path: RUNBOOK.to_owned(), text: sections.to_owned() };
        faults_of_sections(&runbook, &["Verdicts"]).into_iter().map(|fault| fault.line).collect()
    }

    #[test]
    fn a_section_that_lacks_a_part_or_has_another_order_is_a_fault() {
        let [happened, wait, remedy, failed] = PARTS.map(|part| format!("{part} Text.\n"));
        let right = format!("## Verdicts\nText.\n### a\n{happened}{wait}{remedy}    # no heading\n{failed}");
        assert!(found_faults(&right).is_empty());
        assert_eq!(found_faults(&format!("{right}### b\n{happened}{wait}{failed}")), [9]);
        assert_eq!(found_faults(&format!("{right}### b\n{happened}{remedy}{wait}{failed}")), [9]);
        assert_eq!(found_faults(&format!("{right}### b\nText.\n")), [9]);
        assert_eq!(found_faults(&format!("{right}## Verdicts\n{happened}")), [9]);
        assert_eq!(found_faults(&format!("### a\n{happened}{wait}{remedy}{failed}")), [1]);
    }
}
