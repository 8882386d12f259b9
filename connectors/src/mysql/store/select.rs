//! SQL that selects derived rows of given source rows, for their comparison and for the lane that replaces them.

use anabranch_pipeline::records::{Cell, DerivedTable};
use anabranch_schemas::shard::ShardId;

use super::cells::push_cell;
use crate::mysql::connection::{push_number, quote_identifier, quote_table};

/// The table and columns of a SELECT; a condition follows.
pub(super) struct Select<'t> {
    /// Precedes each row, so that rows of several tables can be told apart.
    pub(super) number: Option<u32>,
    pub(super) table: &'t DerivedTable,
    /// Columns after the shard and the key.
    pub(super) columns: &'t [&'t str],
    /// An SQL expression after the columns.
    pub(super) expression: Option<&'t str>,
    /// The index to use; `None` = the server chooses.
    pub(super) index: Option<&'static str>,
}

impl Select<'_> {
    pub(super) fn push(&self, sql: &mut String) {
        self.push_columns(sql);
        self.push_table(sql);
        sql.push_str(" WHERE ");
    }

    /// Joins the table with a list `l` of shards (`s`) and keys (`k`): selects the rows whose column is the key.
    pub(super) fn push_joined(&self, sql: &mut String, column: &str) {
        self.push_columns(sql);
        sql.push_str("`l` STRAIGHT_JOIN ");
        self.push_table(sql);
        sql.push_str(&format!(" ON `shard_id` = `l`.`s` AND {} = `l`.`k`", quote_identifier(column)));
    }

    fn push_columns(&self, sql: &mut String) {
        sql.push_str("SELECT ");
        if let Some(number) = self.number {
            push_number(sql, number.into());
            sql.push(',');
        }
        sql.push_str("`shard_id`");
        for column in self.table.shape.key_columns.iter().chain(self.columns) {
            sql.push(',');
            sql.push_str(&quote_identifier(column));
        }
        if let Some(expression) = self.expression {
            sql.push(',');
            sql.push_str(expression);
        }
        sql.push_str(" FROM ");
    }

    fn push_table(&self, sql: &mut String) {
        sql.push_str(&quote_table(&self.table.database, &self.table.table));
        if let Some(index) = self.index {
            sql.push_str(&format!(" FORCE INDEX ({})", quote_identifier(index)));
        }
    }
}

/// Appends a condition for the rows of a shard whose column is one of these keys.
pub(super) fn push_condition<'k>(
    sql: &mut String,
    shard: ShardId,
    column: &str,
    keys: impl IntoIterator<Item = &'k Cell>,
) {
    sql.push_str("(`shard_id` = ");
    push_number(sql, shard.as_u64());
    sql.push_str(&format!(" AND {} IN (", quote_identifier(column)));
    for (number, key) in keys.into_iter().enumerate() {
        sql.push_str(if number > 0 { "," } else { "" });
        push_cell(sql, key);
    }
    sql.push_str("))");
}
