//! Scratch tables on the first target that hold both sides of a comparison; they are dropped at its end.
//!
//! Nothing here is written to the target's binlog, and the product's account cannot see the database.

use std::sync::atomic::{AtomicU32, Ordering};

use mysql_async::prelude::FromRow;

use super::tables::{Column, DerivedTables};
use crate::endpoint::Connection;
use crate::error::Result;

const DATABASE: &str = "anabranch_verify";
/// Rows in a statement: about 200 KB.
const STATEMENT_ROWS: usize = 5_000;
const TABLES: [&str; 6] = ["source_table", "expected", "place", "actual", "claim", "difference"];

/// Connection and suffix of one comparison's tables; several comparisons may run side by side.
#[derive(Debug)]
pub(super) struct Scratch {
    connection: Connection,
    suffix: String,
}

impl Scratch {
    pub async fn create(layer: &impl DerivedTables) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let suffix = format!("{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let connection = layer.targets()[0]
            .connect(&["SET SESSION sql_log_bin = 0", "SET SESSION sql_mode = 'STRICT_ALL_TABLES'"])
            .await?;
        let mut scratch = Self { connection, suffix };
        scratch.execute(&format!("CREATE DATABASE IF NOT EXISTS {DATABASE}")).await?;
        let define = |column: &Column| format!("{} {} NOT NULL", column.name, column.sql_type);
        let key: Vec<String> = layer.key().iter().map(define).collect();
        let names: Vec<&str> = layer.key().iter().map(|column| column.name).collect();
        let (key, names, row) = (key.join(", "), names.join(", "), names[0]);
        let (checked, shard) = (define(&layer.checked()), "shard_id BIGINT UNSIGNED NOT NULL");
        let columns = [
            format!("number INT UNSIGNED NOT NULL PRIMARY KEY, {shard}, users BIGINT UNSIGNED NOT NULL"),
            format!(
                "number INT UNSIGNED NOT NULL, {key}, {checked}, database_number INT UNSIGNED NOT NULL,
                 table_name VARCHAR(64) NOT NULL"
            ),
            // A database without a number should not be on that target.
            "number INT UNSIGNED NOT NULL PRIMARY KEY, database_number INT UNSIGNED NULL,
             database_name VARCHAR(64) NOT NULL, table_name VARCHAR(64) NOT NULL, lane INT UNSIGNED NULL,
             UNIQUE (database_number, table_name)"
                .to_owned(),
            format!(
                "number INT UNSIGNED NOT NULL, {shard}, {key}, {checked}, KEY (shard_id, {row}), KEY ({row})"
            ),
            format!(
                "{shard}, {key}, {checked}, place INT UNSIGNED NULL, wanted VARCHAR(160) NOT NULL,
                 PRIMARY KEY (shard_id, {names}), KEY ({row})"
            ),
            "kind VARCHAR(16) NOT NULL, row_name VARCHAR(160) NOT NULL, wanted VARCHAR(160) NOT NULL"
                .to_owned(),
        ];
        for (name, columns) in TABLES.iter().zip(columns) {
            let name = scratch.table(name);
            // A process of the same number may have left the table.
            scratch.execute(&format!("DROP TABLE IF EXISTS {name}")).await?;
            // MariaDB does not use InnoDB: the rows are counted once and dropped, and a crash may lose them.
            let sql = format!(
                "CREATE TABLE {name} ({columns}) /*M! ENGINE=Aria TRANSACTIONAL=0 */ \
                 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"
            );
            scratch.execute(&sql).await?;
        }
        Ok(scratch)
    }

    /// Returns the quoted name of a scratch table.
    fn table(&self, name: &str) -> String {
        format!("{DATABASE}.{name}_{}", self.suffix)
    }

    /// Replaces `{name}` of each scratch table by its quoted name.
    fn fill(&self, sql: &str) -> String {
        TABLES.iter().fold(sql.to_owned(), |sql, name| sql.replace(&format!("{{{name}}}"), &self.table(name)))
    }

    pub async fn execute(&mut self, sql: &str) -> Result<()> {
        let sql = self.fill(sql);
        self.connection.execute("compare both sides", sql).await
    }

    pub async fn rows<T: FromRow + Send + 'static>(&mut self, sql: &str) -> Result<Vec<T>> {
        let sql = self.fill(sql);
        self.connection.rows("compare both sides", sql).await
    }

    /// Inserts rows that are written as lists of SQL literals.
    pub async fn insert(&mut self, table: &str, rows: &[String]) -> Result<()> {
        let table = self.table(table);
        for part in rows.chunks(STATEMENT_ROWS) {
            let sql = format!("INSERT INTO {table} VALUES ({})", part.join("),("));
            self.connection.execute("load a side of the comparison", sql).await?;
        }
        Ok(())
    }

    pub async fn drop_tables(mut self) -> Result<()> {
        let names: Vec<String> = TABLES.iter().map(|name| self.table(name)).collect();
        self.execute(&format!("DROP TABLE {}", names.join(", "))).await
    }
}
