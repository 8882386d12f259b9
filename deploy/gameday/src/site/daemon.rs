//! One running daemon: its process and its HTTP port.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anabranch_demo::JsonClient;
use anabranch_stack::{Companion, Stack};
use reqwest::Method;
use serde_json::Value;

use super::blocking;
use crate::error::Result;

/// Limit of an orderly stop: longer than the daemon's own deadline.
const STOP_MAX: Duration = Duration::from_secs(20);
/// Limit of an answer: a frozen daemon accepts requests and answers none.
const ANSWER_MAX: Duration = Duration::from_secs(2);
const LOG_LINES_SHOWN: usize = 30;

/// A running daemon; dropping it kills it.
#[derive(Debug)]
pub struct Daemon {
    companion: Companion,
    port: u16,
    /// Client of the daemon's own HTTP port.
    http: JsonClient,
    log_file: PathBuf,
}

impl Daemon {
    /// Starts `anabranch --config FILE run` and returns at once. `port` is the port that the file configures. A daemon
    /// that gets no `roles` takes every role.
    pub fn start(
        stack: &Stack,
        binary: &Path,
        (file, port): (&Path, u16),
        (environment, roles): (&[(String, String)], &[&str]),
    ) -> Result<Self> {
        let log_file = file.with_extension("log");
        let mut arguments = vec!["--config".to_owned(), file.display().to_string(), "run".to_owned()];
        arguments.extend(roles.iter().flat_map(|&role| ["--role".to_owned(), role.to_owned()]));
        let companion = blocking(|| stack.companion_with(binary, &arguments, environment, &log_file))?;
        let http = JsonClient::without_tls("the daemon", format!("http://127.0.0.1:{port}"))?;
        Ok(Self { companion, port, http, log_file })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the address of the daemon's live page.
    pub fn page(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// Sends a GET request and returns the JSON of the answer; `None` when the daemon does not answer in time, or
    /// answers with an error.
    pub async fn ask(&self, path: &str) -> Option<Value> {
        let answer = self.http.ask("ask", Method::GET, path, Value::Null);
        tokio::time::timeout(ANSWER_MAX, answer).await.ok()?.ok()
    }

    /// Returns the last lines of the daemon's log.
    pub fn log_tail(&self) -> String {
        let log = fs::read(&self.log_file).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
    }

    /// Sends SIGKILL; returns when the process is gone.
    pub fn kill(&mut self) -> Result<()> {
        Ok(blocking(|| self.companion.kill())?)
    }

    /// Freezes the process (SIGSTOP).
    pub fn freeze(&self) {
        self.companion.pause();
    }

    /// Lets a frozen process continue (SIGCONT).
    pub fn thaw(&self) {
        self.companion.resume();
    }

    /// Thaws a frozen process, sends SIGTERM and waits for an orderly end.
    pub fn stop(&mut self) -> Result<()> {
        if self.companion.is_running() {
            self.companion.resume();
            blocking(|| self.companion.terminate(STOP_MAX))?;
        }
        Ok(())
    }

    /// Stops the daemon in order, and prints an error to stderr instead of returning it.
    pub fn end(mut self) {
        if let Err(error) = self.stop() {
            eprintln!("the daemon: {error}");
        }
    }
}
