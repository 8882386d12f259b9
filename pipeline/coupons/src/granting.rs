//! The granter: carries the members of a message through reserve, ask, look, issue, call and settle, all in step.
//!
//! It may die, sleep or be overtaken between any two steps. Each step of the ledger is one transaction that looks
//! whether each row is still its own attempt, so a granter that was overtaken changes nothing but a proof: whoever
//! learns that the coupon was given settles the row. A member who is refused, done or late leaves the batch, and the
//! others go on.

use std::sync::Arc;

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::failpoints;
use jiff::SignedDuration;

use crate::breaker::Breaker;
use crate::issuers::{Issuers, Issuing};
use crate::issuing::{Held, answered};
use crate::ports::{Answer, Clock, CohortRows, CouponSystem, Ledger, Register, SourceRows, Uniques};
use crate::records::{Candidate, Member, Message, RunKey, UsersLedger};
use crate::reserving::{Carried, Taken, denied, reserve, settle};

/// What a granter works with.
#[derive(Debug)]
pub struct Granter<L, S, C, B, R, U> {
    pub ledger: L,
    pub sources: S,
    pub coupons: C,
    /// Birthday tables, whose columns follow the ledger.
    pub cohort: B,
    pub register: R,
    /// The clock and the numbers of this process.
    pub process: U,
    /// One for all granters of the process.
    pub breaker: Arc<Breaker>,
    /// One for all granters of the process.
    pub issuers: Arc<Issuers>,
    /// How long the coupon system promises to know a key.
    pub key_memory: SignedDuration,
}

/// How a message ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MessageCarried {
    /// Coupons that were given now, or of which the granter learned that an abandoned call had given them.
    pub granted: usize,
    /// Members for whom nothing else is left to do: granted before, refused, or a dead letter.
    pub done: usize,
    /// Members for whom a message must come again.
    pub later: Vec<Member>,
}

impl MessageCarried {
    /// How the message as a whole ends.
    pub fn carried(&self) -> Carried {
        if self.later.is_empty() { Carried::Done } else { Carried::Later }
    }

    fn end(&mut self, member: Member, carried: Carried) {
        match carried {
            Carried::Done => self.done += 1,
            Carried::Later => self.later.push(member),
        }
    }
}

/// A row that an attempt holds.
type Reserved = (Candidate, Taken);

