//! The granter carries the members of messages through reserve, ask, look, issue, call and settle, all in step.
//!
//! A member without any row is not reserved before the look: the transaction that issues inserts the row, and the
//! insert decides. An existing row is taken over first, since an earlier call may have to be asked for.
//!
//! A granter may die, sleep or be overtaken between any two steps. Each step on the ledger is one transaction, which
//! checks that each row is still the attempt's own. So an overtaken granter changes nothing, except by a proof: any
//! granter that learns that the coupon was given settles the row. A member who is refused, done or late leaves the
//! batch, and the others go on.

use std::sync::Arc;

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::failpoints;
use anabranch_schemas::celebration::{Birthday, Occurrence};
use jiff::SignedDuration;

use crate::breaker::Breaker;
use crate::issuers::{Issuers, Issuing};
use crate::issuing::{HeldRow, answered};
use crate::ports::{Answer, Clock, CohortRows, CouponSystem, Ledger, Register, SourceRows, Uniques};
use crate::records::{Candidate, LedgerRow, MEMBERS_MAX, Member, Message, RunKey, UsersLedger};
use crate::reserving::{MessageEnd, TakenRow, denied, reserve, settle, settled};

/// The ports and the shared state of a granter.
#[derive(Debug)]
pub struct Granter<L, S, C, B, R, U> {
    pub ledger: L,
    pub sources: S,
    pub coupons: C,
    /// Birthday tables, whose columns follow the ledger.
    pub cohort: B,
    pub register: R,
    /// The clock and the unique numbers of this process.
    pub process: U,
    /// The breaker that all granters of the process share.
    pub breaker: Arc<Breaker>,
    /// The issues that all granters of the process share.
    pub issuers: Arc<Issuers>,
    /// Time for which the coupon system promises to know a key.
    pub key_memory: SignedDuration,
}

/// The ends of messages that were carried together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MessagesCarried {
    /// Coupons that were given now, or that an abandoned call had given, as the granter learned.
    pub granted: usize,
    /// Members for whom nothing else is left to do: granted before, refused, or a dead letter.
    pub done: usize,
    /// Members for whom something is left to do.
    pub later: Vec<Member>,
    /// The members of `later` that any attempt may take at once, so that their message comes again.
    released: Vec<Member>,
    /// Members for whom the coupon system was called.
    pub called: usize,
    /// Users whose columns in birthday tables do not follow yet: see [`Granter::follow`].
    column_updates: Vec<ColumnUpdate>,
}

/// Coupons that were given in one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ColumnUpdate {
    birthdays: Vec<Birthday>,
    granted: Vec<(u64, Occurrence)>,
}

impl MessagesCarried {
    /// Returns how one of the messages ends as a whole.
    ///
    /// It ends though members wait for a young attempt or for their source: a pass of the dispatcher publishes them
    /// again once their rows are old.
    pub fn of(&self, message: &Message) -> MessageEnd {
        let is_later = message.members.iter().any(|member| self.released.contains(member));
        if is_later { MessageEnd::Later } else { MessageEnd::Done }
    }

    /// Adds the coupons that one transaction gave.
    fn give(&mut self, given: &[Reserved]) {
        self.granted += given.len();
        if let Some((_, first)) = given.first() {
            let granted = given.iter().map(|(_, taken)| (taken.key.user, taken.key.occurrence)).collect();
            self.column_updates.push(ColumnUpdate { birthdays: first.birthdays.clone(), granted });
        }
    }

    fn end(&mut self, member: Member, carried: MessageEnd) {
        match carried {
            MessageEnd::Done => self.done += 1,
            MessageEnd::Later => self.later.push(member),
        }
    }
}

/// A row that an attempt holds.
type Reserved = (Candidate, TakenRow);
/// A row that an attempt holds, as it was issued.
type IssuedRow = (HeldRow, LedgerRow);

