//! A MariaDB or MySQL server to capture, and streams of its binlog whose changes are kept as short text.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use anabranch_connectors::mysql::connection::async_options;
use anabranch_connectors::mysql::source::{MysqlSource, MysqlStream};
use anabranch_demo::FORGET_BINLOG;
use anabranch_pipeline::config::{EntityConfig, Removal, ServerUrl, SourceConfig, UnseenChanges};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{BinlogStart, ChangeSource, READER_REPLICA_SLOT, SourceConnector};
use anabranch_pipeline::records::{Batch, BatchBuilder};
use anabranch_schemas::change::{Action, Entity, Value};
use anabranch_schemas::codec;
use anabranch_schemas::lsn::{Lsn, ResumePoint};
use anabranch_schemas::shard::TablePattern;
use anabranch_schemas::timeline::Timeline;
use anabranch_stack::{Options, Server, ServerSpec, Stack};
use anabranch_tests::TestDatabase;
use mysql_async::prelude::Queryable;

use crate::nats::blocking;

/// Longest wait for a condition, far above the time of a step on a busy machine.
pub const WAIT_MAX: Duration = Duration::from_secs(60);
pub const BATCH_BYTES: usize = 64 * 1024;
const BATCHES_MAX: usize = 100_000;

/// A captured server of the stack.
pub struct Database {
    stack: Arc<Stack>,
    server: Arc<Server>,
    /// The prefix of this test's databases, which the account's grants cover.
    pub prefix: String,
    lent: Option<DatabaseKind>,
}

/// The kinds of servers to test on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseKind {
    MariaDb,
    /// MariaDB 11.8, which not every machine can have.
    MariaDb11,
    /// MySQL, which not every machine can have.
    MySql,
}

impl DatabaseKind {
    /// No test here cuts the power, so the servers do not wait for the disk.
    pub fn source(self) -> ServerSpec {
        let spec = match self {
            Self::MariaDb => chosen_mariadb(ServerSpec::mariadb_source("source")),
            Self::MariaDb11 => ServerSpec::mariadb_11_source("source"),
            Self::MySql => ServerSpec::mysql_source("source"),
        };
        spec.without_fsync()
    }

    pub fn target(self) -> ServerSpec {
        let spec = match self {
            Self::MariaDb => TestDatabase::chosen().server(ServerSpec::mariadb_target("target-a")),
            Self::MariaDb11 => ServerSpec::mariadb_11_target("target-a"),
            Self::MySql => ServerSpec::mysql_target("target-a"),
        };
        spec.without_fsync()
    }
}

/// Servers that no test uses now, kept as a start takes seconds. They end with the process.
static LENT: Mutex<Vec<(DatabaseKind, Arc<Stack>)>> = Mutex::new(Vec::new());

impl Drop for Database {
    fn drop(&mut self) {
        // A failed test may leave a server in any state.
        if let Some(kind) = self.lent.filter(|_| !std::thread::panicking()) {
            LENT.lock().unwrap().push((kind, Arc::clone(&self.stack)));
        }
    }
}

impl Database {
    /// The server that tests share while at least one of them runs. They must not change its settings.
    pub fn shared() -> Self {
        static SHARED: Mutex<Weak<Stack>> = Mutex::new(Weak::new());
        blocking(|| {
            let mut shared = SHARED.lock().unwrap();
            let stack = shared.upgrade().unwrap_or_else(|| start(&[]));
            *shared = Arc::downgrade(&stack);
            Self::of(stack)
        })
    }

    /// A server of the test's own, with these flags.
    pub fn with_flags(flags: &[&str]) -> Self {
        blocking(|| Self::of(start(flags)))
    }

    /// The MySQL server that tests share; `None` where the machine cannot have one.
    pub fn mysql() -> Option<Self> {
        static SHARED: Mutex<Weak<Stack>> = Mutex::new(Weak::new());
        blocking(|| {
            let mut shared = SHARED.lock().unwrap();
            let stack = match shared.upgrade() {
                Some(stack) => stack,
                None => start_if_there(DatabaseKind::MySql.source())?,
            };
            *shared = Arc::downgrade(&stack);
            Some(Self::of(stack))
        })
    }

    /// A server that earlier tests had and no other test uses now; its binlog is empty. Its settings must not be
    /// changed. `None` where the machine cannot have one.
    pub async fn lent(kind: DatabaseKind) -> Option<Self> {
        let kept = {
            let mut lent = LENT.lock().unwrap();
            let place = lent.iter().position(|(kept, _)| *kept == kind);
            place.map(|place| lent.swap_remove(place).1)
        };
        let mut database = match kept {
            Some(stack) => Self::of(stack),
            None => Self::alone(kind)?,
        };
        database.run(&[FORGET_BINLOG]).await;
        database.lent = Some(kind);
        Some(database)
    }

