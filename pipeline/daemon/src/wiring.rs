//! Connects each port with its connector: the one file of the daemon that names concrete connectors.
//!
//! Making a [`Wiring`] connects nothing, so a server that is down hinders only the tasks that need it.

mod coupons;
mod derived;
mod documents;
mod flux;
mod lane;
mod lost;
mod operations;
mod passed;
mod relations;

use std::collections::BTreeMap;
use std::sync::Arc;

use anabranch_connectors::StoredProgress;
use anabranch_connectors::mysql::store::{
    self as mysql, MysqlHistory, MysqlMapping, MysqlOutbox, MysqlTarget,
};
use anabranch_connectors::nats::NatsLog;
use anabranch_connectors::redis::{RedisCache, RedisSettings};
use anabranch_connectors::search::{self, SearchTarget};
use anabranch_pipeline::capture::BusiestTables;
use anabranch_pipeline::config::{CacheConfig, Config, DocumentIndex, ProjectionConfig, SourceConfig};
use anabranch_pipeline::deliver::Shared;
use anabranch_pipeline::error::{Class, Code, Fault};
use anabranch_pipeline::identifiers::flux::CapturedNumbers;
use anabranch_pipeline::ports::SourceConnector;
use anabranch_pipeline::projections::Projection;
use anabranch_pipeline::reconcile::TABLES_AT_ONCE;
use anabranch_pipeline::records::{LaneId, Progress};
use tokio::sync::OnceCell;

/// Connections of a reconciliation to each target: pages, and after them single rows.
const RECONCILE_CONNECTIONS: usize = TABLES_AT_ONCE;

use self::flux::captured_numbers;
use self::passed::PassedState;

pub use self::coupons::{
    COUPON_ACK_WAIT, CouponCaller, CouponColumns, CouponColumnsRow, CouponDelivery, CouponLedger,
    CouponQueue, CouponQueuePart, CouponSources, CouponTables, PastReports,
};
pub use self::derived::{DerivedStore, Newest, RetiredDocument, RetiredTable, SweepPlace};
pub use self::documents::Documents;
pub use self::flux::{FluxIdentifiers, FluxSequence};
pub use self::lane::{LaneStore, lanes};
pub use self::operations::OperationRecords;
pub use self::relations::RelationIndex;
pub use anabranch_connectors::mysql::source::{
    BinlogKept, CapturedTable, MysqlSource as Source, SourceMeasure, Survey, SurveyedColumn, TableExtent,
    TableSize, TextRow, accepts_data_type, holds_gtids,
};
pub use anabranch_connectors::mysql::store::{Duplicate, MysqlMapping as Mapping};
pub use anabranch_connectors::mysql::{PoolName, PoolUse, pool_uses};
pub use anabranch_connectors::nats::{LeaseHolder, NatsLog as Log, StreamState, TailFrom};
pub use anabranch_connectors::redis::RedisCache as CodeStore;
pub use anabranch_connectors::search::{
    DeadLetter, DocumentQuery, FoundDocument as Document, Overview, PART_CHARACTERS_MIN, Page as SearchPage,
    PageEnd,
};
pub use anabranch_connectors::{SpillRoom, certificate_ends};

/// Every connector of one configuration. Cheap to clone.
#[derive(Clone)]
pub struct Wiring(Arc<Connectors>);

struct Connectors {
    config: Config,
    /// The log, connected by the first call that needs it; the client reconnects by itself.
    log: OnceCell<NatsLog>,
    sources: BTreeMap<String, WiredSource>,
    targets: BTreeMap<String, Target>,
    projections: BTreeMap<String, Projection>,
    caches: BTreeMap<String, Cache>,
}

/// A cache with the tables that it is filled from.
pub struct Cache {
    pub config: CacheConfig,
    pub redis: RedisCache,
    pub mapping: MysqlMapping,
    /// Outboxes, one for each target of the projection.
    pub outboxes: Vec<MysqlOutbox>,
}

