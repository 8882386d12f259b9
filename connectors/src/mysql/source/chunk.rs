//! Rows of captured tables as they are at a known position: for a refresh, not for capture.
//!
//! MariaDB says at which place of its binlog a snapshot stands (`Binlog_snapshot_position`), and that is exact: a
//! transaction that is in the binlog already, but is not seen yet because a replica's acknowledgement is waited for, is
//! behind that place. The GTID variables run ahead of what is seen (measured). MySQL has no such place.
//!
//! A snapshot lives for one chunk, so no long read view holds up the server's purge. Values are read as text in the
//! column's own character set, which for all types that can be captured is what its row events hold. How a table is
//! read is kept as long as its definition stays, which each chunk's transaction asks for behind its rows: from the
//! first row to COMMIT no statement can change it.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch_pipeline::deliver::Cell;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{Chunk, ChunkKey, Pressure, RowSource};
use anabranch_schemas::change::{Entity, TableIdentity, Value};
use anabranch_schemas::codec::v1::Encoder;
use anabranch_schemas::codec::{decode_values, encode_values};
use anabranch_schemas::envelope::ServerIdentity;
use anabranch_schemas::shard::ShardId;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, QueryResult, Row, TextProtocol};

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

/// Tables whose plans are kept; with more, all are forgotten.
const PLANS_MAX: usize = 20_000;
/// What the server says of itself.
const IDENTITY: &str = "SELECT @@version, CAST(@@server_id AS CHAR)";

