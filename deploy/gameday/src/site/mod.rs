//! The installation that is broken: servers, a daemon with every derived store, a workload, Prometheus.
//!
//! It is put together as a user would do it: a configuration file, `setup`, `run`. Its actions stand in `actions.rs`,
//! `settings.rs`, `stores.rs`, `coupons.rs` and `payments.rs`, its state as the daemon shows it in `state.rs`.

mod actions;
mod certificate;
mod coupons;
mod daemon;
mod payments;
mod settings;
mod state;
mod stores;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch_demo::daemon::{self as product, DaemonConfiguration};
use anabranch_demo::verify::{
    BirthdayLayer, CacheLayer, DerivedLayout, DocumentLayer, Layer, MappingLayer, Verification,
    drain_and_compare, topologies,
};
use anabranch_demo::{Connection, Endpoint, JsonClient, Load, Pace, RedisServer, Topology};
use anabranch_schemas::celebration::Calendar;
use anabranch_schemas::shard::{NameHash, ShardingRule, Spread};
use anabranch_stack::{Clock, Options, ReservedPort, Server, ServerSpec, Stack};
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::time::Instant;

use self::certificate::ShortCertificate;
use self::coupons::Coupons;
use self::daemon::Daemon;
use self::state::{codes, disorder};
pub use self::state::{
    counts_coupons, has_drift, has_every_task, has_paused, has_refusals, is_refreshing, loses_changes,
    parked, shows_certificate_end,
};
use crate::error::{GamedayError, Result};
use crate::prometheus::{Prometheus, Timing};
use crate::scenario::{Meaning, Scenario};

/// Prefix of streams and buckets.
const NAME: &str = "gameday";
/// Alias of the index of devices.
const INDEX: &str = "serials";
/// Bytes that all streams together may take, so that the disk of NATS is full soon, and those of each source's stream.
/// The queue of coupons reserves 134 million of them.
const LOG_BYTES: u64 = 256_000_000;
const STREAM_BYTES: u64 = 24_000_000;
/// Time for which a stream keeps a change: less than the six hours before which a paused lane's loss is an alert.
const STREAM_SECONDS: u64 = 5 * 3600;
/// The line of the demo's configuration that limits a stream.
const STREAM_LIMIT: &str = "max_bytes = 1073741824";
/// Changes a second of each entity: every second has one, and a spot check looks at each.
const CHANGES_PER_SECOND: u32 = 8;
/// Rows of each entity to begin with.
const ROWS_AT_FIRST: u64 = 2_000;
/// Life of a cached set, and of a set without claims.
const TIME_TO_LIVE: (Duration, Duration) = (Duration::from_secs(3600), Duration::from_secs(60));
/// Limit until everything is current: a task that could not reach its server pauses for up to 60 s.
pub const CURRENT_MAX: Duration = Duration::from_secs(240);
/// Limit until a daemon that answers is scraped: four times the longest time between two scrapes.
const SCRAPED_MAX: Duration = Duration::from_secs(60);
/// Limit of one command of the product.
const COMMAND_MAX: Duration = Duration::from_secs(900);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A command of the product that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Exit code; -1 when a signal ended the command.
    pub exit_code: i32,
    /// Standard output and standard error.
    pub output: String,
}

/// A running installation. Fields end in their order: programs before their servers.
pub struct Site {
    main: Daemon,
    second: Option<Daemon>,
    load: Load,
    /// The clock of the first daemon, while it has one that can be stepped.
    clock: Option<Clock>,
    /// Codes that daemons have shown since the last [`Site::take_codes`].
    codes: Mutex<BTreeSet<String>>,
    certificate: ShortCertificate,
    binary: PathBuf,
    /// Roles of the first daemon; none = all of them.
    roles: &'static [&'static str],
    file: PathBuf,
    /// Text of the file, without a programme of coupons.
    text: String,
    coupons: Coupons,
    audits: Vec<Verification>,
    prometheus: Prometheus,
    stack: Stack,
}

