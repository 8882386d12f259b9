//! Sizes of captured tables with their least and greatest keys, for a person who is to drop some of them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use anabranch_pipeline::error::Fault;

use super::own_names::{list_columns, own_names};
use super::session::{Session, column_text, literal};
use super::tables::CapturedTable;
use crate::mysql::connection::{quote_identifier, quote_table};
use crate::mysql::source::MysqlSource;

/// Tables whose keys one statement reads: the thousands of tables of payment documents are not asked for one by one.
/// The tables of a statement share the time of one query, and a key without an index costs a scan of its table.
const TABLES_A_STATEMENT: usize = 10;

/// A table with its greatest and its least key.
type TableKeys = (Arc<CapturedTable>, Option<Vec<u8>>, Option<Vec<u8>>);

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
        for some in tables.chunks(TABLES_A_STATEMENT) {
            for (table, greatest_key, least_key) in keys(&mut session, some).await? {
                let name = (table.identity.database.to_string(), table.identity.table.to_string());
                let (rows, bytes) = sizes.get(&name).copied().unwrap_or_default();
                extents.push(TableExtent { table, rows, bytes, greatest_key, least_key });
            }
        }
        session.close().await;
        Ok(extents)
    }
}

/// Returns each of these tables with the greatest and the least value of its first captured column.
async fn keys(session: &mut Session, tables: &[Arc<CapturedTable>]) -> Result<Vec<TableKeys>, Fault> {
    let mut selects = Vec::new();
    for (number, table) in tables.iter().enumerate() {
        let Some(key) = table.columns.get(..1) else { continue };
        let known = match key[0].are_several() {
            true => session.rows(list_columns(&table.identity)).await?,
            false => Vec::new(),
        };
        let known: Vec<String> = known.iter().filter_map(|row| column_text(row, 0)).collect();
        let key = quote_identifier(own_names(&table.identity, key, &known)?[0]);
        let name = quote_table(&table.identity.database, &table.identity.table);
        selects.push(format!("SELECT {number}, HEX(MAX({key})), HEX(MIN({key})) FROM {name}"));
    }
    if selects.is_empty() {
        return Ok(Vec::new());
    }
    let rows = session.rows(selects.join(" UNION ALL ")).await?;
    let table_keys = |row| {
        let table = tables.get(column_text(row, 0)?.parse::<usize>().ok()?)?;
        let key = |place| bytes(&column_text(row, place)?);
        Some((Arc::clone(table), key(1), key(2)))
    };
    Ok(rows.iter().filter_map(table_keys).collect())
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
    session.ask_for_present_statistics().await?;
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
