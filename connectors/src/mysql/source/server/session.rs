//! Small queries to a source through `sqlx`, such as its identity and the start and end of its binlog.

use std::path::PathBuf;
use std::time::Duration;

use anabranch_pipeline::config::{ServerUrl, SourceConfig};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::envelope::ServerIdentity;
use anabranch_schemas::lsn::ResumePoint;
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{Connection as _, Row as _};

use crate::mysql::connection::sqlx_options;
use crate::mysql::error::{Side, from_sqlx};
use crate::mysql::source::decode::gtid::{Flavor, Gtids, OWNED, mariadb_state, owned};
use crate::mysql::source::decode::position::FILE_START;
use crate::refusals::Account;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of one query: they are all quick, so a server that does not answer is unreachable.
const QUERY_TIMEOUT: Duration = Duration::from_secs(30);

/// Attempts to find a moment in which MySQL commits nothing.
const QUIET_ATTEMPTS: u32 = 10;
const QUIET_PAUSE: Duration = Duration::from_millis(10);

/// The address of a source, and its name in messages.
#[derive(Debug, Clone)]
pub struct Address {
    pub url: ServerUrl,
    pub ca_file: Option<PathBuf>,
    /// `source <name>`
    pub subject: String,
}

impl Address {
    pub fn of(config: &SourceConfig) -> Self {
        Self {
            url: config.url.clone(),
            ca_file: config.ca_file.clone(),
            subject: format!("source {}", config.name),
        }
    }
}

/// A connection for queries, with the server's version.
pub struct Session {
    connection: MySqlConnection,
    subject: String,
    pub version: Version,
    pub version_text: String,
}

/// Kind of server, and its version of three numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    pub flavor: Flavor,
    pub number: (u32, u32, u32),
}

/// Returns the query for the GTIDs that are in the binlog, or were before it was purged.
pub fn written_gtids(flavor: Flavor) -> &'static str {
    match flavor {
        Flavor::MariaDb => "SELECT @@gtid_binlog_pos",
        Flavor::MySql => "SELECT @@GLOBAL.gtid_executed",
    }
}

impl Version {
    /// Reads a value of `@@version`: `10.11.14-MariaDB-log`, `9.7.4`.
    pub fn parse(text: &str) -> Self {
        let flavor = if text.contains("MariaDB") { Flavor::MariaDb } else { Flavor::MySql };
        let mut numbers = text.split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        Self { flavor, number: (next(), next(), next()) }
    }

    /// Returns the statement that shows where the binlog ends.
    pub fn show_end(self) -> &'static str {
        match self.flavor {
            Flavor::MySql if self.number >= (8, 4, 0) => "SHOW BINARY LOG STATUS",
            _ => "SHOW MASTER STATUS",
        }
    }
}

/// The end of the binlog, and the groups before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BinlogEnd {
    pub file: String,
    pub position: u64,
    pub gtid_set: String,
}

impl From<BinlogEnd> for ResumePoint {
    fn from(end: BinlogEnd) -> Self {
        Self { file: end.file, position: end.position, gtid_set: end.gtid_set, ..Self::default() }
    }
}

