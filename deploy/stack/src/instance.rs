//! Instances on disk: their folder, lock and state file, and the remains of crashed ones.
//!
//! An owned instance lives as long as its owner holds `owner.lock` exclusively. When no process holds it, its servers
//! are dead or dying (`process.rs` explains why), and the next stack that starts in this checkout removes its folder. A
//! detached instance, made by `cargo stack up`, lives until `cargo stack down`.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::error::{FileContext, Result, StackError};
use crate::layout::{Layout, make_folder, remove_folder, write_private};
use crate::managed_server::ServerRecord;
use crate::process::Guard;
use crate::server::{end_process, recorded_process, server_folders};
use crate::spec::check_name;

/// The watchers of a dead owner hold the lock for the moment that they need to kill their servers.
const STALE_LOCK_TIMEOUT: Duration = Duration::from_secs(2);
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The way in which an instance ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mode {
    /// It ends with the process that holds the lock.
    Owned,
    /// `cargo stack down` ends it.
    Detached,
    /// It is stopped, and its data stays for inspection until `cargo stack down`.
    Kept,
}

/// The state file of an instance.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) mode: Mode,
    pub(crate) servers: Vec<ServerRecord>,
}

/// One instance's folder.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
    /// The owner holds it exclusively; so do `up` and `down` of a detached instance while they work.
    lock: Option<File>,
}

impl Instance {
    /// Makes a new instance and takes its lock. Removes the remains of a crashed one of the same name.
    pub(crate) fn create(layout: &Layout, name: Option<String>, mode: Mode) -> Result<Self> {
        let name = name.unwrap_or_else(unique_name);
        check_name(&name)?;
        let _registry = lock_registry(&layout.instances())?;
        sweep(layout)?;
        let mut instance = Self::at(layout, &name);
        make_folder(&instance.folder)?;
        instance.take_lock()?;
        if let Some(state) = instance.read_state()? {
            if state.mode == Mode::Detached {
                return Err(StackError::InstanceInUse { instance: name });
            }
            clean(&instance.folder)?;
            make_folder(&instance.folder)?;
            instance.take_lock()?;
        }
        instance.write_state(&State { mode, servers: Vec::new() })?;
        Ok(instance)
    }

    /// Opens an instance that is up, without taking its lock.
    pub(crate) fn open(layout: &Layout, name: &str) -> Result<(Self, State)> {
        check_name(name)?;
        let instance = Self::at(layout, name);
        let state =
            instance.read_state()?.ok_or_else(|| StackError::InstanceNotUp { instance: name.to_owned() })?;
        Ok((instance, state))
    }

    fn at(layout: &Layout, name: &str) -> Self {
        Self { name: name.to_owned(), folder: layout.instances().join(name), lock: None }
    }

    /// Takes the lock, or fails when another process holds it.
    pub(crate) fn take_lock(&mut self) -> Result<()> {
        let file = open_lock(&self.lock_file())?;
        let deadline = Instant::now() + STALE_LOCK_TIMEOUT;
        while file.try_lock().is_err() {
            if Instant::now() >= deadline {
                return Err(StackError::InstanceInUse { instance: self.name.clone() });
            }
            thread::sleep(LOCK_POLL_INTERVAL);
        }
        self.lock = Some(file);
        Ok(())
    }

    pub(crate) fn release_lock(&mut self) {
        self.lock = None;
    }

    pub(crate) fn guard(&self, mode: Mode) -> Guard {
        match mode {
            Mode::Owned => Guard::Lock(self.lock_file()),
            Mode::Detached | Mode::Kept => Guard::Detached,
        }
    }

    fn lock_file(&self) -> PathBuf {
        self.folder.join("owner.lock")
    }

    fn state_file(&self) -> PathBuf {
        self.folder.join("state.json")
    }

    fn read_state(&self) -> Result<Option<State>> {
        let path = self.state_file();
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            text => text.file("read", &path)?,
        };
        serde_json::from_str(&text).map(Some).map_err(|source| StackError::StateUnreadable {
            instance: self.name.clone(),
            path,
            source,
        })
    }

    pub(crate) fn write_state(&self, state: &State) -> Result<()> {
        let text = serde_json::to_string_pretty(state).expect("strings and numbers are always JSON");
        write_private(&self.state_file(), &text)
    }

    /// Removes the folder of an instance whose servers are stopped.
    ///
    /// The registry's lock keeps another process from sweeping a half-removed folder.
    pub(crate) fn remove(&self) -> Result<()> {
        let _registry = self.folder.parent().map(lock_registry).transpose()?;
        remove_folder(&self.folder)
    }
}

