//! The product as its user has it: servers with sharded tables, a configuration file, the binary.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anabranch_demo::daemon::{self, DaemonConfiguration};
use anabranch_demo::verify::{
    BirthdayLayer, CacheLayer, Comparison, DerivedLayout, DocumentLayer, Layer, MappingLayer, RelationLayer,
    Verification, drain, drain_and_compare, topologies,
};
use anabranch_demo::{Connection, Endpoint, JsonClient, RedisServer, Topology, Workload, WorkloadOptions};
use anabranch_schemas::celebration::Calendar;
use anabranch_schemas::change::Entity;
use anabranch_schemas::shard::{NameHash, ShardingRule, Spread};
use anabranch_stack::{DatabaseAccount, Server, Stack};

use crate::daemon::{Call, Daemon, Finished, Run};
use crate::ground::Turn;
use crate::waiting::{WAIT_MAX, blocking};

/// Time to live of a cached set, and of a set without claims.
const TIME_TO_LIVE: (Duration, Duration) = (Duration::from_secs(3600), Duration::from_secs(60));

/// Shape of an installation.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Captured entities: birthday tables are derived from users, mapping tables from devices, the relation index from
    /// payment documents.
    pub entities: Vec<Entity>,
    pub layout: DerivedLayout,
    /// Whether lunar birthday tables are derived too.
    pub is_lunar: bool,
    /// Number of derived databases of birthdays.
    pub databases: u32,
    /// Lanes of each projection.
    pub lanes: u32,
    /// Number of targets in use.
    pub targets: usize,
    /// Rule by which the application distributes its users over tables.
    pub rule: ShardingRule,
    /// Tables in each inventory database and the history.
    pub serial_tables: u32,
    /// Tables in each mapping database.
    pub mapping_tables: u32,
    /// User partitions in each of the ten databases of payment documents.
    pub flux_partitions: u32,
    /// Whether the mapping tables have a cache, on the server `redis`.
    pub has_cache: bool,
    /// Whether documents are derived from devices too, on the server `search`.
    pub has_documents: bool,
    /// Whether the file holds the passwords, instead of environment variables.
    pub has_passwords_in_file: bool,
}

impl Plan {
    /// All users of a day in one table; 10 source databases of one table each, for all types of birthday column.
    pub fn small() -> Self {
        let rule = ShardingRule { hash: NameHash::Crc32, spread: Spread::Spread, databases: 10, tables: 1 };
        Self {
            entities: vec![Entity::User],
            layout: DerivedLayout::ByDay,
            is_lunar: false,
            databases: 2,
            lanes: 2,
            targets: 1,
            rule,
            serial_tables: 2,
            mapping_tables: 8,
            flux_partitions: 1,
            has_cache: false,
            has_documents: false,
            has_passwords_in_file: false,
        }
    }

    /// A plan with devices instead of users.
    pub fn serials() -> Self {
        Self { entities: vec![Entity::SerialCode], ..Self::small() }
    }

    /// A plan with payment documents instead of users. All of them are of the fail-over side if there is one source.
    pub fn payments() -> Self {
        Self { entities: vec![Entity::Flux], ..Self::small() }
    }

    /// A plan with users and devices side by side.
    pub fn both() -> Self {
        Self { entities: vec![Entity::User, Entity::SerialCode], ..Self::small() }
    }

    /// A plan with every derived store: birthdays, mapping tables, their cache, documents.
    pub fn everything() -> Self {
        Self { has_cache: true, has_documents: true, ..Self::both() }
    }

