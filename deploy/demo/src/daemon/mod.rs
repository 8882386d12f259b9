//! The product as its user meets it: the binary `anabranch`, a configuration file, its HTTP port. Nothing is linked in.

mod configuration;
mod http;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anabranch_stack::{Companion, Stack};

pub use self::configuration::{DaemonConfiguration, hash_name, spread_name};
pub use self::http::Status;
use crate::error::{DemoError, Result};

/// Longer than the daemon's own deadline for an orderly stop.
const STOP_MAX: Duration = Duration::from_secs(20);
const LOG_LINES_IN_ERRORS: usize = 20;

/// Cargo as its user calls it, whoever runs this program. Without the variable `CARGO`, which cargo sets for what it
/// runs, `cargo` is taken from PATH.
///
/// What cargo tells the program that it runs is for that program. Build scripts that look at it (ring's) would see a
/// change, and everything after them would be built again, now and at the next start.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"]
            .iter()
            .any(|own| text.starts_with(own))
        {
            command.env_remove(&name);
        }
    }
    command
}

/// Builds the daemon with [`build_binary`].
pub fn build() -> Result<PathBuf> {
    build_binary("anabranch")
}

/// Builds a binary of the workspace with the profile of the running program, and returns where it lies. Cargo writes
/// its messages to stderr.
pub fn build_binary(name: &str) -> Result<PathBuf> {
    let mut command = cargo();
    // With the features of the whole workspace, as the aliases and the tests have it: no dependency is built twice.
    command.args(["build", "--quiet", "--workspace", "--bin", name]);
    command.args(["--message-format", "json-render-diagnostics"]);
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|source| DemoError::ProgramNotRun { program: "cargo".to_owned(), source })?;
    let messages = String::from_utf8_lossy(&output.stdout);
    let executable = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| Some(message.get("executable")?.as_str()?.to_owned()))
        .next_back();
    match executable {
        Some(path) if output.status.success() => Ok(PathBuf::from(path)),
        _ => Err(DemoError::BuildFailed { status: output.status.to_string() }),
    }
}

/// A port of 127.0.0.1 that was free a moment ago.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(|source| DemoError::PortNotFound { source })
}

/// Commands of the product beside a running daemon, by its configuration file.
#[derive(Debug, Clone)]
pub struct Commands {
    binary: PathBuf,
    configuration_file: PathBuf,
}

/// How a command ended, and what it said.
#[derive(Debug, Clone)]
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Commands {
    pub fn new(binary: &Path, configuration_file: &Path) -> Self {
        Self { binary: binary.to_path_buf(), configuration_file: configuration_file.to_path_buf() }
    }

    /// `anabranch --config FILE …`, to its end. Dropping the future kills it.
    pub async fn run(&self, arguments: &[&str]) -> Result<Finished> {
        let program = self.binary.display().to_string();
        let output = tokio::process::Command::new(&self.binary)
            .arg("--config")
            .arg(&self.configuration_file)
            .args(arguments)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|source| DemoError::ProgramNotRun { program, source })?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Finished { status: output.status, stdout: text(&output.stdout), stderr: text(&output.stderr) })
    }
}

/// A running daemon. It ends with its stack; dropping it kills it.
#[derive(Debug)]
pub struct Daemon {
    companion: Companion,
    binary: PathBuf,
    configuration_file: PathBuf,
    /// Behind `run`.
    arguments: Vec<String>,
    log_file: PathBuf,
    http: SocketAddr,
    /// Most memory of earlier incarnations.
    resident_bytes_max: u64,
}

