//! Structured logs on standard error: text for people, JSON for machines.
//!
//! A bare level is for this product's own code; dependencies stay at `warn`, because their debug output may hold
//! statements and row values. Only explicit directives (`hyper=debug`) reach them, and statements never.

use std::io::{self, IsTerminal, Write};

use anabranch_pipeline::error::{Code, Fault};
use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Format of logs and faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

const OWN_CRATES: [&str; 4] =
    ["anabranch", "anabranch_pipeline", "anabranch_connectors", "anabranch_schemas"];
/// `sqlx` writes statements under this name.
const STATEMENTS: &str = "sqlx::query=off";

/// Installs the subscriber of this process; a second call changes nothing.
pub fn install(format: LogFormat, level: &str) -> Result<(), Fault> {
    let filter = EnvFilter::try_new(directives(level)).map_err(|error| {
        Fault::new(Code::ConfigInvalid, "--log-level (ANABRANCH_LOG)", format!("`{level}`"))
            .needs("off, error, warn, info, debug, trace, or directives such as anabranch=debug,hyper=info")
            .caused_by(error)
    })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| EventLines(io::stderr()));
    // tracing refuses a second subscriber and keeps the first one, as intended.
    let _ = match format {
        LogFormat::Text => builder.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).try_init(),
    };
    Ok(())
}

/// Writes each event as one line: a line break that a server sent must not look like another event.
struct EventLines<W>(W);

impl<W: Write> Write for EventLines<W> {
    /// Takes one whole event, as the subscriber hands it over.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let (text, end) = event.split_at(event.len() - usize::from(event.ends_with(b"\n")));
        let joined = |byte: &u8| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte };
        let mut line: Vec<u8> = text.iter().map(joined).collect();
        line.extend_from_slice(end);
        self.0.write_all(&line)?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn directives(level: &str) -> String {
    if level.parse::<LevelFilter>().is_err() {
        return format!("{level},{STATEMENTS}");
    }
    let own: Vec<String> = OWN_CRATES.iter().map(|name| format!("{name}={level}")).collect();
    format!("warn,{},{STATEMENTS}", own.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_level_never_opens_the_logs_of_dependencies() {
        let all = directives("trace");
        assert!(all.starts_with("warn,anabranch=trace,"), "{all}");
        for level in ["trace", "hyper=debug", "debug,hyper=trace"] {
            assert!(directives(level).ends_with("sqlx::query=off"), "{level}");
        }
    }

    #[test]
    fn a_line_break_within_an_event_makes_no_second_line() {
        let mut lines = EventLines(Vec::new());
        for event in ["WARN a cause\r\nERROR forged\n", "INFO next\n", "no end"] {
            lines.write_all(event.as_bytes()).unwrap();
        }
        lines.flush().unwrap();
        assert_eq!(String::from_utf8(lines.0).unwrap(), "WARN a cause  ERROR forged\nINFO next\nno end");
    }

    #[test]
    fn nonsense_is_refused_with_its_value() {
        let fault = install(LogFormat::Text, "anabranch=loudly").unwrap_err();
        assert!(fault.to_string().contains("`anabranch=loudly`"), "{fault}");
    }
}