impl Site {
    /// Starts everything; returns when all rows are derived and the first reconciliation has ended.
    pub async fn start(timing: &Timing, binary: Option<PathBuf>) -> Result<Self> {
        let reserved = ReservedPort::choose()?;
        let port = reserved.number();
        eprintln!("starting servers and building the daemon ...");
        let options = servers(timing, port);
        let stack = blocking(|| Stack::start(options))?;
        let binary = match binary {
            Some(binary) => binary,
            None => blocking(product::build)?,
        };
        // Before any client reads the file of authorities.
        let certificate = ShortCertificate::make(&stack)?;
        let audits = audits(&stack)?;
        for topology in topologies(&audits) {
            topology.create_schema().await?;
        }
        let (file, text) =
            (stack.folder().join("gameday.toml"), configuration(&stack, &audits, timing, port)?);
        write_private(&file, &text)?;
        let prometheus = stack.server("prometheus")?;
        let prometheus = Prometheus::at(prometheus.url(), prometheus.folder())?;
        prometheus.scrape_also(None)?;
        blocking(|| product::Daemon::set_up(&binary, &file))?;
        reserved.release();
        let main = Daemon::start(&stack, &binary, (&file, port), (&[], &[]))?;
        let (seed, pace) = (u64::from(rand::random::<u32>()), Pace::of(CHANGES_PER_SECOND));
        let load = Load::new(topologies(&audits).into_iter().cloned().collect(), seed, pace);
        let mut site = Self {
            main,
            second: None,
            load,
            clock: None,
            codes: Mutex::default(),
            certificate,
            binary,
            roles: &[],
            file,
            text,
            coupons: Coupons::default(),
            audits,
            prometheus,
            stack,
        };
        site.load.fill(ROWS_AT_FIRST).await?;
        site.load.start();
        site.until_current(CURRENT_MAX).await?;
        // Alerts on a missing reconciliation, and lines on tables that cannot be read, need an earlier one.
        site.reconcile().await?;
        Ok(site)
    }

    pub fn main(&self) -> &Daemon {
        &self.main
    }

    /// Returns the daemon whose page is looked at: the second one while there is one.
    pub fn shown(&self) -> &Daemon {
        self.second.as_ref().unwrap_or(&self.main)
    }

    pub fn prometheus(&self) -> &Prometheus {
        &self.prometheus
    }

    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the version of the database servers.
    pub async fn database_version(&self) -> Result<String> {
        let version = self.admin("source-a").await?.first("ask for the version", "SELECT VERSION()").await?;
        Ok(version.unwrap_or_default())
    }

    /// Returns the status of the daemon whose page is looked at; notes the codes in it.
    pub async fn status(&self) -> Option<Value> {
        let status = self.shown().ask("v1/status").await?;
        self.note(&status);
        Some(status)
    }

