//! The product from outside: the binary `anabranch`, a configuration file, its HTTP port. No code of it is linked in.

mod configuration;
mod http;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anabranch_stack::{Companion, ReservedPort, Stack, cargo_build};

pub use self::configuration::{DaemonConfiguration, hash_name, spread_name};
pub use self::http::Status;
use crate::error::{DemoError, Result};

pub use anabranch_stack::cargo;

/// Limit of an orderly stop: longer than the daemon's own deadline.
const STOP_MAX: Duration = Duration::from_secs(20);
const LOG_LINES_IN_ERRORS: usize = 20;

/// Builds the daemon with [`build_binary`].
pub fn build() -> Result<PathBuf> {
    build_binary("anabranch")
}

/// Builds a binary of the workspace with the profile of the running program; returns its path. Cargo writes its
/// messages to stderr.
pub fn build_binary(name: &str) -> Result<PathBuf> {
    let mut command = cargo_build(&[name]);
    command.args(["--quiet", "--message-format", "json-render-diagnostics"]);
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

/// Returns a port of 127.0.0.1 that was free a moment ago. The kernel gives it to no outgoing connection, so a process
/// that listens there can be started again.
pub fn free_port() -> Result<u16> {
    let reserved = ReservedPort::choose()?;
    let port = reserved.number();
    reserved.release();
    Ok(port)
}

/// Runs commands of the product beside a running daemon, with its configuration file.
#[derive(Debug, Clone)]
pub struct Commands {
    binary: PathBuf,
    configuration_file: PathBuf,
}

/// Status and output of a finished command.
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

    /// Runs `anabranch --config FILE …` to its end. Dropping the future kills it.
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
    /// Arguments after `run`.
    arguments: Vec<String>,
    log_file: PathBuf,
    http: SocketAddr,
    /// Most bytes in RAM of earlier processes.
    resident_bytes_max: u64,
}

impl Daemon {
    /// Runs `anabranch --config FILE setup` to its end.
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

    /// Starts `anabranch --config FILE run`; its log is appended to `FILE` with the ending `log`.
    ///
    /// `http_port` is the one in the file; without `roles` the daemon has all of them. This returns at once:
    /// [`Daemon::status`] shows whether the daemon answers.
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

    /// Starts the daemon again after it ended or was killed, with the same file and log.
    pub fn start_again(&mut self, stack: &Stack) -> Result<()> {
        self.companion =
            launch(stack, &self.binary, &self.configuration_file, (&self.arguments, &self.log_file))?;
        Ok(())
    }

    /// Returns the status of an ended daemon once; `None` while it runs, and from then on.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.companion.wait(Duration::ZERO)
    }

    /// Returns the last lines of its log.
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

    /// Returns the commands with its configuration file.
    pub fn commands(&self) -> Commands {
        Commands::new(&self.binary, &self.configuration_file)
    }

    /// Returns the daemon's report; `None` when it does not answer.
    pub async fn status(&self) -> Option<Status> {
        status(self.http).await
    }

    /// Returns the most bytes in RAM that any of its processes was seen to have. To be called while it runs.
    pub fn resident_bytes_max(&mut self) -> u64 {
        self.resident_bytes_max = self.resident_bytes_max.max(resident_bytes_max(self.pid()).unwrap_or(0));
        self.resident_bytes_max
    }

    /// Sends SIGKILL, which ends the daemon as a crash would.
    pub fn kill(&mut self) -> Result<()> {
        Ok(self.companion.kill()?)
    }

    /// Sends SIGTERM and waits for an orderly end; `None` when it did not end in time and was killed.
    pub fn terminate(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.companion.terminate(STOP_MAX)?)
    }

    /// Freezes the process; [`Daemon::resume`] continues it.
    pub fn pause(&self) {
        self.companion.pause();
    }

    pub fn resume(&self) {
        self.companion.resume();
    }
}

/// Returns the report of the daemon at this address; `None` when it does not answer.
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
