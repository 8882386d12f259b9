//! A MySQL/MariaDB server as a source of changes, in four folders:
//!
//! - `decode/` decodes bytes into values: events, rows, statements and sets of GTIDs. It does no I/O.
//! - `server/` sends small queries, and decides which tables of a server are captured.
//! - `stream/` reads the binlog: it makes events into changes in a batch.
//! - `snapshot/` reads the present rows of tables.
//!
//! Dependencies run one way: `decode ← server ← stream` and `decode ← server ← snapshot`. Streams and snapshots do not
//! know each other. This file has the source that they share and its port. No file here knows what happens to changes
//! afterwards.

mod decode;
mod server;
mod snapshot;
mod stream;

use std::time::Duration;

use anabranch_pipeline::config::{EntityConfig, SourceConfig};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{BinlogPoint, BinlogStart, Located, SourceConnector};
use anabranch_schemas::envelope::CapturedFields;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use anabranch_schemas::timeline::Timeline;
use tokio::sync::Mutex;

use self::decode::gtid::Gtids;
pub use self::decode::gtid::holds_gtids;
use self::decode::position::{self, Position};
pub use self::server::extent::TableExtent;
pub use self::server::inventory::TextRow;
pub use self::server::kept::BinlogKept;
pub(super) use self::server::kept::CERTIFICATE;
pub use self::server::measure::{SourceMeasure, TableSize};
use self::server::preflight;
use self::server::session::{Address, Session};
pub use self::server::survey::{Survey, SurveyedColumn};
pub use self::server::tables::{CapturedTable, accepts_data_type};
use self::stream::Server;
use self::stream::transport::Transport;
pub use self::stream::{MysqlStream, inspect};
use super::connection::async_options;
use super::error::Side;
use super::pool::Pool;

/// A source as configured; it connects when a method needs a connection.
pub struct MysqlSource {
    config: SourceConfig,
    entities: Vec<EntityConfig>,
    heartbeat: Duration,
    address: Address,
    /// Session kept open between calls of `head`.
    head: Mutex<Option<Session>>,
    /// Connections for lookups.
    questions: Pool,
    /// Connections for chunks of rows.
    snapshots: Pool,
    plans: snapshot::plan::Plans,
}

/// Connections for lookups at once: the source has other work.
const QUESTIONS: usize = 4;
/// Connections for chunks and pages at once: for the lanes of two projections, or of one and a reconciliation.
const SNAPSHOTS: usize = 4;

impl MysqlSource {
    /// Creates the source. `entities` are all configured ones; `config` names those of this source. The server sends a
    /// heartbeat after `heartbeat` of silence, and counts as stalled after twice that time.
    pub fn new(config: &SourceConfig, entities: &[EntityConfig], heartbeat: Duration) -> Self {
        let address = Address::of(config);
        let (side, ca_file) = ((Side::Source, address.subject.clone()), config.ca_file.as_deref());
        Self {
            config: config.clone(),
            entities: entities.to_vec(),
            heartbeat,
            questions: Pool::new(side.clone(), &config.url, ca_file, QUESTIONS)
                .shown(&config.name, "queries"),
            snapshots: Pool::with_session(side, &config.url, ca_file, SNAPSHOTS, snapshot::SESSION)
                .shown(&config.name, "snapshots"),
            plans: snapshot::plan::Plans::default(),
            address,
            head: Mutex::new(None),
        }
    }

    fn fault(&self, code: Code, found: impl Into<String>) -> Fault {
        Fault::new(code, self.address.subject.as_str(), found)
    }

    /// Returns the server id by which the source knows this replica slot.
    fn replica_server_id(&self, replica_slot: u32) -> u32 {
        self.config.replica_server_id.get().saturating_add(replica_slot)
    }

    fn lsn(&self, epoch: u16, file: &str, position: u64) -> Result<Lsn, Fault> {
        position::lsn(epoch, file, position)
            .map_err(|error| self.fault(Code::BinlogEventCorrupt, error.to_string()))
    }

    fn position(&self, epoch: u16, file: &str, position: u64) -> Result<Position, Fault> {
        Position::new(epoch, file.to_owned(), position)
            .map_err(|error| self.fault(Code::BinlogEventCorrupt, error.to_string()))
    }

    fn gtids(&self, session: &Session, text: &str) -> Result<Gtids, Fault> {
        Gtids::parse(session.version.flavor, text).ok_or_else(|| {
            self.fault(Code::BinlogGtidUnknown, format!("`{text}` is not a GTID set of this server"))
                .needs("domain-server-sequence,… (MariaDB) or uuid:first-last,… (MySQL)")
        })
    }
}

impl MysqlSource {
    /// Returns conditions that are no fault but that an operator should know, each in a sentence.
    pub async fn warnings(&self) -> Vec<String> {
        preflight::warnings(&self.config, &self.entities).await
    }

    /// Returns the state of the server that a pre-flight judges: one that passed holds while this stays the same.
    pub async fn judged_state(&self) -> Result<String, Fault> {
        preflight::judged_state(&self.config, &self.entities).await
    }
}

impl SourceConnector for MysqlSource {
    type Source = MysqlStream;

    fn captured(&self) -> CapturedFields {
        let here = self.entities.iter().filter(|known| self.config.entities.contains(&known.entity));
        CapturedFields::new(here.map(|known| (known.entity, known.columns.len())))
    }

    async fn check(&self) -> Vec<Fault> {
        preflight::check(&self.config, &self.entities).await
    }

    async fn open(
        &self,
        entry: BinlogStart,
        latest: &Timeline,
        replica_slot: u32,
    ) -> Result<MysqlStream, Fault> {
        let mut session = Session::open(&self.address).await?;
        let flavor = session.version.flavor;
        let server = Server {
            identity: session.identity().await?,
            flavor,
            has_lower_case_names: session.has_lower_case_names().await?,
            collations: session.collations().await?,
        };
        let epoch = latest.followed_by(&server.identity).epoch;
        let (start, beginning) = self.begin(&mut session, entry, epoch).await?;
        let mut tables = self.list_tables(&mut session).await?;
        self.note_unfit(&mut session, &mut tables).await?;
        match session.undecided_branches().await {
            Some(0) => {}
            Some(branches) => tracing::warn!(
                source = self.config.name,
                branches,
                "XA branches wait for their decision (XA RECOVER lists them); after a restart the binlog is read from \
                 before the oldest"
            ),
            None => tracing::debug!(source = self.config.name, "the account may not list XA branches"),
        }
        session.close().await;
        let options = async_options(&self.config.url, self.config.ca_file.as_deref());
        let replica = self.replica_server_id(replica_slot);
        let subject = self.address.subject.as_str();
        let transport = Transport::open(options, subject, flavor, replica, &start, self.heartbeat).await?;
        Ok(MysqlStream::new(transport, &self.config, server, tables, beginning))
    }

    async fn locate(&self, place: BinlogPoint, epoch: u16) -> Result<Located, Fault> {
        self.locate_place(place, epoch).await
    }

    async fn shards(&self) -> Result<Vec<ShardId>, Fault> {
        let mut session = Session::open(&self.address).await?;
        let tables = self.list_tables(&mut session).await?;
        session.close().await;
        Ok(tables.shards().collect())
    }

    async fn head(&self) -> Result<Lsn, Fault> {
        Ok(self.head_and_clock().await?.0)
    }
}