    /// A server of the test's own; `None` where the machine cannot have one.
    pub fn alone(kind: DatabaseKind) -> Option<Self> {
        match kind {
            DatabaseKind::MariaDb => Some(Self::with_flags(&[])),
            DatabaseKind::MariaDb11 | DatabaseKind::MySql => {
                blocking(|| start_if_there(kind.source()).map(Self::of))
            }
        }
    }

    /// A MySQL server of the test's own.
    pub fn mysql_alone() -> Option<Self> {
        Self::alone(DatabaseKind::MySql)
    }

    fn of(stack: Arc<Stack>) -> Self {
        let server = stack.server("source").unwrap();
        Self::of_server(stack, server, &next_prefix())
    }

    pub fn of_server(stack: Arc<Stack>, server: Arc<Server>, prefix: &str) -> Self {
        Self { stack, server, prefix: prefix.to_owned(), lent: None }
    }

    /// The kind that it is lent as.
    pub fn lent_as(&self) -> Option<DatabaseKind> {
        self.lent
    }

    pub fn stack(&self) -> &Arc<Stack> {
        &self.stack
    }

    pub fn server(&self) -> &Server {
        &self.server
    }

    pub fn ca_file(&self) -> PathBuf {
        self.stack.ca_file()
    }

    pub async fn admin(&self) -> mysql_async::Conn {
        let url = ServerUrl::try_from(self.server.admin_url()).unwrap();
        let options = async_options(&url, Some(&self.ca_file())).max_allowed_packet(Some(1 << 30));
        mysql_async::Conn::new(options).await.unwrap()
    }

    /// Runs statements as administrator on one connection; `$` becomes the test's database prefix.
    pub async fn run(&self, statements: &[&str]) {
        let mut admin = self.admin().await;
        for statement in statements {
            let statement = statement.replace('$', &self.prefix);
            admin.query_drop(&statement).await.unwrap_or_else(|error| panic!("{statement:.200}: {error}"));
        }
    }

    /// Asks for one value as text.
    pub async fn ask(&self, query: &str) -> String {
        self.admin().await.query_first(query).await.unwrap().unwrap()
    }

    /// Makes database 0 with tables 0 and 1, and an `other` table that is not captured.
    pub async fn with_tables(self) -> Self {
        self.run(&[
            "CREATE DATABASE $0",
            "CREATE TABLE $0.t0 (user_id BIGINT UNSIGNED PRIMARY KEY, name VARCHAR(90), birthday DATE)",
            "CREATE TABLE $0.t1 LIKE $0.t0",
            "CREATE TABLE $0.other (id INT PRIMARY KEY, pad LONGTEXT)",
        ])
        .await;
        self
    }

    pub fn entity(&self) -> EntityConfig {
        EntityConfig {
            entity: Entity::User,
            tables: TablePattern::parse(&format!("{}{{db}}.t{{table}}", self.prefix)).unwrap(),
            columns: vec!["user_id".into(), "birthday".into()],
            level: None,
            rule: None,
            sharding_column: None,
            changed_at_column: None,
            unseen_changes: UnseenChanges::default(),
            removal: Removal::default(),
            retention_marker: None,
        }
    }

    pub fn config(&self) -> SourceConfig {
        static NEXT: AtomicU32 = AtomicU32::new(4_000_000);
        SourceConfig {
            name: "source-a".to_owned(),
            url: ServerUrl::try_from(self.server.url()).unwrap(),
            ca_file: Some(self.ca_file()),
            replica_server_id: NonZeroU32::new(NEXT.fetch_add(1, Ordering::Relaxed)).unwrap(),
            start: BinlogStart::Earliest,
            replica: None,
            generation: 0,
            entities: vec![Entity::User],
            flux: None,
            retention_min: Duration::ZERO,
            spill_dir: std::env::temp_dir(),
        }
    }

    pub fn source(&self) -> MysqlSource {
        MysqlSource::new(&self.config(), &[self.entity()], Duration::from_secs(2))
    }

    pub async fn read(&self, entry: BinlogStart) -> SourceProbe {
        SourceProbe::open(&self.source(), entry).await.unwrap()
    }

    /// Whether the server is MariaDB 11.8.
    pub fn is_mariadb_11(&self) -> bool {
        self.lent == Some(DatabaseKind::MariaDb11)
    }

