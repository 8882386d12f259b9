//! A year of the simulation: which process acts next, which part fails, and the operator's decisions.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use anabranch_coupons::breaker::Breaker;
use anabranch_coupons::dead_letters::{self, Decision};
use anabranch_coupons::dispatching::Dispatcher;
use anabranch_coupons::granting::{Granter, MessagesCarried, join};
use anabranch_coupons::issuers::Issuers;
use anabranch_coupons::issuing::Chain;
use anabranch_coupons::ports::Gift;
use anabranch_coupons::records::{CouponKey, FailedOutcome, Message, RowState, RunKey};
use anabranch_coupons::reserving::MessageEnd;
use anabranch_coupons::restored::{GivenCoupon, ask_and_take_in, take_in};
use anabranch_pipeline::error::{Code, Fault};
use jiff::{SignedDuration, Timestamp, ToSpan};
use rand::RngExt;
use rand::seq::IndexedRandom;

use crate::books::{BookEntry, KEY_MEMORY};
use crate::twins::{self, Process};
use crate::witness::at_the_end;
use crate::world::{World, minutes};

/// A process that does one task, one call at a time.
pub struct Actor {
    work: Pin<Box<dyn Future<Output = Result<MessageEnd, Fault>> + Send>>,
    /// The messages that it carries.
    messages: Vec<Message>,
}

/// A world and the processes in it.
pub struct Life {
    world: Arc<Mutex<World>>,
    pub breaker: Arc<Breaker>,
    issuers: Arc<Issuers>,
    actors: Vec<Actor>,
    asleep: Vec<Actor>,
    /// No process starts before this moment.
    dead_until: Timestamp,
    /// Time for which the operator lets a letter lie.
    letter_wait: SignedDuration,
}

/// Runs a world for a year; returns its faults and the counts of its events.
pub fn year(seed: u64) -> (Vec<String>, std::collections::BTreeMap<&'static str, u64>) {
    let mut world = World::new(seed);
    let wait = *[60, 600, 4_000, 144_000].choose(&mut world.random).expect("not empty");
    let begins = world.begins;
    let mut life = Life::new(world, minutes(wait));
    let end = begins.checked_add(1.year().days(25)).expect("a day");
    while life.is_right(|world| world.today() < end) {
        life.day();
    }
    let mut world = life.world();
    if world.faults.is_empty() {
        at_the_end(&mut world);
    }
    (world.faults.clone(), world.books.counts.clone())
}

impl Life {
    /// Makes a world in which no process has begun.
    pub fn new(world: World, letter_wait: SignedDuration) -> Self {
        Self {
            dead_until: world.now,
            world: Arc::new(Mutex::new(world)),
            breaker: Arc::default(),
            issuers: Arc::default(),
            actors: Vec::new(),
            asleep: Vec::new(),
            letter_wait,
        }
    }

