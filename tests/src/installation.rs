//! The product as its user has it: servers with sharded tables, a configuration file, the binary.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::OnceLock;

use anabranch_demo::daemon::{self, DaemonConfiguration};
use anabranch_demo::verify::{Comparison, DerivedLayer, DerivedLayout, drain, drain_and_compare};
use anabranch_demo::{Connection, Endpoint, Topology, Workload, WorkloadOptions};
use anabranch_schemas::shard::{NameHash, ShardingRule, Spread};
use anabranch_stack::{MariaDbAccount, Server, Stack};

use crate::daemon::{Call, Daemon, Finished, Run};
use crate::ground::Turn;
use crate::patience::{PATIENCE, blocking};

/// What an installation is like.
#[derive(Debug, Clone)]
pub struct Plan {
    pub layout: DerivedLayout,
    /// Derived databases.
    pub databases: u32,
    pub lanes: u32,
    /// How many of the targets are used.
    pub targets: usize,
    /// Where the application puts its users.
    pub rule: ShardingRule,
    /// Passwords stand in the file, and not in environment variables.
    pub has_passwords_in_file: bool,
}

impl Plan {
    /// All users of a day in one table; 10 source databases with one table each, so all types of birthday column.
    pub fn small() -> Self {
        let rule = ShardingRule { hash: NameHash::Crc32, spread: Spread::Spread, databases: 10, tables: 1 };
        Self {
            layout: DerivedLayout::ByDay,
            databases: 2,
            lanes: 2,
            targets: 1,
            rule,
            has_passwords_in_file: false,
        }
    }
}

/// A configured product on the servers of a turn.
#[derive(Debug)]
pub struct Installation<'g> {
    turn: Turn<'g>,
    pub configuration: DaemonConfiguration,
    pub topology: Topology,
    pub layer: DerivedLayer,
    call: Call,
}

/// The binary under test, built once a process.
fn binary() -> PathBuf {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| blocking(daemon::build).expect("the daemon builds")).clone()
}

impl<'g> Installation<'g> {
    /// Makes the source tables and the configuration file; `setup` was not called yet.
    pub async fn prepare(turn: Turn<'g>, plan: &Plan) -> Self {
        let sources = turn.servers(MariaDbAccount::Capture);
        let mut targets = turn.servers(MariaDbAccount::Apply);
        targets.truncate(plan.targets);
        let endpoints = |names: &[String]| -> Vec<Endpoint> {
            names
                .iter()
                .map(|name| Endpoint::admin(turn.stack, name).expect("a server of the stack"))
                .collect()
        };
        let topology = Topology { rule: plan.rule, sources: endpoints(&sources) };
        let layer =
            DerivedLayer { layout: plan.layout, databases: plan.databases, targets: endpoints(&targets) };
        topology.create_schema().await.expect("the user tables are made");
        let configuration = DaemonConfiguration {
            name: turn.name.clone(),
            sources,
            targets,
            databases: plan.databases,
            lanes: plan.lanes,
            http_port: daemon::free_port().expect("a port is free"),
            rule: Some(plan.rule),
            ..DaemonConfiguration::standard(plan.layout)
        };
        let mut environment = Vec::new();
        if !plan.has_passwords_in_file {
            environment.extend(turn.stack.env());
        }
        let call = Call { binary: binary(), file: PathBuf::new(), environment };
        let mut installation = Self { turn, configuration, topology, layer, call };
        installation.write_configuration();
        installation
    }

