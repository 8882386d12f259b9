//! Twins of the ports on the world. Each call is at most one transaction between two points at which its process may
//! be killed, frozen or overtaken.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use anabranch_connectors::memory::enter_message;
use anabranch_coupons::ports::{
    Answer, Clock, CohortRow, CohortRows, CouponSystem, DayReports, GiftPage, Ledger, Reconciled, Register,
    SourceRow, SourceRows, Uniques, WorkQueue,
};
use anabranch_coupons::records::{
    CouponKey, DayRun, LedgerRow, LedgerTokens, Member, MemberState, Message, ProgrammeLedger, RowChange,
    RunKey, RunLedger, Unique, UsersLedger,
};
use anabranch_coupons::report::Report;
use anabranch_coupons::turns::PageTurn;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::celebration::{Birthday, Occurrence};
use anabranch_schemas::shard::ShardId;
use jiff::{SignedDuration, Timestamp};
use rand::RngExt;

use crate::witness;
use crate::world::{World, shard_id};

/// Turns for which a barrier waits before it reports that it was not reached.
const BARRIER_TURNS: usize = 12;
/// Messages that the work queue holds at most; no year comes near it.
const QUEUE_ROOM: usize = 50_000;
/// The life of a connection to the coupon system.
const CONNECTION_LIVES: SignedDuration = SignedDuration::from_mins(29);

/// A process's view of the world: every server that it can reach, and its own clock.
#[derive(Clone)]
pub struct Process {
    pub world: Arc<Mutex<World>>,
    /// The lead of the process's clock over the world's.
    pub skew: SignedDuration,
}

/// Yields once, so that other actors may act; the process may die here.
async fn turn() {
    let mut is_first = true;
    poll_fn(|_| if std::mem::take(&mut is_first) { Poll::Pending } else { Poll::Ready(()) }).await;
}

fn unreachable() -> Fault {
    Fault::new(Code::TargetUnreachable, "ledger", "the connection broke")
}

impl Process {
    pub fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one transaction: it may fail to begin, and its answer may be lost after the commit.
    async fn transact<T>(&self, work: impl FnOnce(&mut World) -> T) -> Result<T, Fault> {
        turn().await;
        let mut world = self.lock();
        if world.now < world.database_down_until {
            return Err(unreachable());
        }
        let result = work(&mut world);
        if world.strikes(0.004) { Err(unreachable()) } else { Ok(result) }
    }
}

/// Runs a transaction of some users as the ledger's server does.
pub fn with_users<T>(
    world: &mut World,
    run: &RunKey,
    users: &[u64],
    decide: impl Fn(&mut UsersLedger) -> T,
) -> T {
    let now = world.now;
    witnessed(world, run, users, |world| world.database.with_users(now, run, users, decide))
}

/// Runs a transaction and shows its changes of some users to the witness.
fn witnessed<T>(world: &mut World, run: &RunKey, users: &[u64], work: impl FnOnce(&mut World) -> T) -> T {
    let before = world.database.tokens;
    let unread = |world: &World| world.database.rows.values().filter(|row| row.is_unread()).count();
    let unread_before = unread(world);
    let result = work(world);
    if unread(world) > unread_before {
        world.books.count("let go unread");
    }
    let tokens = world.database.tokens;
    if tokens != before {
        world.database.chain.insert(tokens.latest);
        for user in users {
            witness::issued(world, run, *user);
        }
    }
    witness::held_by_letters(world, run);
    result
}

impl Ledger for Process {
    async fn with_users<T: Send>(
        &self,
        run: &RunKey,
        users: &[u64],
        decide: impl Fn(&mut UsersLedger) -> T + Send + Sync,
    ) -> Result<T, Fault> {
        self.transact(|world| with_users(world, run, users, decide)).await
    }

    async fn read_users(&self, run: &RunKey, users: &[u64]) -> Result<UsersLedger, Fault> {
        self.transact(|world| world.database.users(world.now, run, users)).await
    }

    async fn with_rows<T: Send>(
        &self,
        run: &RunKey,
        users: &[u64],
        decide: impl Fn(&mut UsersLedger) -> T + Send + Sync,
    ) -> Result<T, Fault> {
        self.transact(|world| {
            let now = world.now;
            witnessed(world, run, users, |world| world.database.with_rows(now, run, users, decide))
        })
        .await
    }

    async fn replace_rows(&self, run: &RunKey, rows: &[RowChange]) -> Result<bool, Fault> {
        let users: Vec<u64> = rows.iter().map(|row| row.user).collect();
        let work = |world: &mut World| world.database.replace_rows(run, rows);
        self.transact(|world| witnessed(world, run, &users, work)).await
    }

    async fn with_run<T: Send>(
        &self,
        key: &RunKey,
        offered: &[(Member, Vec<ShardId>)],
        decide: impl Fn(&mut RunLedger) -> T + Send + Sync,
    ) -> Result<T, Fault> {
        self.transact(|world| {
            let (now, before) = (world.now, world.database.runs.get(key).cloned());
            let result = world.database.with_run(now, key, offered, decide);
            let after = world.database.runs.get(key).cloned();
            witness::run_changed(world, key, before.as_ref(), after.as_ref());
            result
        })
        .await
    }

