//! Estimates the sizes of the captured tables from the server's statistics, without reading the tables, or counts the
//! rows as far as there is time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::change::{Entity, TableIdentity};

use super::session::{Session, column_text, literal};
use crate::mysql::connection::quote_table;
use crate::mysql::source::MysqlSource;
use crate::mysql::source::decode::gtid::Flavor;

/// Time for the count of one table, after which the server ends the statement; less than that of a query.
const COUNT_SECONDS: u64 = 20;
/// Time for the counts of all tables. A server counts some millions of rows in a second.
const COUNTS: Duration = Duration::from_secs(120);

impl MysqlSource {
    /// Returns every captured table that exists, with its approximate number of rows.
    pub async fn estimated_rows(&self) -> Result<Vec<(TableIdentity<'static>, u64)>, Fault> {
        let tables = self.captured_tables().await?;
        let databases: BTreeSet<&str> = tables.iter().map(|table| &*table.identity.database).collect();
        if databases.is_empty() {
            return Ok(Vec::new());
        }
        let databases: Vec<String> = databases.into_iter().map(literal).collect();
        let mut session = Session::open(&self.address).await?;
        session.ask_for_present_statistics().await?;
        let sql = format!(
            "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_ROWS FROM information_schema.TABLES WHERE TABLE_SCHEMA IN ({})",
            databases.join(", ")
        );
        let rows = session.rows(sql).await?;
        session.close().await;
        let known: HashMap<(String, String), u64> = rows
            .iter()
            .filter_map(|row| {
                let name = (column_text(row, 0)?, column_text(row, 1)?);
                Some((name, column_text(row, 2)?.parse().ok()?))
            })
            .collect();
        let rows = |table: &TableIdentity<'_>| {
            let name = (table.database.clone().into_owned(), table.table.clone().into_owned());
            known.get(&name).copied().unwrap_or_default()
        };
        Ok(tables.iter().map(|table| (table.identity.clone(), rows(&table.identity))).collect())
    }

    /// Returns two numbers for each entity of which the source has tables: rows that were counted, and those of the
    /// other tables by the server's statistics. Tables are counted as long as there is time, the smallest first, also
    /// after one whose count failed.
    pub async fn counted_rows(&self) -> Result<BTreeMap<Entity, (u64, u64)>, Fault> {
        let mut tables = self.estimated_rows().await?;
        tables.sort_by_key(|(_, rows)| *rows);
        let mut session = Some(Session::open(&self.address).await?);
        let until = Instant::now() + COUNTS;
        let mut found = BTreeMap::<Entity, (u64, u64)>::new();
        for (table, estimate) in tables {
            // A table without statistics may have rows: the sum of estimates says that it was not counted.
            let estimate = estimate.max(1);
            let (counted, estimated) = found.entry(table.entity).or_default();
            let Some(open) = session.as_mut().filter(|_| Instant::now() < until) else {
                *estimated += estimate;
                continue;
            };
            let rows = count(open, &table).await;
            match rows {
                Ok(rows) => *counted += rows,
                // It was dropped meanwhile.
                Err(fault) if fault.code() == Code::SourceTableMissing => {}
                Err(fault) => {
                    tracing::warn!(
                        database = %table.database, table = %table.table, %fault,
                        "the rows are not counted: this table counts by its estimate"
                    );
                    *estimated += estimate;
                    // The query may not have ended, so this connection is dropped.
                    session = self.opened_again().await;
                }
            }
        }
        if let Some(session) = session {
            session.close().await;
        }
        Ok(found)
    }

    /// Returns a new session; `None` if the server does not give one.
    async fn opened_again(&self) -> Option<Session> {
        let warn = |fault: &Fault| tracing::warn!(%fault, "the other tables count by estimates");
        Session::open(&self.address).await.inspect_err(warn).ok()
    }
}

async fn count(session: &mut Session, table: &TableIdentity<'_>) -> Result<u64, Fault> {
    let name = quote_table(&table.database, &table.table);
    let sql = match session.version.flavor {
        Flavor::MariaDb => {
            format!("SET STATEMENT max_statement_time = {COUNT_SECONDS} FOR SELECT COUNT(*) FROM {name}")
        }
        Flavor::MySql => {
            format!("SELECT /*+ MAX_EXECUTION_TIME({}) */ COUNT(*) FROM {name}", COUNT_SECONDS * 1_000)
        }
    };
    let text = session.text(&sql).await?;
    text.parse().map_err(|_| Fault::new(Code::SourceUnreachable, session.subject(), "a count is no number"))
}
