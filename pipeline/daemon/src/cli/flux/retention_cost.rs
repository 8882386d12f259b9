//! The cost of removing old tables of payment documents in each of three ways. Each figure has its formula.

use serde::Serialize;

/// Rows that one DELETE removes, so that no lock lasts.
pub(super) const DELETE_ROWS: u64 = 1_000;
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

/// The due tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    pub tables: u64,
    pub rows: u64,
    /// Number of rows in tables that have `removal = "retain"`.
    pub retained_rows: u64,
    pub bytes: u64,
    /// `flux.retention_marker` is set, so that a job can say which deletions are those of a retention rule.
    pub has_marker: bool,
}

/// Returns the three ways for the due tables.
pub(super) fn ways(due: Extent, rows_per_second: u64) -> Vec<Way> {
    let Extent { tables, rows, retained_rows, bytes, has_marker } = due;
    let withdrawn = rows.saturating_sub(retained_rows);
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
            index_rows_lost: if has_marker { withdrawn } else { rows },
            formula: format!(
                "statements = rows / {DELETE_ROWS}; seconds = rows / {rows_per_second}; binlog = bytes, as every \
                 deleted row is logged; freed = 0 until OPTIMIZE TABLE; {}",
                of_deletes(has_marker)
            ),
        },
        Way {
            way: "dropped tables",
            statements: tables,
            seconds: None,
            binlog_bytes: tables * DROP_BYTES,
            freed_bytes: bytes,
            copied_bytes: 0,
            index_rows_lost: withdrawn,
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
            index_rows_lost: withdrawn,
            formula: format!(
                "statements = rows / {DELETE_ROWS} to copy + tables to drop; seconds = rows / {rows_per_second}; \
                 copied = bytes; freed = bytes; if the history server is a source, its rows are captured once more; \
                 the index loses as much as by dropped tables"
            ),
        },
    ]
}

/// Says which deleted rows leave the index.
fn of_deletes(has_marker: bool) -> &'static str {
    match has_marker {
        true => {
            "behind flux.retention_marker a row deleted from a table with removal = \"retain\" stays in the index, and \
             each other one leaves it"
        }
        false => "each deleted row leaves the index, as flux.retention_marker is not set",
    }
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
        let due = Extent {
            tables: 100,
            rows: 1_000_000_000,
            retained_rows: 1_000_000_000,
            bytes: 2_000_000_000_000,
            has_marker: false,
        };
        let [deletes, drops, history] = ways(due, 2_000).try_into().unwrap();
        assert_eq!((deletes.statements, deletes.seconds), (1_000_000, Some(500_000)));
        assert_eq!((deletes.binlog_bytes, deletes.freed_bytes), (2_000_000_000_000, 0));
        assert_eq!(deletes.index_rows_lost, 1_000_000_000);
        assert_eq!((drops.statements, drops.binlog_bytes, drops.index_rows_lost), (100, 20_000, 0));
        assert_eq!(history.copied_bytes, drops.freed_bytes);
        assert_eq!(size(deletes.binlog_bytes), "2000.0 GB");
        assert_eq!(size(20_000), "0.0 MB");
        assert!(deletes.lines()[1].contains("seconds = rows / 2000"), "{:?}", deletes.lines());
    }

    #[test]
    fn rows_stay_in_the_index_behind_a_marker_where_their_table_retains_them() {
        let due = Extent { tables: 2, rows: 30, retained_rows: 20, bytes: 1, has_marker: true };
        let lost = |due| ways(due, 1).iter().map(|way| way.index_rows_lost).collect::<Vec<_>>();
        assert_eq!(lost(due), [10, 10, 10]);
        assert!(ways(due, 1)[0].formula.contains("behind flux.retention_marker"));
        let unmarked = Extent { has_marker: false, ..due };
        assert_eq!(lost(unmarked), [30, 10, 10]);
        assert!(ways(unmarked, 1)[0].formula.ends_with("flux.retention_marker is not set"));
    }
}
