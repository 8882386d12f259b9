//! The configuration: parsed once into types that cannot hold nonsense.
//!
//! `raw.rs`, `captured.rs`, `derived.rs`, `reconcile.rs`, `coupon_system.rs` and `flux.rs` are the file as written, and
//! refuse unknown keys. `values.rs` has its scalar types (secrets, server URLs), `column_names.rs` the names of a
//! captured column, `secret_files.rs` reads values from files, `transport.rs` has the meaning of `tls` and `ca_file`,
//! `tables.rs` the names of derived tables. This file turns the first into the last and checks values that concern
//! several parts. Each problem is a [`Fault`] that names the key; all are reported together. No code here uses the
//! network.

mod applications;
mod captured;
mod column_names;
mod coupon_system;
pub(crate) mod derived;
mod flux;
mod raw;
pub mod reconcile;
mod secret_files;
mod tables;
mod transport;
mod unreadable;
mod values;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anabranch_schemas::change::Entity;
use anabranch_schemas::flux::id::{Level, Region, Side};
use anabranch_schemas::shard::{ShardingRule, TablePattern};
use croner::Cron;
use jiff::tz::TimeZone;
use serde::Deserialize;

pub use self::applications::{ApplicationConfig, Scope};
pub use self::column_names::{ColumnNames, Misnamed};
pub use self::coupon_system::CouponSystemConfig;
pub use self::derived::{DocumentIndex, ProjectionKind};
pub use self::flux::{FluxConfig, FluxIdentifierConfig, FluxRetention, MarkerTable};
use self::reconcile::ReconcileSettings;
pub use self::tables::{BirthdayTables, MappingTables, RelationTables};
pub use self::values::{Secret, ServerUrl};
use crate::error::{Code, Fault};
use crate::ports::BinlogStart;
use crate::records::{FluxPlaces, TimeToLive};

/// The whole configuration of `anabranch`.
#[derive(Debug, Clone)]
pub struct Config {
    /// Prefix of streams and buckets: two installations may share one NATS.
    pub name: String,
    pub log: LogConfig,
    pub http: HttpConfig,
    pub entities: Vec<EntityConfig>,
    pub sources: Vec<SourceConfig>,
    pub targets: Vec<TargetConfig>,
    pub projections: Vec<ProjectionConfig>,
    pub caches: Vec<CacheConfig>,
    pub reconcile: ReconcileConfig,
    /// Programmes of coupons as written; the package `coupons` parses them.
    pub programmes: Vec<toml::Table>,
    /// The system that gives out the coupons; `None` = nothing is granted.
    pub coupon_system: Option<CouponSystemConfig>,
    /// Settings for payment documents; `None` = the file has no such section.
    pub flux: Option<FluxConfig>,
    /// The right tables of payment documents, by the section, the entities and the sources; without them it is empty.
    pub flux_places: Arc<FluxPlaces>,
    pub limits: Limits,
    /// Folder of the temporary files that readers spill into; each source has it too.
    pub spill_dir: PathBuf,
    /// Time between two checks whether a process holds more than its part of the work; `None` = it never checks.
    pub rebalance_interval: Option<Duration>,
}

#[derive(Debug, Clone)]
pub struct LogConfig {
    pub url: ServerUrl,
    pub ca_file: Option<PathBuf>,
    pub replicas: NonZeroUsize,
    pub max_age: Duration,
    pub max_bytes: NonZeroU64,
    /// Bytes of one message, headers included.
    pub max_message_bytes: NonZeroUsize,
}

#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// Address for metrics, health, readiness and the endpoints for applications; `None` = no listener.
    pub listen: Option<SocketAddr>,
    /// Clients that may use the endpoints for applications; without any the endpoints are closed.
    pub applications: Vec<ApplicationConfig>,
    /// People who may change something over HTTP, each with a token of their own.
    pub operators: Vec<OperatorConfig>,
}

