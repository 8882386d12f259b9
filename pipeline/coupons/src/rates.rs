//! The rate of a programme, which the granters of all processes share.
//!
//! A register has a number for each granter, and each granter raises its own every few seconds. A granter takes the
//! rate divided by the count of them. No clock is compared: another granter is gone when this one finds its number
//! unchanged several times in a row. So all granters together are above the rate for a few seconds after one began, and
//! below it for half a minute after one was killed.

use std::collections::{BTreeMap, HashMap};
use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::Registers;
use anabranch_pipeline::throttle::{SharedThrottle, Throttle};

use crate::programme::Programme;
use crate::records::{MEMBERS_MAX, Message};

/// Time between two reports of a granter.
pub const REPORT_EVERY: Duration = Duration::from_secs(5);
/// Reports in a row that find the number of another granter unchanged, after which that one is gone.
///
/// Some of its reports may have failed or come late. While the log does not answer, no report finds anything.
pub const GONE_AFTER: u32 = 6;
/// The key of the register.
const KEY: &str = "coupon-granters";
/// Attempts of a report while other granters write first; the next report follows soon.
const WRITES_MAX: u32 = 10;
/// Time over which a rate is kept.
const RATE_PART: Duration = Duration::from_millis(100);

/// The granters of all processes, as one of them counts them.
#[derive(Debug)]
pub struct GranterCount {
    /// The name of this granter, which no other one has.
    name: String,
    /// The last number of each granter, and how many reports have found it unchanged.
    seen: BTreeMap<String, (u64, u32)>,
}

impl GranterCount {
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), seen: BTreeMap::new() }
    }

    /// Raises the number of this granter, and returns how many granters are at work.
    pub async fn report<R: Registers>(&mut self, registers: &R) -> Result<NonZeroUsize, Fault> {
        let mut attempt = 1;
        loop {
            let register = registers.read(KEY).await?;
            let mut numbers = self.at_work(&register.value, attempt == 1);
            let own = numbers.entry(self.name.clone()).or_default();
            *own = own.wrapping_add(1);
            match registers.compare_and_set(KEY, &register, text(&numbers)).await {
                Ok(_) => return Ok(NonZeroUsize::new(numbers.len()).unwrap_or(NonZeroUsize::MIN)),
                Err(fault) if fault.code() == Code::LeaseLost && attempt < WRITES_MAX => attempt += 1,
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Takes this granter off the register, so that the others need not wait until it is gone.
    pub async fn leave<R: Registers>(&mut self, registers: &R) -> Result<(), Fault> {
        let register = registers.read(KEY).await?;
        let mut numbers = numbers(&register.value);
        numbers.remove(&self.name);
        registers.compare_and_set(KEY, &register, text(&numbers)).await.map(drop)
    }

    /// Returns the numbers of a register without those of granters that are gone. Only the first read of a report
    /// counts for a number that is unchanged.
    fn at_work(&mut self, value: &str, is_first: bool) -> BTreeMap<String, u64> {
        let mut numbers = numbers(value);
        self.seen.retain(|name, _| numbers.contains_key(name));
        numbers.retain(|name, number| {
            let (known, unchanged) = self.seen.entry(name.clone()).or_insert((*number, 0));
            if *known == *number {
                *unchanged += u32::from(is_first);
            } else {
                (*known, *unchanged) = (*number, 0);
            }
            *unchanged < GONE_AFTER
        });
        numbers
    }
}

/// Parses a register. An entry that no granter wrote counts for none.
fn numbers(value: &str) -> BTreeMap<String, u64> {
    let entry = |entry: &str| {
        let (name, number) = entry.split_once('=')?;
        Some((name.to_owned(), number.parse().ok()?))
    };
    value.split(' ').filter_map(entry).collect()
}

fn text(numbers: &BTreeMap<String, u64>) -> String {
    numbers.iter().map(|(name, number)| format!("{name}={number}")).collect::<Vec<_>>().join(" ")
}

/// The part of a programme's rate that the users of messages keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeptRate {
    users: usize,
    /// Tokens of the bucket that they hold, by the granters at work when they came.
    tokens: usize,
}

impl KeptRate {
    /// Adds the part of another message of the same programme.
    pub fn add(&mut self, other: Self) {
        self.users += other.users;
        self.tokens += other.tokens;
    }
}

/// The rates of all programmes, as the granter of one process keeps its part of them.
#[derive(Debug)]
pub struct Rates {
    granters: AtomicUsize,
    by_programme: HashMap<Arc<str>, SharedThrottle>,
}

impl Rates {
    pub fn new(programmes: &[Programme], granters: NonZeroUsize) -> Self {
        let throttle = |programme: &Programme| {
            let rate = programme.rate_per_second.get();
            let most = NonZeroUsize::new((rate as usize).max(MEMBERS_MAX)).unwrap_or(NonZeroUsize::MIN);
            let throttle = Throttle::new(NonZeroU64::new(u64::from(rate)), RATE_PART, most);
            (programme.name.clone(), SharedThrottle::new(throttle))
        };
        Self {
            granters: AtomicUsize::new(granters.get()),
            by_programme: programmes.iter().map(throttle).collect(),
        }
    }

    /// Shares each rate among so many granters from now on.
    pub fn share(&self, granters: NonZeroUsize) {
        self.granters.store(granters.get(), Ordering::Relaxed);
    }

    /// Waits until this granter's part of the programme's rate allows the users of a message. Users whom the bucket
    /// lacks are borrowed from it, so the next message waits for them.
    pub async fn keep(&self, message: &Message) -> KeptRate {
        let Some(rate) = self.by_programme.get(&message.run.programme) else { return KeptRate::default() };
        let taken = rate.take().await.get();
        let users = message.members.len();
        let tokens = self.part_of(users);
        rate.give_back(taken.saturating_sub(tokens));
        rate.borrow_rows(tokens.saturating_sub(taken));
        KeptRate { users, tokens }
    }

    /// Gives back the part of users for whom no call was made after all, though the number of granters changed since.
    pub fn give_back(&self, programme: &str, kept: KeptRate, called: usize) {
        if let Some(rate) = self.by_programme.get(programme) {
            let uncalled = kept.users.saturating_sub(called);
            rate.give_back(kept.tokens.saturating_mul(uncalled) / kept.users.max(1));
        }
    }

    /// Returns how long a message of a programme would wait while messages of other programmes can go on; `None` if
    /// there is no other programme.
    pub fn holds_up_others(&self, programme: &str) -> Option<Duration> {
        let rate = self.by_programme.get(programme).filter(|_| self.by_programme.len() > 1)?;
        Some(rate.ready_in())
    }

    /// Returns what so many users take. The bucket fills at the rate of all granters, so each user takes as much of it
    /// as there are granters.
    fn part_of(&self, users: usize) -> usize {
        users.saturating_mul(self.granters.load(Ordering::Relaxed))
    }
}
