//! Stores from year to year: rows, bytes, how full the tables are, and databases by their disks.

use crate::capacity::sheet::Store;
use crate::capacity::term::Amount;

/// Years that a plan looks ahead, at most.
pub const YEARS_MAX: u32 = 100;

/// A store at the end of a year.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Year {
    /// Number of the year; 1 is the first one.
    pub year: u32,
    pub rows: f64,
    pub bytes: f64,
    /// Share of 1 of the rows that its tables hold; above 1 the rows exceed the tables.
    pub filled: Amount,
    pub databases: f64,
}

/// Returns the store at the end of each of so many years.
pub fn grow(store: &Store, years: u32) -> Vec<Year> {
    let added: Vec<f64> = (0..years.min(YEARS_MAX))
        .map(|year| store.rows_per_year * (1.0 + store.growth).powi(year as i32))
        .collect();
    (1..=added.len())
        .map(|year| {
            let rows = match store.kept_years {
                None => store.rows_now + added[..year].iter().sum::<f64>(),
                Some(kept) => last(&added[..year], kept),
            };
            let bytes = rows * store.row_bytes;
            Year {
                year: year as u32,
                rows,
                bytes,
                filled: Amount { low: rows / store.rows_max.high, high: rows / store.rows_max.low },
                databases: (bytes / store.database_bytes).ceil(),
            }
        })
        .collect()
}

/// Returns the rows of the last `kept` years; the first of these counts in part.
fn last(added: &[f64], mut kept: f64) -> f64 {
    let mut rows = 0.0;
    for added in added.iter().rev() {
        let share = kept.clamp(0.0, 1.0);
        rows += added * share;
        kept -= share;
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: Store = Store {
        name: "rows",
        rows_now: 100.0,
        rows_per_year: 50.0,
        rows_max: Amount { low: 200.0, high: 400.0 },
        row_bytes: 10.0,
        database_bytes: 1000.0,
        kept_years: None,
        growth: 0.1,
    };

    #[test]
    fn a_store_grows_year_by_year() {
        let years = grow(&STORE, 2);
        assert_eq!((years[0].rows, years[0].bytes, years[0].databases), (150.0, 1500.0, 2.0));
        assert_eq!(years[0].filled, Amount { low: 0.375, high: 0.75 });
        assert_eq!((years[1].year, years[1].rows.round()), (2, 205.0));
        assert_eq!(grow(&STORE, 1_000_000).len(), YEARS_MAX as usize);
    }

    #[test]
    fn rows_that_leave_after_sixteen_months_count_no_longer() {
        let store = Store { kept_years: Some(4.0 / 3.0), growth: 0.0, ..STORE };
        let rows: Vec<f64> = grow(&store, 3).iter().map(|year| year.rows.round()).collect();
        assert_eq!(rows, [50.0, 67.0, 67.0]);
    }
}