struct WiredSource {
    config: SourceConfig,
    connector: Arc<Source>,
    shared: Shared,
    busiest: BusiestTables,
    numbers: Option<CapturedNumbers>,
    passed: PassedState,
}

struct Target {
    server: TargetServer,
    /// Set by the first pre-flight of this process that passed.
    checked: OnceCell<()>,
}

/// A target's server, of either kind.
enum TargetServer {
    Mysql(MysqlTarget),
    Search(SearchTarget),
}

impl Wiring {
    pub fn new(config: Config) -> Self {
        let numbers = captured_numbers(&config);
        let sources = config
            .sources
            .iter()
            .map(|source| {
                let connector = Arc::new(Source::new(source, &config.entities, config.limits.heartbeat));
                let shared = Shared::new(config.limits.direct_feeds.get());
                let (name, config) = (source.name.clone(), source.clone());
                let (busiest, numbers) = (BusiestTables::default(), numbers.clone());
                let passed = PassedState::default();
                (name, WiredSource { config, connector, shared, busiest, numbers, passed })
            })
            .collect();
        let mysql = MysqlTarget::all(&config);
        // Caches share the targets of the lanes, which announce their commits.
        let cache = |cache: &CacheConfig| Some((cache.name.clone(), Cache::new(&config, cache, &mysql)?));
        let caches = config.caches.iter().filter_map(cache).collect();
        let mysql = mysql.into_iter().map(TargetServer::Mysql);
        let search = SearchTarget::all(&config).into_iter().map(TargetServer::Search);
        let targets = mysql
            .chain(search)
            .map(|server| (server.name().to_owned(), Target { server, checked: OnceCell::new() }))
            .collect();
        let projections = config
            .projections
            .iter()
            .map(|projection| (projection.name.clone(), Projection::new(projection)))
            .collect();
        Self(Arc::new(Connectors { sources, targets, projections, caches, log: OnceCell::new(), config }))
    }

    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// Returns the documents that answer searches: those of the first projection that has some.
    pub fn documents(&self) -> Option<Documents> {
        self.all_documents().next()
    }

    /// Returns the documents of every projection that has some.
    pub fn all_documents(&self) -> impl Iterator<Item = Documents> {
        self.0.config.projections.iter().filter_map(|projection| {
            let DocumentIndex { index, tombstones_kept } = projection.kind.documents()?;
            let target = SearchTarget::new(&self.0.config, projection.targets.first()?)?;
            let (projection, index) = (projection.name.clone(), index.clone());
            Some(Documents { projection, target, index, tombstones_kept: *tombstones_kept })
        })
    }

    /// Returns the documents of a projection.
    pub fn documents_of(&self, projection: &str) -> Result<Documents, Fault> {
        self.projection(projection)?;
        self.all_documents().find(|documents| documents.projection == projection).ok_or_else(|| {
            Fault::new(Code::ConfigInvalid, format!("projection {projection}"), "it has no search documents")
                .needs("a projection of kind `serial_documents`")
        })
    }

    /// Returns the log, connected at the first call that succeeds.
    pub async fn log(&self) -> Result<&NatsLog, Fault> {
        let config = &self.0.config;
        self.0.log.get_or_try_init(|| NatsLog::connect(&config.log, &config.name, &config.limits)).await
    }

    pub fn source(&self, name: &str) -> Result<&Source, Fault> {
        Ok(&self.wired_source(name)?.connector)
    }

    pub fn source_config(&self, name: &str) -> Result<&SourceConfig, Fault> {
        Ok(&self.wired_source(name)?.config)
    }

    /// Returns the connector of a source for a caller that keeps it.
    pub fn source_connector(&self, name: &str) -> Result<Arc<Source>, Fault> {
        Ok(Arc::clone(&self.wired_source(name)?.connector))
    }

    fn wired_source(&self, name: &str) -> Result<&WiredSource, Fault> {
        self.0.sources.get(name).ok_or_else(|| unknown("source", name))
    }

    pub fn projection(&self, name: &str) -> Result<&Projection, Fault> {
        self.0.projections.get(name).ok_or_else(|| unknown("projection", name))
    }

