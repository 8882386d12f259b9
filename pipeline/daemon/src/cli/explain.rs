//! `explain`: what an error code means and what repairs it, from the runbook of this very build.

use anabranch_pipeline::error::{Code, Fault};
use clap::Args;

use super::Outcome;
use crate::exit::Exit;
use crate::output;

const RUNBOOK: &str = include_str!("../../../../deploy/RUNBOOK.md");

/// Print what an error code means and what repairs it
#[derive(Debug, Args)]
pub struct Arguments {
    /// A code as shown in [brackets], such as binlog-purged; without it all codes are listed
    code: Option<String>,
}

pub fn run(arguments: &Arguments) -> Outcome {
    let Some(text) = &arguments.code else {
        let codes: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
        let _ = output::line(&codes.join("\n"));
        return Ok(Exit::Success);
    };
    let text = text.trim_matches(['[', ']']);
    let Some(code) = Code::from_text(text) else {
        let fault = Fault::new(Code::ConfigInvalid, "explain CODE", format!("`{text}` is no error code"));
        return Err(vec![fault.needs("a code of this build").remedy("anabranch explain (lists all)")]);
    };
    let Some(section) = section(RUNBOOK, code) else {
        return Err(vec![Fault::new(Code::Internal, "runbook", format!("it has no section for {code}"))]);
    };
    let _ = output::line(section);
    Ok(Exit::Success)
}

/// From the code's heading to the next heading of the same or a higher level.
fn section(runbook: &str, code: Code) -> Option<&str> {
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
            section(runbook, Code::BinlogPurged),
            Some("### binlog-purged\nfirst\n#### not an end\nsecond")
        );
        assert_eq!(section(runbook, Code::Internal), Some("### internal\nthird"));
        assert_eq!(section(runbook, Code::LogFull), None);
    }
}
