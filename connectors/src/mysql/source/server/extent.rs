//! Sizes of captured tables with their least and greatest keys, for a person who is to drop some of them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use anabranch_pipeline::error::Fault;

use super::own_names::{list_columns, own_names};
use super::session::{Session, column_text, literal};
use super::tables::CapturedTable;
use crate::mysql::connection::{quote_identifier, quote_table};
use crate::mysql::source::MysqlSource;

/// The extent of a captured table.
#[derive(Debug, Clone)]
pub struct TableExtent {
    pub table: Arc<CapturedTable>,
    /// Rows, by the server's statistics.
    pub rows: u64,
    /// Bytes of rows and indexes, by the server's statistics.
    pub bytes: u64,
    /// The greatest value of the first captured column; `None` = the table is empty.
    pub greatest_key: Option<Vec<u8>>,
    /// The least value of that column; `None` = the table is empty.
    pub least_key: Option<Vec<u8>>,
}

impl MysqlSource {
    /// Returns the extents of the captured tables that `is_meant` accepts. Both keys are read through their index,
    /// if there is one.
    pub async fn extents(
        &self,
        is_meant: impl Fn(&CapturedTable) -> bool,
    ) -> Result<Vec<TableExtent>, Fault> {
        let mut session = Session::open(&self.address).await?;
        let tables = self.list_tables(&mut session).await?;
        let tables: Vec<_> = tables.all().filter(|table| is_meant(table)).cloned().collect();
        let sizes = sizes(&mut session, &tables).await?;
        let mut extents = Vec::new();
        for table in tables {
            let (database, name) = (table.identity.database.to_string(), table.identity.table.to_string());
            let Some(key) = table.columns.get(..1) else { continue };
            let known = match key[0].are_several() {
                true => session.rows(list_columns(&table.identity)).await?,
                false => Vec::new(),
            };
            let known: Vec<String> = known.iter().filter_map(|row| column_text(row, 0)).collect();
            let key = quote_identifier(own_names(&table.identity, key, &known)?[0]);
            let sql =
                format!("SELECT HEX(MAX({key})), HEX(MIN({key})) FROM {}", quote_table(&database, &name));
            let keys = session.rows(sql).await?;
            let key = |place: usize| keys.first().and_then(|row| bytes(&column_text(row, place)?));
            let (greatest_key, least_key) = (key(0), key(1));
            let (rows, bytes) = sizes.get(&(database, name)).copied().unwrap_or_default();
            extents.push(TableExtent { table, rows, bytes, greatest_key, least_key });
        }
        session.close().await;
        Ok(extents)
    }
}

/// Returns rows and bytes by names of database and table.
pub(super) async fn sizes(
    session: &mut Session,
    tables: &[Arc<CapturedTable>],
) -> Result<HashMap<(String, String), (u64, u64)>, Fault> {
    let databases: BTreeSet<&str> = tables.iter().map(|table| &*table.identity.database).collect();
    if databases.is_empty() {
        return Ok(HashMap::new());
    }
    let databases: Vec<String> = databases.into_iter().map(literal).collect();
    let sql = format!(
        "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_ROWS, DATA_LENGTH + INDEX_LENGTH FROM information_schema.TABLES \
         WHERE TABLE_SCHEMA IN ({})",
        databases.join(", ")
    );
    let rows = session.rows(sql).await?;
    let size = |row| {
        let name = (column_text(row, 0)?, column_text(row, 1)?);
        Some((name, (column_text(row, 2)?.parse().ok()?, column_text(row, 3)?.parse().ok()?)))
    };
    Ok(rows.iter().filter_map(size).collect())
}

/// Reads bytes that the server wrote as hexadecimal digits.
fn bytes(digits: &str) -> Option<Vec<u8>> {
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.as_bytes().chunks(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_digits_are_read_as_bytes() {
        assert_eq!(bytes("3230FF00"), Some(b"20\xff\0".to_vec()));
        assert_eq!((bytes(""), bytes("3x")), (Some(Vec::new()), None));
    }
}
