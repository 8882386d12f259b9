//! The store of one lane: its own connection, and one fenced transaction a flush.
//!
//! A flush is packets `START TRANSACTION; <fence and progress>; <rows>` and then `COMMIT` alone. Until COMMIT is sent
//! nothing is changed, so after a deadlock, a lock time-out or a lost connection the whole flush is repeated: the fence
//! still holds. When the connection is lost at COMMIT the outcome is unknown. [`LaneStore::load`] then waits until the
//! server has settled it, and shows whether the revision moved. A paused lane loses its transaction before its lease
//! ends. A dropped call drops the connection, whose state is unknown.

mod present;
mod withdrawn;

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::failpoints;
use anabranch_pipeline::metrics as names;
use anabranch_pipeline::ports::{ClaimsPage, LEASE_TIME_TO_LIVE, LaneStore, ShardPage};
use anabranch_pipeline::projections::Assignment;
use anabranch_pipeline::records::{DerivedRow, Flush, LaneId, Mutation, Progress, RetiredShards};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use metrics::counter;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row};

use super::ddl::RETIRED_TABLE;
use super::layout::{FlushLayout, OccupiedTable};
use super::outbox::{CACHE_TABLE, OutboxText, PACKED_BYTES_MAX};
use super::progress::{self, literal};
use super::replace;
use super::retired;
use super::session::TextRow;
use super::statements::{self, TextLimits};
use super::withdraw::{PresentShards, Search};
use super::{MysqlRows, MysqlTarget};
use crate::mysql::connection::{async_options, quote_table};
use crate::mysql::error::{Side, from_async};
use crate::mysql::remedy::{SETUP_COMMAND, with_remedy};
use crate::mysql::target_session::target_session_with;
use crate::progress::StoredProgress;
use crate::refusals::Account;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of a packet: enough to withdraw a shard of millions of users; a server that does not answer is given up.
const PACKET_TIMEOUT: Duration = Duration::from_secs(120);
/// Deadlocks are rare with one order of locks; after so many failures the flush is better begun again from progress.
const ATTEMPTS: u32 = 5;
/// Bytes of a packet: few packets, bounded memory, and always below the server's `max_allowed_packet` (default 16 MB).
const PACKET_BYTES: usize = 4 * 1024 * 1024;
/// Room for the protocol's header.
const PACKET_SLACK_BYTES: usize = 1024;

const SESSION_FACTS: &str = "SELECT CAST(@@max_allowed_packet AS CHAR), @@SESSION.sql_mode";
/// Index of the fence in the first packet.
const FENCE: usize = 2;
/// Server error: a column cannot be null. Only the fence sets a NULL into such a column.
const NOT_NULL_VIOLATED: u16 = 1048;
const LOCK_WAIT_TIMEOUT: u16 = 1205;
const DEADLOCK: u16 = 1213;

/// One lane's store.
#[derive(Debug)]
pub struct MysqlLane {
    target: MysqlTarget,
    assignment: Arc<Assignment>,
    id: LaneId,
    /// Indexes of the lane's own tables in the projection's list.
    owned: Vec<u32>,
    /// It is taken out while it is used, so a dropped call leaves none.
    connection: Option<Connected>,
    /// Shards of which rows may exist in the lane's tables. It may name too many, and never too few.
    present: PresentShards,
    /// Shards that were retired up to the progress that this process loaded or stored last.
    retired: RetiredShards,
    /// Reads the lane's own rows, beside its transactions.
    rows: Option<MysqlRows>,
}

#[derive(Debug)]
struct Connected {
    connection: Conn,
    packet_bytes: usize,
    /// A statement of every flush, see [`MysqlLane::forgets_cache`].
    forgets_cache: Option<String>,
    /// The target has the table of retired source tables.
    has_retired: bool,
}

/// The failure of one attempt of a flush.
struct Failed {
    fault: Fault,
    /// The transaction is known not to have happened, and a repetition may succeed.
    again: bool,
}