    pub async fn read_latest(&self) -> SourceProbe {
        self.read(BinlogStart::Latest).await
    }

    /// Opens a stream with `unseen_changes = "stop"`: it stops where rows change unseen.
    pub async fn read_latest_that_stops(&self) -> SourceProbe {
        let entity = EntityConfig { unseen_changes: UnseenChanges::Stop, ..self.entity() };
        let source = MysqlSource::new(&self.config(), &[entity], Duration::from_secs(2));
        SourceProbe::open(&source, BinlogStart::Latest).await.unwrap()
    }

    /// The source with `removal = "retain"`.
    pub fn source_that_retains(&self, unseen_changes: UnseenChanges) -> MysqlSource {
        let entity = EntityConfig { removal: Removal::Retain, unseen_changes, ..self.entity() };
        MysqlSource::new(&self.config(), &[entity], Duration::from_secs(2))
    }

    /// Reads again from after each batch: sent changes and repeated ones together are the whole, in order.
    pub async fn assert_resumes_behind_each_batch(&self, probe: &SourceProbe) {
        for index in 0..probe.batches.len() {
            let sent = probe.batches[index].position;
            let kept = probe.seen[..probe.seen_with[index]].iter().filter(|seen| seen.lsn <= sent);
            let missing = probe.seen.iter().filter(|seen| seen.lsn > sent).count();
            let mut again = self.read(probe.entry_after(index)).await;
            if missing > 0 {
                again.until_seen(missing).await;
            }
            let whole: Vec<&Seen> = kept.chain(&again.seen).collect();
            assert!(whole.into_iter().eq(&probe.seen), "behind batch {index} at {sent}");
        }
    }
}

fn next_prefix() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("user_test{}x", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Starts a server; `None` where the machine cannot have it.
pub fn start_if_there(server: ServerSpec) -> Option<Arc<Stack>> {
    Stack::start_if_there(Options::empty().with(server)).unwrap().map(Arc::new)
}

fn start(flags: &[&str]) -> Arc<Stack> {
    let spec = flags
        .iter()
        .fold(ServerSpec::mariadb_source("source").without_fsync(), |spec, flag| spec.flag(*flag));
    Arc::new(Stack::start(Options::empty().with(chosen_mariadb(spec))).unwrap())
}

/// A source of the chosen MariaDB. These tests expect MariaDB's binlog; the tests of MySQL's binlog choose their
/// servers themselves.
fn chosen_mariadb(spec: ServerSpec) -> ServerSpec {
    match TestDatabase::chosen() {
        TestDatabase::MySql => spec,
        database => database.server(spec),
    }
}

/// A change as the log holds it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    pub lsn: Lsn,
    /// The change as text, such as `t0 + 1 2000-02-29`: table, action, and the row after it (an update has both rows).
    pub text: String,
}

/// An open stream and everything that it has yielded.
pub struct SourceProbe<S = MysqlStream> {
    pub stream: S,
    builder: BatchBuilder,
    pub batches: Vec<Batch>,
    pub seen: Vec<Seen>,
    /// The number of changes that had been seen after each batch.
    pub seen_with: Vec<usize>,
}

impl<S: ChangeSource> SourceProbe<S> {
    pub async fn open(source: &impl SourceConnector<Source = S>, entry: BinlogStart) -> Result<Self, Fault> {
        Self::open_with(source, entry, BATCH_BYTES).await
    }

    pub async fn open_with(
        source: &impl SourceConnector<Source = S>,
        entry: BinlogStart,
        batch_bytes: usize,
    ) -> Result<Self, Fault> {
        Self::of(source, entry, batch_bytes, READER_REPLICA_SLOT, None).await
    }

    pub async fn open_replica_slot(
        source: &impl SourceConnector<Source = S>,
        entry: BinlogStart,
        replica_slot: u32,
    ) -> Result<Self, Fault> {
        Self::of(source, entry, BATCH_BYTES, replica_slot, None).await
    }

    /// Opens a stream in the epoch after `latest`.
    pub async fn open_after(
        source: &impl SourceConnector<Source = S>,
        entry: BinlogStart,
        latest: Timeline,
        batch_bytes: usize,
    ) -> Result<Self, Fault> {
        Self::of(source, entry, batch_bytes, READER_REPLICA_SLOT, Some(latest)).await
    }

