//! The granter: carries one message through reserve, ask, look, issue, call and settle.
//!
//! It may die, sleep or be overtaken between any two steps. Each step of the ledger is one transaction that looks
//! whether the row is still its own attempt, so a granter that was overtaken changes nothing but a proof: whoever
//! learns that the coupon was given settles the row.

use std::sync::Arc;

use anabranch_pipeline::error::Fault;
use jiff::SignedDuration;

use crate::breaker::Breaker;
use crate::issuing::{Chain, answered, issue};
use crate::ports::{Answer, Clock, CohortRows, CouponSystem, Ledger, Register, SourceRows, Uniques};
use crate::records::{Message, Unique};
use crate::reserving::{Carried, Taken, denied, judge, looked, reserve, settle};
use crate::restored;

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
    /// How long the coupon system promises to know a key.
    pub key_memory: SignedDuration,
}

impl<L, S, C, B, R, U> Granter<L, S, C, B, R, U>
where
    L: Ledger,
    S: SourceRows,
    C: CouponSystem,
    B: CohortRows,
    R: Register,
    U: Clock + Uniques,
{
    /// Carries a message as far as it goes. A fault means that it comes again, like [`Carried::Later`].
    pub async fn carry(&self, message: &Message) -> Result<Carried, Fault> {
        match self.steps(message).await {
            Ok(()) => Ok(Carried::Done),
            Err(End::Carried(carried)) => Ok(carried),
            Err(End::Fault(fault)) => Err(fault),
        }
    }

    async fn steps(&self, message: &Message) -> Result<(), End> {
        if self.breaker.is_open(self.process.now()) {
            return Err(Carried::Later.into());
        }
        // Without a connection nothing is reserved. Its age bounds the time from here to the call.
        let mut connection = self.connect().await?;
        let (run, user) = (&message.run, message.member.user);
        let attempt = self.process.fresh();
        let taken = self.ledger.of_user(run, user, |l| reserve(l, message, attempt)).await??;
        if taken.may_have_called {
            self.ask(message, &taken).await?;
            connection = self.connect().await?;
        }
        let rows = self.sources.look(user, &taken.claims).await?;
        let calendar = message.member.calendar;
        let look = |l: &mut crate::records::UserLedger| {
            let verdict = judge(&rows, &taken, calendar, l.now);
            looked(l, message, &taken, verdict)
        };
        self.ledger.of_user(run, user, look).await??;
        self.issue(message, &taken).await?;
        let answer = self.coupons.call(&connection, &taken.key, &taken.coupon).await?;
        self.answered(message, &taken, answer).await
    }

    /// Opens a connection; a failure is the system's.
    async fn connect(&self) -> Result<C::Connection, End> {
        let connection = self.coupons.connect().await;
        connection.map_err(|fault| {
            self.breaker.paused(self.process.now());
            fault.into()
        })
    }

    /// Learns the outcome of an earlier attempt's call before anything else is decided.
    async fn ask(&self, message: &Message, taken: &Taken) -> Result<(), End> {
        let (run, user) = (&message.run, message.member.user);
        if self.coupons.knows(&taken.key).await? {
            self.settled(message, taken).await?;
            return Err(Carried::Done.into());
        }
        let memory = self.key_memory;
        self.ledger.of_user(run, user, |l| denied(l, taken, memory)).await??;
        Ok(())
    }

    /// Writes a token into the ledger with the row, and then into the register, both before the call.
    async fn issue(&self, message: &Message, taken: &Taken) -> Result<(), End> {
        let register = self.level().await?;
        let token = self.process.fresh();
        let (run, user) = (&message.run, message.member.user);
        self.ledger.of_user(run, user, |l| issue(l, message, taken, token, register)).await??;
        let is_told = self.register.swap(register, token).await? || self.register.read().await? == token;
        if is_told { Ok(()) } else { Err(Carried::Later.into()) }
    }

    /// The register's token once it is the ledger's latest.
    async fn level(&self) -> Result<Unique, End> {
        let (chain, tokens, register) = restored::compare(&self.ledger, &self.register).await?;
        match chain {
            None => Err(Carried::Later.into()),
            Some(Chain::Level) => Ok(register),
            Some(Chain::RegisterBehind) => match self.register.swap(register, tokens.latest).await? {
                true => Ok(tokens.latest),
                false => Err(Carried::Later.into()),
            },
            Some(Chain::Restored) => Err(restored::fault().into()),
        }
    }

    async fn answered(&self, message: &Message, taken: &Taken, answer: Answer) -> Result<(), End> {
        let now = self.process.now();
        let counts = match answer {
            Answer::Given => {
                self.breaker.answered();
                return self.settled(message, taken).await;
            }
            Answer::Rejected | Answer::Mismatch => {
                self.breaker.answered();
                true
            }
            Answer::Unknown => !self.breaker.failed(now),
            Answer::Busy | Answer::PoolEmpty => {
                self.breaker.paused(now);
                false
            }
            Answer::ConnectionExpired => false,
        };
        let (run, user) = (&message.run, message.member.user);
        let carried = self.ledger.of_user(run, user, |l| answered(l, taken, answer, counts)).await?;
        Err(carried.into())
    }

    async fn settled(&self, message: &Message, taken: &Taken) -> Result<(), End> {
        let (run, user) = (&message.run, message.member.user);
        self.ledger.of_user(run, user, |l| settle(l, message, &taken.key, &taken.coupon)).await?;
        // The columns follow; a fault here is mended by the next day run and by the reconciliation.
        if let Err(fault) = self.cohort.follow(user, &taken.birthdays, taken.key.occurrence).await {
            tracing::warn!(%fault, "the columns of a birthday table do not follow the ledger yet");
        }
        Ok(())
    }
}

/// Why the steps ended early.
enum End {
    Carried(Carried),
    Fault(Fault),
}

impl From<Carried> for End {
    fn from(carried: Carried) -> Self {
        Self::Carried(carried)
    }
}

impl From<Fault> for End {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}
