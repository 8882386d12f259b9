//! What the coupon day needs of the outside. Contracts that types cannot say are written at each method.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;

use anabranch_pipeline::error::Fault;
use anabranch_schemas::birthday::MonthDay;
use anabranch_schemas::celebration::{Birthday, Calendar, Occurrence};
use anabranch_schemas::lunar::LunarMonthDay;
use anabranch_schemas::shard::ShardId;
use jiff::Timestamp;
use jiff::civil::Date;

use crate::records::{
    CouponKey, LedgerRow, LedgerTokens, Member, Message, ProgrammeLedger, RowChange, RunKey, RunLedger,
    Standing, Unique, UsersLedger,
};

/// The permanent rows that decide who gets a coupon.
///
/// Each method is one transaction on one server. `decide` may run more than once, so it changes nothing but its
/// argument. A fault does not say whether the transaction was committed.
pub trait Ledger: Send + Sync {
    /// Reads and changes all rows of some users in a programme; other transactions of the same users wait.
    ///
    /// Users may come in any order and twice. Each of them is in the ledger that `decide` is given. Two transactions
    /// that issue are one after the other: the second one's `decide` runs with the first one's token.
    fn of_users<T: Send>(
        &self,
        run: &RunKey,
        users: &[u64],
        decide: impl Fn(&mut UsersLedger) -> T + Send + Sync,
    ) -> impl Future<Output = Result<T, Fault>> + Send;

    /// Reads what [`Ledger::of_users`] reads, without a lock: others may change it meanwhile.
    fn read_users(
        &self,
        run: &RunKey,
        users: &[u64],
    ) -> impl Future<Output = Result<UsersLedger, Fault>> + Send;

    /// As [`Ledger::of_users`], but reads the rows and the tokens alone: there is no run, nobody has a claim, and
    /// refusals that `decide` adds replace those that stand.
    fn of_rows<T: Send>(
        &self,
        run: &RunKey,
        users: &[u64],
        decide: impl Fn(&mut UsersLedger) -> T + Send + Sync,
    ) -> impl Future<Output = Result<T, Fault>> + Send;

    /// Changes rows of a programme, if each of them stands as it is expected; returns `false`, and changes nothing, if
    /// one does not.
    fn replace_rows(
        &self,
        run: &RunKey,
        rows: &[RowChange],
    ) -> impl Future<Output = Result<bool, Fault>> + Send;

    /// Reads and changes a run, and adds members to its cohort.
    fn of_run<T: Send>(
        &self,
        run: &RunKey,
        offered: &[(Member, Vec<ShardId>)],
        decide: impl Fn(&mut RunLedger) -> T + Send + Sync,
    ) -> impl Future<Output = Result<T, Fault>> + Send;

    /// Reads a programme and begins runs.
    fn of_programme<T: Send>(
        &self,
        programme: &Arc<str>,
        decide: impl Fn(&mut ProgrammeLedger) -> T + Send + Sync,
    ) -> impl Future<Output = Result<T, Fault>> + Send;

    /// A page of the cohort and of the users with a row of the day, in the order of members, with the server's clock.
    fn standings(
        &self,
        run: &RunKey,
        after: Option<Member>,
        limit: usize,
    ) -> impl Future<Output = Result<(Timestamp, Vec<Standing>), Fault>> + Send;

