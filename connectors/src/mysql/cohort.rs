//! Reads the birthday tables of a day in pages of users, and writes their columns that follow the ledger.
//!
//! A table of `by_user` lies in many databases, and a page of it is merged from all of them. Each is read a little
//! further than needed, and the page ends before the first user of whom a database may have more. A page is one
//! statement a server by the index of users; nothing is locked, and no read view outlives a statement. That index has
//! every column of a solar table but the birthday, and to fetch the birthday costs five times as much as the rest. So
//! rows whose birthday differs from their table's are searched once, when the scan of a table begins. Lanes own the
//! rows and never touch the three columns that [`MysqlCohort::follow`] writes.

mod columns;
mod statements;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anabranch_coupons::ports::CohortRow;
use anabranch_pipeline::config::{BirthdayTables, Config, TargetStore};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::retry::again;
use anabranch_schemas::celebration::{Birthday, Calendar, Occurrence};
use anabranch_schemas::shard::ShardId;
use futures::future::try_join_all;
use mysql_async::prelude::Queryable;
use mysql_async::{Row, TxOpts, Value};
use tokio::sync::Mutex;
use tokio::time::Instant;

pub use self::columns::{ColumnsRow, ColumnsTable};
use self::statements::{claims, follow, misplaced, page};
use super::connection::quote_table;
use super::error::Side;
use super::pool::Pool;
use super::target_session::target_session_with;

/// Settings of each connection beside those of every session on a target. Each list of users names its index, so the
/// server need not dive into the index once for each of them to choose one.
const SETTINGS: &str = "eq_range_index_dive_limit = 1";
/// Limit of a page of a table that is not in memory, on a busy server.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Rows read from each database beyond its share of a page: users are spread unevenly, and some have several rows.
const SPARE_ROWS: usize = 16;
/// Tables in a statement.
const STATEMENT_TABLES: usize = 100;

/// Rows with another birthday than their table's that are kept in memory; if there are more, each row is read whole.
const MISPLACED_MAX: usize = 10_000;
/// Age after which they are searched again. A freeze of millions takes less.
const MISPLACED_AGE: Duration = Duration::from_secs(300);

/// Birthday tables of at most one projection of each calendar. Clones share the connections.
#[derive(Debug, Clone)]
pub struct MysqlCohort {
    layers: Arc<BTreeMap<Calendar, Layer>>,
    /// Misplaced rows of the tables that are being scanned, and when they were found.
    misplaced: Arc<Mutex<BTreeMap<Birthday, (Misplaced, Instant)>>>,
}

/// Birthdays of rows that differ from their table's, by user and shard.
type MisplacedRows = BTreeMap<(u64, u64), Birthday>;
/// `None` = there are too many to keep.
type Misplaced = Option<Arc<MisplacedRows>>;

/// The tables of one calendar.
#[derive(Debug)]
struct Layer {
    tables: BirthdayTables,
    /// Servers in the order of the projection's targets: database i is on target i modulo their number.
    servers: Vec<Pool>,
}

/// A physical table: its server among the layer's, and its quoted name.
#[derive(Debug, Clone)]
struct TableAddress {
    server: usize,
    name: String,
}

/// Rows of one physical table, in the order of users.
#[derive(Debug, Default)]
struct TablePage {
    rows: Vec<CohortRow>,
    /// Rows that were read from it, those of unknown shards included.
    read: usize,
    last: Option<u64>,
}

impl MysqlCohort {
    /// Reads the tables of these birthday projections, over `connections` for each target. It does not connect yet.
    pub fn new(config: &Config, projections: &[&str], connections: usize) -> Result<Self, Fault> {
        let mut layers = BTreeMap::new();
        for name in projections {
            let refused = |found: &str| Fault::new(Code::ConfigInvalid, format!("projection {name}"), found);
            let known = config.projections.iter().find(|projection| projection.name == *name);
            let projection =
                known.ok_or_else(|| refused("it does not exist").needs("a birthday projection"))?;
            let Some(tables) = projection.kind.birthday() else {
                return Err(
                    refused("it is not a birthday projection").needs("a projection of kind `birthday`")
                );
            };
            let server = |target: &String| {
                let target = config.target(target).filter(|target| target.store == TargetStore::Mysql);
                let target =
                    target.ok_or_else(|| refused("one of its targets is not a MySQL or MariaDB server"))?;
                let named = (Side::Target, format!("target {}", target.name));
                let (url, ca_file) = (&target.url, target.ca_file.as_deref());
                let session = target_session_with(SETTINGS);
                let pool = Pool::with_session(named, url, ca_file, connections, &session);
                Ok(pool.shown(&target.name, "birthday_tables"))
            };
            let servers = projection.targets.iter().map(server).collect::<Result<_, Fault>>()?;
            if layers.insert(tables.calendar, Layer { tables: tables.clone(), servers }).is_some() {
                return Err(refused("another birthday projection has tables of the same calendar")
                    .needs("at most one birthday projection of each calendar"));
            }
        }
        Ok(Self { layers: Arc::new(layers), misplaced: Arc::default() })
    }