    async fn of(
        source: &impl SourceConnector<Source = S>,
        entry: BinlogStart,
        batch_bytes: usize,
        replica_slot: u32,
        latest: Option<Timeline>,
    ) -> Result<Self, Fault> {
        let (position, known) = match &entry {
            BinlogStart::Resume { position, server, .. } => (*position, Timeline::of(*position, server)),
            _ => (Lsn::ZERO, Timeline::default()),
        };
        let latest = latest.unwrap_or(known);
        let builder = BatchBuilder::new(batch_bytes, position, ResumePoint::default());
        Ok(Self {
            stream: source.open(entry, &latest, replica_slot).await?,
            builder,
            batches: Vec::new(),
            seen: Vec::new(),
            seen_with: Vec::new(),
        })
    }

    /// Calls `fill` once and keeps the batch.
    pub async fn step(&mut self) -> Result<(), Fault> {
        let filled = self.stream.fill(&mut self.builder).await;
        let batch = self.builder.take();
        // A stream that yields without end would fill the machine's memory.
        assert!(self.batches.len() < BATCHES_MAX, "{} batches", self.batches.len());
        let mut decoder = codec::decode(&batch.payload).unwrap();
        while let Some(change) = decoder.next().unwrap() {
            let text = format!("{} {}", change.table.table, action_text(&change.action));
            self.seen.push(Seen { lsn: change.lsn, text });
        }
        self.batches.push(batch);
        self.seen_with.push(self.seen.len());
        filled.map(|_| ())
    }

    /// Reads until the condition holds; fails after [`WAIT_MAX`].
    pub async fn until(&mut self, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        let probe = async {
            while !condition(self) {
                self.step().await.unwrap();
            }
        };
        if tokio::time::timeout(WAIT_MAX, probe).await.is_err() {
            let last: Vec<_> = self.seen.iter().rev().take(5).collect();
            panic!("never came: {what}; {} changes, last {last:?}", self.seen.len());
        }
    }

    pub async fn until_seen(&mut self, count: usize) {
        self.until(&format!("{count} changes"), |probe| probe.seen.len() >= count).await;
        assert_eq!(self.seen.len(), count, "{:?}", self.seen.iter().rev().take(5).collect::<Vec<_>>());
    }

    /// Reads to the server's present end.
    pub async fn until_end(&mut self, database: &Database)
    where
        MysqlSource: SourceConnector<Source = S>,
    {
        self.until_end_of(&database.source()).await;
    }

    /// Reads a stream in the first epoch to the server's present end.
    pub async fn until_end_of(&mut self, source: &impl SourceConnector<Source = S>) {
        let head = source.head().await.unwrap();
        self.until(&format!("position {head}"), |probe| probe.position() >= head).await;
    }

    /// Reads until a fault of this code comes, and returns it.
    pub async fn until_fault(&mut self, code: Code) -> Fault {
        let probe = async {
            loop {
                if let Err(fault) = self.step().await {
                    return fault;
                }
            }
        };
        let fault = tokio::time::timeout(WAIT_MAX, probe).await.expect("no fault came");
        assert_eq!(fault.code(), code, "{fault}");
        fault
    }

    pub fn position(&self) -> Lsn {
        self.builder.position()
    }

    /// The number of captured tables, since the last call, that a statement was to write and has no rows of.
    pub fn take_unseen(&mut self) -> u64 {
        self.builder.take_unseen()
    }

    pub fn resume(&self) -> ResumePoint {
        self.builder.resume().clone()
    }

    /// The entry at which a process continues after a crash right after batch `index`.
    pub fn entry_after(&self, index: usize) -> BinlogStart {
        let batch = &self.batches[index];
        BinlogStart::Resume {
            resume: batch.resume.clone(),
            position: batch.position,
            server: self.stream.server().clone(),
        }
    }

    pub fn texts(&self) -> Vec<&str> {
        self.seen.iter().map(|seen| seen.text.as_str()).collect()
    }
}

fn action_text(action: &Action<'_>) -> String {
    match action {
        Action::Insert { after } => format!("+ {}", row_text(after)),
        Action::Update { before, after } => format!("{} ~ {}", row_text(before), row_text(after)),
        Action::Delete { before } => format!("- {}", row_text(before)),
        Action::Withdraw => "withdrawn".to_owned(),
        Action::Reread => "again".to_owned(),
        Action::Retire => "retired".to_owned(),
    }
}

pub fn row_text(row: &[Value<'_>]) -> String {
    row.iter().map(value_text).collect::<Vec<_>>().join(" ")
}

fn value_text(value: &Value<'_>) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        Value::Int(number) => number.to_string(),
        Value::UInt(number) => number.to_string(),
        Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Date { year, month, day } => format!("{year:04}-{month:02}-{day:02}"),
        other => format!("{other:?}"),
    }
}
