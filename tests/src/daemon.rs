//! The binary `anabranch` as a process: commands that end, and the running daemon.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anabranch_pipeline::failpoints;
use anabranch_stack::{Companion, Stack};
use serde_json::Value as Json;
use tokio::process::Command;
use tokio::time::Instant;

use crate::http;
use crate::waiting::{POLL_INTERVAL, WAIT_MAX, blocking, until, until_some};

/// Longest wait for an orderly stop, above the daemon's own deadline.
const STOP_MAX: Duration = Duration::from_secs(20);
const LOG_LINES_SHOWN: usize = 40;

/// A command that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Exit code; -1 when a signal ended the command.
    pub exit_code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    /// # Panics
    /// Panics when the command failed.
    #[track_caller]
    pub fn expect_success(self) -> Self {
        assert_eq!(self.exit_code, 0, "the command failed: {self:?}");
        self
    }

    /// Standard output as one JSON value.
    ///
    /// # Panics
    /// Panics when standard output is no JSON value.
    #[track_caller]
    pub fn json(&self) -> Json {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }

    /// Standard output as one JSON value a line.
    ///
    /// # Panics
    /// Panics when a line is no JSON value.
    #[track_caller]
    pub fn json_lines(&self) -> Vec<Json> {
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        self.stdout.lines().map(parse).collect()
    }
}

/// The binary with its configuration file and its environment.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub binary: PathBuf,
    pub file: PathBuf,
    pub environment: Vec<(String, String)>,
}

impl Call {
    pub(crate) async fn finish(&self, arguments: &[&str]) -> Finished {
        let mut command = Command::new(&self.binary);
        command.arg("--config").arg(&self.file).args(arguments).kill_on_drop(true);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let ended = tokio::time::timeout(WAIT_MAX, command.output()).await;
        let output = ended.unwrap_or_else(|_| panic!("{arguments:?} did not end")).expect("the binary runs");
        Finished {
            exit_code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    pub(crate) fn start(&self, stack: &Stack, run: &Run) -> Daemon {
        let log_file = self.file.with_extension(format!("{}.log", run.http.port()));
        let log_begins = fs::metadata(&log_file).map_or(0, |file| file.len() as usize);
        let mut arguments = vec!["--config".to_owned(), self.file.display().to_string()];
        arguments.extend(run.arguments.iter().cloned());
        let mut environment = self.environment.clone();
        environment.push((failpoints::PERMISSION.to_owned(), failpoints::PERMITTED.to_owned()));
        environment.extend(run.environment.iter().cloned());
        let companion = blocking(|| stack.companion_with(&self.binary, &arguments, &environment, &log_file));
        Daemon { companion: companion.expect("the daemon starts"), log_file, log_begins, http: run.http }
    }
}

/// Settings of one run of the binary.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub http: SocketAddr,
    /// The subcommand and its arguments.
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
}

/// A running daemon; dropping it kills it. When the test fails, the end of its log is shown.
#[derive(Debug)]
pub struct Daemon {
    companion: Companion,
    log_file: PathBuf,
    /// Bytes that earlier runs on the same port left in the log file.
    log_begins: usize,
    http: SocketAddr,
}

impl Daemon {
    /// Everything that this run and earlier ones on the same port wrote to standard output and standard error.
    pub fn log(&self) -> String {
        fs::read(&self.log_file)
            .map_or_else(|_| String::new(), |log| String::from_utf8_lossy(&log).into_owned())
    }

    /// The output of this run alone.
    pub fn log_of_this_run(&self) -> String {
        let log = fs::read(&self.log_file).unwrap_or_default();
        String::from_utf8_lossy(log.get(self.log_begins..).unwrap_or_default()).into_owned()
    }

    /// Waits until a task has reached the failpoint that this run was started with.
    pub async fn until_failpoint(&self, name: &str) {
        let said = format!("failpoint {name}");
        until(&format!("{said} is reached"), async || {
            assert!(self.is_running(), "it ended before {said}");
            self.log_of_this_run().contains(&said)
        })
        .await;
    }

    pub fn log_file(&self) -> &Path {
        &self.log_file
    }

    pub fn pid(&self) -> u32 {
        self.companion.pid()
    }

    pub fn is_running(&self) -> bool {
        self.companion.is_running()
    }

    /// Asks for `/v1/status`; `None` when the daemon does not answer.
    pub async fn status(&self) -> Option<Json> {
        let (code, body) = http::get(self.http, "/v1/status").await?;
        (code == 200).then(|| serde_json::from_str(&body).ok()).flatten()
    }

