//! Warns of captured columns that the account can read and a reader cannot follow: generated columns where the server
//! leaves them out of row events, and columns with several names in a table that hides columns.

use anabranch_pipeline::config::{ColumnNames, EntityConfig};
use anabranch_pipeline::error::{Code, Fault};

use super::preflight_tables::condition;
use super::session::{Session, column_text};
use super::versions;
use crate::mysql::connection::quote_table;

/// Finds a captured generated column on a server that logs it with inserts alone. It is no fault: a table whose rows
/// only come is captured, and the reader ends with the first update or delete.
pub async fn generated_warning(
    session: &mut Session,
    entities: &[EntityConfig],
) -> Result<Option<String>, Fault> {
    if entities.is_empty() || !versions::leaves_out_generated(session.version) {
        return Ok(None);
    }
    let sql = format!(
        "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, EXTRA FROM information_schema.COLUMNS \
         WHERE IS_GENERATED = 'ALWAYS' AND {} ORDER BY 1, 2, 3",
        condition(entities)
    );
    let rows = session.rows(sql).await?;
    let columns: Vec<[String; 4]> = (rows.iter())
        .map(|row| std::array::from_fn(|index| column_text(row, index).unwrap_or_default()))
        .collect();
    let is_captured = |[database, table, column, _]: &&[String; 4]| {
        let takes = |entity: &EntityConfig| {
            let matches = entity.tables.matches(database, table).is_some();
            matches && entity.columns.iter().any(|names| names.has(column))
        };
        entities.iter().any(takes)
    };
    let captured: Vec<_> = columns.iter().filter(is_captured).collect();
    let Some([database, table, column, kind]) = captured.first() else { return Ok(None) };
    Ok(Some(format!(
        "{}: captured column {column} of table {database}.{table} is generated ({kind}), and version {} leaves \
         generated columns out of the rows of updates and deletes; {} more such columns; needed: a column that the \
         application writes, since the reader ends with source-image-not-full at the first such row",
        session.subject(),
        session.version_text,
        captured.len() - 1
    )))
}

/// Finds a table whose columns a grant shows in part, where a captured column has several names. A table with two of
/// the names looks like one with a single name then, and only its row events show the second. Grants to a role are not
/// listed, so a table that a role shows in part is not found.
pub async fn hidden_warning(
    session: &mut Session,
    entities: &[EntityConfig],
) -> Result<Option<String>, Fault> {
    let with_several = |entity: &&EntityConfig| entity.columns.iter().any(ColumnNames::are_several);
    let several: Vec<EntityConfig> = entities.iter().filter(with_several).cloned().collect();
    if several.is_empty() {
        return Ok(None);
    }
    let sql = format!(
        "SELECT DISTINCT TABLE_SCHEMA, TABLE_NAME FROM information_schema.COLUMN_PRIVILEGES \
         WHERE PRIVILEGE_TYPE = 'SELECT' AND {} ORDER BY 1, 2",
        condition(&several)
    );
    let rows = session.rows(sql).await?;
    let granted: Vec<(String, String)> =
        rows.iter().filter_map(|row| Some((column_text(row, 0)?, column_text(row, 1)?))).collect();
    for (database, table) in granted {
        let matches = |entity: &&EntityConfig| entity.tables.matches(&database, &table).is_some();
        let Some(entity) = several.iter().find(matches) else { continue };
        // A server answers this only to an account that may read all columns.
        match session.rows(format!("SELECT * FROM {} LIMIT 0", quote_table(&database, &table))).await {
            Ok(_) => {}
            Err(fault) if fault.code() == Code::SourceGrantMissing => {
                let names: Vec<String> = (entity.columns.iter())
                    .filter(|names| names.are_several())
                    .map(ToString::to_string)
                    .collect();
                return Ok(Some(format!(
                    "{}: the account may not read every column of table {database}.{table}, so a second one of \
                     the columns {} may be hidden from it; needed: SELECT on the whole table, since rows of a table \
                     with two such columns are left out (source-column-ambiguous)",
                    session.subject(),
                    names.join(", ")
                )));
            }
            Err(fault) => return Err(fault),
        }
    }
    Ok(None)
}
