//! A user's program beside the servers: it ends with the stack, as they do.
//!
//! The demo and the crash tests run the daemon this way. Its arguments must hold no secrets: every user of the machine
//! can read them.

use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::error::{Result, StackError};
use crate::process::{Guard, Launch, ProcessIdentity, ProcessState, end_group};

const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// A running program; dropping it kills it.
#[derive(Debug)]
pub struct Companion {
    program: PathBuf,
    pid: u32,
    /// `None` once reaped: another process may get its id from then on.
    child: Option<Child>,
    identity: Option<ProcessIdentity>,
}

impl Companion {
    pub(crate) fn start(
        program: &Path,
        arguments: &[String],
        environment: &[(String, String)],
        guard: &Guard,
        output: &Path,
    ) -> Result<Self> {
        let launch = Launch {
            program: program.to_path_buf(),
            arguments: arguments.to_vec(),
            environment: environment.to_vec(),
        };
        let child = launch.spawn(guard, output)?;
        let identity = ProcessIdentity::of(child.id());
        Ok(Self { program: program.to_path_buf(), pid: child.id(), child: Some(child), identity })
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn is_running(&self) -> bool {
        self.identity.is_some_and(|identity| identity.state() != ProcessState::Gone)
    }

    /// Waits until it has ended by itself; `None` after `timeout`, and after an earlier call has returned its status.
    pub fn wait(&mut self, timeout: Duration) -> Option<ExitStatus> {
        let ended = self.identity.is_none_or(|identity| identity.wait_for(ProcessState::Gone, timeout));
        if !ended {
            return None;
        }
        self.child.take().and_then(|mut child| end_group(&mut child))
    }

    /// Sends SIGTERM without waiting for the end.
    pub fn ask_to_end(&self) {
        self.signal(Signal::SIGTERM);
    }

    /// Sends SIGTERM and waits; `None` when it did not end in time and was killed.
    pub fn terminate(&mut self, timeout: Duration) -> Result<Option<ExitStatus>> {
        self.signal(Signal::SIGTERM);
        match self.wait(timeout) {
            Some(status) => Ok(Some(status)),
            None => self.kill().map(|()| None),
        }
    }

    /// Sends SIGKILL; returns when the process is gone.
    pub fn kill(&mut self) -> Result<()> {
        self.signal(Signal::SIGKILL);
        if self.wait(KILL_TIMEOUT).is_some() || !self.is_running() {
            return Ok(());
        }
        Err(StackError::ServerNotKilled {
            name: self.program.display().to_string(),
            pid: self.identity.map_or(0, |identity| identity.pid),
            waited: KILL_TIMEOUT,
        })
    }

    /// Sends SIGHUP.
    pub fn hang_up(&self) {
        self.signal(Signal::SIGHUP);
    }

    /// Sends SIGSTOP: the program keeps its connections and does nothing.
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Sends SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(identity) = self.identity {
            identity.signal(signal);
        }
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        if self.is_running()
            && let Err(error) = self.kill()
        {
            eprintln!("{error}");
        }
    }
}