/// A person, or a program of one, with a token for endpoints that change something.
#[derive(Debug, Clone)]
pub struct OperatorConfig {
    /// The name that records of operations show.
    pub name: String,
    pub token: Secret,
}

/// A captured entity: its physical tables, and the names of its fields in them.
#[derive(Debug, Clone)]
pub struct EntityConfig {
    pub entity: Entity,
    pub tables: TablePattern,
    /// Names of the captured columns in the order of [`Entity::fields`]; the last fields may be left out.
    pub columns: Vec<ColumnNames>,
    /// The level of the payment documents in the tables, atoms or composites; `None` = either, or another entity.
    pub level: Option<Level>,
    /// The rule by which the application places a row; capture does not depend on it.
    pub rule: Option<ShardingRule>,
    /// The column that the rule reads; only the placement audit uses it.
    pub sharding_column: Option<ColumnNames>,
    /// The column with the time, in UTC, when the application last changed the birthday; NULL = never since it was set.
    /// Its own changes are not captured: granters read it with the source row.
    pub changed_at_column: Option<ColumnNames>,
    pub unseen_changes: UnseenChanges,
    /// The fate of derived rows when a table of the entity leaves as a whole.
    pub removal: Removal,
    /// The table in which a transaction says that its deletions are those of a retention rule; `None` = none can.
    pub retention_marker: Option<MarkerTable>,
}

/// The meaning of a table that is dropped, truncated or renamed away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Removal {
    /// The rows of the table are gone: lanes withdraw their claims.
    #[default]
    Withdraw,
    /// The table was online for long enough. Its documents still exist elsewhere, so their claims keep standing.
    Retain,
}

/// The reaction of a reader when rows of a captured table changed without row events: a RENAME, a change by text, an
/// ALTER that changes values, rows of a table that no longer fits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnseenChanges {
    /// Each lane reads the table again, beside the changes of all other tables.
    #[default]
    Reread,
    /// The source stops with a fault that names the table.
    Stop,
}

impl EntityConfig {
    /// Returns the index of the rule's key in a row of captured columns, or after them; `None` when it is not known.
    pub fn sharding_field(&self) -> Option<usize> {
        let column = self.sharding_column.as_ref()?;
        Some(self.columns.iter().position(|known| known.shares(column)).unwrap_or(self.columns.len()))
    }

    /// Returns whether a column holds a field of the entity, and is not read in addition to the captured ones.
    pub fn is_field(&self, column: usize) -> bool {
        let is = |named: &Option<ColumnNames>| named.is_some() && named.as_ref() == self.columns.get(column);
        column < self.entity.required_fields() || !(is(&self.sharding_column) || is(&self.changed_at_column))
    }

    /// Returns the entity with the time of the last birthday change after its columns, if it has that column.
    #[must_use]
    pub fn with_changed_at_column(mut self) -> Self {
        self.columns.extend(self.changed_at_column.clone());
        self
    }

    /// Returns the entity with the rule's key among its columns.
    #[must_use]
    pub fn with_sharding_column(mut self) -> Self {
        let is_appended = self.sharding_field() == Some(self.columns.len());
        self.columns.extend(self.sharding_column.clone().filter(|_| is_appended));
        self
    }
}

/// Replication server ids of one source: those of its reader and of direct feeds.
const REPLICA_SERVER_IDS: u32 = 256;

#[derive(Debug, Clone)]
pub struct SourceConfig {
    pub name: String,
    pub url: ServerUrl,
    pub ca_file: Option<PathBuf>,
    /// Replication server id of the reader; it must differ from every server and replica of that source. The ids after
    /// it, one for each lane, belong to direct feeds.
    pub replica_server_id: NonZeroU32,
    /// The point where a source without any log begins.
    pub start: BinlogStart,
    /// A replica, with its CA, for whole tables in reconciliations; single rows are read from the source itself.
    pub replica: Option<(ServerUrl, Option<PathBuf>)>,
    /// Owner generation of the source's tables (part of the shard id).
    pub generation: u32,
    pub entities: Vec<Entity>,
    /// Region and side of the source's payment documents, which the audit compares with digits 10 and 17.
    pub flux: Option<(Region, Side)>,
    /// Time for which binlogs must be kept; below it the pre-flight warns.
    pub retention_min: Duration,
    /// Folder of the temporary files that the source's readers spill into.
    pub spill_dir: PathBuf,
}