impl Session {
    pub async fn open(address: &Address) -> Result<Self, Fault> {
        let subject = address.subject.as_str();
        if let Some(file) = &address.ca_file
            && let Err(error) = std::fs::File::open(file)
        {
            let found = format!("ca_file {} cannot be read", file.display());
            return Err(Fault::new(Code::SourceAccessDenied, subject, found)
                .needs("a PEM file with the certificate of the CA")
                .caused_by(error));
        }
        let options = sqlx_options(&address.url, address.ca_file.as_deref());
        let connecting = async {
            tokio::time::timeout(CONNECT_TIMEOUT, MySqlConnection::connect_with(&options))
                .await
                .map_err(|_| Fault::new(Code::SourceUnreachable, subject, "no answer to the connection"))?
                .map_err(|error| connect_fault(address, error))
        };
        let connection = Account::of(&address.url, address.ca_file.as_deref())
            .connect(Side::Source.denied(), subject, connecting)
            .await?;
        let mut session = Self {
            connection,
            subject: subject.to_owned(),
            version: Version { flavor: Flavor::MySql, number: (0, 0, 0) },
            version_text: String::new(),
        };
        // This makes `\` escape in LIKE, and no answer come from an old snapshot, whatever the server's defaults are.
        session.rows("SET SESSION sql_mode = '', autocommit = 1".to_owned()).await?;
        session.version_text = session.text("SELECT @@version").await?;
        session.version = Version::parse(&session.version_text);
        Ok(session)
    }

    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// Returns all rows of a query in the text protocol.
    pub async fn rows(&mut self, sql: String) -> Result<Vec<MySqlRow>, Fault> {
        let query = sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).fetch_all(&mut self.connection);
        tokio::time::timeout(QUERY_TIMEOUT, query)
            .await
            .map_err(|_| Fault::new(Code::SourceUnreachable, self.subject.as_str(), "no answer to a query"))?
            .map_err(|error| from_sqlx(Side::Source, &self.subject, error))
    }

    /// Returns the first column of the first row as text; empty for NULL and for no row.
    pub async fn text(&mut self, sql: &str) -> Result<String, Fault> {
        Ok(self.optional_text(sql).await?.unwrap_or_default())
    }

    async fn optional_text(&mut self, sql: &str) -> Result<Option<String>, Fault> {
        let rows = self.rows(sql.to_owned()).await?;
        Ok(rows.first().and_then(|row| column_text(row, 0)))
    }

    pub async fn identity(&mut self) -> Result<ServerIdentity, Fault> {
        let id = match self.version.flavor {
            Flavor::MariaDb => self.text("SELECT CAST(@@server_id AS CHAR)").await?,
            Flavor::MySql => self.text("SELECT @@server_uuid").await?,
        };
        Ok(ServerIdentity { flavor: self.version.flavor.as_str().to_owned(), id })
    }

    /// Returns the answer to [`written_gtids`].
    pub async fn written_gtids(&mut self) -> Result<String, Fault> {
        self.text(written_gtids(self.version.flavor)).await
    }

    /// Has MySQL answer with the present sizes of tables; by default its answer may be a day old. MariaDB stores no
    /// answers.
    pub async fn ask_for_present_statistics(&mut self) -> Result<(), Fault> {
        if self.version.flavor == Flavor::MySql {
            self.rows("SET SESSION information_schema_stats_expiry = 0".to_owned()).await?;
        }
        Ok(())
    }

    /// Whether table names are stored, and compared, in lower case.
    pub async fn has_lower_case_names(&mut self) -> Result<bool, Fault> {
        Ok(self.text("SELECT CAST(@@lower_case_table_names AS CHAR)").await? != "0")
    }

    /// Returns names and sizes of the binlog files, oldest first.
    pub async fn binlogs(&mut self) -> Result<Vec<(String, u64)>, Fault> {
        let rows = self.rows("SHOW BINARY LOGS".to_owned()).await?;
        Ok(rows
            .iter()
            .map(|row| {
                let size = column_text(row, 1).and_then(|size| size.parse().ok()).unwrap_or(0);
                (column_text(row, 0).unwrap_or_default(), size)
            })
            .collect())
    }

    /// Returns the present end of the binlog, always the end of a group, with the GTIDs before it. `None` if MySQL
    /// commits all the while: it reports position and set one after the other, and a group that is being committed is
    /// before the end and not in the set yet.
    pub async fn end(&mut self) -> Result<Option<BinlogEnd>, Fault> {
        if self.version.flavor == Flavor::MariaDb {
            return self.reported_end().await.map(Some);
        }
        for _ in 0..QUIET_ATTEMPTS {
            let before = self.reported_end().await?;
            let is_quiet = self.text(OWNED).await?.is_empty();
            let end = self.reported_end().await?;
            if is_quiet && (&before.file, before.position) == (&end.file, end.position) {
                return Ok(Some(end));
            }
            tokio::time::sleep(QUIET_PAUSE).await;
        }
        Ok(None)
    }

    async fn reported_end(&mut self) -> Result<BinlogEnd, Fault> {
        let rows = self.rows(self.version.show_end().to_owned()).await?;
        let Some(row) = rows.first() else {
            return Err(binlog_off(&self.subject));
        };
        let file = column_text(row, 0).unwrap_or_default();
        let position = column_text(row, 1).and_then(|text| text.parse().ok()).unwrap_or(0);
        let gtid_set = match self.version.flavor {
            Flavor::MySql => column_text(row, 4).unwrap_or_default().replace('\n', ""),
            // The server could report neither the GTIDs there nor the binlog after it.
            Flavor::MariaDb if position > u64::from(u32::MAX) => {
                let found = format!("its binlog ends at {file}:{position}, beyond 4 GiB");
                return Err(Fault::new(Code::SourceUnreachable, self.subject.as_str(), found)
                    .needs("the next binlog file, which the server begins at once"));
            }
            Flavor::MariaDb => self.gtid_at(&file, position).await?.unwrap_or_default(),
        };
        Ok(BinlogEnd { file, position, gtid_set })
    }

    /// Returns the end of the binlog without its GTID set, by one cheap query.
    pub async fn end_position(&mut self) -> Result<(String, u64), Fault> {
        let rows = self.rows(self.version.show_end().to_owned()).await?;
        let row = rows.first().ok_or_else(|| binlog_off(&self.subject))?;
        let position = column_text(row, 1).and_then(|text| text.parse().ok()).unwrap_or(0);
        Ok((column_text(row, 0).unwrap_or_default(), position))
    }

    /// Returns `binlog_do_db` and `binlog_ignore_db`: the only databases in the binlog, and those left out of it.
    pub async fn binlog_filters(&mut self) -> Result<(Vec<String>, Vec<String>), Fault> {
        let rows = self.rows(self.version.show_end().to_owned()).await?;
        let list = |index| {
            let text = rows.first().and_then(|row| column_text(row, index)).unwrap_or_default();
            text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
        };
        Ok((list(2), list(3)))
    }

    /// Whether the server applies, or has applied, changes of another server.
    pub async fn is_replica(&mut self) -> Result<bool, Fault> {
        match self.version.flavor {
            Flavor::MariaDb => Ok(!self.text("SELECT @@GLOBAL.gtid_slave_pos").await?.is_empty()),
            Flavor::MySql => Ok(!self.rows("SHOW REPLICA STATUS".to_owned()).await?.is_empty()),
        }
    }

    /// Returns the GTIDs before a position (MariaDB); `None` when no group ends there.
    pub async fn gtid_at(&mut self, file: &str, position: u64) -> Result<Option<String>, Fault> {
        let file = file.replace(['\'', '\\'], "");
        self.optional_text(&format!("SELECT BINLOG_GTID_POS('{file}', {position})")).await
    }

    /// Whether this server's binlog has had all these groups. On MariaDB the last group of each domain decides, with
    /// the server that wrote it.
    pub async fn has_groups(&mut self, gtids: &Gtids) -> Result<bool, Fault> {
        match self.version.flavor {
            Flavor::MariaDb => {
                let state = mariadb_state(&self.text("SELECT @@GLOBAL.gtid_binlog_state").await?);
                Ok(gtids.domains().all(|(domain, server, sequence)| {
                    state.iter().any(|known| (known.0, known.1) == (domain, server) && known.2 >= sequence)
                }))
            }
            Flavor::MySql => {
                // A group that was sent to replicas may wait for an acknowledgement, and counts as executed only after
                // it.
                let committing = self.text(OWNED).await?;
                let missing = format!("SELECT GTID_SUBTRACT('{gtids}', @@GLOBAL.gtid_executed)");
                let missing = self.text(&missing).await?.replace('\n', "");
                if missing.is_empty() {
                    return Ok(true);
                }
                let is_missing = |gtid: &String| {
                    let missing = Gtids::parse(Flavor::MySql, &missing);
                    let gtid = Gtids::parse(Flavor::MySql, gtid);
                    missing.zip(gtid).is_some_and(|(missing, gtid)| missing.hold(&gtid))
                };
                let Some(gtid) = owned(&committing).find(is_missing) else { return Ok(false) };
                let found = format!("transaction {gtid} was read, and its commit has not ended");
                Err(Fault::new(Code::SourceUnreachable, self.subject.as_str(), found)
                    .needs("the end of its commit, which waits for a replica's acknowledgement"))
            }
        }
    }

    /// Returns the set without the domains that an operator deleted (`DELETE_DOMAIN_ID`, MariaDB). The binlog state has
    /// nothing of them and knows another domain of the set, whereas a reset loses all domains.
    pub async fn without_deleted_domains(&mut self, mut gtids: Gtids) -> Result<Gtids, Fault> {
        if self.version.flavor == Flavor::MariaDb {
            let state = mariadb_state(&self.text("SELECT @@GLOBAL.gtid_binlog_state").await?);
            gtids.keep_known_domains(|domain| state.iter().any(|known| known.0 == domain));
        }
        Ok(gtids)
    }

    /// Whether the server has groups beyond these, in any domain.
    pub async fn has_more_than(&mut self, gtids: &Gtids) -> Result<bool, Fault> {
        match self.version.flavor {
            Flavor::MariaDb => {
                let end = mariadb_state(&self.text("SELECT @@GLOBAL.gtid_binlog_pos").await?);
                Ok(end.iter().any(|last| !gtids.domains().any(|known| known == *last)))
            }
            Flavor::MySql => {
                let subset = format!("SELECT GTID_SUBSET(@@GLOBAL.gtid_executed, '{gtids}')");
                Ok(self.text(&subset).await? == "0")
            }
        }
    }

    /// Whether the kept binlog files hold every group after these. `oldest` is the oldest of the files.
    pub async fn keeps_all_after(&mut self, gtids: &Gtids, oldest: &str) -> Result<bool, Fault> {
        match self.version.flavor {
            Flavor::MariaDb => {
                let purged = self.gtid_at(oldest, FILE_START).await?.unwrap_or_default();
                Ok(mariadb_state(&purged)
                    .iter()
                    .all(|last| gtids.domains().any(|known| known.0 == last.0 && known.2 >= last.2)))
            }
            Flavor::MySql => {
                let subset = format!("SELECT GTID_SUBSET(@@GLOBAL.gtid_purged, '{gtids}')");
                Ok(self.text(&subset).await? != "0")
            }
        }
    }

    /// Returns the number of undecided XA branches. `None` if the account may not ask (MySQL then answers as if the
    /// branches were broken) or the query failed: nothing depends on it.
    pub async fn undecided_branches(&mut self) -> Option<usize> {
        self.rows("XA RECOVER".to_owned()).await.ok().map(|rows| rows.len())
    }

    /// Returns databases with names like this, as far as the account sees them.
    pub async fn databases_like(&mut self, database: &str) -> Result<Vec<String>, Fault> {
        let sql = format!(
            "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME LIKE {}",
            literal(database)
        );
        Ok(self.rows(sql).await?.iter().filter_map(|row| column_text(row, 0)).collect())
    }

    /// Returns databases and names of tables with names like these, as far as the account sees them.
    pub async fn tables_like(&mut self, database: &str, table: &str) -> Result<Vec<(String, String)>, Fault> {
        let sql = format!(
            "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES \
             WHERE TABLE_SCHEMA LIKE {} AND TABLE_NAME LIKE {}",
            literal(database),
            literal(table)
        );
        let rows = self.rows(sql).await?;
        Ok(rows.iter().filter_map(|row| Some((column_text(row, 0)?, column_text(row, 1)?))).collect())
    }

    pub async fn close(self) {
        // All answers have arrived; a failed close changes nothing.
        let _ = self.connection.close().await;
    }
}