/// Which rows of a table.
enum Wanted<'w> {
    /// At most so many behind a place.
    Behind(Option<&'w ChunkKey>, NonZeroUsize),
    /// Those whose first field is one of these.
    Keys(&'w [Cell]),
}

/// How tables are read, as long as their definitions stay; by shard, for chunks.
#[derive(Default)]
pub(super) struct Plans(Mutex<HashMap<ShardId, Arc<Plan>>>);

impl Plans {
    fn get(&self, shard: ShardId) -> Option<Arc<Plan>> {
        self.plans().get(&shard).cloned()
    }

    fn keep(&self, shard: ShardId, plan: &Arc<Plan>) {
        let mut plans = self.plans();
        if plans.len() >= PLANS_MAX {
            plans.clear();
        }
        plans.insert(shard, Arc::clone(plan));
    }

    fn forget(&self, shard: ShardId) {
        self.plans().remove(&shard);
    }

    fn plans(&self) -> std::sync::MutexGuard<'_, HashMap<ShardId, Arc<Plan>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How one table is read.
struct Plan {
    /// What it was made for.
    definition: String,
    /// Of the captured columns, in the order of the entity's fields.
    kinds: Vec<Kind>,
    /// As SQL: the captured columns, and behind them what of the key is none.
    selected: String,
    /// The index that leads to the rows.
    index: String,
    /// Its columns, as far as they are compared.
    key: Vec<KeyColumn>,
}

/// A column that rows are found by.
struct KeyColumn {
    name: String,
    kind: Kind,
    /// Its place among the selected columns: a captured one is not selected twice.
    place: usize,
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
        let is_chunk = matches!(wanted, Wanted::Behind(..));
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
        let is_full = matches!(wanted, Wanted::Behind(_, rows) if count == rows.get() as u64);
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

    /// What the server says of itself and of the table.
    async fn plan(
        &self,
        connection: &mut Conn,
        table: &TableIdentity<'static>,
        columns: &[String],
        wanted: &Wanted<'_>,
    ) -> Result<Plan, Fault> {
        let server: Vec<(String, String)> =
            self.snapshots.within(TIMEOUT, connection.query(IDENTITY)).await?;
        let (version, _) = server.into_iter().next().unwrap_or_default();
        if !version.contains("MariaDB") {
            return Err(self
                .fault(Code::SourceSnapshotUnsupported, format!("the server is MySQL {version}"))
                .needs("MariaDB, which says where in its binlog a snapshot stands"));
        }
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
        let kinds = kinds.collect::<Result<Vec<_>, _>>()?;
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
        let ask = connection.query_first(show_definition(table));
        let definition: Option<(String, String)> = self.snapshots.within(TIMEOUT, ask).await?;
        let definition = definition.map(|(_, text)| without_counter(&text)).unwrap_or_default();
        Ok(Plan::new(definition, columns, kinds, (index, key)))
    }
}

impl Plan {
    fn new(
        definition: String,
        columns: &[String],
        kinds: Vec<Kind>,
        (index, mut key): (String, Vec<KeyColumn>),
    ) -> Self {
        let mut selected: Vec<String> =
            columns.iter().zip(&kinds).map(|(name, kind)| kind.selected(&quote_identifier(name))).collect();
        for column in &mut key {
            let captured = columns.iter().position(|name| name.eq_ignore_ascii_case(&column.name));
            column.place = captured.filter(|place| kinds[*place] == column.kind).unwrap_or_else(|| {
                selected.push(column.kind.selected(&quote_identifier(&column.name)));
                selected.len() - 1
            });
        }
        Self { definition, selected: selected.join(", "), kinds, index, key }
    }

    /// Where the next chunk begins; `None` when a value is not of its type.
    fn place(&self, last: &Row) -> Option<ChunkKey> {
        let values = self.key.iter().map(|column| column.kind.decode(last.as_ref(column.place)?));
        let values: Vec<Value<'_>> = values.collect::<Option<_>>()?;
        Some(ChunkKey(encode_values(&values).into()))
    }
}

fn show_definition(table: &TableIdentity<'_>) -> String {
    format!("SHOW CREATE TABLE {}", quote_table(&table.database, &table.table))
}

/// A definition without the number that each new row changes: it stands behind the columns, in front of all comments.
fn without_counter(definition: &str) -> String {
    const COUNTER: &str = " AUTO_INCREMENT=";
    let options = definition.find("\n) ").unwrap_or(definition.len());
    let (columns, options) = definition.split_at(options);
    let Some((front, rest)) = options.split_once(COUNTER) else { return definition.to_owned() };
    format!("{columns}{front}{}", rest.trim_start_matches(|digit: char| digit.is_ascii_digit()))
}

fn table_name(table: &TableIdentity<'_>) -> String {
    format!("table {}.{}", table.database, table.table)
}

fn table_fault(code: Code, table: &TableIdentity<'_>, found: impl Into<String>) -> Fault {
    Fault::new(code, table_name(table), found)
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
        Some(KeyColumn { name: self.name.clone(), kind, place: 0, character_set, collation })
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
fn select(table: &TableIdentity<'_>, plan: &Plan, wanted: &Wanted<'_>) -> Result<String, Fault> {
    let key: Vec<String> = plan.key.iter().map(|column| quote_identifier(&column.name)).collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_does_not_change_with_its_rows() {
        let define = |rest: &str| format!("CREATE TABLE `t` (\n  `id` int(11)\n) ENGINE=InnoDB{rest}");
        let text = define(" AUTO_INCREMENT=17 COMMENT=' AUTO_INCREMENT=3'");
        assert_eq!(without_counter(&text), define(" COMMENT=' AUTO_INCREMENT=3'"));
        assert_eq!(without_counter(&define("")), define(""));
    }

    #[test]
    fn a_key_that_is_captured_is_selected_once() {
        let column = |name: &str, kind| {
            let (character_set, collation) = (String::new(), String::new());
            KeyColumn { name: name.to_owned(), kind, place: 0, character_set, collation }
        };
        let columns = ["user_id", "birthday"].map(str::to_owned);
        let key = vec![column("region", Kind::Bytes), column("USER_ID", Kind::Unsigned)];
        let kinds = vec![Kind::Unsigned, Kind::Date];
        let plan = Plan::new(String::new(), &columns, kinds, ("PRIMARY".to_owned(), key));
        assert_eq!(plan.selected, "`user_id`, `birthday`, `region`");
        assert_eq!(plan.key.iter().map(|column| column.place).collect::<Vec<_>>(), [2, 0]);
    }
}
