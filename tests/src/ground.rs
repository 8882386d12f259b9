//! Stacks that the tests of one target share: tests take turns, and each begins on a clean slate.
//!
//! No test cuts the power, so its servers wait for no disk: they make and drop tables several times faster. The servers
//! of benchmarks wait for it. Where `ANABRANCH_TEST_DATABASE` names a database, it replaces the common MariaDB.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use anabranch_demo::{Endpoint, FORGET_BINLOG, RedisServer};
use anabranch_stack::{DatabaseAccount, Kind, Options, ServerSpec, ServerStatus, Stack};
use async_nats::jetstream;
use futures::TryStreamExt;
use futures::future::join_all;
use tokio::sync::{Mutex, MutexGuard, Semaphore, SemaphorePermit};

use crate::search::Search;
use crate::versions::TestDatabase;
use crate::waiting::blocking;

/// Connections that drop tables. MariaDB needs two seconds for the 366 tables of a calendar on one connection, mostly
/// waiting, and a quarter of that on eight.
const DROPPERS: usize = 8;
/// Lets a table go before those that refer to it.
const NO_KEY_CHECKS: [&str; 1] = ["SET foreign_key_checks = 0"];

/// Servers of one test target, started at the first turn. Put it into a `static`: its servers end with the process.
#[derive(Debug)]
pub struct Ground {
    specs: fn() -> Vec<ServerSpec>,
    slots: [Slot; 2],
    /// One permit for each slot in use.
    permits: Semaphore,
    turns: AtomicU32,
    waits_for_disk: bool,
}

/// One stack, and the right to use it.
#[derive(Debug)]
struct Slot {
    stack: OnceLock<Stack>,
    turn: Mutex<()>,
}

impl Slot {
    const fn new() -> Self {
        Self { stack: OnceLock::new(), turn: Mutex::const_new(()) }
    }
}

/// The right to use the servers, until it is dropped.
#[derive(Debug)]
pub struct Turn<'g> {
    pub stack: &'g Stack,
    /// A prefix of streams and buckets that no other turn has.
    pub name: String,
    specs: Vec<ServerSpec>,
    // The slot is given back before the permit, so each holder of a permit finds a free slot.
    _turn: MutexGuard<'g, ()>,
    _permit: SemaphorePermit<'g>,
}

impl Ground {
    /// The standard servers: two sources, a target, NATS.
    pub const fn standard() -> Self {
        Self::of(|| Options::standard().servers)
    }

    /// The standard servers with MariaDB 11.8 as first source and target, where the machine can have it.
    pub const fn mariadb_11() -> Self {
        Self::of(|| {
            beside_another(ServerSpec::mariadb_11_source("source-a"), ServerSpec::mariadb_11_target("target"))
        })
    }

    /// The standard servers with MySQL as first source and target, where the machine can have it.
    pub const fn mysql() -> Self {
        Self::of(|| beside_another(ServerSpec::mysql_source("source-a"), ServerSpec::mysql_target("target")))
    }

    pub const fn of(specs: fn() -> Vec<ServerSpec>) -> Self {
        Self::with_stacks(1, false, specs)
    }

    /// Servers of these kinds that wait for the disk, as those of users do.
    pub const fn on_disk(specs: fn() -> Vec<ServerSpec>) -> Self {
        Self::with_stacks(1, true, specs)
    }

    /// Two stacks of these servers, so that two tests run at the same time: most of a test is waiting.
    pub const fn two_of(specs: fn() -> Vec<ServerSpec>) -> Self {
        Self::with_stacks(2, false, specs)
    }

    const fn with_stacks(stacks: usize, waits_for_disk: bool, specs: fn() -> Vec<ServerSpec>) -> Self {
        let slots = [Slot::new(), Slot::new()];
        assert!(stacks <= slots.len(), "each permit has a slot");
        Self { specs, slots, permits: Semaphore::const_new(stacks), turns: AtomicU32::new(0), waits_for_disk }
    }

    /// Waits for the turn and cleans the servers: no user tables, no derived tables, no binlog history.
    pub async fn turn(&self) -> Turn<'_> {
        self.turn_if_there().await.expect("the machine has the servers")
    }

    /// Waits for the turn on servers that a machine may not have (MySQL); `None` when it has none.
    pub async fn turn_if_there(&self) -> Option<Turn<'_>> {
        let permit = self.permits.acquire().await.expect("nothing closes it");
        let (slot, turn) = self
            .slots
            .iter()
            .find_map(|slot| slot.turn.try_lock().ok().map(|turn| (slot, turn)))
            .expect("there are as many slots as permits");
        let database = TestDatabase::chosen();
        let of_this = |spec| match self.waits_for_disk {
            true => database.server(spec),
            false => database.server(spec).without_fsync(),
        };
        let specs: Vec<_> = (self.specs)().into_iter().map(of_this).collect();
        let is_used = slot.stack.get().is_some();
        let stack = match slot.stack.get() {
            Some(stack) => stack,
            None => {
                let options = Options { instance: None, servers: specs.clone() };
                let stack = blocking(|| Stack::start_if_there(options)).expect("the servers start")?;
                slot.stack.get_or_init(|| stack)
            }
        };
        let number = self.turns.fetch_add(1, Ordering::Relaxed);
        let turn = Turn { stack, name: format!("turn-{number}"), specs, _turn: turn, _permit: permit };
        if is_used {
            turn.clean().await;
        }
        Some(turn)
    }
}