    /// Returns the store of a lane, not connected yet.
    pub fn lane(&self, id: &LaneId) -> Result<LaneStore, Fault> {
        self.target(&id.target)?.server.lane(id).ok_or_else(|| unknown("lane", &id.to_string()))
    }

    /// Returns the derived rows of a projection, on each of its targets.
    pub fn derived(&self, projection: &str) -> Result<Vec<DerivedStore>, Fault> {
        self.projection(projection)?;
        let of_projection = self.0.config.projections.iter().find(|known| known.name == projection);
        let targets = of_projection.map(|known| known.targets.as_slice()).unwrap_or_default();
        let derived = |target: &String| {
            let derived = match &self.target(target)?.server {
                TargetServer::Mysql(server) => {
                    server.rows(projection, RECONCILE_CONNECTIONS).map(DerivedStore::Mysql)
                }
                TargetServer::Search(server) => server.rows(projection).map(DerivedStore::Search),
            };
            derived.ok_or_else(|| unknown("projection", projection))
        };
        targets.iter().map(derived).collect()
    }

    /// Returns the history of reconciliations, which is in the first MySQL target.
    pub fn history(&self) -> Result<MysqlHistory, Fault> {
        let first =
            self.0.config.targets.iter().find_map(|target| match &self.target(&target.name).ok()?.server {
                TargetServer::Mysql(server) => Some(MysqlHistory::new(server)),
                TargetServer::Search(_) => None,
            });
        first.ok_or_else(|| {
            Fault::new(
                Code::ReconcileRefused,
                "configuration",
                "no target can store the history of reconciliations",
            )
            .needs("a target with mysql://, whose control database stores it")
        })
    }

    /// Returns the projection whose mapping tables answer lookups: the first with a cache, or else the first.
    pub fn lookup_projection(&self) -> Option<&ProjectionConfig> {
        let config = &self.0.config;
        let is_cached = |name: &str| config.caches.iter().any(|cache| cache.projection == name);
        let mapping = |known: &&ProjectionConfig| known.kind.mapping().is_some();
        config.projections.iter().filter(mapping).min_by_key(|known| !is_cached(&known.name))
    }

    /// Returns a reader of a projection's mapping tables, with so many `connections` to each target.
    pub fn mapping(&self, projection: &str, connections: usize) -> Option<Mapping> {
        Mapping::new(&self.0.config, projection, connections)
    }

    /// Returns the cache of a projection.
    pub fn cache_of(&self, projection: &str) -> Option<&Cache> {
        self.0.caches.values().find(|cache| cache.config.projection == projection)
    }

    pub fn cache(&self, name: &str) -> Result<&Cache, Fault> {
        self.0.caches.get(name).ok_or_else(|| unknown("cache", name))
    }

    /// Does the pre-flight of one cache; returns its faults.
    pub async fn check_cache(&self, name: &str) -> Vec<Fault> {
        match self.cache(name) {
            Ok(cache) => cache.redis.check().await,
            Err(fault) => vec![fault],
        }
    }

    fn target(&self, name: &str) -> Result<&Target, Fault> {
        self.0.targets.get(name).ok_or_else(|| unknown("target", name))
    }

    /// Returns the names of all targets.
    pub fn targets(&self) -> impl Iterator<Item = &str> {
        self.0.targets.keys().map(String::as_str)
    }

    /// Returns the end of a MySQL target's certificate, as its server says it; `None` if it does not.
    pub async fn certificate_ends(&self, target: &str) -> Result<Option<String>, Fault> {
        match &self.target(target)?.server {
            TargetServer::Mysql(server) => server.certificate_ends().await,
            TargetServer::Search(_) => Ok(None),
        }
    }

    /// Returns the progress of every configured lane of a target. A lane without a row has not begun and is left out,
    /// as is one whose row is damaged: its own task reports that.
    pub async fn progress(&self, target: &str) -> Result<BTreeMap<LaneId, Progress>, Fault> {
        let stored = self.stored_progress(target).await?;
        Ok(stored.into_iter().filter(|(_, row)| row.is_trusted).map(|(id, row)| (id, row.progress)).collect())
    }