    /// Verifications of the plan's stores, in an installation of that name.
    fn audits(
        &self,
        name: &str,
        stack: &Stack,
        sources: &[Endpoint],
        targets: &[Endpoint],
    ) -> Vec<Verification> {
        let mut audits = Vec::new();
        let mut push =
            |topology: &Topology, layer| audits.push(Verification { topology: topology.clone(), layer });
        let targets = || targets.to_vec();
        for entity in &self.entities {
            if *entity == Entity::User {
                let (layout, databases) = (self.layout, self.databases);
                let is_wanted = |calendar: &Calendar| self.is_lunar || *calendar == Calendar::Solar;
                for calendar in Calendar::ALL.into_iter().filter(is_wanted) {
                    let layer = BirthdayLayer { calendar, layout, databases, targets: targets() };
                    push(&Topology::users(sources.to_vec(), self.rule), Layer::Birthday(layer));
                }
                continue;
            }
            if *entity == Entity::Flux {
                let topology = Topology::flux(sources.to_vec(), self.flux_partitions);
                let index = RelationLayer { partitions: self.flux_partitions, targets: targets() };
                push(&topology, Layer::Relations(index));
                continue;
            }
            let topology = Topology::serials(sources.to_vec(), self.serial_tables);
            let mapping = MappingLayer { tables: self.mapping_tables, targets: targets() };
            push(&topology, Layer::Mapping(mapping.clone()));
            if self.has_cache {
                let server = RedisServer::admin(stack, "redis").expect("a server of the stack");
                let prefix = format!("{name}:mapping");
                push(
                    &topology,
                    Layer::Cache(CacheLayer { mapping, server, prefix, time_to_live: TIME_TO_LIVE }),
                );
            }
            if self.has_documents {
                let server = JsonClient::search_admin(stack, "search").expect("a server of the stack");
                push(&topology, Layer::Documents(DocumentLayer { server, index: "serials".to_owned() }));
            }
        }
        audits
    }
}

/// A configured product on the servers of a turn.
#[derive(Debug)]
pub struct Installation<'g> {
    turn: Turn<'g>,
    pub configuration: DaemonConfiguration,
    /// One verification for each derived store of the plan.
    pub audits: Vec<Verification>,
    call: Call,
}

/// The binary under test, built once a process.
fn binary() -> PathBuf {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| blocking(daemon::build).expect("the daemon builds")).clone()
}

impl<'g> Installation<'g> {
    /// Makes the source tables and the configuration file; `setup` is still to be run.
    pub async fn prepare(turn: Turn<'g>, plan: &Plan) -> Self {
        let sources = turn.servers(DatabaseAccount::Capture);
        let mut targets = turn.servers(DatabaseAccount::Apply);
        targets.truncate(plan.targets);
        let endpoints = |names: &[String]| -> Vec<Endpoint> {
            names
                .iter()
                .map(|name| Endpoint::admin(turn.stack, name).expect("a server of the stack"))
                .collect()
        };
        let audits = plan.audits(&turn.name, turn.stack, &endpoints(&sources), &endpoints(&targets));
        for topology in topologies(&audits) {
            topology.create_schema().await.expect("the source tables are made");
        }
        let mut configuration = DaemonConfiguration {
            name: turn.name.clone(),
            sources,
            targets,
            lanes: plan.lanes,
            http_port: daemon::free_port().expect("a port is free"),
            ..DaemonConfiguration::standard(audits.clone())
        };
        // Each test decides which daemon works.
        configuration.limits.push("rebalance_interval_ms = 0".to_owned());
        let mut environment = Vec::new();
        if !plan.has_passwords_in_file {
            environment.extend(turn.stack.env());
        }
        let call = Call { binary: binary(), file: PathBuf::new(), environment };
        let mut installation = Self { turn, configuration, audits, call };
        installation.write_configuration();
        installation
    }

    /// Prepares as [`Installation::prepare`] does, and runs `setup`.
    pub async fn set_up(turn: Turn<'g>, plan: &Plan) -> Self {
        let installation = Self::prepare(turn, plan).await;
        installation.command(&["setup"]).await.expect_success();
        installation
    }

    /// The text of the configuration file.
    pub fn configuration_text(&self) -> String {
        let mut text = self.configuration.text(self.turn.stack).expect("servers of the stack");
        // The stack's NATS has room for few streams of the demo's size.
        text = text.replace("max_bytes = 1073741824", "max_bytes = 500000000");
        if !self.call.environment.is_empty() {
            for server in self.turn.stack.servers() {
                let name = server.name().to_ascii_uppercase().replace('-', "_");
                text = text.replace(&server.url(), &format!("${{ANABRANCH_{name}_URL}}"));
                if let Some(setup) = server.setup_url() {
                    text = text.replace(&setup, &format!("${{ANABRANCH_{name}_SETUP_URL}}"));
                }
            }
        }
        text
    }

