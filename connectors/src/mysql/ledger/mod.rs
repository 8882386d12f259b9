//! The coupon ledger on a MySQL/MariaDB server.
//!
//! A method of the port is one transaction, which `transaction.rs` runs in two packets: the first locks and reads, the
//! core decides, the second writes and commits. `users.rs`, `runs.rs` and `member_states.rs` are the SQL of reads and
//! writes, `cells.rs` converts values, `tables.rs` has the tables, `coupons.rs` reads coupons for columns. No rule is
//! here. Only [`Ledger::add_in_turn`] writes before it locks (`in_turn.rs`).
//!
//! Isolation is READ COMMITTED. Existing rows are locked with `FOR UPDATE` in the order of their keys, tables in the
//! order of parts, so two batches wait for one another without a deadlock. A missing row cannot be locked: the unique
//! insert decides, and the loser reads again. The transaction's last statement compares and replaces the last token, so
//! two batches that issue wait for one another only at the end.

mod cells;
mod coupons;
mod in_turn;
mod member_states;
mod runs;
mod tables;
mod transaction;
mod users;

use std::sync::{Arc, Mutex};

use anabranch_coupons::ports::Ledger;
use anabranch_coupons::records::{
    CouponKey, LedgerRow, LedgerTokens, Member, MemberState, ProgrammeLedger, RowChange, RunKey, RunLedger,
    Unique, UsersLedger,
};
use anabranch_coupons::turns::PageTurn;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::shard::ShardId;
use jiff::Timestamp;
use mysql_async::Row;

use self::cells::Cells;
use self::runs::KnownRules;
use self::tables::Tables;
pub use self::tables::{check, setup};
use self::transaction::{LedgerDecision, READ_ONLY, WRITING};
use self::users::{Extent, UserQuery};
use crate::mysql::pool::Pool;
use crate::mysql::store::MysqlTarget;
use crate::mysql::target_session::target_session_with;

/// The ledger of one target. Cheap to clone; its connections are made when they are needed.
#[derive(Debug, Clone)]
pub struct MySqlLedger {
    subject: Arc<str>,
    tables: Arc<Tables>,
    pool: Pool,
    /// Rules of the run that was read last.
    rules: Arc<Mutex<Option<KnownRules>>>,
}

impl MySqlLedger {
    /// Opens the ledger of a target whose tables have the shape that this version needs.
    ///
    /// # Errors
    ///
    /// Returns the first difference; `setup` creates missing tables.
    pub async fn open(target: &MysqlTarget, connections: usize) -> Result<Self, Fault> {
        match check(target).await.into_iter().next() {
            Some(fault) => Err(fault),
            None => Ok(Self::new(target, connections)),
        }
    }

    fn new(target: &MysqlTarget, connections: usize) -> Self {
        Self {
            subject: format!("coupon ledger of target {}", target.name()).into(),
            tables: Arc::new(Tables::of(target)),
            pool: target
                .pool_with_session(connections, &target_session_with(transaction::SETTINGS))
                .shown(target.name(), "coupon_ledger"),
            rules: Arc::default(),
        }
    }

    /// Runs a transaction about users that reads `read` of them.
    async fn change_users<T: Send>(
        &self,
        read: UserQuery<'_>,
        run: &RunKey,
        decide: impl Fn(&mut UsersLedger) -> T + Send + Sync,
    ) -> Result<T, Fault> {
        self.transact(
            WRITING,
            |is_again| read.sql(is_again),
            |sets| {
                let before = read.ledger(self, sets)?;
                let mut after = before.clone();
                let result = decide(&mut after);
                Ok(LedgerDecision { result, writes: users::changes(&self.tables, run, &before, &after) })
            },
        )
        .await
    }

    fn odd(&self, what: &str) -> Fault {
        Fault::new(
            Code::TargetTableShape,
            &*self.subject,
            format!("a row of {what} has values that Anabranch never writes"),
        )
        .needs("rows as the granters and dispatchers wrote them")
        .remedy("find the person or program that changed the row, and undo the change")
    }

    fn without_tokens(&self) -> Fault {
        Fault::new(Code::TargetProgressLost, &*self.subject, "its row of tokens does not exist")
            .needs("the row that `setup` made")
            .remedy(
                "restore the server from a copy, or run `anabranch --config FILE setup` and then `anabranch \
                     --config FILE dispatch take-in`",
            )
    }
}

impl Ledger for MySqlLedger {
    async fn with_users<T: Send>(
        &self,
        run: &RunKey,
        users: &[u64],
        decide: impl Fn(&mut UsersLedger) -> T + Send + Sync,
    ) -> Result<T, Fault> {
        self.change_users(UserQuery::of(&self.tables, run, users, Extent::Whole), run, decide).await
    }

    async fn read_users(&self, run: &RunKey, users: &[u64]) -> Result<UsersLedger, Fault> {
        let read = UserQuery::of(&self.tables, run, users, Extent::Unlocked);
        self.transact(
            READ_ONLY,
            |_| read.sql(false),
            |sets| Ok(LedgerDecision::read(read.ledger(self, sets)?)),
        )
        .await
    }

