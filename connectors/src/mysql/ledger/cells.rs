//! Converts rows of the ledger's tables to values of the core, and values to SQL literals.
//!
//! Answers are text. A function returns `None` for a row that no granter and no dispatcher writes.

use std::sync::Arc;

use anabranch_coupons::programme::ProgrammeVersion;
use anabranch_coupons::records::{
    DayReconciliation, FailedOutcome, LedgerRow, Member, Reason, RowState, RunKey, Unique,
};
use anabranch_schemas::celebration::{Calendar, Occurrence};
use anabranch_schemas::shard::ShardId;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

pub(super) use crate::mysql::answer::Cells;
use crate::mysql::connection::push_bytes;

impl Cells {
    pub(super) fn flag(&mut self) -> Option<bool> {
        self.parsed::<u8>().map(|number| number != 0)
    }

    pub(super) fn moment(&mut self) -> Option<Timestamp> {
        self.optional_moment()?
    }

    pub(super) fn optional_moment(&mut self) -> Option<Option<Timestamp>> {
        let moment: Option<DateTime> = self.optional()?;
        let zoned: Option<Zoned> = moment.map(|moment| moment.to_zoned(TimeZone::UTC)).transpose().ok()?;
        Some(zoned.map(|zoned| zoned.timestamp()))
    }

    pub(super) fn number(&mut self) -> Option<u128> {
        self.optional_number()?
    }

    pub(super) fn optional_number(&mut self) -> Option<Option<u128>> {
        match self.bytes()? {
            None => Some(None),
            Some(bytes) => Some(Some(u128::from_be_bytes(bytes.try_into().ok()?))),
        }
    }

    /// Reads the numbers of the last sweeps. The column of the newest one comes before that of the earlier ones, which
    /// is NULL in a run from before that column was there.
    pub(super) fn sweeps(&mut self) -> Option<Vec<Unique>> {
        let newest = self.number()?;
        let earlier = self.bytes()?.unwrap_or_default();
        let (numbers, rest) = earlier.as_chunks::<16>();
        let earlier = numbers.iter().map(|number| Unique(u128::from_be_bytes(*number)));
        rest.is_empty().then(|| earlier.chain([Unique(newest)]).collect())
    }

    pub(super) fn calendar(&mut self) -> Option<Calendar> {
        match self.parsed::<u8>()? {
            0 => Some(Calendar::Solar),
            1 => Some(Calendar::Lunar),
            _ => None,
        }
    }

    pub(super) fn shards(&mut self) -> Option<Vec<ShardId>> {
        let bytes = self.bytes()??;
        let (numbers, rest) = bytes.as_chunks::<8>();
        let shards = numbers.iter().map(|number| ShardId::from_u64(u64::from_be_bytes(*number)));
        if rest.is_empty() { shards.collect() } else { None }
    }

    /// Reads the reconciliation that a day relies on.
    pub(super) fn reconciliation(&mut self) -> Option<Option<DayReconciliation>> {
        let (id, ended_at) = (self.optional::<String>()?, self.optional_moment()?);
        Some(id.zip(ended_at).map(|(id, ended_at)| DayReconciliation { id: Arc::from(id), ended_at }))
    }

    pub(super) fn reason(&mut self) -> Option<Reason> {
        reason(&self.text()?)
    }

