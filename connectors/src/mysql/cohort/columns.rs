//! Reads and repairs the three columns that follow the ledger row by row, for reconciliations.
//!
//! A row is changed only while it still has the values that were read, so a concurrent write of a granter stays.

use anabranch_coupons::columns::{LastCoupon, SentColumns};
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::retry::again;
use anabranch_schemas::celebration::{Birthday, Calendar};
use jiff::Timestamp;
use mysql_async::Row;

use super::{MysqlCohort, execute, number, odd, rows, text};
use crate::mysql::pool::Pool;

/// Rows in one statement that names them, and in one transaction that changes them.
const STATEMENT_ROWS: usize = 1_000;
const TRANSACTION_ROWS: usize = 200;

/// User and shard of a row.
pub type RowKey = (u64, u64);

/// A row of a birthday table with its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnsRow {
    pub key: RowKey,
    pub columns: SentColumns,
}

/// One physical birthday table.
#[derive(Debug, Clone)]
pub struct ColumnsTable {
    birthday: Birthday,
    name: String,
    pool: Pool,
}

impl MysqlCohort {
    /// Returns the physical tables of a birthday.
    pub fn columns_tables(&self, birthday: Birthday) -> Result<Vec<ColumnsTable>, Fault> {
        let layer = self.layer(birthday)?;
        let table = |place: super::TableAddress| ColumnsTable {
            birthday,
            name: place.name,
            pool: layer.servers[place.server].clone(),
        };
        Ok(layer.addresses(birthday).into_iter().map(table).collect())
    }
}

impl ColumnsTable {
    pub fn calendar(&self) -> Calendar {
        self.birthday.calendar()
    }

    /// Returns the next rows after a key, in the order of keys.
    pub async fn page(&self, after: Option<RowKey>, limit: usize) -> Result<Vec<ColumnsRow>, Fault> {
        let condition = after.map_or(String::new(), |(user, shard)| {
            format!("WHERE `user_id` >= {user} AND (`user_id` > {user} OR `shard_id` > {shard}) ")
        });
        self.read(&format!("{condition}ORDER BY `user_id`, `shard_id` LIMIT {limit}")).await
    }

    /// Returns those of these rows that exist.
    pub async fn of(&self, keys: &[RowKey]) -> Result<Vec<ColumnsRow>, Fault> {
        let mut found = Vec::new();
        for keys in keys.chunks(STATEMENT_ROWS) {
            let pairs: Vec<String> = keys.iter().map(|(user, shard)| format!("({shard},{user})")).collect();
            found
                .extend(self.read(&format!("WHERE (`shard_id`, `user_id`) IN ({})", pairs.join(","))).await?);
        }
        Ok(found)
    }

    async fn read(&self, which: &str) -> Result<Vec<ColumnsRow>, Fault> {
        let sql = format!(
            "SELECT `user_id`, `shard_id`, `is_sent` = 1, `send_time` IS NOT NULL, `sent_occurrence` FROM {} {which}",
            self.name
        );
        let rows = rows(&self.pool, sql).await?;
        rows.iter().map(|row| columns_row(row).ok_or_else(|| odd(self.birthday))).collect()
    }

    /// Sets rows to the user's newest coupon, or to none, while they still have the values that were read.
    pub async fn mend(&self, wrong: &[(ColumnsRow, Option<LastCoupon>)]) -> Result<(), Fault> {
        for wrong in wrong.chunks(TRANSACTION_ROWS) {
            let statements: Vec<String> =
                wrong.iter().map(|(row, last)| mend(&self.name, row, *last)).collect();
            // A lane may hold the rows for a moment, or wait for them.
            again(async || execute(&self.pool, &statements).await).await?;
        }
        Ok(())
    }
}

fn columns_row(row: &Row) -> Option<ColumnsRow> {
    let year = |text: &[u8]| std::str::from_utf8(text).ok()?.parse().ok();
    let occurrence = match text(row, 4) {
        Some(text) => Some(year(text)?),
        None => None,
    };
    let columns = SentColumns { is_sent: number(row, 2)? == 1, has_time: number(row, 3)? == 1, occurrence };
    Some(ColumnsRow { key: (number(row, 0)?, number(row, 1)?), columns })
}

fn mend(table: &str, row: &ColumnsRow, last: Option<LastCoupon>) -> String {
    let ((user, shard), SentColumns { is_sent, has_time, occurrence }) = (row.key, row.columns);
    let set = match last {
        None => "`is_sent` = 0, `send_time` = NULL, `sent_occurrence` = NULL".to_owned(),
        // Assignments run from left to right: `send_time` sees the previous values.
        Some(LastCoupon { year, settled_at }) => format!(
            "`send_time` = IF(`sent_occurrence` <=> {year} AND `send_time` IS NOT NULL, `send_time`, {}), \
             `is_sent` = 1, `sent_occurrence` = {year}",
            moment(settled_at)
        ),
    };
    let seen = occurrence.map_or("NULL".to_owned(), |year| year.to_string());
    format!(
        "UPDATE {table} SET {set} WHERE `shard_id` = {shard} AND `user_id` = {user} AND (`is_sent` = 1) = {} \
         AND (`send_time` IS NOT NULL) = {} AND `sent_occurrence` <=> {seen}",
        u8::from(is_sent),
        u8::from(has_time)
    )
}

/// Returns a moment as a literal, in UTC and to the microsecond, as the column has it.
fn moment(at: Timestamp) -> String {
    at.strftime("'%Y-%m-%d %H:%M:%S%.6f'").to_string()
}
