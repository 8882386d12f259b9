//! The installation that is broken: sources of which one has a replica, a target, NATS, Redis, a load, three daemons.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anabranch_demo::daemon::{self as product, DaemonConfiguration};
use anabranch_demo::verify::{
    BirthdayLayer, CacheLayer, DerivedLayout, DocumentLayer, Layer, MappingLayer, Verification, topologies,
};
use anabranch_demo::{
    BirthdayType, Connection, DemoError, Endpoint, JsonClient, Load, Pace, RedisServer, Result, SourceTable,
    Topology,
};
use anabranch_schemas::celebration::Calendar;
use anabranch_schemas::change::Entity;
use anabranch_schemas::shard::{NameHash, ShardingRule, Spread};
use anabranch_stack::{Layout, Options, ReservedPort, Server, ServerSpec, Stack};
use tokio::time::Instant;

use crate::Order;
use crate::fleet::{Fleet, blocking};
use crate::journal::Journal;
use crate::plan::Choices;

/// Prefix of streams, buckets and keys.
const NAME: &str = "soak";
/// Sources as the configuration names them.
pub const FAILS_OVER: &str = "source-a";
pub const BEGINS_ANEW: &str = "source-b";
/// The replica of [`FAILS_OVER`].
pub const STANDBY: &str = "standby";
pub const TARGET: &str = "target";
/// Names of the captured column of users: the second one is that of a rename that is rolled out.
pub const NAMES: [&str; 2] = ["birthday", "birth_date"];
/// Alias of the index of devices.
const INDEX: &str = "serials";
const DAEMONS: usize = 3;
/// Rows of each entity to begin with.
const ROWS_AT_FIRST: u64 = 2_000;
/// Life of a cached set, and of a set without claims.
const TIME_TO_LIVE: (Duration, Duration) = (Duration::from_secs(3600), Duration::from_secs(60));
/// Limit of one command of the product, whose servers all run.
const COMMAND_MAX: Duration = Duration::from_secs(180);
/// A workload makes at least one in so many of the changes of its pace, in spite of killed and paused servers.
const LEAST_SHARE: u64 = 20;
/// Limit until a load that was started again has changed rows of each entity, on servers that all run.
const CHANGES_MAX: Duration = Duration::from_secs(60);
/// Time between two tries of a command, and between two looks at the load.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// A running installation. The load ends first, then the daemons, then the servers.
#[derive(Debug)]
pub struct Site {
    pub(crate) load: Load,
    load_start: LoadStart,
    fleet: Arc<Fleet>,
    pub(crate) audits: Vec<Verification>,
    /// Configuration file of each daemon.
    pub(crate) files: Vec<PathBuf>,
    has_failed_over: bool,
    /// Number of times that a source was made to begin anew.
    pub(crate) beginnings: u32,
    pub(crate) stack: Arc<Stack>,
}

/// The first moment of the load, and the changes that its workloads owe from then on.
#[derive(Debug)]
struct LoadStart {
    time: Instant,
    /// Changes of each workload that filled the tables.
    changes: Vec<u64>,
    /// Row changes a second of each workload.
    rate: u32,
}

impl Site {
    /// Starts everything; returns when the first rows are in the sources.
    pub async fn start(order: &Order) -> Result<Self> {
        println!("starting servers and building the daemon ...");
        let options = servers(order.has_search);
        let stack = Arc::new(blocking(|| Stack::start(options))?);
        let binary = match &order.daemon {
            Some(binary) => binary.clone(),
            None => blocking(product::build)?,
        };
        follow(&stack).await?;
        let audits = audits(&stack, order.has_search)?;
        for topology in topologies(&audits) {
            topology.create_schema().await?;
        }
        let (mut reserved, mut files) = (Vec::new(), Vec::new());
        for number in 0..DAEMONS {
            let port = ReservedPort::choose()?;
            files.push(configure(&stack, &audits, port.number(), number)?);
            reserved.push(port);
        }
        blocking(|| product::Daemon::set_up(&binary, &files[0]))?;
        let of_daemons = files.iter().cloned().zip(reserved).collect();
        let fleet = Arc::new(Fleet::start(Arc::clone(&stack), &binary, of_daemons)?);
        let entities: Vec<Topology> = topologies(&audits).into_iter().cloned().collect();
        let rate = order.rate.div_ceil(entities.len() as u32);
        let mut load = Load::new(entities, order.seed, Pace::of(rate));
        load.fill(ROWS_AT_FIRST).await?;
        let load_start = LoadStart { time: Instant::now(), changes: load.changes_by_entity(), rate };
        load.start();
        println!("the stack is {}", stack.name());
        Ok(Self { load, load_start, fleet, audits, files, has_failed_over: false, beginnings: 0, stack })
    }

    pub fn fleet(&self) -> Arc<Fleet> {
        Arc::clone(&self.fleet)
    }

