//! Small queries to a source through `sqlx`: who the server is, where its binlog begins and ends.

use std::path::PathBuf;
use std::time::Duration;

use anabranch_pipeline::config::{ServerUrl, SourceConfig};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::envelope::ServerIdentity;
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{Connection as _, Row as _};

use super::gtid::{Flavor, Gtids};
use super::transport::Start;
use crate::mysql::connection::sqlx_options;
use crate::mysql::error::{Side, from_sqlx};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Asking where the binlog ends must be quick: a server that hangs is unreachable.
const QUERY_TIMEOUT: Duration = Duration::from_secs(30);

/// How to reach a source, and its name in messages.
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

/// A connection for queries, and what the server said about itself.
pub struct Session {
    connection: MySqlConnection,
    subject: String,
    pub flavor: Flavor,
    /// Major and minor version.
    pub version: (u32, u32),
    pub version_text: String,
}

/// The end of the binlog, and the groups before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    pub file: String,
    pub position: u64,
    pub gtid_set: String,
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
        let connecting = MySqlConnection::connect_with(&options);
        let connection = tokio::time::timeout(CONNECT_TIMEOUT, connecting)
            .await
            .map_err(|_| Fault::new(Code::SourceUnreachable, subject, "no answer to the connection"))?
            .map_err(|error| connect_fault(address, error))?;
        let mut session = Self {
            connection,
            subject: subject.to_owned(),
            flavor: Flavor::MySql,
            version: (0, 0),
            version_text: String::new(),
        };
        // So that `\` escapes in LIKE whatever the server's default mode is.
        session.rows("SET SESSION sql_mode = ''".to_owned()).await?;
        session.version_text = session.text("SELECT @@version").await?;
        session.flavor =
            if session.version_text.contains("MariaDB") { Flavor::MariaDb } else { Flavor::MySql };
        let mut numbers = session.version_text.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
        session.version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        Ok(session)
    }

    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// All rows of a query in the text protocol.
    pub async fn rows(&mut self, sql: String) -> Result<Vec<MySqlRow>, Fault> {
        let query = sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).fetch_all(&mut self.connection);
        tokio::time::timeout(QUERY_TIMEOUT, query)
            .await
            .map_err(|_| Fault::new(Code::SourceUnreachable, self.subject.as_str(), "no answer to a query"))?
            .map_err(|error| from_sqlx(Side::Source, &self.subject, error))
    }

    /// The first column of the first row as text; empty for NULL and for no row.
    pub async fn text(&mut self, sql: &str) -> Result<String, Fault> {
        Ok(self.optional_text(sql).await?.unwrap_or_default())
    }

    async fn optional_text(&mut self, sql: &str) -> Result<Option<String>, Fault> {
        let rows = self.rows(sql.to_owned()).await?;
        Ok(rows.first().and_then(|row| column_text(row, 0)))
    }

    pub async fn identity(&mut self) -> Result<ServerIdentity, Fault> {
        let id = match self.flavor {
            Flavor::MariaDb => self.text("SELECT CAST(@@server_id AS CHAR)").await?,
            Flavor::MySql => self.text("SELECT @@server_uuid").await?,
        };
        Ok(ServerIdentity { flavor: self.flavor.as_str().to_owned(), id })
    }

    /// Whether table names are stored, and compared, in lower case.
    pub async fn has_lower_case_names(&mut self) -> Result<bool, Fault> {
        Ok(self.text("SELECT CAST(@@lower_case_table_names AS CHAR)").await? != "0")
    }

    /// Names and sizes of the binlog files, oldest first.
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

    /// The present end of the binlog; always the end of a group.
    pub async fn end(&mut self) -> Result<End, Fault> {
        let show = match self.flavor {
            Flavor::MySql if self.version >= (8, 4) => "SHOW BINARY LOG STATUS",
            _ => "SHOW MASTER STATUS",
        };
        let rows = self.rows(show.to_owned()).await?;
        let Some(row) = rows.first() else {
            return Err(binlog_off(&self.subject));
        };
        let file = column_text(row, 0).unwrap_or_default();
        let position = column_text(row, 1).and_then(|text| text.parse().ok()).unwrap_or(0);
        let gtid_set = match self.flavor {
            Flavor::MySql => column_text(row, 4).unwrap_or_default().replace('\n', ""),
            Flavor::MariaDb => self.gtid_at(&file, position).await?.unwrap_or_default(),
        };
        Ok(End { file, position, gtid_set })
    }

    /// The end of the binlog without its GTID set: one cheap query.
    pub async fn end_position(&mut self) -> Result<(String, u64), Fault> {
        let show = match self.flavor {
            Flavor::MySql if self.version >= (8, 4) => "SHOW BINARY LOG STATUS",
            _ => "SHOW MASTER STATUS",
        };
        let rows = self.rows(show.to_owned()).await?;
        let row = rows.first().ok_or_else(|| binlog_off(&self.subject))?;
        let position = column_text(row, 1).and_then(|text| text.parse().ok()).unwrap_or(0);
        Ok((column_text(row, 0).unwrap_or_default(), position))
    }

    /// MariaDB: the GTIDs before a position; `None` when no group ends there.
    pub async fn gtid_at(&mut self, file: &str, position: u64) -> Result<Option<String>, Fault> {
        let file = file.replace(['\'', '\\'], "");
        self.optional_text(&format!("SELECT BINLOG_GTID_POS('{file}', {position})")).await
    }

    /// How many XA branches are prepared and wait for their decision; `None` when the account may not ask.
    pub async fn undecided_branches(&mut self) -> Result<Option<usize>, Fault> {
        match self.rows("XA RECOVER".to_owned()).await {
            Ok(rows) => Ok(Some(rows.len())),
            Err(fault) if fault.code() == Code::SourceGrantMissing => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Databases with names like this, as the account sees them.
    pub async fn databases_like(&mut self, database: &str) -> Result<Vec<String>, Fault> {
        let sql = format!(
            "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME LIKE {}",
            literal(database)
        );
        Ok(self.rows(sql).await?.iter().filter_map(|row| column_text(row, 0)).collect())
    }

    /// Databases and names of tables with names like these, as the account sees them.
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
        // The answers are in; a failed good-bye changes nothing.
        let _ = self.connection.close().await;
    }
}

