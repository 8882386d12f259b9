//! Rows of captured tables as they are at a known position: for a refresh, not for capture.
//!
//! MariaDB says at which place of its binlog a snapshot stands (`Binlog_snapshot_position`), and that is exact: a
//! transaction that is in the binlog already, but is not seen yet because a replica's acknowledgement is waited for, is
//! behind that place. The GTID variables run ahead of what is seen (measured). MySQL has no such place.
//!
//! A snapshot lives for one chunk, so no long read view holds up the server's purge. Values are read as text in the
//! column's own character set, which for all types that can be captured is what its row events hold. How a table is
//! read (`plan.rs`) is kept as long as its definition stays, which each chunk's transaction asks for behind its rows:
//! from the first row to COMMIT no statement can change it.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use anabranch_pipeline::deliver::{Cell, Condition};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{Chunk, ChunkKey, Pressure, RowSource};
use anabranch_schemas::change::{Entity, TableIdentity, Value};
use anabranch_schemas::codec::decode_values;
use anabranch_schemas::codec::v1::Encoder;
use anabranch_schemas::envelope::ServerIdentity;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, QueryResult, Row, TextProtocol};

use self::plan::{IDENTITY, Plan, show_definition, without_counter};
use super::gtid::Flavor;
use super::session::{Session, binlog_off};
use super::{CapturedTable, MysqlSource};
use crate::mysql::connection::{quote_identifier, quote_table};
use crate::mysql::keyset::behind;

mod condition;
pub(super) mod plan;
mod value;

/// Without REPEATABLE READ there is no snapshot; results come in the character sets of their columns.
pub(super) const SESSION: &str = "SET NAMES utf8mb4; \
     SET SESSION character_set_results = NULL, time_zone = '+00:00', sql_mode = ''; \
     SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ";
/// A chunk of a table that is not in memory, on a busy server.
const TIMEOUT: Duration = Duration::from_secs(120);
/// A chunk ends early when its rows are that large.
const CHUNK_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Which rows of a table.
enum Wanted<'w> {
    /// At most so many behind a place, of those that a condition finds.
    Behind(Option<&'w ChunkKey>, NonZeroUsize, Option<&'w Condition>),
    /// Those whose first field is one of these.
    Keys(&'w [Cell]),
}

impl RowSource for MysqlSource {
    async fn tables(&self) -> Result<Vec<TableIdentity<'static>>, Fault> {
        let tables = self.captured_tables().await?;
        let mut tables: Vec<_> = tables.into_iter().map(|table| table.identity.clone()).collect();
        tables.sort_unstable_by_key(|table| table.shard);
        Ok(tables)
    }

    async fn pressure(&self) -> Result<Pressure, Fault> {
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
        after: Option<&ChunkKey>,
        rows: NonZeroUsize,
        epoch: u16,
    ) -> Result<Chunk, Fault> {
        self.read_at_a_mark(table, &Wanted::Behind(after, rows, None), epoch).await
    }

    async fn matching(
        &self,
        table: &TableIdentity<'static>,
        condition: &Condition,
        after: Option<&ChunkKey>,
        rows: NonZeroUsize,
        epoch: u16,
    ) -> Result<Chunk, Fault> {
        self.read_at_a_mark(table, &Wanted::Behind(after, rows, Some(condition)), epoch).await
    }

    async fn rows(&self, table: &TableIdentity<'static>, keys: &[Cell], epoch: u16) -> Result<Chunk, Fault> {
        let chunk = self.read_at_a_mark(table, &Wanted::Keys(keys), epoch).await?;
        if chunk.next.is_some() {
            let found = format!("the rows of {} keys are larger than {CHUNK_BYTES_MAX} bytes", keys.len());
            return Err(table_fault(Code::RefreshRefused, table, found).needs("fewer keys in one request"));
        }
        Ok(chunk)
    }
}