impl<L, S, C, B, R, U> Granter<L, S, C, B, R, U>
where
    L: Ledger,
    S: SourceRows,
    C: CouponSystem,
    B: CohortRows,
    R: Register,
    U: Clock + Uniques,
{
    /// Carries messages as far as they go, and adds up their ends. After a fault all of them come again, like members
    /// that are late, and `ends` has the coupons and calls before it.
    ///
    /// All messages are of one run and one part, as [`join`] puts them together. The columns are left to
    /// [`Granter::follow`], which may run beside the next messages.
    pub async fn carry(&self, messages: &[Message], ends: &mut MessagesCarried) -> Result<(), Fault> {
        let Some(Message { run, .. }) = messages.first() else { return Ok(()) };
        if self.breaker.is_open(self.process.now()) {
            ends.later = messages.iter().flat_map(|message| message.members.iter().copied()).collect();
            ends.released.clone_from(&ends.later);
            return Ok(());
        }
        let candidates = messages.iter().flat_map(Message::candidates).collect();
        let carried = self.carry_members(run, candidates, ends).await;
        if carried.is_err() {
            self.follow(ends).await;
        }
        carried
    }

    async fn carry_members(
        &self,
        run: &RunKey,
        candidates: Vec<Candidate>,
        ends: &mut MessagesCarried,
    ) -> Result<(), Fault> {
        // Without a connection nothing is reserved. The age of the connection limits the time from here to the call.
        let mut connection = self.connect().await?;
        failpoints::reach("coupons-before-reserve").await;
        let mut batch = self.reserve(run, candidates, ends).await?;
        failpoints::reach("coupons-after-reserve").await;
        if batch.iter().any(|(_, taken)| taken.may_have_called) {
            batch = self.learn_outcomes(run, batch, ends).await?;
            connection = self.connect().await?;
        }
        let batch = self.read_sources(batch).await?;
        let issued = self.issue(run, batch, ends).await?;
        // A row whose earlier call had no answer is called for alone: it may be the cause.
        let (alone, together): (Vec<_>, Vec<_>) =
            issued.into_iter().partition(|(held, _)| held.taken.may_have_called);
        let batches = [together].into_iter().chain(alone.into_iter().map(|issued| vec![issued]));
        for batch in batches.filter(|batch| !batch.is_empty()) {
            self.call(run, &connection, batch, ends).await?;
        }
        Ok(())
    }

    /// Opens a connection; a failure counts as one of the system.
    async fn connect(&self) -> Result<C::Connection, Fault> {
        let connection = self.coupons.connect().await;
        connection.inspect_err(|_| self.breaker.paused(self.process.now(), self.coupons.pause()))
    }

    /// Takes the rows of candidates. Rows that the ledger lacks are decided from the read and written when they are
    /// issued. A transaction takes existing rows, as they are stored then.
    async fn reserve(
        &self,
        run: &RunKey,
        candidates: Vec<Candidate>,
        ends: &mut MessagesCarried,
    ) -> Result<Vec<Reserved>, Fault> {
        let attempt = self.process.fresh();
        let take = |ledger: &mut UsersLedger, candidate: &Candidate| {
            let user = ledger.users.get_mut(&candidate.member.user).ok_or(MessageEnd::Later)?;
            reserve(user, candidate, attempt)
        };
        let mut read = self.ledger.read_users(run, &users(&candidates)).await?;
        let taken = candidates.iter().map(|candidate| take(&mut read, candidate)).collect();
        let taken = going_on(candidates, taken, ends, |candidate| candidate.member);
        let (mut batch, existing): (Vec<_>, Vec<_>) = taken.into_iter().partition(|(_, taken)| taken.is_new);
        if !existing.is_empty() {
            let existing: Vec<Candidate> = existing.into_iter().map(|(candidate, _)| candidate).collect();
            let users = users(&existing);
            let taken = self.ledger.with_users(run, &users, |l| {
                existing.iter().map(|candidate| take(l, candidate)).collect::<Vec<_>>()
            });
            let taken = taken.await?;
            batch.extend(going_on(existing, taken, ends, |candidate| candidate.member));
        }
        Ok(batch)
    }

    /// Learns the outcomes of earlier attempts' calls before anything else is decided about their rows.
    async fn learn_outcomes(
        &self,
        run: &RunKey,
        batch: Vec<Reserved>,
        ends: &mut MessagesCarried,
    ) -> Result<Vec<Reserved>, Fault> {
        let (called, mut batch): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|(_, taken)| taken.may_have_called);
        let keys: Vec<_> = called.iter().map(|(_, taken)| taken.key.clone()).collect();
        failpoints::reach("coupons-before-ask").await;
        let known = self.coupons.knows(&keys).await.unwrap_or_else(|fault| {
            tracing::warn!(%fault, "the coupon system did not answer the query for the outcome of earlier calls");
            Vec::new()
        });
        failpoints::reach("coupons-after-ask").await;
        if known.len() != keys.len() {
            // These members wait; the others go on.
            ends.later.extend(called.iter().map(|(candidate, _)| candidate.member));
            return Ok(batch);
        }
        let (mut given, mut unknown) = (Vec::new(), Vec::new());
        for (reserved, is_known) in called.into_iter().zip(known) {
            if is_known { given.push(reserved) } else { unknown.push(reserved) }
        }
        let memory = self.key_memory;
        let candidates: Vec<Candidate> =
            given.iter().chain(&unknown).map(|(candidate, _)| candidate.clone()).collect();
        let left = self.with_each(run, &candidates, |l| {
            for (candidate, taken) in &given {
                if let Some(user) = l.users.get_mut(&candidate.member.user) {
                    settle(user, candidate, &taken.key, &taken.coupon, taken.version);
                }
            }
            let denied = |(candidate, taken): &Reserved| {
                let user = l.users.get_mut(&candidate.member.user).ok_or(MessageEnd::Later)?;
                denied(user, taken, memory)
            };
            unknown.iter().map(denied).collect()
        });
        let left: Vec<Result<(), MessageEnd>> = left.await?;
        failpoints::reach("coupons-after-learned").await;
        ends.give(&given);
        let left = going_on(unknown, left, ends, |(candidate, _)| candidate.member);
        batch.extend(left.into_iter().map(|(reserved, ())| reserved));
        Ok(batch)
    }

    /// Reads the source rows of a batch.
    async fn read_sources(&self, batch: Vec<Reserved>) -> Result<Vec<HeldRow>, Fault> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let users: Vec<_> =
            batch.iter().map(|(candidate, taken)| (candidate.member.user, taken.claims.clone())).collect();
        // An answer with fewer rows than users leaves the rest unread.
        let sources = self.sources.read_rows(&users).await?.into_iter().chain(std::iter::repeat(None));
        let held = |((candidate, taken), source)| HeldRow { candidate, taken, source };
        Ok(batch.into_iter().zip(sources).map(held).collect())
    }

    /// Issues a batch; members that are not due leave it.
    async fn issue(
        &self,
        run: &RunKey,
        batch: Vec<HeldRow>,
        ends: &mut MessagesCarried,
    ) -> Result<Vec<IssuedRow>, Fault> {
        let Self { ledger, register, process, issuers, .. } = self;
        let issued = Issuing { ledger, register, process, issuers }.issue(run, &batch).await?;
        Ok(going_on(batch, issued, ends, |held| held.candidate.member))
    }

    /// Calls once for a batch, and records the answers.
    async fn call(
        &self,
        run: &RunKey,
        connection: &C::Connection,
        batch: Vec<IssuedRow>,
        ends: &mut MessagesCarried,
    ) -> Result<(), Fault> {
        let coupons: Vec<_> =
            batch.iter().map(|(held, _)| (held.taken.key.clone(), held.taken.coupon.clone())).collect();
        failpoints::reach("coupons-before-call").await;
        let is_first = ends.called == 0;
        ends.called += coupons.len();
        let answers = self.coupons.call(connection, &coupons).await?;
        failpoints::reach("coupons-before-settle").await;
        // A key without an answer has an unknown outcome.
        let answers = answers.into_iter().chain(std::iter::repeat(Answer::Unknown));
        let (batch, rows): (Vec<HeldRow>, Vec<LedgerRow>) = batch.into_iter().unzip();
        let answers: Vec<(HeldRow, Answer)> = batch.into_iter().zip(answers).collect();
        let are_own = self.weigh(&answers, is_first);
        if self.settle_all(run, &answers, &rows).await? {
            failpoints::reach("coupons-after-settle").await;
            let given = answers.into_iter().map(|(held, _)| (held.candidate, held.taken));
            ends.give(&given.collect::<Vec<_>>());
            return Ok(());
        }
        let candidates: Vec<Candidate> = answers.iter().map(|(held, _)| held.candidate.clone()).collect();
        let carried = self.with_each(run, &candidates, |l| {
            let write = |((held, answer), is_own): (&(HeldRow, Answer), &bool)| {
                let HeldRow { candidate, taken, .. } = held;
                let Some(user) = l.users.get_mut(&candidate.member.user) else { return MessageEnd::Later };
                let counts = match answer {
                    Answer::Given => {
                        settle(user, candidate, &taken.key, &taken.coupon, taken.version);
                        return MessageEnd::Done;
                    }
                    Answer::Rejected | Answer::Mismatch => true,
                    Answer::Error => *is_own,
                    // Without an answer about the user nothing counts.
                    Answer::Unknown | Answer::Busy | Answer::PoolEmpty | Answer::ConnectionExpired => false,
                };
                answered(user, taken, *answer, counts)
            };
            answers.iter().zip(&are_own).map(write).collect::<Vec<_>>()
        });
        let mut given = Vec::new();
        for ((held, answer), carried) in answers.iter().zip(carried.await?) {
            if *answer == Answer::Given {
                given.push((held.candidate.clone(), held.taken.clone()));
            } else {
                if answer.has_done_nothing_yet() {
                    ends.released.push(held.candidate.member);
                }
                ends.end(held.candidate.member, carried);
            }
        }
        failpoints::reach("coupons-after-settle").await;
        ends.give(&given);
        Ok(())
    }

    /// Settles a batch if every answer gave the coupon and each row is stored as it was issued; returns whether it did.
    async fn settle_all(
        &self,
        run: &RunKey,
        answers: &[(HeldRow, Answer)],
        issued: &[LedgerRow],
    ) -> Result<bool, Fault> {
        if answers.iter().any(|(_, answer)| *answer != Answer::Given) {
            return Ok(false);
        }
        let settled =
            |((held, _), row): (&(HeldRow, Answer), _)| settled(&held.candidate, &held.taken.key, row);
        let rows: Vec<_> = answers.iter().zip(issued).map(settled).collect();
        self.ledger.replace_rows(run, &rows).await
    }

    /// Reports the answers to the breaker, in their order; returns for each whether it is an error of its user's own.
    /// `is_first` says whether they are those of the first call over their connection.
    fn weigh(&self, answers: &[(HeldRow, Answer)], is_first: bool) -> Vec<bool> {
        let now = self.process.now();
        let has = |wanted: &[Answer]| answers.iter().any(|(_, answer)| wanted.contains(answer));
        let is_error = |(_, answer): &(HeldRow, Answer)| *answer == Answer::Error;
        let is_about_user = |(_, answer): &(HeldRow, Answer)| {
            matches!(answer, Answer::Given | Answer::Rejected | Answer::Mismatch)
        };
        let mut are_own = Vec::with_capacity(answers.len());
        for alike in answers.chunk_by(|one, other| is_error(one) == is_error(other)) {
            let is_own = if alike.iter().any(is_error) {
                let users = alike.iter().map(|(held, _)| held.candidate.member.user);
                !self.breaker.failed(now, users)
            } else {
                if alike.iter().any(is_about_user) {
                    self.breaker.answered();
                }
                false
            };
            are_own.extend(alike.iter().map(|_| is_own));
        }
        // A batch without an answer says nothing about any one of its users: each is called for alone next time.
        if has(&[Answer::Unknown]) && !answers.iter().any(|answer| is_error(answer) || is_about_user(answer))
        {
            self.breaker.failed(now, []);
        }
        // A balancer without a server behind it accepts connections and closes them. Later calls over a connection that
        // was closed say nothing new.
        if is_first && answers.iter().all(|(_, answer)| *answer == Answer::ConnectionExpired) {
            self.breaker.failed(now, []);
        }
        if has(&[Answer::Busy, Answer::PoolEmpty]) {
            self.breaker.paused(now, self.coupons.pause());
        }
        are_own
    }

    /// Makes the columns follow the carried messages; the next day run and the reconciliation mend a failure here.
    pub async fn follow(&self, carried: &MessagesCarried) {
        for ColumnUpdate { birthdays, granted } in &carried.column_updates {
            failpoints::reach("coupons-before-columns").await;
            if let Err(fault) = self.cohort.follow(birthdays, granted).await {
                tracing::warn!(%fault, "the columns of a birthday table could not be updated from the ledger");
            }
            failpoints::reach("coupons-after-columns").await;
        }
    }

    /// Runs one transaction about the rows of some candidates.
    async fn with_each<T: Send>(
        &self,
        run: &RunKey,
        candidates: &[Candidate],
        decide: impl Fn(&mut UsersLedger) -> T + Send + Sync,
    ) -> Result<T, Fault> {
        self.ledger.with_rows(run, &users(candidates), decide).await
    }
}

fn users(candidates: &[Candidate]) -> Vec<u64> {
    candidates.iter().map(|candidate| candidate.member.user).collect()
}

/// Returns whether a message can be carried with others: all are of one run, with [`MEMBERS_MAX`] members at most.
pub fn join<'m>(mut others: impl Iterator<Item = &'m Message>, message: &Message) -> bool {
    let members = message.members.len();
    let all = others
        .try_fold(members, |all, other| (other.run == message.run).then_some(all + other.members.len()));
    all.is_some_and(|all| all <= MEMBERS_MAX)
}

/// Returns the members of a batch that go on, with their results; counts the ends of the others.
fn going_on<I, T>(
    batch: Vec<I>,
    results: Vec<Result<T, MessageEnd>>,
    ends: &mut MessagesCarried,
    member: impl Fn(&I) -> Member,
) -> Vec<(I, T)> {
    let mut left = Vec::with_capacity(batch.len());
    for (item, result) in batch.into_iter().zip(results) {
        match result {
            Ok(value) => left.push((item, value)),
            Err(carried) => ends.end(member(&item), carried),
        }
    }
    left
}