    /// Returns what a plan may break.
    pub fn choices(&self) -> Choices {
        let mut servers = vec![FAILS_OVER, BEGINS_ANEW, TARGET, "nats", "redis"];
        if self.audits.iter().any(|audit| matches!(audit.layer, Layer::Documents(_))) {
            servers.push("search");
        }
        let tables = self.tables();
        // Users come first.
        let users: Vec<_> = tables.iter().take_while(|(_, table)| table.entity == Entity::User).collect();
        let numbers = |is_wanted: fn(&Endpoint, SourceTable) -> bool| -> Vec<usize> {
            let wanted = users.iter().enumerate().filter(|(_, (server, table))| is_wanted(server, *table));
            wanted.map(|(number, _)| number).collect()
        };
        let is_projection = |audit: &&Verification| !matches!(audit.layer, Layer::Cache(_));
        Choices {
            daemons: DAEMONS,
            servers,
            tables: tables.len(),
            users: users.len(),
            texts: numbers(|_, table| BirthdayType::of(table) == BirthdayType::Text),
            unreplicated: numbers(|server, _| server.name == BEGINS_ANEW),
            projections: self.audits.iter().filter(is_projection).map(Verification::name).collect(),
            sources: vec![FAILS_OVER, BEGINS_ANEW],
        }
    }

    /// Returns every captured table with its present server.
    pub fn tables(&self) -> Vec<(Endpoint, SourceTable)> {
        let of = |topology: &Topology| -> Vec<(Endpoint, SourceTable)> {
            let with_server = |table| (topology.sources[topology.source_of(table)].clone(), table);
            topology.source_tables().map(with_server).collect()
        };
        topologies(&self.audits).into_iter().flat_map(of).collect()
    }

    /// Returns the captured table of that number, and its present server.
    pub fn table(&self, number: usize) -> (Endpoint, SourceTable) {
        self.tables().swap_remove(number)
    }

    /// Returns the server that has this role now.
    pub fn server(&self, name: &str) -> Result<Arc<Server>> {
        let is_replaced = self.has_failed_over && name == FAILS_OVER;
        Ok(self.stack.server(if is_replaced { STANDBY } else { name })?)
    }

    /// Opens a connection to the server that has this role now.
    pub async fn admin(&self, name: &str) -> Result<Connection> {
        let server = self.server(name)?;
        Endpoint::admin(&self.stack, server.name())?.connect(&[]).await
    }

    /// Notes that the replica has taken over, for the comparison and for the load, which must stand still.
    pub fn replace_source(&mut self) -> Result<()> {
        self.has_failed_over = true;
        let endpoint = Endpoint { name: FAILS_OVER.to_owned(), ..Endpoint::admin(&self.stack, STANDBY)? };
        self.load.replace_source(&endpoint);
        self.audits.iter_mut().for_each(|audit| audit.topology.replace_source(&endpoint));
        Ok(())
    }

    /// Runs `anabranch …` until it succeeds; returns its standard output.
    pub async fn command(&self, arguments: &[&str]) -> Result<String> {
        let output = self.command_unless(arguments, None).await?;
        Ok(output.expect("no refusal ends it"))
    }

