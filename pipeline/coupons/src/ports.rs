//! The ports of the coupon day. Each method states the contract that its types cannot express.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anabranch_pipeline::error::Fault;
use anabranch_schemas::birthday::MonthDay;
use anabranch_schemas::celebration::{Birthday, Calendar, Occurrence};
use anabranch_schemas::lunar::LunarMonthDay;
use anabranch_schemas::shard::ShardId;
use jiff::Timestamp;
use jiff::civil::Date;

use crate::records::{
    CouponKey, DayRun, LedgerRow, LedgerTokens, Member, MemberState, Message, ProgrammeLedger, RowChange,
    RunKey, RunLedger, Unique, UsersLedger,
};
use crate::report::Report;
use crate::turns::PageTurn;

/// The permanent rows that decide who gets a coupon.
///
/// Each method is one transaction on one server. `decide` may run more than once, so it changes nothing but its
/// argument. A fault does not say whether the transaction was committed.
pub trait Ledger: Send + Sync {
    /// Reads and changes all rows of some users in a programme; other transactions of the same users wait.
    ///
    /// Users may come in any order and twice. Each of them is in the ledger that `decide` is given. Two transactions
    /// that issue are one after the other: the second one's `decide` runs with the first one's token.
    fn with_users<T: Send>(
        &self,
        run: &RunKey,
        users: &[u64],
        decide: impl Fn(&mut UsersLedger) -> T + Send + Sync,
    ) -> impl Future<Output = Result<T, Fault>> + Send;

    /// Reads the same as [`Ledger::with_users`], but without a lock: other transactions may change it meanwhile.
    fn read_users(
        &self,
        run: &RunKey,
        users: &[u64],
    ) -> impl Future<Output = Result<UsersLedger, Fault>> + Send;

    /// Works as [`Ledger::with_users`] does, but reads only rows, tokens and the run as last committed: there is no
    /// claim. Refusals that `decide` adds replace stored ones.
    fn with_rows<T: Send>(
        &self,
        run: &RunKey,
        users: &[u64],
        decide: impl Fn(&mut UsersLedger) -> T + Send + Sync,
    ) -> impl Future<Output = Result<T, Fault>> + Send;

    /// Changes rows of a programme if each of them is stored as expected; otherwise changes nothing and returns
    /// `false`.
    fn replace_rows(
        &self,
        run: &RunKey,
        rows: &[RowChange],
    ) -> impl Future<Output = Result<bool, Fault>> + Send;

    /// Reads and changes a run, and adds members to its cohort.
    fn with_run<T: Send>(
        &self,
        run: &RunKey,
        offered: &[(Member, Vec<ShardId>)],
        decide: impl Fn(&mut RunLedger) -> T + Send + Sync,
    ) -> impl Future<Output = Result<T, Fault>> + Send;

    /// Adds members to a run's cohort and changes the run, in a transaction that works beside others until its turn.
    ///
    /// The run is locked and read when the turn has come, and then `decide` runs. It adds all offered members or none,
    /// and none without a change of the run. `None`: its turn never comes, and nothing is changed.
    fn add_in_turn<T: Send>(
        &self,
        run: &RunKey,
        offered: &[(Member, Vec<ShardId>)],
        turn: &PageTurn,
        decide: impl Fn(&mut RunLedger) -> T + Send + Sync,
    ) -> impl Future<Output = Result<Option<T>, Fault>> + Send;

    /// Reads a programme and begins runs.
    fn with_programme<T: Send>(
        &self,
        programme: &Arc<str>,
        decide: impl Fn(&mut ProgrammeLedger) -> T + Send + Sync,
    ) -> impl Future<Output = Result<T, Fault>> + Send;

    /// Returns a page of the cohort and of users with a row of the day, in the order of members, and the server's
    /// clock.
    fn member_states(
        &self,
        run: &RunKey,
        after: Option<Member>,
        limit: usize,
    ) -> impl Future<Output = Result<(Timestamp, Vec<MemberState>), Fault>> + Send;

    /// Returns a page of the dead letters of a programme ([`LedgerRow::is_letter`]), in the order of their keys.
    fn dead_letters(
        &self,
        programme: &Arc<str>,
        after: Option<&CouponKey>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<(CouponKey, LedgerRow)>, Fault>> + Send;

    fn tokens(&self) -> impl Future<Output = Result<LedgerTokens, Fault>> + Send;

    /// Returns the time of the last issue by the server's clock; `None` for a ledger that does not know it.
    fn issued_at(&self) -> impl Future<Output = Result<Option<Timestamp>, Fault>> + Send;

    /// Begins a new chain of tokens, which is no issue; returns `false` when the last token is not the expected one.
    fn begin_tokens(
        &self,
        expected: Unique,
        token: Unique,
    ) -> impl Future<Output = Result<bool, Fault>> + Send;
}

/// The latest token of the ledger, kept outside of its server: a register of the log.
pub trait Register: Send + Sync {
    fn read(&self) -> impl Future<Output = Result<Unique, Fault>> + Send;

