//! One server: start, stop, kill, pause, and what it is doing now.
//!
//! What runs is read from the server's folder, never remembered: another process (`cargo stack kill source-a`) may
//! have killed or restarted it meanwhile.

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
use crate::place::ManagedServer;
use crate::ports::ReservedPort;
use crate::process::{ProcessIdentity, ProcessState, end_group};
use crate::spec::{Passwords, RedisRole, ServerSpec};

/// Well above what was measured (0.2 s idle, 10 s on two busy cores with crash recovery).
const READY_TIMEOUT: Duration = Duration::from_secs(90);
/// An orderly end takes 0.1 s; a database that must flush a lot may take longer.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
const READY_POLL_INTERVAL: Duration = Duration::from_millis(10);
const LOG_LINES_IN_ERRORS: usize = 20;

/// What a server is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerStatus {
    Running,
    /// Stopped by [`Server::pause`]: it keeps its connections and answers nothing.
    Paused,
    Stopped,
}

/// Why a server that was started is not ready.
enum Unready {
    Exited,
    TimeOver,
}

/// A server of a stack. All calls wait until what they say is true.
#[derive(Debug)]
pub struct Server {
    place: ManagedServer,
    /// The child that this process spawned last; kept to reap it. Also serialises starts and stops.
    child: Mutex<Option<Child>>,
}

impl Server {
    pub(crate) fn new(place: ManagedServer) -> Self {
        Self { place, child: Mutex::new(None) }
    }

    pub(crate) fn place(&self) -> &ManagedServer {
        &self.place
    }

    pub fn name(&self) -> &str {
        self.place.name()
    }

    /// The port on 127.0.0.1; it stays the same for the stack's life.
    pub fn port(&self) -> u16 {
        self.place.record.port
    }

    /// URL of the product's least-privilege account, with its password.
    pub fn url(&self) -> String {
        self.place.url()
    }

    /// URL of the product's account that sets up, where there is one beside [`Server::url`]'s: on servers that hold
    /// derived tables or documents.
    pub fn setup_url(&self) -> Option<String> {
        self.place.setup_url()
    }

    /// URL of the account that may do everything.
    pub fn admin_url(&self) -> String {
        self.place.admin_url()
    }

