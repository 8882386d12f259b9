//! A MySQL/MariaDB server as a source of changes.
//!
//! `transport.rs` brings events, `stream.rs` turns them into changes with the help of `table_map.rs`, `rows.rs`,
//! `query.rs` and `gtid.rs`. `resume.rs` decides whether a server can be read on, `locate.rs` finds places of the past;
//! `session.rs` asks the server small questions, `preflight.rs` many at once; `chunk.rs` reads tables as they are. What
//! happens to changes afterwards is not known here.

mod alteration;
mod behind;
mod character_sets;
mod chunk;
mod column;
mod compressed;
mod decimal;
mod estimate;
mod events;
mod group;
mod gtid;
pub mod inspect;
mod instance;
mod inventory;
mod kept;
mod last_warning;
mod locate;
mod maps;
mod outcome;
mod pending;
mod position;
mod preflight;
mod preflight_tables;
mod pressure;
mod query;
mod reread;
mod resume;
mod rows;
mod runs;
mod session;
mod statement;
mod stream;
mod survey;
mod table_map;
mod tables;
mod tokens;
mod transport;
mod unseen;
mod versions;
pub mod wire;
mod withheld;
mod xa;

use std::time::Duration;

use anabranch_pipeline::config::{EntityConfig, SourceConfig};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{BinlogPoint, Entry, Located, SourceConnector};
use anabranch_schemas::envelope::CapturedFields;
use anabranch_schemas::lsn::{FIRST_EPOCH, Lsn};
use anabranch_schemas::shard::ShardId;
use anabranch_schemas::timeline::Timeline;
use tokio::sync::Mutex;

use self::character_sets::Collations;
use self::gtid::{Flavor, Gtids};
pub use self::inventory::TextRow;
pub use self::kept::BinlogKept;
pub(super) use self::kept::CERTIFICATE;
use self::position::{FILE_START, Position};
use self::session::{Address, Session};
pub use self::stream::MysqlStream;
use self::stream::{Beginning, Server};
pub use self::survey::{Survey, SurveyedColumn};
use self::tables::CapturedTables;
pub use self::tables::{CapturedTable, accepts_data_type};
use self::transport::{Start, Transport};
use super::connection::async_options;
use super::error::Side;
use super::pool::Pool;

/// A source as configured; connections are made when they are needed.
pub struct MysqlSource {
    config: SourceConfig,
    entities: Vec<EntityConfig>,
    heartbeat: Duration,
    address: Address,
    /// Kept open between calls of `head`.
    head: Mutex<Option<Session>>,
    /// For lookups.
    questions: Pool,
    /// For chunks of rows.
    snapshots: Pool,
    plans: chunk::plan::Plans,
}

/// Questions of lookups at once: the source has other work.
const QUESTIONS: usize = 4;
/// Chunks and pages at once: the lanes of two projections, or of one beside a reconciliation.
const SNAPSHOTS: usize = 4;

/// Whether the set, in the notation of a server of this flavor, holds every group of `wanted`; `None` when one of them
/// is no such set.
pub fn holds_gtids(flavor: &str, set: &str, wanted: &str) -> Option<bool> {
    let flavor = [Flavor::MariaDb, Flavor::MySql].into_iter().find(|known| known.as_str() == flavor)?;
    Some(Gtids::parse(flavor, set)?.hold(&Gtids::parse(flavor, wanted)?))
}

impl MysqlSource {
    /// `entities` are all configured ones; `config` says which of them this source has. The server sends a heartbeat
    /// after `heartbeat` of silence, and is stalled after two.
    pub fn new(config: &SourceConfig, entities: &[EntityConfig], heartbeat: Duration) -> Self {
        let address = Address::of(config);
        let (side, ca_file) = ((Side::Source, address.subject.clone()), config.ca_file.as_deref());
        Self {
            config: config.clone(),
            entities: entities.to_vec(),
            heartbeat,
            questions: Pool::new(side.clone(), &config.url, ca_file, QUESTIONS),
            snapshots: Pool::with_session(side, &config.url, ca_file, SNAPSHOTS, chunk::SESSION),
            plans: chunk::plan::Plans::default(),
            address,
            head: Mutex::new(None),
        }
    }

    fn fault(&self, code: Code, found: impl Into<String>) -> Fault {
        Fault::new(code, self.address.subject.as_str(), found)
    }

    /// What the server knows a reading by.
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