impl MysqlLane {
    pub(super) fn new(target: MysqlTarget, assignment: Arc<Assignment>, id: LaneId) -> Self {
        let owned = assignment.owned_by(id.lane);
        let (present, retired) = (PresentShards::default(), RetiredShards::new());
        Self { target, assignment, id, owned, connection: None, present, retired, rows: None }
    }

    pub fn id(&self) -> &LaneId {
        &self.id
    }

    pub(super) fn assignment(&self) -> &Assignment {
        &self.assignment
    }

    fn subject(&self) -> String {
        format!("lane {}", self.id)
    }

    /// Takes the open connection, or makes a new one.
    async fn connected(&mut self) -> Result<Connected, Fault> {
        match self.connection.take() {
            Some(connected) => Ok(connected),
            None => match tokio::time::timeout(CONNECT_TIMEOUT, self.connect()).await {
                Ok(result) => result,
                Err(_) => Err(self.silent(CONNECT_TIMEOUT)),
            },
        }
    }

    async fn connect(&self) -> Result<Connected, Fault> {
        let settings = &self.target.0;
        let options = async_options(&settings.url, settings.ca_file.as_deref());
        let connecting = async { Conn::new(options).await.map_err(|error| self.fault(error)) };
        let account = Account::of(&settings.url, settings.ca_file.as_deref());
        let mut connection = account.connect(Side::Target.denied(), &self.subject(), connecting).await?;
        connection.query_drop(session_statements()).await.map_err(|error| self.fault(error))?;
        let facts: Option<(u64, String)> =
            connection.query_first(SESSION_FACTS).await.map_err(|error| self.fault(error))?;
        let (max_allowed_packet, sql_mode) = facts.unwrap_or_default();
        if !sql_mode.contains("STRICT_ALL_TABLES") {
            let found = "sql_mode cannot be made strict in the session";
            return Err(Fault::new(Code::TargetRejected, self.subject(), found)
                .needs("STRICT_ALL_TABLES: the fence depends on it")
                .remedy("connect to the server itself, not through a proxy that hides session settings"));
        }
        let forgets_cache = self.forgets_cache(&mut connection).await?;
        let may_retire = self.assignment.projection.entity().may_retire();
        let has_retired = may_retire && self.has_control_table(&mut connection, RETIRED_TABLE).await?;
        let packet_bytes = usize::try_from(max_allowed_packet).unwrap_or(usize::MAX);
        let packet_bytes = packet_bytes.saturating_sub(PACKET_SLACK_BYTES).min(PACKET_BYTES);
        Ok(Connected { connection, packet_bytes, forgets_cache, has_retired })
    }

    /// A lane without a cache writes nothing to the outbox. So each of its flushes deletes the record of the cache: a
    /// process that has a cache beside it, or gets one later, must begin with an empty one. `None` = the lane has a
    /// cache, its projection never has one, or there is no table of caches.
    async fn forgets_cache(&self, connection: &mut Conn) -> Result<Option<String>, Fault> {
        if self.assignment.is_cached || !self.assignment.projection.is_cached() {
            return Ok(None);
        }
        let exists = self.has_control_table(connection, CACHE_TABLE).await?;
        let table = quote_table(&self.target.0.control_database, CACHE_TABLE);
        let projection = literal(&self.id.projection);
        Ok(exists.then(|| format!("DELETE FROM {table} WHERE `projection` = {projection}")))
    }

    async fn has_control_table(&self, connection: &mut Conn, table: &str) -> Result<bool, Fault> {
        let exists = format!(
            "SELECT 1 FROM information_schema.tables WHERE table_schema = {} AND table_name = {}",
            literal(&self.target.0.control_database),
            literal(table)
        );
        let exists: Option<u8> = connection.query_first(exists).await.map_err(|error| self.fault(error))?;
        Ok(exists.is_some())
    }

