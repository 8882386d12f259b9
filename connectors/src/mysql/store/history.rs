//! The history of reconciliations and that of coupon days: each is a table of one target's control database.

use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::History;
use anabranch_pipeline::records::{Outcome, PastReconciliation};
use mysql_async::Row;
use mysql_async::prelude::Queryable;

use super::progress::literal;
use super::{MysqlTarget, ddl};
use crate::mysql::connection::quote_table;
use crate::mysql::pool::Pool;
use crate::mysql::target_session::TARGET_SESSION;

const COLUMNS: &str = "`number`, `id`, CAST(FLOOR(UNIX_TIMESTAMP(`ended_at`) * 1000) AS UNSIGNED), `verdict`, \
     `report`, `previous`, `signature`";

/// Limit of an append: a report may have a megabyte, and on a slow disk a lane's large transaction may precede it.
const APPEND_TIMEOUT: Duration = Duration::from_secs(120);

/// The history of reconciliations of one target. One connection stays open between queries, since every daemon queries
/// it all the time.
#[derive(Debug, Clone)]
pub struct MysqlHistory {
    target: MysqlTarget,
    table: String,
    pool: Pool,
}

impl MysqlHistory {
    pub fn new(target: &MysqlTarget) -> Self {
        Self::of_table(target, ddl::RECONCILIATIONS_TABLE)
    }

    /// Makes the history of coupon days, which is a chain of its own.
    pub fn of_coupon_days(target: &MysqlTarget) -> Self {
        Self::of_table(target, ddl::COUPON_REPORTS_TABLE)
    }

    fn of_table(target: &MysqlTarget, table: &'static str) -> Self {
        let pool = target.pool_with_session(1, TARGET_SESSION).shown(target.name(), table);
        Self { target: target.clone(), table: quote_table(&target.0.control_database, table), pool }
    }

    fn odd(&self) -> Fault {
        let subject = format!("{}, table {}", self.target.subject(), self.table);
        Fault::new(Code::TargetTableShape, subject, "a row has values that reconciliations never write")
            .needs("rows as the reconciliations wrote them")
    }

    async fn rows(&self, sql: String) -> Result<Vec<PastReconciliation>, Fault> {
        let rows = self.pool.rows(sql).await?;
        rows.into_iter().map(|row| past_reconciliation(row).ok_or_else(|| self.odd())).collect()
    }
}

fn past_reconciliation(row: Row) -> Option<PastReconciliation> {
    let (number, id, ended_at_ms, verdict, report, previous, signature): (_, _, _, String, _, _, _) =
        mysql_async::from_row_opt(row).ok()?;
    let verdict = Outcome::ALL.into_iter().find(|outcome| outcome.name() == verdict)?;
    Some(PastReconciliation { number, id, ended_at_ms, verdict, report, previous, signature })
}

impl History for MysqlHistory {
    async fn newest_number(&self) -> Result<Option<u64>, Fault> {
        let rows = self.pool.rows(format!("SELECT MAX(`number`) FROM {}", self.table)).await?;
        let Some(row) = rows.into_iter().next() else { return Ok(None) };
        mysql_async::from_row_opt(row).map_err(|_| self.odd())
    }

    async fn newest(&self, reconciliations: usize) -> Result<Vec<PastReconciliation>, Fault> {
        let table = &self.table;
        self.rows(format!("SELECT {COLUMNS} FROM {table} ORDER BY `number` DESC LIMIT {reconciliations}"))
            .await
    }

    async fn after(&self, number: u64, reconciliations: usize) -> Result<Vec<PastReconciliation>, Fault> {
        let table = &self.table;
        let sql = format!(
            "SELECT {COLUMNS} FROM {table} WHERE `number` > {number} ORDER BY `number` LIMIT {reconciliations}"
        );
        self.rows(sql).await
    }

    async fn numbered(&self, number: u64) -> Result<Option<PastReconciliation>, Fault> {
        let found =
            self.rows(format!("SELECT {COLUMNS} FROM {} WHERE `number` = {number}", self.table)).await?;
        Ok(found.into_iter().next())
    }

    async fn named(&self, id: &str) -> Result<Option<PastReconciliation>, Fault> {
        let (table, id) = (&self.table, literal(id));
        let found = self.rows(format!("SELECT {COLUMNS} FROM {table} WHERE `id` = {id} LIMIT 1")).await?;
        Ok(found.into_iter().next())
    }

    async fn append(&self, reconciliation: &PastReconciliation) -> Result<(), Fault> {
        let values = [
            &reconciliation.id,
            reconciliation.verdict.name(),
            &reconciliation.report,
            &reconciliation.previous,
            &reconciliation.signature,
        ];
        let [id, verdict, report, previous, signature] = values.map(literal);
        let (seconds, millis) = (reconciliation.ended_at_ms / 1000, reconciliation.ended_at_ms % 1000);
        let sql = format!(
            "INSERT INTO {} (`number`, `id`, `ended_at`, `verdict`, `report`, `previous`, `signature`) VALUES \
             ({}, {id}, FROM_UNIXTIME({seconds}.{millis:03}), {verdict}, {report}, {previous}, {signature})",
            self.table, reconciliation.number
        );
        let mut connection = self.pool.connection().await?;
        self.pool.within(APPEND_TIMEOUT, connection.query_drop(sql)).await
    }
}