    /// Waits until the daemon shows everything as current.
    pub async fn until_current(&self, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let found = match self.status().await {
                Some(status) => disorder(&status),
                None => vec!["the daemon does not answer".to_owned()],
            };
            if found.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let what = format!("everything is current; {}", found.join("; "));
                return Err(GamedayError::Late { what, seconds: limit.as_secs() });
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until an expression of Prometheus has a result: a figure that the next scrape of a daemon brings.
    async fn until_scraped(&self, expression: &str, what: &str) -> Result<()> {
        let deadline = Instant::now() + SCRAPED_MAX;
        while !self.prometheus.has(expression).await? {
            if Instant::now() >= deadline {
                let what = format!("Prometheus has scraped {what}");
                return Err(GamedayError::Late { what, seconds: SCRAPED_MAX.as_secs() });
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Pauses the workload and compares every derived row with its source.
    pub async fn expect_equal(&mut self) -> Result<()> {
        self.load.stop().await?;
        let (drained, comparisons) = drain_and_compare(&self.audits, CURRENT_MAX).await?;
        self.load.start();
        let mut reasons = drained.lagging.clone();
        for (audit, comparison) in self.audits.iter().zip(&comparisons) {
            if comparison.differences.total() > 0 {
                let examples: Vec<String> = comparison.examples.iter().map(ToString::to_string).collect();
                reasons.push(format!("{}: {}", audit.name(), examples.join("; ")));
            }
        }
        match reasons.is_empty() {
            true => Ok(()),
            false => Err(GamedayError::RowsDiffer { reason: reasons.join("; ") }),
        }
    }

    /// Returns whether a daemon has shown this code since the last [`Site::take_codes`].
    pub fn has_shown(&self, code: &str) -> bool {
        self.codes.lock().unwrap_or_else(PoisonError::into_inner).contains(code)
    }

    /// Returns the codes that daemons have shown since the last call.
    pub fn take_codes(&self) -> Vec<String> {
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *codes).into_iter().collect()
    }

    /// Runs `anabranch …` to its end, with a text at its standard input.
    pub async fn command(&self, arguments: &[String], input: &str) -> Result<Finished> {
        self.command_with(arguments, input, &[]).await
    }

    /// Runs `anabranch …` as [`Site::command`] does, with further variables of the environment.
    async fn command_with(
        &self,
        arguments: &[String],
        input: &str,
        environment: &[(String, String)],
    ) -> Result<Finished> {
        let program = self.binary.display().to_string();
        let failed = |source| GamedayError::ProgramNotRun { program: program.clone(), source };
        let mut child = tokio::process::Command::new(&self.binary)
            .args(arguments)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        if let Some(mut stdin) = child.stdin.take() {
            // A command that reads nothing may have ended already.
            let _unread = stdin.write_all(input.as_bytes()).await;
        }
        let ended = tokio::time::timeout(COMMAND_MAX, child.wait_with_output()).await;
        let late = |_| GamedayError::Late {
            what: format!("anabranch {} ends", arguments.join(" ")),
            seconds: COMMAND_MAX.as_secs(),
        };
        let output = ended.map_err(late)?.map_err(failed)?;
        let texts = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok(Finished { exit_code: output.status.code().unwrap_or(-1), output: texts.concat() })
    }

    /// Ends a drill that failed as well as it can: the steps of its table, and the work that follows it.
    pub async fn recover(&mut self, scenario: &Scenario) {
        let steps = scenario.sections.iter().flat_map(|section| section.table);
        let of_steps = steps.filter_map(|step| match step.means {
            Meaning::Do(actions) => Some(actions),
            Meaning::Leave(_) => None,
        });
        for action in of_steps.flatten().chain(scenario.afterwards) {
            if let Err(error) = self.act(action).await {
                eprintln!("after the failed drill, {action:?}: {error}");
            }
        }
    }

    /// Ends workload and daemons in order; the servers end with the site.
    pub async fn end(mut self) {
        if let Err(error) = self.load.stop().await {
            eprintln!("the workload: {error}");
        }
        for daemon in [Some(self.main), self.second].into_iter().flatten() {
            daemon.end();
        }
    }

    /// Runs a reconciliation and expects that it proves the stores.
    async fn reconcile(&self) -> Result<()> {
        let command = self.with_file(&["reconcile", "--now"]);
        let finished = self.command(&command, "").await?;
        match finished.exit_code {
            0 => Ok(()),
            code => Err(GamedayError::CommandFailed {
                command: command.join(" "),
                status: code.to_string(),
                output: finished.output,
            }),
        }
    }

    /// Returns the arguments behind those that name the configuration.
    fn with_file(&self, arguments: &[&str]) -> Vec<String> {
        let file = ["--config".to_owned(), self.file.display().to_string()];
        file.into_iter().chain(arguments.iter().map(|&argument| argument.to_owned())).collect()
    }

    fn note(&self, status: &Value) {
        self.codes.lock().unwrap_or_else(PoisonError::into_inner).extend(codes(status));
    }

    fn server(&self, name: &str) -> Result<Arc<Server>> {
        Ok(self.stack.server(name)?)
    }

    async fn admin(&self, server: &str) -> Result<Connection> {
        Ok(Endpoint::admin(&self.stack, server)?.connect(&[]).await?)
    }
}

/// Runs blocking work beside the runtime's other tasks.
fn blocking<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

fn servers(timing: &Timing, port: u16) -> Options {
    let prometheus = ServerSpec::prometheus("prometheus", port);
    Options::empty()
        .with(ServerSpec::mariadb_source("source-a").without_fsync())
        .with(ServerSpec::mariadb_source("source-b").without_fsync())
        .with(ServerSpec::mariadb_target("target").without_fsync())
        .with(ServerSpec::nats("nats").store_bytes(LOG_BYTES))
        .with(ServerSpec::redis("redis"))
        .with(ServerSpec::search("search"))
        .with(prometheus.scraping(timing.scrape_seconds, Some(timing.rules_text.clone())))
}

/// Returns the derived stores with few tables, which are quick to make and to compare.
fn audits(stack: &Stack) -> Result<Vec<Verification>> {
    let sources = vec![Endpoint::admin(stack, "source-a")?, Endpoint::admin(stack, "source-b")?];
    let targets = vec![Endpoint::admin(stack, "target")?];
    let rule = ShardingRule { hash: NameHash::Crc32, spread: Spread::Spread, databases: 10, tables: 1 };
    let (users, devices) = (Topology::users(sources.clone(), rule), Topology::serials(sources, 2));
    let birthdays = BirthdayLayer {
        calendar: Calendar::Solar,
        layout: DerivedLayout::ByDay,
        databases: 2,
        targets: targets.clone(),
    };
    let mapping = MappingLayer { tables: 8, targets };
    let cache = CacheLayer {
        mapping: mapping.clone(),
        server: RedisServer::admin(stack, "redis")?,
        prefix: format!("{NAME}:mapping"),
        time_to_live: TIME_TO_LIVE,
    };
    let documents =
        DocumentLayer { server: JsonClient::search_admin(stack, "search")?, index: INDEX.to_owned() };
    let of_devices = [Layer::Mapping(mapping), Layer::Cache(cache), Layer::Documents(documents)];
    let of_devices = of_devices.map(|layer| Verification { topology: devices.clone(), layer });
    let birthdays = Verification { topology: users, layer: Layer::Birthday(birthdays) };
    Ok([birthdays].into_iter().chain(of_devices).collect())
}

/// Returns the text of the configuration file. It holds passwords.
fn configuration(stack: &Stack, audits: &[Verification], timing: &Timing, port: u16) -> Result<String> {
    let mut configuration = DaemonConfiguration::standard(audits.to_vec());
    configuration.name = NAME.to_owned();
    configuration.http_port = port;
    let ages = timing.spot_check_seconds;
    configuration.further = format!("\n[reconcile]\nspot_check_after_seconds = {ages:?}\n");
    let text = configuration.text(stack)?;
    let limits = format!("max_bytes = {STREAM_BYTES}\nmax_age_seconds = {STREAM_SECONDS}");
    let limited = text.replace(STREAM_LIMIT, &limits);
    if limited == text {
        let path = PathBuf::from("deploy/demo/src/daemon/configuration.rs");
        let source = std::io::Error::other(format!("it has no line `{STREAM_LIMIT}`"));
        return Err(GamedayError::File { action: "use", path, source });
    }
    Ok(limited)
}

/// Writes a file that its owner alone can read.
fn write_private(file: &Path, text: &str) -> Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options.open(file).and_then(|mut opened| opened.write_all(text.as_bytes()));
    written.map_err(|source| GamedayError::File { action: "write", path: file.to_path_buf(), source })
}
