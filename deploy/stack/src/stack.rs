//! A stack: the servers of one instance, started together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::clock::Clock;
use crate::companion::Companion;
use crate::error::{Result, StackError};
use crate::instance::{self, Instance, Mode, State};
use crate::layout::Layout;
use crate::managed_server::{ManagedServer, ServerRecord};
use crate::ports::ReservedPort;
use crate::programs::Programs;
use crate::redis;
use crate::secrets::{Certificates, random_password};
use crate::server::Server;
use crate::spec::{Kind, Options, Passwords, RedisRole, ServerSpec, check_name};

/// Variable that keeps the data of an owned stack if it is `1`, until `cargo stack --instance NAME down`.
pub const KEEP_VARIABLE: &str = "ANABRANCH_STACK_KEEP";

/// The running servers of one instance.
///
/// A stack from [`Stack::start`] is owned: dropping it stops the servers and removes their data, and the servers also
/// end when the owner is killed. Stacks from [`Stack::up`] and [`Stack::open`] are not owned: dropping them changes
/// nothing.
#[derive(Debug)]
pub struct Stack {
    instance: Instance,
    mode: Mode,
    owner: bool,
    certificates: Certificates,
    programs: Programs,
    servers: Mutex<Vec<Arc<Server>>>,
}

impl Stack {
    /// Starts an owned stack in this checkout; returns when all servers are ready.
    pub fn start(options: Options) -> Result<Self> {
        Self::start_in(&Layout::find()?, options)
    }

    /// Starts an owned stack as [`Stack::start`] does, below another target folder.
    pub fn start_in(layout: &Layout, options: Options) -> Result<Self> {
        let instance = Instance::create(layout, options.instance, Mode::Owned)?;
        let stack = Self::new(layout, instance, State { mode: Mode::Owned, servers: Vec::new() }, true);
        stack.certificates.make()?;
        stack.add_all(options.servers)?;
        Ok(stack)
    }

    /// Starts a stack for tests with servers that not every machine can have (MySQL, MariaDB 11.8); `None` without
    /// them, with the reason on stderr. A process searches for missing programs only once, because that is slow.
    pub fn start_if_there(options: Options) -> Result<Option<Self>> {
        // Missing programs and the reasons. The lock is not held while servers start.
        static MISSING: Mutex<BTreeMap<&'static str, String>> = Mutex::new(BTreeMap::new());
        let known = || MISSING.lock().unwrap_or_else(PoisonError::into_inner);
        let optional: Vec<_> = options.servers.iter().filter_map(ServerSpec::optional_programs).collect();
        let earlier_reason = optional.iter().find_map(|what| known().get(what).cloned());
        let reason = match earlier_reason {
            Some(reason) => reason,
            None => match Self::start(options) {
                Err(ref missing @ StackError::ProgramMissing { ref what, .. }) => {
                    let reason = missing.to_string();
                    if let Some(name) = optional.into_iter().find(|name| name == what) {
                        known().insert(name, reason.clone());
                    }
                    reason
                }
                stack => return stack.map(Some),
            },
        };
        eprintln!("skipped: {reason}");
        Ok(None)
    }

    /// Starts a detached stack, or its stopped servers: it stays up until [`Stack::down`].
    pub fn up(layout: &Layout, instance: &str, servers: Vec<ServerSpec>) -> Result<Self> {
        let (instance, state) = match Instance::open(layout, instance) {
            Ok((mut instance, state)) if state.mode == Mode::Detached => {
                instance.take_lock()?;
                (instance, state)
            }
            Ok(_) | Err(StackError::InstanceNotUp { .. }) => {
                let state = State { mode: Mode::Detached, servers: Vec::new() };
                (Instance::create(layout, Some(instance.to_owned()), Mode::Detached)?, state)
            }
            Err(error) => return Err(error),
        };
        let mut stack = Self::new(layout, instance, state, false);
        stack.certificates.make()?;
        let known = stack.servers();
        in_parallel(&known, |server| server.start(Vec::new()))?;
        let is_missing = |spec: &ServerSpec| known.iter().all(|server| server.name() != spec.name);
        stack.add_all(servers.into_iter().filter(is_missing).collect())?;
        stack.instance.release_lock();
        Ok(stack)
    }

