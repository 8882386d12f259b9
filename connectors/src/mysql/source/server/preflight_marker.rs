//! Warns of a table in which retention jobs are to name themselves, and whose rows never count.

use anabranch_pipeline::config::EntityConfig;
use anabranch_pipeline::error::Fault;

use super::preflight_tables::transactional;
use super::session::{Session, column_text, literal};

/// Looks for the table of `flux.retention_marker`. A missing one is no fault: capture needs no right on the table, and
/// an account without a right does not see it. A wrong name would let the rows of the index go with the source rows. So
/// would a view, because the binlog names the table behind it, and a table without transactions, whose rows it logs in
/// a transaction of their own.
pub async fn marker_warning(
    session: &mut Session,
    entities: &[EntityConfig],
) -> Result<Option<String>, Fault> {
    let Some(marker) = entities.iter().find_map(|entity| entity.retention_marker.as_ref()) else {
        return Ok(None);
    };
    let sql = format!(
        "SELECT ENGINE, TABLE_TYPE FROM information_schema.TABLES WHERE TABLE_SCHEMA = {} AND TABLE_NAME = {}",
        literal(&marker.database),
        literal(&marker.table)
    );
    let rows = session.rows(sql).await?;
    let text = |row, index| column_text(row, index).unwrap_or_default();
    let known = rows.first().map(|row| (text(row, 0), text(row, 1)));
    let transactional = transactional(session).await?;
    let found = match known {
        None => "does not exist here, or the account has no right on it".to_owned(),
        Some((_, kind)) if kind != "BASE TABLE" => format!("has the type {kind}"),
        Some((engine, _)) if transactional.contains(&engine.to_ascii_lowercase()) => return Ok(None),
        Some((engine, _)) => format!("has the engine {engine}, which has no transactions"),
    };
    Ok(Some(format!(
        "{}: table {}.{} (flux.retention_marker) {found}; needed: the InnoDB table into which retention jobs write, \
         and SELECT on it, so that `check` sees it: without its row in their transaction, deleted rows leave the index",
        session.subject(),
        marker.database,
        marker.table
    )))
}
