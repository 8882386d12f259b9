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

use anabranch_pipeline::deliver::Cell;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{Chunk, ChunkKey, Pressure, RowSource};
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

/// Which rows of a table.
enum Wanted<'w> {
    /// At most so many behind a place.
    Behind(Option<&'w ChunkKey>, NonZeroUsize),
    /// Those whose first field is one of these.
    Keys(&'w [Cell]),
}

/// How one table is read.
struct Plan {
    server: ServerIdentity,
    /// Of the captured columns, in the order of the entity's fields.
    kinds: Vec<Kind>,
    /// The index that leads to the rows.
    index: String,
    /// Its columns, as far as they are compared.
    key: Vec<KeyColumn>,
}

/// A column that rows are found by.
struct KeyColumn {
    name: String,
    kind: Kind,
    /// Of texts; empty for bytes.
    character_set: String,
    collation: String,
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

    async fn chunk(
        &self,
        table: &TableIdentity<'static>,
        after: Option<&ChunkKey>,
        rows: NonZeroUsize,
        epoch: u16,
    ) -> Result<Chunk, Fault> {
        self.read_at_a_mark(table, &Wanted::Behind(after, rows), epoch).await
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
        let plan = self.plan(&mut connection, table, &columns, wanted).await?;
        let sql = select(table, &columns, &plan, wanted)?;
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
        let is_full = matches!(wanted, Wanted::Behind(_, rows) if count == rows.get() as u64);
        let next = last.filter(|_| !is_whole || is_full);
        Ok(Chunk { mark, server: plan.server, payload: encoder.finish(), rows: count, next })
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
        wanted: &Wanted<'_>,
    ) -> Result<Plan, Fault> {
        let ask = connection.query("SELECT @@version, CAST(@@server_id AS CHAR)");
        let server: Vec<(String, String)> = self.snapshots.within(TIMEOUT, ask).await?;
        let (version, id) = server.into_iter().next().unwrap_or_default();
        if !version.contains("MariaDB") {
            return Err(self
                .fault(Code::SourceSnapshotUnsupported, format!("the server is MySQL {version}"))
                .needs("MariaDB, which says where in its binlog a snapshot stands"));
        }
        let server = ServerIdentity { flavor: Flavor::MariaDb.as_str().to_owned(), id };
        let known = connection.query_map(describe(table, wanted), Described::from_row);
        let known: Vec<Described> = self.snapshots.within(TIMEOUT, known).await?;
        if known.is_empty() {
            return Err(table_fault(Code::SourceTableMissing, table, "it does not exist"));
        }
        let kinds = columns.iter().enumerate().map(|(field, name)| {
            let found = known.iter().find(|column| column.name.eq_ignore_ascii_case(name));
            let Described { data_type, unsigned, .. } = found.ok_or_else(|| {
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
        let is_key = |column: &&Described| match wanted {
            Wanted::Behind(..) => column.place.is_some(),
            Wanted::Keys(_) => column.place.is_some() && column.name.eq_ignore_ascii_case(&columns[0]),
        };
        let mut parts: Vec<&Described> = known.iter().filter(is_key).collect();
        parts.sort_unstable_by_key(|column| column.place);
        let index = parts.first().and_then(|column| column.index.clone()).unwrap_or_default();
        let key = parts.into_iter().map(Described::key);
        let key: Option<Vec<_>> = key.collect();
        let key = key.filter(|key| !key.is_empty()).ok_or_else(|| unkeyed(table, columns, wanted))?;
        Ok(Plan { server, kinds, index, key })
    }
}

fn table_fault(code: Code, table: &TableIdentity<'_>, found: impl Into<String>) -> Fault {
    Fault::new(code, format!("table {}.{}", table.database, table.table), found)
}

fn unkeyed(table: &TableIdentity<'_>, columns: &[String], wanted: &Wanted<'_>) -> Fault {
    let fault = |found: String| table_fault(Code::SourceTableUnkeyed, table, found);
    match wanted {
        Wanted::Behind(..) => fault("it has no primary key of integers, text, bytes or dates".to_owned())
            .needs("one, by which its rows are read a part at a time"),
        Wanted::Keys(_) => fault(format!("no index begins with column {}", columns[0]))
            .needs("one, by which single rows are found"),
    }
}

/// What the server says of a column.
struct Described {
    name: String,
    data_type: String,
    character_set: String,
    collation: String,
    unsigned: bool,
    /// In the index in question.
    place: Option<u32>,
    index: Option<String>,
}

impl Described {
    fn from_row(
        (name, data_type, character_set, collation, unsigned, place, index): (
            String,
            String,
            String,
            String,
            bool,
            Option<u32>,
            Option<String>,
        ),
    ) -> Self {
        Self { name, data_type, character_set, collation, unsigned, place, index }
    }

    fn key(&self) -> Option<KeyColumn> {
        let kind = Kind::of_key(&self.data_type, self.unsigned)?;
        let (character_set, collation) = (self.character_set.clone(), self.collation.clone());
        Some(KeyColumn { name: self.name.clone(), kind, character_set, collation })
    }
}

/// A statement for [`Described`].
fn describe(table: &TableIdentity<'_>, wanted: &Wanted<'_>) -> String {
    let place = |names: [&str; 2]| {
        let [database, name] = [&table.database, &table.table].map(|name| literal(name));
        format!("{} = {database} AND {} = {name}", names[0], names[1])
    };
    let (index, only) = match wanted {
        Wanted::Behind(..) => ("INDEX_NAME", "INDEX_NAME = 'PRIMARY'"),
        // Any that begins with the column will do.
        Wanted::Keys(_) => ("MIN(INDEX_NAME)", "SEQ_IN_INDEX = 1 AND INDEX_TYPE = 'BTREE'"),
    };
    format!(
        "SELECT c.COLUMN_NAME, LOWER(c.DATA_TYPE), LOWER(IFNULL(c.CHARACTER_SET_NAME, '')), \
         LOWER(IFNULL(c.COLLATION_NAME, '')), c.COLUMN_TYPE LIKE '%unsigned%', k.SEQ_IN_INDEX, k.INDEX_NAME \
         FROM information_schema.COLUMNS c LEFT JOIN (SELECT COLUMN_NAME, SEQ_IN_INDEX, {index} AS INDEX_NAME \
         FROM information_schema.STATISTICS WHERE {only} AND {} GROUP BY COLUMN_NAME, SEQ_IN_INDEX) k \
         ON k.COLUMN_NAME = c.COLUMN_NAME WHERE {}",
        place(["TABLE_SCHEMA", "TABLE_NAME"]),
        place(["c.TABLE_SCHEMA", "c.TABLE_NAME"]),
    )
}

/// The captured columns and the key of the rows that are wanted.
fn select(
    table: &TableIdentity<'_>,
    columns: &[String],
    plan: &Plan,
    wanted: &Wanted<'_>,
) -> Result<String, Fault> {
    let captured = columns.iter().zip(&plan.kinds).map(|(name, kind)| kind.selected(&quote_identifier(name)));
    let key: Vec<String> = plan.key.iter().map(|column| quote_identifier(&column.name)).collect();
    let selected = plan.key.iter().zip(&key).map(|(column, name)| column.kind.selected(name));
    let selected: Vec<String> = captured.chain(selected).collect();
    let condition = match wanted {
        Wanted::Behind(None, rows) => format!("ORDER BY {} LIMIT {rows}", key.join(", ")),
        Wanted::Behind(Some(after), rows) => {
            let values = decode_values(&after.0).filter(|values| values.len() == plan.key.len());
            let values = values
                .ok_or_else(|| table_fault(Code::Internal, table, "a stored place is not one of its key"))?;
            let literals = plan.key.iter().zip(&values);
            let literals: Vec<String> =
                literals.map(|(column, value)| value::literal(value, &column.character_set)).collect();
            format!("WHERE {} ORDER BY {} LIMIT {rows}", behind(&key, &literals), key.join(", "))
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
        selected.join(", "),
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