    /// Reads the columns of [`LEDGER_COLUMNS`].
    pub(super) fn ledger_row(&mut self) -> Option<(u64, Occurrence, LedgerRow)> {
        let (user, occurrence): (_, Occurrence) = (self.parsed()?, self.parsed()?);
        let (day, state, refused) = (self.parsed()?, self.text()?, self.optional::<String>()?);
        let first_called_at = self.optional_moment()?;
        let state = match (state.as_str(), refused, first_called_at) {
            ("reserved", None, None) => RowState::Reserved,
            ("issued", None, Some(first_called_at)) => RowState::Issued { first_called_at },
            ("settled", None, None) => RowState::Settled,
            ("refused", Some(refused), None) => RowState::Refused(reason(&refused)?),
            ("failed", None, None) => RowState::Failed(FailedOutcome::NothingGiven),
            ("failed", None, Some(first_called_at)) => {
                RowState::Failed(FailedOutcome::Unknown { first_called_at })
            }
            _ => return None,
        };
        let row = LedgerRow {
            state,
            day,
            calendar: occurrence.calendar,
            attempt: Unique(self.number()?),
            changed_at: self.moment()?,
            tries: self.parsed()?,
            coupon: Arc::from(self.text()?),
            by_hand: self.flag()?,
            absent_since: self.optional_moment()?,
            version: self.optional()?,
        };
        Some((user, occurrence, row))
    }
}

/// Columns of a ledger row, in the order of reads and writes.
pub(super) const LEDGER_COLUMNS: [&str; 13] = [
    "user_id",
    "occurrence",
    "day",
    "state",
    "reason",
    "first_called_at",
    "attempt",
    "changed_at",
    "tries",
    "coupon",
    "by_hand",
    "absent_since",
    "version",
];

/// Returns `,…`: the values of a ledger row in the order of [`LEDGER_COLUMNS`] without the user, then the programme.
pub(super) fn ledger_values(occurrence: Occurrence, row: &LedgerRow, programme: &str) -> String {
    let StateCells { state, reason, first_called_at } = StateCells::of(row.state);
    let mut sql = format!(",'{occurrence}','{}','{state}',", row.day);
    sql.push_str(&format!("{},{},", reason_literal(reason), optional_moment_literal(first_called_at)));
    push_bytes(&mut sql, &row.attempt.0.to_be_bytes());
    sql.push_str(&format!(",{},{},_utf8mb4 ", moment_literal(row.changed_at), row.tries));
    push_bytes(&mut sql, row.coupon.as_bytes());
    let absent_since = optional_moment_literal(row.absent_since);
    let version = version_literal(row.version);
    sql.push_str(&format!(",{},{absent_since},{version},{programme}", u8::from(row.by_hand)));
    sql
}

/// Returns the assignments that change a row of the ledger from `before` to `after`; empty if nothing differs.
pub(super) fn assignments(before: &LedgerRow, after: &LedgerRow) -> String {
    let mut set = String::new();
    let mut assign = |column: &str, value: &str| {
        set.push_str(if set.is_empty() { "`" } else { ", `" });
        set.push_str(column);
        set.push_str("` = ");
        set.push_str(value);
    };
    if before.day != after.day {
        assign("day", &date_literal(after.day));
    }
    if before.state != after.state {
        let StateCells { state, reason, first_called_at } = StateCells::of(after.state);
        assign("state", &format!("'{state}'"));
        assign("reason", &reason_literal(reason));
        assign("first_called_at", &optional_moment_literal(first_called_at));
    }
    if before.attempt != after.attempt {
        assign("attempt", &number_literal(after.attempt.0));
    }
    if before.changed_at != after.changed_at {
        assign("changed_at", &moment_literal(after.changed_at));
    }
    if before.tries != after.tries {
        assign("tries", &after.tries.to_string());
    }
    if before.coupon != after.coupon {
        let mut coupon = String::from("_utf8mb4 ");
        push_bytes(&mut coupon, after.coupon.as_bytes());
        assign("coupon", &coupon);
    }
    if before.by_hand != after.by_hand {
        assign("by_hand", if after.by_hand { "1" } else { "0" });
    }
    if before.absent_since != after.absent_since {
        assign("absent_since", &optional_moment_literal(after.absent_since));
    }
    if before.version != after.version {
        assign("version", &version_literal(after.version));
    }
    set
}

