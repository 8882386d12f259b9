//! Keeps copies out of the work queue: a sweep publishes a member again only once the granters should have carried the
//! first message, by the programme's rate.
//!
//! All programmes share the queue. A slow one would otherwise fill it with copies, since a sweep finds its members
//! without a coupon again and again. A queue that is worked off, or that was removed, ends the wait. A new wave and a
//! message that a person sent do not wait. The dispatcher of a programme remembers also while its task is tried again.
//! Another process does not know, and publishes once more.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anabranch_coupons::ports::WorkQueue;
use anabranch_coupons::programme::Programme;
use anabranch_coupons::records::{LAST_WORD, Member, Message, RunKey, part};
use anabranch_pipeline::error::Fault;
use tokio::time::Instant;

use crate::wiring::CouponQueue;

/// Messages that are published at once. If the queue has no room for the last of them, all of them come again.
const PUBLISHED_AT_ONCE: usize = 16;

/// The work queue as a dispatcher publishes into it.
#[derive(Debug)]
pub struct QueueWithoutCopies<Q> {
    queue: Q,
    published: PublishedRounds,
}

/// The memory of a dispatcher, which outlives the attempts of its task. Clones share it.
#[derive(Debug, Clone)]
pub struct PublishedRounds(Arc<Mutex<Rounds>>);

/// The messages of each run that granters should not have carried yet.
#[derive(Debug)]
struct Rounds {
    /// Users a second, by programme.
    rates: HashMap<Arc<str>, u32>,
    by_run: BTreeMap<RunKey, Round>,
}

#[derive(Debug)]
struct Round {
    wave: u8,
    /// Time at which granters should have carried all its messages.
    until: Instant,
    /// The last member that was published, by part: a sweep publishes each part in the order of members.
    last: BTreeMap<u64, Member>,
}

impl PublishedRounds {
    pub fn new(programmes: &[Programme]) -> Self {
        Self(Arc::new(Mutex::new(Rounds::new(programmes))))
    }

    fn lock(&self) -> MutexGuard<'_, Rounds> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the messages that are no copies.
    fn wanted(&self, messages: &[Message]) -> Vec<Message> {
        let (rounds, now) = (self.lock(), Instant::now());
        messages.iter().filter(|message| !rounds.has(message, now)).cloned().collect()
    }

    fn add(&self, messages: &[Message]) {
        let (mut rounds, now) = (self.lock(), Instant::now());
        for message in messages {
            rounds.published(message, now);
        }
    }
}

impl<Q> QueueWithoutCopies<Q> {
    pub fn new(queue: Q, published: &PublishedRounds) -> Self {
        Self { queue, published: published.clone() }
    }
}

impl QueueWithoutCopies<CouponQueue> {
    /// Returns the number of messages that wait or that granters hold. Without any, no message is a copy.
    pub async fn pending(&self) -> Result<u64, Fault> {
        let pending = self.queue.pending().await?;
        if pending == 0 {
            self.published.lock().by_run.clear();
        }
        Ok(pending)
    }
}

impl<Q: WorkQueue> WorkQueue for QueueWithoutCopies<Q> {
    async fn publish(&self, messages: &[Message]) -> Result<(), Fault> {
        for some in self.published.wanted(messages).chunks(PUBLISHED_AT_ONCE) {
            self.queue.publish(some).await?;
            self.published.add(some);
        }
        Ok(())
    }
}

impl Rounds {
    fn new(programmes: &[Programme]) -> Self {
        let rate = |programme: &Programme| (programme.name.clone(), programme.rate_per_second.get());
        Self { rates: programmes.iter().map(rate).collect(), by_run: BTreeMap::new() }
    }

    /// Returns whether the members of a message were published, and granters need not have carried them yet.
    fn has(&self, message: &Message, now: Instant) -> bool {
        let Some(first) = message.members.first() else { return false };
        let round = self.by_run.get(&message.run);
        let round = round.filter(|round| round.wave == message.wave && now < round.until);
        round.and_then(|round| round.last.get(&part(first.user))).is_some_and(|last| first <= last)
    }