    /// Does the same; returns `None` as soon as a command that failed prints this refusal.
    pub async fn command_unless(&self, arguments: &[&str], refusal: Option<&str>) -> Result<Option<String>> {
        let deadline = Instant::now() + COMMAND_MAX;
        loop {
            let ended = tokio::time::timeout_at(deadline, self.fleet.commands().run(arguments)).await;
            let (status, output) = match ended {
                Ok(finished) => {
                    let finished = finished?;
                    if finished.status.success() {
                        return Ok(Some(finished.stdout));
                    }
                    (finished.status.to_string(), finished.stdout + &finished.stderr)
                }
                Err(_) => ("it ran on".to_owned(), String::new()),
            };
            if refusal.is_some_and(|refusal| output.contains(refusal)) {
                return Ok(None);
            }
            if Instant::now() >= deadline {
                let (command, seconds) = (arguments.join(" "), COMMAND_MAX.as_secs());
                return Err(DemoError::CommandFailed { command, seconds, status, output });
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }

    /// Returns the number of row changes that the load has made.
    pub fn changes(&self) -> u64 {
        self.load.changes()
    }

    /// Reports each workload that has made next to no changes: equal stores would then prove little.
    pub fn expect_changes(&self, journal: &Journal) {
        let LoadStart { time, changes, rate } = &self.load_start;
        let seconds = time.elapsed().as_secs();
        let least = u64::from(*rate) * seconds / LEAST_SHARE;
        let entities = topologies(&self.audits).into_iter().map(|topology| topology.entity.name());
        for ((entity, now), before) in entities.zip(self.load.changes_by_entity()).zip(changes) {
            let made = now.saturating_sub(*before);
            if made < least {
                journal.problem(format!(
                    "{entity}: {made} changes in {seconds} s, and at least {least} were due at {rate} a second"
                ));
            }
        }
    }

    /// Waits until each workload has made more changes than these.
    pub async fn until_more_changes(&self, before: &[u64]) -> Result<()> {
        let deadline = Instant::now() + CHANGES_MAX;
        while self.load.changes_by_entity().iter().zip(before).any(|(now, before)| now <= before) {
            if Instant::now() >= deadline {
                let what = "each workload changes rows again after its start".to_owned();
                return Err(DemoError::Late { what, seconds: CHANGES_MAX.as_secs() });
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
        Ok(())
    }

    /// Copies the logs of daemons and servers out of the stack's folder, which goes with the stack; returns the folder
    /// with the copies.
    pub fn keep_logs(&self, seed: u64) -> Result<PathBuf> {
        let folder = Layout::find()?.programs().with_file_name("soak").join(format!("seed-{seed}"));
        let failed = |action, path: &PathBuf| {
            let path = path.clone();
            move |source| DemoError::File { action, path, source }
        };
        fs::create_dir_all(&folder).map_err(failed("make the folder", &folder))?;
        let of_daemons = self.files.iter().map(|file| (file.with_extension("log"), String::new()));
        let of_servers = self.stack.servers();
        let of_servers = of_servers.iter().map(|server| (server.log_file(), format!("{}-", server.name())));
        for (log, prefix) in of_daemons.chain(of_servers).filter(|(log, _)| log.is_file()) {
            let name = log.file_name().unwrap_or_default().to_string_lossy().into_owned();
            fs::copy(&log, folder.join(prefix + &name)).map_err(failed("copy", &log))?;
        }
        Ok(folder)
    }
}

fn servers(has_search: bool) -> Options {
    // The replica has the GTID domain of its source, which is the first server of the stack.
    let standby = ServerSpec::mariadb_source(STANDBY).flag("--gtid-domain-id=1").without_fsync();
    let options = Options::empty()
        .with(ServerSpec::mariadb_source(FAILS_OVER).without_fsync())
        .with(ServerSpec::mariadb_source(BEGINS_ANEW).without_fsync())
        .with(standby)
        .with(ServerSpec::mariadb_target(TARGET).without_fsync())
        .with(ServerSpec::nats("nats"))
        .with(ServerSpec::redis("redis"));
    if has_search { options.with(ServerSpec::search("search")) } else { options }
}

/// Makes the standby a replica of its source, from the beginning of its binlog on.
async fn follow(stack: &Stack) -> Result<()> {
    let source = stack.server(FAILS_OVER)?;
    let (user, password, port) = (source.user(), source.password(), source.port());
    let ca_file = stack.ca_file().display().to_string();
    let change = format!(
        "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, MASTER_USER = '{user}', \
         MASTER_PASSWORD = '{password}', MASTER_SSL = 1, MASTER_SSL_CA = '{ca_file}', \
         MASTER_CONNECT_RETRY = 1, MASTER_USE_GTID = slave_pos; START REPLICA"
    );
    let mut standby = Endpoint::admin(stack, STANDBY)?.connect(&[]).await?;
    standby.execute("follow the source", change).await
}

/// Returns the derived stores with few tables, which are quick to make and to compare.
fn audits(stack: &Stack, has_search: bool) -> Result<Vec<Verification>> {
    let sources = vec![Endpoint::admin(stack, FAILS_OVER)?, Endpoint::admin(stack, BEGINS_ANEW)?];
    let targets = vec![Endpoint::admin(stack, TARGET)?];
    let rule = ShardingRule { hash: NameHash::Crc32, spread: Spread::Spread, databases: 10, tables: 1 };
    let (users, devices) = (Topology::users(sources.clone(), rule), Topology::serials(sources, 2));
    let (calendar, layout) = (Calendar::Solar, DerivedLayout::ByDay);
    let birthdays = BirthdayLayer { calendar, layout, databases: 2, targets: targets.clone() };
    let mapping = MappingLayer { tables: 8, targets };
    let cache = CacheLayer {
        mapping: mapping.clone(),
        server: RedisServer::admin(stack, "redis")?,
        prefix: format!("{NAME}:mapping"),
        time_to_live: TIME_TO_LIVE,
    };
    let mut audits = vec![Verification { topology: users, layer: Layer::Birthday(birthdays) }];
    let mut add = |layer| audits.push(Verification { topology: devices.clone(), layer });
    add(Layer::Mapping(mapping));
    add(Layer::Cache(cache));
    if has_search {
        let server = JsonClient::search_admin(stack, "search")?;
        add(Layer::Documents(DocumentLayer { server, index: INDEX.to_owned() }));
    }
    Ok(audits)
}

/// Writes the configuration file of a daemon; all of them differ in their port alone.
fn configure(stack: &Stack, audits: &[Verification], port: u16, number: usize) -> Result<PathBuf> {
    let mut configuration = DaemonConfiguration::standard(audits.to_vec());
    configuration.name = NAME.to_owned();
    configuration.http_port = port;
    let draft = configuration.write(stack)?;
    let failed = |action| {
        let path = draft.clone();
        move |source| DemoError::File { action, path, source }
    };
    let text = fs::read_to_string(&draft).map_err(failed("read"))?;
    let users = "sharding_column = \"user_name\"\n";
    let with_names = format!("{users}columns = {{ birthday = {NAMES:?} }}\n");
    fs::write(&draft, text.replace(users, &with_names)).map_err(failed("write"))?;
    let file = draft.with_file_name(format!("{NAME}-{number}.toml"));
    fs::rename(&draft, &file).map_err(failed("rename"))?;
    Ok(file)
}
