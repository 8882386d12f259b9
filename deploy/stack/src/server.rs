//! One server: starts, stops, kills and pauses it, and reports its state.
//!
//! The state is read from the server's folder and never remembered: another process (`cargo stack kill source-a`) may
//! have killed or restarted the server meanwhile.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::clock::Clock;
use crate::error::{FileContext, Result, StackError};
use crate::layout::{make_folder, tail, write_private};
use crate::managed_server::ManagedServer;
use crate::ports::ReservedPort;
use crate::process::{ProcessIdentity, ProcessState, end_group};
use crate::spec::{Passwords, RedisRole, ServerSpec};

/// Limit of a start: well above the measured times (0.2 s idle, 10 s on two busy cores with crash recovery).
const READY_TIMEOUT: Duration = Duration::from_secs(180);
/// Limit of an orderly end: it takes 0.1 s, and longer if a database must flush a lot.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Bounds of the pause between two looks at a server that starts, which lasts as long as a look: a handshake takes time
/// that the server needs on a busy machine.
const READY_PAUSE_MIN: Duration = Duration::from_millis(10);
const READY_PAUSE_MAX: Duration = Duration::from_millis(200);
const LOG_LINES_IN_ERRORS: usize = 20;

/// State of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerStatus {
    Running,
    /// Stopped by [`Server::pause`]: it keeps its connections and answers nothing.
    Paused,
    Stopped,
}

/// The reason why a started server is not ready.
enum Unready {
    Exited,
    TimeOver,
}

/// A server of a stack. Each call returns when its effect is reached.
#[derive(Debug)]
pub struct Server {
    managed: ManagedServer,
    /// The child that this process spawned last; it is kept to be reaped. The lock also serialises starts and stops.
    child: Mutex<Option<Child>>,
}

impl Server {
    pub(crate) fn new(managed: ManagedServer) -> Self {
        Self { managed, child: Mutex::new(None) }
    }

    pub(crate) fn managed(&self) -> &ManagedServer {
        &self.managed
    }

    pub fn name(&self) -> &str {
        self.managed.name()
    }

    /// Returns the port on 127.0.0.1; it stays the same for the stack's life.
    pub fn port(&self) -> u16 {
        self.managed.record.port
    }

    /// Returns the URL of the product's least-privilege account, with its password.
    pub fn url(&self) -> String {
        self.managed.url()
    }

    /// Returns the URL of the product's set-up account. Servers that hold derived tables or documents have one beside
    /// that of [`Server::url`].
    pub fn setup_url(&self) -> Option<String> {
        self.managed.setup_url()
    }

    /// Returns the URL of the account that may do everything.
    pub fn admin_url(&self) -> String {
        self.managed.admin_url()
    }

