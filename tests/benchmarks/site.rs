//! One installation on fresh servers, and its parts as the daemon has them.

use std::time::Duration;

use anabranch_connectors::mysql::source::MysqlSource;
use anabranch_connectors::nats::NatsLog;
use anabranch_demo::verify::DerivedLayout;
use anabranch_pipeline::config::{Config, SourceConfig};
use anabranch_schemas::shard::{NameHash, ShardingRule, Spread};
use anabranch_tests::{Installation, Plan, Turn};

pub const SOURCE: &str = "source";
pub const TARGET: &str = "target";
/// May read the binlog without TLS and without a password: the scan speaks the least of the protocol.
pub const SCAN_USER: &str = "scan";
/// The product's account without TLS.
const PLAIN_USER: &str = "plain";
const PLAIN_PASSWORD: &str = "plain";
pub const DATABASES: u32 = 4;
pub const TABLES: u32 = 10;

/// See the module's text.
#[derive(Debug)]
pub struct Site<'g> {
    pub installation: Installation<'g>,
}

impl<'g> Site<'g> {
    pub async fn open(turn: Turn<'g>, lanes: u32) -> Self {
        let plan = Plan {
            layout: DerivedLayout::ByDay,
            databases: 1,
            lanes,
            targets: 1,
            rule: ShardingRule {
                hash: NameHash::Crc32,
                spread: Spread::Spread,
                databases: DATABASES,
                tables: TABLES,
            },
            has_passwords_in_file: true,
            ..Plan::small()
        };
        let site = Self { installation: Installation::prepare(turn, &plan).await };
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

    pub async fn source(&self, sql: impl AsRef<str>) {
        self.installation.execute(SOURCE, sql).await;
    }

    pub async fn target(&self, sql: impl AsRef<str>) {
        self.installation.execute(TARGET, sql).await;
    }

    pub fn config(&self) -> Config {
        Config::parse(&self.installation.configuration_text()).expect("it was made by us")
    }

    /// The source over TLS, as configured.
    pub fn source_config(&self) -> SourceConfig {
        self.config().sources.remove(0)
    }

    /// The same without TLS.
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

    /// Streams under another prefix from here on: an empty log. The old stream is deleted.
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
        // There is none before the first.
        let _ = self.installation.jetstream().await.delete_stream(stream).await;
    }

    pub fn pid(&self, server: &str) -> u32 {
        self.installation.server(server).pid().expect("it runs")
    }
}
