//! The task of a granter: takes messages of every part of the work queue and carries each through the ledger, the
//! sources and the coupon system.
//!
//! Any number of processes do it at once, without a lease: the ledger decides. A worker carries a message that it has
//! taken to its end also when the task ends, because an attempt that is cut off waits half an hour. Messages of few
//! users are carried together, and columns of birthday tables are written during the next messages. While lanes lag,
//! one batch at a time is carried (`lane_lag.rs`). The granters of all processes share the rate of a programme. They
//! hold their messages while they wait for it (`holding.rs`), or put them back while other programmes have messages.

use std::future::ready;
use std::num::NonZeroUsize;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anabranch_coupons::breaker::Breaker;
use anabranch_coupons::granting::{MessagesCarried, join};
use anabranch_coupons::ports::{Clock, Uniques};
use anabranch_coupons::rates::{GranterCount, KeptRate, REPORT_EVERY, Rates};
use anabranch_coupons::records::{MEMBERS_MAX, Message, PARTS};
use anabranch_coupons::reserving::MessageEnd;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::metrics as names;
use anabranch_pipeline::supervise::{Ready, Supervisor, TaskHandle, running};
use metrics::{counter, gauge};
use tokio::sync::{Mutex, OnceCell};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::Process;
use super::assembly::{self, DayGranter};
use super::holding::Notes;
use super::lane_lag::LaneLag;
use super::pace::{Pace, Turn};
use crate::wiring::{CouponDelivery, CouponQueuePart, CouponSources, Wiring};

/// Name of the task.
pub const GRANTER_TASK: &str = "granter";
/// Members that a part has at hand, about: a second batch is there when the first is through.
const MEMBERS_AT_HAND: usize = 2 * MEMBERS_MAX;
/// Time after which messages come again that could not be carried.
const LATER: Duration = Duration::from_secs(30);
/// Time after which a message comes again that the coupon system put off. Workers wait for the end of the pause.
const RELEASED: Duration = Duration::from_secs(1);
/// Pauses of the coupon system that workers wait for; a longer one ends the task.
const SHORT_PAUSE: Duration = Duration::from_secs(10);
/// A message that would wait longer for its programme's rate goes back, so that those of other programmes go on.
const RATE_WAIT_MAX: Duration = Duration::from_secs(1);
/// Time for which such a message goes back, at most.
const PUT_BACK_MAX: Duration = Duration::from_secs(60);
/// Messages in a row whose faults end the task: so many failures are not due to the users of the messages.
const FAULTS_MAX: u32 = 8;
/// Time that the end of the task waits for the register of granters, at most.
const LEAVING_MAX: Duration = Duration::from_secs(1);

/// Starts the granter of this process.
pub fn spawn_granter(supervisor: &mut Supervisor, wiring: &Wiring, lane_lag: &LaneLag) {
    let count = GranterCount::new(&format!("{:032x}", Process.fresh().0));
    let kept = Kept { breaker: Arc::default(), count: Arc::new(Mutex::new(count)), sources: Arc::default() };
    gauge!(names::COUPON_BREAKER).set(0.0);
    for programme in super::programmes(wiring.config()).unwrap_or_default() {
        for outcome in [DONE, COMES_AGAIN] {
            let labels = [("programme", programme.name.to_string()), ("outcome", outcome.to_owned())];
            counter!(names::COUPON_CARRIED, &labels).increment(0);
        }
    }
    let context = (wiring.clone(), lane_lag.clone(), kept);
    supervisor.spawn_with(GRANTER_TASK, context, |(wiring, lane_lag, kept), handle, cancel| async move {
        grant((&wiring, &lane_lag), kept, &handle, &cancel).await
    });
}

const DONE: &str = "done";
const COMES_AGAIN: &str = "later";

/// State that outlives the task: one that is tried again is the same granter, and remembers the other granters, the
/// tables of the sources, and which sources do not answer.
#[derive(Clone)]
struct Kept {
    breaker: Arc<Breaker>,
    count: Arc<Mutex<GranterCount>>,
    sources: Arc<OnceCell<CouponSources>>,
}