    /// Opens an instance that is up, whichever process owns it.
    pub fn open(layout: &Layout, instance: &str) -> Result<Self> {
        let (instance, state) = Instance::open(layout, instance)?;
        Ok(Self::new(layout, instance, state, false))
    }

    /// Stops a detached stack, or the remains of a dead owner's, and removes its data.
    pub fn down(mut self) -> Result<()> {
        if !self.owner {
            self.instance.take_lock()?;
        }
        self.end()
    }

    fn new(layout: &Layout, instance: Instance, state: State, owner: bool) -> Self {
        let certificates = Certificates::at(&instance.folder.join("tls"));
        let stack = Self {
            instance,
            mode: state.mode,
            owner,
            certificates,
            programs: Programs::of(layout),
            servers: Mutex::new(Vec::new()),
        };
        let servers = state.servers.into_iter().map(|record| stack.server_of(record)).collect();
        *stack.lock() = servers;
        stack
    }

    /// Starts one more server; returns it when it is ready.
    pub fn add(&self, server: ServerSpec) -> Result<Arc<Server>> {
        let name = server.name.clone();
        self.add_all(vec![server])?;
        self.server(&name)
    }

    /// Starts more servers, all at once. Returns the first failure after all attempts have ended.
    pub fn add_all(&self, specs: Vec<ServerSpec>) -> Result<()> {
        let mut reserved = Vec::new();
        let mut added = Vec::new();
        {
            let mut servers = self.lock();
            for spec in specs {
                check_name(&spec.name)?;
                if servers.iter().any(|server| server.name() == spec.name) {
                    return Err(StackError::ServerNameTaken {
                        instance: self.name().to_owned(),
                        name: spec.name,
                    });
                }
                let ports = [ReservedPort::choose()?, ReservedPort::choose()?];
                let number =
                    servers.iter().map(|server| server.managed().record.number).max().unwrap_or(0) + 1;
                let passwords = match &spec.kind {
                    Kind::Redis(redis) => redis.passwords.clone(),
                    Kind::MariaDb(..)
                    | Kind::MySql(_)
                    | Kind::Nats(_)
                    | Kind::Search(_)
                    | Kind::Prometheus(_) => None,
                };
                let passwords = passwords.unwrap_or_else(random_passwords);
                let server = self.server_of(ServerRecord {
                    spec,
                    number,
                    port: ports[0].number(),
                    second_port: ports[1].number(),
                    password: passwords.user,
                    admin_password: passwords.admin,
                });
                servers.push(Arc::clone(&server));
                added.push(server);
                reserved.push(Mutex::new(Vec::from(ports)));
            }
            let records = servers.iter().map(|server| server.managed().record.clone()).collect();
            self.instance.write_state(&State { mode: self.mode, servers: records })?;
        }
        let starts: Vec<_> = added.into_iter().zip(reserved).collect();
        in_parallel(&starts, |(server, ports)| {
            server.start(std::mem::take(&mut *ports.lock().unwrap_or_else(PoisonError::into_inner)))
        })
    }

    /// Starts a Redis Cluster of these nodes, all primaries; returns when it serves every slot.
    pub fn add_redis_cluster(&self, names: &[&str]) -> Result<()> {
        self.add_redis_nodes(names, |node| node)
    }

    /// Starts a Redis Cluster without TLS, see [`Stack::add_redis_cluster`].
    pub fn add_plain_redis_cluster(&self, names: &[&str]) -> Result<()> {
        self.add_redis_nodes(names, ServerSpec::plain)
    }

    fn add_redis_nodes(&self, names: &[&str], shape: impl Fn(ServerSpec) -> ServerSpec) -> Result<()> {
        let passwords = random_passwords();
        let node =
            |&name: &&str| shape(ServerSpec::redis_in(name, RedisRole::ClusterNode, Some(passwords.clone())));
        self.add_all(names.iter().map(node).collect())?;
        let nodes = names.iter().map(|name| self.server(name)).collect::<Result<Vec<_>>>()?;
        redis::form_cluster(&nodes.iter().map(|node| node.managed()).collect::<Vec<_>>())
    }