    /// Returns the rows of the next users of a table, in the order of users: at least one while there are more, of at
    /// most `limit` users. No user's rows are on two pages. See [`anabranch_coupons::ports::CohortRows::page`].
    pub async fn page(
        &self,
        table: Birthday,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<CohortRow>, Fault> {
        let layer = self.layer(table)?;
        let addresses = layer.addresses(table);
        let limit = limit.max(1);
        let misplaced = self.misplaced(layer, table, &addresses, after.is_none()).await?;
        let mut after = after;
        let mut at_most = limit.div_ceil(addresses.len().max(1)) + SPARE_ROWS;
        loop {
            let parts = layer.parts((table, misplaced.as_deref()), &addresses, after, at_most).await?;
            // If a table has more rows, those of the last user read may be incomplete.
            let more = parts.iter().filter(|part| part.read >= at_most);
            let complete_before = more.filter_map(|part| part.last).min();
            let mut rows: Vec<CohortRow> = parts.into_iter().flat_map(|part| part.rows).collect();
            rows.retain(|row| complete_before.is_none_or(|user| row.user < user));
            rows.sort_unstable_by_key(|row| (row.user, row.shard));
            let (mut users, mut last) = (0, None);
            rows.retain(|row| {
                users += usize::from(last != Some(row.user));
                last = Some(row.user);
                users <= limit
            });
            match complete_before {
                Some(user) if rows.is_empty() => {
                    // All rows were of unknown shards, or one user has very many.
                    after = after.max(user.checked_sub(1));
                    at_most *= 2;
                }
                _ => return Ok(rows),
            }
        }
    }

    /// Returns the misplaced rows of a solar table, as they were when its scan began. Lunar rows are read whole: only
    /// they have the calendar by which their users celebrate.
    async fn misplaced(
        &self,
        layer: &Layer,
        table: Birthday,
        addresses: &[TableAddress],
        begins: bool,
    ) -> Result<Misplaced, Fault> {
        if table.calendar() == Calendar::Lunar {
            return Ok(None);
        }
        let mut known = self.misplaced.lock().await;
        let young = known.get(&table).filter(|(_, at)| !begins && at.elapsed() < MISPLACED_AGE);
        if let Some((found, _)) = young {
            return Ok(found.clone());
        }
        let found = layer.misplaced(table, addresses).await?;
        known.insert(table, (found.clone(), Instant::now()));
        Ok(found)
    }

    /// Sets `is_sent`, `send_time` and `sent_occurrence` of users' rows in the given tables of their occurrence's
    /// calendar, by one statement a table. See [`anabranch_coupons::ports::CohortRows::follow`].
    pub async fn follow(&self, tables: &[Birthday], granted: &[(u64, Occurrence)]) -> Result<(), Fault> {
        let mut users: BTreeMap<Occurrence, BTreeSet<u64>> = BTreeMap::new();
        for (user, occurrence) in granted {
            users.entry(*occurrence).or_default().insert(*user);
        }
        for (occurrence, users) in users {
            for table in tables.iter().filter(|table| table.calendar() == occurrence.calendar) {
                let layer = self.layer(*table)?;
                let statement =
                    |(place, users): (&TableAddress, &[u64])| follow(&place.name, users, occurrence.year);
                layer.write(&layer.by_place(*table, &users), statement).await?;
            }
        }
        Ok(())
    }

    /// Returns the shard tables whose claims name these users, in all tables of all calendars.
    pub(super) async fn claims(
        &self,
        users: &BTreeSet<u64>,
    ) -> Result<BTreeMap<u64, BTreeSet<ShardId>>, Fault> {
        let mut found: BTreeMap<u64, BTreeSet<ShardId>> = BTreeMap::new();
        for layer in self.layers.values() {
            for (user, shard) in layer.claims(users).await? {
                found.entry(user).or_default().insert(shard);
            }
        }
        Ok(found)
    }

    fn layer(&self, table: Birthday) -> Result<&Layer, Fault> {
        let calendar = table.calendar();
        self.layers.get(&calendar).ok_or_else(|| {
            Fault::new(
                Code::ConfigInvalid,
                format!("{calendar} birthday tables"),
                "no projection writes them",
            )
            .needs(format!("a birthday projection of the {calendar} calendar"))
        })
    }
}

impl Layer {
    /// Returns the physical tables of a birthday, in the order of their databases.
    fn addresses(&self, table: Birthday) -> Vec<TableAddress> {
        let name = self.tables.table_name(table);
        let place = |number: u32| TableAddress {
            server: number as usize % self.servers.len(),
            name: quote_table(&self.tables.database_name(number), &name),
        };
        self.tables.databases_of(table).map(place).collect()
    }

