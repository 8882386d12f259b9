//! The parts of a stack as data: names, kinds and settings of servers.
//!
//! A new kind of server needs one more variant of [`Kind`] and one file with the same functions as `redis.rs`.

use serde::{Deserialize, Serialize};

use crate::error::{Result, StackError};

/// Name of the MySQL programs in errors.
pub(crate) const MYSQL: &str = "MySQL";
/// Name of the MariaDB 11.8 programs in errors.
pub(crate) const MARIADB_11: &str = "MariaDB 11.8";
const NATS_STORE_BYTES: u64 = 10 * 1024 * 1024 * 1024;
/// Heap for some hundred thousand documents; 256 MiB also start.
const SEARCH_HEAP_MIB: u32 = 512;
const NAME_CHARACTERS_MAXIMUM: usize = 40;

/// The stack to start.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Name of the instance; without one the library makes a unique name.
    pub instance: Option<String>,
    /// Servers to start together. More can be added to a running stack.
    pub servers: Vec<ServerSpec>,
}

impl Options {
    /// Specifies two captured MariaDB servers, one target and one NATS node with JetStream.
    pub fn standard() -> Self {
        Self {
            instance: None,
            servers: vec![
                ServerSpec::mariadb_source("source-a"),
                ServerSpec::mariadb_source("source-b"),
                ServerSpec::mariadb_target("target"),
                ServerSpec::nats("nats"),
            ],
        }
    }

    /// Specifies the standard servers with MySQL in place of MariaDB.
    pub fn mysql() -> Self {
        Self {
            instance: None,
            servers: vec![
                ServerSpec::mysql_source("source-a"),
                ServerSpec::mysql_source("source-b"),
                ServerSpec::mysql_target("target"),
                ServerSpec::nats("nats"),
            ],
        }
    }

    /// Specifies the standard servers with MariaDB 11.8.
    pub fn mariadb_11() -> Self {
        Self {
            instance: None,
            servers: vec![
                ServerSpec::mariadb_11_source("source-a"),
                ServerSpec::mariadb_11_source("source-b"),
                ServerSpec::mariadb_11_target("target"),
                ServerSpec::nats("nats"),
            ],
        }
    }

    /// Specifies all servers that every machine can have: the standard ones, Redis and an OpenSearch node.
    pub fn everything() -> Self {
        Self::standard().with(ServerSpec::redis("redis")).with(ServerSpec::search("search"))
    }

    /// Specifies a stack without servers.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Names the instance, so that `cargo stack --instance NAME` can find it.
    #[must_use]
    pub fn named(mut self, instance: impl Into<String>) -> Self {
        self.instance = Some(instance.into());
        self
    }

    /// Adds a server.
    #[must_use]
    pub fn with(mut self, server: ServerSpec) -> Self {
        self.servers.push(server);
        self
    }
}

/// One server of a stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSpec {
    /// Unique within the stack; lower case letters, digits and `-`.
    pub name: String,
    pub kind: Kind,
    /// Command line flags appended to the standard ones at every start; a later flag wins.
    pub flags: Vec<String>,
    /// Its wall clock can be stepped ([`crate::Server::clock`]); NATS ignores this.
    #[serde(default)]
    pub has_own_clock: bool,
    /// It never waits until its writes are on the disk: a power cut loses them, the end of its process does not. An
    /// OpenSearch node also does without its optimising compiler.
    #[serde(default)]
    pub skips_fsync: bool,
    /// Its port has no TLS; only for NATS, Redis, OpenSearch and Prometheus. A database offers both on one port.
    #[serde(default)]
    pub is_plain: bool,
}

/// The closed list of servers that the stack can start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    MariaDb(MariaDbVersion, Database),
    MySql(Database),
    Nats(Nats),
    Redis(Redis),
    Search(Search),
    Prometheus(Prometheus),
}

/// The MariaDB programs to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MariaDbVersion {
    /// 10.6 or newer from PATH, otherwise the distribution's.
    Common,
    /// 11.8 from PATH, otherwise from the packages of Debian 13: its binlog differs from that of earlier servers.
    Eleven,
}

/// Settings of a MariaDB or MySQL server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Database {
    pub account: DatabaseAccount,
    pub buffer_pool_mib: u32,
}

/// The product's account on a MariaDB or MySQL server; its grants are the files in `deploy/grants`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DatabaseAccount {
    /// `anabranch_capture`, as on a captured source.
    Capture,
    /// `anabranch_apply`, as on a server that holds derived tables.
    Apply,
}