    /// Returns the progress of every lane of a source, on all targets. All targets must answer and all rows be whole:
    /// one that is missing may be the one that is furthest.
    pub async fn progress_of_source(&self, source: &str) -> Result<Vec<Progress>, Fault> {
        let mut all = Vec::new();
        for target in self.targets() {
            for (id, row) in self.stored_progress(target).await? {
                match id.source == source {
                    true if !row.is_trusted => return Err(row.damaged(&format!("target {target}"))),
                    true => all.push(row.progress),
                    false => {}
                }
            }
        }
        Ok(all)
    }

    /// Returns the progress rows of a target that belong to configured lanes.
    async fn stored_progress(&self, target: &str) -> Result<BTreeMap<LaneId, StoredProgress>, Fault> {
        let server = &self.target(target)?.server;
        let configured = server.lane_ids();
        let stored = server.progress().await?.into_iter().map(|row| {
            let (projection, source) = (row.projection.clone(), row.source.clone());
            (LaneId { projection, target: server.name().to_owned(), source, lane: row.lane }, row)
        });
        Ok(stored.filter(|(id, _)| configured.contains(id)).collect())
    }

    /// Does the pre-flight of one source; returns its faults.
    pub async fn check_source(&self, name: &str) -> Vec<Fault> {
        match self.source(name) {
            Ok(source) => source.check().await,
            Err(fault) => vec![fault],
        }
    }

    /// Returns facts about one source that are no faults and yet matter.
    pub async fn source_warnings(&self, name: &str) -> Vec<String> {
        match self.source(name) {
            Ok(source) => source.warnings().await,
            Err(_) => Vec::new(),
        }
    }

    /// Does the pre-flight of one target; returns its faults.
    pub async fn check_target(&self, name: &str) -> Vec<Fault> {
        match self.target(name) {
            Ok(target) => target.server.check().await,
            Err(fault) => vec![fault],
        }
    }

    /// Does the pre-flight of the log (server, streams, bucket); returns its faults.
    pub async fn check_log(&self) -> Vec<Fault> {
        match self.log().await {
            Ok(log) => log.check(&self.source_names()).await,
            Err(fault) => vec![fault],
        }
    }

    /// Does the pre-flight of a target's lanes with one result. Once it has passed it is not repeated: later faults
    /// show themselves.
    pub async fn require_target(&self, name: &str) -> Result<(), Fault> {
        let target = self.target(name)?;
        let check = || async { worst(target.server.check_for_lanes().await) };
        target.checked.get_or_try_init(check).await.copied()
    }

    /// Creates streams and bucket; returns a line for each that was made or found.
    pub async fn set_up_log(&self) -> Result<Vec<String>, Vec<Fault>> {
        let log = self.log().await.map_err(|fault| vec![fault])?;
        Ok(log.setup(&self.source_names()).await?.iter().map(ToString::to_string).collect())
    }

    /// Creates the objects that progress and rows of a target need; returns a line about them.
    pub async fn set_up_target(&self, name: &str) -> Result<Vec<String>, Vec<Fault>> {
        let one = |fault| vec![fault];
        Ok(vec![made_at(name, self.target(name).map_err(one)?.server.setup(None).await.map_err(one)?)])
    }

    /// Returns the derived tables or the index of a projection that are gone from a target though lanes filled them.
    pub async fn gone_tables(&self, target: &str, projection: &str) -> Result<Vec<String>, Fault> {
        match &self.target(target)?.server {
            TargetServer::Mysql(mysql) => mysql.gone_tables(projection).await,
            TargetServer::Search(search) => search.gone_indexes(projection).await,
        }
    }

    /// Creates what [`Self::gone_tables`] returns; the lanes must have been asked to read all tables before.
    pub async fn refill_target(&self, target: &str, projection: &str) -> Result<String, Fault> {
        Ok(made_at(target, self.target(target)?.server.setup(Some(projection)).await?))
    }