/// Returns a column of a text-protocol answer, whatever its type; `None` for NULL.
pub fn column_text(row: &MySqlRow, index: usize) -> Option<String> {
    let bytes = row.try_get_unchecked::<Option<Vec<u8>>, _>(index).ok().flatten()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns a string literal that means this text in any SQL mode.
pub fn literal(text: &str) -> String {
    let mut sql = String::new();
    crate::mysql::connection::push_bytes(&mut sql, text.as_bytes());
    format!("_utf8mb4 {sql}")
}

pub fn binlog_off(subject: &str) -> Fault {
    Fault::new(Code::SourceBinlogOff, subject, "log_bin is OFF")
        .needs("ON")
        .remedy("start the server with --log-bin (in its configuration file: log_bin = binlog)")
}

/// Makes a fault of a connection error, with advice about TLS for the operator.
fn connect_fault(address: &Address, error: sqlx::Error) -> Fault {
    let subject = address.subject.as_str();
    // The fault of a certificate names the remedy already.
    let is_account = matches!(error, sqlx::Error::Database(_));
    let fault = from_sqlx(Side::Source, subject, error);
    match fault.code() {
        _ if !is_account => fault,
        Code::SourceAccessDenied if address.ca_file.is_none() => {
            fault.needs("the right user and password; with `ca_file` if the account requires TLS")
        }
        Code::SourceAccessDenied => fault.needs("the right user and password"),
        _ => fault,
    }
}
