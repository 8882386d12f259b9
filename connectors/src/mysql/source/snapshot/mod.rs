//! Reads rows of captured tables at a known position: for refreshes and reconciliations, not for capture.
//!
//! In the order to read: `watermarks.rs` finds the position of a snapshot. `described.rs` has the columns of a table,
//! `value.rs` their values, and `condition.rs` an operator's condition; `plan.rs` makes the plan of a table from them,
//! and `statements.rs` the queries. This file reads. A snapshot lives for one chunk, so no long read view delays the
//! server's purge. Values are read as text in the column's own character set, which for all types that can be captured
//! equals the content of row events. A plan is kept while the definition of its table stays. Each chunk's transaction
//! asks for the definition after its rows: from the first row to COMMIT no statement can change it. `stream/` reads the
//! binlog itself. `absence.rs` proves that a table does not exist.
//!
//! First rows of several tables are read in a snapshot for each table. So the server keeps no metadata lock of one
//! table while the read waits for another. The chunk lies between the first low and the last high watermark.

mod absence;
mod condition;
mod described;
pub(super) mod plan;
mod statements;
mod value;
mod watermarks;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use anabranch_pipeline::config::EntityConfig;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{RowSource, SourcePressure, TableVisibility};
use anabranch_pipeline::records::{Cell, Chunk, Condition, ScanCursor};
use anabranch_schemas::change::{Entity, TableIdentity, Value};
use anabranch_schemas::codec::Encoder;
use anabranch_schemas::envelope::ServerIdentity;
use anabranch_schemas::lsn::{FIRST_EPOCH, Lsn};
use anabranch_schemas::shard::ShardId;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, QueryResult, Row, TextProtocol};

use self::plan::{Plan, without_counter};
use self::statements::statements;
use self::watermarks::{BinlogCoordinates, Dialect};
use crate::mysql::pool::Pool;
use crate::mysql::source::MysqlSource;
use crate::mysql::source::server::session::binlog_off;

/// Settings of the session. Without REPEATABLE READ there is no snapshot, and without autocommit a query would keep
/// one. Results come in the character sets of their columns.
pub(super) const SESSION: &str = "SET NAMES utf8mb4; \
     SET SESSION character_set_results = NULL, time_zone = '+00:00', sql_mode = '', autocommit = 1; \
     SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ";
/// Limit of one query: it suffices for a chunk of a table that is not in memory, on a busy server.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Bytes of rows after which a chunk ends early.
const CHUNK_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The rows of a table that are read.
#[derive(Clone, Copy)]
enum RowSelection<'w> {
    /// At most so many rows after a cursor, of those that match a condition.
    After(Option<&'w ScanCursor>, NonZeroUsize, Option<&'w Condition>),
    /// The rows whose first field is one of these.
    Keys(&'w [Cell]),
}

impl RowSelection<'_> {
    /// Returns the table for which a plan is kept, and whether it reads by chunks; `None` with a condition, as there
    /// are too many.
    fn plan_of(&self, table: &TableIdentity<'_>) -> Option<(ShardId, bool)> {
        match self {
            Self::After(.., None) => Some((table.shard, true)),
            Self::After(.., Some(_)) => None,
            Self::Keys(_) => Some((table.shard, false)),
        }
    }
}

/// One table of a query.
struct TablePart<'w> {
    table: &'w TableIdentity<'static>,
    wanted: RowSelection<'w>,
    plan: Arc<Plan>,
}

impl TablePart<'_> {
    fn read(&self) -> Option<(ShardId, bool)> {
        self.wanted.plan_of(self.table)
    }

    /// Whether the table is read in another transaction than the one before; keys of several tables share one.
    fn has_own_snapshot(&self) -> bool {
        matches!(self.wanted, RowSelection::After(..))
    }
}

/// The result of a query.
struct TableRead {
    low: Lsn,
    high: Lsn,
    server: ServerIdentity,
    /// No row was left out for its size.
    is_whole: bool,
    /// Cursor after the last row.
    last: Option<ScanCursor>,
}