    /// Name of the product's account.
    pub fn user(&self) -> &'static str {
        self.place.user()
    }

    /// Password of the product's account.
    pub fn password(&self) -> &str {
        &self.place.record.password
    }

    /// Password of the administrator.
    pub fn admin_password(&self) -> &str {
        &self.place.record.admin_password
    }

    /// Port of NATS' monitoring endpoint (plain HTTP), or of the links between Redis or OpenSearch nodes; nothing
    /// listens there for MariaDB and MySQL.
    pub fn second_port(&self) -> u16 {
        self.place.record.second_port
    }

    /// Folder with the server's data and logs.
    pub fn folder(&self) -> &Path {
        &self.place.folder
    }

    /// The server's log file.
    pub fn log_file(&self) -> PathBuf {
        self.place.log_file()
    }

    /// Its wall clock, if it has one of its own.
    pub fn clock(&self) -> Clock {
        self.place.clock()
    }

    /// Process id, unless stopped.
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

    /// SIGKILL, as the kernel or a power switch would do it; returns when the process is gone.
    pub fn kill(&self) -> Result<()> {
        let mut child = self.lock();
        self.end(Signal::SIGKILL, &mut child).map(drop)
    }

    /// An orderly stop (SIGTERM); SIGKILL when that takes too long.
    pub fn stop(&self) -> Result<()> {
        let mut child = self.lock();
        self.end(Signal::SIGTERM, &mut child).map(drop)
    }

    /// Starts with the same data, port and flags, after an orderly stop if it runs; returns when ready.
    pub fn restart(&self) -> Result<()> {
        self.restart_with(&[])
    }

    /// As [`Server::restart`], with further command line flags for this run only.
    pub fn restart_with(&self, extra_flags: &[&str]) -> Result<()> {
        let mut child = self.lock();
        self.end(Signal::SIGTERM, &mut child)?;
        let flags: Vec<String> = extra_flags.iter().map(|&flag| flag.to_owned()).collect();
        self.run(&flags, Vec::new(), &mut child)
    }

    /// SIGKILL, then a start without any data: as on a new disk. Port, passwords and settings stay.
    pub fn restart_empty(&self) -> Result<()> {
        let mut child = self.lock();
        self.end(Signal::SIGKILL, &mut child)?;
        // Without the marker the start makes the data anew, as after a first start that failed.
        let marker = self.place.prepared_marker();
        match fs::remove_file(&marker) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).file("remove", marker);
            }
            _ => {}
        }
        self.run(&[], Vec::new(), &mut child)
    }

    /// Freezes the process (SIGSTOP): connections stay open and nothing is answered.
    pub fn pause(&self) -> Result<()> {
        self.freeze(Signal::SIGSTOP, ProcessState::Paused)
    }

    /// Lets a paused process go on (SIGCONT).
    pub fn resume(&self) -> Result<()> {
        self.freeze(Signal::SIGCONT, ProcessState::Running)
    }

    /// Starts unless it runs already.
    pub(crate) fn start(&self, reserved: Vec<ReservedPort>) -> Result<()> {
        let mut child = self.lock();
        match self.status() {
            ServerStatus::Stopped => self.run(&[], reserved, &mut child),
            ServerStatus::Running | ServerStatus::Paused => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Child>> {
        // A panic while it was held leaves nothing half done that the folder does not tell.
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn identity_file(&self) -> PathBuf {
        self.place.folder.join("process.json")
    }

    fn identity(&self) -> Option<ProcessIdentity> {
        recorded_process(&self.place.folder)
    }

    fn freeze(&self, signal: Signal, wanted: ProcessState) -> Result<()> {
        let _serialised = self.lock();
        let gone = || StackError::ServerNotRunning { name: self.name().to_owned() };
        let identity =
            self.identity().filter(|identity| identity.state() != ProcessState::Gone).ok_or_else(gone)?;
        identity.signal(signal);
        if identity.wait_for(wanted, KILL_TIMEOUT) { Ok(()) } else { Err(gone()) }
    }

    /// Ends what runs and reaps our child; the child's exit status, if there was one.
    fn end(&self, signal: Signal, child: &mut Option<Child>) -> Result<Option<ExitStatus>> {
        if let Some(identity) = self.identity() {
            end_process(self.name(), identity, signal)?;
        }
        // Taken, so that no group is signalled after its leader was reaped.
        Ok(child.take().and_then(|mut child| end_group(&mut child)))
    }

    fn run(
        &self,
        extra_flags: &[String],
        reserved: Vec<ReservedPort>,
        child: &mut Option<Child>,
    ) -> Result<()> {
        let place = &self.place;
        make_folder(&place.folder)?;
        if !place.is_prepared() {
            place.prepare()?;
        }
        let launch = place.launch(extra_flags)?;
        for port in reserved {
            port.release();
        }
        let spawned = launch.spawn(&place.guard, &place.output())?;
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
        if !place.is_prepared() {
            write_private(&place.prepared_marker(), "")?;
            place.forget_secrets()?;
        }
        Ok(())
    }

    fn wait_ready(&self) -> std::result::Result<(), Unready> {
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            // Looked at before readiness: a program of somebody else could answer on the port.
            if self.status() == ServerStatus::Stopped {
                return Err(Unready::Exited);
            }
            if self.place.is_ready() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(Unready::TimeOver);
            }
            thread::sleep(READY_POLL_INTERVAL);
        }
    }

    /// The last lines of the server's log and of what it printed.
    pub fn log_tail(&self) -> String {
        let mut files = vec![self.place.log_file(), self.place.output()];
        files.dedup();
        let shown = |file: &PathBuf| format!("--- {}\n{}", file.display(), tail(file, LOG_LINES_IN_ERRORS));
        files.iter().map(shown).collect::<Vec<_>>().join("\n")
    }
}

/// The process that a server's folder names, which may be gone.
pub(crate) fn recorded_process(folder: &Path) -> Option<ProcessIdentity> {
    serde_json::from_str(&fs::read_to_string(folder.join("process.json")).ok()?).ok()
}

/// Ends a process and waits for it.
pub(crate) fn end_process(name: &str, identity: ProcessIdentity, signal: Signal) -> Result<()> {
    identity.signal(signal);
    if signal == Signal::SIGTERM {
        // A paused process acts on SIGTERM only after it goes on.
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

/// Names of the servers that have a folder in an instance, for cleaning without a readable state file.
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
    /// A replica of a Redis server, with the same passwords, so that clients can go on with it.
    pub fn redis_replica(name: impl Into<String>, primary: &Server) -> Self {
        let passwords =
            Passwords { user: primary.password().to_owned(), admin: primary.admin_password().to_owned() };
        Self::redis_in(name, RedisRole::Replica { of: primary.port() }, Some(passwords))
    }
}
