//! Examines a server before an operator configures it: its version, its tables, their columns and a few rows.

use std::path::PathBuf;

use anabranch_pipeline::config::ServerUrl;
use anabranch_pipeline::error::Fault;

use super::session::{Address, Session, column_text, literal};
use crate::mysql::connection::{quote_identifier, quote_table};
use crate::mysql::source::decode::gtid::Flavor;

/// Databases that belong to the servers themselves.
const OWN_DATABASES: &str = "'information_schema', 'mysql', 'performance_schema', 'sys'";
/// Settings that decide whether a server can be captured.
const SETTINGS: &str = "'log_bin', 'binlog_format', 'binlog_row_image', 'binlog_row_metadata', 'gtid_mode', \
                        'gtid_strict_mode', 'log_slave_updates', 'log_replica_updates'";

/// A connection that only queries a server and changes no data.
pub struct Survey(Session);

/// A column of a table as `information_schema` describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SurveyedColumn {
    pub name: String,
    /// Type in lower case, without length: `varchar`.
    pub data_type: String,
    pub is_primary_key: bool,
}

impl Survey {
    /// Connects to a server, which messages call `source NAME`.
    pub async fn open(name: &str, url: ServerUrl, ca_file: Option<PathBuf>) -> Result<Self, Fault> {
        let address = Address { url, ca_file, subject: format!("source {name}") };
        Session::open(&address).await.map(Self)
    }

    /// Returns name and version: `MariaDB 10.11.19-MariaDB-log` or `MySQL 9.7.1`.
    pub fn server(&self) -> String {
        let kind = match self.0.version.flavor {
            Flavor::MariaDb => "MariaDB",
            Flavor::MySql => "MySQL",
        };
        format!("{kind} {}", self.0.version_text)
    }

    /// Returns names and values of the settings that decide whether the server can be captured.
    pub async fn settings(&mut self) -> Result<Vec<(String, String)>, Fault> {
        let rows = self.0.rows(format!("SHOW GLOBAL VARIABLES WHERE Variable_name IN ({SETTINGS})")).await?;
        Ok(rows.iter().filter_map(|row| Some((column_text(row, 0)?, column_text(row, 1)?))).collect())
    }

    /// Returns database and name of every table that the account may see, except the server's own.
    pub async fn tables(&mut self) -> Result<Vec<(String, String)>, Fault> {
        let sql = format!(
            "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES \
             WHERE TABLE_TYPE = 'BASE TABLE' AND TABLE_SCHEMA NOT IN ({OWN_DATABASES})"
        );
        let rows = self.0.rows(sql).await?;
        Ok(rows.iter().filter_map(|row| Some((column_text(row, 0)?, column_text(row, 1)?))).collect())
    }

    /// Returns the columns of a table, in the table's order.
    pub async fn columns(&mut self, database: &str, table: &str) -> Result<Vec<SurveyedColumn>, Fault> {
        let sql = format!(
            "SELECT COLUMN_NAME, LOWER(DATA_TYPE), COLUMN_KEY FROM information_schema.COLUMNS \
             WHERE TABLE_SCHEMA = {} AND TABLE_NAME = {} ORDER BY ORDINAL_POSITION",
            literal(database),
            literal(table)
        );
        let rows = self.0.rows(sql).await?;
        let column = |row| {
            let (name, data_type) = (column_text(row, 0)?, column_text(row, 1)?);
            let is_primary_key = column_text(row, 2).is_some_and(|key| key == "PRI");
            Some(SurveyedColumn { name, data_type, is_primary_key })
        };
        Ok(rows.iter().filter_map(column).collect())
    }

    /// Returns values of at most `rows` rows as text; `None` = NULL. The server chooses the rows.
    pub async fn values(
        &mut self,
        database: &str,
        table: &str,
        columns: &[String],
        rows: usize,
    ) -> Result<Vec<Vec<Option<String>>>, Fault> {
        let cells: Vec<String> = columns
            .iter()
            .map(|column| format!("CONVERT({} USING utf8mb4)", quote_identifier(column)))
            .collect();
        let sql = format!("SELECT {} FROM {} LIMIT {rows}", cells.join(", "), quote_table(database, table));
        let found = self.0.rows(sql).await?;
        Ok(found
            .iter()
            .map(|row| (0..columns.len()).map(|index| column_text(row, index)).collect())
            .collect())
    }
}
