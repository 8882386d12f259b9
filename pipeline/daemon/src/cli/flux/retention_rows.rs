//! Old rows of the tables without a month, which no month ends: a job deletes them in batches.
//!
//! Nothing counts these rows, as that would read whole tables. The estimate spreads the rows of a table evenly over the
//! months from its least to its greatest identifier, and both are known. Both have their date at the front.

use anabranch_schemas::flux::id::FluxId;
use anabranch_schemas::flux::retention::YearMonth;
use jiff::civil::Date;
use serde::Serialize;

use super::document_tables::DocumentTable;
use super::retention_cost::{self, DELETE_ROWS};

/// Tables that the text lists, at most; `--json` has them all.
const LINES_MAX: usize = 20;

/// The rule of a plan: rows so old are due, and a deletion reaches so many a second.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    pub system: u16,
    pub today: Date,
    pub months: u32,
    pub rows_per_second: u64,
}

/// The rows of all tables without a month.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct OldRows {
    /// Number of rows by the sources' statistics.
    rows: u64,
    bytes: u64,
    /// Rows that are old enough to go, by the estimate.
    old_rows: u64,
    /// DELETEs of them, and the seconds that these take.
    statements: u64,
    seconds: u64,
    /// Tables whose least or greatest key is no identifier, so that nothing is estimated for them.
    not_estimated: usize,
    /// The tables with old rows.
    tables: Vec<OldTable>,
    formula: String,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct OldTable {
    source: String,
    table: String,
    /// The month of its least identifier.
    oldest: String,
    rows: u64,
    old_rows: u64,
}

/// Returns the rows of tables without a month.
pub(super) fn of<'t>(tables: impl Iterator<Item = &'t DocumentTable>, rule: Rule) -> OldRows {
    let mut all = OldRows::default();
    for table in tables {
        let extent = &table.extent;
        all.rows += extent.rows;
        all.bytes += extent.bytes;
        let (Some(least), Some(greatest)) = (&extent.least_key, &extent.greatest_key) else { continue };
        let (Some(oldest), Some(newest)) = (month_of(least, rule.system), month_of(greatest, rule.system))
        else {
            all.not_estimated += 1;
            continue;
        };
        let old_rows = estimate(extent.rows, oldest, newest, rule);
        if old_rows > 0 {
            let (source, name) = (table.source.clone(), table.name());
            let oldest = oldest.to_string();
            all.tables.push(OldTable { source, table: name, oldest, rows: extent.rows, old_rows });
        }
    }
    all.costed(rule.rows_per_second)
}

fn month_of(key: &[u8], system: u16) -> Option<YearMonth> {
    FluxId::parse_of(key, system).ok().map(|id| YearMonth::of(id.parts().date))
}

/// Returns the rows of the months that are due, if each month from the oldest to the newest one has as many.
fn estimate(rows: u64, oldest: YearMonth, newest: YearMonth, rule: Rule) -> u64 {
    let months = oldest.months_until(newest).max(0) + 1;
    let first_kept = YearMonth::of(rule.today).before(rule.months.saturating_sub(1));
    let due = oldest.months_until(first_kept).clamp(0, months);
    rows.saturating_mul(u64::from(due.unsigned_abs())) / u64::from(months.unsigned_abs())
}

impl OldRows {
    /// Adds the old rows of the tables up, with what their deletion costs.
    fn costed(mut self, rows_per_second: u64) -> Self {
        self.old_rows = self.tables.iter().map(|table| table.old_rows).sum();
        self.statements = self.old_rows.div_ceil(DELETE_ROWS);
        self.seconds = self.old_rows.div_ceil(rows_per_second.max(1));
        self.formula = format!(
            "old rows = rows × due months / months from the least to the greatest identifier; statements = old rows / \
             {DELETE_ROWS}; seconds = old rows / {rows_per_second}"
        );
        self
    }

    /// Returns the lines of the plan; none if the tables are empty.
    pub(super) fn lines(&self) -> Vec<String> {
        let Self { rows, old_rows, statements, seconds, not_estimated, .. } = self;
        if *rows == 0 && *not_estimated == 0 {
            return Vec::new();
        }
        let size = retention_cost::size(self.bytes);
        let mut lines = vec![
            format!(
                "no month    some {rows} rows in {size}, {old_rows} of them old: {statements} DELETEs, {seconds} s"
            ),
            format!("            {}", self.formula),
        ];
        lines.extend(self.tables.iter().take(LINES_MAX).map(OldTable::line));
        if self.tables.len() > LINES_MAX {
            lines
                .push(format!("            and {} more: --json has them all", self.tables.len() - LINES_MAX));
        }
        if *not_estimated > 0 {
            lines.push(format!(
                "            {not_estimated} tables without a month have a first or last key that is no identifier: \
                 nothing is estimated for them"
            ));
        }
        lines
    }
}

impl OldTable {
    fn line(&self) -> String {
        let Self { source, table, oldest, rows, old_rows } = self;
        format!("old rows    {table} of {source}: some {old_rows} of {rows}, from {oldest} on")
    }
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    fn rule() -> Rule {
        Rule { system: 31, today: date(2017, 5, 1), months: 16, rows_per_second: 2_000 }
    }

    /// The old ones of 2,400 rows from one month to another, on the first of May 2017.
    fn old(oldest: (i16, i8), newest: (i16, i8)) -> u64 {
        let month = |(year, month)| YearMonth::of(date(year, month, 1));
        estimate(2_400, month(oldest), month(newest), rule())
    }

    #[test]
    fn rows_are_old_in_the_share_of_the_months_that_are_due() {
        // 2016-01 is 16 months old, and 2016-02 is not.
        assert_eq!(old((2015, 6), (2017, 5)), 800);
        assert_eq!(old((2016, 1), (2016, 1)), 2_400);
        assert_eq!(old((2016, 2), (2017, 5)), 0);
        assert_eq!(old((2014, 1), (2014, 12)), 2_400, "all of them are old");
        assert_eq!(old((2018, 1), (2018, 12)), 0, "a date that is still to come");
        assert_eq!(month_of(b"2016013111031001099050000000001", 31), Some(YearMonth::of(date(2016, 1, 31))));
        assert_eq!(month_of(b"zzz", 31), None);
    }

    #[test]
    fn old_rows_have_their_cost_and_their_tables() {
        let table = |name: &str| OldTable {
            source: "main-a".to_owned(),
            table: name.to_owned(),
            oldest: "2014-01".to_owned(),
            rows: 9_000,
            old_rows: 2_500,
        };
        let tables = vec![table("flux_00_0.composite_05_99"), table("flux_00_0.atom_05_99")];
        let all = OldRows { rows: 18_000, bytes: 2_000_000, tables, ..OldRows::default() }.costed(2_000);
        assert_eq!((all.old_rows, all.statements, all.seconds), (5_000, 5, 3));
        let lines = all.lines();
        assert_eq!(lines[0], "no month    some 18000 rows in 2.0 MB, 5000 of them old: 5 DELETEs, 3 s");
        let first = "old rows    flux_00_0.composite_05_99 of main-a: some 2500 of 9000, from 2014-01 on";
        assert_eq!((lines[2].as_str(), lines.len()), (first, 4));
        assert_eq!(OldRows::default().costed(1).lines(), Vec::<String>::new());
    }
}