impl MysqlSource {
    /// Every captured table that exists.
    pub async fn captured_tables(&self) -> Result<Vec<Arc<CapturedTable>>, Fault> {
        let mut session = Session::open(&self.address).await?;
        let tables = self.tables(&mut session).await?;
        session.close().await;
        Ok(tables.all().cloned().collect())
    }

    async fn read_at_a_mark(
        &self,
        table: &TableIdentity<'static>,
        wanted: &Wanted<'_>,
        epoch: u16,
    ) -> Result<Chunk, Fault> {
        let columns = self.columns_of(table.entity)?;
        let mut connection = self.snapshots.connection().await?;
        let is_chunk = matches!(wanted, Wanted::Behind(.., None));
        if let Some(plan) = self.plans.get(table.shard).filter(|_| is_chunk) {
            let sql = select(table, &plan, wanted);
            if let Ok(sql) = sql
                && let Ok(Some(chunk)) =
                    self.read_as_planned(&mut connection, table, &plan, &sql, wanted, epoch).await
            {
                return Ok(chunk);
            }
            // Whatever it was, the table may have changed.
            self.plans.forget(table.shard);
            connection = self.snapshots.connection().await?;
        }
        let plan = Arc::new(self.plan(&mut connection, table, &columns, wanted).await?);
        let sql = select(table, &plan, wanted)?;
        let chunk = self.read_as_planned(&mut connection, table, &plan, &sql, wanted, epoch).await?;
        let chunk = chunk.ok_or_else(|| {
            self.fault(
                Code::SourceUnreachable,
                format!("{} was altered while it was read", table_name(table)),
            )
        })?;
        if is_chunk {
            self.plans.keep(table.shard, &plan);
        }
        Ok(chunk)
    }