impl<L, S, C, B, R, U> Granter<L, S, C, B, R, U>
where
    L: Ledger,
    S: SourceRows,
    C: CouponSystem,
    B: CohortRows,
    R: Register,
    U: Clock + Uniques,
{
    /// Carries a message as far as it goes. A fault means that it comes again, like members that are late.
    pub async fn carry(&self, message: &Message) -> Result<MessageCarried, Fault> {
        let mut ends = MessageCarried::default();
        if self.breaker.is_open(self.process.now()) {
            ends.later.clone_from(&message.members);
            return Ok(ends);
        }
        // Without a connection nothing is reserved. Its age bounds the time from here to the call.
        let mut connection = self.connect().await?;
        failpoints::reach("coupons-before-reserve").await;
        let mut batch = self.reserve(message, &mut ends).await?;
        failpoints::reach("coupons-after-reserve").await;
        if batch.iter().any(|(_, taken)| taken.may_have_called) {
            batch = self.ask(&message.run, batch, &mut ends).await?;
            connection = self.connect().await?;
        }
        let batch = self.look(batch).await?;
        let issued = self.issue(&message.run, batch, &mut ends).await?;
        // A row whose earlier call had no answer is called for alone: it may be the reason.
        let (alone, together): (Vec<_>, Vec<_>) =
            issued.into_iter().partition(|held| held.taken.may_have_called);
        let batches = [together].into_iter().chain(alone.into_iter().map(|held| vec![held]));
        for batch in batches.filter(|batch| !batch.is_empty()) {
            self.call(&message.run, &connection, batch, &mut ends).await?;
        }
        Ok(ends)
    }

    /// Opens a connection; a failure is the system's.
    async fn connect(&self) -> Result<C::Connection, Fault> {
        let connection = self.coupons.connect().await;
        connection.inspect_err(|_| self.breaker.paused(self.process.now()))
    }

    async fn reserve(&self, message: &Message, ends: &mut MessageCarried) -> Result<Vec<Reserved>, Fault> {
        let attempt = self.process.fresh();
        let candidates: Vec<Candidate> = message.candidates().collect();
        let taken = self.of_each(&message.run, &candidates, |l| {
            let reserve = |candidate: &Candidate| {
                let user = l.users.get_mut(&candidate.member.user).ok_or(Carried::Later)?;
                reserve(user, candidate, attempt)
            };
            candidates.iter().map(reserve).collect()
        });
        let taken: Vec<Result<Taken, Carried>> = taken.await?;
        Ok(going_on(candidates, taken, ends, |candidate| candidate.member))
    }

    /// Learns the outcomes of earlier attempts' calls before anything else is decided about their rows.
    async fn ask(
        &self,
        run: &RunKey,
        batch: Vec<Reserved>,
        ends: &mut MessageCarried,
    ) -> Result<Vec<Reserved>, Fault> {
        let (called, mut batch): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|(_, taken)| taken.may_have_called);
        let keys: Vec<_> = called.iter().map(|(_, taken)| taken.key.clone()).collect();
        let known = self.coupons.knows(&keys).await.unwrap_or_else(|fault| {
            tracing::warn!(%fault, "the coupon system does not say what became of earlier calls");
            Vec::new()
        });
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
        let left = self.of_each(run, &candidates, |l| {
            for (candidate, taken) in &given {
                if let Some(user) = l.users.get_mut(&candidate.member.user) {
                    settle(user, candidate, &taken.key, &taken.coupon);
                }
            }
            let denied = |(candidate, taken): &Reserved| {
                let user = l.users.get_mut(&candidate.member.user).ok_or(Carried::Later)?;
                denied(user, taken, memory)
            };
            unknown.iter().map(denied).collect()
        });
        let left: Vec<Result<(), Carried>> = left.await?;
        ends.granted += given.len();
        self.follow(&given).await;
        let left = going_on(unknown, left, ends, |(candidate, _)| candidate.member);
        batch.extend(left.into_iter().map(|(reserved, ())| reserved));
        Ok(batch)
    }

    /// Reads the source rows of a batch.
    async fn look(&self, batch: Vec<Reserved>) -> Result<Vec<Held>, Fault> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let users: Vec<_> =
            batch.iter().map(|(candidate, taken)| (candidate.member.user, taken.claims.clone())).collect();
        // An answer that is shorter than asked leaves the rest unread.
        let sources = self.sources.look(&users).await?.into_iter().chain(std::iter::repeat(None));
        let held = |((candidate, taken), source)| Held { candidate, taken, source };
        Ok(batch.into_iter().zip(sources).map(held).collect())
    }

    /// Issues a batch; who is not due leaves it.
    async fn issue(
        &self,
        run: &RunKey,
        batch: Vec<Held>,
        ends: &mut MessageCarried,
    ) -> Result<Vec<Held>, Fault> {
        let Self { ledger, register, process, issuers, .. } = self;
        let issued = Issuing { ledger, register, process, issuers }.issue(run, &batch).await?;
        let issued = going_on(batch, issued, ends, |held| held.candidate.member);
        Ok(issued.into_iter().map(|(held, ())| held).collect())
    }

    /// Calls once for a batch, and writes down what the answers say.
    async fn call(
        &self,
        run: &RunKey,
        connection: &C::Connection,
        batch: Vec<Held>,
        ends: &mut MessageCarried,
    ) -> Result<(), Fault> {
        let coupons: Vec<_> =
            batch.iter().map(|held| (held.taken.key.clone(), held.taken.coupon.clone())).collect();
        failpoints::reach("coupons-before-call").await;
        let answers = self.coupons.call(connection, &coupons).await?;
        failpoints::reach("coupons-before-settle").await;
        // A key without an answer is one of unknown outcome.
        let answers = answers.into_iter().chain(std::iter::repeat(Answer::Unknown));
        let answers: Vec<(Held, Answer)> = batch.into_iter().zip(answers).collect();
        let counts_unknown = self.weigh(&answers);
        let candidates: Vec<Candidate> = answers.iter().map(|(held, _)| held.candidate.clone()).collect();
        let carried = self.of_each(run, &candidates, |l| {
            let write = |(held, answer): &(Held, Answer)| {
                let Held { candidate, taken, .. } = held;
                let Some(user) = l.users.get_mut(&candidate.member.user) else { return Carried::Later };
                let counts = match answer {
                    Answer::Given => {
                        settle(user, candidate, &taken.key, &taken.coupon);
                        return Carried::Done;
                    }
                    Answer::Rejected | Answer::Mismatch => true,
                    Answer::Unknown => counts_unknown,
                    Answer::Busy | Answer::PoolEmpty | Answer::ConnectionExpired => false,
                };
                answered(user, taken, *answer, counts)
            };
            answers.iter().map(write).collect::<Vec<_>>()
        });
        let mut given = Vec::new();
        for ((held, answer), carried) in answers.iter().zip(carried.await?) {
            if *answer == Answer::Given {
                given.push((held.candidate.clone(), held.taken.clone()));
            } else {
                ends.end(held.candidate.member, carried);
            }
        }
        failpoints::reach("coupons-after-settle").await;
        ends.granted += given.len();
        self.follow(&given).await;
        Ok(())
    }

    /// Tells the breaker of the answers to a call; returns whether an unknown outcome counts as a user's own.
    fn weigh(&self, answers: &[(Held, Answer)]) -> bool {
        let now = self.process.now();
        let has = |wanted: &[Answer]| answers.iter().any(|(_, answer)| wanted.contains(answer));
        let is_about_users = has(&[Answer::Given, Answer::Rejected, Answer::Mismatch]);
        if is_about_users {
            self.breaker.answered();
        }
        if has(&[Answer::Busy, Answer::PoolEmpty]) {
            self.breaker.paused(now);
        }
        if is_about_users || !has(&[Answer::Unknown]) {
            return is_about_users;
        }
        let is_the_systems = self.breaker.failed(now);
        // A batch without an answer says nothing about any one of its users: each is called for alone next time.
        !is_the_systems && answers.len() == 1
    }

    /// Lets the columns follow; a fault here is mended by the next day run and by the reconciliation.
    async fn follow(&self, given: &[Reserved]) {
        let Some((_, first)) = given.first() else { return };
        let granted: Vec<_> = given.iter().map(|(_, taken)| (taken.key.user, taken.key.occurrence)).collect();
        if let Err(fault) = self.cohort.follow(&first.birthdays, &granted).await {
            tracing::warn!(%fault, "the columns of a birthday table do not follow the ledger yet");
        }
    }

    /// One transaction about the users of some candidates.
    async fn of_each<T: Send>(
        &self,
        run: &RunKey,
        candidates: &[Candidate],
        decide: impl Fn(&mut UsersLedger) -> T + Send + Sync,
    ) -> Result<T, Fault> {
        let users: Vec<u64> = candidates.iter().map(|candidate| candidate.member.user).collect();
        self.ledger.of_users(run, &users, decide).await
    }
}

/// Returns who of a batch goes on, with what each got; the ends of the others are counted.
fn going_on<I, T>(
    batch: Vec<I>,
    results: Vec<Result<T, Carried>>,
    ends: &mut MessageCarried,
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
