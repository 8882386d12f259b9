//! Rows of captured tables as they are at a known position: for a refresh, not for capture.
//!
//! MariaDB says at which place of its binlog a snapshot stands (`Binlog_snapshot_position`), and that is exact: a
//! transaction that is in the binlog already, but is not seen yet because a replica's acknowledgement is waited for, is
//! behind that place. The GTID variables run ahead of what is seen (measured). MySQL has no such place.
//!
//! A snapshot lives for one chunk, so no long read view holds up the server's purge. Values are read as text in the
//! column's own character set, which for all types that can be captured is what its row events hold.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{Chunk, ChunkKey, RowSource};
use anabranch_schemas::change::{Entity, TableIdentity, Value};
use anabranch_schemas::codec::v1::Encoder;
use anabranch_schemas::codec::{decode_values, encode_values};
use anabranch_schemas::envelope::ServerIdentity;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row};

use self::value::Kind;
use super::gtid::Flavor;
use super::session::{Session, binlog_off, literal};
use super::{CapturedTable, MysqlSource};
use crate::mysql::connection::{quote_identifier, quote_table};
use crate::mysql::keyset::behind;

mod value;

/// Without REPEATABLE READ there is no snapshot; results come in the character sets of their columns.
pub(super) const SESSION: &str = "SET NAMES utf8mb4; \
     SET SESSION character_set_results = NULL, time_zone = '+00:00', sql_mode = ''; \
     SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ";
/// A chunk of a table that is not in memory, on a busy server.
const TIMEOUT: Duration = Duration::from_secs(120);
/// A chunk ends early when its rows are that large.
const CHUNK_BYTES_MAX: usize = 16 * 1024 * 1024;

/// How one table is read.
struct Plan {
    server: ServerIdentity,
    /// Of the captured columns, in the order of the entity's fields.
    kinds: Vec<Kind>,
    key: Vec<KeyColumn>,
}

/// A column of the primary key.
struct KeyColumn {
    name: String,
    kind: Kind,
    /// Of texts; empty for bytes.
    character_set: String,
}

