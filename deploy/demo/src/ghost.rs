//! The statements of gh-ost in their order: a copy of a table beside changes, and a swap of both names under a lock.
//!
//! gh-ost reads the changes of the original from its binlog. A [`GhostCopy`] finds the rows that differ by a comparison
//! of both tables, and then writes them as gh-ost does. So it needs no program, and a captured table sees the same.

use std::time::Duration;

use tokio::time::Instant;

use crate::endpoint::{Connection, Endpoint};
use crate::error::{DemoError, Result};

/// Takes values as the workload writes them, impossible dates too.
const SESSION: [&str; 1] = ["SET SESSION sql_mode = 'ALLOW_INVALID_DATES'"];
/// Number of replays before the lock.
const REPLAYS: u32 = 3;
/// Time before each of these replays, in which the original changes.
const BETWEEN: Duration = Duration::from_millis(200);
/// Rows that one statement copies, as many as gh-ost does.
const ROWS_AT_ONCE: usize = 1_000;
/// Keys that one statement replays.
const KEYS_AT_ONCE: usize = 500;
/// Limit until the RENAME waits for the lock.
const WAITS_MAX: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A table that is copied, and the change that the copy gets.
#[derive(Debug, Clone)]
pub struct GhostCopy {
    pub database: String,
    pub table: String,
    /// The column of the primary key.
    pub key: String,
    /// Every column that the copy keeps.
    pub columns: Vec<String>,
    /// The change of the copy, as an ALTER TABLE writes it.
    pub alter: String,
}

/// Returns the columns of a table, in their order.
pub async fn columns_of(connection: &mut Connection, database: &str, table: &str) -> Result<Vec<String>> {
    let columns = format!(
        "SELECT column_name FROM information_schema.columns \
         WHERE table_schema = '{database}' AND table_name = '{table}' ORDER BY ordinal_position"
    );
    connection.rows("list the columns", columns).await
}