/// State that all workers share.
struct Workers {
    granter: DayGranter,
    breaker: Arc<Breaker>,
    pace: Pace,
    rates: Rates,
    faults_in_a_row: AtomicU32,
    handle: TaskHandle,
    /// Ends the workers, each after the message that it carries.
    ending: CancellationToken,
}

async fn grant(
    context: (&Wiring, &LaneLag),
    kept: Kept,
    handle: &TaskHandle,
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    running(handle, async |ready: Ready| carry_all(context, kept, (handle, &ready), cancel).await).await
}

/// Carries messages with a worker for each part of the queue, until the task ends or one of them fails.
async fn carry_all(
    (wiring, lane_lag): (&Wiring, &LaneLag),
    Kept { breaker, count, sources }: Kept,
    (handle, ready_to_grant): (&TaskHandle, &Ready),
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    handle.waits_for("the work queue");
    let queue = wiring.work_queue().await?;
    handle.waits_for("the ledger of coupons");
    let sources = sources.get_or_try_init(|| ready(wiring.coupon_sources())).await?.clone();
    let granter = assembly::granter(wiring, (breaker.clone(), sources), lane_lag).await?;
    let calls = wiring.coupon_system()?.calls_in_flight.get();
    let workers = Arc::new(Workers {
        granter,
        breaker,
        pace: Pace::new(calls),
        rates: Rates::new(&super::programmes(wiring.config())?, NonZeroUsize::MIN),
        faults_in_a_row: AtomicU32::new(0),
        handle: handle.clone(),
        ending: cancel.child_token(),
    });
    workers.require_closed_breaker()?;
    let mut opened = Vec::new();
    for part in 0..PARTS {
        opened.push(queue.part(part).await?);
    }
    handle.waits_for("the log");
    // Only a granter that can grant takes a part of the rates. From here on every end leaves the register.
    workers.rates.share(count.lock().await.report(wiring.log().await?).await?);
    let mut parts = JoinSet::new();
    parts.spawn(share_rates(wiring.clone(), count, Arc::clone(&workers)));
    for part in opened {
        let workers = Arc::clone(&workers);
        parts.spawn(async move {
            let mut following = JoinSet::new();
            let ended = workers.work(part, &mut following).await;
            workers.ending.cancel();
            while following.join_next().await.is_some() {}
            ended
        });
    }
    ready_to_grant.report();
    let mut first_fault = None;
    while let Some(ended) = parts.join_next().await {
        // A worker that panicked has not done so.
        workers.ending.cancel();
        let ended = ended.unwrap_or_else(|error| {
            Err(Fault::new(Code::Internal, "granter", "a worker did not end").caused_by(error))
        });
        first_fault = first_fault.or(ended.err());
    }
    first_fault.map_or(Ok(()), Err)
}

/// Counts the granters of all processes until the task ends; the rates are shared among them.
async fn share_rates(
    wiring: Wiring,
    count: Arc<Mutex<GranterCount>>,
    workers: Arc<Workers>,
) -> Result<(), Fault> {
    let mut count = count.lock().await;
    let log = wiring.log().await?;
    loop {
        tokio::select! {
            () = workers.ending.cancelled() => break,
            () = sleep(REPORT_EVERY) => {}
        }
        match count.report(log).await {
            Ok(granters) => workers.rates.share(granters),
            Err(fault) => tracing::debug!(%fault, "the granters were not counted; the last count holds"),
        }
    }
    // The others notice a granter that left without this, after a while.
    _ = timeout(LEAVING_MAX, count.leave(log)).await;
    Ok(())
}

