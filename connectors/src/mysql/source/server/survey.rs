//! What a server has, asked before anything is configured: itself, its tables, their columns and a few rows.

use std::path::PathBuf;

use anabranch_pipeline::config::ServerUrl;
use anabranch_pipeline::error::Fault;

use super::session::{Address, Session, column_text, literal};
use crate::mysql::connection::{quote_identifier, quote_table};
use crate::mysql::source::decode::gtid::Flavor;

/// Databases of the servers' own.
const OWN_DATABASES: &str = "'information_schema', 'mysql', 'performance_schema', 'sys'";
/// Settings that decide whether a server can be captured.
const SETTINGS: &str = "'log_bin', 'binlog_format', 'binlog_row_image', 'binlog_row_metadata', 'gtid_mode', \
                        'gtid_strict_mode', 'log_slave_updates', 'log_replica_updates'";

/// A connection that asks a server what it has. It changes nothing.
pub struct Survey(Session);

/// A column of a table as `information_schema` describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SurveyedColumn {
    pub name: String,
    /// In lower case, without length: `varchar`.
    pub data_type: String,
    pub is_primary_key: bool,
}

impl Survey {
    /// Connects to a server that messages call `source NAME`.
    pub async fn open(name: &str, url: ServerUrl, ca_file: Option<PathBuf>) -> Result<Self, Fault> {
        let address = Address { url, ca_file, subject: format!("source {name}") };
        Session::open(&address).await.map(Self)
    }

    /// `MariaDB 10.11.19-MariaDB-log` or `MySQL 9.7.1`.
    pub fn server(&self) -> String {
        let kind = match self.0.version.flavor {
            Flavor::MariaDb => "MariaDB",
            Flavor::MySql => "MySQL",
        };
        format!("{kind} {}", self.0.version_text)
    }

    /// Names and values of the settings that decide whether the server can be captured.
    pub async fn settings(&mut self) -> Result<Vec<(String, String)>, Fault> {
        let rows = self.0.rows(format!("SHOW GLOBAL VARIABLES WHERE Variable_name IN ({SETTINGS})")).await?;
        Ok(rows.iter().filter_map(|row| Some((column_text(row, 0)?, column_text(row, 1)?))).collect())
    }

    /// Database and name of every table that the account may see, but the server's own.
    pub async fn tables(&mut self) -> Result<Vec<(String, String)>, Fault> {
        let sql = format!(
            "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES \
             WHERE TABLE_TYPE = 'BASE TABLE' AND TABLE_SCHEMA NOT IN ({OWN_DATABASES})"
        );
        let rows = self.0.rows(sql).await?;
        Ok(rows.iter().filter_map(|row| Some((column_text(row, 0)?, column_text(row, 1)?))).collect())
    }

    /// The columns of a table, in its order.
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

    /// Values of some rows as text; `None` = NULL. Which rows it gives is the server's choice.
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