    pub fn world(&self) -> std::sync::MutexGuard<'_, World> {
        self.world.lock().expect("no task panics with it")
    }

    /// Whether there is no fault so far and `holds` is true.
    fn is_right(&self, holds: impl Fn(&World) -> bool) -> bool {
        let world = self.world();
        world.faults.is_empty() && holds(&world)
    }

    /// Simulates one day; a date near which no user has a birthday is passed over in one step.
    fn day(&mut self) {
        let today = self.world().today();
        let is_busy = {
            let world = self.world();
            let open = world.database.runs.iter().filter(|(_, run)| !run.is_closed);
            let mut open = open.map(|(key, _)| key.clone());
            let near = [-1, 0, 1, 2].map(|days: i32| today.checked_add(days.days()).expect("a day"));
            let is_idle = self.actors.is_empty() && world.queue.is_empty() && world.later.is_empty();
            let has_begun = world.database.next.len() == world.programmes.len();
            let is_late = world.database.next.values().any(|next| *next < today);
            let has_members = |key: RunKey| {
                world.database.members.get(&key).is_some_and(|members| !members.is_empty())
                    || !world.is_quiet(key.day)
            };
            !is_idle
                || !has_begun
                || is_late
                || !near.iter().all(|day| world.is_quiet(*day))
                || open.any(has_members)
        };
        if is_busy {
            while self.is_right(|world| world.today() == today) {
                self.step();
            }
            return;
        }
        // No user celebrates: the days that follow are only begun, frozen empty and closed.
        let mut world = self.world();
        for source in 0..2 {
            world.apply(source, usize::MAX);
        }
        let tomorrow = today.tomorrow().expect("a day");
        world.now = tomorrow.to_zoned(jiff::tz::TimeZone::UTC).expect("a day").timestamp();
        world.reconcile();
        if world.random.random_ratio(3, 100) {
            world.edit();
        }
        let visits = world.random.random_bool(0.6);
        drop(world);
        if visits {
            self.person();
        }
        // The days begin as always, without disturbance.
        let programmes = self.world().programmes.len();
        for index in 0..programmes {
            for _ in 0..4 {
                let mut actor = self.dispatcher(index, SignedDuration::ZERO);
                while self.poll(&mut actor).is_none() {}
            }
        }
    }

    /// Polls a process once; returns its result when it has ended.
    pub fn poll(&mut self, actor: &mut Actor) -> Option<Result<MessageEnd, Fault>> {
        let Poll::Ready(result) = actor.work.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            return None;
        };
        let what = match (&result, !actor.messages.is_empty()) {
            (Ok(MessageEnd::Done), true) => "messages done",
            (Ok(MessageEnd::Later), true) => "messages delayed",
            (Ok(_), false) => "passes",
            (Err(_), true) => "messages with faults",
            (Err(_), false) => "passes with faults",
        };
        self.world().books.count(what);
        if let Err(fault) = &result
            && fault.code() == Code::CouponLedgerRestored
        {
            let mut world = self.world();
            let now = world.now;
            world.books.stopped_at.get_or_insert(now);
            world.books.count("noticed");
        }
        Some(result)
    }

    fn process(&self, skew: SignedDuration) -> Process {
        Process { world: self.world.clone(), skew }
    }

    pub fn dispatcher(&self, index: usize, skew: SignedDuration) -> Actor {
        let (process, programme) = (self.process(skew), self.world().programmes[index].clone());
        let work = async move {
            let dispatcher = Dispatcher {
                ledger: process.clone(),
                cohort: process.clone(),
                queue: process.clone(),
                register: process.clone(),
                process: process.clone(),
                resends: Arc::default(),
            };
            dispatcher.pass(&programme, &process).await?.fault.map_or(Ok(MessageEnd::Done), Err)
        };
        Actor { work: Box::pin(work), messages: Vec::new() }
    }

    pub fn granter(&self, messages: Vec<Message>) -> Actor {
        let (process, breaker, carried) =
            (self.process(SignedDuration::ZERO), self.breaker.clone(), messages.clone());
        let issuers = self.issuers.clone();
        let work = async move {
            let granter = Granter {
                ledger: process.clone(),
                sources: process.clone(),
                coupons: process.clone(),
                cohort: process.clone(),
                register: process.clone(),
                process,
                breaker,
                issuers,
                key_memory: KEY_MEMORY,
            };
            let mut ends = MessagesCarried::default();
            granter.carry(&carried, &mut ends).await?;
            granter.follow(&ends).await;
            let is_done = carried.iter().all(|message| ends.of(message) == MessageEnd::Done);
            Ok(if is_done { MessageEnd::Done } else { MessageEnd::Later })
        };
        Actor { work: Box::pin(work), messages }
    }

    /// A command that takes in the coupon system's whole statement.
    pub fn taker(&self) -> Actor {
        let world = self.world();
        let given = |entry: &BookEntry| {
            let BookEntry { key, coupon, given_at, .. } = entry.clone();
            // As in a real statement, there is no day.
            GivenCoupon::of(Gift { key, coupon: coupon.into(), given_at }, &world.programmes)
        };
        let statement: Vec<GivenCoupon> =
            world.books.books.iter().map(|entry| given(entry).expect("a day of its year")).collect();
        drop(world);
        let process = self.process(SignedDuration::ZERO);
        let work =
            async move { take_in(&process, &process, &process, &statement).await.map(|()| MessageEnd::Done) };
        Actor { work: Box::pin(work), messages: Vec::new() }
    }

    /// A process that asks the coupon system for its statement and takes it in.
    pub fn asker(&self) -> Actor {
        let programmes = self.world().programmes.clone();
        let process = self.process(SignedDuration::ZERO);
        let work = async move {
            let asked = (&process, &programmes[..]);
            ask_and_take_in(&process, &process, &process, asked).await.map(|_| MessageEnd::Done)
        };
        Actor { work: Box::pin(work), messages: Vec::new() }
    }

    /// Lets the present process sleep or end: actors that begin from now on belong to another one.
    pub fn replace_process(&mut self) {
        self.issuers = Arc::default();
    }

    fn step(&mut self) {
        let chance: f64 = {
            let mut world = self.world();
            let now = world.now;
            let (due, later) = std::mem::take(&mut world.later).into_iter().partition(|half| half.0 <= now);
            world.later = later;
            let due: Vec<(Timestamp, usize, u64, Option<crate::world::UserRow>)> = due;
            for (_, shard, user, row) in due {
                world.write(shard, user, row);
            }
            let today = world.today();
            let minute = world.now.to_zoned(jiff::tz::TimeZone::UTC).hour();
            if world.reconciled_day != Some(today) && minute >= 2 {
                world.reconciled_day = Some(today);
                if world.random.random_bool(0.75) {
                    world.reconcile();
                }
            }
            world.random.random()
        };
        match chance {
            x if x < 0.62 && !self.actors.is_empty() => self.act(),
            x if x < 0.86 => self.start(x),
            x if x < 0.92 => {
                let mut world = self.world();
                let (source, most) = (world.random.random_range(0..2), world.random.random_range(1..4));
                world.apply(source, most);
            }
            x if x < 0.926 => self.world().edit(),
            x if x < 0.931 => self.world().damage(),
            x if x < 0.988 => self.trouble(x),
            x if x < 0.992 => self.world().reconfigure(),
            _ => self.person(),
        }
        let mut world = self.world();
        let chance: f64 = world.random.random();
        let is_idle = self.actors.is_empty() && world.queue.iter().all(|(at, _)| *at > world.now);
        let passed = match chance {
            x if is_idle && x < 0.6 || x > 0.985 => world.random.random_range(10..150),
            x if x > 0.93 => world.random.random_range(1..8),
            _ => 0,
        };
        world.now += minutes(passed);
    }

    /// Lets one process make one call.
    fn act(&mut self) {
        let actors = self.actors.len();
        let index = self.world().random.random_range(0..actors);
        let mut actor = self.actors.swap_remove(index);
        match self.poll(&mut actor) {
            None => self.actors.push(actor),
            Some(Ok(MessageEnd::Done)) => {}
            Some(Ok(MessageEnd::Later) | Err(_)) => {
                let mut world = self.world();
                for message in actor.messages {
                    if !world.random.random_bool(0.6) {
                        continue;
                    }
                    let again = minutes(*[1, 5, 20, 40].choose(&mut world.random).expect("not empty"));
                    let at = world.now + again;
                    world.queue.push((at, message));
                }
            }
        }
    }

    fn start(&mut self, chance: f64) {
        if self.world().now < self.dead_until {
            return;
        }
        if chance < 0.74 && self.actors.len() < 5 {
            let mut world = self.world();
            let programmes = world.programmes.len();
            let index = world.random.random_range(0..programmes);
            let skews = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -900, 900, -1440, 1440];
            let skew = minutes(*skews.choose(&mut world.random).expect("not empty"));
            drop(world);
            let actor = self.dispatcher(index, skew);
            self.actors.push(actor);
        } else if chance >= 0.74 && self.actors.len() < 6 {
            let mut world = self.world();
            let now = world.now;
            let due: Vec<usize> = (0..world.queue.len()).filter(|i| world.queue[*i].0 <= now).collect();
            let Some(index) = due.choose(&mut world.random).copied() else { return };
            let mut messages = vec![world.queue.swap_remove(index).1];
            // Most granters carry several messages.
            while world.random.random_bool(0.7) {
                let together =
                    |(at, message): &(Timestamp, Message)| *at <= now && join(messages.iter(), message);
                let Some(index) = world.queue.iter().position(together) else { break };
                messages.push(world.queue.swap_remove(index).1);
            }
            drop(world);
            let actor = self.granter(messages);
            self.actors.push(actor);
        }
    }

    /// Breaks something, by chance.
    fn trouble(&mut self, chance: f64) {
        let mut world = self.world.lock().expect("no task panics with it");
        match chance {
            x if x < 0.939 && !self.actors.is_empty() => {
                let index = world.random.random_range(0..self.actors.len());
                let actor = self.actors.swap_remove(index);
                for message in actor.messages {
                    if world.random.random_bool(0.5) {
                        let now = world.now;
                        world.queue.push((now, message));
                    } else if world.random.random_bool(0.02) {
                        restore(&mut world);
                    }
                }
            }
            x if (0.947..0.957).contains(&x) && !self.actors.is_empty() => {
                let index = world.random.random_range(0..self.actors.len());
                self.asleep.push(self.actors.swap_remove(index));
                // The process sleeps; actors that begin from now on belong to another process.
                self.issuers = Arc::default();
            }
            x if (0.957..0.967).contains(&x) && !self.asleep.is_empty() => {
                let index = world.random.random_range(0..self.asleep.len());
                self.actors.push(self.asleep.swap_remove(index));
            }
            x if (0.967..0.979).contains(&x) => disturb_queue(&mut world),
            x if (0.979..0.980).contains(&x) => {
                let down = *[90, 700, 900, 1_900].choose(&mut world.random).expect("not empty");
                world.books.down_until = world.now + minutes(down);
            }
            x if (0.980..0.9802).contains(&x) => {
                let down = *[60, 300, 900, 2_900].choose(&mut world.random).expect("not empty");
                world.sources_down_until = world.now + minutes(down);
                world.books.count("sources down");
            }
            x if (0.982..0.9835).contains(&x) => {
                let copy = (world.now, world.database.clone());
                let kept = world.copies.len().saturating_sub(2);
                world.copies.drain(..kept);
                world.copies.push(copy);
            }
            x if (0.9835..0.984).contains(&x) && world.random.random_bool(0.02) => restore(&mut world),
            x if (0.984..0.985).contains(&x) => world.database_down_until = world.now + minutes(60),
            x if x >= 0.9876 => {
                let dead = *[120, 800, 2_000, 4_000].choose(&mut world.random).expect("not empty");
                self.dead_until = world.now + minutes(dead);
                self.actors.retain(|_| world.random.random_bool(0.3));
            }
            _ => {}
        }
    }

    fn ends_well(&mut self, mut actor: Actor) -> bool {
        loop {
            if let Some(end) = self.poll(&mut actor) {
                return end.is_ok();
            }
        }
    }

    /// The operator decides letters, by the books if no call can tell. A dispatcher asks for a restored ledger's lost
    /// coupons, and the operator takes them in where it is refused.
    fn person(&mut self) {
        let stopped_at = self.world().books.stopped_at;
        if let Some(stopped_at) = stopped_at {
            let world = self.world();
            let since = world.restored_at.map_or(stopped_at, |at| at.max(stopped_at));
            let is_quiet = world.now > since + minutes(60) && world.now >= world.database_down_until;
            drop(world);
            if is_quiet {
                let (asker, taker) = (self.asker(), self.taker());
                _ = self.ends_well(asker) || self.ends_well(taker);
                let mut world = self.world();
                // Another restore may have brought the ledger back whole, and both were refused.
                if Chain::of(world.database.tokens, world.register) != Chain::Restored {
                    world.books.stopped_at = None;
                }
            }
        }
        let mut world = self.world();
        let rows: Vec<CouponKey> = world.database.rows.keys().cloned().collect();
        for key in rows {
            letter(&mut world, &key, self.letter_wait);
        }
    }
}

