//! Paths of the stack: all of them are below the target folder of the workspace.
//!
//! `<target>/stack/<instance>/<server>` holds the data of running stacks, `<target>/stack-programs` the unpacked
//! programs, which every stack of the checkout shares.

use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{FileContext, Result, StackError};

/// Limit of removing a folder into which another program still writes.
const REMOVAL_MAX: Duration = Duration::from_secs(10);
const REMOVAL_INTERVAL: Duration = Duration::from_millis(10);

/// Folders of one checkout.
#[derive(Debug, Clone)]
pub struct Layout {
    target: PathBuf,
}

impl Layout {
    /// Finds the workspace and honours `CARGO_TARGET_DIR`.
    ///
    /// The path known at compile time comes first, so that a test run from any folder uses its own checkout; a
    /// binary that was moved falls back to the current folder and its parents.
    pub fn find() -> Result<Self> {
        let compiled = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let workspace = fs::canonicalize(&compiled)
            .ok()
            .filter(|path| is_workspace(path))
            .or_else(|| {
                let current = std::env::current_dir().ok()?;
                current.ancestors().find(|path| is_workspace(path)).map(Path::to_path_buf)
            })
            .ok_or_else(|| StackError::WorkspaceNotFound { compiled: compiled.display().to_string() })?;
        let target = match std::env::var_os("CARGO_TARGET_DIR").filter(|value| !value.is_empty()) {
            // Cargo resolves a relative CARGO_TARGET_DIR against its own current folder; joining an absolute path
            // replaces the base.
            Some(folder) => workspace.join(folder),
            None => workspace.join("target"),
        };
        Ok(Self { target })
    }

    /// Uses another target folder, for tests of the stack itself.
    pub fn below(target: impl Into<PathBuf>) -> Self {
        Self { target: target.into() }
    }

    /// Returns the folder that holds one folder for each instance.
    pub fn instances(&self) -> PathBuf {
        self.target.join("stack")
    }

    /// Returns the private prefix of unpacked programs.
    pub fn programs(&self) -> PathBuf {
        self.target.join("stack-programs")
    }
}

fn is_workspace(folder: &Path) -> bool {
    folder.join("deploy/stack/Cargo.toml").is_file() && folder.join("Cargo.toml").is_file()
}

/// Makes a folder with mode 0700, and its parents.
pub(crate) fn make_folder(folder: &Path) -> Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).file("make the folder", folder)
}

/// Replaces a file with mode 0600: readers see the old or the new content, never half of it.
pub(crate) fn write_private(path: &Path, content: &str) -> Result<()> {
    let mut name = path.file_name().map_or_else(OsString::new, OsString::from);
    name.push(format!(".{}.new", std::process::id()));
    let fresh = path.with_file_name(name);
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&fresh)
        .file("write", &fresh)?;
    file.write_all(content.as_bytes()).file("write", &fresh)?;
    fs::rename(&fresh, path).file("replace", path)
}

/// Removes a folder and its content; a missing folder is no error.
///
/// A program that outlives its killed owner may still write into the folder. It soon fails for want of its files, so
/// this begins again until then.
pub(crate) fn remove_folder(folder: &Path) -> Result<()> {
    let deadline = Instant::now() + REMOVAL_MAX;
    loop {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty && Instant::now() < deadline => {
                thread::sleep(REMOVAL_INTERVAL);
            }
            removed => return removed.file("remove", folder),
        }
    }
}

/// Returns the last lines of a log file for an error message; empty when there is no file.
pub(crate) fn tail(path: &Path, lines: usize) -> String {
    let text = fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn a_folder_goes_while_a_program_still_writes_into_it() {
        let folder = tempfile::tempdir().unwrap();
        let removed = folder.path().join("removed");
        make_folder(&removed).unwrap();
        let begun = Barrier::new(2);
        thread::scope(|scope| {
            // It ends when the folder is gone.
            scope.spawn(|| {
                begun.wait();
                (0..20_000).take_while(|file| fs::write(removed.join(file.to_string()), "").is_ok()).count()
            });
            begun.wait();
            remove_folder(&removed).unwrap();
        });
        assert!(!removed.exists());
    }
}
