//! The runbook of this build, by codes: `explain` and the live page show its sections.

use anabranch_pipeline::error::Code;

const RUNBOOK: &str = include_str!("../../../deploy/RUNBOOK.md");

/// Returns the runbook's section on a code, as Markdown that begins with its heading.
pub fn section(code: Code) -> Option<&'static str> {
    section_of(RUNBOOK, code)
}

/// Returns the text from the code's heading to the next heading of the same or a higher level.
fn section_of(runbook: &str, code: Code) -> Option<&str> {
    let heading = format!("### {code}\n");
    let start = match runbook.strip_prefix(&heading) {
        Some(_) => 0,
        None => runbook.find(&format!("\n{heading}"))? + 1,
    };
    let body = &runbook[start + heading.len()..];
    let end = ["\n### ", "\n## ", "\n# "].iter().filter_map(|next| body.find(next)).min();
    Some(runbook[start..start + heading.len() + end.unwrap_or(body.len())].trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_ends_where_the_next_heading_begins() {
        let runbook =
            "# R\n\n### binlog-purged\nfirst\n#### not an end\nsecond\n\n### internal\nthird\n## Other\n";
        assert_eq!(
            section_of(runbook, Code::BinlogPurged),
            Some("### binlog-purged\nfirst\n#### not an end\nsecond")
        );
        assert_eq!(section_of(runbook, Code::Internal), Some("### internal\nthird"));
        assert_eq!(section_of(runbook, Code::LogFull), None);
    }
}
