//! All errors of the demo, each with a remedy.

use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;

use anabranch_stack::StackError;

/// Result of the fallible calls of this package.
pub type Result<T, E = DemoError> = std::result::Result<T, E>;

/// Returns the exit code of a command that says whether all is as it should be; prints an error.
pub fn exit_code(ended: Result<bool, impl Display>) -> ExitCode {
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// An error: the event, and its server, file or program.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    #[error("the development stack: {0}")]
    Stack(#[from] StackError),

    #[error("server {server}, while trying to {action}: {source}")]
    Server { server: String, action: &'static str, source: mysql_async::Error },

    #[error("server {server} gave no answer within {seconds} s, while trying to {action}")]
    ServerSilent { server: String, action: &'static str, seconds: u64 },

    #[error("server {server}, while trying to {action}: {source}")]
    Redis { server: String, action: &'static str, source: redis::RedisError },

    #[error("server {server}, while trying to {action}: {reason}")]
    Http { server: String, action: &'static str, reason: String },

    #[error("the coupon system at {url}: {reason}")]
    Witness { url: String, reason: String },

    #[error("the browser, while trying to {action}: {reason}")]
    Browser { action: &'static str, reason: String },

    #[error("cannot {action} {}: {source}", path.display())]
    File { action: &'static str, path: PathBuf, source: std::io::Error },

    /// Shows the end of the program's log, because the file is removed with the stack.
    #[error("{program} ended with {status}; its log:\n{log}")]
    Program { program: String, status: String, log: String },

    /// Shows the end of the command's output.
    #[error("`anabranch {command}` did not succeed within {seconds} s; its last end: {status}\n{output}")]
    CommandFailed { command: String, seconds: u64, status: String, output: String },

    #[error("not within {seconds} s: {what}")]
    Late { what: String, seconds: u64 },

    #[error("the daemon could not be built ({status}); see above")]
    BuildFailed { status: String },

    #[error("the time zone {zone} cannot be had: {source}")]
    ZoneUnknown { zone: String, source: jiff::Error },

    #[error("no free port of 127.0.0.1: {source}")]
    PortNotFound { source: std::io::Error },

    #[error("signals cannot be taken: {source}")]
    SignalNotTaken { source: std::io::Error },

    #[error("cannot run {program}: {source}")]
    ProgramNotRun { program: String, source: std::io::Error },

    #[error("a task of the demo ended by itself: {0}")]
    Task(#[from] tokio::task::JoinError),

    #[error("a table {table} exists that no rule names; only one demo may use a server")]
    TableForeign { table: String },
}

impl DemoError {
    /// Whether the connection or the server is gone, so that the outcome of the last statement is unknown.
    pub fn is_lost_connection(&self) -> bool {
        match self {
            DemoError::ServerSilent { .. } => true,
            DemoError::Server { source, .. } => match source {
                mysql_async::Error::Io(_) | mysql_async::Error::Driver(_) => true,
                // Codes for too many connections, shutdown, killed, and read-only during a shutdown.
                mysql_async::Error::Server(error) => {
                    matches!(error.code, 1040 | 1053 | 1077 | 1152..=1161 | 1290 | 1317 | 1927 | 3169)
                }
                _ => false,
            },
            _ => false,
        }
    }

    /// Whether it is a deadlock or lock wait time-out: the server rolled back, and a repetition may succeed.
    pub fn is_lock_conflict(&self) -> bool {
        matches!(self, DemoError::Server { source: mysql_async::Error::Server(error), .. }
            if matches!(error.code, 1205 | 1213))
    }

    /// Whether the server refuses to forget its binlog because a connection reads it (MariaDB from 12.3 on).
    pub fn is_binlog_in_use(&self) -> bool {
        matches!(self, DemoError::Server { source: mysql_async::Error::Server(error), .. } if error.code == 4243)
    }
}