    /// Makes one attempt, COMMIT included.
    async fn attempt(&mut self, flush: &Flush) -> Result<(), Failed> {
        let mut connected = self.connected().await.map_err(|fault| Failed { fault, again: false })?;
        let limits =
            TextLimits { statement_rows: self.target.0.statement_rows, packet_bytes: connected.packet_bytes };
        let table = self.target.progress_table();
        let mut head = vec![
            pause_limit(),
            "START TRANSACTION".to_owned(),
            progress::update(&table, &self.id, &flush.progress),
        ];
        head.extend(connected.forgets_cache.clone());
        let retired_table = self.target.retired_table();
        head.extend(retired::insert(&retired_table, &self.id, &flush.retirements, &self.retired));
        head.extend(retired::supersede(&retired_table, &self.id, &flush.retirements, &self.retired));
        let outbox = self.assignment.is_cached.then(|| OutboxText::new(&self.target, &self.id.projection));
        let mut present = std::mem::take(&mut self.present);
        let (tables, owned) = (self.assignment.projection.tables(), &self.owned[..]);
        let layout = FlushLayout {
            tables,
            owned,
            outbox: outbox.as_ref(),
            stored_versions: &[],
            withdrawn: &[],
            retired: &self.retired,
        };
        let stored_versions = match &flush.replacement {
            Some(replacement) => {
                self.stored_versions(&mut connected, &replace::selects(&layout, replacement)).await
            }
            None => Ok(Vec::new()),
        };
        let stored_versions = stored_versions.map_err(|fault| Failed { fault, again: false })?;
        let withdrawn = self.occupied(&mut connected, &mut present, &layout, flush).await;
        let withdrawn = withdrawn.map_err(|fault| Failed { fault, again: false })?;
        // Even if the flush fails: the fence refuses the next one if another process has written since.
        self.present = present;
        let layout = FlushLayout { stored_versions: &stored_versions, withdrawn: &withdrawn, ..layout };
        let packets = statements::packets(&head, flush, layout, limits);
        let last = packets.len();
        for (number, packet) in packets.into_iter().chain([commit_statement()]).enumerate() {
            let is_commit = number == last;
            let sent = send(&mut connected.connection, packet);
            let answer = async {
                if is_commit {
                    failpoints::reach_unanswered("lane-commit-sent", sent).await
                } else {
                    sent.await
                }
            };
            match tokio::time::timeout(PACKET_TIMEOUT, answer).await {
                Ok(Ok(affected)) if number == 0 && affected.get(FENCE) != Some(&1) => {
                    self.roll_back(connected).await;
                    return Err(Failed { fault: self.progress_missing(), again: false });
                }
                Ok(Ok(_)) if number + 1 == last => reach_before_commit(flush).await,
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    let failed = self.classify(error, is_commit);
                    if let Rollback::Possible = failed.1 {
                        self.roll_back(connected).await;
                    }
                    return Err(failed.0);
                }
                Err(_) => return Err(Failed { fault: self.silent(PACKET_TIMEOUT), again: false }),
            }
        }
        self.connection = Some(connected);
        retired::add(&mut self.retired, &flush.retirements);
        Ok(())
    }

    async fn read_retired(&self, connected: &mut Connected) -> Result<RetiredShards, Fault> {
        let sql = retired::select(&self.target.retired_table(), &self.id);
        let rows = connected.connection.query::<(u64, u64), _>(sql);
        let rows = tokio::time::timeout(PACKET_TIMEOUT, rows).await;
        let rows = rows.map_err(|_| self.silent(PACKET_TIMEOUT))?.map_err(|error| self.fault(error))?;
        Ok(rows.into_iter().filter_map(retired::shard_of).collect())
    }

    /// Finds the tables with rows of the withdrawn shards. The flush's own rows count as present from here on.
    async fn occupied(
        &self,
        connected: &mut Connected,
        present: &mut PresentShards,
        layout: &FlushLayout<'_>,
        flush: &Flush,
    ) -> Result<Vec<OccupiedTable>, Fault> {
        let mut search = Search::of(layout, flush, present);
        self.ask(connected, &mut search, |search| search.ask(layout), Search::answer).await?;
        present.add(flush);
        Ok(search.into_found())
    }

    /// Runs round after round of queries, until a round has no statements.
    async fn ask<T>(
        &self,
        connected: &mut Connected,
        asking: &mut T,
        statements: impl Fn(&mut T) -> Vec<String>,
        answer: impl Fn(&mut T, u32, Option<u64>),
    ) -> Result<(), Fault> {
        loop {
            let round = statements(asking);
            if round.is_empty() {
                return Ok(());
            }
            for sql in round {
                let found = connected.connection.query::<(u32, Option<u64>), _>(sql);
                let found = tokio::time::timeout(PACKET_TIMEOUT, found).await;
                let found =
                    found.map_err(|_| self.silent(PACKET_TIMEOUT))?.map_err(|error| self.fault(error))?;
                found.into_iter().for_each(|(table, shard)| answer(asking, table, shard));
            }
        }
    }

    fn classify(&self, error: mysql_async::Error, is_commit: bool) -> (Failed, Rollback) {
        let mysql_async::Error::Server(server) = &error else {
            let fault = match is_commit {
                false => self.fault(error),
                true => self
                    .fault(error)
                    .needs("the lane's progress, which shows whether the transaction was committed"),
            };
            return (Failed { fault, again: !is_commit }, Rollback::Done);
        };
        let (again, fenced) =
            (matches!(server.code, DEADLOCK | LOCK_WAIT_TIMEOUT), server.code == NOT_NULL_VIOLATED);
        let fault = if fenced { self.fenced() } else { self.fault(error) };
        (Failed { fault, again }, Rollback::Possible)
    }

    /// Rolls a failed transaction back, and keeps the connection if it still works.
    async fn roll_back(&mut self, mut connected: Connected) {
        let statement = format!("ROLLBACK; {}", no_pause_limit());
        let ended = tokio::time::timeout(CONNECT_TIMEOUT, connected.connection.query_drop(statement)).await;
        if matches!(ended, Ok(Ok(()))) {
            self.connection = Some(connected);
        }
    }

    fn fault(&self, error: mysql_async::Error) -> Fault {
        with_remedy(from_async(Side::Target, &self.subject(), error))
    }

    fn silent(&self, waited: Duration) -> Fault {
        let found = format!("no answer within {} s", waited.as_secs());
        Fault::new(Code::TargetUnreachable, self.subject(), found)
    }

    fn fenced(&self) -> Fault {
        Fault::new(Code::TargetFenced, self.subject(), "another process changed its progress")
            .needs("the progress that this process read last")
    }

    fn progress_missing(&self) -> Fault {
        Fault::new(
            Code::TargetProgressLost,
            self.subject(),
            format!("no row in {}", self.target.progress_table()),
        )
        .needs("the row that set-up made")
        .remedy(format!("`{SETUP_COMMAND}` creates it for a new source, or prints how to begin anew"))
    }
}