    async fn add_in_turn<T: Send>(
        &self,
        key: &RunKey,
        offered: &[(Member, Vec<ShardId>)],
        turn: &PageTurn,
        decide: impl Fn(&mut RunLedger) -> T + Send + Sync,
    ) -> Result<Option<T>, Fault> {
        match turn.comes().await {
            true => self.with_run(key, offered, decide).await.map(Some),
            false => Ok(None),
        }
    }

    async fn with_programme<T: Send>(
        &self,
        programme: &Arc<str>,
        decide: impl Fn(&mut ProgrammeLedger) -> T + Send + Sync,
    ) -> Result<T, Fault> {
        self.transact(|world| {
            let known: Vec<RunKey> = world.database.runs.keys().cloned().collect();
            let now = world.now;
            let (result, begun) = world.database.with_programme(now, programme, |ledger| {
                let result = decide(ledger);
                (result, ledger.begun.clone())
            });
            for (day, run) in begun {
                let key = RunKey { programme: programme.clone(), day };
                witness::begun(world, &key, &run, known.contains(&key));
            }
            result
        })
        .await
    }

    async fn member_states(
        &self,
        run: &RunKey,
        after: Option<Member>,
        limit: usize,
    ) -> Result<(Timestamp, Vec<MemberState>), Fault> {
        self.transact(|world| {
            witness::held_by_letters(world, run);
            let all = world.database.member_states(run).into_iter();
            (
                world.now,
                all.filter(|member_state| Some(member_state.member) > after).take(limit.min(3)).collect(),
            )
        })
        .await
    }

    async fn dead_letters(
        &self,
        programme: &Arc<str>,
        after: Option<&CouponKey>,
        limit: usize,
    ) -> Result<Vec<(CouponKey, LedgerRow)>, Fault> {
        self.transact(|world| world.database.dead_letters(programme, after, limit)).await
    }

    async fn tokens(&self) -> Result<LedgerTokens, Fault> {
        self.transact(|world| world.database.tokens).await
    }

    async fn issued_at(&self) -> Result<Option<Timestamp>, Fault> {
        self.transact(|world| world.database.issued_at).await
    }

    async fn begin_tokens(&self, expected: Unique, token: Unique) -> Result<bool, Fault> {
        self.transact(|world| {
            let has_begun = world.database.begin_tokens(expected, token);
            // A marker is in no register.
            if has_begun && world.register == token {
                let called = world.books.called.clone();
                world.database.chain.extend(called.into_iter().chain([token]));
                (world.books.is_lost, world.books.stopped_at) = (false, None);
            }
            has_begun
        })
        .await
    }
}

impl Register for Process {
    async fn read(&self) -> Result<Unique, Fault> {
        turn().await;
        Ok(self.lock().register)
    }

    async fn swap(&self, expected: Unique, token: Unique) -> Result<bool, Fault> {
        turn().await;
        let mut world = self.lock();
        let is_expected = world.register == expected;
        if is_expected {
            world.register = token;
        }
        Ok(is_expected)
    }
}

impl WorkQueue for Process {
    async fn publish(&self, messages: &[Message]) -> Result<(), Fault> {
        for message in messages {
            turn().await;
            let mut world = self.lock();
            let same = |known: &Message| {
                known.run == message.run
                    && message.members.iter().all(|member| known.members.contains(member))
            };
            if world.queue.iter().filter(|(_, known)| same(known)).count() < 2 {
                let now = world.now;
                enter_message(&mut world.queue, QUEUE_ROOM, now, message)?;
            }
            world.archive.push(message.clone());
        }
        Ok(())
    }
}

impl SourceRows for Process {
    async fn read_rows(&self, users: &[(u64, Vec<ShardId>)]) -> Result<Vec<Option<Vec<SourceRow>>>, Fault> {
        turn().await;
        let mut world = self.lock();
        let mut answers = Vec::new();
        for (user, also) in users {
            let has_luck = world.random.random_bool(0.995) || world.is_scripted;
            let is_read =
                has_luck && world.now >= world.sources_down_until && !world.unreadable.contains(user);
            answers.push(is_read.then(|| source_rows(&world, *user, also)));
        }
        Ok(answers)
    }
}

/// The source rows of a user.
fn source_rows(world: &World, user: u64, also: &[ShardId]) -> Vec<SourceRow> {
    let mut shards = world.claimed(user);
    shards.extend((0..crate::world::SHARDS).filter(|shard| also.contains(&shard_id(*shard))));
    let rows = shards.iter().filter_map(|shard| world.sources[*shard].get(&user));
    let changed_at = world.changed.get(&user).copied();
    let row = |row: &crate::world::UserRow| SourceRow {
        born: None,
        solar: row.solar,
        lunar: row.lunar,
        calendar: row.calendar,
        changed_at,
    };
    rows.map(row).collect()
}