/// Settings of a NATS server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nats {
    pub version: NatsVersion,
    pub jetstream: bool,
    /// Bytes that all its streams together may take.
    pub store_bytes: u64,
    /// Lines appended to the configuration file.
    pub configuration: Vec<String>,
    /// Name of the installation whose users it has, as `deploy/grants/nats-accounts.conf` documents them, on encrypted
    /// streams; `None` = one user who may do everything.
    #[serde(default)]
    pub accounts_of: Option<String>,
}

/// The NATS program to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NatsVersion {
    /// 2.15 or newer from PATH, otherwise the pinned 2.15.
    Current,
    /// 2.9 of Debian 12, which is too old for Anabranch; for tests of the refusal.
    Old,
}

/// Settings of a Redis server. Its further settings are flags, such as `--maxmemory 2mb`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redis {
    pub role: RedisRole,
    /// Passwords that it shares with others; `None` = it gets its own.
    pub passwords: Option<Passwords>,
}

/// Role of a Redis server among others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RedisRole {
    Standalone,
    /// A replica of the server on this port of 127.0.0.1, from its start on.
    Replica {
        of: u16,
    },
    ClusterNode,
}

/// The passwords of the product's account and of the administrator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passwords {
    pub user: String,
    pub admin: String,
}

/// Settings of an OpenSearch node. Its further settings are flags, such as `thread_pool.write.queue_size=1`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Search {
    pub heap_mib: u32,
}

/// Settings of a Prometheus server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prometheus {
    /// The port of 127.0.0.1 on which a daemon shows `/metrics`.
    pub scraped_port: u16,
    /// Time between two scrapes, and between two evaluations of the rules.
    pub scrape_seconds: u32,
    /// Text of the rules in place of the documented ones.
    #[serde(default)]
    pub rules: Option<String>,
}

impl Database {
    const SOURCE: Self = Self { account: DatabaseAccount::Capture, buffer_pool_mib: 64 };
    const TARGET: Self = Self { account: DatabaseAccount::Apply, buffer_pool_mib: 256 };
}

impl ServerSpec {
    fn of(name: impl Into<String>, kind: Kind) -> Self {
        Self {
            name: name.into(),
            kind,
            flags: Vec::new(),
            has_own_clock: false,
            skips_fsync: false,
            is_plain: false,
        }
    }

