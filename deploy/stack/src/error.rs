//! All errors of the development stack, each with a remedy.

use std::path::PathBuf;
use std::time::Duration;

/// Result of the fallible calls of this package.
pub type Result<T, E = StackError> = std::result::Result<T, E>;

/// An error: the event, the name of its object, and the command that repairs it if there is one.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    #[error("cannot {action} {}", path.display())]
    File { action: &'static str, path: PathBuf, source: std::io::Error },

    #[error("cannot run {program}: {help}")]
    ProgramNotRun { program: String, help: String, source: std::io::Error },

    #[error("{program} failed ({status}):\n{output}\n{help}")]
    ProgramFailed { program: String, status: String, output: String, help: String },

    #[error("{what} cannot be had here: {reason}\n{help}")]
    ProgramMissing { what: String, reason: String, help: String },

    #[error("the workspace was not found: neither {compiled} nor a parent of the current folder holds it")]
    WorkspaceNotFound { compiled: String },

    #[error("certificates could not be made")]
    Certificate(#[from] rcgen::Error),

    #[error("no free port of 127.0.0.1 found after {attempts} attempts")]
    NoFreePort { attempts: u32 },

    #[error("stack {instance} has no server named {name}; it has: {known}")]
    ServerUnknown { instance: String, name: String, known: String },

    #[error("stack {instance} already has a server named {name}")]
    ServerNameTaken { instance: String, name: String },

    #[error("server name or instance {name:?} is not made of 1 to 40 of a-z, 0-9 and -")]
    NameInvalid { name: String },

    #[error("server {name} stopped while starting ({status})\n{log}")]
    ServerExited { name: String, status: String, log: String },

    #[error("server {name} was not ready within {waited:?}\n{log}")]
    ServerNotReady { name: String, waited: Duration, log: String },

    #[error("Redis node {name} did not join its cluster; it answered:\n{answer}")]
    ClusterNotFormed { name: String, answer: String },

    #[error("a password could not be hashed")]
    PasswordHash(#[source] bcrypt::BcryptError),

    #[error("server {name} is not running")]
    ServerNotRunning { name: String },

    #[error("server {name} (process {pid}) did not end within {waited:?} after SIGKILL")]
    ServerNotKilled { name: String, pid: i32, waited: Duration },

    #[error(
        "stack {instance} is in use by another process; choose another instance name or end that process"
    )]
    InstanceInUse { instance: String },

    #[error("stack {instance} is not up; run `cargo stack up`")]
    InstanceNotUp { instance: String },

    #[error("stack {instance} has an unreadable state file {}; remove its folder", path.display())]
    StateUnreadable { instance: String, path: PathBuf, source: serde_json::Error },
}

impl StackError {
    /// Returns whether a program is missing that this machine cannot have now, for want of a package or a network.
    pub(crate) fn is_missing_program(&self) -> bool {
        matches!(self, Self::ProgramMissing { .. } | Self::ProgramFailed { .. } | Self::ProgramNotRun { .. })
    }
}

/// Attaches the action and the path to an I/O error.
pub(crate) trait FileContext<T> {
    fn file(self, action: &'static str, path: impl Into<PathBuf>) -> Result<T>;
}

impl<T> FileContext<T> for std::io::Result<T> {
    fn file(self, action: &'static str, path: impl Into<PathBuf>) -> Result<T> {
        self.map_err(|source| StackError::File { action, path: path.into(), source })
    }
}
