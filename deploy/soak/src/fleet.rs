//! Three daemons of one configuration, which share the work. A step that breaks one of them locks all of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anabranch_demo::daemon::{Commands, Daemon};
use anabranch_demo::{DemoError, Result};
use anabranch_stack::{ReservedPort, Stack};
use tokio::sync::{Mutex, MutexGuard};

use crate::journal::Journal;

/// Text in the log of a daemon that has a defect, and in the output of such a command.
pub const DEFECT: &str = "panicked at";

/// The running daemons. Dropping it kills them before their servers end.
#[derive(Debug)]
pub struct Fleet {
    daemons: Mutex<Vec<Daemon>>,
    commands: Commands,
    stack: Arc<Stack>,
}

/// Daemons that were killed, and the right to start them again.
#[derive(Debug)]
pub struct Killed<'f> {
    daemons: MutexGuard<'f, Vec<Daemon>>,
    stack: &'f Stack,
}

impl Fleet {
    /// Starts a daemon for each file; its port is the reserved one.
    pub fn start(stack: Arc<Stack>, binary: &Path, files: Vec<(PathBuf, ReservedPort)>) -> Result<Self> {
        let mut daemons = Vec::new();
        let mut commands = None;
        for (file, reserved) in files {
            let port = reserved.number();
            reserved.release();
            let daemon = Daemon::start(&stack, binary, &file, (port, &[]))?;
            commands.get_or_insert_with(|| daemon.commands());
            daemons.push(daemon);
        }
        let commands = commands.expect("a fleet has daemons");
        Ok(Self { daemons: Mutex::new(daemons), commands, stack })
    }

    /// Returns the product's commands, with the configuration of the first daemon.
    pub fn commands(&self) -> &Commands {
        &self.commands
    }

    /// Kills a daemon, and starts it again after that time. Reports it if it had ended by itself.
    pub async fn kill(&self, number: usize, down: Duration, journal: &Journal) -> Result<()> {
        let mut daemons = self.daemons.lock().await;
        report_ended(number, &mut daemons[number], journal);
        blocking(|| daemons[number].kill())?;
        tokio::time::sleep(down).await;
        blocking(|| daemons[number].start_again(&self.stack))
    }

    /// Stops a daemon's process for that time; it keeps its connections.
    pub async fn freeze(&self, number: usize, time: Duration) -> Result<()> {
        let daemons = self.daemons.lock().await;
        daemons[number].pause();
        tokio::time::sleep(time).await;
        daemons[number].resume();
        Ok(())
    }

    /// Kills every daemon. Reports each that had ended by itself.
    pub async fn kill_all(&self, journal: &Journal) -> Result<Killed<'_>> {
        let mut daemons = self.daemons.lock().await;
        for (number, daemon) in daemons.iter_mut().enumerate() {
            report_ended(number, daemon, journal);
            blocking(|| daemon.kill())?;
        }
        Ok(Killed { daemons, stack: &self.stack })
    }

    /// Reports each daemon that ended by itself, and starts those that do not run.
    pub async fn expect_running(&self, journal: &Journal) -> Result<()> {
        for (number, daemon) in self.daemons.lock().await.iter_mut().enumerate() {
            report_ended(number, daemon, journal);
            // A step that failed may have left it killed.
            if !daemon.is_running() {
                blocking(|| daemon.start_again(&self.stack))?;
            }
        }
        Ok(())
    }

    /// Returns the number of each daemon whose log shows a defect.
    pub async fn defects(&self) -> Result<Vec<usize>> {
        let mut found = Vec::new();
        for (number, file) in self.log_files().await.into_iter().enumerate() {
            let log = std::fs::read(&file);
            let log = log.map_err(|source| DemoError::File { action: "read", path: file, source })?;
            if String::from_utf8_lossy(&log).contains(DEFECT) {
                found.push(number);
            }
        }
        Ok(found)
    }

    pub async fn log_files(&self) -> Vec<PathBuf> {
        self.daemons.lock().await.iter().map(|daemon| daemon.log_file().to_path_buf()).collect()
    }
}

impl Killed<'_> {
    /// Starts all of them again.
    pub fn start(mut self) -> Result<()> {
        let stack = self.stack;
        blocking(|| self.daemons.iter_mut().try_for_each(|daemon| daemon.start_again(stack)))
    }
}

/// Reports a daemon that ended by itself. A kill would hide its status.
fn report_ended(number: usize, daemon: &mut Daemon, journal: &Journal) {
    if let Some(status) = blocking(|| daemon.ended()) {
        let tail = daemon.log_tail();
        journal.problem(format!("daemon {number} ended by itself with {status}; its log:\n{tail}"));
    }
}

/// Runs blocking work beside the runtime's other tasks.
pub fn blocking<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}
