//! The task of a granter: takes messages of every part of the work queue and carries each through the ledger, the
//! sources and the coupon system.
//!
//! Any number of processes do it beside one another, without a lease: the ledger decides. A message that a worker
//! has taken is carried to its end also when the task ends, because an attempt that is cut off waits half an hour.

use std::collections::HashMap;
use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anabranch_coupons::breaker::Breaker;
use anabranch_coupons::ports::Clock;
use anabranch_coupons::records::{MEMBERS_MAX, Message, PARTS};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::metrics as names;
use anabranch_pipeline::supervise::{Supervisor, TaskHandle};
use anabranch_pipeline::throttle::{SharedThrottle, Throttle};
use metrics::{counter, gauge};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Process;
use super::assembly::{self, DayGranter};
use crate::wiring::{CouponDelivery, CouponQueuePart, Wiring};

/// The name of the task.
pub const GRANTER_TASK: &str = "granter";
/// Messages that a part has at hand: a second one is there when the first is through.
const MESSAGES_AT_HAND: usize = 2;
/// After so long a message comes again whose members could not all be carried.
const LATER: Duration = Duration::from_secs(30);
/// So many messages in a row that end with a fault are no matter of their users.
const FAULTS_MAX: u32 = 8;
/// The rate of a programme is kept over so long.
const RATE_PART: Duration = Duration::from_millis(100);

/// Starts the granter of this process, unless nothing is granted.
pub fn spawn_granter(supervisor: &mut Supervisor, wiring: &Wiring) {
    if wiring.config().coupon_system.is_none() {
        return;
    }
    let (wiring, breaker) = (wiring.clone(), Arc::new(Breaker::default()));
    gauge!(names::COUPON_BREAKER).set(0.0);
    for programme in super::programmes(wiring.config()).unwrap_or_default() {
        for outcome in [DONE, COMES_AGAIN] {
            let labels = [("programme", programme.name.to_string()), ("outcome", outcome.to_owned())];
            counter!(names::COUPON_CARRIED, &labels).increment(0);
        }
    }
    supervisor.spawn(GRANTER_TASK, move |handle: TaskHandle, cancel: CancellationToken| {
        let (wiring, breaker) = (wiring.clone(), breaker.clone());
        async move { grant(&wiring, breaker, &handle, &cancel).await }
    });
}

const DONE: &str = "done";
const COMES_AGAIN: &str = "later";

/// What all workers share.
struct Workers {
    granter: DayGranter,
    breaker: Arc<Breaker>,
    /// Messages that are carried at once.
    calls: Semaphore,
    rates: HashMap<Arc<str>, SharedThrottle>,
    faults_in_a_row: AtomicU32,
    handle: TaskHandle,
    /// Ends the workers, each after the message that it carries.
    ending: CancellationToken,
}

async fn grant(
    wiring: &Wiring,
    breaker: Arc<Breaker>,
    handle: &TaskHandle,
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    handle.waits_for("the work queue");
    let queue = wiring.work_queue().await?;
    handle.waits_for("the ledger of coupons");
    let granter = assembly::granter(wiring, breaker.clone()).await?;
    let calls = wiring.coupon_system()?.calls_in_flight.get();
    let rates = super::programmes(wiring.config())?.into_iter().map(|programme| {
        let (rate, most) = (u64::from(programme.rate_per_second.get()), programme.rate_per_second.get());
        let most = NonZeroUsize::new((most as usize).max(MEMBERS_MAX)).unwrap_or(NonZeroUsize::MIN);
        (programme.name.clone(), SharedThrottle::new(Throttle::new(NonZeroU64::new(rate), RATE_PART, most)))
    });
    let workers = Arc::new(Workers {
        granter,
        breaker,
        calls: Semaphore::new(calls),
        rates: rates.collect(),
        faults_in_a_row: AtomicU32::new(0),
        handle: handle.clone(),
        ending: cancel.child_token(),
    });
    let mut parts = JoinSet::new();
    for part in 0..PARTS {
        let (part, workers) = (queue.part(part).await?, workers.clone());
        parts.spawn(async move {
            let ended = workers.work(part).await;
            workers.ending.cancel();
            ended
        });
    }
    handle.begun();
    let mut first_fault = None;
    while let Some(ended) = parts.join_next().await {
        let ended = ended.unwrap_or_else(|error| {
            Err(Fault::new(Code::Internal, "granter", "a worker did not end").caused_by(error))
        });
        first_fault = first_fault.or(ended.err());
    }
    first_fault.map_or(Ok(()), Err)
}

impl Workers {
    /// Carries the messages of a part until the task ends or the coupon system does not answer.
    async fn work(&self, mut part: CouponQueuePart) -> Result<(), Fault> {
        while !self.ending.is_cancelled() {
            self.require_closed_breaker()?;
            let deliveries = tokio::select! {
                () = self.ending.cancelled() => return Ok(()),
                deliveries = part.next(MESSAGES_AT_HAND) => deliveries?,
            };
            self.handle.begun();
            for delivery in deliveries {
                self.deliver(delivery).await?;
            }
        }
        Ok(())
    }

    /// While the breaker is open the task is tried again like any other, and `status` says why.
    fn require_closed_breaker(&self) -> Result<(), Fault> {
        let is_open = self.breaker.is_open(Process.now());
        gauge!(names::COUPON_BREAKER).set(f64::from(u8::from(is_open)));
        match is_open {
            false => Ok(()),
            true => Err(Fault::new(
                Code::CouponSystemUnreachable,
                "coupon system",
                "it does not answer, asks for a pause or has no coupon left, so nothing is asked for a while",
            )),
        }
    }

    async fn deliver(&self, delivery: CouponDelivery) -> Result<(), Fault> {
        let Ok(_permit) = self.calls.acquire().await else { return Ok(()) };
        if self.ending.is_cancelled() {
            delivery.later(Duration::ZERO).await;
            return Ok(());
        }
        self.keep_rate(&delivery.message).await;
        let programme = delivery.message.run.programme.clone();
        match self.granter.carry(&delivery.message).await {
            Ok(carried) => {
                self.faults_in_a_row.store(0, Ordering::Relaxed);
                self.handle.well();
                let count = |outcome: &'static str, users: usize| {
                    let labels = [("programme", programme.to_string()), ("outcome", outcome.to_owned())];
                    counter!(names::COUPON_CARRIED, &labels).increment(users as u64);
                };
                count(DONE, carried.granted + carried.done);
                count(COMES_AGAIN, carried.later.len());
                if carried.later.is_empty() {
                    delivery.done().await;
                } else {
                    delivery.later(LATER).await;
                }
                Ok(())
            }
            Err(fault) => {
                counter!(names::RETRIES, "code" => fault.code().as_str()).increment(1);
                tracing::debug!(%fault, "a message of the work queue comes again");
                delivery.later(LATER).await;
                let is_lasting = self.faults_in_a_row.fetch_add(1, Ordering::Relaxed) + 1 >= FAULTS_MAX;
                if is_lasting || fault.code() == Code::CouponLedgerRestored { Err(fault) } else { Ok(()) }
            }
        }
    }

    /// Waits until the programme's rate allows the users of a message.
    async fn keep_rate(&self, message: &Message) {
        let Some(rate) = self.rates.get(&message.run.programme) else { return };
        let mut left = message.members.len();
        while left > 0 {
            let taken = rate.take().await.get();
            rate.give_back(taken.saturating_sub(left));
            left = left.saturating_sub(taken);
        }
    }
}
