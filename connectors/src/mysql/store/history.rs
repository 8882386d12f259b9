//! The history of reconciliation, in the control database of one target.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::History;
use anabranch_pipeline::records::{Outcome, PastNight};

use super::progress::literal;
use super::session::{Session, TextRow};
use super::{MysqlTarget, ddl};
use crate::mysql::connection::quote_table;

const COLUMNS: &str = "CAST(`number` AS CHAR), `id`, \
     CAST(FLOOR(UNIX_TIMESTAMP(`ended_at`) * 1000) AS CHAR), `verdict`, `report`, `previous`, `signature`";

/// Nights as one target keeps them.
#[derive(Debug, Clone)]
pub struct MysqlHistory(MysqlTarget);

impl MysqlHistory {
    pub fn new(target: &MysqlTarget) -> Self {
        Self(target.clone())
    }

    fn table(&self) -> String {
        quote_table(&self.0.0.control_database, ddl::NIGHTS_TABLE)
    }

    async fn rows(&self, sql: String) -> Result<Vec<PastNight>, Fault> {
        let mut session = Session::open(&self.0).await?;
        let rows = session.rows(format!("SET time_zone = '+00:00'; {sql}")).await;
        session.close().await;
        let odd = || {
            let subject = format!("{}, table {}", self.0.subject(), self.table());
            Fault::new(Code::TargetTableShape, subject, "a row that no night wrote")
                .needs("rows as nights have written them")
        };
        rows?.into_iter().map(|row| past_night(row).ok_or_else(odd)).collect()
    }
}

fn past_night(row: TextRow) -> Option<PastNight> {
    let mut cells = row.into_iter();
    let mut next = || cells.next().flatten();
    let (number, id, ended_at_ms, verdict) = (next()?, next()?, next()?, next()?);
    Some(PastNight {
        number: number.parse().ok()?,
        id,
        ended_at_ms: ended_at_ms.parse().ok()?,
        verdict: Outcome::ALL.into_iter().find(|outcome| outcome.name() == verdict)?,
        report: next()?,
        previous: next()?,
        signature: next()?,
    })
}

impl History for MysqlHistory {
    async fn newest(&self, nights: usize) -> Result<Vec<PastNight>, Fault> {
        let table = self.table();
        self.rows(format!("SELECT {COLUMNS} FROM {table} ORDER BY `number` DESC LIMIT {nights}")).await
    }

    async fn behind(&self, number: u64, nights: usize) -> Result<Vec<PastNight>, Fault> {
        let table = self.table();
        let sql = format!(
            "SELECT {COLUMNS} FROM {table} WHERE `number` > {number} ORDER BY `number` LIMIT {nights}"
        );
        self.rows(sql).await
    }

    async fn numbered(&self, number: u64) -> Result<Option<PastNight>, Fault> {
        let table = self.table();
        let found = self.rows(format!("SELECT {COLUMNS} FROM {table} WHERE `number` = {number}")).await?;
        Ok(found.into_iter().next())
    }

    async fn named(&self, id: &str) -> Result<Option<PastNight>, Fault> {
        let (table, id) = (self.table(), literal(id));
        let found = self.rows(format!("SELECT {COLUMNS} FROM {table} WHERE `id` = {id} LIMIT 1")).await?;
        Ok(found.into_iter().next())
    }

    async fn append(&self, night: &PastNight) -> Result<(), Fault> {
        let values = [&night.id, night.verdict.name(), &night.report, &night.previous, &night.signature];
        let [id, verdict, report, previous, signature] = values.map(literal);
        let (seconds, millis) = (night.ended_at_ms / 1000, night.ended_at_ms % 1000);
        let sql = format!(
            "INSERT INTO {} (`number`, `id`, `ended_at`, `verdict`, `report`, `previous`, `signature`) VALUES \
             ({}, {id}, FROM_UNIXTIME({seconds}.{millis:03}), {verdict}, {report}, {previous}, {signature})",
            self.table(),
            night.number
        );
        let mut session = Session::open(&self.0).await?;
        let written = session.run(format!("SET time_zone = '+00:00'; {sql}")).await;
        session.close().await;
        written
    }
}
