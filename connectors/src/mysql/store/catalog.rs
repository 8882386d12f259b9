//! Reads, in one query, which tables, columns and unique keys exist in the databases that a target uses.
//!
//! Each part of the query names its database by equality. With any other condition the server would open every table
//! that it has, which takes minutes on servers with 100,000 of them.

use std::collections::{BTreeMap, HashMap, HashSet};

use anabranch_pipeline::error::Fault;

use super::MysqlTarget;
use super::ddl::{PROGRESS_TABLE, plain_type};
use super::progress::literal;
use super::session::{Session, TextRow};

/// A table in the catalog.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FoundTable {
    pub(super) engine: String,
    pub(super) columns: Vec<FoundColumn>,
    /// Unique keys with their columns in order; the primary key is `PRIMARY`.
    pub(super) unique_keys: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct FoundColumn {
    pub(super) name: String,
    /// Type without the display width.
    pub(super) column_type: String,
    pub(super) nullable: bool,
    /// Whether a row can be inserted without a value for the column.
    pub(super) fills_itself: bool,
}

/// Existing databases and tables, by name.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    databases: HashSet<String>,
    tables: HashMap<(String, String), FoundTable>,
    /// The server stores names in lower case (`lower_case_table_names` 1 or 2).
    lower_case: bool,
}

impl Catalog {
    /// Reads everything that the target uses.
    pub(super) async fn read(session: &mut Session, target: &MysqlTarget) -> Result<Self, Fault> {
        let mut databases: Vec<&str> = vec![&target.0.control_database];
        for assignment in target.0.assignments.iter() {
            databases.extend(assignment.tables().map(|table| table.derived.database.as_str()));
        }
        databases.sort_unstable();
        databases.dedup();
        Self::of_databases(session, &databases).await
    }

    /// Reads these databases.
    pub(super) async fn of_databases(session: &mut Session, databases: &[&str]) -> Result<Self, Fault> {
        Ok(Self::of(&session.rows(query(databases)).await?))
    }

    fn of(rows: &[TextRow]) -> Self {
        let mut catalog = Self::default();
        for row in rows {
            let cell = |index: usize| row.get(index).and_then(Option::as_deref).unwrap_or_default();
            match cell(0) {
                "case" => catalog.lower_case = cell(1) != "0",
                "database" => {
                    catalog.databases.insert(cell(1).to_owned());
                }
                "table" => catalog.table_mut(cell(1), cell(2)).engine = cell(3).to_owned(),
                "column" => catalog.table_mut(cell(1), cell(2)).columns.push(FoundColumn {
                    name: cell(3).to_ascii_lowercase(),
                    column_type: plain_type(cell(4)),
                    nullable: cell(5) == "YES",
                    fills_itself: cell(5) == "YES" || cell(6) == "1",
                }),
                "key" => {
                    let keys = &mut catalog.table_mut(cell(1), cell(2)).unique_keys;
                    keys.entry(cell(3).to_owned()).or_default().push(cell(4).to_ascii_lowercase());
                }
                _ => {}
            }
        }
        catalog
    }

    fn table_mut(&mut self, database: &str, table: &str) -> &mut FoundTable {
        self.tables.entry((database.to_owned(), table.to_owned())).or_default()
    }

    fn stored_name(&self, name: &str) -> String {
        if self.lower_case { name.to_lowercase() } else { name.to_owned() }
    }

    pub(super) fn has_database(&self, database: &str) -> bool {
        self.databases.contains(&self.stored_name(database))
    }

    pub(super) fn table(&self, database: &str, table: &str) -> Option<&FoundTable> {
        self.tables.get(&(self.stored_name(database), self.stored_name(table)))
    }

    pub(super) fn has_progress_table(&self, target: &MysqlTarget) -> bool {
        self.table(&target.0.control_database, PROGRESS_TABLE).is_some()
    }
}

/// Returns the query for rows of (kind, database, table, …); it is one query whatever the number of tables.
fn query(databases: &[&str]) -> String {
    // Both sides of a UNION must be of one character set, and the catalog's differ between servers.
    let text = |column: &str| format!("CONVERT({column} USING utf8mb4)");
    let fills_itself = "IF(column_default IS NOT NULL OR extra <> '', '1', '0')";
    let mut parts = vec![format!(
        "SELECT {}, {}, '', '', '', '', ''",
        text("'case'"),
        text("CAST(@@lower_case_table_names AS CHAR)")
    )];
    for database in databases {
        let database = literal(database);
        parts.push(format!(
            "SELECT 'database', {}, '', '', '', '', '' FROM information_schema.schemata WHERE schema_name = {database}",
            text("schema_name")
        ));
        parts.push(format!(
            "SELECT 'table', {}, {}, {}, '', '', '' FROM information_schema.tables WHERE table_schema = {database}",
            text("table_schema"),
            text("table_name"),
            text("IFNULL(engine, table_type)")
        ));
        parts.push(format!(
            "SELECT 'column', {}, {}, {}, {}, {}, {} FROM information_schema.columns WHERE table_schema = {database}",
            text("table_schema"),
            text("table_name"),
            text("column_name"),
            text("column_type"),
            text("is_nullable"),
            text(fills_itself)
        ));
        // Parts of a UNION have no order of their own: this part sorts the key columns itself.
        parts.push(format!(
            "SELECT * FROM (SELECT 'key', {}, {}, {}, {}, '' AS five, '' AS six FROM information_schema.statistics \
             WHERE table_schema = {database} AND non_unique = 0 \
             ORDER BY table_name, index_name, seq_in_index LIMIT 18446744073709551615) AS `keys`",
            text("table_schema"),
            text("table_name"),
            text("index_name"),
            text("column_name")
        ));
    }
    parts.join(" UNION ALL ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[&str]) -> TextRow {
        cells.iter().map(|cell| Some((*cell).to_owned())).collect()
    }

    #[test]
    fn rows_become_tables() {
        let catalog = Catalog::of(&[
            row(&["case", "0", "", "", "", "", ""]),
            row(&["database", "d", "", "", "", "", ""]),
            row(&["table", "d", "t", "InnoDB", "", "", ""]),
            row(&["column", "d", "t", "Shard_Id", "bigint(20) unsigned", "NO", "0"]),
            row(&["key", "d", "t", "PRIMARY", "shard_id", "", ""]),
        ]);
        assert!(catalog.has_database("d") && !catalog.has_database("D"));
        let table = catalog.table("d", "t").unwrap();
        assert_eq!(table.columns[0].column_type, "bigint unsigned");
        assert!(!table.columns[0].fills_itself);
        assert_eq!(table.unique_keys["PRIMARY"], ["shard_id"]);
    }

    #[test]
    fn names_are_compared_as_the_server_stores_them() {
        let catalog = Catalog::of(&[
            row(&["case", "1", "", "", "", "", ""]),
            row(&["table", "d", "t", "InnoDB", "", "", ""]),
        ]);
        assert!(catalog.table("D", "T").is_some());
    }
}