    /// Replaces the token; returns `false` when it is not the expected one.
    fn swap(&self, expected: Unique, token: Unique) -> impl Future<Output = Result<bool, Fault>> + Send;
}

/// Messages to granters. The queue may lose, double, delay and repeat them.
pub trait WorkQueue: Send + Sync {
    /// Returns when the queue holds all messages. A full queue refuses with `log-full`, and may then hold some of them.
    /// The members of a message are of one [`crate::records::part`].
    fn publish(&self, messages: &[Message]) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// The birthday of a user in one source row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceRow {
    /// The date of birth, where the column has a year.
    pub born: Option<Date>,
    pub solar: Option<MonthDay>,
    pub lunar: Option<LunarMonthDay>,
    /// The calendar that the user celebrates by.
    pub calendar: Calendar,
    /// Time of the birthday's last change, where the source has it; its first setting is no change.
    pub changed_at: Option<Timestamp>,
}

/// Rows of the source tables, on their primaries.
pub trait SourceRows: Send + Sync {
    /// Returns for each user, in order, the rows in every shard table that a claim of the user or the given shards
    /// name.
    ///
    /// `None` where one of these tables could not be read; rows of the other users are returned all the same.
    fn read_rows(
        &self,
        users: &[(u64, Vec<ShardId>)],
    ) -> impl Future<Output = Result<Vec<Option<Vec<SourceRow>>>, Fault>> + Send;
}

/// A row of a birthday table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CohortRow {
    pub user: u64,
    pub shard: ShardId,
    /// The `birthday` column, which must equal the birthday of the table.
    pub birthday: Birthday,
    /// The calendar that the user celebrates by.
    pub calendar: Calendar,
}

/// The birthday tables of a day.
pub trait CohortRows: Send + Sync {
    /// Waits until every lane has passed everything that its source committed before the call; `false` after a set
    /// time.
    fn barrier(&self) -> impl Future<Output = Result<bool, Fault>> + Send;

    /// Returns the rows of the next `limit` users of a table, in the order of users; no user's rows are on two pages. A
    /// row's birthday may be some minutes old: the source row decides later.
    fn page(
        &self,
        table: Birthday,
        after: Option<u64>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<CohortRow>, Fault>> + Send;

    /// Makes `is_sent`, `send_time` and `sent_occurrence` follow the ledger: in the users' rows of those tables that
    /// have the calendar of their occurrence. The coupon day itself does not read these columns.
    fn follow(
        &self,
        tables: &[Birthday],
        granted: &[(u64, Occurrence)],
    ) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Returns the last good reconciliation of all birthday tables.
    fn reconciled(&self) -> impl Future<Output = Result<Option<Reconciled>, Fault>> + Send;

    /// Leaves the servers to lanes of birthday tables that lag: waits then, after work that took this long.
    fn make_way(&self, worked: Duration) -> impl Future<Output = ()> + Send;
}

/// The parts of a reconciliation that a day relies on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reconciled {
    pub id: Arc<str>,
    pub ended_at: Timestamp,
    /// Source tables without a verdict.
    pub unproven: BTreeSet<ShardId>,
}

/// The answer of the coupon system to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The coupon is given, by this call or by an earlier one of the same key.
    Given,
    /// The system did nothing, and will do nothing for this user.
    Rejected,
    /// The key was used with another coupon.
    Mismatch,
    /// The system did nothing and asks for a pause.
    Busy,
    /// The system did nothing, because no coupon is left.
    PoolEmpty,
    /// The system answered a call about this user alone, with an error that leaves the outcome open.
    Error,
    /// There was no answer about this user, so the outcome is open.
    Unknown,
    /// The connection was closed or had grown old, so the caller sent nothing.
    ConnectionExpired,
}

impl Answer {
    /// Returns whether nothing was done and the answer says nothing about the user, so that another call may follow
    /// after the pause.
    pub fn has_done_nothing_yet(self) -> bool {
        matches!(self, Self::Busy | Self::PoolEmpty | Self::ConnectionExpired)
    }
}

/// A coupon that was given, as the coupon system's statement names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gift {
    pub key: CouponKey,
    pub coupon: Arc<str>,
    pub given_at: Timestamp,
}

/// A page of the coupon system's statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GiftPage {
    pub gifts: Vec<Gift>,
    /// The position of the next page; `None` on the last one.
    pub next: Option<u64>,
}

/// The system that gives out coupons. It remembers keys for a set time.
pub trait CouponSystem: Send + Sync {
    /// A connection; the other side closes it before [`crate::records::ATTEMPT_TIMEOUT`] is over.
    type Connection: Send + Sync;

    fn connect(&self) -> impl Future<Output = Result<Self::Connection, Fault>> + Send;

    /// Asks for each coupon once, and over no connection but the given one.
    ///
    /// There are at most [`crate::records::MEMBERS_MAX`] keys, and one answer for each, in their order. When the
    /// outcome of the call is not known, the answer is [`Answer::Unknown`] for each key that was sent.
    fn call(
        &self,
        connection: &Self::Connection,
        coupons: &[(CouponKey, Arc<str>)],
    ) -> impl Future<Output = Result<Vec<Answer>, Fault>> + Send;

    /// Returns the rest of the pause that the system asked for last; `None` if it named no time.
    fn pause(&self) -> Option<Duration>;

    /// Returns for each key, in order, whether the system knows it, so that the coupon was given.
    fn knows(&self, keys: &[CouponKey]) -> impl Future<Output = Result<Vec<bool>, Fault>> + Send;

    /// Returns a page of the coupons that were given since a time, in the order of giving, also those of forgotten
    /// keys. The first page is at 0. `None`: the system has no such statement.
    fn statement(
        &self,
        since: Timestamp,
        position: u64,
    ) -> impl Future<Output = Result<Option<GiftPage>, Fault>> + Send;
}

/// The chain of signed reports.
pub trait DayReports: Send + Sync {
    /// Stores the report that is due for a run, unless the chain has it.
    ///
    /// A report says that a run is closed before the ledger closes it. So a pass that is killed in between leaves an
    /// open run, and the next pass finds the report and closes the run.
    fn keep(
        &self,
        key: &RunKey,
        run: &DayRun,
        report: &Report,
    ) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// The clock of this process. It is never trusted alone.
pub trait Clock: Send + Sync {
    fn now(&self) -> Timestamp;
}

/// The source of unique numbers.
pub trait Uniques: Send + Sync {
    fn fresh(&self) -> Unique;
}