impl RowSource for MysqlSource {
    async fn tables(&self) -> Result<Vec<TableIdentity<'static>>, Fault> {
        let tables = self.captured_tables().await?;
        let mut tables: Vec<_> = tables.into_iter().map(|table| table.identity.clone()).collect();
        tables.sort_unstable_by_key(|table| table.shard);
        Ok(tables)
    }

    async fn chunk(
        &self,
        table: &TableIdentity<'static>,
        after: Option<&ChunkKey>,
        rows: NonZeroUsize,
        epoch: u16,
    ) -> Result<Chunk, Fault> {
        let columns = self.columns_of(table.entity)?;
        let mut connection = self.snapshots.connection().await?;
        let plan = self.plan(&mut connection, table, &columns).await?;
        let after = after.map(|key| {
            decode_values(&key.0)
                .filter(|values| values.len() == plan.key.len())
                .ok_or_else(|| table_fault(Code::Internal, table, "a stored place is not one of its key"))
        });
        let sql = select(table, &columns, &plan, after.transpose()?.as_deref(), rows);
        let begin = connection.query_drop("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY");
        self.snapshots.within(TIMEOUT, begin).await?;
        let place = connection.query("SHOW STATUS LIKE 'Binlog\\_snapshot\\_%'");
        let place: Vec<(String, String)> = self.snapshots.within(TIMEOUT, place).await?;
        let of = |name: &str| {
            let found = place.iter().find(|(variable, _)| variable.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
        };
        let file = of("Binlog_snapshot_file").ok_or_else(|| binlog_off(&self.address.subject))?;
        let position = of("Binlog_snapshot_position").and_then(|text| text.parse().ok()).unwrap_or(0);
        let mark = self.lsn(epoch, file, position)?;
        let mut reading = Reading { plan: &plan, table, mark, encoder: Encoder::default(), last: None };
        let read = self.snapshots.within(TIMEOUT, reading.read(&mut connection, sql)).await?;
        let is_whole = read.map_err(|()| table_fault(Code::Internal, table, "a value is not of its type"))?;
        if is_whole {
            self.snapshots.within(TIMEOUT, connection.query_drop("COMMIT")).await?;
        }
        let Reading { mut encoder, last, .. } = reading;
        let count = u64::from(encoder.changes());
        let next = last.filter(|_| !is_whole || count == rows.get() as u64);
        Ok(Chunk { mark, server: plan.server, payload: encoder.finish(), rows: count, next })
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

    fn columns_of(&self, entity: Entity) -> Result<Vec<String>, Fault> {
        let found = self.entities.iter().find(|known| known.entity == entity);
        let columns = found.map(|known| known.columns.clone());
        columns.ok_or_else(|| self.fault(Code::Internal, format!("{} is not captured", entity.name())))
    }

    /// What the server says of itself and of the table.
    async fn plan(
        &self,
        connection: &mut Conn,
        table: &TableIdentity<'static>,
        columns: &[String],
    ) -> Result<Plan, Fault> {
        let ask = connection.query("SELECT @@version, CAST(@@server_id AS CHAR)");
        let server: Vec<(String, String)> = self.snapshots.within(TIMEOUT, ask).await?;
        let (version, id) = server.into_iter().next().unwrap_or_default();
        if !version.contains("MariaDB") {
            return Err(self
                .fault(Code::SourceSnapshotUnsupported, format!("the server is MySQL {version}"))
                .needs("MariaDB, which says where in its binlog a snapshot stands"));
        }
        let flavor = Flavor::MariaDb.as_str().to_owned();
        let place = |names: [&str; 2]| {
            let [database, name] = [&table.database, &table.table].map(|name| literal(name));
            format!("{} = {database} AND {} = {name}", names[0], names[1])
        };
        let described = format!(
            "SELECT c.COLUMN_NAME, LOWER(c.DATA_TYPE), LOWER(IFNULL(c.CHARACTER_SET_NAME, '')), \
             c.COLUMN_TYPE LIKE '%unsigned%', k.SEQ_IN_INDEX FROM information_schema.COLUMNS c \
             LEFT JOIN (SELECT COLUMN_NAME, SEQ_IN_INDEX FROM information_schema.STATISTICS \
             WHERE INDEX_NAME = 'PRIMARY' AND {}) k ON k.COLUMN_NAME = c.COLUMN_NAME WHERE {}",
            place(["TABLE_SCHEMA", "TABLE_NAME"]),
            place(["c.TABLE_SCHEMA", "c.TABLE_NAME"]),
        );
        type Described = (String, String, String, bool, Option<u32>);
        let known: Vec<Described> = self.snapshots.within(TIMEOUT, connection.query(described)).await?;
        if known.is_empty() {
            return Err(table_fault(Code::SourceTableMissing, table, "it does not exist"));
        }
        let kinds = columns.iter().enumerate().map(|(field, name)| {
            let found = known.iter().find(|column| column.0.eq_ignore_ascii_case(name));
            let (_, data_type, _, unsigned, _) = found.ok_or_else(|| {
                table_fault(Code::SourceColumnMissing, table, format!("it has no column {name}"))
            })?;
            Kind::of_field(table.entity, field, data_type, *unsigned).ok_or_else(|| {
                table_fault(
                    Code::SourceColumnUnsupported,
                    table,
                    format!("column {name} has type {data_type}"),
                )
            })
        });
        let kinds = kinds.collect::<Result<_, _>>()?;
        let mut parts: Vec<_> = known.iter().filter_map(|column| Some((column.4?, column))).collect();
        parts.sort_unstable_by_key(|(place, _)| *place);
        let key = parts.into_iter().map(|(_, (name, data_type, character_set, unsigned, _))| {
            let kind = Kind::of_key(data_type, *unsigned)?;
            Some(KeyColumn { name: name.clone(), kind, character_set: character_set.clone() })
        });
        let key: Option<Vec<_>> = key.collect();
        let key = key.filter(|key| !key.is_empty()).ok_or_else(|| {
            table_fault(
                Code::SourceTableUnkeyed,
                table,
                "it has no primary key of integers, text, bytes or dates",
            )
            .needs("one, by which its rows are read a part at a time")
        })?;
        Ok(Plan { server: ServerIdentity { flavor, id }, kinds, key })
    }
}

fn table_fault(code: Code, table: &TableIdentity<'_>, found: impl Into<String>) -> Fault {
    Fault::new(code, format!("table {}.{}", table.database, table.table), found)
}

/// The captured columns and the key of at most so many rows behind `after`.
fn select(
    table: &TableIdentity<'_>,
    columns: &[String],
    plan: &Plan,
    after: Option<&[Value<'_>]>,
    rows: NonZeroUsize,
) -> String {
    let captured = columns.iter().zip(&plan.kinds).map(|(name, kind)| kind.selected(&quote_identifier(name)));
    let key: Vec<String> = plan.key.iter().map(|column| quote_identifier(&column.name)).collect();
    let selected = plan.key.iter().zip(&key).map(|(column, name)| column.kind.selected(name));
    let selected: Vec<String> = captured.chain(selected).collect();
    let condition = after.map_or(String::new(), |after| {
        let literals = plan.key.iter().zip(after);
        let literals: Vec<String> =
            literals.map(|(column, value)| value::literal(value, &column.character_set)).collect();
        format!(" WHERE {}", behind(&key, &literals))
    });
    format!(
        "SELECT {} FROM {} FORCE INDEX (PRIMARY){condition} ORDER BY {} LIMIT {rows}",
        selected.join(", "),
        quote_table(&table.database, &table.table),
        key.join(", ")
    )
}

/// Rows of a chunk on their way into its payload.
struct Reading<'r> {
    plan: &'r Plan,
    table: &'r TableIdentity<'static>,
    mark: anabranch_schemas::lsn::Lsn,
    encoder: Encoder,
    last: Option<ChunkKey>,
}

impl Reading<'_> {
    /// Whether all rows were taken; `Err` inside: a value cannot be understood.
    async fn read(
        &mut self,
        connection: &mut Conn,
        sql: String,
    ) -> Result<Result<bool, ()>, mysql_async::Error> {
        let mut rows = connection.query_iter(sql).await?;
        let mut last = None;
        while let Some(row) = rows.next().await? {
            let Some(key) = self.take(row) else { return Ok(Err(())) };
            last = Some(key);
            if self.encoder.bytes() > CHUNK_BYTES_MAX {
                break;
            }
        }
        self.last = last.map(|key| ChunkKey(encode_values(&key).into()));
        Ok(Ok(self.encoder.bytes() <= CHUNK_BYTES_MAX))
    }

    /// Encodes the captured values; the values of the key.
    fn take(&mut self, row: Row) -> Option<Vec<Value<'static>>> {
        let kinds = self.plan.kinds.iter().chain(self.plan.key.iter().map(|column| &column.kind));
        let values = row.unwrap().into_iter().zip(kinds).map(|(cell, kind)| kind.decode(cell));
        let mut values: Vec<Value<'static>> = values.collect::<Option<_>>()?;
        let key = values.split_off(self.plan.kinds.len());
        self.encoder.insert(self.mark, self.table, &values);
        Some(key)
    }
}