    /// Returns the name, as errors show it, of programs that not every machine can have.
    pub(crate) fn optional_programs(&self) -> Option<&'static str> {
        match self.kind {
            Kind::MariaDb(MariaDbVersion::Eleven, _) => Some(MARIADB_11),
            Kind::MySql(_) => Some(MYSQL),
            Kind::MariaDb(MariaDbVersion::Common, _)
            | Kind::Nats(_)
            | Kind::Redis(_)
            | Kind::Search(_)
            | Kind::Prometheus(_) => None,
        }
    }

    /// Specifies a captured MariaDB server: row binlog with full metadata, account `anabranch_capture`.
    pub fn mariadb_source(name: impl Into<String>) -> Self {
        Self::of(name, Kind::MariaDb(MariaDbVersion::Common, Database::SOURCE))
    }

    /// Specifies a MariaDB server for derived tables, account `anabranch_apply`.
    pub fn mariadb_target(name: impl Into<String>) -> Self {
        Self::of(name, Kind::MariaDb(MariaDbVersion::Common, Database::TARGET))
    }

    /// Specifies a source as [`ServerSpec::mariadb_source`] does, with MariaDB 11.8.
    pub fn mariadb_11_source(name: impl Into<String>) -> Self {
        Self::of(name, Kind::MariaDb(MariaDbVersion::Eleven, Database::SOURCE))
    }

    /// Specifies a target as [`ServerSpec::mariadb_target`] does, with MariaDB 11.8.
    pub fn mariadb_11_target(name: impl Into<String>) -> Self {
        Self::of(name, Kind::MariaDb(MariaDbVersion::Eleven, Database::TARGET))
    }

    /// Specifies a captured MySQL server: row binlog with full metadata and GTIDs, account `anabranch_capture`.
    pub fn mysql_source(name: impl Into<String>) -> Self {
        Self::of(name, Kind::MySql(Database::SOURCE))
    }

    /// Specifies a MySQL server for derived tables, account `anabranch_apply`.
    pub fn mysql_target(name: impl Into<String>) -> Self {
        Self::of(name, Kind::MySql(Database::TARGET))
    }

    /// Specifies a NATS node with JetStream that syncs every write.
    pub fn nats(name: impl Into<String>) -> Self {
        let kind = Nats {
            version: NatsVersion::Current,
            jetstream: true,
            store_bytes: NATS_STORE_BYTES,
            configuration: Vec::new(),
            accounts_of: None,
        };
        Self::of(name, Kind::Nats(kind))
    }

    /// Specifies a NATS node like [`ServerSpec::nats`] with the documented users of an installation of this name. It
    /// encrypts what it stores.
    pub fn nats_with_accounts(name: impl Into<String>, installation: &str) -> Self {
        Self::nats(name).with_nats(|nats| nats.accounts_of = Some(installation.to_owned()))
    }

    /// Specifies a NATS node without JetStream.
    pub fn nats_without_jetstream(name: impl Into<String>) -> Self {
        Self::nats(name).with_nats(|nats| nats.jetstream = false)
    }

    /// Specifies a NATS node of a version that Anabranch refuses.
    pub fn nats_old(name: impl Into<String>) -> Self {
        Self::nats(name).with_nats(|nats| nats.version = NatsVersion::Old)
    }

    /// Specifies a Redis server that appends every write to its file.
    pub fn redis(name: impl Into<String>) -> Self {
        Self::redis_in(name, RedisRole::Standalone, None)
    }

    pub(crate) fn redis_in(name: impl Into<String>, role: RedisRole, passwords: Option<Passwords>) -> Self {
        Self::of(name, Kind::Redis(Redis { role, passwords }))
    }

    /// Specifies an OpenSearch node.
    pub fn search(name: impl Into<String>) -> Self {
        let kind = Kind::Search(Search { heap_mib: SEARCH_HEAP_MIB });
        Self::of(name, kind)
    }

    /// Specifies a Prometheus server that scrapes the daemon on this port of 127.0.0.1 each second.
    pub fn prometheus(name: impl Into<String>, scraped_port: u16) -> Self {
        let kind = Prometheus { scraped_port, scrape_seconds: 1, rules: None };
        Self::of(name, Kind::Prometheus(kind)).plain()
    }

    /// Sets the time between two scrapes of a Prometheus server, and its rules in place of the documented ones.
    #[must_use]
    pub fn scraping(mut self, every_seconds: u32, rules: Option<String>) -> Self {
        if let Kind::Prometheus(prometheus) = &mut self.kind {
            (prometheus.scrape_seconds, prometheus.rules) = (every_seconds, rules);
        }
        self
    }

    /// Limits the bytes of all streams of a NATS node together.
    #[must_use]
    pub fn store_bytes(self, bytes: u64) -> Self {
        self.with_nats(|nats| nats.store_bytes = bytes)
    }

    fn with_nats(mut self, change: impl FnOnce(&mut Nats)) -> Self {
        if let Kind::Nats(nats) = &mut self.kind {
            change(nats);
        }
        self
    }

    /// Sets the heap of an OpenSearch node.
    #[must_use]
    pub fn heap_mib(mut self, mebibytes: u32) -> Self {
        if let Kind::Search(search) = &mut self.kind {
            search.heap_mib = mebibytes;
        }
        self
    }

    /// Gives the server a wall clock that can be stepped.
    #[must_use]
    pub fn with_own_clock(mut self) -> Self {
        self.has_own_clock = true;
        self
    }

    /// Makes the server fit a short test: it skips fsync if the machine can have `libeatmydata`. NATS still syncs,
    /// since it calls the kernel itself. An OpenSearch node starts in half the time and is slower under a long load.
    #[must_use]
    pub fn without_fsync(mut self) -> Self {
        self.skips_fsync = true;
        self
    }

    /// Makes the server serve without TLS.
    #[must_use]
    pub fn plain(mut self) -> Self {
        self.is_plain = true;
        self
    }

    /// Appends a command line flag, such as `--binlog-format=STATEMENT`; for OpenSearch a setting, such as
    /// `thread_pool.write.size=1`.
    #[must_use]
    pub fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }
}

/// Checks a name: it becomes a folder, an environment variable and an identifier in configuration files.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.is_empty() || name.len() > NAME_CHARACTERS_MAXIMUM || !name.bytes().all(allowed) {
        return Err(StackError::NameInvalid { name: name.to_owned() });
    }
    Ok(())
}