    /// One transaction in one packet; `None` when the table is not defined any more as the plan has it.
    async fn read_as_planned(
        &self,
        connection: &mut Conn,
        table: &TableIdentity<'static>,
        plan: &Plan,
        select: &str,
        wanted: &Wanted<'_>,
        epoch: u16,
    ) -> Result<Option<Chunk>, Fault> {
        let definition = show_definition(table);
        let sql = format!(
            "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY; {IDENTITY}; \
             SHOW STATUS LIKE 'Binlog\\_snapshot\\_%'; {select}; {definition}; COMMIT"
        );
        let mut results = self.snapshots.within(TIMEOUT, connection.query_iter(sql)).await?;
        let head = async {
            results.collect::<Row>().await?;
            let server = results.collect::<(String, String)>().await?;
            Ok((server, results.collect::<(String, String)>().await?))
        };
        let (server, place) = self.snapshots.within(TIMEOUT, head).await?;
        let server = server.into_iter().next().map(|(_, id)| id).unwrap_or_default();
        let server = ServerIdentity { flavor: Flavor::MariaDb.as_str().to_owned(), id: server };
        let of = |name: &str| {
            let found = place.iter().find(|(variable, _)| variable.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
        };
        let file = of("Binlog_snapshot_file").ok_or_else(|| binlog_off(&self.address.subject))?;
        let position = of("Binlog_snapshot_position").and_then(|text| text.parse().ok()).unwrap_or(0);
        let mark = self.lsn(epoch, file, position)?;
        let mut reading = Reading { plan, table, mark, encoder: Encoder::default(), last: None };
        let body = async {
            let taken = reading.read(&mut results).await?;
            let definition = results.collect::<(String, String)>().await?;
            results.drop_result().await?;
            Ok((taken, definition))
        };
        let (taken, definition) = self.snapshots.within(TIMEOUT, body).await?;
        if definition.first().is_none_or(|(_, text)| without_counter(text) != plan.definition) {
            return Ok(None);
        }
        let odd = || table_fault(Code::Internal, table, "a value is not of its type");
        let is_whole = taken.ok_or_else(odd)?;
        let Reading { mut encoder, last, .. } = reading;
        let count = u64::from(encoder.changes());
        let is_full = matches!(wanted, Wanted::Behind(_, rows, _) if count == rows.get() as u64);
        let next = match last.filter(|_| !is_whole || is_full) {
            Some(last) => Some(plan.place(&last).ok_or_else(odd)?),
            None => None,
        };
        Ok(Some(Chunk { mark, server, payload: encoder.finish(), rows: count, next }))
    }

    fn columns_of(&self, entity: Entity) -> Result<Vec<String>, Fault> {
        let found = self.entities.iter().find(|known| known.entity == entity);
        let columns = found.map(|known| known.columns.clone());
        columns.ok_or_else(|| self.fault(Code::Internal, format!("{} is not captured", entity.name())))
    }
}

fn table_name(table: &TableIdentity<'_>) -> String {
    format!("table {}.{}", table.database, table.table)
}

fn table_fault(code: Code, table: &TableIdentity<'_>, found: impl Into<String>) -> Fault {
    Fault::new(code, table_name(table), found)
}

/// The captured columns and the key of the rows that are wanted.
fn select(table: &TableIdentity<'_>, plan: &Plan, wanted: &Wanted<'_>) -> Result<String, Fault> {
    let key: Vec<String> = plan.key.iter().map(|column| quote_identifier(&column.name)).collect();
    let order = |rows: &NonZeroUsize| format!("ORDER BY {} LIMIT {rows}", key.join(", "));
    let only = |before: &str| plan.only.as_ref().map_or(String::new(), |only| format!("{before} {only} "));
    let condition = match wanted {
        Wanted::Behind(None, rows, _) => format!("{}{}", only("WHERE"), order(rows)),
        Wanted::Behind(Some(after), rows, _) => {
            let values = decode_values(&after.0).filter(|values| values.len() == plan.key.len());
            let values = values
                .ok_or_else(|| table_fault(Code::Internal, table, "a stored place is not one of its key"))?;
            let literals = plan.key.iter().zip(&values);
            let literals: Vec<String> =
                literals.map(|(column, value)| value::literal(value, &column.character_set)).collect();
            format!("WHERE {} {}{}", behind(&key, &literals), only("AND"), order(rows))
        }
        Wanted::Keys(keys) => {
            let (column, name) = (&plan.key[0], &key[0]);
            let literals = keys.iter().filter_map(|key| {
                let value = column.kind.of_cell(key)?;
                Some(value::exact_literal(&value, &column.character_set, &column.collation))
            });
            match literals.collect::<Vec<_>>().join(", ") {
                none if none.is_empty() => "WHERE FALSE".to_owned(),
                literals => format!("WHERE {name} IN ({literals})"),
            }
        }
    };
    Ok(format!(
        "SELECT {} FROM {} FORCE INDEX ({}) {condition}",
        plan.selected,
        quote_table(&table.database, &table.table),
        quote_identifier(&plan.index)
    ))
}

/// Rows of a chunk on their way into its payload.
struct Reading<'r> {
    plan: &'r Plan,
    table: &'r TableIdentity<'static>,
    mark: anabranch_schemas::lsn::Lsn,
    encoder: Encoder,
    last: Option<Row>,
}

impl Reading<'_> {
    /// Whether all rows were taken; what follows them is stepped over. `None` inside: a value cannot be understood.
    async fn read(
        &mut self,
        rows: &mut QueryResult<'_, '_, TextProtocol>,
    ) -> Result<Option<bool>, mysql_async::Error> {
        let mut is_whole = Some(true);
        while let Some(row) = rows.next().await? {
            if is_whole != Some(true) {
                continue;
            }
            if self.encoder.bytes() > CHUNK_BYTES_MAX {
                is_whole = Some(false);
            } else if self.take(&row).is_some() {
                self.last = Some(row);
            } else {
                is_whole = None;
            }
        }
        Ok(is_whole)
    }

    /// Encodes the captured values.
    fn take(&mut self, row: &Row) -> Option<()> {
        let values = self.plan.kinds.iter().enumerate().map(|(place, kind)| kind.decode(row.as_ref(place)?));
        let values: Vec<Value<'_>> = values.collect::<Option<_>>()?;
        self.encoder.insert(self.mark, self.table, &values);
        Some(())
    }
}