/// Returns the condition that a row is unchanged. It leaves out columns that change only together with the attempt or
/// the time.
pub(super) fn conditions(row: &LedgerRow) -> String {
    let StateCells { state, reason, first_called_at } = StateCells::of(row.state);
    format!(
        "`attempt` = {} AND `state` = '{state}' AND `reason` <=> {} AND `first_called_at` <=> {} AND `changed_at` = {} \
         AND `tries` = {} AND `day` = {}",
        number_literal(row.attempt.0),
        reason_literal(reason),
        optional_moment_literal(first_called_at),
        moment_literal(row.changed_at),
        row.tries,
        date_literal(row.day)
    )
}

/// Values of the columns that hold a state.
struct StateCells {
    state: &'static str,
    reason: Option<Reason>,
    first_called_at: Option<Timestamp>,
}

impl StateCells {
    fn of(state: RowState) -> Self {
        let (state, reason, first_called_at) = match state {
            RowState::Reserved => ("reserved", None, None),
            RowState::Issued { first_called_at } => ("issued", None, Some(first_called_at)),
            RowState::Settled => ("settled", None, None),
            RowState::Refused(reason) => ("refused", Some(reason), None),
            RowState::Failed(FailedOutcome::NothingGiven) => ("failed", None, None),
            RowState::Failed(FailedOutcome::Unknown { first_called_at }) => {
                ("failed", None, Some(first_called_at))
            }
        };
        Self { state, reason, first_called_at }
    }
}

fn reason_literal(reason: Option<Reason>) -> String {
    reason.map_or("NULL".to_owned(), |reason| format!("'{}'", reason.as_str()))
}

fn version_literal(version: Option<ProgrammeVersion>) -> String {
    version.map_or("NULL".to_owned(), |version| format!("'{version}'"))
}

pub(super) fn optional_moment_literal(moment: Option<Timestamp>) -> String {
    moment.map_or("NULL".to_owned(), moment_literal)
}

/// Returns a moment in UTC, to the microsecond as the server has it.
pub(super) fn moment_literal(moment: Timestamp) -> String {
    moment.strftime("'%Y-%m-%d %H:%M:%S%.6f'").to_string()
}

pub(super) fn date_literal(date: Date) -> String {
    format!("'{date}'")
}

pub(super) fn number_literal(number: u128) -> String {
    let mut sql = String::new();
    push_bytes(&mut sql, &number.to_be_bytes());
    sql
}

pub(super) fn programme_literal(run: &RunKey) -> String {
    name_literal(&run.programme)
}

/// Returns a name as the server's ASCII columns hold it.
pub(super) fn name_literal(name: &str) -> String {
    let mut sql = String::from("_ascii ");
    push_bytes(&mut sql, name.as_bytes());
    sql
}

pub(super) fn calendar_number(calendar: Calendar) -> u8 {
    match calendar {
        Calendar::Solar => 0,
        Calendar::Lunar => 1,
    }
}

/// Returns the condition for the rows of a run, in a statement that also names some of their users.
///
/// With `=` MariaDB 10.11 sometimes prefers access by the two columns alone, and reads the run's whole cohort to find a
/// hundred users. A `BETWEEN` leaves it only the range of all three columns.
pub(super) fn of_run_and_users(run: &RunKey) -> String {
    let (programme, day) = (programme_literal(run), date_literal(run.day));
    format!("`programme` BETWEEN {programme} AND {programme} AND `day` BETWEEN {day} AND {day}")
}

/// Returns the condition for members after `after`, in the order of members.
pub(super) fn members_after(after: Option<Member>) -> String {
    after.map_or(String::new(), |Member { user, calendar }| {
        let calendar = calendar_number(calendar);
        format!(" AND `user_id` >= {user} AND (`user_id` > {user} OR `calendar` > {calendar})")
    })
}

fn reason(text: &str) -> Option<Reason> {
    Reason::ALL.into_iter().find(|reason| reason.as_str() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_written_to_the_microsecond() {
        let moment: Timestamp = "2027-05-04T00:00:00.25Z".parse().unwrap();
        assert_eq!(moment_literal(moment), "'2027-05-04 00:00:00.250000'");
    }
}
