//! Answers in the text protocol: the rows of several statements, and the values of a row in order.
//!
//! The callers decide what a value means, and what an unreadable row means.

use std::str::FromStr;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row, Value};

/// Returns the rows of each of several statements that has any columns.
pub(super) async fn sets(connection: &mut Conn, sql: &str) -> Result<Vec<Vec<Row>>, mysql_async::Error> {
    let mut result = connection.query_iter(sql).await?;
    let mut sets = Vec::new();
    loop {
        let has_columns = !result.columns_ref().is_empty();
        let rows = result.collect::<Row>().await?;
        if has_columns {
            sets.push(rows);
        }
        if result.is_empty() {
            // The client library keeps an error of a later statement until it is polled once more.
            result.drop_result().await?;
            return Ok(sets);
        }
    }
}

/// The values of a row, in the order of its columns. `None` = no value is left, or it is not of the wanted kind.
pub(super) struct Cells(std::vec::IntoIter<Value>);

impl Cells {
    pub(super) fn of(row: Row) -> Self {
        Self(row.unwrap().into_iter())
    }

    /// Returns the next value; `Some(None)` = NULL.
    pub(super) fn bytes(&mut self) -> Option<Option<Vec<u8>>> {
        match self.0.next()? {
            Value::NULL => Some(None),
            Value::Bytes(bytes) => Some(Some(bytes)),
            _ => None,
        }
    }

    pub(super) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()??).ok()
    }

    pub(super) fn parsed<T: FromStr>(&mut self) -> Option<T> {
        self.text()?.parse().ok()
    }

    pub(super) fn optional<T: FromStr>(&mut self) -> Option<Option<T>> {
        match self.bytes()? {
            None => Some(None),
            Some(bytes) => String::from_utf8(bytes).ok()?.parse().ok().map(Some),
        }
    }
}