    /// Returns the physical tables of a birthday, each with those of the users whom it can have.
    fn by_place(&self, table: Birthday, users: &BTreeSet<u64>) -> Vec<(TableAddress, Vec<u64>)> {
        let addresses = self.addresses(table);
        let number = addresses.len() as u64;
        let of = |place: u64| users.iter().copied().filter(move |user| user % number == place);
        let parts = (0..number).zip(addresses).map(|(place, at)| (at, of(place).collect::<Vec<_>>()));
        parts.filter(|(_, users)| !users.is_empty()).collect()
    }

    /// Reads the next rows of each of the tables, by one statement a server. Without known misplaced rows each row is
    /// read with its birthday.
    async fn parts(
        &self,
        (table, misplaced): (Birthday, Option<&MisplacedRows>),
        addresses: &[TableAddress],
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<TablePage>, Fault> {
        let whole = misplaced.is_none().then(|| table.calendar());
        let select = |number: usize| page(number, (&addresses[number].name, whole), after, limit);
        let numbered: Vec<usize> = (0..addresses.len()).collect();
        let rows =
            self.select(&numbered, |number| addresses[*number].server, |number| select(*number)).await?;
        let mut parts: Vec<TablePage> = Vec::new();
        parts.resize_with(addresses.len(), TablePage::default);
        for row in rows {
            let (Some(place), Some(user), Some(shard)) = (number(&row, 0), number(&row, 1), number(&row, 2))
            else {
                return Err(odd(table));
            };
            let (birthday, calendar) = match misplaced {
                Some(misplaced) => {
                    let other = misplaced.get(&(user, shard)).copied();
                    (other.unwrap_or(table), Calendar::Solar)
                }
                None => {
                    let birthday = text(&row, 3).ok_or_else(|| odd(table))?;
                    (birthday_of(table, birthday), calendar_of(table, &row))
                }
            };
            let part = parts.get_mut(place as usize).ok_or_else(|| odd(table))?;
            part.read += 1;
            part.last = part.last.max(Some(user));
            // A manual write made a row of a shard above all possible ones.
            if let Some(shard) = ShardId::from_u64(shard) {
                part.rows.push(CohortRow { user, shard, birthday, calendar });
            }
        }
        Ok(parts)
    }

    /// Finds the rows of all these tables whose birthday differs from their table's, unless there are too many.
    async fn misplaced(&self, table: Birthday, addresses: &[TableAddress]) -> Result<Misplaced, Fault> {
        let statement = |place: &TableAddress| misplaced(&place.name, table, MISPLACED_MAX + 1);
        let rows = self.select(addresses, |place| place.server, statement).await?;
        let row = |row: Row| {
            let birthday = birthday_of(table, text(&row, 2)?);
            Some(((number(&row, 0)?, number(&row, 1)?), birthday))
        };
        let found: Option<MisplacedRows> = rows.into_iter().map(row).collect();
        let found = found.ok_or_else(|| odd(table))?;
        Ok((found.len() <= MISPLACED_MAX).then(|| Arc::new(found)))
    }

    async fn claims(&self, users: &BTreeSet<u64>) -> Result<Vec<(u64, ShardId)>, Fault> {
        let addresses: Vec<_> = Birthday::all(self.tables.calendar)
            .into_iter()
            .flat_map(|table| self.by_place(table, users))
            .collect();
        let statement = |(place, users): &(TableAddress, Vec<u64>)| claims(&place.name, users);
        let rows = self.select(&addresses, |(place, _)| place.server, statement).await?;
        let claim = |row: Row| Some((number(&row, 0)?, ShardId::from_u64(number(&row, 1)?)?));
        Ok(rows.into_iter().filter_map(claim).collect())
    }

    /// Returns the rows of all these selections: few statements for each server, and all servers at once.
    async fn select<T: Sync>(
        &self,
        wanted: &[T],
        server_of: impl Fn(&T) -> usize,
        statement: impl Fn(&T) -> String,
    ) -> Result<Vec<Row>, Fault> {
        let of_server = self.servers.iter().enumerate().flat_map(|(server, pool)| {
            let wanted = wanted.iter().filter(|wanted| server_of(wanted) == server);
            let selections: Vec<String> = wanted.map(|wanted| format!("({})", statement(wanted))).collect();
            let some: Vec<String> =
                selections.chunks(STATEMENT_TABLES).map(|some| some.join(" UNION ALL ")).collect();
            some.into_iter().map(move |sql| (pool, sql))
        });
        let queries: Vec<_> = of_server.map(async |(pool, sql)| rows(pool, sql).await).collect();
        Ok(try_join_all(queries).await?.into_iter().flatten().collect())
    }

    /// Executes one statement a table: all statements of one server are one transaction.
    async fn write(
        &self,
        wanted: &[(TableAddress, Vec<u64>)],
        statement: impl Fn((&TableAddress, &[u64])) -> String,
    ) -> Result<(), Fault> {
        let writings = self.servers.iter().enumerate().map(|(server, pool)| {
            let of_server = wanted.iter().filter(|(place, _)| place.server == server);
            let statements: Vec<String> = of_server.map(|(place, users)| statement((place, users))).collect();
            async move {
                if statements.is_empty() {
                    return Ok(());
                }
                // A lane may hold the rows for a moment, or wait for them.
                again(async || execute(pool, &statements).await).await
            }
        });
        try_join_all(writings).await.map(drop)
    }
}

async fn rows(pool: &Pool, sql: String) -> Result<Vec<Row>, Fault> {
    again(async || {
        let mut connection = pool.connection().await?;
        pool.within(TIMEOUT, connection.query::<Row, _>(sql.as_str())).await
    })
    .await
}

async fn execute(pool: &Pool, statements: &[String]) -> Result<(), Fault> {
    let mut connection = pool.connection().await?;
    if let [statement] = statements {
        // A single statement is a transaction of its own.
        return pool.within(TIMEOUT, connection.query_drop(statement)).await;
    }
    let work = async {
        // A transaction that is dropped before its end is rolled back.
        let mut transaction = connection.start_transaction(TxOpts::default()).await?;
        transaction.query_drop(statements.join("; ")).await?;
        transaction.commit().await
    };
    pool.within(TIMEOUT, work).await
}

/// Returns the birthday in a row of a table. A text that is no birthday counts as any birthday but the table's.
fn birthday_of(table: Birthday, text: &[u8]) -> Birthday {
    let mut all = Birthday::all(table.calendar()).into_iter();
    match table.to_string().as_bytes() == text {
        true => table,
        false => {
            let others = all.clone().find(|other| other.to_string().as_bytes() == text);
            others.or_else(|| all.find(|other| *other != table)).unwrap_or(table)
        }
    }
}

/// Returns the calendar that the user celebrates by. Solar tables do not have it, and a text that names none is solar.
fn calendar_of(table: Birthday, row: &Row) -> Calendar {
    let is_lunar = table.calendar() == Calendar::Lunar && text(row, 4) == Some(b"lunar");
    if is_lunar { Calendar::Lunar } else { Calendar::Solar }
}

fn odd(table: Birthday) -> Fault {
    Fault::new(
        Code::TargetTableShape,
        format!("table {}", table.table()),
        "a row with columns of other types",
    )
    .needs("the columns that set-up makes")
}

/// Parses a text of digits.
fn number(row: &Row, column: usize) -> Option<u64> {
    std::str::from_utf8(text(row, column)?).ok()?.parse().ok()
}

fn text(row: &Row, column: usize) -> Option<&[u8]> {
    match row.as_ref(column)? {
        Value::Bytes(bytes) => Some(bytes),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_no_birthday_is_not_the_tables() {
        for table in Calendar::ALL.map(|calendar| Birthday::all(calendar)[0]) {
            for other in Birthday::all(table.calendar()) {
                assert_eq!(birthday_of(table, other.to_string().as_bytes()), other);
            }
            for text in ["", "1-1", "01-0", "02-31", "13-01", "00-00", "01-01 ", "xx-yy"] {
                assert_ne!(birthday_of(table, text.as_bytes()), table, "{text}");
            }
        }
    }
}