    /// As [`Installation::prepare`], and `setup`.
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
            }
        }
        text
    }

    /// Writes the file anew, after a change of `configuration`.
    pub fn write_configuration(&mut self) {
        let text = self.configuration_text();
        self.write_configuration_text(&text);
    }

    pub fn configuration_file(&self) -> &std::path::Path {
        &self.call.file
    }

    /// Writes any text as the configuration file.
    pub fn write_configuration_text(&mut self, text: &str) {
        // Made by the demo first, for its permissions; each daemon has its own, which appears whole.
        let draft = self.configuration.write(self.turn.stack).expect("the file is written");
        std::fs::write(&draft, text).expect("the file is written");
        let name = format!("{}-{}.toml", self.configuration.name, self.configuration.http_port);
        self.call.file = draft.with_file_name(name);
        std::fs::rename(draft, &self.call.file).expect("the file is renamed");
    }

    /// For a second daemon beside the first.
    pub fn use_another_http_port(&mut self) {
        self.configuration.http_port = daemon::free_port().expect("a port is free");
        self.write_configuration();
    }

    /// Variables that hold the passwords; empty when they stand in the file.
    pub fn environment_mut(&mut self) -> &mut Vec<(String, String)> {
        &mut self.call.environment
    }

    pub fn stack(&self) -> &'g Stack {
        self.turn.stack
    }

    pub fn server(&self, name: &str) -> std::sync::Arc<Server> {
        self.turn.stack.server(name).expect("a server of the stack")
    }

    /// JetStream, to look and to damage.
    pub async fn jetstream(&self) -> async_nats::jetstream::Context {
        self.turn.jetstream().await
    }

    /// Frees the leases of a daemon that was killed; otherwise the next one waits until they have run out.
    pub async fn free_leases(&self) {
        let bucket = format!("KV_{}_leases", self.configuration.name);
        let bucket = self.jetstream().await.get_stream(bucket).await.expect("set-up has made it");
        bucket.purge().await.expect("NATS answers");
    }

    /// `anabranch --config FILE …`, to its end.
    pub async fn command(&self, arguments: &[&str]) -> Finished {
        self.call.finish(arguments).await
    }

    /// `anabranch --config FILE run`.
    pub fn run(&self) -> Daemon {
        self.run_with(&[], &[])
    }

    /// As [`Installation::run`] with more arguments and variables.
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

    /// A workload of all kinds on its tables.
    pub fn workload(&self, options: WorkloadOptions) -> Workload {
        Workload::new(self.topology.clone(), options)
    }

    /// A connection of the administrator.
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
        let drained = drain(&self.topology, &self.layer, PATIENCE).await.expect("the servers answer");
        assert!(drained.is_complete(), "not drained: {:?}", drained.behind);
    }

    /// Drains and compares every derived row with the sources.
    pub async fn compare(&self) -> Comparison {
        let (drained, comparison) =
            drain_and_compare(&self.topology, &self.layer, PATIENCE).await.expect("the servers answer");
        assert!(drained.is_complete(), "not drained: {:?}", drained.behind);
        comparison
    }

    /// Drains and expects both sides to be equal, and not to be empty.
    pub async fn expect_equal(&self) -> Comparison {
        let comparison = self.compare().await;
        assert_eq!(comparison.differences.total(), 0, "{:?}", comparison.examples);
        assert!(comparison.claims > 0, "two empty sides prove nothing");
        comparison
    }

    /// As [`Installation::expect_equal`], and every table must hold rows.
    pub async fn expect_equal_and_full(&self) -> Comparison {
        let comparison = self.expect_equal().await;
        assert_eq!(comparison.problems(), Vec::<String>::new());
        comparison
    }

    /// Every derived row of a user, after draining: table with database, birthday.
    pub async fn derived(&self, user_id: u64) -> Vec<(String, String)> {
        self.drained().await;
        let mut rows = Vec::new();
        for target in &self.layer.targets {
            let mut connection = target.connect(&[]).await.expect("it answers");
            let tables = "SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.tables \
                          WHERE table_schema LIKE 'birthday\\_%'";
            let tables: Vec<String> =
                connection.rows("list derived tables", tables).await.expect("it answers");
            let selects: Vec<String> = tables
                .iter()
                .map(|table| format!("SELECT '{table}', birthday FROM {table} WHERE user_id = {user_id}"))
                .collect();
            for part in selects.chunks(100) {
                let found: Vec<(String, String)> =
                    connection.rows("look for a user", part.join(" UNION ALL ")).await.expect("it answers");
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
