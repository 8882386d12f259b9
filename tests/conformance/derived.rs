//! A place for derived tables on real MariaDB and MySQL servers, one set of databases for each test.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use anabranch_connectors::mysql::connection::async_options;
use anabranch_connectors::mysql::store::{MysqlLane, MysqlTarget};
use anabranch_pipeline::config::{Config, ServerUrl};
use anabranch_pipeline::ports::LaneStore;
use anabranch_pipeline::projections::{Defects, LaneScope, Projection};
use anabranch_pipeline::records::{Flush, LaneId, Progress};
use anabranch_schemas::change::{Action, Change, Entity, TableIdentity, Value};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use anabranch_stack::{Options, ServerSpec, Stack};
use anabranch_tests::TestDatabase;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;

use crate::source::{DatabaseKind, start_if_there};

/// Two servers for all tests that run at the same time; they end with the last of these tests.
fn shared_stack() -> Arc<Stack> {
    static SHARED: Mutex<Weak<Stack>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(stack) = shared.upgrade() {
        return stack;
    }
    let server = |name: &str| TestDatabase::chosen().server(ServerSpec::mariadb_target(name)).without_fsync();
    let options = Options::empty().with(server("target-a")).with(server("target-b"));
    let stack = Arc::new(Stack::start(options).expect("two servers"));
    *shared = Arc::downgrade(&stack);
    stack
}

/// A place for derived tables: databases of its own on shared or own servers.
pub struct StoreSite {
    pub stack: Arc<Stack>,
    /// The part of every database's name after `birthday_` or `anabranch_`.
    pub prefix: String,
    pub layout: &'static str,
    pub databases: u32,
    pub lanes: u32,
    pub targets: Vec<&'static str>,
    pub sources: Vec<&'static str>,
    pub limits: &'static str,
    /// Mapping tables of each length class; 0 = the projection `serials` is not configured.
    pub mapping_tables: u32,
    /// Whether the projection `serials` has a cache. Targets do not connect to it.
    pub is_cached: bool,
    /// Sections of the configuration after all others.
    pub further: String,
}

/// One derived row: (database.table, shard, user id) → (birthday, lsn, is_sent).
pub type Rows = BTreeMap<(String, u64, u64), (String, u64, u8)>;

impl StoreSite {
    pub async fn new() -> Self {
        Self::on(tokio::task::spawn_blocking(shared_stack).await.unwrap()).granted().await
    }

    /// A place on another server than the common MariaDB; `None` where the machine cannot have one.
    pub async fn further(kind: DatabaseKind) -> Option<Self> {
        static MARIADB_11: Mutex<Weak<Stack>> = Mutex::new(Weak::new());
        static MYSQL: Mutex<Weak<Stack>> = Mutex::new(Weak::new());
        let shared = move || {
            let shared = match kind {
                DatabaseKind::MariaDb => return Some(shared_stack()),
                DatabaseKind::MariaDb11 => &MARIADB_11,
                DatabaseKind::MySql => &MYSQL,
            };
            let mut shared = shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let stack = match shared.upgrade() {
                Some(stack) => stack,
                None => start_if_there(kind.target())?,
            };
            *shared = Arc::downgrade(&stack);
            Some(stack)
        };
        Some(Self::on(tokio::task::spawn_blocking(shared).await.unwrap()?).granted().await)
    }

    /// A place on a server that no other test uses.
    pub async fn alone() -> Self {
        let server = TestDatabase::chosen().server(ServerSpec::mariadb_target("target-a")).without_fsync();
        let options = Options::empty().with(server);
        let stack = tokio::task::spawn_blocking(|| Stack::start(options).expect("a server"));
        Self::on(Arc::new(stack.await.unwrap())).granted().await
    }

    /// A place on two servers that no other test uses. The account has one password on both, as on a primary and the
    /// replica that takes its address over.
    pub async fn pair() -> Self {
        let server =
            |name: &str| TestDatabase::chosen().server(ServerSpec::mariadb_target(name)).without_fsync();
        let options = Options::empty().with(server("target-a")).with(server("target-b"));
        let stack = tokio::task::spawn_blocking(|| Stack::start(options).expect("two servers"));
        let site = Self::on(Arc::new(stack.await.unwrap())).granted().await;
        let password = site.stack.server("target-a").unwrap().password().to_owned();
        let alter = format!("ALTER USER 'anabranch_apply'@'127.0.0.1' IDENTIFIED BY '{password}'");
        site.admin_of("target-b").await.query_drop(alter).await.unwrap();
        site
    }