    async fn with_rows<T: Send>(
        &self,
        run: &RunKey,
        users: &[u64],
        decide: impl Fn(&mut UsersLedger) -> T + Send + Sync,
    ) -> Result<T, Fault> {
        self.change_users(UserQuery::of(&self.tables, run, users, Extent::Rows), run, decide).await
    }

    async fn replace_rows(&self, run: &RunKey, rows: &[RowChange]) -> Result<bool, Fault> {
        if rows.iter().any(|change| change.before.is_letter() != change.after.is_letter()) {
            // The list of letters changes as well, and a transaction that reads the rows writes both.
            let users: Vec<u64> = rows.iter().map(|change| change.user).collect();
            return self.with_rows(run, &users, |ledger| users::replace(ledger, rows)).await;
        }
        self.change(&users::replacements(&self.tables, run, rows), rows.len() as u64).await
    }

    async fn with_run<T: Send>(
        &self,
        run: &RunKey,
        offered: &[(Member, Vec<ShardId>)],
        decide: impl Fn(&mut RunLedger) -> T + Send + Sync,
    ) -> Result<T, Fault> {
        self.transact(
            WRITING,
            |_| runs::read_run(&self.tables, run, offered),
            |sets| {
                let (before, known) = self.run_ledger(offered, sets)?;
                let mut after = before.clone();
                let result = decide(&mut after);
                Ok(LedgerDecision {
                    result,
                    writes: runs::run_changes(&self.tables, run, &before, &after, &known),
                })
            },
        )
        .await
    }

    async fn add_in_turn<T: Send>(
        &self,
        run: &RunKey,
        offered: &[(Member, Vec<ShardId>)],
        turn: &PageTurn,
        decide: impl Fn(&mut RunLedger) -> T + Send + Sync,
    ) -> Result<Option<T>, Fault> {
        self.transact_in_turn(run, offered, turn, decide).await
    }

    async fn with_programme<T: Send>(
        &self,
        programme: &Arc<str>,
        decide: impl Fn(&mut ProgrammeLedger) -> T + Send + Sync,
    ) -> Result<T, Fault> {
        self.transact(
            WRITING,
            |_| runs::read_programme(&self.tables, programme),
            |sets| {
                let before = self.programme_ledger(sets)?;
                let mut after = before.clone();
                let result = decide(&mut after);
                let writes = runs::programme_changes(&self.tables, programme, &before, &after)?;
                Ok(LedgerDecision { result, writes })
            },
        )
        .await
    }

    async fn member_states(
        &self,
        run: &RunKey,
        after: Option<Member>,
        limit: usize,
    ) -> Result<(Timestamp, Vec<MemberState>), Fault> {
        let first = member_states::read_members(&self.tables, run, after, limit);
        let next = |sets| {
            let (now, members) = member_states::members(sets, limit).ok_or_else(|| self.odd("the cohort"))?;
            let second = member_states::read(&self.tables, run, &members);
            Ok(((now, members), second))
        };
        let ((now, members), sets) = self.read_twice(&first, next).await?;
        let found =
            member_states::member_states(run, &members, sets).ok_or_else(|| self.odd("the ledger"))?;
        Ok((now, found))
    }

    async fn dead_letters(
        &self,
        programme: &Arc<str>,
        after: Option<&CouponKey>,
        limit: usize,
    ) -> Result<Vec<(CouponKey, LedgerRow)>, Fault> {
        self.transact(
            READ_ONLY,
            |_| member_states::read_letters(&self.tables, programme, after, limit),
            |sets| {
                let letters = member_states::dead_letters(programme, sets, limit)
                    .ok_or_else(|| self.odd("the ledger"))?;
                Ok(LedgerDecision::read(letters))
            },
        )
        .await
    }

    async fn tokens(&self) -> Result<LedgerTokens, Fault> {
        let sql = format!("SELECT `latest`, `previous` FROM {} WHERE `number` = 1", self.tables.tokens);
        self.transact(READ_ONLY, |_| sql.clone(), |sets| Ok(LedgerDecision::read(self.tokens_of(sets)?)))
            .await
    }

    async fn issued_at(&self) -> Result<Option<Timestamp>, Fault> {
        let sql = format!("SELECT `issued_at` FROM {} WHERE `number` = 1", self.tables.tokens);
        let read = |sets: Vec<Vec<Row>>| {
            let row = sets.into_iter().flatten().next().ok_or_else(|| self.without_tokens())?;
            Cells::of(row).optional_moment().ok_or_else(|| self.odd("tokens"))
        };
        self.transact(READ_ONLY, |_| sql.clone(), |sets| Ok(LedgerDecision::read(read(sets)?))).await
    }

    async fn begin_tokens(&self, expected: Unique, token: Unique) -> Result<bool, Fault> {
        let read =
            format!("SELECT `latest`, `previous` FROM {} WHERE `number` = 1 FOR UPDATE", self.tables.tokens);
        let tokens = LedgerTokens { latest: token, before: None };
        self.transact(
            WRITING,
            |_| read.clone(),
            |sets| {
                let is_expected = self.tokens_of(sets)?.latest == expected;
                // The time of the last issue stays.
                let replaced = || users::replace_tokens(&self.tables, expected, tokens, "`issued_at`");
                let writes = is_expected.then(replaced).into_iter().collect();
                Ok(LedgerDecision { result: is_expected, writes })
            },
        )
        .await
    }
}