impl GhostCopy {
    /// Copies, changes and swaps the table; begins again after a RENAME that met a deadlock.
    pub async fn run(&self, endpoint: &Endpoint) -> Result<()> {
        loop {
            // An error closes the connection, which releases its locks.
            let mut connection = endpoint.connect(&SESSION).await?;
            match self.run_once(&mut connection, endpoint).await {
                Err(error) if error.is_lock_conflict() => {}
                swapped => return swapped,
            }
            drop(connection);
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn run_once(&self, connection: &mut Connection, endpoint: &Endpoint) -> Result<()> {
        let (table, ghost) = (self.original(), self.ghost());
        let (old, changelog) = (self.beside("del"), self.beside("ghc"));
        let make = format!(
            "DROP TABLE IF EXISTS {ghost}, {old}, {changelog}; \
             CREATE TABLE {changelog} (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, \
             hint VARCHAR(64) NOT NULL, state VARCHAR(255) NOT NULL, UNIQUE KEY (hint)); \
             CREATE TABLE {ghost} LIKE {table}; ALTER TABLE {ghost} {}; \
             INSERT INTO {changelog} (hint, state) VALUES ('state', 'GhostTableMigrated')",
            self.alter
        );
        persist(connection, &make).await?;
        self.copy(connection).await?;
        for number in 0..REPLAYS {
            tokio::time::sleep(BETWEEN).await;
            let heartbeat = format!(
                "INSERT INTO {changelog} (hint, state) VALUES ('heartbeat', '{number}') \
                 ON DUPLICATE KEY UPDATE state = '{number}'"
            );
            persist(connection, &heartbeat).await?;
            self.replay(connection).await?;
        }
        let sentry = format!(
            "DROP TABLE IF EXISTS {old}; \
             CREATE TABLE {old} (id INT AUTO_INCREMENT PRIMARY KEY) COMMENT = 'ghost-cut-over-sentry'"
        );
        persist(connection, &sentry).await?;
        let lock = format!("LOCK TABLES {table} WRITE, {ghost} WRITE, {old} WRITE");
        persist(connection, &lock).await?;
        self.replay(connection).await?;
        let mut other = endpoint.connect(&SESSION).await?;
        let rename = format!("RENAME TABLE {table} TO {old}, {ghost} TO {table}");
        let release = format!("DROP TABLE {old}; UNLOCK TABLES");
        let renaming = other.execute("swap the names", rename);
        // The first error ends both: a RENAME that has failed waits for no lock.
        tokio::try_join!(renaming, release_lock(connection, endpoint, &release))?;
        persist(connection, &format!("DROP TABLE IF EXISTS {old}, {changelog}")).await
    }

    /// Copies the rows of the original, one range of keys after another.
    async fn copy(&self, connection: &mut Connection) -> Result<()> {
        let (table, ghost, key) = (self.original(), self.ghost(), &self.key);
        let columns = self.columns.join(", ");
        let mut after = "TRUE".to_owned();
        loop {
            let last = format!(
                "SELECT CAST({key} AS CHAR) FROM (SELECT {key} FROM {table} WHERE {after} ORDER BY {key} \
                 LIMIT {ROWS_AT_ONCE}) AS part ORDER BY {key} DESC LIMIT 1"
            );
            let Some(last): Option<String> = connection.first("find the next range", last).await? else {
                return Ok(());
            };
            let copy = format!(
                "INSERT IGNORE INTO {ghost} ({columns}) SELECT {columns} FROM {table} \
                 WHERE {after} AND {key} <= '{last}' LOCK IN SHARE MODE"
            );
            persist(connection, &copy).await?;
            after = format!("{key} > '{last}'");
        }
    }

    /// Brings the changes of the original into the copy: a REPLACE for each row that differs, and a DELETE for each
    /// row that the original has no more.
    async fn replay(&self, connection: &mut Connection) -> Result<()> {
        let (table, ghost, key) = (self.original(), self.ghost(), &self.key);
        // Bytes are compared, because text can be equal although it is not the same.
        let is_same = |column: &String| {
            format!("CAST({table}.{column} AS BINARY) <=> CAST({ghost}.{column} AS BINARY)")
        };
        let is_same = self.columns.iter().map(is_same).collect::<Vec<_>>().join(" AND ");
        let differing = format!(
            "SELECT CAST({table}.{key} AS CHAR) FROM {table} LEFT JOIN {ghost} ON {ghost}.{key} = {table}.{key} \
             WHERE {ghost}.{key} IS NULL OR NOT ({is_same})"
        );
        let differing: Vec<String> = connection.rows("find the changes", differing).await?;
        let columns = self.columns.join(", ");
        for keys in differing.chunks(KEYS_AT_ONCE) {
            let keys = keys.join("', '");
            let replace = format!(
                "REPLACE INTO {ghost} ({columns}) SELECT {columns} FROM {table} WHERE {key} IN ('{keys}')"
            );
            persist(connection, &replace).await?;
        }
        let delete = format!(
            "DELETE {ghost} FROM {ghost} LEFT JOIN {table} ON {table}.{key} = {ghost}.{key} \
             WHERE {table}.{key} IS NULL"
        );
        persist(connection, &delete).await
    }

    fn original(&self) -> String {
        format!("`{}`.`{}`", self.database, self.table)
    }

    fn ghost(&self) -> String {
        self.beside("gho")
    }

    /// Returns the name of a table beside the original, which no rule names.
    fn beside(&self, ending: &str) -> String {
        format!("`{}`.`_{}_{ending}`", self.database, self.table)
    }
}

/// Releases the lock once the RENAME waits for it.
async fn release_lock(connection: &mut Connection, endpoint: &Endpoint, release: &str) -> Result<()> {
    until_rename_waits(endpoint).await?;
    connection.execute("release the lock", release).await
}

async fn until_rename_waits(endpoint: &Endpoint) -> Result<()> {
    let waiting = "SELECT COUNT(*) FROM information_schema.processlist \
                   WHERE info LIKE 'RENAME TABLE %' AND state LIKE 'Waiting for%'";
    let mut connection = endpoint.connect(&[]).await?;
    let deadline = Instant::now() + WAITS_MAX;
    while connection.first::<u64>("look for the rename", waiting).await?.unwrap_or_default() == 0 {
        if Instant::now() >= deadline {
            let what = "RENAME TABLE waits for the lock".to_owned();
            return Err(DemoError::Late { what, seconds: WAITS_MAX.as_secs() });
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Runs statements, again after a deadlock with the load. Repeated statements must be harmless.
async fn persist(connection: &mut Connection, sql: &str) -> Result<()> {
    loop {
        match connection.execute("change a table", sql).await {
            Err(error) if error.is_lock_conflict() => tokio::time::sleep(POLL_INTERVAL).await,
            done => return done,
        }
    }
}
