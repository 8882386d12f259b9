//! The names that captured columns have in one table: a column may have several, and each table has one of them.

use anabranch_pipeline::config::{ColumnNames, Misnamed};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::change::TableIdentity;

use super::session::literal;

/// The need of a table with two columns for one field, and what mends it.
pub const ONE_NAME: &str = "a table with exactly one of the names of a captured column";
pub const ONE_NAME_REMEDY: &str = "take the name of the column that is not meant out of [entities.columns], or drop or \
                                   rename that column";

/// Returns the query for the names of all columns of a table.
pub fn list_columns(table: &TableIdentity<'_>) -> String {
    format!(
        "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = {} AND TABLE_NAME = {}",
        literal(&table.database),
        literal(&table.table)
    )
}

/// Returns the name that each captured column has in a table with these columns. A table without columns is not
/// there, or hidden: the first names stand for it, so that the server itself says which.
pub fn own_names<'n>(
    table: &TableIdentity<'_>,
    captured: &'n [ColumnNames],
    known: &[String],
) -> Result<Vec<&'n str>, Fault> {
    if known.is_empty() {
        return Ok(captured.iter().map(ColumnNames::first).collect());
    }
    let has = |name: &str| known.iter().any(|known| known.eq_ignore_ascii_case(name));
    captured.iter().map(|names| names.own(has).map_err(|error| misnamed(table, &error))).collect()
}

/// Returns the fault of a table that has none of a column's names, or two of them.
pub fn misnamed(table: &TableIdentity<'_>, error: &Misnamed) -> Fault {
    let subject = format!("table {}.{}", table.database, table.table);
    match error {
        Misnamed::Absent(_) => Fault::new(Code::SourceColumnMissing, subject, error.to_string()),
        Misnamed::Twice(..) => Fault::new(Code::SourceColumnAmbiguous, subject, error.to_string())
            .needs(ONE_NAME)
            .remedy(ONE_NAME_REMEDY),
    }
}