    /// A page of the dead letters of a programme, in the order of their keys.
    fn letters(
        &self,
        programme: &Arc<str>,
        after: Option<&CouponKey>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<(CouponKey, LedgerRow)>, Fault>> + Send;

    fn tokens(&self) -> impl Future<Output = Result<LedgerTokens, Fault>> + Send;

    /// Begins a new chain of tokens, after a person has decided what a restored ledger lacks.
    fn begin_tokens(&self, token: Unique) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// How far the ledger was, kept outside of its server: a register of the log.
pub trait Register: Send + Sync {
    fn read(&self) -> impl Future<Output = Result<Unique, Fault>> + Send;

    /// Replaces the token; `false` when it is not the expected one.
    fn swap(&self, expected: Unique, token: Unique) -> impl Future<Output = Result<bool, Fault>> + Send;
}

/// Messages to granters. It may lose, double, delay and repeat them.
pub trait WorkQueue: Send + Sync {
    /// Ends when the queue holds all of them. The members of a message are of one [`crate::records::part`].
    fn publish(&self, messages: &[Message]) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// What a source row says of its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceRow {
    /// The year of the birthday, where the column has one.
    pub born: Option<Date>,
    pub solar: Option<MonthDay>,
    pub lunar: Option<LunarMonthDay>,
    /// Which of the two is celebrated.
    pub calendar: Calendar,
    /// When the birthday was changed last, where the source says it; a first setting is no change.
    pub changed_at: Option<Timestamp>,
}

/// Rows of the source tables, on their primaries.
pub trait SourceRows: Send + Sync {
    /// For each user, in their order, the rows in every shard table that a claim of the user or the given shards name.
    ///
    /// `None` where one of these tables could not be read: the other users' rows are told all the same.
    fn look(
        &self,
        users: &[(u64, Vec<ShardId>)],
    ) -> impl Future<Output = Result<Vec<Option<Vec<SourceRow>>>, Fault>> + Send;
}

/// A row of a birthday table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CohortRow {
    pub user: u64,
    pub shard: ShardId,
    /// The `birthday` column, which must be that of the table.
    pub birthday: Birthday,
    /// The calendar that the user celebrates by.
    pub calendar: Calendar,
}

/// The birthday tables of a day.
pub trait CohortRows: Send + Sync {
    /// Waits until every lane has passed what the sources had committed when it was called; `false` after a set time.
    fn barrier(&self) -> impl Future<Output = Result<bool, Fault>> + Send;

    /// The rows of the next `limit` users of a table, in the order of users. No user's rows are on two pages. What a
    /// row says as its birthday may be some minutes old: the source row decides later.
    fn page(
        &self,
        table: Birthday,
        after: Option<u64>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<CohortRow>, Fault>> + Send;

    /// Lets `is_sent`, `send_time` and `sent_occurrence` follow the ledger: the users' rows in those of the tables that
    /// are of their occurrence's calendar. Nothing reads them here.
    fn follow(
        &self,
        tables: &[Birthday],
        granted: &[(u64, Occurrence)],
    ) -> impl Future<Output = Result<(), Fault>> + Send;

    /// The last good reconciliation of all birthday tables.
    fn reconciled(&self) -> impl Future<Output = Result<Option<Reconciled>, Fault>> + Send;
}

/// What a day relies on of a reconciliation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reconciled {
    pub ended_at: Timestamp,
    /// Source tables of which it says nothing.
    pub unproven: BTreeSet<ShardId>,
}

/// What the coupon system answered to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The coupon is given, by this call or by an earlier one of the same key.
    Given,
    /// It did nothing, and will not for this user.
    Rejected,
    /// The key was used with another coupon.
    Mismatch,
    /// It did nothing and asks for a pause.
    Busy,
    /// It did nothing, because no coupon is left.
    PoolEmpty,
    /// No answer, or one that does not say whether it did something.
    Unknown,
    /// The connection had grown old and was closed, so nothing was sent.
    ConnectionExpired,
}

/// The system that gives out coupons. It remembers keys for a set time.
pub trait CouponSystem: Send + Sync {
    /// A connection that the other side closes before [`crate::records::TAKEN_OVER_AFTER`] is over.
    type Connection: Send + Sync;

    fn connect(&self) -> impl Future<Output = Result<Self::Connection, Fault>> + Send;

    /// Asks for each coupon once, and never over another connection than the given one.
    ///
    /// There are at most [`crate::records::MEMBERS_MAX`] keys, and one answer for each, in their order. Where nobody
    /// knows what became of the call, the answer is [`Answer::Unknown`] for each key that was sent.
    fn call(
        &self,
        connection: &Self::Connection,
        coupons: &[(CouponKey, Arc<str>)],
    ) -> impl Future<Output = Result<Vec<Answer>, Fault>> + Send;

    /// For each key, in their order, whether it knows the key, so that the coupon was given.
    fn knows(&self, keys: &[CouponKey]) -> impl Future<Output = Result<Vec<bool>, Fault>> + Send;
}

/// The clock of this process. It is never trusted alone.
pub trait Clock: Send + Sync {
    fn now(&self) -> Timestamp;
}

/// Where unique numbers come from.
pub trait Uniques: Send + Sync {
    fn fresh(&self) -> Unique;
}