#[derive(Debug, Clone)]
pub struct TargetConfig {
    pub name: String,
    pub url: ServerUrl,
    /// The account that makes tables and indexes; `None` = the one of `url`.
    pub setup_url: Option<ServerUrl>,
    pub ca_file: Option<PathBuf>,
    pub store: TargetStore,
    /// Database of the progress table.
    pub control_database: String,
}

/// The kind of server that a target is, by the scheme of its URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetStore {
    Mysql,
    /// OpenSearch or Elasticsearch.
    Search,
}

#[derive(Debug, Clone)]
pub struct ProjectionConfig {
    pub name: String,
    /// Lanes of each target and source.
    pub lanes: NonZeroU32,
    /// Names of targets; database i of the layout lies on target i modulo their number.
    pub targets: Vec<String>,
    pub kind: ProjectionKind,
}

/// A Redis that holds the mapping rows of a projection.
#[derive(Debug, Clone)]
pub struct CacheConfig {
    pub name: String,
    pub url: ServerUrl,
    pub ca_file: Option<PathBuf>,
    pub is_cluster: bool,
    /// The projection, of kind `serial_mapping`.
    pub projection: String,
    pub time_to_live: TimeToLive,
}

/// Settings of reconciliations.
#[derive(Debug, Clone)]
pub struct ReconcileConfig {
    /// The time table; `None` = only on request.
    pub schedule: Option<Schedule>,
    pub settings: ReconcileSettings,
    /// Time after which a reconciliation no longer waits for a lane that should move and does not.
    pub lane_wait: Duration,
    /// Key that signs the history and hides row keys in it. Without it the history is not signed.
    pub signing_key: Option<Secret>,
    pub spot_checks: SpotCheckConfig,
}

impl ReconcileConfig {
    /// Returns whether reconciliations and spot checks run on request only.
    pub fn is_idle(&self) -> bool {
        self.schedule.is_none() && self.spot_checks.keys_a_second == 0
    }
}

/// Settings of spot checks of changed keys between reconciliations.
#[derive(Debug, Clone)]
pub struct SpotCheckConfig {
    /// Keys that are chosen each second for each source and store, at most; 0 = off.
    pub keys_a_second: usize,
    /// Times after the change at which a key is checked, rising.
    pub after: Vec<Duration>,
}

/// The times when reconciliations begin, and how long they may take.
#[derive(Debug, Clone)]
pub struct Schedule {
    pub cron: Cron,
    pub time_zone: TimeZone,
    /// Time for one run; the rest goes on in the next reconciliation's window.
    pub window: Duration,
}

/// Limits of everything that could grow. `raw.rs` has the reason for each default.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub batch_bytes: NonZeroUsize,
    pub in_flight_messages: NonZeroUsize,
    pub in_flight_bytes: NonZeroUsize,
    pub flush_rows: NonZeroUsize,
    pub statement_rows: NonZeroUsize,
    /// Direct feeds of one source in one process, at most.
    pub direct_feeds: NonZeroUsize,
    /// Source rows a second that a lane reads in a refresh, at most; `None` = as fast as it can.
    pub refresh_rows_per_second: Option<NonZeroU64>,
    pub position_interval: Duration,
    /// Time between two position messages of a quiet stream, so that `log.max_age` never empties it.
    pub keep_interval: Duration,
    pub heartbeat: Duration,
    pub retry_budget: Duration,
    pub shutdown: Duration,
}