    /// Writes the configuration file anew, after a change of `configuration`.
    pub fn write_configuration(&mut self) {
        let text = self.configuration_text();
        self.write_configuration_text(&text);
    }

    pub fn configuration_file(&self) -> &Path {
        &self.call.file
    }

    /// Returns [`Installation::configuration_text`] with more lines in its section `[http]`.
    ///
    /// # Panics
    /// Panics when the text has no such section.
    pub fn configuration_text_with_http(&self, lines: &str) -> String {
        let text = self.configuration_text();
        let with_lines = text.replace("[http]\n", &format!("[http]\n{lines}\n"));
        assert_ne!(text, with_lines, "there is no [http] to put them into");
        with_lines
    }

    /// Writes any text as the configuration file.
    pub fn write_configuration_text(&mut self, text: &str) {
        // The demo makes the file, for its permissions; the rename gives each daemon its own file as a whole.
        let draft = self.configuration.write(self.turn.stack).expect("the file is written");
        std::fs::write(&draft, text).expect("the file is written");
        let name = format!("{}-{}.toml", self.configuration.name, self.configuration.http_port);
        self.call.file = draft.with_file_name(name);
        std::fs::rename(draft, &self.call.file).expect("the file is renamed");
    }

    /// Makes sources stop at a change of captured rows that row events do not show.
    pub fn stop_at_unseen_changes(&mut self) {
        let stops = "[[entities]]\nunseen_changes = \"stop\"\n";
        let text = self.configuration_text().replace("[[entities]]\n", stops);
        self.write_configuration_text(&text);
    }

    /// Runs another binary from the next command or daemon on; `None` is the binary under test again.
    pub fn use_binary(&mut self, other: Option<&Path>) {
        self.call.binary = other.map_or_else(binary, Path::to_path_buf);
    }

    /// Chooses another HTTP port, for a second daemon.
    pub fn use_another_http_port(&mut self) {
        self.configuration.http_port = daemon::free_port().expect("a port is free");
        self.write_configuration();
    }

    /// Variables that hold the passwords; empty when the file holds them.
    pub fn environment_mut(&mut self) -> &mut Vec<(String, String)> {
        &mut self.call.environment
    }

