//! All errors of the soak, each with the thing that it happened to.

use std::path::PathBuf;

use anabranch_demo::DemoError;
use anabranch_stack::StackError;

/// Result of the fallible calls of this package.
pub type Result<T, E = SoakError> = std::result::Result<T, E>;

/// An error: the event, and its server, file or command.
#[derive(Debug, thiserror::Error)]
pub enum SoakError {
    #[error("{0}")]
    Demo(Box<DemoError>),

    #[error("the development stack: {0}")]
    Stack(Box<StackError>),

    #[error("cannot {action} {}: {source}", path.display())]
    File { action: &'static str, path: PathBuf, source: std::io::Error },

    #[error("a task of the soak ended by itself: {0}")]
    Task(#[from] tokio::task::JoinError),

    /// Shows the end of the command's output.
    #[error("`anabranch {command}` did not succeed within {seconds} s; its last end: {status}\n{output}")]
    CommandFailed { command: String, seconds: u64, status: String, output: String },

    #[error("not within {seconds} s: {what}")]
    Late { what: String, seconds: u64 },
}

impl From<DemoError> for SoakError {
    fn from(error: DemoError) -> Self {
        Self::Demo(Box::new(error))
    }
}

impl From<StackError> for SoakError {
    fn from(error: StackError) -> Self {
        Self::Stack(Box::new(error))
    }
}
