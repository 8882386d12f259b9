//! MySQL from PATH, else from the packages of Debian's unstable release: no other release of Debian has it.
//!
//! These packages need a newer C library than the machine's, so theirs is unpacked with them, and its own loader starts
//! the server. `LD_LIBRARY_PATH` was rejected: the shell before the server would be handed that library as well, and
//! crash.

use std::path::{Path, PathBuf};

use super::{apt, printed_version, version_in};
use crate::error::{Result, StackError};

const PACKAGE: &str = "mysql-server-core";
/// The oldest that is still maintained.
const MINIMUM: (u32, u32) = (8, 4);

const HELP: &str = "install MySQL 8.4 or newer yourself so that mysqld is on PATH, on Debian unstable: \
    apt-get install --no-install-recommends mysql-server-core, on Ubuntu: \
    apt-get install --no-install-recommends mysql-server-core-8.4";

/// How a MySQL server is run.
#[derive(Debug, Clone)]
pub(crate) struct MySqlPrograms {
    /// The server, or the loader that starts it.
    pub(crate) program: PathBuf,
    /// The loader's, which come before the server's own.
    pub(crate) arguments: Vec<String>,
    /// Root of the unpacked packages, if they are not the system's.
    pub(crate) prefix: Option<PathBuf>,
}

impl MySqlPrograms {
    /// The server of this machine, if it is new enough; MariaDB's has the same name.
    pub(super) fn on_path(server: PathBuf) -> Option<Self> {
        let printed = printed_version(&server, &["--no-defaults", "--version"])?;
        let is_wanted = version_in(&printed)? >= MINIMUM && !printed.contains("MariaDB");
        is_wanted.then_some(Self { program: server, arguments: Vec::new(), prefix: None })
    }

    pub(super) fn unpack(folder: &Path) -> Result<()> {
        apt::unpack_unstable(folder, "MySQL", &[PACKAGE], HELP).map_err(|failed| {
            let reason = match failed {
                StackError::ProgramFailed { program, output, .. } => format!("{program} failed:\n{output}"),
                StackError::ProgramNotRun { program, source, .. } => {
                    format!("{program} cannot be run: {source}")
                }
                other => return other,
            };
            missing(reason)
        })
    }

    pub(super) fn in_prefix(root: PathBuf) -> Result<Self> {
        let libraries = apt::library_path(&root)?;
        let server = root.join("usr/sbin/mysqld");
        let arguments = vec!["--library-path".to_owned(), libraries.clone(), server.display().to_string()];
        Ok(Self { program: loader(&libraries)?, arguments, prefix: Some(root) })
    }
}

/// The loader of the unpacked C library, such as `ld-linux-x86-64.so.2`.
fn loader(libraries: &str) -> Result<PathBuf> {
    let is_loader =
        |file: &PathBuf| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-linux"));
    for folder in libraries.split(':') {
        if let Some(file) = apt::files(Path::new(folder))?.into_iter().find(is_loader) {
            return Ok(file);
        }
    }
    Err(missing(format!("the unpacked packages hold no loader in {libraries}")))
}

/// Not every machine can have it.
fn missing(reason: String) -> StackError {
    StackError::ProgramMissing { what: "MySQL".to_owned(), reason, help: HELP.to_owned() }
}
