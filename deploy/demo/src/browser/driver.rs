//! The process of a WebDriver server. The server and its browser end with the process that started them, however that
//! one ends.
//!
//! The server is started as `sh -c '(cat; kill -KILL 0) & exec SERVER'` in its own process group. `cat` reads a pipe
//! that only the owner can write to, so its end is the owner's end, and then the group is killed.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anabranch_stack::BrowserPrograms;
use tempfile::TempDir;

use super::failed;
use crate::error::Result;

const GUARD_SCRIPT: &str = r#"exec 3<&0
(trap "" HUP INT TERM; cat <&3 >/dev/null; kill -KILL 0) >/dev/null 2>&1 &
exec 3<&-
exec "$@" </dev/null"#;
/// Words before the number of the port that the system has chosen.
const ANNOUNCEMENT: &str = "started successfully on port ";
const START: &str = "start the WebDriver server";
/// Longest wait for the end of a killed browser, which still writes into its profile.
const END_MAX: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A running WebDriver server; dropping it kills it and its browser, and removes the browser's profile.
#[derive(Debug)]
pub(super) struct Driver {
    process: Child,
    /// The server's output, which must not be closed while it runs.
    output: Option<BufReader<ChildStdout>>,
    pub(super) port: u16,
    browser: Option<u64>,
    folder: TempDir,
}

impl Driver {
    /// Starts the server on a port that the system chooses. Blocks until it listens.
    pub(super) fn start(programs: &BrowserPrograms) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("anabranch-browser-")
            .tempdir()
            .map_err(|error| failed(START, error.to_string()))?;
        let errors =
            File::create(error_file(folder.path())).map_err(|error| failed(START, error.to_string()))?;
        let mut command = Command::new("sh");
        command
            .args(["-c", GUARD_SCRIPT, "browser-guard"])
            .arg(&programs.driver)
            .arg("--port=0")
            .envs(programs.environment.iter().map(|(name, value)| (name, value)))
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors);
        // The browser then leaves nothing outside of this folder, even when it is killed.
        for variable in ["HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"] {
            command.env(variable, folder.path());
        }
        let process = command.spawn().map_err(|error| failed(START, error.to_string()))?;
        let mut driver = Self { process, output: None, port: 0, browser: None, folder };
        driver.output = driver.process.stdout.take().map(BufReader::new);
        driver.port = driver.announced_port()?;
        Ok(driver)
    }

    fn announced_port(&mut self) -> Result<u16> {
        let mut line = String::new();
        while let Some(output) = &mut self.output {
            line.clear();
            let read = output.read_line(&mut line).map_err(|error| failed(START, error.to_string()))?;
            if read == 0 {
                break;
            }
            let port = line.split_once(ANNOUNCEMENT).map(|(_, rest)| rest.trim().trim_end_matches('.'));
            if let Some(port) = port.and_then(|port| port.parse().ok()) {
                return Ok(port);
            }
        }
        let errors = fs::read_to_string(error_file(self.folder.path())).unwrap_or_default();
        Err(failed(START, format!("it ended: {}", errors.trim())))
    }

    /// The folder of the browser's profile.
    pub(super) fn profile(&self) -> String {
        self.folder.path().join("profile").display().to_string()
    }

    /// Notes the browser's process, whose end is waited for.
    pub(super) fn note_browser(&mut self, pid: Option<u64>) {
        self.browser = pid;
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The end of the pipe makes the guard kill the whole group, with the browser in it.
        drop(self.process.stdin.take());
        let _ended_already = self.process.kill();
        let _status = self.process.wait();
        let deadline = Instant::now() + END_MAX;
        while self.browser.is_some_and(is_running) && Instant::now() < deadline {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

fn error_file(folder: &Path) -> PathBuf {
    folder.join("driver.err")
}

/// Returns whether the process runs. One that has ended and waits for its parent has no arguments any more.
fn is_running(pid: u64) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|arguments| !arguments.is_empty())
}
