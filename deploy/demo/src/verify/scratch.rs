//! Scratch tables on the first target that hold both sides of a comparison; they are dropped at its end.
//!
//! Nothing here goes to the target's binlog, and the product's account does not see the database.

use std::sync::atomic::{AtomicU32, Ordering};

use mysql_async::prelude::FromRow;

use crate::endpoint::{Connection, Endpoint};
use crate::error::Result;

const DATABASE: &str = "anabranch_verify";
/// About 200 KB a statement.
const STATEMENT_ROWS: usize = 5_000;

/// Names of one comparison's tables; several comparisons may run side by side.
#[derive(Debug)]
pub(super) struct Scratch {
    connection: Connection,
    suffix: String,
}

impl Scratch {
    pub async fn create(server: &Endpoint) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let suffix = format!("{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let connection = server
            .connect(&["SET SESSION sql_log_bin = 0", "SET SESSION sql_mode = 'STRICT_ALL_TABLES'"])
            .await?;
        let mut scratch = Self { connection, suffix };
        scratch.execute(&format!("CREATE DATABASE IF NOT EXISTS {DATABASE}")).await?;
        let tables = [
            "source_table (number INT UNSIGNED NOT NULL PRIMARY KEY, shard_id BIGINT UNSIGNED NOT NULL,
               users BIGINT UNSIGNED NOT NULL DEFAULT 0)",
            "expected (number INT UNSIGNED NOT NULL, user_id BIGINT UNSIGNED NOT NULL, birthday CHAR(5) NOT NULL)",
            "place (number INT UNSIGNED NOT NULL PRIMARY KEY, target INT UNSIGNED NOT NULL,
               database_name VARCHAR(64) NOT NULL, table_name VARCHAR(64) NOT NULL,
               UNIQUE (target, database_name, table_name))",
            "actual (number INT UNSIGNED NOT NULL, shard_id BIGINT UNSIGNED NOT NULL,
               user_id BIGINT UNSIGNED NOT NULL, birthday VARCHAR(64) NOT NULL, KEY (shard_id, user_id), KEY (user_id))",
            "claim (shard_id BIGINT UNSIGNED NOT NULL, user_id BIGINT UNSIGNED NOT NULL, birthday CHAR(5) NOT NULL,
               place INT UNSIGNED NULL, wanted VARCHAR(160) NOT NULL, PRIMARY KEY (shard_id, user_id), KEY (user_id))",
            "difference (kind VARCHAR(16) NOT NULL, user_id BIGINT UNSIGNED NOT NULL, wanted VARCHAR(160) NOT NULL)",
        ];
        for table in tables {
            let (name, columns) = table.split_once(' ').expect("written above with a blank");
            let name = scratch.table(name);
            // Not InnoDB: the rows are counted once and dropped, a crash may lose them.
            let sql = format!(
                "CREATE OR REPLACE TABLE {name} {columns} ENGINE=Aria TRANSACTIONAL=0 \
                 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"
            );
            scratch.execute(&sql).await?;
        }
        Ok(scratch)
    }

    /// The quoted name of a scratch table.
    pub fn table(&self, name: &str) -> String {
        format!("{DATABASE}.{name}_{}", self.suffix)
    }

    /// Replaces `{name}` of each scratch table by its quoted name.
    fn fill(&self, sql: &str) -> String {
        ["source_table", "expected", "place", "actual", "claim", "difference"]
            .iter()
            .fold(sql.to_owned(), |sql, name| sql.replace(&format!("{{{name}}}"), &self.table(name)))
    }

    pub async fn execute(&mut self, sql: &str) -> Result<()> {
        let sql = self.fill(sql);
        self.connection.execute("compare both sides", sql).await
    }

    pub async fn rows<T: FromRow + Send + 'static>(&mut self, sql: &str) -> Result<Vec<T>> {
        let sql = self.fill(sql);
        self.connection.rows("compare both sides", sql).await
    }

    /// Inserts rows that are written as SQL tuples.
    pub async fn insert(&mut self, table: &str, tuples: &[String]) -> Result<()> {
        let table = self.table(table);
        for part in tuples.chunks(STATEMENT_ROWS) {
            let sql = format!("INSERT INTO {table} VALUES {}", part.join(","));
            self.connection.execute("load a side of the comparison", sql).await?;
        }
        Ok(())
    }

    pub async fn drop_tables(mut self) -> Result<()> {
        let sql = "DROP TABLE {source_table}, {expected}, {place}, {actual}, {claim}, {difference}";
        self.execute(sql).await
    }
}
