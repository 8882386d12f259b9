//! The needed shape of each table, read from its CREATE TABLE statement.
//!
//! The statements are in `schemas/src/sql`, one column a line. So there is no second list of columns that could differ
//! from the tables that set-up creates.

pub(super) const PROGRESS_TABLE: &str = "progress";
pub(super) const ENROLLED_TABLE: &str = "enrolled";
pub(super) const RETIRED_TABLE: &str = "retired";
pub(super) const RECONCILIATIONS_TABLE: &str = "reconciliations";
pub(super) const OPERATIONS_TABLE: &str = "operations";
pub(super) const COUPON_REPORTS_TABLE: &str = "coupon_reports";

/// The needed shape of a table.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) columns: Vec<Column>,
    pub(super) primary_key: Vec<&'static str>,
}

/// The needed form of a column.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    /// Type as in the catalog, without display width: `bigint unsigned`.
    pub(super) column_type: &'static str,
    pub(super) nullable: bool,
    /// The text after the name in CREATE and ALTER TABLE.
    pub(super) definition: &'static str,
}

impl Shape {
    /// Reads the shape of the table that the statement creates.
    pub(super) fn of(statement: &'static str) -> Self {
        let lines = || statement.lines().map(|line| line.trim().trim_end_matches(','));
        let columns = lines().filter_map(Column::of).collect();
        let primary_key = lines()
            .find_map(|line| line.strip_prefix("PRIMARY KEY (")?.strip_suffix(')'))
            .map(|names| names.split(", ").map(|name| name.trim_matches('`')).collect())
            .unwrap_or_default();
        Self { columns, primary_key }
    }
}

/// Returns the statement that creates a table of this (quoted) name unless it exists.
pub(super) fn create(statement: &str, quoted_table: &str) -> String {
    let lines: Vec<&str> = statement.lines().filter(|line| !line.starts_with("--")).collect();
    lines.join("\n").replace("{table}", quoted_table)
}

impl Column {
    /// Parses a line such as `` `user_id` bigint unsigned NOT NULL COMMENT '…' ``; `None` for any other line.
    fn of(line: &'static str) -> Option<Self> {
        let (name, definition) = line.strip_prefix('`')?.split_once("` ")?;
        let end = [" CHARACTER SET", " NOT NULL", " NULL", " COMMENT"]
            .iter()
            .filter_map(|word| definition.find(word))
            .min()
            .unwrap_or(definition.len());
        let (column_type, rest) = definition.split_at(end);
        Some(Self { name, column_type, nullable: !rest.contains("NOT NULL"), definition })
    }
}

/// Removes the display width of integers, which has no meaning, from a column type: `bigint(20) unsigned` becomes
/// `bigint unsigned`.
pub(super) fn plain_type(column_type: &str) -> String {
    let lower = column_type.to_ascii_lowercase();
    match (lower.find("int("), lower.find(')')) {
        (Some(at), Some(end)) if end > at => format!("{}{}", &lower[..at + 3], &lower[end + 1..]),
        _ => lower,
    }
}

#[cfg(test)]
mod tests {
    use anabranch_schemas::sql;

    use super::*;

    #[test]
    fn columns_are_read_from_the_statement() {
        let birthday = Shape::of(sql::BIRTHDAY);
        let columns: Vec<_> = birthday.columns.iter().map(|c| (c.name, c.column_type, c.nullable)).collect();
        assert_eq!(
            columns,
            [
                ("shard_id", "bigint unsigned", false),
                ("user_id", "bigint unsigned", false),
                ("birthday", "char(5)", false),
                ("is_sent", "tinyint", false),
                ("send_time", "datetime(6)", true),
                ("sent_occurrence", "smallint", true),
                ("lsn", "bigint unsigned", false),
            ]
        );
        assert_eq!(birthday.primary_key, ["shard_id", "user_id"]);
        assert_eq!(Shape::of(sql::MAPPING).primary_key, ["value", "shard_id", "uuid", "kind"]);
        assert_eq!(Shape::of(sql::FLUX_RELATION).primary_key, ["id", "shard_id"]);
        assert_eq!(Shape::of(sql::OPERATIONS).primary_key, ["number"]);
        assert_eq!(Shape::of(sql::PROGRESS).primary_key, ["projection", "source", "lane"]);
        assert_eq!(Shape::of(sql::ENROLLED).primary_key, ["projection", "source"]);
        assert_eq!(Shape::of(sql::RETIRED).primary_key, ["projection", "shard_id", "lane", "position"]);
    }

    #[test]
    fn every_column_is_commented_and_every_statement_has_its_placeholder() {
        let control = [
            sql::PROGRESS,
            sql::ENROLLED,
            sql::RETIRED,
            sql::OUTBOX,
            sql::CACHE,
            sql::RECONCILIATIONS,
            sql::OPERATIONS,
            sql::COUPON_REPORTS,
        ];
        for statement in [sql::BIRTHDAY, sql::MAPPING, sql::FLUX_RELATION].into_iter().chain(control) {
            let shape = Shape::of(statement);
            assert!(shape.columns.iter().all(|column| column.definition.contains(" COMMENT '")));
            let created = create(statement, "`d`.`t`");
            assert!(created.starts_with("CREATE TABLE IF NOT EXISTS `d`.`t` ("));
            assert!(!created.contains(['{', ';']), "one statement, all filled in");
        }
    }

    #[test]
    fn display_widths_mean_nothing_and_other_lengths_do() {
        for (found, plain) in [
            ("bigint(20) unsigned", "bigint unsigned"),
            ("BIGINT UNSIGNED", "bigint unsigned"),
            ("tinyint(1)", "tinyint"),
            ("char(5)", "char(5)"),
            ("datetime(6)", "datetime(6)"),
            ("point", "point"),
        ] {
            assert_eq!(plain_type(found), plain);
        }
    }
}