impl LaneStore for MysqlLane {
    async fn shards_with_rows(&mut self, shards: BTreeSet<ShardId>) -> Result<BTreeSet<ShardId>, Fault> {
        self.present_of(shards).await
    }

    async fn load(&mut self) -> Result<Progress, Fault> {
        // Another process may have written since the last call.
        self.present = PresentShards::default();
        let mut connected = self.connected().await?;
        let sql = progress::select(&self.target.progress_table(), Some(&self.id));
        let rows = match tokio::time::timeout(PACKET_TIMEOUT, connected.connection.query::<Row, _>(sql)).await
        {
            Ok(Ok(rows)) => rows,
            Ok(Err(error)) => {
                if let mysql_async::Error::Server(_) = &error {
                    self.connection = Some(connected);
                }
                return Err(self.fault(error));
            }
            Err(_) => return Err(self.silent(PACKET_TIMEOUT)),
        };
        // Progress was read with a lock, so everything that its transaction stored is there.
        self.retired = match connected.has_retired {
            true => self.read_retired(&mut connected).await?,
            false => RetiredShards::new(),
        };
        self.connection = Some(connected);
        let Some(row) = rows.first() else { return Err(self.progress_missing()) };
        let row: TextRow =
            (0..row.len()).map(|index| row.get::<Option<String>, _>(index).flatten()).collect();
        let stored = StoredProgress::from_row(&self.subject(), &row)?;
        stored.assigned_to(&self.target.subject(), &self.assignment)
    }

