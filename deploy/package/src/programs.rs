//! Programs that packing runs, and the one file that it reads back from them.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{PackageError, Result};

/// Returns a command of the daemon that no variable of the caller changes.
pub fn command(binary: &Path) -> Command {
    let mut command = Command::new(binary);
    for variable in ["ANABRANCH_CONFIG", "ANABRANCH_LOG", "ANABRANCH_LOG_FORMAT"] {
        command.env_remove(variable);
    }
    command
}

/// Runs a command to its end and returns its standard output; another exit code than 0 is an error.
pub fn output(command: &mut Command) -> Result<Vec<u8>> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|source| PackageError::ProgramNotRun { program: program.clone(), source })?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(PackageError::ProgramFailed {
            program,
            status: output.status.to_string(),
            output: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        }),
    }
}

/// Returns a copy of the binary without symbols and debug information, or the binary itself where `strip` is missing.
pub fn strip(binary: &Path, scratch: &Path) -> Result<PathBuf> {
    let stripped = scratch.join("anabranch");
    match output(Command::new("strip").arg("-o").arg(&stripped).arg(binary)) {
        Ok(_) => Ok(stripped),
        Err(PackageError::ProgramNotRun { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            eprintln!("note: `strip` (binutils) is missing, so the program keeps its debug information");
            Ok(binary.to_path_buf())
        }
        Err(error) => Err(error),
    }
}

pub fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|source| PackageError::File {
        action: "read",
        path: path.to_path_buf(),
        source,
    })
}