/// Returns whether a text can name an installation, source, target, projection or cache: 1 to 32 letters, digits, `-`,
/// `_`.
pub fn is_name(text: &str) -> bool {
    (1..=raw::NAME_MAX_BYTES).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

impl Config {
    /// Reads the text of a configuration file; reports all problems, not just the first.
    pub fn parse(text: &str) -> Result<Self, Vec<Fault>> {
        Self::parse_with(text, |_| Vec::new())
    }

    /// Reads the text as [`Self::parse`] does, and adds the faults of a check that needs more than the configuration.
    pub fn parse_with(text: &str, check: impl Fn(&Self) -> Vec<Fault>) -> Result<Self, Vec<Fault>> {
        let raw: raw::Config =
            toml::from_str(text).map_err(|error| vec![unreadable::unreadable(text, &error)])?;
        let mut problems = Problems::default();
        let has_coupon_system = raw.has_coupon_system();
        let config = raw.resolve(&mut problems);
        if let Some(config) = &config {
            config.check_coupons(has_coupon_system, &mut problems);
            config.check_names(&mut problems);
            config.check_patterns(&mut problems);
            captured::check_sites(&config.sources, &mut problems);
            config.check_references(&mut problems);
            problems.0.extend(check(config));
        }
        match config {
            Some(config) if problems.0.is_empty() => Ok(config),
            _ => Err(problems.0),
        }
    }

    /// Returns the settings for new identifiers of payment documents; `None` = none are made here.
    pub fn flux_identifiers(&self) -> Option<&FluxIdentifierConfig> {
        self.flux.as_ref()?.identifiers.as_ref()
    }

    /// Returns how long tables of payment documents are kept, and their rows in the index.
    pub fn flux_retention(&self) -> FluxRetention {
        self.flux.as_ref().map_or_else(FluxRetention::default, |flux| flux.retention)
    }

    /// Returns the settings of the captured table of this name; `None` if no entity captures it.
    pub fn entity_of(&self, entity: Entity, database: &str, table: &str) -> Option<&EntityConfig> {
        let mut of_entity = self.entities.iter().filter(|known| known.entity == entity);
        of_entity.find(|known| known.tables.matches(database, table).is_some())
    }

    /// Returns whether rows of an entity's tables keep standing when a table leaves.
    pub fn retains(&self, entity: Entity) -> bool {
        self.entities.iter().any(|known| known.entity == entity && known.removal == Removal::Retain)
    }

    pub fn target(&self, name: &str) -> Option<&TargetConfig> {
        self.targets.iter().find(|target| target.name == name)
    }

    fn check_names(&self, problems: &mut Problems) {
        problems.unique("sources", self.sources.iter().map(|source| source.name.as_str()));
        problems.unique("targets", self.targets.iter().map(|target| target.name.as_str()));
        problems.unique("caches", self.caches.iter().map(|cache| cache.name.as_str()));
        problems.unique("caches.projection", self.caches.iter().map(|cache| cache.projection.as_str()));
        problems.unique("projections", self.projections.iter().map(|projection| projection.name.as_str()));
        let named = std::iter::once(("name".to_owned(), &self.name))
            .chain(self.sources.iter().map(|source| ("sources.name".to_owned(), &source.name)))
            .chain(self.targets.iter().map(|target| ("targets.name".to_owned(), &target.name)))
            .chain(
                self.projections.iter().map(|projection| ("projections.name".to_owned(), &projection.name)),
            )
            .chain(self.caches.iter().map(|cache| ("caches.name".to_owned(), &cache.name)));
        for (key, name) in named {
            if !is_name(name) {
                problems.add(
                    &key,
                    format!("`{name}`"),
                    "1 to 32 letters, digits, `-` and `_` (it names streams and lanes)",
                );
            }
        }
        for (key, number) in [("sources", self.sources.len()), ("entities", self.entities.len())] {
            if number == 0 {
                problems.add(key, "none".to_owned(), "at least one");
            }
        }
        for (index, source) in self.sources.iter().enumerate() {
            let is_too_close = |other: &&SourceConfig| {
                let distance = other.replica_server_id.get().abs_diff(source.replica_server_id.get());
                other.url.address() == source.url.address() && distance < REPLICA_SERVER_IDS
            };
            if let Some(other) = self.sources[..index].iter().find(is_too_close) {
                problems.add(
                    "sources.replica_server_id",
                    format!(
                        "{} for {} and {} for {}",
                        other.replica_server_id, other.name, source.replica_server_id, source.name
                    ),
                    "numbers at least 256 apart on one server: the reader's, and after it one for each lane",
                );
            }
        }
    }

    fn check_patterns(&self, problems: &mut Problems) {
        for (index, entity) in self.entities.iter().enumerate() {
            for other in &self.entities[..index] {
                if entity.tables.overlaps(&other.tables) {
                    problems.add(
                        "entities.tables",
                        format!("`{}` and `{}` can name the same table", other.tables, entity.tables),
                        "patterns that share no table",
                    );
                }
                if entity.entity == other.entity && entity.columns.len() != other.columns.len() {
                    let numbers = [other.columns.len(), entity.columns.len()];
                    let found =
                        format!("{} and {} columns of `{}`", numbers[0], numbers[1], entity.entity.name());
                    problems.add("entities.columns", found, "the same fields in each entry of an entity");
                }
            }
        }
    }

    fn check_references(&self, problems: &mut Problems) {
        for projection in &self.projections {
            if projection.targets.is_empty() {
                problems.add("projections.targets", "none".to_owned(), "at least one target name");
            }
            problems.unique("projections.targets", projection.targets.iter().map(String::as_str));
            for name in &projection.targets {
                let fits = |target: &TargetConfig| target.store == projection.kind.store();
                let needed = match self.target(name) {
                    Some(target) if fits(target) => continue,
                    Some(_) if projection.kind.store() == TargetStore::Mysql => {
                        "a target with a mysql:// URL"
                    }
                    Some(_) => "a target with an https:// or http:// URL",
                    None => "the name of a [[targets]] entry",
                };
                problems.add("projections.targets", format!("`{name}`"), needed);
            }
            if projection.kind.documents().is_some() && projection.targets.len() > 1 {
                let found = format!("{} in `{}`", projection.targets.len(), projection.name);
                problems.add("projections.targets", found, "one: an index lies in one cluster");
            }
            let entity = projection.kind.entity();
            if self.entities.iter().all(|config| config.entity != entity) {
                problems.add(
                    "projections",
                    format!("`{}` needs entity `{}`", projection.name, entity.name()),
                    "an [[entities]] entry for it",
                );
            }
        }
        for cache in &self.caches {
            let is_mapping =
                |known: &ProjectionConfig| known.name == cache.projection && known.kind.mapping().is_some();
            if !self.projections.iter().any(is_mapping) {
                let needed = "the name of a [[projections]] entry of kind `serial_mapping`";
                problems.add("caches.projection", format!("`{}`", cache.projection), needed);
            }
        }
    }
}

/// Collects every problem of a configuration.
#[derive(Debug, Default)]
struct Problems(Vec<Fault>);

impl Problems {
    fn add(&mut self, key: &str, found: String, needed: &str) {
        self.0.push(Fault::new(Code::ConfigInvalid, format!("configuration key {key}"), found).needs(needed));
    }

    fn unique<'n>(&mut self, key: &str, names: impl Iterator<Item = &'n str>) {
        let mut seen = HashSet::new();
        for name in names {
            if !seen.insert(name) {
                self.add(key, format!("`{name}` twice"), "each name once");
            }
        }
    }
}

#[cfg(test)]
mod tests;