    async fn withdrawn_claims(
        &mut self,
        withdrawals: &[(ShardId, Lsn)],
        page: &ClaimsPage,
        limit: NonZeroUsize,
    ) -> Result<(Vec<Mutation>, Option<ClaimsPage>), Fault> {
        self.claims_of(withdrawals, page, limit).await
    }

    async fn rows_of_shard(
        &mut self,
        page: &ShardPage,
        limit: NonZeroUsize,
        visit: &mut (dyn FnMut(DerivedRow<'_>) + Send),
    ) -> Result<Option<ShardPage>, Fault> {
        let rows = self.rows.get_or_insert_with(|| self.target.rows_of_lane(&self.assignment));
        rows.of_shard(&self.owned, page, limit, visit).await
    }

    fn is_atomic(&self) -> bool {
        true
    }

    async fn commit(&mut self, flush: &Flush) -> Result<(), Fault> {
        let mut attempt = 1;
        loop {
            match self.attempt(flush).await {
                Ok(()) => {
                    if self.assignment.is_cached {
                        self.target.0.touched.notify_waiters();
                    }
                    return Ok(());
                }
                Err(failed) if failed.again && attempt < ATTEMPTS => {
                    tracing::debug!(lane = %self.id, attempt, fault = %failed.fault, "the flush is repeated");
                    let labels = self.id.labels();
                    counter!(names::LANE_REPEATED, &labels).increment(1);
                    attempt += 1;
                }
                Err(failed) => return Err(failed.fault),
            }
        }
    }
}

/// Whether the connection is alive, so that its transaction must be ended.
enum Rollback {
    Possible,
    Done,
}

/// Reaches the failpoints at which all rows are sent, and COMMIT is not.
async fn reach_before_commit(flush: &Flush) {
    if !flush.withdrawals.is_empty() || !flush.progress.withdrawals.is_empty() {
        failpoints::reach("lane-withdrawal-sent").await;
    }
    failpoints::reach("lane-rows-sent").await;
}

/// Sends a packet of statements; returns how many rows each has changed.
async fn send(connection: &mut Conn, packet: String) -> Result<Vec<u64>, mysql_async::Error> {
    let mut result = connection.query_iter(packet).await?;
    // The result is "empty" as soon as the last statement's answer has come, not after it.
    let mut affected = vec![result.affected_rows()];
    while !result.is_empty() {
        result.next().await?;
        affected.push(result.affected_rows());
    }
    // The client library keeps an error of a later statement until it is polled once more.
    result.next().await?;
    Ok(affected)
}

fn session_statements() -> String {
    let lock_wait_seconds = (LEASE_TIME_TO_LIVE / 2).as_secs().max(1);
    let network_seconds = pause_limit_seconds();
    target_session_with(&format!(
        "innodb_lock_wait_timeout = {lock_wait_seconds}, net_read_timeout = {network_seconds}, \
         net_write_timeout = {network_seconds}, group_concat_max_len = {PACKED_BYTES_MAX}"
    ))
}

fn pause_limit_seconds() -> u64 {
    LEASE_TIME_TO_LIVE.as_secs().saturating_sub(1).max(1)
}

/// A client that then sends nothing for this time loses its connection, and with it its transaction and locks.
fn pause_limit() -> String {
    format!("SET SESSION wait_timeout = {}", pause_limit_seconds())
}

/// Lets an idle lane keep its connection.
fn no_pause_limit() -> &'static str {
    "SET SESSION wait_timeout = @@GLOBAL.wait_timeout"
}

fn commit_statement() -> String {
    format!("COMMIT; {}", no_pause_limit())
}