/// Where a reading that goes on begins, after checking that this server still has what it needs.
pub async fn resume_start(
    session: &mut Session,
    resume: &anabranch_schemas::lsn::ResumePoint,
    gtids: &Gtids,
) -> Result<Start, Fault> {
    let logs = session.binlogs().await?;
    let Some((_, size)) = logs.iter().find(|(name, _)| *name == resume.file) else {
        let oldest = logs.first().map_or("none", |(name, _)| name.as_str());
        return Err(Fault::new(
            Code::BinlogPurged,
            session.subject(),
            format!("binlog file {} is gone; the oldest is {oldest}", resume.file),
        )
        .needs("the binlog from the last position on")
        .remedy("refresh this source; keep binlogs longer (binlog_expire_logs_seconds)"));
    };
    let is_ours = match session.flavor {
        _ if *size < resume.position => false,
        Flavor::MariaDb => match session.gtid_at(&resume.file, resume.position).await? {
            // A domain that we hold must stand where we left it; a start by GTID set may know fewer domains.
            Some(there) => Gtids::parse(Flavor::MariaDb, &there)
                .is_some_and(|there| gtids.domains().all(|gtid| there.domains().any(|other| other == gtid))),
            None => false,
        },
        Flavor::MySql => {
            session.text(&format!("SELECT GTID_SUBSET('{gtids}', @@GLOBAL.gtid_executed)")).await? != "0"
        }
    };
    if !is_ours {
        return Err(Fault::new(
            Code::SourceServerChanged,
            session.subject(),
            format!(
                "its binlog at {}:{} does not hold the transactions that the log was read from",
                resume.file, resume.position
            ),
        )
        .needs("the server whose binlog the log continues; this one was reset or restored"));
    }
    if session.flavor == Flavor::MariaDb && resume.position > u64::from(u32::MAX) {
        // The request has 4 bytes for the position; the GTID set names the same place.
        let text = gtids.to_string();
        return Ok(Start::Gtids(
            Gtids::parse(Flavor::MariaDb, &text).unwrap_or(Gtids::empty(Flavor::MariaDb)),
        ));
    }
    Ok(Start::Position { file: resume.file.clone(), position: resume.position })
}

/// A column of a text-protocol answer, whatever its type.
pub fn column_text(row: &MySqlRow, index: usize) -> Option<String> {
    let bytes = row.try_get_unchecked::<Option<Vec<u8>>, _>(index).ok().flatten()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// A string literal that means these bytes in any SQL mode.
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

/// Connection errors with what an operator needs to hear about TLS.
fn connect_fault(address: &Address, error: sqlx::Error) -> Fault {
    let subject = address.subject.as_str();
    let is_tls = match &error {
        sqlx::Error::Tls(_) | sqlx::Error::Configuration(_) => true,
        // rustls refuses a certificate with an error of this kind.
        sqlx::Error::Io(error) => error.kind() == std::io::ErrorKind::InvalidData,
        _ => false,
    };
    if is_tls {
        return Fault::new(Code::SourceAccessDenied, subject, "no verified TLS connection")
            .needs("a server with TLS whose certificate names the host and is signed by `ca_file`")
            .caused_by(error);
    }
    let fault = from_sqlx(Side::Source, subject, error);
    match fault.code() {
        Code::SourceAccessDenied if address.ca_file.is_none() => {
            fault.needs("the right user and password; with `ca_file` if the account requires TLS")
        }
        Code::SourceAccessDenied => fault.needs("the right user and password"),
        _ => fault,
    }
}