    /// Returns the name of the product's account.
    pub fn user(&self) -> &'static str {
        self.managed.user()
    }

    /// Returns the password of the product's account.
    pub fn password(&self) -> &str {
        &self.managed.record.password
    }

    /// Returns the password of the administrator.
    pub fn admin_password(&self) -> &str {
        &self.managed.record.admin_password
    }

    /// Returns the port of NATS' monitoring endpoint (plain HTTP), or of the links between Redis or OpenSearch nodes.
    /// For MariaDB and MySQL nothing listens there.
    pub fn second_port(&self) -> u16 {
        self.managed.record.second_port
    }

    /// Returns the folder with the server's data and logs.
    pub fn folder(&self) -> &Path {
        &self.managed.folder
    }

    /// Returns the server's log file.
    pub fn log_file(&self) -> PathBuf {
        self.managed.log_file()
    }

    /// Returns its wall clock; only a server with a clock of its own follows it.
    pub fn clock(&self) -> Clock {
        self.managed.clock()
    }

    /// Returns the process id; `None` when the server is stopped.
    pub fn pid(&self) -> Option<u32> {
        let identity = self.identity().filter(|identity| identity.state() != ProcessState::Gone)?;
        u32::try_from(identity.pid).ok()
    }

    pub fn status(&self) -> ServerStatus {
        match self.identity().map(ProcessIdentity::state) {
            Some(ProcessState::Running) => ServerStatus::Running,
            Some(ProcessState::Paused) => ServerStatus::Paused,
            Some(ProcessState::Gone) | None => ServerStatus::Stopped,
        }
    }

    /// Sends SIGKILL, which ends the server as a crash would; returns when the process is gone.
    pub fn kill(&self) -> Result<()> {
        let mut child = self.lock();
        self.end(Signal::SIGKILL, &mut child).map(drop)
    }

    /// Stops in order (SIGTERM), and with SIGKILL when that takes too long.
    pub fn stop(&self) -> Result<()> {
        let mut child = self.lock();
        self.end(Signal::SIGTERM, &mut child).map(drop)
    }

    /// Starts with the same data, port and flags, after an orderly stop if it runs; returns when it is ready.
    pub fn restart(&self) -> Result<()> {
        self.restart_with(&[])
    }

    /// Restarts as [`Server::restart`] does, with further command line flags for this run only.
    pub fn restart_with(&self, extra_flags: &[&str]) -> Result<()> {
        let mut child = self.lock();
        self.end(Signal::SIGTERM, &mut child)?;
        let flags: Vec<String> = extra_flags.iter().map(|&flag| flag.to_owned()).collect();
        self.run(&flags, Vec::new(), &mut child)
    }

    /// Sends SIGKILL and starts without any data, as on a new disk. Port, passwords and settings stay.
    pub fn restart_empty(&self) -> Result<()> {
        let mut child = self.lock();
        self.end(Signal::SIGKILL, &mut child)?;
        // Without the marker the start makes the data anew, as after a failed first start.
        let marker = self.managed.prepared_marker();
        match fs::remove_file(&marker) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).file("remove", marker);
            }
            _ => {}
        }
        self.run(&[], Vec::new(), &mut child)
    }

    /// Freezes the process (SIGSTOP): its connections stay open, and it answers nothing.
    pub fn pause(&self) -> Result<()> {
        self.freeze(Signal::SIGSTOP, ProcessState::Paused)
    }

    /// Continues a paused process (SIGCONT).
    pub fn resume(&self) -> Result<()> {
        self.freeze(Signal::SIGCONT, ProcessState::Running)
    }

    /// Starts the server unless it runs already.
    pub(crate) fn start(&self, reserved: Vec<ReservedPort>) -> Result<()> {
        let mut child = self.lock();
        match self.status() {
            ServerStatus::Stopped => self.run(&[], reserved, &mut child),
            ServerStatus::Running | ServerStatus::Paused => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Child>> {
        // A panic under the lock leaves nothing half done that the folder does not show.
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn identity_file(&self) -> PathBuf {
        self.managed.folder.join("process.json")
    }

    fn identity(&self) -> Option<ProcessIdentity> {
        recorded_process(&self.managed.folder)
    }

    fn freeze(&self, signal: Signal, wanted: ProcessState) -> Result<()> {
        let _serialised = self.lock();
        let gone = || StackError::ServerNotRunning { name: self.name().to_owned() };
        let identity =
            self.identity().filter(|identity| identity.state() != ProcessState::Gone).ok_or_else(gone)?;
        identity.signal(signal);
        if identity.wait_for(wanted, KILL_TIMEOUT) { Ok(()) } else { Err(gone()) }
    }

    /// Ends the running process and reaps its child; returns the child's exit status, if there was one.
    fn end(&self, signal: Signal, child: &mut Option<Child>) -> Result<Option<ExitStatus>> {
        if let Some(identity) = self.identity() {
            end_process(self.name(), identity, signal)?;
        }
        // The child is taken out, so that no group is signalled after its leader was reaped.
        Ok(child.take().and_then(|mut child| end_group(&mut child)))
    }

    fn run(
        &self,
        extra_flags: &[String],
        reserved: Vec<ReservedPort>,
        child: &mut Option<Child>,
    ) -> Result<()> {
        let managed = &self.managed;
        make_folder(&managed.folder)?;
        if !managed.is_prepared() {
            managed.prepare()?;
        }
        let launch = managed.launch(extra_flags)?;
        for port in reserved {
            port.release();
        }
        let spawned = launch.spawn(&managed.guard, &managed.output())?;
        let identity = ProcessIdentity::of(spawned.id());
        *child = Some(spawned);
        if let Some(identity) = identity {
            let json = serde_json::to_string(&identity).expect("two numbers are always JSON");
            write_private(&self.identity_file(), &json)?;
        }
        if let Err(unready) = self.wait_ready() {
            let status = self.end(Signal::SIGKILL, child)?;
            let name = self.name().to_owned();
            let log = self.log_tail();
            return Err(match unready {
                Unready::Exited => {
                    let status =
                        status.map_or_else(|| "status unknown".to_owned(), |status| status.to_string());
                    StackError::ServerExited { name, status, log }
                }
                Unready::TimeOver => StackError::ServerNotReady { name, waited: READY_TIMEOUT, log },
            });
        }
        if !managed.is_prepared() {
            write_private(&managed.prepared_marker(), "")?;
            managed.forget_secrets()?;
        }
        Ok(())
    }

    fn wait_ready(&self) -> std::result::Result<(), Unready> {
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            // The state is checked before readiness: another program could answer on the port.
            if self.status() == ServerStatus::Stopped {
                return Err(Unready::Exited);
            }
            let began = Instant::now();
            if self.managed.is_ready() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(Unready::TimeOver);
            }
            thread::sleep(began.elapsed().clamp(READY_PAUSE_MIN, READY_PAUSE_MAX));
        }
    }

    /// Returns the last lines of the server's log and of its output.
    pub fn log_tail(&self) -> String {
        let mut files = vec![self.managed.log_file(), self.managed.output()];
        files.dedup();
        let shown = |file: &PathBuf| format!("--- {}\n{}", file.display(), tail(file, LOG_LINES_IN_ERRORS));
        files.iter().map(shown).collect::<Vec<_>>().join("\n")
    }
}