impl CohortRows for Process {
    async fn barrier(&self) -> Result<bool, Fault> {
        turn().await;
        let written = self.lock().written;
        for _ in 0..BARRIER_TURNS {
            let read = self.lock().read;
            if read.iter().zip(written).all(|(read, written)| *read >= written) {
                return Ok(true);
            }
            turn().await;
        }
        Ok(false)
    }

    async fn page(&self, table: Birthday, after: Option<u64>, limit: usize) -> Result<Vec<CohortRow>, Fault> {
        turn().await;
        let world = self.lock();
        let rows = world.tables.get(&table).into_iter().flatten();
        let mut page: Vec<CohortRow> = Vec::new();
        let mut users = 0;
        for ((user, shard), row) in rows.filter(|((user, _), _)| Some(*user) > after) {
            users += usize::from(page.last().is_none_or(|last| last.user != *user));
            if users > limit {
                break;
            }
            let (birthday, calendar) = (row.birthday, row.calendar);
            page.push(CohortRow { user: *user, shard: shard_id(*shard), birthday, calendar });
        }
        Ok(page)
    }

    async fn follow(&self, _: &[Birthday], _: &[(u64, Occurrence)]) -> Result<(), Fault> {
        turn().await;
        Ok(())
    }

    async fn reconciled(&self) -> Result<Option<Reconciled>, Fault> {
        turn().await;
        let world = self.lock();
        let unproven = world.unproven.iter().map(|shard| shard_id(*shard)).collect();
        Ok(world.reconciled_at.map(|ended_at| Reconciled { id: "nightly".into(), ended_at, unproven }))
    }

    async fn make_way(&self, _: Duration) {}
}

impl DayReports for Process {
    async fn keep(&self, key: &RunKey, run: &DayRun, _: &Report) -> Result<(), Fault> {
        if run.is_closed {
            turn().await;
            self.lock().books.reported.insert(key.clone());
            turn().await;
        }
        Ok(())
    }
}

impl CouponSystem for Process {
    type Connection = Timestamp;

    async fn connect(&self) -> Result<Timestamp, Fault> {
        turn().await;
        let world = self.lock();
        match world.now < world.books.down_until {
            true => Err(Fault::new(Code::CouponSystemUnreachable, "coupon system", "no answer")),
            false => Ok(world.now),
        }
    }

    async fn call(
        &self,
        opened_at: &Timestamp,
        coupons: &[(CouponKey, Arc<str>)],
    ) -> Result<Vec<Answer>, Fault> {
        turn().await;
        let answers = answers(&mut self.lock(), *opened_at, coupons);
        turn().await;
        Ok(answers)
    }

    fn pause(&self) -> Option<Duration> {
        let world = self.lock();
        world.books.retry_after.filter(|_| world.now < world.books.busy_until)
    }

    async fn knows(&self, keys: &[CouponKey]) -> Result<Vec<bool>, Fault> {
        turn().await;
        let world = self.lock();
        match world.now < world.books.silent_until() {
            true => Err(Fault::new(Code::CouponSystemUnreachable, "coupon system", "no answer")),
            false => Ok(keys.iter().map(|key| world.books.knows(key, world.now)).collect()),
        }
    }

    async fn statement(&self, since: Timestamp, position: u64) -> Result<Option<GiftPage>, Fault> {
        turn().await;
        let world = self.lock();
        if world.now < world.books.silent_until() {
            return Err(Fault::new(Code::CouponSystemUnreachable, "coupon system", "no answer"));
        }
        Ok(world.books.has_statement.then(|| world.books.page(since, position)))
    }
}

/// Returns the coupon system's answers to a call over a connection that was opened then.
fn answers(world: &mut World, opened_at: Timestamp, coupons: &[(CouponKey, Arc<str>)]) -> Vec<Answer> {
    let all = |answer: Answer| vec![answer; coupons.len()];
    let is_alone = coupons.len() == 1;
    let (now, books) = (world.now, &world.books);
    if now > opened_at + CONNECTION_LIVES || now < books.closing_until {
        return all(Answer::ConnectionExpired);
    }
    if now < books.unavailable_until {
        return all(Answer::Unknown);
    }
    if now < books.busy_until {
        return all(Answer::Busy);
    }
    if coupons.iter().any(|(key, _)| books.failing.contains(&key.user)) {
        return all(if is_alone { Answer::Error } else { Answer::Unknown });
    }
    let called = coupons.iter().map(|(key, coupon)| witness::called(world, key, coupon, is_alone));
    let answers: Vec<Answer> = called.collect();
    // The work is done, and the answer of the whole call is lost.
    if world.strikes(0.02) { all(Answer::Unknown) } else { answers }
}

impl Clock for Process {
    fn now(&self) -> Timestamp {
        self.lock().now + self.skew
    }
}

impl Uniques for Process {
    fn fresh(&self) -> Unique {
        self.lock().fresh()
    }
}
