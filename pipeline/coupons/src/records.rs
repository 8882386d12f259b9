//! The nouns of the coupon day: runs, members, messages, and the rows of the ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anabranch_schemas::celebration::{Birthday, Calendar, Occurrence, celebrated};
use anabranch_schemas::shard::ShardId;
use jiff::Timestamp;
use jiff::civil::Date;

use crate::programme::{Programme, ProgrammeVersion};

/// A number that is never used twice, in no ledger and after no restore: 128 random bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unique(pub u128);

/// One day of one programme.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunKey {
    pub programme: Arc<str>,
    /// The day that is celebrated, whenever the run works.
    pub day: Date,
}

/// A user who celebrates a day by one calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    pub user: u64,
    pub calendar: Calendar,
}

/// A member to whom a run may owe a coupon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub run: RunKey,
    pub member: Member,
    /// The waves that the run had frozen when the candidate was published.
    pub wave: u8,
}

/// A message of the work queue: a hint that some members may lack a coupon. It proves nothing.
///
/// The dispatcher puts at most [`MEMBERS_MAX`] members of one [`part`] into a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub run: RunKey,
    pub members: Vec<Member>,
    /// The waves that the run had frozen when the message was published.
    pub wave: u8,
}

/// Members of a message, and keys of a call, at most.
pub const MEMBERS_MAX: usize = 100;
/// Number of parts: tables of the ledger and partitions of the work queue.
pub const PARTS: u64 = 16;

/// Returns the part of a user. A message and its transactions thus concern one table of the ledger.
pub fn part(user: u64) -> u64 {
    user % PARTS
}

/// Waves of a run: midnight, noon, and the catch-up after the next reconciliation.
pub const WAVES: u8 = 3;
/// Numbers of sweeps that a run keeps, at most.
pub const SWEEPS_MAX: usize = 16;
/// The wave of a refusal that no later wave judges again, and of messages that a person sends.
pub const LAST_WORD: u8 = u8::MAX;

/// The identity of a coupon, and the idempotency key of every call for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CouponKey {
    pub user: u64,
    pub programme: Arc<str>,
    pub occurrence: Occurrence,
}

impl Candidate {
    /// Returns the key of the coupon; `None` for a day outside of the calendar.
    pub fn key(&self) -> Option<CouponKey> {
        let occurrence = Occurrence::of(self.member.calendar, self.run.day)?;
        Some(CouponKey { user: self.member.user, programme: self.run.programme.clone(), occurrence })
    }
}

impl Message {
    /// Makes a message of one member, as a person sends it.
    pub fn of(candidate: Candidate) -> Self {
        let Candidate { run, member, wave } = candidate;
        Self { run, members: vec![member], wave }
    }

    pub fn candidates(&self) -> impl Iterator<Item = Candidate> {
        self.members.iter().map(|member| Candidate {
            run: self.run.clone(),
            member: *member,
            wave: self.wave,
        })
    }
}

/// The reason why a user gets no coupon on a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The source row has another birthday or another calendar.
    NotTheirBirthday,
    /// No source table has a row of the user, for longer than a rename takes.
    SourceRowGone,
    /// The birthday was changed within the cool-off.
    ChangedLately,
    /// The birthday is one of the placeholder dates.
    PlaceholderDate,
    /// Another coupon of the programme lies less than the minimum gap away.
    WithinGap,
    /// Another day of the same occurrence took the row over.
    OtherDay,
    /// A person ended the dead letter.
    Dropped,
    /// A source table of the user could not be read by the latest hour. This closes nothing: each later pass reads
    /// again.
    SourceUnreadable,
}

impl Reason {
    pub const ALL: [Self; 8] = [
        Self::NotTheirBirthday,
        Self::SourceRowGone,
        Self::ChangedLately,
        Self::PlaceholderDate,
        Self::WithinGap,
        Self::OtherDay,
        Self::Dropped,
        Self::SourceUnreadable,
    ];

    /// Returns the `reason` of reports and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotTheirBirthday => "not_their_birthday",
            Self::SourceRowGone => "source_row_gone",
            Self::ChangedLately => "changed_lately",
            Self::PlaceholderDate => "placeholder_date",
            Self::WithinGap => "within_gap",
            Self::OtherDay => "other_day",
            Self::Dropped => "dropped",
            Self::SourceUnreadable => "source_unreadable",
        }
    }
}

