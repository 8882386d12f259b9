//! The records of operations: a table of one target's control database, to which rows are only added.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::Operations;
use anabranch_pipeline::records::{OperationPhase, OperationRecord, OperationWay, StoredOperation};
use mysql_async::Row;
use mysql_async::prelude::FromValue;

use super::progress::literal;
use super::{MysqlTarget, ddl};
use crate::mysql::connection::quote_table;
use crate::mysql::pool::Pool;
use crate::mysql::target_session::TARGET_SESSION;

const COLUMNS: &str = "`number`, `operation`, `phase`, CAST(FLOOR(UNIX_TIMESTAMP(`at`) * 1000) AS UNSIGNED), `who`, \
     `via`, `host`, `version`, `command`, LEFT(`before_state`, 4000), \
     LEFT(`after_state`, 4000)";

/// Bytes of a text in the table, at most; longer ones are cut.
const TEXT_BYTES_MAX: usize = 65_535;
/// Characters of a name in the table, at most: columns `who`, `host`.
const WHO_CHARACTERS_MAX: usize = 128;
const HOST_CHARACTERS_MAX: usize = 255;

/// The records of operations of one target, over one connection.
#[derive(Debug, Clone)]
pub struct MysqlOperations {
    target: MysqlTarget,
    table: String,
    pool: Pool,
}

impl MysqlOperations {
    pub fn new(target: &MysqlTarget) -> Self {
        let table = quote_table(&target.0.control_database, ddl::OPERATIONS_TABLE);
        let pool = target.pool_with_session(1, TARGET_SESSION).shown(target.name(), ddl::OPERATIONS_TABLE);
        Self { target: target.clone(), table, pool }
    }

    fn odd(&self) -> Fault {
        let subject = format!("{}, table {}", self.target.subject(), self.table);
        Fault::new(Code::TargetTableShape, subject, "a row has values that operations never write")
            .needs("rows as the operations wrote them")
    }
}

impl Operations for MysqlOperations {
    async fn append(&self, record: &OperationRecord) -> Result<(), Fault> {
        let (seconds, millis) = (record.at_ms / 1000, record.at_ms % 1000);
        let who = characters(&record.who, WHO_CHARACTERS_MAX);
        let host = characters(&record.host, HOST_CHARACTERS_MAX);
        let values = [
            literal(&record.operation),
            literal(record.phase.name()),
            format!("FROM_UNIXTIME({seconds}.{millis:03})"),
            literal(who),
            literal(record.way.name()),
            literal(host),
            literal(&record.version),
            literal(bytes(&record.command)),
            optional(record.before.as_deref()),
            optional(record.after.as_deref()),
        ];
        let sql = format!(
            "INSERT INTO {} (`operation`, `phase`, `at`, `who`, `via`, `host`, `version`, `command`, `before_state`, \
             `after_state`) VALUES ({})",
            self.table,
            values.join(", ")
        );
        self.pool.rows(sql).await.map(drop)
    }

    async fn newest(&self, before: Option<u64>, limit: usize) -> Result<Vec<StoredOperation>, Fault> {
        let condition = before.map_or(String::new(), |before| format!(" WHERE `number` < {before}"));
        let sql =
            format!("SELECT {COLUMNS} FROM {}{condition} ORDER BY `number` DESC LIMIT {limit}", self.table);
        let rows = self.pool.rows(sql).await?;
        rows.into_iter().map(|row| stored(row).ok_or_else(|| self.odd())).collect()
    }
}

fn stored(mut row: Row) -> Option<StoredOperation> {
    let number = cell(&mut row, 0)?;
    let (phase, way): (String, String) = (cell(&mut row, 2)?, cell(&mut row, 5)?);
    let record = OperationRecord {
        operation: cell(&mut row, 1)?,
        phase: OperationPhase::ALL.into_iter().find(|known| known.name() == phase)?,
        at_ms: cell(&mut row, 3)?,
        who: cell(&mut row, 4)?,
        way: OperationWay::ALL.into_iter().find(|known| known.name() == way)?,
        host: cell(&mut row, 6)?,
        version: cell(&mut row, 7)?,
        command: cell(&mut row, 8)?,
        before: cell(&mut row, 9)?,
        after: cell(&mut row, 10)?,
    };
    Some(StoredOperation { number, record })
}

fn cell<T: FromValue>(row: &mut Row, place: usize) -> Option<T> {
    row.take_opt(place)?.ok()
}

fn optional(text: Option<&str>) -> String {
    text.map_or_else(|| "NULL".to_owned(), |text| literal(bytes(text)))
}

/// Returns the beginning of a text that the column takes.
fn bytes(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

/// Returns the first characters of a name.
fn characters(text: &str, most: usize) -> &str {
    text.char_indices().nth(most).map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters_where_its_column_ends() {
        let long = "é".repeat(40_000);
        assert_eq!(bytes(&long).len(), TEXT_BYTES_MAX - 1);
        assert_eq!(bytes("short"), "short");
        assert_eq!(characters(&long, 128).chars().count(), 128);
        assert_eq!(characters("ann", 128), "ann");
    }
}
