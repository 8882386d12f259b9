//! The cost of removing old tables of payment documents in each of three ways. Each figure has its formula.

use serde::Serialize;

/// Rows that one DELETE removes, so that no lock lasts.
const DELETE_ROWS: u64 = 1_000;
/// Bytes of a logged statement that drops a table, about.
const DROP_BYTES: u64 = 200;

/// One way, with its figures for all due tables.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Way {
    way: &'static str,
    /// Statements on the source.
    statements: u64,
    /// Time of them; `None` = each takes no longer than its table's files take to go.
    seconds: Option<u64>,
    /// Bytes that the source's binlog gets.
    binlog_bytes: u64,
    /// Bytes that the source's disk gets back at once.
    freed_bytes: u64,
    /// Bytes that are copied to another server, and stay there.
    copied_bytes: u64,
    /// Rows that leave the index at once.
    index_rows_lost: u64,
    formula: String,
}

/// Returns the three ways for so many tables, rows and bytes.
pub(super) fn ways(tables: u64, rows: u64, bytes: u64, rows_per_second: u64) -> Vec<Way> {
    let seconds = Some(rows.div_ceil(rows_per_second.max(1)));
    let deletes = rows.div_ceil(DELETE_ROWS);
    vec![
        Way {
            way: "row deletes",
            statements: deletes,
            seconds,
            binlog_bytes: bytes,
            freed_bytes: 0,
            copied_bytes: 0,
            index_rows_lost: rows,
            formula: format!(
                "statements = rows / {DELETE_ROWS}; seconds = rows / {rows_per_second}; binlog = bytes, as every \
                 deleted row is logged; freed = 0 until OPTIMIZE TABLE; each deleted row leaves the index"
            ),
        },
        Way {
            way: "dropped tables",
            statements: tables,
            seconds: None,
            binlog_bytes: tables * DROP_BYTES,
            freed_bytes: bytes,
            copied_bytes: 0,
            index_rows_lost: 0,
            formula: format!(
                "statements = tables; binlog = tables × {DROP_BYTES}; freed = bytes; with removal = \"retain\" no row \
                 leaves the index"
            ),
        },
        Way {
            way: "history database",
            statements: deletes + tables,
            seconds,
            binlog_bytes: tables * DROP_BYTES,
            freed_bytes: bytes,
            copied_bytes: bytes,
            index_rows_lost: 0,
            formula: format!(
                "statements = rows / {DELETE_ROWS} to copy + tables to drop; seconds = rows / {rows_per_second}; \
                 copied = bytes; freed = bytes; if the history server is a source, its rows are captured once more"
            ),
        },
    ]
}

impl Way {
    pub(super) fn lines(&self) -> [String; 2] {
        let seconds = self.seconds.map_or_else(String::new, |seconds| format!(", {seconds} s"));
        let Self { way, statements, index_rows_lost, .. } = self;
        [
            format!(
                "way         {way}: {statements} statements{seconds}, {} of binlog, {} freed, {} copied, \
                 {index_rows_lost} rows leave the index",
                size(self.binlog_bytes),
                size(self.freed_bytes),
                size(self.copied_bytes)
            ),
            format!("            {}", self.formula),
        ]
    }
}

/// Writes bytes in megabytes, or in gigabytes from a thousand of them on.
pub(super) fn size(bytes: u64) -> String {
    let megabytes = bytes as f64 / 1e6;
    if megabytes >= 1_000.0 { format!("{:.1} GB", megabytes / 1e3) } else { format!("{megabytes:.1} MB") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A month of the source document: 100 tables of 10 million rows and 20 GB each.
    #[test]
    fn a_month_of_the_source_document_costs_what_its_figures_make() {
        let [deletes, drops, history] =
            ways(100, 1_000_000_000, 2_000_000_000_000, 2_000).try_into().unwrap();
        assert_eq!((deletes.statements, deletes.seconds), (1_000_000, Some(500_000)));
        assert_eq!((deletes.binlog_bytes, deletes.freed_bytes), (2_000_000_000_000, 0));
        assert_eq!(deletes.index_rows_lost, 1_000_000_000);
        assert_eq!((drops.statements, drops.binlog_bytes, drops.index_rows_lost), (100, 20_000, 0));
        assert_eq!(history.copied_bytes, drops.freed_bytes);
        assert_eq!(size(deletes.binlog_bytes), "2000.0 GB");
        assert_eq!(size(20_000), "0.0 MB");
        assert!(deletes.lines()[1].contains("seconds = rows / 2000"), "{:?}", deletes.lines());
    }
}