/// The outcome of the last call for a row that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailedOutcome {
    /// The coupon system did nothing for this key.
    NothingGiven,
    /// The coupon system may have given the coupon; the time is that of the first call.
    Unknown { first_called_at: Timestamp },
}

/// The state of a ledger row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowState {
    /// An attempt holds the row and has not called.
    Reserved,
    /// An attempt may have called; the outcome is unknown until the coupon system reports it.
    Issued { first_called_at: Timestamp },
    /// The coupon was given.
    Settled,
    /// This day gives no coupon; a later reservation of the same occurrence replaces the row.
    Refused(Reason),
    /// A dead letter: a person decides.
    Failed(FailedOutcome),
}

/// A row of the ledger, by user, programme and occurrence. No code deletes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerRow {
    pub state: RowState,
    pub day: Date,
    pub calendar: Calendar,
    /// The granter that works on the row; only that one changes it.
    pub attempt: Unique,
    pub changed_at: Timestamp,
    /// Calls that the coupon system answered about this user without giving the coupon.
    pub tries: u32,
    /// The coupon as it was reserved; a retry sends the same one.
    pub coupon: Arc<str>,
    /// The version of the programme that reserved the row; `None` for a row that was reserved before rows had one.
    pub version: Option<ProgrammeVersion>,
    /// Whether a person sent the row again.
    pub by_hand: bool,
    /// Time since when no source table has a row of the user.
    pub absent_since: Option<Timestamp>,
}

impl LedgerRow {
    /// Returns whether an attempt holds the row.
    pub fn is_held(&self) -> bool {
        matches!(self.state, RowState::Reserved | RowState::Issued { .. })
    }

    /// Returns whether the user's source rows could not be read by the latest hour.
    pub fn is_unread(&self) -> bool {
        self.state == RowState::Refused(Reason::SourceUnreadable)
    }

    /// Returns whether a person sent the row again, and no granter has decided about it since.
    pub fn is_sent_again(&self) -> bool {
        self.by_hand && (self.is_held() || self.state == RowState::Refused(Reason::OtherDay))
    }

    /// Returns whether the row is listed among the dead letters: it waits for a person, or was sent again by one.
    pub fn is_letter(&self) -> bool {
        matches!(self.state, RowState::Failed(_)) || self.is_sent_again()
    }

    /// Returns whether the attempt may still call.
    pub fn is_young(&self, now: Timestamp) -> bool {
        now < self.changed_at + ATTEMPT_TIMEOUT
    }
}

/// An expected row and the row that replaces it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowChange {
    pub user: u64,
    pub occurrence: Occurrence,
    pub before: LedgerRow,
    pub after: LedgerRow,
}

impl RowChange {
    /// Returns whether another change differs in the user only.
    pub fn is_alike(&self, other: &Self) -> bool {
        self.occurrence == other.occurrence && self.before == other.before && self.after == other.after
    }
}

/// Time without a change after which another granter takes an attempt over. Connections to the coupon system live
/// shorter.
pub const ATTEMPT_TIMEOUT: jiff::SignedDuration = jiff::SignedDuration::from_mins(30);

/// A refusal, which closes a day and not an occurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedDay {
    /// The wave that the refusal closes; a later wave judges again.
    pub wave: u8,
    pub reason: Reason,
}

/// The last two tokens of a ledger. If the register outside of its server has neither, a person restored the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerTokens {
    pub latest: Unique,
    pub before: Option<Unique>,
}

/// The knowledge of the ledger about one user in one programme.
#[derive(Debug, Clone)]
pub struct UserLedger {
    /// The clock of the ledger's server.
    pub now: Timestamp,
    /// The run of the day that the transaction is about.
    pub run: Option<Arc<DayRun>>,
    /// The shard tables that the frozen cohort names, by calendar of the membership.
    pub claims: BTreeMap<Calendar, Vec<ShardId>>,
    pub rows: BTreeMap<Occurrence, LedgerRow>,
    pub refusals: BTreeMap<(Date, Calendar), RefusedDay>,
}

/// The knowledge of the ledger about some users: one transaction reads and changes it.
#[derive(Debug, Clone)]
pub struct UsersLedger {
    pub tokens: LedgerTokens,
    /// Each user that the transaction was asked for.
    pub users: BTreeMap<u64, UserLedger>,
}

