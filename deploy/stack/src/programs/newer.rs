//! Servers from newer Debian releases than the machine's: MySQL, which only unstable has, and MariaDB 11.8.
//!
//! These packages need a newer C library than the machine's, so theirs is unpacked with them, and its own loader starts
//! the server. `LD_LIBRARY_PATH` was rejected: the shell that starts the server would load that library as well, and
//! crash.

use std::path::{Path, PathBuf};

use super::{apt, printed_version, version_in};
use crate::error::{Result, StackError};
use crate::spec::{MARIADB_11, MYSQL};

pub(super) const MYSQL_SET: ProgramSet = ProgramSet {
    what: MYSQL,
    server: "mysqld",
    is_mariadb: false,
    // 8.4 is the oldest version that is still maintained.
    versions: ((8, 4), (u32::MAX, 0)),
    release: "sid",
    packages: &["mysql-server-core"],
    help: "install MySQL 8.4 or newer yourself so that mysqld is on PATH, on Debian unstable: \
        apt-get install --no-install-recommends mysql-server-core, on Ubuntu: \
        apt-get install --no-install-recommends mysql-server-core-8.4",
};

pub(super) const MARIADB_11_SET: ProgramSet = ProgramSet {
    what: MARIADB_11,
    server: "mariadbd",
    is_mariadb: true,
    versions: ((11, 8), (12, 0)),
    // This is Debian 13. Unstable will move on to a later series.
    release: "trixie",
    packages: &["mariadb-server-core", "mariadb-client-core"],
    help: "install MariaDB 11.8 yourself so that mariadbd and mariadb-install-db are on PATH, on Debian 13: \
        apt-get install --no-install-recommends mariadb-server-core mariadb-client-core",
};

/// A server and the source of its programs for a machine that has none.
#[derive(Debug)]
pub(super) struct ProgramSet {
    pub(super) what: &'static str,
    pub(super) server: &'static str,
    /// MariaDB has a program named `mysqld` too.
    is_mariadb: bool,
    /// Versions from the first on, below the second.
    versions: ((u32, u32), (u32, u32)),
    release: &'static str,
    packages: &'static [&'static str],
    help: &'static str,
}

/// The command of a server.
#[derive(Debug, Clone)]
pub(crate) struct LoadedProgram {
    /// The server, or the loader that starts it.
    pub(crate) program: PathBuf,
    /// Arguments that come before the server's own; the last one is the server's file.
    pub(crate) loader_arguments: Vec<String>,
    /// Root of the unpacked packages; `None` = the system's programs.
    pub(crate) prefix: Option<PathBuf>,
}

impl LoadedProgram {
    /// Returns the file of the server itself, also where a loader starts it.
    pub(crate) fn server_file(&self) -> &Path {
        self.loader_arguments.last().map_or(self.program.as_path(), Path::new)
    }
}

impl ProgramSet {
    /// Returns the server of this machine if its version belongs to this set.
    pub(super) fn on_path(&self, server: PathBuf) -> Option<LoadedProgram> {
        let printed = printed_version(&server, &["--no-defaults", "--version"])?;
        let version = version_in(&printed)?;
        let is_wanted = version >= self.versions.0
            && version < self.versions.1
            && printed.contains("MariaDB") == self.is_mariadb;
        is_wanted.then_some(LoadedProgram { program: server, loader_arguments: Vec::new(), prefix: None })
    }

    pub(super) fn unpack(&self, folder: &Path) -> Result<()> {
        let unpacked = apt::unpack_release(folder, self.release, self.what, self.packages, self.help);
        unpacked.map_err(|failed| {
            let reason = match failed {
                StackError::ProgramFailed { program, output, .. } => format!("{program} failed:\n{output}"),
                StackError::ProgramNotRun { program, source, .. } => {
                    format!("{program} cannot be run: {source}")
                }
                other => return other,
            };
            self.missing(reason)
        })
    }

    pub(super) fn in_prefix(&self, root: PathBuf) -> Result<LoadedProgram> {
        let libraries = apt::library_path(&root)?;
        let server = root.join("usr/sbin").join(self.server);
        let loader_arguments =
            vec!["--library-path".to_owned(), libraries.clone(), server.display().to_string()];
        Ok(LoadedProgram { program: self.loader(&libraries)?, loader_arguments, prefix: Some(root) })
    }

    /// Returns the loader of the unpacked C library, such as `ld-linux-x86-64.so.2`.
    fn loader(&self, libraries: &str) -> Result<PathBuf> {
        let is_loader = |file: &PathBuf| {
            file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-linux"))
        };
        for folder in libraries.split(':') {
            if let Some(file) = apt::files(Path::new(folder))?.into_iter().find(is_loader) {
                return Ok(file);
            }
        }
        Err(self.missing(format!("the unpacked packages hold no loader in {libraries}")))
    }

    /// Returns the error for a machine that cannot have the programs.
    fn missing(&self, reason: String) -> StackError {
        StackError::ProgramMissing { what: self.what.to_owned(), reason, help: self.help.to_owned() }
    }
}