fn beside_another(source: ServerSpec, target: ServerSpec) -> Vec<ServerSpec> {
    vec![source, ServerSpec::mariadb_source("source-b"), target, ServerSpec::nats("nats")]
}

/// Drops tables one after another: full tables take the disk seconds, and a statement has a time limit. A replica may
/// have dropped them already, as its source did.
///
/// Tables that foreign keys relate are locked together on MySQL, so two connections can wait for each other. The table
/// of a conflict stays, and goes with its database.
async fn drop_tables(endpoint: &Endpoint, tables: &[String]) {
    let mut connection = endpoint.connect(&NO_KEY_CHECKS).await.expect("it answers");
    for table in tables {
        let sql = format!("DROP TABLE IF EXISTS {table}");
        match connection.execute("clean up", sql).await {
            Err(error) if error.is_lock_conflict() => {}
            dropped => dropped.expect("an administrator may"),
        }
    }
}

impl Turn<'_> {
    /// Names of the servers with this account.
    pub fn servers(&self, account: DatabaseAccount) -> Vec<String> {
        let is_wanted = |spec: &&ServerSpec| match &spec.kind {
            Kind::MariaDb(_, server) | Kind::MySql(server) => server.account == account,
            Kind::Nats(_) | Kind::Redis(_) | Kind::Search(_) | Kind::Prometheus(_) => false,
        };
        self.specs.iter().filter(is_wanted).map(|spec| spec.name.clone()).collect()
    }

    /// JetStream, to inspect and to damage.
    pub async fn jetstream(&self) -> jetstream::Context {
        let server = self.stack.server("nats").expect("a server of the stack");
        let client = async_nats::ConnectOptions::new()
            .user_and_password(server.user().to_owned(), server.password().to_owned())
            .add_root_certificates(self.stack.ca_file())
            .require_tls(true)
            .connect(format!("tls://127.0.0.1:{}", server.port()));
        jetstream::new(client.await.expect("NATS answers"))
    }

    /// Cleans the servers; a failed test may have left them dead or paused.
    async fn clean(&self) {
        for server in self.stack.servers() {
            match server.status() {
                ServerStatus::Running => {}
                ServerStatus::Paused => server.resume().expect("it runs"),
                ServerStatus::Stopped => blocking(|| server.restart()).expect("it starts"),
            }
        }
        for spec in &self.specs {
            match spec.kind {
                Kind::Redis(_) => self.clean_redis(&spec.name).await,
                Kind::Search(_) => Search::of(self.stack).clear().await,
                Kind::MariaDb(..) | Kind::MySql(_) | Kind::Nats(_) | Kind::Prometheus(_) => {}
            }
        }
        let jetstream = self.jetstream().await;
        let streams: Vec<String> = jetstream.stream_names().try_collect().await.expect("NATS answers");
        for stream in streams {
            jetstream.delete_stream(&stream).await.expect("NATS answers");
        }
        for account in [DatabaseAccount::Capture, DatabaseAccount::Apply] {
            for name in self.servers(account) {
                self.clean_database(&name).await;
            }
        }
    }

    async fn clean_database(&self, name: &str) {
        let endpoint = Endpoint::admin(self.stack, name).expect("a server of the stack");
        let mut connection = endpoint.connect(&NO_KEY_CHECKS).await.expect("it answers");
        let own = "('mysql', 'information_schema', 'performance_schema', 'sys')";
        let tables = format!(
            "SELECT CONCAT('`', table_schema, '`.`', table_name, '`') FROM information_schema.tables \
             WHERE table_type = 'BASE TABLE' AND table_schema NOT IN {own}"
        );
        let tables: Vec<String> = connection.rows("list tables", tables).await.expect("it answers");
        let parts = tables.chunks(tables.len().div_ceil(DROPPERS).max(1));
        join_all(parts.map(|part| drop_tables(&endpoint, part))).await;
        let databases =
            format!("SELECT schema_name FROM information_schema.schemata WHERE schema_name NOT IN {own}");
        let databases: Vec<String> = connection.rows("list databases", databases).await.expect("it answers");
        for database in databases {
            let sql = format!("DROP DATABASE IF EXISTS `{database}`");
            connection.execute("clean up", sql).await.expect("an administrator may");
        }
        let sql = "SET GLOBAL binlog_format = ROW; SET GLOBAL binlog_row_image = FULL;
             SET GLOBAL binlog_row_metadata = FULL;"
            .to_owned();
        connection.execute("clean up", sql + FORGET_BINLOG).await.expect("an administrator may");
    }

    async fn clean_redis(&self, name: &str) {
        let server = RedisServer::admin(self.stack, name).expect("a server of the stack");
        let mut connection = server.connect().await.expect("it answers");
        connection.one::<()>("clean up", &redis::cmd("FLUSHALL")).await.expect("an administrator may");
    }
}
