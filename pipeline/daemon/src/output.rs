//! Prints faults on standard error and results on standard output.
//!
//! A closed pipe (`anabranch tail | head`) is a normal end and no error.

use std::io::{self, Write};

use anabranch_pipeline::error::{Class, Code, Fault};
use serde::Serialize;

use crate::logging::LogFormat;

/// A fault as JSON, as `--log-format json` and `--json` print it.
#[derive(Debug, Serialize)]
pub struct FaultView<'f> {
    pub code: &'static str,
    /// `transient`, `definite` or `bug`.
    pub class: &'static str,
    pub subject: &'f str,
    pub found: &'f str,
    pub needed: Option<&'f str>,
    pub remedy: Option<&'f str>,
    pub causes: Vec<String>,
}

impl<'f> From<&'f Fault> for FaultView<'f> {
    fn from(fault: &'f Fault) -> Self {
        Self {
            code: fault.code().as_str(),
            class: class_name(fault.class()),
            subject: fault.subject(),
            found: fault.found(),
            needed: fault.needed(),
            remedy: fault.remedy_text(),
            causes: fault.causes(),
        }
    }
}

fn class_name(class: Class) -> &'static str {
    match class {
        Class::Transient => "transient",
        Class::Definite => "definite",
        Class::Bug => "bug",
    }
}

/// Prints each fault as one line on standard error.
pub fn faults(format: LogFormat, faults: &[Fault]) {
    let mut stderr = io::stderr().lock();
    for fault in faults {
        let line = match format {
            LogFormat::Text => format!("error: {}", one_line(&fault.to_string())),
            LogFormat::Json => json(&FaultView::from(fault)),
        };
        // No reader is left when standard error is closed.
        let _ = writeln!(stderr, "{line}");
    }
}

/// Prints why a task has stopped. `text` is the fault's own line, since its parts were not kept.
pub fn stopped_task(format: LogFormat, task: &str, code: Code, text: &str) {
    let line = match format {
        LogFormat::Text => format!("error: {} (task {task})", one_line(text)),
        LogFormat::Json => json(&serde_json::json!({ "code": code.as_str(), "task": task, "text": text })),
    };
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Prints one warning line on standard error.
pub fn warning(format: LogFormat, text: &str) {
    let line = match format {
        LogFormat::Text => format!("warning: {}", one_line(text)),
        LogFormat::Json => json(&serde_json::json!({ "warning": text })),
    };
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// State of the reader of standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Reader {
    Present,
    Gone,
}

/// Prints one line on standard output; returns whether its reader is still there.
pub fn line(text: &str) -> Reader {
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Ok(()) => Reader::Present,
        Err(_) => Reader::Gone,
    }
}

/// Returns a value as JSON on one line.
pub fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("views hold only text, numbers and lists: they always serialize")
}

/// Joins lines. Causes may come from servers: a line break in them must not look like another message.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_as_json_holds_each_part_on_its_own() {
        let fault = Fault::new(Code::SourceFormatNotRow, "source a", "STATEMENT")
            .needs("ROW")
            .remedy("SET GLOBAL binlog_format = ROW")
            .caused_by("because");
        let value: serde_json::Value = serde_json::from_str(&json(&FaultView::from(&fault))).unwrap();
        assert_eq!(
            value,
            serde_json::json!({
                "code": "source-format-not-row", "class": "definite", "subject": "source a", "found": "STATEMENT",
                "needed": "ROW", "remedy": "SET GLOBAL binlog_format = ROW", "causes": ["because"],
            })
        );
    }

    #[test]
    fn line_breaks_of_a_cause_stay_in_its_line() {
        assert_eq!(one_line("a\nerror: b\r\n"), "a error: b  ");
    }
}