/// The operator handles a dead letter. The message about every third user is lost, and a pass sends it again.
fn letter(world: &mut World, key: &CouponKey, wait: SignedDuration) {
    let row = world.database.rows[key].clone();
    let run = RunKey { programme: key.programme.clone(), day: row.day };
    let RowState::Failed(outcome) = row.state else { return };
    world.books.letters.insert((key.clone(), row.day));
    if world.now < row.changed_at + wait.max(minutes(60)) {
        return;
    }
    let (user, now) = (key.user, world.now);
    if let FailedOutcome::Unknown { first_called_at } = outcome
        && now >= first_called_at + KEY_MEMORY
    {
        let decision = if world.books.gave(key) { Decision::Given } else { Decision::NotGiven };
        twins::with_users(world, &run, &[user], |ledger| {
            ledger.users.get_mut(&user).map(|ledger| dead_letters::decide(ledger, key, decision))
        });
        return;
    }
    let sent = twins::with_users(world, &run, &[user], |ledger| {
        ledger.users.get_mut(&user).map(|ledger| dead_letters::requeue(ledger, key, KEY_MEMORY))
    });
    if let Some(Ok(candidate)) = sent
        && !user.is_multiple_of(3)
    {
        world.queue.push((now, Message::of(candidate)));
    }
}