impl RowSource for MysqlSource {
    async fn tables(&self) -> Result<Vec<TableIdentity<'static>>, Fault> {
        let tables = self.captured_tables().await?;
        let mut tables: Vec<_> = tables.into_iter().map(|table| table.identity.clone()).collect();
        tables.sort_unstable_by_key(|table| table.shard);
        Ok(tables)
    }

    fn visit_likely_tables(&self, entity: Entity, visit: &mut dyn FnMut(&TableIdentity<'_>)) {
        self.visit_likely(entity, visit);
    }

    async fn pressure(&self) -> Result<SourcePressure, Fault> {
        self.present_pressure().await
    }

    async fn replication_end(&self) -> Result<String, Fault> {
        self.present_end().await
    }

    async fn has_replicated(&self, end: &str) -> Result<bool, Fault> {
        self.reaches(end).await
    }

    async fn chunk(
        &self,
        table: &TableIdentity<'static>,
        after: Option<&ScanCursor>,
        rows: NonZeroUsize,
        epoch: u16,
    ) -> Result<Chunk, Fault> {
        self.part(table, RowSelection::After(after, rows, None), rows, epoch).await
    }

    async fn first_rows(&self, tables: &[TableIdentity<'static>], epoch: u16) -> Result<Chunk, Fault> {
        let first = RowSelection::After(None, NonZeroUsize::MIN, None);
        for table in tables {
            self.prepare(table, &first).await?;
        }
        let wanted: Vec<_> = tables.iter().map(|table| (table, first)).collect();
        let (chunk, taken) = self.encoded(&wanted, epoch).await?;
        if !taken.is_whole {
            let found = format!("the first rows of {} tables exceed {CHUNK_BYTES_MAX} bytes", tables.len());
            return Err(self.fault(Code::RefreshRefused, found).needs("fewer tables in one query"));
        }
        Ok(chunk)
    }

    async fn page(
        &self,
        table: &TableIdentity<'static>,
        after: Option<&ScanCursor>,
        rows: NonZeroUsize,
        visit: &mut (dyn FnMut(&[Value<'_>]) + Send),
    ) -> Result<Option<ScanCursor>, Fault> {
        let wanted = RowSelection::After(after, rows, None);
        let mut visiting = RowVisitor { visit, rows: 0 };
        let taken = self.read_at_watermark(&[(table, wanted)], FIRST_EPOCH, &mut visiting).await?;
        Ok(taken.last.filter(|_| visiting.rows == rows.get()))
    }

    async fn matching(
        &self,
        table: &TableIdentity<'static>,
        condition: &Condition,
        after: Option<&ScanCursor>,
        rows: NonZeroUsize,
        epoch: u16,
    ) -> Result<Chunk, Fault> {
        self.part(table, RowSelection::After(after, rows, Some(condition)), rows, epoch).await
    }

    async fn rows(&self, keys: &[(TableIdentity<'static>, Vec<Cell>)], epoch: u16) -> Result<Chunk, Fault> {
        let wanted: Vec<_> = keys.iter().map(|(table, keys)| (table, RowSelection::Keys(keys))).collect();
        let (chunk, taken) = self.encoded(&wanted, epoch).await?;
        if !taken.is_whole {
            let count: usize = keys.iter().map(|(_, keys)| keys.len()).sum();
            let found = format!("the rows of {count} keys are larger than {CHUNK_BYTES_MAX} bytes");
            return Err(self.fault(Code::RefreshRefused, found).needs("fewer keys in one request"));
        }
        Ok(chunk)
    }

    async fn visibility(&self, database: &str, table: &str) -> Result<TableVisibility, Fault> {
        self.ask_for_table(database, table).await
    }

    async fn absence(&self, table: &TableIdentity<'static>, epoch: u16) -> Result<Option<Chunk>, Fault> {
        self.proved_absent(table, epoch).await
    }
}

impl MysqlSource {
    /// Reads consecutive rows of a table.
    async fn part(
        &self,
        table: &TableIdentity<'static>,
        wanted: RowSelection<'_>,
        rows: NonZeroUsize,
        epoch: u16,
    ) -> Result<Chunk, Fault> {
        let (chunk, taken) = self.encoded(&[(table, wanted)], epoch).await?;
        let next = taken.last.filter(|_| !taken.is_whole || chunk.rows == rows.get() as u64);
        Ok(Chunk { next, ..chunk })
    }

    async fn encoded(
        &self,
        wanted: &[(&TableIdentity<'static>, RowSelection<'_>)],
        epoch: u16,
    ) -> Result<(Chunk, TableRead), Fault> {
        let mut encoder = Encoder::default();
        let taken = self.read_at_watermark(wanted, epoch, &mut encoder).await?;
        let (low, high, server) = (taken.low, taken.high, taken.server.clone());
        let rows = u64::from(encoder.changes());
        Ok((Chunk { low, high, server, payload: encoder.finish(), rows, next: None }, taken))
    }

    async fn read_at_watermark<S: Sink>(
        &self,
        wanted: &[(&TableIdentity<'static>, RowSelection<'_>)],
        epoch: u16,
        sink: &mut S,
    ) -> Result<TableRead, Fault> {
        let mut may_be_kept = true;
        loop {
            let mut connection = self.snapshots.connection().await?;
            let dialect = self.dialect(&mut connection).await?;
            let low = match S::NEEDS_POSITION {
                // The kept dialect may be the cause of the failure.
                true => {
                    let low = self.low_watermark(&mut connection, dialect).await;
                    low.inspect_err(|_| self.plans.forget_dialect())?
                }
                false => None,
            };
            let (mut parts, mut are_new) = (Vec::with_capacity(wanted.len()), true);
            for &(table, wanted) in wanted {
                let kept =
                    wanted.plan_of(table).and_then(|read| self.plans.get(read)).filter(|_| may_be_kept);
                are_new &= kept.is_none();
                let plan = match kept {
                    Some(plan) => plan,
                    None => Arc::new(self.plan(&mut connection, table, &wanted).await?),
                };
                parts.push(TablePart { table, wanted, plan });
            }
            let read = self.read_as_planned::<S>(&mut connection, (dialect, low), &parts, epoch, sink).await;
            if read.is_err() {
                // Its transaction may be open. An idle connection would hold the tables' metadata locks for as long as
                // the pool keeps it, and each ALTER of them would wait.
                Pool::discard(connection).await;
            }
            match read {
                Ok(taken) => {
                    self.keep_plans(&parts);
                    return Ok(taken);
                }
                Err(fault) if are_new => {
                    self.plans.forget_dialect();
                    return Err(fault);
                }
                // Whatever the fault: a table may have changed since its plan was made, or the server may be another.
                Err(fault) => {
                    self.plans.forget_dialect();
                    parts.iter().filter_map(TablePart::read).for_each(|read| self.plans.forget(read));
                    may_be_kept = false;
                    if !sink.begins_again() {
                        let found = "the table was altered after a part of this page was read";
                        return Err(self.fault(Code::SourceUnreachable, found).caused_by(fault));
                    }
                }
            }
        }
    }

    fn keep_plans(&self, parts: &[TablePart<'_>]) {
        for part in parts {
            if let Some(read) = part.read() {
                self.plans.store(read, &part.plan);
            }
        }
    }

    /// Makes the plan of a table that has none. The connection is free for other readers before the next table.
    async fn prepare(&self, table: &TableIdentity<'static>, wanted: &RowSelection<'_>) -> Result<(), Fault> {
        if let Some(read) = wanted.plan_of(table).filter(|read| self.plans.get(*read).is_none()) {
            let mut connection = self.snapshots.connection().await?;
            let plan = self.plan(&mut connection, table, wanted).await?;
            self.plans.store(read, &Arc::new(plan));
        }
        Ok(())
    }

    /// Reads the tables, all with one packet.
    async fn read_as_planned<S: Sink>(
        &self,
        connection: &mut Conn,
        (dialect, low): (Dialect, Option<BinlogCoordinates>),
        parts: &[TablePart<'_>],
        epoch: u16,
        sink: &mut S,
    ) -> Result<TableRead, Fault> {
        let sql = statements(dialect, parts, S::NEEDS_POSITION)?;
        let mut results = self.snapshots.within(TIMEOUT, connection.query_iter(sql)).await?;
        let head = async {
            let place = dialect.begun(&mut results).await?;
            Ok((place, results.collect::<(String, String)>().await?))
        };
        let (place, server) = self.snapshots.within(TIMEOUT, head).await?;
        let (version, id) = server.into_iter().next().unwrap_or_default();
        if Dialect::of(&version) != dialect {
            return Err(self.fault(
                Code::SourceUnreachable,
                format!("the connection led to another server, of version {version}"),
            ));
        }
        let at = |place: Option<BinlogCoordinates>| {
            let (file, position) = place.ok_or_else(|| binlog_off(&self.address.subject))?;
            self.lsn(epoch, &file, position)
        };
        let mut high = at(place)?;
        let low = if low.is_some() { at(low)? } else { high };
        let server = dialect.server(id);
        let mut collector = RowCollector { low, sink, is_whole: true, last: None };
        for (number, part) in parts.iter().enumerate() {
            if number > 0 && part.has_own_snapshot() {
                let begun = async {
                    // The answer to COMMIT.
                    results.collect::<Row>().await?;
                    dialect.begun(&mut results).await
                };
                high = high.max(at(self.snapshots.within(TIMEOUT, begun).await?)?);
            }
            let body = async {
                let are_understood = collector.read(part, &mut results).await?;
                Ok((are_understood, results.collect::<(String, String)>().await?))
            };
            let (are_understood, definition) = self.snapshots.within(TIMEOUT, body).await?;
            if definition.first().is_none_or(|(_, text)| without_counter(text) != part.plan.definition) {
                let found = format!("{} was altered while it was read", table_name(part.table));
                return Err(self.fault(Code::SourceUnreachable, found));
            }
            if !are_understood {
                return Err(odd(part.table));
            }
        }
        self.snapshots.within(TIMEOUT, results.drop_result()).await?;
        let RowCollector { is_whole, last, .. } = collector;
        // Rows of several tables have no key in common.
        let last = match (last, parts) {
            (Some(last), [part]) => Some(part.plan.cursor_at(&last).ok_or_else(|| odd(part.table))?),
            _ => None,
        };
        Ok(TableRead { low, high, server, is_whole, last })
    }

    /// Returns the entity of a table: an entity may have several patterns, each with its own names.
    fn entity_of(&self, table: &TableIdentity<'_>) -> Result<&EntityConfig, Fault> {
        let is_of = |known: &&EntityConfig| {
            known.entity == table.entity && known.tables.matches(&table.database, &table.table).is_some()
        };
        let not_captured = || table_fault(Code::Internal, table, "it is not captured");
        self.entities.iter().find(is_of).ok_or_else(not_captured)
    }
}

fn table_name(table: &TableIdentity<'_>) -> String {
    format!("table {}.{}", table.database, table.table)
}

fn table_fault(code: Code, table: &TableIdentity<'_>, found: impl Into<String>) -> Fault {
    Fault::new(code, table_name(table), found)
}

fn odd(table: &TableIdentity<'_>) -> Fault {
    table_fault(Code::Internal, table, "a value is not of its type")
}

/// Passes rows from a query to a sink.
struct RowCollector<'s, S> {
    low: Lsn,
    sink: &'s mut S,
    /// All rows were taken so far; after the first row without room the others are skipped.
    is_whole: bool,
    /// The last row that was taken.
    last: Option<Row>,
}

impl<S: Sink> RowCollector<'_, S> {
    /// Takes the rows of one table; returns whether every value had its type.
    async fn read(
        &mut self,
        part: &TablePart<'_>,
        rows: &mut QueryResult<'_, '_, TextProtocol>,
    ) -> Result<bool, mysql_async::Error> {
        let mut are_understood = true;
        while let Some(row) = rows.next().await? {
            self.is_whole &= self.sink.has_room();
            if self.is_whole && are_understood {
                are_understood = self.accept(part, &row).is_some();
                self.last = Some(row);
            }
        }
        Ok(are_understood)
    }

    /// Passes the captured values to the sink; `None` if a value is not of its type.
    fn accept(&mut self, part: &TablePart<'_>, row: &Row) -> Option<()> {
        let values = part.plan.kinds.iter().enumerate().map(|(place, kind)| kind.decode(row.as_ref(place)?));
        let values: Vec<Value<'_>> = values.collect::<Option<_>>()?;
        self.sink.accept(self.low, part.table, &values);
        Some(())
    }
}

/// The receiver of rows.
trait Sink: Send {
    /// Whether the receiver needs the position of the rows.
    const NEEDS_POSITION: bool;

    fn accept(&mut self, low: Lsn, table: &TableIdentity<'static>, row: &[Value<'_>]);

    fn has_room(&self) -> bool;

    /// Discards the rows taken so far, if possible; returns whether it did.
    fn begins_again(&mut self) -> bool;
}

impl Sink for Encoder {
    const NEEDS_POSITION: bool = true;

    fn accept(&mut self, low: Lsn, table: &TableIdentity<'static>, row: &[Value<'_>]) {
        self.insert(low, table, row);
    }

    fn has_room(&self) -> bool {
        self.bytes() <= CHUNK_BYTES_MAX
    }

    fn begins_again(&mut self) -> bool {
        *self = Self::default();
        true
    }
}

/// Passes rows to a function.
struct RowVisitor<'v> {
    visit: &'v mut (dyn FnMut(&[Value<'_>]) + Send),
    rows: usize,
}

impl Sink for RowVisitor<'_> {
    const NEEDS_POSITION: bool = false;

    fn accept(&mut self, _low: Lsn, _table: &TableIdentity<'static>, row: &[Value<'_>]) {
        self.rows += 1;
        (self.visit)(row);
    }

    fn has_room(&self) -> bool {
        true
    }

    fn begins_again(&mut self) -> bool {
        self.rows == 0
    }
}