/// Returns the names of the instances that have a folder in this checkout.
pub(crate) fn names(layout: &Layout) -> Result<Vec<String>> {
    let folder = layout.instances();
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let folders = server_folders(&folder)?;
    let mut names: Vec<String> =
        folders.iter().filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect();
    names.sort();
    Ok(names)
}

/// Removes the instances of dead owners. Instances of other modes and those in use stay.
fn sweep(layout: &Layout) -> Result<()> {
    for folder in server_folders(&layout.instances())? {
        let lock = open_lock(&folder.join("owner.lock"))?;
        let stays = fs::read_to_string(folder.join("state.json"))
            .ok()
            .and_then(|text| serde_json::from_str::<State>(&text).ok())
            .is_some_and(|state| state.mode != Mode::Owned);
        if !stays && lock.try_lock().is_ok() {
            clean(&folder)?;
        }
    }
    Ok(())
}

/// Ends the remaining processes of a dead instance and removes it.
fn clean(folder: &Path) -> Result<()> {
    for server in server_folders(folder)? {
        if let Some(identity) = recorded_process(&server) {
            end_process(&server.display().to_string(), identity, Signal::SIGKILL)?;
        }
    }
    remove_folder(folder)
}

/// Serialises the making and sweeping of instances among all processes of the checkout.
fn lock_registry(instances: &Path) -> Result<File> {
    make_folder(instances)?;
    let path = instances.join(".lock");
    let file = open_lock(&path)?;
    file.lock().file("lock", &path)?;
    Ok(file)
}

fn open_lock(path: &Path) -> Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).open(path).file("open", path)
}

fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    format!("run-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::process::{ProcessIdentity, ProcessState};

    /// Makes an owned instance whose owner is gone, with one server process recorded.
    fn dead_instance(layout: &Layout, identity: &str) -> PathBuf {
        let instance = Instance::create(layout, Some("dead".to_owned()), Mode::Owned).unwrap();
        let server = instance.folder.join("source-a");
        make_folder(&server).unwrap();
        write_private(&server.join("process.json"), identity).unwrap();
        instance.folder.clone()
    }

    #[test]
    fn next_stack_kills_and_removes_what_a_dead_owner_left() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::below(folder.path());
        let mut left = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        let identity = ProcessIdentity::of(left.id()).unwrap();
        let dead = dead_instance(&layout, &serde_json::to_string(&identity).unwrap());

        let next = Instance::create(&layout, None, Mode::Owned).unwrap();

        assert_eq!(identity.state(), ProcessState::Gone);
        assert!(!dead.exists());
        assert!(next.folder.is_dir());
        left.wait().unwrap();
    }

    #[test]
    fn process_that_reuses_a_recorded_id_is_not_touched() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::below(folder.path());
        let mut innocent = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        let dead = dead_instance(&layout, &format!(r#"{{"pid":{},"start_ticks":1}}"#, innocent.id()));

        let _next = Instance::create(&layout, None, Mode::Owned).unwrap();

        assert!(!dead.exists());
        let alive = innocent.try_wait().unwrap().is_none();
        innocent.kill().unwrap();
        innocent.wait().unwrap();
        assert!(alive, "a process of somebody else was killed");
    }

    #[test]
    fn instance_in_use_is_neither_taken_nor_swept() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::below(folder.path());
        let used = Instance::create(&layout, Some("used".to_owned()), Mode::Owned).unwrap();

        let second = Instance::create(&layout, Some("used".to_owned()), Mode::Owned);

        assert!(matches!(second, Err(StackError::InstanceInUse { .. })), "{second:?}");
        assert!(used.folder.join("state.json").is_file());
    }

    #[test]
    fn names_that_leave_the_folder_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::below(folder.path());
        for name in ["", "..", "a/b", "Ä", "a b", &"a".repeat(41)] {
            let made = Instance::create(&layout, Some(name.to_owned()), Mode::Owned);
            assert!(matches!(made, Err(StackError::NameInvalid { .. })), "{name:?}");
        }
    }
}
