//! The columns `is_sent`, `send_time` and `sent_occurrence` of a birthday table, which follow the ledger's decisions.

use jiff::Timestamp;

/// The three columns of a row, as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentColumns {
    pub is_sent: bool,
    pub has_time: bool,
    pub occurrence: Option<i16>,
}

/// The newest coupon that a user was given by a calendar, whatever its programme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastCoupon {
    /// The year of the coupon's occurrence.
    pub year: i16,
    pub settled_at: Timestamp,
}

/// The difference between a row's columns and the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnsDrift {
    /// The user has a coupon, and the columns name none.
    Missing,
    /// The columns name another occurrence, or contradict one another.
    Stale,
    /// The columns name a coupon that the ledger does not have.
    Orphan,
}

/// Compares a row with the ledger. A row counts as sent by its occurrence alone: a row that another program marked
/// without one, before there was a ledger, stays as it is.
pub fn drift(columns: SentColumns, last: Option<LastCoupon>) -> Option<ColumnsDrift> {
    match (last, columns.occurrence) {
        (None, None) => None,
        (None, Some(_)) => Some(ColumnsDrift::Orphan),
        (Some(_), None) => Some(ColumnsDrift::Missing),
        (Some(last), Some(year)) => {
            let is_right = year == last.year && columns.is_sent && columns.has_time;
            (!is_right).then_some(ColumnsDrift::Stale)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_follow_the_newest_coupon_and_what_has_no_occurrence_stays() {
        let last = Some(LastCoupon { year: 2027, settled_at: Timestamp::UNIX_EPOCH });
        let row = |is_sent, has_time, occurrence| SentColumns { is_sent, has_time, occurrence };
        for (columns, last, expected) in [
            (row(true, true, Some(2027)), last, None),
            (row(false, false, None), None, None),
            (row(true, true, None), None, None),
            (row(true, true, None), last, Some(ColumnsDrift::Missing)),
            (row(true, true, Some(2026)), last, Some(ColumnsDrift::Stale)),
            (row(true, true, Some(2028)), last, Some(ColumnsDrift::Stale)),
            (row(false, true, Some(2027)), last, Some(ColumnsDrift::Stale)),
            (row(true, false, Some(2027)), last, Some(ColumnsDrift::Stale)),
            (row(true, true, Some(2027)), None, Some(ColumnsDrift::Orphan)),
        ] {
            assert_eq!(drift(columns, last), expected, "{columns:?} beside {last:?}");
        }
    }
}
