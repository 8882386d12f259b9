//! All errors of the game day, each with the thing that it happened to.

use std::path::PathBuf;

use anabranch_demo::DemoError;
use anabranch_stack::StackError;

/// Result of the fallible calls of this package.
pub type Result<T, E = GamedayError> = std::result::Result<T, E>;

/// An error: the event, and its server, file, command or section of the runbook.
#[derive(Debug, thiserror::Error)]
pub enum GamedayError {
    #[error("{0}")]
    Demo(Box<DemoError>),

    #[error("the development stack: {0}")]
    Stack(Box<StackError>),

    #[error("cannot {action} {}: {source}", path.display())]
    File { action: &'static str, path: PathBuf, source: std::io::Error },

    #[error("NATS, while trying to {action}: {reason}")]
    Nats { action: &'static str, reason: String },

    #[error("cannot run {program}: {source}")]
    ProgramNotRun { program: String, source: std::io::Error },

    /// Shows the end of the command's output.
    #[error("`{command}` ended with {status}:\n{output}")]
    CommandFailed { command: String, status: String, output: String },

    #[error("the section {heading} of deploy/RUNBOOK.md: {reason}")]
    RunbookUnfit { heading: String, reason: String },

    #[error("not within {seconds} s: {what}")]
    Late { what: String, seconds: u64 },

    #[error("the answer of {server} is not as expected: {reason}")]
    AnswerUnfit { server: &'static str, reason: String },

    #[error("rows differ after the drill: {reason}")]
    RowsDiffer { reason: String },

    #[error("no drill is called {name}; these are: {known}")]
    DrillUnknown { name: String, known: String },
}

impl From<DemoError> for GamedayError {
    fn from(error: DemoError) -> Self {
        Self::Demo(Box::new(error))
    }
}

impl From<StackError> for GamedayError {
    fn from(error: StackError) -> Self {
        Self::Stack(Box::new(error))
    }
}
