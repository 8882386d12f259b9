//! Issues: the token goes into the ledger with the rows, and then into the register, both before the call.
//!
//! The ledger lets one issue through at a time, so the granters of a process do not queue for it one by one: the next
//! one issues for all that wait, under one token. A granter that ends or sleeps while it issues for others leaves their
//! rows as its own: messages for their members come again.

use std::sync::{Mutex, PoisonError};

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::failpoints;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::oneshot::{self, Receiver, Sender};

use crate::issuing::{Chain, HeldRow, is_registered, issue};
use crate::ports::{Ledger, Register, Uniques};
use crate::records::{LedgerRow, RunKey, Unique};
use crate::reserving::MessageEnd;
use crate::restored;

/// Attempts of a granter to issue while other processes issue first. Rows that it cannot issue wait for half an hour.
const ISSUES_MAX: u32 = 20;
/// Messages that one transaction issues together, at most, since it holds the locks of their users.
const TOGETHER_MAX: usize = 16;

/// The result of each row of a batch, in its order.
pub(crate) type Issued = Vec<Result<LedgerRow, MessageEnd>>;

/// The issues that all granters of a process share.
#[derive(Debug, Default)]
pub struct Issuers {
    /// The register's token as this process last wrote it. The ledger compares it, so an old one does no harm.
    register: tokio::sync::Mutex<Option<Unique>>,
    waiting: Mutex<Vec<Waiting>>,
}

/// A batch that waits for its issue.
#[derive(Debug)]
struct Waiting {
    run: RunKey,
    batch: Vec<HeldRow>,
    reply: Sender<Issued>,
}

impl Issuers {
    fn add(&self, run: &RunKey, batch: &[HeldRow]) -> Receiver<Issued> {
        let (reply, receiver) = oneshot::channel();
        let waiting = Waiting { run: run.clone(), batch: batch.to_vec(), reply };
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(waiting);
        receiver
    }

    /// Returns the batches of a run that wait longest, without those whose granter has stopped waiting.
    fn take_waiting(&self, run: &RunKey) -> Vec<Waiting> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|waiting| !waiting.reply.is_closed());
        let mut left = TOGETHER_MAX;
        let is_taken = |waiting: &mut Waiting| {
            let is_taken = left > 0 && waiting.run == *run;
            left -= usize::from(is_taken);
            is_taken
        };
        waiting.extract_if(.., is_taken).collect()
    }
}

/// The parts of a granter that an issue needs.
pub(crate) struct Issuing<'a, L, R, U> {
    pub(crate) ledger: &'a L,
    pub(crate) register: &'a R,
    pub(crate) process: &'a U,
    pub(crate) issuers: &'a Issuers,
}

impl<L: Ledger, R: Register, U: Uniques> Issuing<'_, L, R, U> {
    /// Issues a batch, together with others that wait. Rows whose result is not known come again.
    pub(crate) async fn issue(&self, run: &RunKey, batch: &[HeldRow]) -> Result<Issued, Fault> {
        if batch.is_empty() {
            return Ok(Issued::new());
        }
        let mut reply = self.issuers.add(run, batch);
        let mut known = tokio::select! {
            biased;
            issued = &mut reply => return Ok(issued.unwrap_or_else(|_| late(batch))),
            known = self.issuers.register.lock() => known,
        };
        loop {
            match reply.try_recv() {
                Ok(issued) => return Ok(issued),
                Err(TryRecvError::Closed) => return Ok(late(batch)),
                Err(TryRecvError::Empty) => self.issue_waiting(run, &mut known).await?,
            }
        }
    }

    async fn issue_waiting(&self, run: &RunKey, known: &mut Option<Unique>) -> Result<(), Fault> {
        let (mut all, mut replies) = (Vec::new(), Vec::new());
        for Waiting { batch, reply, .. } in self.issuers.take_waiting(run) {
            replies.push((batch.len(), reply));
            all.extend(batch);
        }
        let mut issued = self.issue_all(run, &all, known).await?.into_iter();
        for (rows, reply) in replies {
            // A granter that has ended meanwhile leaves its rows as one that died before the call.
            _ = reply.send(issued.by_ref().take(rows).collect());
        }
        Ok(())
    }

    async fn issue_all(
        &self,
        run: &RunKey,
        batch: &[HeldRow],
        known: &mut Option<Unique>,
    ) -> Result<Issued, Fault> {
        let users: Vec<u64> = batch.iter().map(|held| held.candidate.member.user).collect();
        for _ in 0..ISSUES_MAX {
            // A token that is not written back stays unknown, also when this call is cancelled.
            let register = match known.take() {
                Some(register) => register,
                None => match self.level().await? {
                    Some(register) => register,
                    None => continue,
                },
            };
            let token = self.process.fresh();
            failpoints::reach("coupons-before-issue").await;
            let issued = self.ledger.with_rows(run, &users, |l| issue(l, batch, token, register)).await?;
            failpoints::reach("coupons-after-issue").await;
            let Ok(issued) = issued else { continue };
            if issued.iter().all(Result::is_err) {
                *known = Some(register);
                return Ok(issued);
            }
            let is_moved = self.register.swap(register, token).await?;
            failpoints::reach("coupons-after-swap").await;
            if is_moved {
                *known = Some(token);
            } else if !self.is_registered(run, batch, &issued).await? {
                return Ok(issued.into_iter().map(|issued| issued.and(Err(MessageEnd::Later))).collect());
            }
            return Ok(issued);
        }
        Ok(late(batch))
    }

    /// Returns whether the register knows of these rows because another granter has moved it.
    async fn is_registered(&self, run: &RunKey, batch: &[HeldRow], issued: &Issued) -> Result<bool, Fault> {
        let issued = batch.iter().zip(issued).filter(|(_, issued)| issued.is_ok());
        let issued: Vec<HeldRow> = issued.map(|(held, _)| held.clone()).collect();
        let users: Vec<u64> = issued.iter().map(|held| held.candidate.member.user).collect();
        for _ in 0..ISSUES_MAX {
            let Some(register) = self.level().await? else { continue };
            if self.ledger.with_rows(run, &users, |l| is_registered(l, &issued, register)).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the register's token once it is the ledger's latest; `None` while other processes issue.
    async fn level(&self) -> Result<Option<Unique>, Fault> {
        let (chain, tokens, register) = restored::compare(self.ledger, self.register).await?;
        match chain {
            None => Ok(None),
            Some(Chain::Level) => Ok(Some(register)),
            Some(Chain::RegisterLagging) => {
                let is_moved = self.register.swap(register, tokens.latest).await?;
                Ok(is_moved.then_some(tokens.latest))
            }
            Some(Chain::Restored) => Err(restored::fault()),
        }
    }
}

/// Returns the result with which every row of a batch comes again.
fn late(batch: &[HeldRow]) -> Issued {
    batch.iter().map(|_| Err(MessageEnd::Later)).collect()
}