    /// Asks for `/metrics`; returns an empty text when the daemon does not answer.
    pub async fn metrics(&self) -> String {
        http::get(self.http, "/metrics").await.map_or_else(String::new, |(_, body)| body)
    }

    /// The sum of a metric's samples whose labels contain all the texts.
    pub async fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let is_wanted = |line: &&str| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
                && labels.iter().all(|label| line.contains(label))
        };
        let metrics = self.metrics().await;
        let samples = metrics.lines().filter(is_wanted);
        samples.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
    }

    /// Asks for `/readyz`; returns status code and body, `None` when the daemon does not answer.
    pub async fn readiness(&self) -> Option<(u16, String)> {
        http::get(self.http, "/readyz").await
    }

    /// Sends an application's request; returns status code and JSON.
    ///
    /// # Panics
    /// Panics when the answer is missing or no JSON.
    pub async fn ask(&self, method: &str, path: &str, token: Option<&str>, body: &str) -> (u16, Json) {
        let authorization =
            token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
        let request = format!(
            "{method} {path} HTTP/1.0\r\nHost: anabranch\r\nConnection: close\r\n{authorization}\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = http::raw(self.http, request.as_bytes()).await.expect("the daemon answers");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status code");
        (code, serde_json::from_str(body).unwrap_or_else(|error| panic!("no JSON ({error}): {answer}")))
    }

    /// Waits until `/readyz` answers 200.
    pub async fn until_ready(&self) {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            assert!(self.is_running(), "the daemon ended");
            let said = self.readiness().await;
            if said.as_ref().is_some_and(|(code, _)| *code == 200) {
                return;
            }
            assert!(Instant::now() < deadline, "the daemon is not ready: {said:?}");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until every lane of these sources has read its tables, as a new lane does. Each later change then comes
    /// once.
    pub async fn until_loaded(&self, sources: &[&str]) {
        until(&format!("all lanes of {sources:?} have read their tables"), async || {
            let Some(status) = self.status().await else { return false };
            let is_through = |lane: &Json| lane["state"] == "current" && lane["refreshed_rows"].is_null();
            let mut lanes = status["lanes"].as_array().into_iter().flatten();
            lanes.all(|lane| !sources.iter().any(|source| lane["source"] == **source) || is_through(lane))
        })
        .await;
    }

    /// Waits until the view in `list` (`sources`, `lanes` or `tasks`) that `key` names satisfies the condition.
    pub async fn until_view(&self, list: &str, key: (&str, &str), condition: impl Fn(&Json) -> bool) -> Json {
        until_some(&format!("{list} {key:?} as wanted"), async || {
            let status = self.status().await?;
            let views = status.get(list)?.as_array()?.iter();
            let mut named = views.filter(|view| view[key.0].as_str() == Some(key.1));
            named.find(|view| condition(view)).cloned()
        })
        .await
    }

    /// The process's peak resident memory, in bytes.
    pub fn resident_bytes_max(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        let kibibytes = status.lines().find_map(|line| {
            line.strip_prefix("VmHWM:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
        });
        kibibytes.expect("the daemon runs") * 1024
    }

    /// Sends SIGKILL and waits for the end.
    pub fn kill(&mut self) {
        blocking(|| self.companion.kill()).expect("it ends");
    }

    /// Sends SIGTERM and does not wait for the end.
    pub fn ask_to_end(&self) {
        self.companion.ask_to_end();
    }

    /// Sends SIGTERM and waits for an orderly end; `None` when the process did not end in time.
    pub fn terminate(&mut self) -> Option<ExitStatus> {
        blocking(|| self.companion.terminate(STOP_MAX)).expect("it ends")
    }

    /// Waits until the process has ended by itself; `None` when it did not end in time.
    pub fn wait(&mut self) -> Option<ExitStatus> {
        blocking(|| self.companion.wait(WAIT_MAX))
    }

    /// Sends SIGHUP: the daemon tries stopped and pausing tasks again.
    pub fn hang_up(&self) {
        self.companion.hang_up();
    }

    /// Sends SIGSTOP.
    pub fn pause(&self) {
        self.companion.pause();
    }

    /// Sends SIGCONT.
    pub fn resume(&self) {
        self.companion.resume();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
            eprintln!("--- end of {}\n{}", self.log_file.display(), tail.join("\n"));
        }
    }
}