/// Returns the process that a server's folder names; it may be gone.
pub(crate) fn recorded_process(folder: &Path) -> Option<ProcessIdentity> {
    serde_json::from_str(&fs::read_to_string(folder.join("process.json")).ok()?).ok()
}

/// Ends a process and waits for it.
pub(crate) fn end_process(name: &str, identity: ProcessIdentity, signal: Signal) -> Result<()> {
    identity.signal(signal);
    if signal == Signal::SIGTERM {
        // A paused process handles SIGTERM only after it continues.
        identity.signal(Signal::SIGCONT);
        if identity.wait_for(ProcessState::Gone, STOP_TIMEOUT) {
            return Ok(());
        }
        identity.signal(Signal::SIGKILL);
    }
    if identity.wait_for(ProcessState::Gone, KILL_TIMEOUT) {
        return Ok(());
    }
    Err(StackError::ServerNotKilled { name: name.to_owned(), pid: identity.pid, waited: KILL_TIMEOUT })
}

/// Returns the folders of the servers in an instance, for cleaning without a readable state file.
pub(crate) fn server_folders(instance: &Path) -> Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(instance).file("read the folder", instance)? {
        let path = entry.file("read the folder", instance)?.path();
        if path.is_dir() {
            folders.push(path);
        }
    }
    Ok(folders)
}

impl ServerSpec {
    /// Specifies a replica of a Redis server, with the same passwords, so that clients can switch to it.
    pub fn redis_replica(name: impl Into<String>, primary: &Server) -> Self {
        let passwords =
            Passwords { user: primary.password().to_owned(), admin: primary.admin_password().to_owned() };
        Self::redis_in(name, RedisRole::Replica { of: primary.port() }, Some(passwords))
    }
}