    fn on(stack: Arc<Stack>) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        Self {
            stack,
            prefix: format!("p{}", NUMBER.fetch_add(1, Ordering::Relaxed)),
            layout: "by_day",
            databases: 4,
            lanes: 2,
            targets: vec!["target-a"],
            sources: vec!["source-a", "source-b"],
            limits: "",
            mapping_tables: 0,
            is_cached: false,
            further: String::new(),
        }
    }

    /// Grants the documented rights on this place's control database.
    async fn granted(self) -> Self {
        const GRANTS: &str = include_str!("../../deploy/grants/mariadb-target.sql");
        let lines: Vec<&str> = GRANTS.lines().filter(|line| !line.starts_with("--")).collect();
        let text = lines.join(" ").replace("{client_host}", "127.0.0.1");
        let own = format!("`{}`.", self.control());
        let grants = text.split(';').filter(|grant| grant.contains("`anabranch"));
        let coupons = format!("`{}_coupons`.", self.control());
        let of_this = |grant: &str| {
            let grant = grant.replace("`anabranch`.", &own);
            grant.replace("`anabranch\\_coupons`.", &coupons).replace("`anabranch_coupons`.", &coupons)
        };
        let grants: Vec<String> = grants.map(of_this).collect();
        for server in self.stack.servers() {
            let mut admin = self.admin_of(server.name()).await;
            for grant in &grants {
                admin.query_drop(grant).await.unwrap_or_else(|error| panic!("{grant}: {error}"));
            }
        }
        self
    }

    pub fn config(&self) -> Config {
        let mut text = format!(
            "name = \"test\"\n[log]\nurl = \"tls://u:p@127.0.0.1:1\"\n[limits]\n{}\n\
             [[entities]]\nentity = \"user\"\ntables = \"user_{{db:02}}.user_{{table:03}}\"\n",
            self.limits
        );
        for source in &self.sources {
            text += &format!("[[sources]]\nname = \"{source}\"\nurl = \"mysql://u:p@127.0.0.1:2\"\n");
        }
        for target in &self.targets {
            let server = self.stack.server(target).unwrap();
            text += &format!(
                "[[targets]]\nname = \"{target}\"\nurl = \"{}\"\nsetup_url = \"{}\"\nca_file = \"{}\"\ncontrol_database = \"{}\"\n",
                server.url(),
                server.setup_url().unwrap(),
                self.stack.ca_file().display(),
                self.control()
            );
        }
        text += &format!(
            "[[projections]]\nname = \"birthday\"\nkind = \"birthday\"\ntargets = {:?}\nlayout = \"{}\"\n\
             databases = {}\nlanes = {}\ndatabase = \"{}\"\ntable = \"birthday_{{mmdd}}\"\n",
            self.targets,
            self.layout,
            self.databases,
            self.lanes,
            self.database_pattern()
        );
        if self.mapping_tables > 0 {
            text += &format!(
                "[[entities]]\nentity = \"serial_code\"\ntables = \"inventory_{{db}}.serial_code_{{table:02}}\"\n\
                 [[projections]]\nname = \"serials\"\nkind = \"serial_mapping\"\ntargets = {:?}\nlanes = 1\n\
                 tables = {}\ndatabase = \"serial_code_{}_{{length}}\"\ntable = \"mapping_{{table:03}}\"\n",
                self.targets, self.mapping_tables, self.prefix
            );
        }
        if self.is_cached {
            text += "[[caches]]\nname = \"cache\"\nurl = \"rediss://u:p@127.0.0.1:3\"\nprojection = \"serials\"\n";
        }
        text += &self.further;
        Config::parse(&text).unwrap_or_else(|faults| panic!("{faults:?}"))
    }

    pub fn control(&self) -> String {
        format!("anabranch_{}", self.prefix)
    }

    fn database_pattern(&self) -> String {
        format!("birthday_{}_{{db:02}}", self.prefix)
    }

    /// A table's quoted name in the layout by day, such as `` `birthday_p0_01`.`birthday_0102` ``.
    pub fn table(&self, ordinal: u32, mmdd: &str) -> String {
        format!("`birthday_{}_{:02}`.`birthday_{mmdd}`", self.prefix, ordinal % self.databases)
    }

    pub fn target(&self, name: &str) -> MysqlTarget {
        MysqlTarget::new(&self.config(), name).unwrap()
    }

    pub fn projection(&self) -> Projection {
        Projection::new(&self.config().projections[0])
    }

    pub fn lane_id(&self, source: &str, lane: u32) -> LaneId {
        LaneId {
            projection: "birthday".into(),
            target: self.targets[0].to_owned(),
            source: source.into(),
            lane,
        }
    }

    /// A lane of the first target, connected and loaded.
    pub async fn lane(&self, source: &str, lane: u32) -> (MysqlLane, Progress) {
        let mut store = self.target(self.targets[0]).lane(&self.lane_id(source, lane)).unwrap();
        let progress = store.load().await.unwrap();
        (store, progress)
    }

    /// The lane's next flush, see [`flush_of`].
    pub fn flush(
        &self,
        lane: &MysqlLane,
        progress: &Progress,
        changes: Vec<(u64, u32, Action<'static>)>,
    ) -> Flush {
        flush_of(lane.projection(), lane.scope(), progress, changes)
    }

    /// Opens an administrator's connection.
    pub async fn admin(&self) -> Conn {
        self.admin_of(self.targets[0]).await
    }

    pub async fn admin_of(&self, target: &str) -> Conn {
        let url = ServerUrl::try_from(self.stack.server(target).unwrap().admin_url()).unwrap();
        Conn::new(async_options(&url, Some(&self.stack.ca_file()))).await.unwrap()
    }

    pub async fn sql(&self, sql: impl Into<String>) {
        let sql = sql.into();
        self.admin().await.query_drop(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    pub async fn number(&self, sql: &str) -> u64 {
        self.admin().await.query_first::<u64, _>(sql).await.unwrap().unwrap_or_default()
    }

    /// Every derived row of the place, on all targets.
    pub async fn rows(&self) -> Rows {
        let mut rows = Rows::new();
        let projection = self.projection();
        for (number, target) in self.targets.iter().enumerate() {
            let parts: Vec<String> = projection
                .target_tables(number as u32)
                .map(|(_, table)| {
                    let (database, name) = (&table.derived.database, &table.derived.table);
                    format!(
                        "SELECT '{database}.{name}', shard_id, user_id, birthday, lsn, is_sent FROM `{database}`.`{name}`"
                    )
                })
                .collect();
            let mut admin = self.admin_of(target).await;
            for some in parts.chunks(200) {
                let found: Vec<(String, u64, u64, String, u64, u8)> =
                    admin.query(some.join(" UNION ALL ")).await.unwrap();
                for (table, shard, user_id, birthday, lsn, is_sent) in found {
                    let before = rows.insert((table, shard, user_id), (birthday, lsn, is_sent));
                    assert!(before.is_none(), "one row a key");
                }
            }
        }
        rows
    }

    /// `(table, birthday, lsn)` of each row of a user.
    pub async fn rows_of(&self, user_id: u64) -> Vec<(String, String, u64)> {
        let rows = self.rows().await;
        let name = |table: &str| table.split_once('.').unwrap().1.to_owned();
        rows.into_iter()
            .filter(|((_, _, user), _)| *user == user_id)
            .map(|((table, ..), (birthday, lsn, _))| (name(&table), birthday, lsn))
            .collect()
    }
}

pub fn lsn(number: u64) -> Lsn {
    Lsn::from_u64(number).unwrap()
}

pub fn table(number: u32) -> TableIdentity<'static> {
    TableIdentity {
        entity: Entity::User,
        shard: ShardId::of("source-a", "user_00", &number.to_string(), 0),
        database: "user_00".into(),
        table: number.to_string().into(),
    }
}

pub fn user(user_id: u64, month: u8, day: u8) -> Vec<Value<'static>> {
    vec![Value::UInt(user_id), Value::Date { year: 2000, month, day }]
}

pub fn insert(after: Vec<Value<'static>>) -> Action<'static> {
    Action::Insert { after }
}

pub fn update(before: Vec<Value<'static>>, after: Vec<Value<'static>>) -> Action<'static> {
    Action::Update { before, after }
}

/// The flush that takes a lane from `progress` over these changes of one shard table, up to the Lsn of the last.
pub fn flush_of(
    projection: &Projection,
    scope: LaneScope,
    progress: &Progress,
    changes: Vec<(u64, u32, Action<'static>)>,
) -> Flush {
    let mut flush = Flush::new(progress.clone());
    flush.progress.revision += 1;
    for (number, shard, action) in changes {
        let identity = table(shard);
        let change = Change { lsn: lsn(number), table: &identity, action };
        projection.project(&change, scope, &mut flush, &mut Defects::default());
        flush.progress.position = lsn(number);
    }
    flush.progress.highest_position = flush.progress.highest_position.max(flush.progress.position);
    flush
}