    fn source_names(&self) -> Vec<String> {
        self.0.config.sources.iter().map(|source| source.name.clone()).collect()
    }
}

impl TargetServer {
    fn name(&self) -> &str {
        match self {
            Self::Mysql(target) => target.name(),
            Self::Search(target) => target.name(),
        }
    }

    fn lane_ids(&self) -> Vec<LaneId> {
        match self {
            Self::Mysql(target) => target.lane_ids(),
            Self::Search(target) => target.lane_ids(),
        }
    }

    fn lane(&self, id: &LaneId) -> Option<LaneStore> {
        match self {
            Self::Mysql(target) => target.lane(id).map(LaneStore::Tables),
            Self::Search(target) => target.lane(id).map(LaneStore::Documents),
        }
    }

    async fn progress(&self) -> Result<Vec<StoredProgress>, Fault> {
        match self {
            Self::Mysql(target) => target.progress().await,
            Self::Search(target) => target.progress().await,
        }
    }

    async fn check(&self) -> Vec<Fault> {
        match self {
            Self::Mysql(target) => target.check().await,
            Self::Search(target) => target.check().await,
        }
    }

    async fn check_for_lanes(&self) -> Vec<Fault> {
        match self {
            Self::Mysql(target) => target.check_for_lanes().await,
            Self::Search(target) => target.check().await,
        }
    }

    /// Creates missing objects; returns their counts as text, `None` if nothing was missing.
    async fn setup(&self, refilled: Option<&str>) -> Result<Option<String>, Fault> {
        Ok(match self {
            Self::Mysql(target) => {
                let made = match refilled {
                    Some(projection) => target.refill(projection).await?,
                    None => target.setup().await?,
                };
                let mysql::SetupReport { databases, tables, progress_rows, .. } = made;
                let text = format!("{databases} databases, {tables} tables, {progress_rows} progress rows");
                (made != mysql::SetupReport::default()).then_some(text)
            }
            Self::Search(target) => {
                let made = match refilled {
                    Some(projection) => target.refill(projection).await?,
                    None => target.setup().await?,
                };
                let search::SetupReport { indexes, aliases, progress_documents } = made;
                let text = format!(
                    "{indexes} indexes, {aliases} further aliases, {progress_documents} progress documents"
                );
                (made != search::SetupReport::default()).then_some(text)
            }
        })
    }
}

/// Connections over which a cache is filled from each target: fills come in batches, of which few are on the way.
const FILL_CONNECTIONS: usize = 4;

impl Cache {
    /// Returns a cache; `None` when its projection has no mapping tables, which the configuration does not allow.
    fn new(config: &Config, cache: &CacheConfig, targets: &[MysqlTarget]) -> Option<Self> {
        let mapping = MysqlMapping::new(config, &cache.projection, FILL_CONNECTIONS)?;
        let settings = RedisSettings {
            name: cache.name.clone(),
            url: cache.url.clone(),
            ca_file: cache.ca_file.clone(),
            is_cluster: cache.is_cluster,
            prefix: format!("{}:{}", config.name, cache.projection),
        };
        Some(Self {
            config: cache.clone(),
            redis: RedisCache::new(settings),
            mapping,
            outboxes: targets.iter().filter_map(|target| target.outbox(&cache.projection)).collect(),
        })
    }
}

fn made_at(target: &str, made: Option<String>) -> String {
    match made {
        None => format!("target {target}: as needed"),
        Some(made) => format!("target {target}: created {made}"),
    }
}

fn unknown(kind: &str, name: &str) -> Fault {
    Fault::new(Code::ConfigInvalid, format!("{kind} {name}"), "it is not in the configuration")
        .needs(format!("the name of a configured {kind}"))
}

/// Logs every fault, and returns one that will not pass before one that may.
fn worst(faults: Vec<Fault>) -> Result<(), Fault> {
    let others = faults.iter().filter(|_| faults.len() > 1);
    others.for_each(|fault| tracing::warn!(%fault, "pre-flight"));
    faults.into_iter().min_by_key(|fault| fault.class() == Class::Transient).map_or(Ok(()), Err)
}