/// The operator restores the ledger's server from an older copy.
fn restore(world: &mut World) {
    let recent = world.now - minutes(20 * 1440);
    let copies: Vec<_> = world.copies.iter().filter(|(at, _)| *at > recent).collect();
    let newest = copies.last().copied().cloned();
    let any = copies.choose(&mut rand_of(&mut world.random)).copied().cloned();
    let Some((_, database)) = (if world.random.random_bool(0.7) { newest } else { any }) else { return };
    world.books.restored(&database.chain, &database.runs);
    world.database = database;
    world.restored_at = Some(world.now);
}

/// Makes a generator of its own, so that the world stays borrowed.
fn rand_of(random: &mut rand::rngs::StdRng) -> rand::rngs::StdRng {
    rand::SeedableRng::seed_from_u64(random.random())
}

/// The queue doubles a message, loses all messages, or repeats messages of any age.
fn disturb_queue(world: &mut World) {
    let (chance, archived) = (world.random.random::<f64>(), world.archive.len());
    if chance < 0.3 && !world.queue.is_empty() {
        let queued = world.queue.len();
        let index = world.random.random_range(0..queued);
        let message = world.queue[index].clone();
        world.queue.push(message);
    } else if chance < 0.6 {
        world.queue.clear();
    } else if archived > 0 {
        for _ in 0..2 {
            let index = world.random.random_range(0..archived);
            let message = world.archive[index].clone();
            world.queue.push((world.now, message));
        }
    }
}
