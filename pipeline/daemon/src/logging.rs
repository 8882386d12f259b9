//! Structured logs on standard error: text for people, JSON for machines.
//!
//! A bare level is for this product's own code; dependencies stay at `warn`, because their debug output may hold
//! statements and row values. Only explicit directives (`hyper=debug`) reach them, and statements never.

use std::io::IsTerminal;

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
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // tracing refuses a second subscriber and keeps the first one, as intended.
    let _ = match format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).try_init(),
    };
    Ok(())
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
    fn nonsense_is_refused_with_its_value() {
        let fault = install(LogFormat::Text, "anabranch=loudly").unwrap_err();
        assert!(fault.to_string().contains("`anabranch=loudly`"), "{fault}");
    }
}