impl Workers {
    /// Carries the messages of a part until the task ends or the coupon system does not answer.
    async fn work(
        self: &Arc<Self>,
        mut part: CouponQueuePart,
        following: &mut JoinSet<()>,
    ) -> Result<(), Fault> {
        let mut at_hand = MEMBERS_AT_HAND / MEMBERS_MAX;
        while !self.ending.is_cancelled() {
            self.wait_for_breaker().await?;
            let deliveries = tokio::select! {
                () = self.ending.cancelled() => break,
                deliveries = part.next(at_hand) => deliveries?,
            };
            let largest = deliveries.iter().map(|delivery| delivery.message.members.len()).max();
            at_hand = MEMBERS_AT_HAND / largest.unwrap_or(MEMBERS_MAX).max(1);
            let (mut waiting, mut notes) = (batches(deliveries), Notes::new());
            waiting.reverse();
            while let Some(next) = waiting.pop() {
                let carried = notes.during(Box::pin(self.deliver(next)), || note(&waiting)).await?;
                while following.join_next().await.is_some() {}
                if let Some(carried) = carried {
                    let workers = Arc::clone(self);
                    following.spawn(async move { workers.granter.follow(&carried).await });
                }
            }
        }
        Ok(())
    }

    /// Waits for the end of a short pause; a long one is a fault.
    async fn wait_for_breaker(&self) -> Result<(), Fault> {
        while let Some(pause) = self.breaker.open_for(Process.now()).filter(|pause| *pause <= SHORT_PAUSE) {
            tokio::select! {
                () = self.ending.cancelled() => return Ok(()),
                () = sleep(pause) => {}
            }
        }
        self.require_closed_breaker()
    }

    /// Returns a fault while the breaker is open: the task is then tried again, and `status` shows the fault.
    fn require_closed_breaker(&self) -> Result<(), Fault> {
        let (now, breaker) = (Process.now(), &self.breaker);
        let is_open = breaker.is_open(now);
        gauge!(names::COUPON_BREAKER).set(f64::from(u8::from(breaker.is_away(now))));
        match is_open {
            false => Ok(()),
            true => Err(Fault::new(
                Code::CouponSystemUnreachable,
                "coupon system",
                "it does not answer, asks for a pause or has no coupon left, so granters send no request for a while",
            )),
        }
    }

    /// Waits until these messages may be carried; returns their turn, whether lanes lag, and the rate that they keep.
    /// An error is the time for which they go back to the queue.
    async fn turn(&self, messages: &[Message]) -> Result<(Turn<'_>, bool, KeptRate), Duration> {
        // A batch that waits for the rate takes no turn of others.
        let kept = self.keep_rate(messages).await?;
        let (turn, are_lanes_late) = self.pace.turn(|| self.granter.cohort.are_lanes_late()).await;
        Ok((turn, are_lanes_late, kept))
    }

    /// Waits until the rate of a programme allows messages of one run. An error is the time that they have to wait if
    /// they would hold up the messages of other programmes for long.
    async fn keep_rate(&self, messages: &[Message]) -> Result<KeptRate, Duration> {
        let mut kept = KeptRate::default();
        let Some(Message { run, .. }) = messages.first() else { return Ok(kept) };
        let wait = self.rates.holds_up_others(&run.programme);
        if let Some(wait) = wait.filter(|wait| *wait > RATE_WAIT_MAX) {
            return Err(wait);
        }
        let keep = async {
            for message in messages {
                kept.add(self.rates.keep(message).await);
            }
        };
        if wait.is_none() {
            keep.await;
            return Ok(kept);
        }
        // Workers of other parts may have come first.
        if timeout(RATE_WAIT_MAX, keep).await.is_ok() {
            return Ok(kept);
        }
        self.rates.give_back(&run.programme, kept, 0);
        Err(self.rates.holds_up_others(&run.programme).unwrap_or_default())
    }

