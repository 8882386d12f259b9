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
/// Limit of a packet in the session, which a change of the server's setting does not reach.
const PACKET_LIMIT: &str = "SELECT CAST(@@max_allowed_packet AS CHAR)";
/// Room for the other columns of a report's row, and for the protocol's header.
const ROW_SLACK_BYTES: usize = 4 * 1024;

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

    /// Returns the fault of a report that is too long for one packet. The reports are read as rows, so a row that is
    /// written in parts could not be read either.
    fn too_long(&self, id: &str, bytes: usize, limit: usize) -> Fault {
        let subject = format!("{}, table {}", self.target.subject(), self.table);
        let found =
            format!("the report {id} needs packets of {bytes} bytes, and `max_allowed_packet` is {limit}");
        Fault::new(Code::TargetRejected, subject, found)
            .needs(format!("`max_allowed_packet` of {bytes} or more on the server of the target"))
            .remedy(format!("SET GLOBAL max_allowed_packet = {}", bytes.next_multiple_of(1024 * 1024)))
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
            &reconciliation.previous,
            &reconciliation.signature,
        ];
        let [id, verdict, previous, signature] = values.map(literal);
        let (seconds, millis) = (reconciliation.ended_at_ms / 1000, reconciliation.ended_at_ms % 1000);
        // The report is a parameter, whose bytes go as they are: a literal would have two digits for each. Read as
        // bytes first, it means the same text whatever the connection's character set.
        let sql = format!(
            "INSERT INTO {} (`number`, `id`, `ended_at`, `verdict`, `report`, `previous`, `signature`) VALUES \
             ({}, {id}, FROM_UNIXTIME({seconds}.{millis:03}), {verdict}, CONVERT(CAST(? AS BINARY) USING utf8mb4), \
             {previous}, {signature})",
            self.table, reconciliation.number
        );
        let report = reconciliation.report.as_str();
        let bytes = report.len() + ROW_SLACK_BYTES;
        let mut connection = self.pool.connection().await?;
        let limit = connection.query_first::<u64, _>(PACKET_LIMIT);
        let limit = self.pool.within(APPEND_TIMEOUT, limit).await?;
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        if bytes > limit {
            // The next attempt has a session of its own, which has the limit of that moment.
            Pool::discard(connection).await;
            return Err(self.too_long(&reconciliation.id, bytes, limit));
        }
        self.pool.within(APPEND_TIMEOUT, connection.exec_drop(sql, (report,))).await
    }
}
