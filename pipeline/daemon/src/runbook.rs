//! The runbook of this build, by codes and by headings: `explain` and the live page show its sections.

use anabranch_pipeline::error::Code;

const RUNBOOK: &str = include_str!("../../../deploy/RUNBOOK.md");
/// Level of the headings of codes. Their sections have the sections of deeper headings in them; no other section has.
const CODE_LEVEL: usize = 3;

/// Returns the runbook's section on a code, as Markdown that begins with its heading.
pub fn section(code: Code) -> Option<&'static str> {
    section_by_slug(code.as_str())
}

/// Returns the section whose heading has this slug. A code is the heading of its section, and its own slug.
pub fn section_by_slug(slug: &str) -> Option<&'static str> {
    section_of(RUNBOOK, slug)
}

fn section_of<'t>(runbook: &'t str, slug: &str) -> Option<&'t str> {
    let mut begun = None;
    let mut at = 0;
    for line in runbook.split_inclusive('\n') {
        let level = line.bytes().take_while(|byte| *byte == b'#').count();
        match begun {
            _ if level == 0 => {}
            Some((own, start)) if own != CODE_LEVEL || level <= own => {
                return Some(runbook[start..at].trim_end());
            }
            None if slug_of(line) == slug => begun = Some((level, at)),
            _ => {}
        }
        at += line.len();
    }
    begun.map(|(_, start)| runbook[start..].trim_end())
}

/// Returns the words of a heading in small letters, with hyphens between them.
fn slug_of(heading: &str) -> String {
    let words = heading.split(|character: char| !character.is_ascii_alphanumeric());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.join("-").to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_section_ends_where_the_next_heading_begins() {
        let runbook = "# R\n\n### binlog-purged\nfirst\n#### not an end\nsecond\n\n### internal\nthird\n\
                       ## What runs out: the log\nfourth\n#### An end\nfifth\n";
        let of = |slug| section_of(runbook, slug);
        assert_eq!(of("binlog-purged"), Some("### binlog-purged\nfirst\n#### not an end\nsecond"));
        assert_eq!(of("internal"), Some("### internal\nthird"));
        assert_eq!(of("what-runs-out-the-log"), Some("## What runs out: the log\nfourth"));
        assert_eq!(of("an-end"), Some("#### An end\nfifth"));
        for unknown in ["log-full", "", "fifth", "What runs out: the log"] {
            assert_eq!(of(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn each_heading_of_the_runbook_has_a_slug_of_its_own() {
        let mut slugs = BTreeSet::new();
        for heading in RUNBOOK.lines().filter(|line| line.starts_with('#')) {
            let slug = slug_of(heading);
            assert!(section_by_slug(&slug).is_some_and(|section| section.starts_with(heading)), "{heading}");
            assert!(slugs.insert(slug), "two headings have the slug of {heading}");
        }
        assert!(slugs.len() > 100, "the runbook has {} headings", slugs.len());
    }
}
