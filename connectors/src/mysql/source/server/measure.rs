//! Measures a server for a capacity plan: the sizes of its captured tables, and how fast rows and binlog grow.

use std::time::Duration;

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::failpoints;
use anabranch_schemas::change::TableIdentity;
use tokio::time::Instant;

use super::extent::sizes;
use super::session::{Session, column_text};
use crate::mysql::source::MysqlSource;

/// The captured tables of a server, and its rates over some seconds.
#[derive(Debug, Clone)]
pub struct SourceMeasure {
    pub tables: Vec<TableSize>,
    /// Rows that the server inserted into tables of any database between the two readings of its counters. MySQL
    /// counts rows of its temporary tables, too.
    pub inserted_rows: u64,
    /// Time between the two readings of its counters.
    pub seconds: f64,
    /// `None` = the server removed the file of the first reading in the meantime.
    pub binlog_bytes_per_second: Option<f64>,
}

impl SourceMeasure {
    pub fn inserted_rows_per_second(&self) -> f64 {
        self.inserted_rows as f64 / self.seconds
    }
}

/// The size of a captured table, by the server's statistics.
#[derive(Debug, Clone)]
pub struct TableSize {
    pub table: TableIdentity<'static>,
    pub rows: u64,
    /// Bytes of rows and indexes.
    pub bytes: u64,
}

/// The counters of a server at one moment.
#[derive(Debug)]
struct Counters {
    at: Instant,
    inserted_rows: u64,
    /// File and offset of the binlog's end.
    end: (String, u64),
}

impl MysqlSource {
    /// Reads the sizes of all captured tables, and the server's counters at the beginning and the end of `time`. It
    /// reads no row of a table.
    pub async fn measure(&self, time: Duration) -> Result<SourceMeasure, Fault> {
        let mut session = Session::open(&self.address).await?;
        let tables: Vec<_> = self.list_tables(&mut session).await?.all().cloned().collect();
        let sizes = sizes(&mut session, &tables).await?;
        let first = read_counters(&mut session).await?;
        failpoints::reach("measure-counters-read").await;
        tokio::time::sleep(time).await;
        let last = read_counters(&mut session).await?;
        let files = session.binlogs().await?;
        session.close().await;
        let seconds = last.at.duration_since(first.at).as_secs_f64();
        // Counters of a server that was restarted in between begin at 0.
        let inserted_rows = last.inserted_rows.saturating_sub(first.inserted_rows);
        let size = |table: &TableIdentity<'static>| {
            let name = (table.database.clone().into_owned(), table.table.clone().into_owned());
            let (rows, bytes) = sizes.get(&name).copied().unwrap_or_default();
            TableSize { table: table.clone(), rows, bytes }
        };
        Ok(SourceMeasure {
            tables: tables.iter().map(|table| size(&table.identity)).collect(),
            inserted_rows,
            seconds,
            binlog_bytes_per_second: written(&files, &first.end, &last.end)
                .map(|bytes| bytes as f64 / seconds),
        })
    }
}

async fn read_counters(session: &mut Session) -> Result<Counters, Fault> {
    let sql = "SHOW GLOBAL STATUS WHERE Variable_name = 'Handler_write'".to_owned();
    let rows = session.rows(sql).await?;
    let inserted_rows = rows.first().and_then(|row| column_text(row, 1)?.parse().ok()).unwrap_or_default();
    Ok(Counters { at: Instant::now(), inserted_rows, end: session.end_position().await? })
}

/// Returns the bytes between two ends of the binlog. `files` are names and sizes, oldest first.
fn written(files: &[(String, u64)], first: &(String, u64), last: &(String, u64)) -> Option<u64> {
    if first.0 == last.0 {
        return last.1.checked_sub(first.1);
    }
    let place = |name: &str| files.iter().position(|(known, _)| known == name);
    let whole = files.get(place(&first.0)?..place(&last.0)?)?;
    let bytes: u64 = whole.iter().map(|(_, size)| size).sum();
    (bytes + last.1).checked_sub(first.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_the_binlog_are_counted_across_its_files() {
        let file = |name: &str, size| (name.to_owned(), size);
        let files = [file("b.1", 900), file("b.2", 500), file("b.3", 70), file("b.4", 80)];
        for (first, last, expected) in [
            (file("b.2", 100), file("b.2", 350), Some(250)),
            (file("b.2", 100), file("b.3", 60), Some(460)),
            (file("b.1", 900), file("b.4", 4), Some(574)),
            (file("b.2", 100), file("b.2", 50), None),
            (file("b.0", 100), file("b.3", 60), None),
            (file("b.3", 10), file("b.1", 20), None),
        ] {
            assert_eq!(written(&files, &first, &last), expected, "{first:?} {last:?}");
        }
    }
}
