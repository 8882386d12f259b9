//! Changes tables as operators and their tools do: columns that are not captured, copies that take a table's name,
//! TRUNCATE, partitions.
//!
//! The load changes the same tables meanwhile. A change that fails for a deadlock begins again.

use std::time::Duration;

use anabranch_demo::ghost::{GhostCopy, columns_of};
use anabranch_demo::{Connection, Endpoint, Result, SourceTable};

use crate::journal::Journal;
use crate::plan::Tool;
use crate::site::Site;

/// Takes values as the load writes them, impossible dates too.
pub(super) const SESSION: [&str; 1] = ["SET SESSION sql_mode = 'ALLOW_INVALID_DATES'"];
/// Time between two changes of one table.
const BETWEEN: Duration = Duration::from_millis(500);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Column that a step adds, modifies and drops; a copy has another one, which comes and goes with each copy.
const ALTERED: &str = "soak_altered";
const COPIED: &str = "soak_copied";

/// A table that is copied, and the names beside it.
struct Copied {
    source_table: SourceTable,
    /// Every column that the copy keeps.
    columns: Vec<String>,
    /// The change of the copy.
    alter: String,
}

impl Site {
    pub(super) async fn alter_column(&self, number: usize, journal: &Journal) -> Result<()> {
        let (endpoint, source_table) = self.named(number, journal);
        let (table, key) = (source_table.quoted(), source_table.key_column());
        let mut connection = endpoint.connect(&SESSION).await?;
        // Behind the key, so that the place of every captured column changes.
        for change in [
            format!("ADD COLUMN {ALTERED} INT NULL AFTER {key}"),
            format!("MODIFY COLUMN {ALTERED} VARCHAR(40) NULL"),
            format!("DROP COLUMN {ALTERED}"),
        ] {
            persist(&mut connection, &format!("ALTER TABLE {table} {change}")).await?;
            tokio::time::sleep(BETWEEN).await;
        }
        Ok(())
    }

    pub(super) async fn truncate(&self, number: usize, journal: &Journal) -> Result<()> {
        let (endpoint, source_table) = self.named(number, journal);
        let mut connection = endpoint.connect(&SESSION).await?;
        persist(&mut connection, &format!("TRUNCATE TABLE {}", source_table.quoted())).await
    }

    pub(super) async fn exchange_partition(
        &self,
        number: usize,
        time: Duration,
        journal: &Journal,
    ) -> Result<()> {
        let (endpoint, source_table) = self.named(number, journal);
        let (table, parts) = (source_table.quoted(), beside(source_table, "parts"));
        let mut connection = endpoint.connect(&SESSION).await?;
        let make = format!(
            "DROP TABLE IF EXISTS {parts}; CREATE TABLE {parts} LIKE {table}; \
             ALTER TABLE {parts} PARTITION BY KEY () PARTITIONS 1"
        );
        let exchange = format!("ALTER TABLE {parts} EXCHANGE PARTITION p0 WITH TABLE {table}");
        persist(&mut connection, &make).await?;
        persist(&mut connection, &exchange).await?;
        tokio::time::sleep(time).await;
        persist(&mut connection, &exchange).await?;
        persist(&mut connection, &format!("DROP TABLE {parts}")).await
    }

    pub(super) async fn swap(&self, number: usize, tool: Tool, journal: &Journal) -> Result<()> {
        let (endpoint, source_table) = self.named(number, journal);
        let mut connection = endpoint.connect(&SESSION).await?;
        let copied = Copied::of(&mut connection, source_table).await?;
        match tool {
            Tool::Percona => copied.swap_beside_triggers(&mut connection).await,
            Tool::GhOst => copied.swap_under_lock(&endpoint).await,
        }
    }

    pub(super) fn named(&self, number: usize, journal: &Journal) -> (Endpoint, SourceTable) {
        let (endpoint, source_table) = self.table(number);
        journal.note(&format!("table {number} is {} of {}", source_table.name(), endpoint.name));
        (endpoint, source_table)
    }
}

impl Copied {
    async fn of(connection: &mut Connection, source_table: SourceTable) -> Result<Self> {
        let (database, table) = (source_table.database_name(), source_table.table_name());
        let mut columns = columns_of(connection, &database, &table).await?;
        let count = columns.len();
        columns.retain(|column| column != COPIED);
        let alter = match columns.len() == count {
            true => format!("ADD COLUMN {COPIED} INT NULL AFTER {}", source_table.key_column()),
            false => format!("DROP COLUMN {COPIED}"),
        };
        Ok(Self { source_table, columns, alter })
    }

    /// Runs the statements of pt-online-schema-change in their order.
    async fn swap_beside_triggers(&self, connection: &mut Connection) -> Result<()> {
        let (table, key, columns) =
            (self.source_table.quoted(), self.source_table.key_column(), self.columns.join(", "));
        let (new, old) = (beside(self.source_table, "new"), beside(self.source_table, "old"));
        let trigger = |event: &str| beside(self.source_table, event);
        let values: Vec<String> = self.columns.iter().map(|column| format!("NEW.{column}")).collect();
        let replace = format!("REPLACE INTO {new} ({columns}) VALUES ({})", values.join(", "));
        let delete = format!("DELETE IGNORE FROM {new} WHERE");
        let make = format!(
            "DROP TABLE IF EXISTS {new}, {old}; CREATE TABLE {new} LIKE {table}; ALTER TABLE {new} {}",
            self.alter
        );
        persist(connection, &make).await?;
        for (event, body) in [
            ("delete", format!("{delete} {new}.{key} <=> OLD.{key}")),
            (
                "update",
                format!(
                    "BEGIN {delete} !(OLD.{key} <=> NEW.{key}) AND {new}.{key} <=> OLD.{key}; {replace}; END"
                ),
            ),
            ("insert", replace.clone()),
        ] {
            let name = trigger(event);
            let create = format!("CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW {body}");
            persist(connection, &create).await?;
        }
        let copy = format!(
            "INSERT LOW_PRIORITY IGNORE INTO {new} ({columns}) SELECT {columns} FROM {table} LOCK IN SHARE MODE"
        );
        persist(connection, &copy).await?;
        tokio::time::sleep(BETWEEN).await;
        persist(connection, &format!("RENAME TABLE {table} TO {old}, {new} TO {table}")).await?;
        // The triggers go with the old table.
        persist(connection, &format!("DROP TABLE IF EXISTS {old}")).await
    }

    /// Runs the statements of gh-ost in their order.
    async fn swap_under_lock(self, endpoint: &Endpoint) -> Result<()> {
        let ghost = GhostCopy {
            database: self.source_table.database_name(),
            table: self.source_table.table_name(),
            key: self.source_table.key_column().to_owned(),
            columns: self.columns,
            alter: self.alter,
        };
        ghost.run(endpoint).await
    }
}

/// Returns the name of a table or trigger beside a captured one, which no rule names.
pub(super) fn beside(source_table: SourceTable, ending: &str) -> String {
    format!("`{}`.`_{}_{ending}`", source_table.database_name(), source_table.table_name())
}

/// Runs statements, again after a deadlock with the load. Repeated statements must be harmless.
pub(super) async fn persist(connection: &mut Connection, sql: &str) -> Result<()> {
    loop {
        match connection.execute("change a table", sql).await {
            Err(error) if error.is_lock_conflict() => tokio::time::sleep(POLL_INTERVAL).await,
            done => return done,
        }
    }
}
