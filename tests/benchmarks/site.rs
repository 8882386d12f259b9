//! One installation on fresh servers, with its parts as the daemon has them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anabranch_connectors::mysql::source::MysqlSource;
use anabranch_connectors::nats::NatsLog;
use anabranch_demo::verify::DerivedLayout;
use anabranch_pipeline::config::{Config, SourceConfig};
use anabranch_schemas::change::Entity;
use anabranch_schemas::shard::{NameHash, ShardingRule, Spread};
use anabranch_stack::{Server, ServerSpec, Stack};
use anabranch_tests::{Installation, Plan, Turn};

use crate::LATENCY_LANES;

pub const SOURCE: &str = "source";
pub const TARGET: &str = "target";
/// Servers that are started when they are first needed, as they would disturb other figures.
pub const REDIS: &str = "redis";
pub const SEARCH: &str = "search";
/// The projections to tables, as the installation names them.
const BIRTHDAY: &str = "birthday";
pub const MAPPING: &str = "mapping";
pub const RELATIONS: &str = "relations";
/// The token of applications.
pub const TOKEN: &str = "application-token-1";
/// An account that may read the binlog without TLS and password, as the scan speaks a minimal protocol.
pub const SCAN_USER: &str = "scan";
/// The product's account without TLS.
const PLAIN_USER: &str = "plain";
const PLAIN_PASSWORD: &str = "plain";
pub const DATABASES: u32 = 4;
pub const TABLES: u32 = 10;
/// Tables of devices in each inventory database and in the history.
pub const SERIAL_TABLES: u32 = 8;
/// Tables in each database of a site of many tables.
pub const TABLES_OF_MANY: u32 = 250;
/// Tables in each of the three databases by length, the default of the configuration.
const MAPPING_TABLES: u32 = 512;
/// User partitions of payment documents in each of the ten databases.
pub const FLUX_PARTITIONS: u32 = 10;

/// One installation on fresh servers, with its parts as the daemon has them.
#[derive(Debug)]
pub struct Site<'g> {
    pub installation: Installation<'g>,
    /// The entity of its source tables.
    pub entity: Entity,
}

impl<'g> Site<'g> {
    /// A site with rows of the entity in source tables, and tables derived from them.
    pub async fn of(entity: Entity, turn: Turn<'g>, lanes: u32) -> Self {
        match entity {
            Entity::User => Self::of_users(turn, lanes).await,
            Entity::SerialCode => Self::of_devices(turn, lanes).await,
            Entity::Flux => Self::of_payments(turn, lanes).await,
        }
    }

    /// A site with users in source tables and birthday tables.
    pub async fn of_users(turn: Turn<'g>, lanes: u32) -> Self {
        Self::of_users_in(TABLES, turn, lanes).await
    }

    /// A site with users in one more source table of each database, which no load changes.
    pub async fn of_altered_users(turn: Turn<'g>, lanes: u32) -> Self {
        Self::of_users_in(TABLES + 1, turn, lanes).await
    }

    /// A site with users in 1,000 source tables and birthday tables.
    pub async fn of_many_tables(turn: Turn<'g>, lanes: u32) -> Self {
        Self::of_users_in(TABLES_OF_MANY, turn, lanes).await
    }

    async fn of_users_in(tables: u32, turn: Turn<'g>, lanes: u32) -> Self {
        Self::open(turn, &Self::users(tables, lanes)).await
    }

    /// A site of users with the default of lanes, derived by user into as many databases as the source has.
    pub async fn of_days(turn: Turn<'g>, layout: DerivedLayout) -> Self {
        let databases = match layout {
            DerivedLayout::ByDay => 1,
            DerivedLayout::ByUser => DATABASES,
        };
        let plan = Plan { layout, databases, ..Self::users(TABLES, LATENCY_LANES) };
        Self::open(turn, &plan).await
    }

    fn users(tables: u32, lanes: u32) -> Plan {
        let rule =
            ShardingRule { hash: NameHash::Crc32, spread: Spread::Spread, databases: DATABASES, tables };
        let small = Plan::small();
        Plan { databases: 1, lanes, targets: 1, rule, has_passwords_in_file: true, ..small }
    }

    /// A site with devices in source tables and mapping tables.
    pub async fn of_devices(turn: Turn<'g>, lanes: u32) -> Self {
        Self::open(turn, &Self::devices(lanes)).await
    }

    /// A site of devices with a cache and an API.
    pub async fn of_cached_devices(turn: Turn<'g>, lanes: u32) -> Self {
        add(turn.stack, ServerSpec::redis(REDIS));
        let mut site = Self::open(turn, &Plan { has_cache: true, ..Self::devices(lanes) }).await;
        site.installation.configuration.tokens = vec![TOKEN.to_owned()];
        site
    }

    /// A site of devices with documents.
    pub async fn of_documents(turn: Turn<'g>, lanes: u32) -> Self {
        add(turn.stack, ServerSpec::search(SEARCH));
        let plan = Plan { has_documents: true, mapping_tables: 8, ..Self::devices(lanes) };
        Self::open(turn, &plan).await
    }

    /// A site with payment documents in source tables, a relation index and an API.
    pub async fn of_payments(turn: Turn<'g>, lanes: u32) -> Self {
        let plan =
            Plan { lanes, flux_partitions: FLUX_PARTITIONS, has_passwords_in_file: true, ..Plan::payments() };
        let mut site = Self::open(turn, &plan).await;
        site.installation.configuration.tokens = vec![TOKEN.to_owned()];
        site.installation.write_configuration();
        site
    }

