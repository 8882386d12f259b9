//! The coupon system of the simulation: it forgets keys, and its books keep every coupon.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anabranch_connectors::memory::CouponKeys;
use anabranch_coupons::ports::{Gift, GiftPage};
use anabranch_coupons::records::{CouponKey, DayRun, Member, RunKey, Unique};
use jiff::civil::Date;
use jiff::{SignedDuration, Timestamp};
use rand::RngExt;
use rand::rngs::StdRng;

/// The time for which the coupon system remembers a key, as granters are configured to believe.
pub const KEY_MEMORY: SignedDuration = SignedDuration::from_hours(24);
/// Coupons that a page of the statement looks through.
const PAGE: usize = 3;

/// A coupon that was given.
#[derive(Debug, Clone)]
pub struct BookEntry {
    pub key: CouponKey,
    pub run: RunKey,
    pub coupon: String,
    pub given_at: Timestamp,
}

/// An issue of a row, with the run that the ledger had then, or before it was restored. A restored ledger may begin the
/// day anew by other rules.
#[derive(Debug, Clone)]
pub struct Issue {
    pub run: RunKey,
    pub day_run: Option<DayRun>,
    pub member: Member,
    pub token: Unique,
}

/// The coupon system: it forgets keys and never forgets a given coupon.
pub struct CouponBooks {
    pub books: Vec<BookEntry>,
    pub keys: CouponKeys,
    /// Whether it answers the request for its statement.
    pub has_statement: bool,
    pub down_until: Timestamp,
    /// Until then it accepts connections and answers every request with 503.
    pub unavailable_until: Timestamp,
    /// Until then it accepts connections and closes them.
    pub closing_until: Timestamp,
    /// Until then it answers every request with 429.
    pub busy_until: Timestamp,
    /// The pause that an answer of 429 asks for, where it names one.
    pub retry_after: Option<Duration>,
    /// Users whose presence in a call makes it fail with 500, and nothing is done.
    pub failing: BTreeSet<u64>,
    /// The last issue of each row.
    pub issued: BTreeMap<CouponKey, Issue>,
    pub issued_since_restore: BTreeSet<Unique>,
    pub called: BTreeSet<Unique>,
    /// Whether the ledger lacks a call, since a restore.
    pub is_lost: bool,
    pub stopped_at: Option<Timestamp>,
    pub versions: BTreeMap<RunKey, DayRun>,
    pub asked: BTreeMap<RunKey, Timestamp>,
    pub closed: BTreeMap<RunKey, Timestamp>,
    /// Runs whose last report is stored; no restore of the ledger changes that.
    pub reported: BTreeSet<RunKey>,
    /// Users whose drift came after the proof of a day; coupons in `letters` may be sent again too late.
    pub excused: BTreeMap<RunKey, BTreeSet<u64>>,
    pub letters: BTreeSet<(CouponKey, Date)>,
    pub counts: BTreeMap<&'static str, u64>,
}

impl CouponBooks {
    pub fn new(random: &mut StdRng) -> Self {
        let forgets = random.random_bool(0.67);
        Self {
            books: Vec::new(),
            keys: CouponKeys::new(if forgets { KEY_MEMORY } else { KEY_MEMORY * 100_000 }),
            has_statement: true,
            down_until: Timestamp::UNIX_EPOCH,
            unavailable_until: Timestamp::UNIX_EPOCH,
            closing_until: Timestamp::UNIX_EPOCH,
            busy_until: Timestamp::UNIX_EPOCH,
            retry_after: None,
            failing: BTreeSet::new(),
            issued: BTreeMap::new(),
            issued_since_restore: BTreeSet::new(),
            called: BTreeSet::new(),
            is_lost: false,
            stopped_at: None,
            versions: BTreeMap::new(),
            asked: BTreeMap::new(),
            closed: BTreeMap::new(),
            reported: BTreeSet::new(),
            excused: BTreeMap::new(),
            letters: BTreeSet::new(),
            counts: BTreeMap::new(),
        }
    }

    /// Returns a page of the statement.
    pub fn page(&self, since: Timestamp, position: u64) -> GiftPage {
        let end = (position as usize + PAGE).min(self.books.len());
        let of_page = self.books[position as usize..end].iter().filter(|entry| entry.given_at >= since);
        let gift = |entry: &BookEntry| Gift {
            key: entry.key.clone(),
            coupon: entry.coupon.as_str().into(),
            given_at: entry.given_at,
        };
        GiftPage { gifts: of_page.map(gift).collect(), next: (end < self.books.len()).then_some(end as u64) }
    }

    pub fn knows(&self, key: &CouponKey, now: Timestamp) -> bool {
        self.keys.knows(key, now)
    }

    /// The time until which it answers no question about keys.
    pub fn silent_until(&self) -> Timestamp {
        self.down_until.max(self.unavailable_until).max(self.closing_until).max(self.busy_until)
    }

    pub fn gave(&self, key: &CouponKey) -> bool {
        self.books.iter().any(|entry| entry.key == *key)
    }

    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Takes note of a ledger that was restored to a copy with this chain and these runs.
    pub fn restored(&mut self, chain: &BTreeSet<Unique>, runs: &BTreeMap<RunKey, DayRun>) {
        self.versions.extend(runs.iter().map(|(key, run)| (key.clone(), run.clone())));
        // The copy does not know the requests since it was made.
        self.asked.clear();
        self.issued_since_restore.clear();
        self.is_lost = !self.called.is_subset(chain);
        self.count("restores");
    }
}