    /// Carries messages of one run together, and ends each; `None` if they come again. Columns follow later.
    async fn deliver(&self, deliveries: Vec<CouponDelivery>) -> Result<Option<MessagesCarried>, Fault> {
        let messages: Vec<Message> = deliveries.iter().map(|delivery| delivery.message.clone()).collect();
        let mut notes = Notes::new();
        let turn = tokio::select! {
            biased;
            () = self.ending.cancelled() => Err(Duration::ZERO),
            turn = notes.during(Box::pin(self.turn(&messages)), || note(from_ref(&deliveries))) => turn,
        };
        let (_turn, are_lanes_late, kept) = match turn {
            Ok(turn) => turn,
            Err(wait) => {
                put_back(deliveries, wait).await;
                return Ok(None);
            }
        };
        let (began, mut ends) = (Instant::now(), MessagesCarried::default());
        let carry = Box::pin(self.granter.carry(&messages, &mut ends));
        let carried = notes.during(carry, || note(from_ref(&deliveries))).await;
        let (took, called) = (began.elapsed(), ends.called);
        if let Some(message) = messages.first() {
            self.rates.give_back(&message.run.programme, kept, called);
        }
        let carried = carried.map(|()| ends);
        match &carried {
            Ok(carried) => {
                self.faults_in_a_row.store(0, Ordering::Relaxed);
                self.handle.well();
                count(&messages, carried);
            }
            Err(fault) => {
                counter!(names::RETRIES, "code" => fault.code().as_str()).increment(1);
                tracing::debug!(%fault, "messages of the work queue will be delivered again");
            }
        }
        end(deliveries, carried.as_ref().ok()).await;
        if are_lanes_late {
            // No other batch begins meanwhile. The end of the task does not wait for the pause.
            tokio::select! {
                () = self.ending.cancelled() => {}
                () = sleep(self.pace.pause(took)) => {}
            }
        }
        match carried {
            Ok(carried) => Ok(Some(carried)),
            Err(fault) => {
                let is_lasting = self.faults_in_a_row.fetch_add(1, Ordering::Relaxed) + 1 >= FAULTS_MAX;
                if is_lasting || fault.code() == Code::CouponLedgerRestored { Err(fault) } else { Ok(None) }
            }
        }
    }
}

/// Puts messages back that were not carried, each time for longer.
async fn put_back(deliveries: Vec<CouponDelivery>, wait: Duration) {
    for delivery in deliveries {
        let times = u32::try_from(delivery.deliveries).unwrap_or(u32::MAX).max(1);
        delivery.later(wait.saturating_mul(times).min(PUT_BACK_MAX)).await;
    }
}

/// Ends messages that were carried together, or has them come again: all of them after a fault.
async fn end(deliveries: Vec<CouponDelivery>, carried: Option<&MessagesCarried>) {
    for delivery in deliveries {
        match carried {
            Some(ends) if ends.of(&delivery.message) == MessageEnd::Done => delivery.acknowledge().await,
            Some(_) => delivery.later(RELEASED).await,
            None => delivery.later(LATER).await,
        }
    }
}

/// Says of each message that work on it goes on.
async fn note(batches: &[Vec<CouponDelivery>]) {
    for delivery in batches.iter().flatten() {
        delivery.in_progress().await;
    }
}

/// Counts the users of messages of one run by how they ended.
fn count(messages: &[Message], carried: &MessagesCarried) {
    let Some(message) = messages.first() else { return };
    for (outcome, users) in [(DONE, carried.granted + carried.done), (COMES_AGAIN, carried.later.len())] {
        let labels = [("programme", message.run.programme.to_string()), ("outcome", outcome.to_owned())];
        counter!(names::COUPON_CARRIED, &labels).increment(users as u64);
    }
}

/// Groups messages that are carried together. One that comes again is carried alone: it may be why others failed.
fn batches(deliveries: Vec<CouponDelivery>) -> Vec<Vec<CouponDelivery>> {
    let mut batches: Vec<Vec<CouponDelivery>> = Vec::new();
    for delivery in deliveries {
        let last = batches.last_mut().filter(|batch| {
            let is_first = batch.iter().chain([&delivery]).all(|delivery| delivery.deliveries <= 1);
            is_first && join(batch.iter().map(|delivery| &delivery.message), &delivery.message)
        });
        match last {
            Some(batch) => batch.push(delivery),
            None => batches.push(vec![delivery]),
        }
    }
    batches
}
