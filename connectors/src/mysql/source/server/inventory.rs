//! Looks up present rows of captured tables by key: for lookups, not for capture.

use anabranch_pipeline::config::ColumnNames;
use anabranch_pipeline::error::{Code, Fault};
use mysql_async::Value;

use super::own_names::{list_columns, own_names};
use super::tables::CapturedTable;
use crate::mysql::connection::{quote_identifier, quote_table};
use crate::mysql::source::MysqlSource;

/// A row's captured values in the order of the entity's fields, as text; `None` = NULL.
pub type TextRow = Vec<Option<Vec<u8>>>;

impl MysqlSource {
    /// Returns the rows whose first field is exactly one of these texts. It skips a key that is not plain (letters,
    /// digits, `-`, `_`).
    pub async fn rows_by_key(&self, table: &CapturedTable, keys: &[&[u8]]) -> Result<Vec<TextRow>, Fault> {
        let literals: Vec<String> = keys.iter().filter_map(|key| literal(key)).collect();
        if literals.is_empty() {
            return Ok(Vec::new());
        }
        let name = quote_table(&table.identity.database, &table.identity.table);
        let literals = literals.join(", ");
        let mut may_be_renamed = table.columns.iter().any(ColumnNames::are_several);
        let rows = loop {
            let columns = self.own_columns(table).await?;
            let Some(key) = columns.first() else { return Ok(Vec::new()) };
            let sql = format!("SELECT {} FROM {name} WHERE {key} IN ({literals})", columns.join(", "));
            match self.questions.rows(sql).await {
                // A column may have got another of its names since the server was asked for them.
                Err(fault) if may_be_renamed && fault.code() == Code::SourceColumnMissing => {
                    may_be_renamed = false;
                }
                rows => break rows?,
            }
        };
        let mut found = Vec::new();
        for row in rows {
            let values: Option<TextRow> = row.unwrap().into_iter().map(text).collect();
            let values = values.ok_or_else(|| self.fault(Code::Internal, "an answer that is not text"))?;
            // A collation, or another spelling of a number, may match more rows.
            if values.first().is_some_and(|key| keys.iter().any(|wanted| key.as_deref() == Some(*wanted))) {
                found.push(values);
            }
        }
        Ok(found)
    }

    /// Returns the captured columns of a table under its own names, quoted.
    async fn own_columns(&self, table: &CapturedTable) -> Result<Vec<String>, Fault> {
        let known = match table.columns.iter().any(ColumnNames::are_several) {
            true => self.questions.rows(list_columns(&table.identity)).await?,
            false => Vec::new(),
        };
        let names = known.into_iter().flat_map(|row| row.unwrap()).filter_map(|name| text(name).flatten());
        let known: Vec<String> = names.map(|name| String::from_utf8_lossy(&name).into_owned()).collect();
        let own = own_names(&table.identity, &table.columns, &known)?;
        Ok(own.into_iter().map(quote_identifier).collect())
    }
}

/// Makes a text literal of a plain key. The server gives it the column's collation, or makes it a number for a number
/// column, so that the index serves both.
fn literal(key: &[u8]) -> Option<String> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let text = std::str::from_utf8(key).ok().filter(|text| text.as_bytes().iter().all(is_plain))?;
    Some(format!("'{text}'"))
}

fn text(value: Value) -> Option<Option<Vec<u8>>> {
    match value {
        Value::NULL => Some(None),
        Value::Bytes(bytes) => Some(Some(bytes)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_could_end_its_literal_is_not_looked_for() {
        assert_eq!(literal(b"007").as_deref(), Some("'007'"));
        for key in [&b"a'b"[..], b"a\\", b"\0", b"\xff", b"a b"] {
            assert_eq!(literal(key), None);
        }
    }
}