    /// Records that a message was published.
    fn published(&mut self, message: &Message, now: Instant) {
        let (Some(last), Some(rate)) = (message.members.last(), self.rates.get(&message.run.programme))
        else {
            return;
        };
        if message.wave == LAST_WORD {
            return;
        }
        let took = Duration::from_secs_f64(message.members.len() as f64 / f64::from((*rate).max(1)));
        self.by_run.retain(|_, round| now < round.until);
        let begun = || Round { wave: message.wave, until: now, last: BTreeMap::new() };
        let round = self.by_run.entry(message.run.clone()).or_insert_with(begun);
        if round.wave != message.wave {
            (round.wave, round.last) = (message.wave, BTreeMap::new());
        }
        round.until += took;
        round.last.insert(part(last.user), *last);
    }
}

#[cfg(test)]
mod tests {
    use anabranch_coupons::records::PARTS;
    use anabranch_pipeline::error::Code;
    use anabranch_schemas::celebration::Calendar;
    use jiff::civil::date;

    use super::*;

    /// A message of ten users of the first part, beginning with the user of this number.
    fn message(programme: &str, wave: u8, first: u64) -> Message {
        let member = |number| Member { user: number * PARTS, calendar: Calendar::Solar };
        let run = RunKey { programme: programme.into(), day: date(2027, 5, 4) };
        Message { run, members: (first..first + 10).map(member).collect(), wave }
    }

    fn rounds() -> Rounds {
        let rates = HashMap::from([(Arc::from("slow"), 1), (Arc::from("fast"), 10_000)]);
        Rounds { rates, by_run: BTreeMap::new() }
    }

    /// A queue that has room for some messages.
    struct NarrowQueue {
        room: usize,
        held: Mutex<Vec<Message>>,
    }

    impl WorkQueue for NarrowQueue {
        async fn publish(&self, messages: &[Message]) -> Result<(), Fault> {
            let mut held = self.held.lock().unwrap();
            for message in messages {
                if held.len() == self.room {
                    return Err(Fault::new(Code::LogFull, "work queue", "it has no room"));
                }
                held.push(message.clone());
            }
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_dispatcher_that_is_tried_again_publishes_only_messages_that_a_full_queue_refused() {
        let published = PublishedRounds(Arc::new(Mutex::new(rounds())));
        let messages: Vec<Message> = (0..40).map(|number| message("slow", 1, 10 * number)).collect();
        let mut found = Vec::new();
        for room in [PUBLISHED_AT_ONCE + 4, 100, 100] {
            // Each attempt of the task connects to the queue anew.
            let queue = QueueWithoutCopies::new(NarrowQueue { room, held: Mutex::default() }, &published);
            let is_full = queue.publish(&messages).await.is_err();
            let held = queue.queue.held.into_inner().unwrap();
            found.push((is_full, held.len(), held.last() == messages.last()));
        }
        let stored = PUBLISHED_AT_ONCE + 4;
        assert_eq!(found, [(true, stored, false), (false, 40 - PUBLISHED_AT_ONCE, true), (false, 0, false)]);
    }

    #[test]
    fn a_member_is_published_again_once_granters_should_have_carried_the_first_message() {
        let (mut rounds, now) = (rounds(), Instant::now());
        for first in [0, 10] {
            let message = message("slow", 1, first);
            assert!(!rounds.has(&message, now), "one sweep publishes each member");
            rounds.published(&message, now);
        }
        let later = now + Duration::from_secs(19);
        assert!(rounds.has(&message("slow", 1, 0), later) && rounds.has(&message("slow", 1, 10), later));
        assert!(!rounds.has(&message("slow", 1, 20), later), "the first sweep had no room for it");
        assert!(!rounds.has(&message("slow", 2, 0), later), "a new wave does not wait");
        assert!(!rounds.has(&message("slow", 1, 0), later + Duration::from_secs(1)));
    }

    #[test]
    fn a_fast_programme_does_not_wait_for_a_slow_one_and_a_person_s_message_never_waits() {
        let (mut rounds, now) = (rounds(), Instant::now());
        for message in [message("slow", 1, 0), message("fast", 1, 0), message("slow", LAST_WORD, 50)] {
            rounds.published(&message, now);
        }
        let later = now + Duration::from_millis(10);
        assert!(!rounds.has(&message("fast", 1, 0), later));
        assert!(!rounds.has(&message("slow", LAST_WORD, 50), later));
        assert!(rounds.has(&message("slow", 1, 0), later));
    }
}
