//! `explain`: prints the meaning and the remedy of an error code, from the runbook of this build.

use anabranch_pipeline::error::{Code, Fault};
use clap::Args;

use super::Outcome;
use crate::exit::Exit;
use crate::{output, runbook};

/// Similar codes that are named, at most, when the given one is unknown.
const NEAR_MAX: usize = 3;
/// Least likeness of a code that may be meant (1 is the same text); a short word that lost a letter stays above.
const LIKENESS_MIN: f64 = 0.6;
/// Bytes, at least, of a text that is searched within codes: a shorter one is a part of too many.
const PART_BYTES_MIN: usize = 3;

/// Print the meaning of an error code and its remedy
#[derive(Debug, Args)]
pub struct Arguments {
    /// A code as shown in [brackets], or as `code` of a problem of the HTTP API, such as binlog-purged; without it all
    /// codes are listed
    code: Option<String>,
}

pub fn run(arguments: &Arguments) -> Outcome {
    let Some(text) = &arguments.code else {
        let codes: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
        let _ = output::line(&codes.join("\n"));
        return Ok(Exit::Success);
    };
    let text = text.trim_matches(['[', ']']);
    let Some(code) = Code::from_text(text) else { return Err(vec![unknown(text)]) };
    let Some(section) = runbook::section(code) else {
        return Err(vec![Fault::new(Code::Internal, "runbook", format!("it has no section for {code}"))]);
    };
    let _ = output::line(section);
    Ok(Exit::Success)
}

fn unknown(text: &str) -> Fault {
    let fault = Fault::new(Code::CodeUnknown, "explain CODE", format!("there is no code `{text}`"));
    let near: Vec<&str> = near(text).into_iter().map(Code::as_str).collect();
    match near.is_empty() {
        true => fault.needs("a code of this build").remedy("anabranch explain (lists all)"),
        false => fault.needs(format!("a code of this build, such as {}", near.join(", "))),
    }
}

/// Returns codes that are written alike or contain the text, the likest first.
fn near(text: &str) -> Vec<Code> {
    let likeness = |code: Code| {
        let is_part = text.len() >= PART_BYTES_MIN && code.as_str().contains(text);
        strsim::normalized_damerau_levenshtein(text, code.as_str()).max(if is_part {
            LIKENESS_MIN
        } else {
            0.0
        })
    };
    let mut near: Vec<(f64, Code)> = Code::ALL.iter().map(|code| (likeness(*code), *code)).collect();
    near.retain(|(likeness, _)| *likeness >= LIKENESS_MIN);
    near.sort_by(|one, other| other.0.total_cmp(&one.0));
    near.into_iter().take(NEAR_MAX).map(|(_, code)| code).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_no_code_is_told_as_such_with_codes_that_are_like_it() {
        for (text, named) in [
            ("lookup-laggnig", "lookup-lagging"),
            ("token-refuse", "token-refused"),
            ("binlog", "binlog-purged"),
            ("body_not_json", "body-not-json"),
        ] {
            let fault = unknown(text);
            assert_eq!((fault.code(), Exit::of(fault.code())), (Code::CodeUnknown, Exit::Usage));
            assert!(fault.to_string().contains(named), "{named} is not in {fault}");
        }
        for text in ["", "x", "weather", &"a".repeat(10_000)] {
            assert_eq!(near(text), [], "{text}");
            assert!(unknown(text).to_string().contains("lists all"));
        }
    }
}