    /// What to ask the server for, and where that is.
    async fn begin(
        &self,
        session: &mut Session,
        entry: Entry,
        epoch: u16,
    ) -> Result<(Start, Beginning), Fault> {
        match entry {
            Entry::Earliest => {
                let file = self.oldest(session).await?;
                let position = self.position(epoch, &file, FILE_START)?;
                Ok((Start::Position { file, position: FILE_START }, fresh(position, None)))
            }
            Entry::Latest => {
                let Some(end) = session.end().await? else {
                    let executed = session.text("SELECT @@GLOBAL.gtid_executed").await?.replace('\n', "");
                    return self.behind_set(session, &executed, epoch).await;
                };
                let gtids = self.gtids(session, &end.gtid_set)?;
                let position = self.position(epoch, &end.file, end.position)?;
                Ok((Start::Position { file: end.file, position: end.position }, fresh(position, Some(gtids))))
            }
            Entry::Gtid(text) => self.behind_set(session, &text, epoch).await,
            Entry::Resume { resume, position, server } => {
                self.resume(session, resume, position, &server, epoch).await
            }
        }
    }

    /// After a set of groups, wherever that is.
    async fn behind_set(
        &self,
        session: &mut Session,
        text: &str,
        epoch: u16,
    ) -> Result<(Start, Beginning), Fault> {
        let file = self.oldest(session).await?;
        let position = self.position(epoch, &file, FILE_START)?;
        let beginning = Beginning { is_by_gtid: true, ..fresh(position, Some(self.gtids(session, text)?)) };
        Ok((Start::Gtids(self.gtids(session, text)?), beginning))
    }

    async fn oldest(&self, session: &mut Session) -> Result<String, Fault> {
        let logs = session.binlogs().await?;
        logs.into_iter()
            .next()
            .map(|(name, _)| name)
            .ok_or_else(|| session::binlog_off(&self.address.subject))
    }

    /// The captured tables, those that exist now already known.
    async fn tables(&self, session: &mut Session) -> Result<CapturedTables, Fault> {
        let mut tables = CapturedTables::new(&self.config, &self.entities);
        let patterns: Vec<_> = tables
            .entities()
            .map(|entity| (entity.tables.database_like(), entity.tables.table_like()))
            .collect();
        for (database, table) in patterns {
            // Before the tables: a database that is new between the two answers counts as not listed.
            for name in session.databases_like(&database).await? {
                tables.add_database(name);
            }
            for (database, table) in session.tables_like(&database, &table).await? {
                tables.resolve(&database, &table)?;
            }
        }
        Ok(tables)
    }
}

/// A reading that goes on from none.
fn fresh(position: Position, gtids: Option<Gtids>) -> Beginning {
    Beginning {
        position,
        gtids,
        sent: Lsn::ZERO,
        partial: None,
        is_by_gtid: false,
        entered_at: None,
        follows: None,
    }
}

impl MysqlSource {
    /// What is no fault and yet should be known, each in a sentence.
    pub async fn warnings(&self) -> Vec<String> {
        preflight::warnings(&self.config, &self.entities).await
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

    async fn open(&self, entry: Entry, latest: &Timeline, replica_slot: u32) -> Result<MysqlStream, Fault> {
        let mut session = Session::open(&self.address).await?;
        let flavor = session.version.flavor;
        let server = Server {
            identity: session.identity().await?,
            flavor,
            has_lower_case_names: session.has_lower_case_names().await?,
            collations: Collations::list(&mut session).await?,
        };
        let epoch = latest.followed_by(&server.identity).epoch;
        let (start, beginning) = self.begin(&mut session, entry, epoch).await?;
        let tables = self.tables(&mut session).await?;
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
        let tables = self.tables(&mut session).await?;
        session.close().await;
        Ok(tables.shards().collect())
    }

    async fn head(&self) -> Result<Lsn, Fault> {
        Ok(self.head_and_clock().await?.0)
    }
}

impl MysqlSource {
    /// The kept connection, or a new one. It is put back after an answer only, so that a cancelled or failed question
    /// never leaves a half-used one behind.
    async fn taken_out(&self, kept: &mut Option<Session>) -> Result<Session, Fault> {
        match kept.take() {
            Some(session) => Ok(session),
            None => Session::open(&self.address).await,
        }
    }

    /// The GTIDs of the binlog up to its present end, in the server's own notation.
    pub async fn written_gtids(&self) -> Result<String, Fault> {
        let mut kept = self.head.lock().await;
        let mut session = self.taken_out(&mut kept).await?;
        let gtid_set = session.written_gtids().await?;
        *kept = Some(session);
        Ok(gtid_set)
    }

    /// [`SourceConnector::head`], and the server's clock beside it: microseconds since the Unix epoch. Commit times are
    /// of this clock.
    pub async fn head_and_clock(&self) -> Result<(Lsn, u64), Fault> {
        let mut kept = self.head.lock().await;
        let mut session = self.taken_out(&mut kept).await?;
        let (file, position) = session.end_position().await?;
        let clock_us = session.text("SELECT CAST(FLOOR(UNIX_TIMESTAMP(NOW(6)) * 1000000) AS CHAR)").await?;
        *kept = Some(session);
        let clock_us = clock_us.parse().unwrap_or_default();
        Ok((self.lsn(FIRST_EPOCH, &file, position)?, clock_us))
    }
}
