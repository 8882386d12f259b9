//! Processes by identity, and the spawning of servers so that they end with their owner.
//!
//! A process is identified by its id and its start time, so a recorded id that the kernel has given to another process
//! since is never signalled.
//!
//! **Ending with the owner, even after SIGKILL.** The owner of a stack holds an exclusive `flock` on the instance's
//! lock file. Each server is started as `sh -c '(flock --shared LOCK true; kill -KILL 0) & exec SERVER'` in its own
//! process group. The watcher sleeps in the kernel until the owner's lock is gone, which the kernel releases however
//! the owner ends; then it kills the group, itself included. The server keeps the process id that the owner spawned.
//! `PR_SET_PDEATHSIG` was rejected: it needs unsafe code here and follows the spawning *thread*, which in a test or an
//! async runtime ends early. A pipe was rejected because only the owner could then start guarded servers; with a lock,
//! `cargo stack restart` can restart a server of a running demo, and it still ends with the demo.
//!
//! The watcher ignores SIGHUP, because the kernel sends it to the whole group when the owner of a paused server dies.
//!
//! `flock`, `setsid` (util-linux) and `sh` are essential packages of Debian.

use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::error::{FileContext, Result, StackError};
use crate::layout::tail;

const POLL_INTERVAL: Duration = Duration::from_millis(5);

const GUARD_SCRIPT: &str = r#"lock=$1; shift
(trap "" HUP INT TERM; flock --shared "$lock" true; kill -KILL 0) </dev/null >/dev/null 2>&1 &
exec "$@""#;

/// A process that cannot be mistaken for a later one of the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessIdentity {
    pub(crate) pid: i32,
    /// Start time in clock ticks since boot, field 22 of `/proc/<pid>/stat`.
    start_ticks: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessState {
    Running,
    Paused,
    /// Ended, or a zombie that only waits to be reaped.
    Gone,
}

impl ProcessIdentity {
    /// Returns the process that has this id now.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let pid = i32::try_from(pid).ok()?;
        read_stat(pid).map(|(_, start_ticks)| Self { pid, start_ticks })
    }

    pub(crate) fn state(self) -> ProcessState {
        match read_stat(self.pid) {
            Some((_, start_ticks)) if start_ticks != self.start_ticks => ProcessState::Gone,
            Some(('Z' | 'X', _)) | None => ProcessState::Gone,
            Some(('T' | 't', _)) => ProcessState::Paused,
            Some(_) => ProcessState::Running,
        }
    }

    /// Sends a signal unless the process is gone; a process that ends meanwhile is no error.
    pub(crate) fn signal(self, signal: Signal) {
        if self.state() != ProcessState::Gone {
            let _gone_meanwhile = signal::kill(Pid::from_raw(self.pid), signal);
        }
    }

    /// Waits until the process reaches the state; returns false when it does not in time.
    pub(crate) fn wait_for(self, wanted: ProcessState, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        while self.state() != wanted {
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(POLL_INTERVAL);
        }
        true
    }
}

/// Reads state letter and start time. The name may hold spaces and parentheses: fields are counted after the last one.
fn read_stat(pid: i32) -> Option<(char, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    let state = fields.next()?.chars().next()?;
    // The state is field 3, the start time is field 22.
    let start_ticks = fields.nth(18)?.parse().ok()?;
    Some((state, start_ticks))
}

/// The command that runs a server's program.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
}

/// Whether servers end with the process that holds the instance's lock.
#[derive(Debug, Clone)]
pub(crate) enum Guard {
    /// The server ends when no process holds this lock file exclusively any more.
    Lock(PathBuf),
    /// The server runs in its own session until it is stopped.
    Detached,
}

impl Launch {
    /// Makes the program load a library before its own.
    pub(crate) fn preload(&mut self, library: &Path) {
        const PRELOAD: &str = "LD_PRELOAD";
        match self.environment.iter_mut().find(|(name, _)| name == PRELOAD) {
            Some((_, libraries)) => *libraries = format!("{libraries}:{}", library.display()),
            None => self.environment.push((PRELOAD.to_owned(), library.display().to_string())),
        }
    }

    /// Returns the command with its guard: own process group, no terminal, output appended to `output`.
    pub(crate) fn command(&self, guard: &Guard, output: &Path) -> Result<Command> {
        let log = || OpenOptions::new().create(true).append(true).open(output).file("write", output);
        let mut command = match guard {
            Guard::Lock(lock) => {
                let mut command = Command::new("sh");
                command.args(["-c", GUARD_SCRIPT, "stack-guard"]).arg(lock).process_group(0);
                command
            }
            // `setsid` does not fork here, because the child of this process leads no group yet.
            Guard::Detached => Command::new("setsid"),
        };
        command
            .arg(&self.program)
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log()?)
            .stderr(log()?);
        Ok(command)
    }

    pub(crate) fn spawn(&self, guard: &Guard, output: &Path) -> Result<Child> {
        self.command(guard, output)?.spawn().map_err(|source| StackError::ProgramNotRun {
            program: self.program.display().to_string(),
            help: "sh, flock and setsid (package util-linux) must be on PATH".to_owned(),
            source,
        })
    }
}

/// Kills the rest of the process group of a child that was not reaped yet, then reaps it.
///
/// The order matters: until `wait` the kernel cannot give the child's id, and so the group's, to another process.
pub(crate) fn end_group(child: &mut Child) -> Option<ExitStatus> {
    if let Ok(pid) = i32::try_from(child.id()) {
        let _empty_already = signal::killpg(Pid::from_raw(pid), Signal::SIGKILL);
    }
    child.wait().ok()
}

/// Runs a program with its guard to its end.
pub(crate) fn run_to_end(launch: &Launch, guard: &Guard, output: &Path, timeout: Duration) -> Result<()> {
    let mut child = launch.spawn(guard, output)?;
    let ended =
        ProcessIdentity::of(child.id()).is_none_or(|identity| identity.wait_for(ProcessState::Gone, timeout));
    let status = end_group(&mut child);
    if ended && status.is_some_and(|status| status.success()) {
        return Ok(());
    }
    Err(StackError::ProgramFailed {
        program: launch.program.display().to_string(),
        status: match status {
            _ if !ended => format!("not done within {timeout:?}"),
            Some(status) => status.to_string(),
            None => "status unknown".to_owned(),
        },
        output: tail(output, 20),
        help: String::new(),
    })
}