    fn server_of(&self, record: ServerRecord) -> Arc<Server> {
        Arc::new(Server::new(ManagedServer {
            folder: self.instance.folder.join(&record.spec.name),
            record,
            certificates: self.certificates.clone(),
            guard: self.instance.guard(self.mode),
            programs: self.programs.clone(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Server>>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the name of the instance.
    pub fn name(&self) -> &str {
        &self.instance.name
    }

    /// Returns the folder of the instance, which has one folder for each server.
    pub fn folder(&self) -> &Path {
        &self.instance.folder
    }

    /// Returns the file of the certificate authority that signed the certificates of all servers (PEM).
    pub fn ca_file(&self) -> PathBuf {
        self.certificates.ca()
    }

    /// Returns a server by its name.
    pub fn server(&self, name: &str) -> Result<Arc<Server>> {
        let servers = self.lock();
        servers.iter().find(|server| server.name() == name).cloned().ok_or_else(|| {
            StackError::ServerUnknown {
                instance: self.name().to_owned(),
                name: name.to_owned(),
                known: servers.iter().map(|server| server.name()).collect::<Vec<_>>().join(", "),
            }
        })
    }

    /// Returns all servers, in the order in which they were added.
    pub fn servers(&self) -> Vec<Arc<Server>> {
        self.lock().clone()
    }

    /// Starts a program that ends with this stack, however its owner ends. Its output is appended to a file.
    pub fn companion(&self, program: &Path, arguments: &[String], output: &Path) -> Result<Companion> {
        self.companion_with(program, arguments, &[], output)
    }

    /// Starts a program as [`Stack::companion`] does, with more variables in its environment: secrets belong there.
    pub fn companion_with(
        &self,
        program: &Path,
        arguments: &[String],
        environment: &[(String, String)],
        output: &Path,
    ) -> Result<Companion> {
        Companion::start(program, arguments, environment, &self.instance.guard(self.mode), output)
    }

    /// Returns a wall clock for companions, and the variables that make a program use it.
    pub fn clock(&self, name: &str) -> Result<(Clock, Vec<(String, String)>)> {
        let clock = Clock::at(self.folder().join(format!("{name}.clock")));
        let variables = clock.variables(&self.programs)?;
        Ok((clock, variables))
    }

    /// Variables for configuration files with `${NAME}`: `ANABRANCH_<SERVER>_URL` and more, `ANABRANCH_CA_FILE`.
    pub fn env(&self) -> BTreeMap<String, String> {
        let mut variables = BTreeMap::from([
            ("ANABRANCH_CA_FILE".to_owned(), self.ca_file().display().to_string()),
            ("ANABRANCH_STACK_INSTANCE".to_owned(), self.name().to_owned()),
        ]);
        for server in self.servers() {
            let name = server.name().to_ascii_uppercase().replace('-', "_");
            for (variable, value) in server.managed().environment() {
                variables.insert(format!("ANABRANCH_{name}_{variable}"), value);
            }
        }
        variables
    }

    fn keep(&self) -> Result<()> {
        in_parallel(&self.servers(), |server| server.stop())?;
        let records = self.servers().iter().map(|server| server.managed().record.clone()).collect();
        self.instance.write_state(&State { mode: Mode::Kept, servers: records })?;
        eprintln!("stack {} is stopped, its data kept in {}", self.name(), self.folder().display());
        Ok(())
    }

    fn end(&self) -> Result<()> {
        // Their data goes too, so an orderly end, for which MySQL and OpenSearch take seconds, would save nothing.
        in_parallel(&self.servers(), |server| server.kill())?;
        self.instance.remove()
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if !self.owner {
            return;
        }
        let keep = std::env::var(KEEP_VARIABLE).is_ok_and(|value| value == "1");
        let ended = if keep { self.keep() } else { self.end() };
        if let Err(error) = ended {
            eprintln!("stack {} was not removed: {error}", self.name());
        }
    }
}

/// Returns the names of the instances in this checkout.
pub fn instance_names(layout: &Layout) -> Result<Vec<String>> {
    instance::names(layout)
}

fn random_passwords() -> Passwords {
    Passwords { user: random_password(), admin: random_password() }
}

/// Does the work for all items at once; returns the first error in the items' order.
fn in_parallel<T: Sync>(items: &[T], work: impl Fn(&T) -> Result<()> + Sync) -> Result<()> {
    let work = &work;
    let results: Vec<Result<()>> = thread::scope(|scope| {
        let running: Vec<_> = items.iter().map(|item| scope.spawn(move || work(item))).collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    results.into_iter().collect()
}