    fn devices(lanes: u32) -> Plan {
        Plan {
            lanes,
            serial_tables: SERIAL_TABLES,
            mapping_tables: MAPPING_TABLES,
            has_passwords_in_file: true,
            ..Plan::serials()
        }
    }

    async fn open(turn: Turn<'g>, plan: &Plan) -> Self {
        let &[entity] = plan.entities.as_slice() else { panic!("a site has one entity") };
        let site = Self { installation: Installation::prepare(turn, plan).await, entity };
        site.source(format!(
            "SET SESSION sql_log_bin = 0;
             CREATE OR REPLACE USER '{SCAN_USER}'@'127.0.0.1' IDENTIFIED BY '';
             GRANT REPLICATION SLAVE ON *.* TO '{SCAN_USER}'@'127.0.0.1';
             CREATE OR REPLACE USER '{PLAIN_USER}'@'127.0.0.1' IDENTIFIED BY '{PLAIN_PASSWORD}';
             GRANT SELECT, REPLICATION SLAVE, BINLOG MONITOR ON *.* TO '{PLAIN_USER}'@'127.0.0.1'"
        ))
        .await;
        site
    }

    /// The projection to tables.
    pub fn projection(&self) -> &'static str {
        match self.entity {
            Entity::User => BIRTHDAY,
            Entity::SerialCode => MAPPING,
            Entity::Flux => RELATIONS,
        }
    }

    pub async fn source(&self, sql: impl AsRef<str>) {
        self.installation.execute(SOURCE, sql).await;
    }

    pub async fn target(&self, sql: impl AsRef<str>) {
        self.installation.execute(TARGET, sql).await;
    }

    pub fn config(&self) -> Config {
        Config::parse(&self.installation.configuration_text()).expect("it was made by us")
    }

    /// The configured source, read over TLS.
    pub fn source_config(&self) -> SourceConfig {
        self.config().sources.remove(0)
    }

    /// The source, read without TLS.
    pub fn plain_source_config(&self) -> SourceConfig {
        let config = self.config();
        let text = self.installation.configuration_text();
        let url = format!("mysql://{PLAIN_USER}:{PLAIN_PASSWORD}@{}", config.sources[0].url.address());
        let text = text.replace(&self.installation.server(SOURCE).url(), &url);
        let mut plain = Config::parse(&text).expect("only the account differs").sources.remove(0);
        plain.ca_file = None;
        plain
    }

    pub fn connector(&self, source: &SourceConfig) -> MysqlSource {
        let config = self.config();
        MysqlSource::new(source, &config.entities, Duration::from_secs(5))
    }

    /// Deletes the old stream and gives all streams a new prefix, so that the log is empty.
    pub async fn new_log(&mut self, name: &str) -> NatsLog {
        self.delete_log().await;
        self.installation.configuration.name = name.to_owned();
        self.installation.write_configuration();
        let config = self.config();
        let log = NatsLog::connect(&config.log, &config.name, &config.limits).await.expect("NATS answers");
        log.setup(&[SOURCE.to_owned()]).await.expect("the stream is made");
        log
    }

    pub async fn delete_log(&self) {
        let stream = format!("{}_{SOURCE}", self.installation.configuration.name);
        // The first call finds no old stream.
        let _ = self.installation.jetstream().await.delete_stream(stream).await;
    }

    /// Copies a database server's present data.
    pub fn keep(&self, server: &str) -> SavedData {
        let server = self.installation.server(server);
        let kept = SavedData { copy: server.folder().join("kept"), data: server.folder().join("db"), server };
        anabranch_tests::blocking(|| {
            kept.server.stop().expect("it ends");
            copy(&kept.data, &kept.copy);
            kept.server.restart().expect("it starts");
        });
        kept
    }

    pub fn pid(&self, server: &str) -> u32 {
        self.installation.server(server).pid().expect("it runs")
    }
}

fn add(stack: &Stack, server: ServerSpec) {
    if stack.server(&server.name).is_err() {
        anabranch_tests::blocking(|| stack.add(server)).expect("it starts");
    }
}

/// Copied data of a server, to begin with again and again: making and dropping 1,536 tables takes longer.
#[derive(Debug)]
pub struct SavedData {
    server: Arc<Server>,
    data: PathBuf,
    copy: PathBuf,
}

impl SavedData {
    pub fn restore(&self) {
        anabranch_tests::blocking(|| {
            self.server.kill().expect("it ends");
            copy(&self.copy, &self.data);
            self.server.restart().expect("it starts");
        });
    }
}

impl Drop for SavedData {
    fn drop(&mut self) {
        // A remaining copy costs only disk space.
        let _ = fs::remove_dir_all(&self.copy);
    }
}

/// Copies the folder `from` to `to`.
fn copy(from: &Path, to: &Path) {
    if to.exists() {
        fs::remove_dir_all(to).expect("it is ours");
    }
    fs::create_dir(to).expect("it is ours");
    for entry in fs::read_dir(from).expect("it is ours") {
        let entry = entry.expect("it is ours");
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        match entry.file_type().expect("it is ours").is_dir() {
            true => copy(&from, &to),
            false => _ = fs::copy(from, to).expect("there is room"),
        }
    }
}