    pub fn stack(&self) -> &'g Stack {
        self.turn.stack
    }

    pub fn server(&self, name: &str) -> std::sync::Arc<Server> {
        self.turn.stack.server(name).expect("a server of the stack")
    }

    /// JetStream, to inspect and to damage.
    pub async fn jetstream(&self) -> async_nats::jetstream::Context {
        self.turn.jetstream().await
    }

    /// Frees the leases of a killed daemon; otherwise the next daemon waits until they expire.
    pub async fn free_leases(&self) {
        let bucket = format!("KV_{}_leases", self.configuration.name);
        let bucket = self.jetstream().await.get_stream(bucket).await.expect("set-up has made it");
        bucket.purge().await.expect("NATS answers");
    }

    /// Runs `anabranch --config FILE …` to its end.
    pub async fn command(&self, arguments: &[&str]) -> Finished {
        self.call.finish(arguments).await
    }

    /// Starts `anabranch --config FILE run`.
    pub fn run(&self) -> Daemon {
        self.run_with(&[], &[])
    }

    /// Starts a daemon as [`Installation::run`] does, with more arguments and variables.
    pub fn run_with(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Daemon {
        self.start(&[&["run"], arguments].concat(), environment)
    }

    /// Starts any command and does not wait for its end.
    pub fn start(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Daemon {
        let run = Run {
            http: SocketAddr::from((Ipv4Addr::LOCALHOST, self.configuration.http_port)),
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            environment: environment
                .iter()
                .map(|&(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        };
        self.call.start(self.turn.stack, &run)
    }

    /// A workload of all kinds on the tables of the plan's first entity.
    pub fn workload(&self, options: WorkloadOptions) -> Workload {
        Workload::new(self.audits[0].topology.clone(), options)
    }

    /// One workload of all kinds for each entity.
    pub fn workloads(&self, options: WorkloadOptions) -> Vec<Workload> {
        topologies(&self.audits)
            .into_iter()
            .map(|topology| Workload::new(topology.clone(), options))
            .collect()
    }

    /// Opens a connection of the administrator.
    pub async fn admin(&self, server: &str) -> Connection {
        let endpoint = Endpoint::admin(self.turn.stack, server).expect("a server of the stack");
        endpoint.connect(&[]).await.expect("it answers")
    }

    /// Runs statements on a server as its administrator.
    pub async fn execute(&self, server: &str, sql: impl AsRef<str>) {
        self.admin(server)
            .await
            .execute("run a test's statements", sql)
            .await
            .expect("the statements are right");
    }

    /// Waits until every lane has passed the present end of its source's binlog.
    pub async fn drained(&self) {
        self.drained_within(WAIT_MAX).await;
    }

    /// Waits as [`Installation::drained`] does, for up to `wait`.
    pub async fn drained_within(&self, wait: Duration) {
        let drained = drain(&self.audits, wait).await.expect("the servers answer");
        assert!(drained.is_complete(), "not drained: {:?}", drained.lagging);
    }

    /// Drains and compares every derived row of each store with the sources.
    pub async fn compare_each(&self) -> Vec<Comparison> {
        let (drained, comparisons) =
            drain_and_compare(&self.audits, WAIT_MAX).await.expect("the servers answer");
        assert!(drained.is_complete(), "not drained: {:?}", drained.lagging);
        comparisons
    }

    /// Compares as [`Installation::compare_each`] does and adds the results up.
    pub async fn compare(&self) -> Comparison {
        Comparison::sum(&self.compare_each().await)
    }

    /// Drains and expects both sides to be equal, and not to be empty.
    pub async fn expect_equal(&self) -> Comparison {
        let comparisons = self.compare_each().await;
        for comparison in &comparisons {
            assert_eq!(comparison.differences.total(), 0, "{:?}", comparison.examples);
            assert!(comparison.claims > 0, "two empty sides prove nothing");
        }
        Comparison::sum(&comparisons)
    }

    /// Expects as [`Installation::expect_equal`] does, and that every table holds rows.
    pub async fn expect_equal_and_full(&self) -> Comparison {
        let comparisons = self.compare_each().await;
        for comparison in &comparisons {
            assert_eq!(comparison.problems(), Vec::<String>::new());
        }
        Comparison::sum(&comparisons)
    }

    /// Every derived row of a user, after draining: table with its database, and birthday.
    pub async fn derived(&self, user_id: u64) -> Vec<(String, String)> {
        self.derived_where("birthday\\_%", "birthday", &format!("user_id = {user_id}")).await
    }

    /// Every mapping row of a code's exact bytes, after draining: table with its database, and `uuid kind`.
    pub async fn mapped(&self, code: &[u8]) -> Vec<(String, String)> {
        let hex: String = code.iter().map(|byte| format!("{byte:02x}")).collect();
        let device = "CONCAT(CONVERT(uuid USING utf8mb4), ' ', kind)";
        let mut rows = self.derived_where("serial\\_code\\_%", device, &format!("value = x'{hex}'")).await;
        rows.sort();
        rows
    }

    /// One column of the derived rows that satisfy a condition, after draining, each with its table.
    pub async fn derived_where(
        &self,
        databases: &str,
        column: &str,
        condition: &str,
    ) -> Vec<(String, String)> {
        self.drained().await;
        let mut rows = Vec::new();
        for name in &self.configuration.targets {
            let mut connection = self.admin(name).await;
            let tables = format!(
                "SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.tables \
                 WHERE table_schema LIKE '{databases}'"
            );
            let tables: Vec<String> =
                connection.rows("list derived tables", tables).await.expect("it answers");
            let selects: Vec<String> = tables
                .iter()
                .map(|table| format!("SELECT '{table}', {column} FROM {table} WHERE {condition}"))
                .collect();
            for part in selects.chunks(100) {
                let found: Vec<(String, String)> =
                    connection.rows("look for rows", part.join(" UNION ALL ")).await.expect("it answers");
                rows.extend(found);
            }
        }
        rows
    }
}

impl Drop for Installation<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for server in self.turn.stack.servers() {
                eprintln!("--- server {}\n{}", server.name(), server.log_tail());
            }
        }
    }
}
