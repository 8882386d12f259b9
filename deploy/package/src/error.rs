//! All errors of packing.

use std::io;
use std::path::PathBuf;

/// Result of the fallible calls of this package.
pub type Result<T, E = PackageError> = std::result::Result<T, E>;

/// An error: the event, and its file or program.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    #[error("cannot {action} {}: {source}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },

    #[error("{program} cannot be run: {source}")]
    ProgramNotRun { program: String, source: io::Error },

    /// Shows the output of the program.
    #[error("{program} ended with {status}: {output}")]
    ProgramFailed { program: String, status: String, output: String },

    #[error("{} cannot be packed: {reason}", path.display())]
    BinaryUnfit { path: PathBuf, reason: String },

    #[error("`cargo metadata` cannot be used: {reason}")]
    MetadataUnfit { reason: String },

    #[error("deploy/systemd/anabranch.service has no line `{line}`")]
    UnitWithout { line: String },
}
