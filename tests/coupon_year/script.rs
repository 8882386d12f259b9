//! A scripted day: users with their birthday on 31 December, in a world in which only the test breaks anything. The
//! witness checks the rules at every step, as in the seeded years.

#![expect(clippy::unwrap_used, reason = "the whole file is for tests")]

use anabranch_coupons::programme::Programme;
use anabranch_coupons::records::{Member, RunKey};
use anabranch_coupons::report::Report;
use anabranch_coupons::reserving::MessageEnd;
use anabranch_pipeline::error::Fault;
use anabranch_schemas::birthday::MonthDay;
use anabranch_schemas::celebration::Calendar;
use jiff::civil::{Date, date};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::books::KEY_MEMORY;
use crate::life::{Actor, Life};
use crate::witness;
use crate::world::{UserRow, World, minutes};

/// The world whose users the scripts use: any seed has some.
const SEED: u64 = 3;
/// Minutes between two turns of dispatchers and granters; an attempt is old after two of them.
const TURN_MINUTES: i64 = 20;

pub struct Script {
    pub life: Life,
    pub day: Date,
    pub users: Vec<u64>,
    midnight: Timestamp,
}

impl Script {
    /// Begins at midnight of 31 December, behind a reconciliation of every table.
    pub fn new() -> Self {
        let mut world = World::new(SEED);
        world.is_scripted = true;
        let day = date(world.begins.year(), 12, 31);
        let midnight = day.to_zoned(TimeZone::UTC).unwrap().timestamp();
        world.now = midnight;
        world.books.keys.memory = KEY_MEMORY;
        let text = "name = 'birthday'\ncoupon = 'cake'\ntime_zone = 'UTC'\nleap_day = 'feb28'\n\
                    calendars = ['solar']\n";
        world.programmes = Programme::parse_all(&[text.parse().unwrap()]).unwrap();
        let users: Vec<u64> = world.history.keys().copied().collect();
        for user in &users {
            set_birthday(&mut world, *user, day);
        }
        world.reconcile();
        Self { life: Life::new(world, minutes(60)), day, users, midnight }
    }

    /// Gives a user another birthday, and lets the lanes apply it.
    pub fn set_birthday(&self, user: u64, day: Date) {
        let mut world = self.life.world();
        set_birthday(&mut world, user, day);
        for source in 0..2 {
            world.apply(source, usize::MAX);
        }
    }

    pub fn key(&self) -> RunKey {
        RunKey { programme: "birthday".into(), day: self.day }
    }

    pub fn wait(&self, waited: SignedDuration) {
        self.life.world().now += waited;
    }

    pub fn finish(&mut self, mut actor: Actor) -> Result<MessageEnd, Fault> {
        loop {
            if let Some(end) = self.life.poll(&mut actor) {
                return end;
            }
        }
    }

    pub fn pass(&mut self) -> Result<MessageEnd, Fault> {
        let actor = self.life.dispatcher(0, SignedDuration::ZERO);
        self.finish(actor)
    }

    /// Takes the message of all users out of the queue; the queue has no other one.
    pub fn granter(&self) -> Actor {
        let mut queue = std::mem::take(&mut self.life.world().queue);
        let (_, message) = queue.pop().expect("the dispatcher has published");
        assert!(queue.is_empty() && message.members.len() == self.users.len(), "{message:?}");
        self.life.granter(vec![message])
    }

    /// Carries every message once; those that must come again are put back. Returns the first fault.
    pub fn grant(&mut self) -> Result<(), Fault> {
        let queue = std::mem::take(&mut self.life.world().queue);
        let mut first_fault = None;
        for (_, message) in queue {
            let actor = self.life.granter(vec![message.clone()]);
            let end = self.finish(actor);
            if !matches!(end, Ok(MessageEnd::Done)) {
                let mut world = self.life.world();
                let now = world.now;
                world.queue.push((now, message));
            }
            first_fault = first_fault.or(end.err());
        }
        first_fault.map_or(Ok(()), Err)
    }

    /// Lets dispatchers and granters work, turn by turn, until so many hours after the day's midnight.
    pub fn work_until(&mut self, hours: i64) {
        let end = self.midnight + SignedDuration::from_hours(hours);
        while self.life.world().now < end {
            // An outage ends turns with faults; later turns go on.
            _ = self.pass();
            _ = self.grant();
            self.wait(minutes(TURN_MINUTES));
        }
    }

    /// The users with coupons in the book of the coupon system, each as often as it has one, with the days.
    pub fn given(&self) -> Vec<(u64, Date)> {
        let world = self.life.world();
        assert_eq!(world.faults, Vec::<String>::new());
        let mut given: Vec<_> =
            world.books.books.iter().map(|entry| (entry.key.user, entry.run.day)).collect();
        given.sort_unstable();
        given
    }

    /// Expects one coupon of the day for each user, and a ledger that agrees.
    pub fn expect_everybody_once(&self, context: &str) {
        let expected: Vec<(u64, Date)> = self.users.iter().map(|user| (*user, self.day)).collect();
        assert_eq!(self.given(), expected, "{context}");
        let report = self.report();
        assert_eq!((report.granted, report.sum()), (expected.len() as u64, report.eligible), "{context}");
    }

    pub fn report(&self) -> Report {
        witness::balanced(&mut self.life.world(), &self.key())
    }

    /// Runs the day to its last wave: a reconciliation late in the evening catches up, and the run is closed.
    pub fn close(&mut self) {
        self.work_until(23);
        self.life.world().reconcile();
        self.work_until(24);
        let is_closed = self.life.world().database.runs[&self.key()].is_closed;
        assert!(is_closed, "{:?}", self.report());
    }

    /// Whether the cohort of the day has a user.
    pub fn is_member(&self, user: u64) -> bool {
        let member = Member { user, calendar: Calendar::Solar };
        self.life.world().database.members.get(&self.key()).is_some_and(|all| all.contains_key(&member))
    }
}

fn set_birthday(world: &mut World, user: u64, day: Date) {
    let shard = world.sources.iter().position(|source| source.contains_key(&user)).unwrap();
    let solar = MonthDay::new(day.month() as u8, day.day() as u8);
    world.write(shard, user, Some(UserRow { solar, lunar: None, calendar: Calendar::Solar }));
}

/// Polls a process of a fresh script once, then of another one twice, and so on, each time with an outage after it.
/// It ends when a process has ended before its outage.
pub fn at_each_step(
    begin: impl Fn(&mut Script) -> Actor,
    outage: impl Fn(&mut Script, Actor),
    expect: impl Fn(&Script, &str),
) {
    for steps in 0.. {
        let mut script = Script::new();
        let mut actor = begin(&mut script);
        if (0..steps).any(|_| script.life.poll(&mut actor).is_some()) {
            assert!(steps > 8, "a process has more steps than {steps}");
            return;
        }
        outage(&mut script, actor);
        expect(&script, &format!("an outage after {steps} steps"));
    }
}

/// Begins a granter that holds the message of all users.
pub fn granter(script: &mut Script) -> Actor {
    script.pass().unwrap();
    script.granter()
}

/// Begins the first pass of a dispatcher.
pub fn dispatcher(script: &mut Script) -> Actor {
    script.life.dispatcher(0, SignedDuration::ZERO)
}