impl Daemon {
    /// `anabranch --config FILE setup`, to its end.
    pub fn set_up(binary: &Path, configuration_file: &Path) -> Result<()> {
        let log = configuration_file.with_extension("setup.log");
        let failed = |source| DemoError::File { action: "write", path: log.clone(), source };
        let output = fs::File::create(&log).map_err(failed)?;
        let errors = output.try_clone().map_err(failed)?;
        let program = binary.display().to_string();
        let status = Command::new(binary)
            .arg("--config")
            .arg(configuration_file)
            .arg("setup")
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .status()
            .map_err(|source| DemoError::ProgramNotRun { program: program.clone(), source })?;
        if status.success() {
            return Ok(());
        }
        let (program, log) = (format!("{program} setup"), tail(&log));
        Err(DemoError::Program { program, status: status.to_string(), log })
    }

    /// `anabranch --config FILE run`; its log is appended to `FILE` with the ending `log`.
    ///
    /// `http_port` is the one in the file; without roles it has all of them. Returns at once: ask [`Daemon::status`]
    /// whether it answers.
    pub fn start(
        stack: &Stack,
        binary: &Path,
        configuration_file: &Path,
        (http_port, roles): (u16, &[&str]),
    ) -> Result<Self> {
        let log_file = configuration_file.with_extension("log");
        let arguments: Vec<String> =
            roles.iter().flat_map(|role| ["--role".to_owned(), (*role).to_owned()]).collect();
        let companion = launch(stack, binary, configuration_file, (&arguments, &log_file))?;
        Ok(Self {
            companion,
            arguments,
            binary: binary.to_path_buf(),
            configuration_file: configuration_file.to_path_buf(),
            log_file,
            http: SocketAddr::from((Ipv4Addr::LOCALHOST, http_port)),
            resident_bytes_max: 0,
        })
    }

    /// Starts it again after it ended or was killed, with the same file and log.
    pub fn start_again(&mut self, stack: &Stack) -> Result<()> {
        self.companion =
            launch(stack, &self.binary, &self.configuration_file, (&self.arguments, &self.log_file))?;
        Ok(())
    }

    /// How it ended, once, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.companion.wait(Duration::ZERO)
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        tail(&self.log_file)
    }

    pub fn log_file(&self) -> &Path {
        &self.log_file
    }

    pub fn http(&self) -> SocketAddr {
        self.http
    }

    pub fn pid(&self) -> u32 {
        self.companion.pid()
    }

    pub fn is_running(&self) -> bool {
        self.companion.is_running()
    }

    /// Commands beside it.
    pub fn commands(&self) -> Commands {
        Commands::new(&self.binary, &self.configuration_file)
    }

    /// What it says about itself; `None` when it does not answer.
    pub async fn status(&self) -> Option<Status> {
        status(self.http).await
    }

    /// The most memory that any of its incarnations was seen to have in RAM, in bytes. To be asked while it runs.
    pub fn resident_bytes_max(&mut self) -> u64 {
        self.resident_bytes_max = self.resident_bytes_max.max(resident_bytes_max(self.pid()).unwrap_or(0));
        self.resident_bytes_max
    }

    /// SIGKILL, as a crash would be.
    pub fn kill(&mut self) -> Result<()> {
        Ok(self.companion.kill()?)
    }

    /// SIGTERM and an orderly end; `None` when it did not end in time and was killed.
    pub fn terminate(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.companion.terminate(STOP_MAX)?)
    }

    /// Freezes the process; [`Daemon::resume`] lets it go on.
    pub fn pause(&self) {
        self.companion.pause();
    }

    pub fn resume(&self) {
        self.companion.resume();
    }
}

/// What the daemon at this address says about itself; `None` when it does not answer.
pub async fn status(http: SocketAddr) -> Option<Status> {
    http::status(http).await
}

fn launch(
    stack: &Stack,
    binary: &Path,
    configuration_file: &Path,
    (further, log_file): (&[String], &Path),
) -> Result<Companion> {
    let mut arguments =
        vec!["--config".to_owned(), configuration_file.display().to_string(), "run".to_owned()];
    arguments.extend_from_slice(further);
    Ok(stack.companion(binary, &arguments, log_file)?)
}

fn resident_bytes_max(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kibibytes| kibibytes * 1024)
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES_IN_ERRORS)..].join("\n")
}