/// The point where a freeze resumes: the table by its index among the day's, and the last user of it that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cursor {
    pub table: usize,
    pub after: Option<u64>,
}

/// A reconciliation that a day relies on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DayReconciliation {
    pub id: Arc<str>,
    pub ended_at: Timestamp,
}

/// A day of a programme, as the ledger keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DayRun {
    /// The rules of the programme when the day began.
    pub rules: Programme,
    /// The version of these rules, which each row that the run reserves gets.
    pub version: Option<ProgrammeVersion>,
    /// The revision of the present freeze; each new freezer changes it, and older freezers are refused.
    pub revision: Unique,
    /// The numbers of the last sweeps, at most [`SWEEPS_MAX`], the newest last. A sweep whose number is missing closes
    /// no run: the ledger was restored, or too many sweeps have begun since.
    pub sweeps: Vec<Unique>,
    /// Waves that were frozen completely.
    pub frozen: u8,
    pub cursor: Cursor,
    pub count: u64,
    /// Sum of a hash of each member, modulo 2^128.
    pub sum: u128,
    /// Rows of the day's tables whose birthday differs from that of their table.
    pub misplaced: u64,
    /// Whether each wave so far waited for all lanes.
    pub is_after_barrier: bool,
    pub is_closed: bool,
    /// The reconciliation that midnight relied on; `None` before midnight is frozen, and for a day without one.
    pub reconciliation: Option<DayReconciliation>,
}

impl DayRun {
    /// Adds the number of a sweep that begins, and forgets the oldest one if there are too many.
    pub(crate) fn add_sweep(&mut self, number: Unique) {
        let excess = (self.sweeps.len() + 1).saturating_sub(SWEEPS_MAX);
        self.sweeps.drain(..excess);
        self.sweeps.push(number);
    }

    /// Returns the birthdays of a day by this run's rules.
    pub fn birthdays(&self, day: Date) -> Vec<Birthday> {
        celebrated(day, &self.rules.calendars, self.rules.leap_day).into_iter().map(|c| c.birthday).collect()
    }
}

/// The knowledge of the ledger about a run and the members that are offered to it: one transaction.
#[derive(Debug, Clone)]
pub struct RunLedger {
    pub now: Timestamp,
    pub run: Option<DayRun>,
    pub tokens: LedgerTokens,
    /// The offered members that the cohort has already.
    pub present: BTreeSet<Member>,
    /// Members that the transaction adds; those that the cohort has get the union of their shard tables.
    pub added: Vec<(Member, Vec<ShardId>)>,
}

/// The knowledge of the ledger about a programme: one transaction.
#[derive(Debug, Clone)]
pub struct ProgrammeLedger {
    pub now: Timestamp,
    /// The first day that has no run; `None` for a programme that never ran.
    pub next: Option<Date>,
    /// The rule for 29 February of each year, as its first run set it.
    pub leap_days: BTreeMap<i16, anabranch_schemas::celebration::LeapDayRule>,
    /// Days with a run that is not closed, in order.
    pub open: Vec<Date>,
    /// Runs that the transaction begins. An existing run stays as it is.
    pub begun: Vec<(Date, DayRun)>,
}

/// A member of the cohort, or a user with a row of the day, as the ledger has it.
#[derive(Debug, Clone)]
pub struct MemberState {
    pub member: Member,
    pub is_member: bool,
    /// The shard tables that the frozen cohort names.
    pub shards: Vec<ShardId>,
    /// The row of the occurrence, whichever day it is for.
    pub row: Option<LedgerRow>,
    pub refused: Option<RefusedDay>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_listed_once() {
        // A new reason does not compile here before it has its position.
        let place = |reason| match reason {
            Reason::NotTheirBirthday => 0,
            Reason::SourceRowGone => 1,
            Reason::ChangedLately => 2,
            Reason::PlaceholderDate => 3,
            Reason::WithinGap => 4,
            Reason::OtherDay => 5,
            Reason::Dropped => 6,
            Reason::SourceUnreadable => 7,
        };
        let places: Vec<usize> = Reason::ALL.into_iter().map(place).collect();
        assert_eq!(places, (0..=7).collect::<Vec<_>>());
    }
}
