//! The world of the simulation: users and their edits, sources and logs, birthday tables, the ledger's database.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use anabranch_connectors::memory::LedgerState;
use anabranch_coupons::programme::Programme;
use anabranch_coupons::records::{CouponKey, Member, Message, PARTS, RunKey, Unique};
use anabranch_schemas::birthday::MonthDay;
use anabranch_schemas::celebration::{Birthday, Calendar, LeapDayRule, Occurrence};
use anabranch_schemas::lunar::{LunarDate, LunarMonthDay};
use anabranch_schemas::shard::ShardId;
use jiff::civil::{Date, date};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, IteratorRandom};
use rand::{RngExt, SeedableRng};

use crate::books::CouponBooks;

pub const SHARDS: usize = 4;
const ZONES: [&str; 6] = [
    "UTC",
    "Asia/Shanghai",
    "America/New_York",
    "America/Santiago",
    "Pacific/Kiritimati",
    "Pacific/Honolulu",
];

/// A row of a source table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserRow {
    pub solar: Option<MonthDay>,
    pub lunar: Option<LunarMonthDay>,
    pub calendar: Calendar,
}

impl UserRow {
    /// The birthday that the row celebrates.
    pub fn celebrated(self) -> Option<Birthday> {
        match self.calendar {
            Calendar::Solar => self.solar.map(Birthday::Solar),
            Calendar::Lunar => self.lunar.map(Birthday::Lunar),
        }
    }

    fn places(self) -> impl Iterator<Item = Birthday> {
        self.solar.map(Birthday::Solar).into_iter().chain(self.lunar.map(Birthday::Lunar))
    }
}

/// A row of a birthday table.
#[derive(Debug, Clone, Copy)]
pub struct DerivedRow {
    pub calendar: Calendar,
    pub birthday: Birthday,
}

/// Contents of the ledger's server; the operator may restore all of it from a copy.
#[derive(Debug, Clone)]
pub struct Database {
    ledger: LedgerState,
    /// Every token that this copy knows.
    pub chain: BTreeSet<Unique>,
}

impl Deref for Database {
    type Target = LedgerState;

    fn deref(&self) -> &LedgerState {
        &self.ledger
    }
}

impl DerefMut for Database {
    fn deref_mut(&mut self) -> &mut LedgerState {
        &mut self.ledger
    }
}

/// The environment of the code under test.
pub struct World {
    pub random: StdRng,
    /// Whether chance breaks nothing: a test scripts every fault.
    pub is_scripted: bool,
    pub now: Timestamp,
    pub begins: Date,
    pub faults: Vec<String>,
    pub sources: [BTreeMap<u64, UserRow>; SHARDS],
    /// All rows of a user, each time from a moment on.
    pub history: BTreeMap<u64, Vec<(Timestamp, Vec<UserRow>)>>,
    pub changed: BTreeMap<u64, Timestamp>,
    moved: BTreeMap<u64, Date>,
    /// The second halves of renames.
    pub later: Vec<(Timestamp, usize, u64, Option<UserRow>)>,
    log: [VecDeque<(usize, u64, Option<UserRow>)>; 2],
    pub read: [u64; 2],
    pub written: [u64; 2],
    claims: BTreeMap<(u64, usize), UserRow>,
    pub tables: BTreeMap<Birthday, BTreeMap<(u64, usize), DerivedRow>>,
    /// Users with damaged derived rows; `mended` has the time of their repair by a reconciliation.
    pub damaged: BTreeSet<u64>,
    pub mended: BTreeMap<u64, Timestamp>,
    pub reconciled_at: Option<Timestamp>,
    /// Shards that the last reconciliation did not prove.
    pub unproven: BTreeSet<usize>,
    pub reconciled_day: Option<Date>,
    pub programmes: Vec<Programme>,
    pub database: Database,
    pub database_down_until: Timestamp,
    /// No source table can be read by key until then.
    pub sources_down_until: Timestamp,
    /// Users whose source table cannot be read.
    pub unreadable: BTreeSet<u64>,
    pub copies: Vec<(Timestamp, Database)>,
    pub restored_at: Option<Timestamp>,
    pub register: Unique,
    /// Messages, each with the time from which it may be taken.
    pub queue: Vec<(Timestamp, Message)>,
    pub archive: Vec<Message>,
    pub books: CouponBooks,
    serial: u128,
    hot_solar: Vec<MonthDay>,
    hot_lunar: Vec<LunarMonthDay>,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let year = *[2023, 2024, 2025, 2027, 2032, 2098].choose(&mut random).expect("not empty");
        let begins = date(year, 12, 1);
        let now = begins.to_zoned(TimeZone::UTC).expect("a day of the calendar").timestamp();
        let first = Unique(1);
        let database = Database { ledger: LedgerState::new(first), chain: BTreeSet::from([first]) };
        let solar = [(12, 31), (1, 1), (2, 28), (2, 29), (3, 1), (random.random_range(4..12), 9)];
        let lunar = [(12, 29), (12, 30), (1, 1), (random.random_range(2..12), 30)];
        let programmes = (0..random.random_range(1..=2)).map(|n| programme(n, &mut random)).collect();
        let books = CouponBooks::new(&mut random);
        let mut world = Self {
            is_scripted: false,
            now,
            begins,
            faults: Vec::new(),
            sources: Default::default(),
            history: BTreeMap::new(),
            changed: BTreeMap::new(),
            moved: BTreeMap::new(),
            later: Vec::new(),
            log: Default::default(),
            read: [0; 2],
            written: [0; 2],
            claims: BTreeMap::new(),
            tables: BTreeMap::new(),
            damaged: BTreeSet::new(),
            mended: BTreeMap::new(),
            reconciled_at: None,
            unproven: BTreeSet::new(),
            reconciled_day: None,
            programmes,
            database,
            database_down_until: now,
            sources_down_until: now,
            unreadable: BTreeSet::new(),
            copies: Vec::new(),
            restored_at: None,
            register: first,
            queue: Vec::new(),
            archive: Vec::new(),
            books,
            serial: 1,
            hot_solar: solar.iter().filter_map(|(month, day)| MonthDay::new(*month, *day)).collect(),
            hot_lunar: lunar.iter().filter_map(|(month, day)| LunarMonthDay::new(*month, *day)).collect(),
            random,
        };
        // All users of one part, so that messages carry several.
        for user in (0..world.random.random_range(3..6)).map(|user| user * PARTS) {
            let lunar = world.random.random_bool(0.7).then(|| world.some_lunar());
            let calendar = if world.random.random_bool(0.25) { Calendar::Lunar } else { Calendar::Solar };
            let row = UserRow { solar: Some(world.some_solar()), lunar, calendar };
            let shard = world.random.random_range(0..SHARDS);
            world.write(shard, user, Some(row));
        }
        world
    }

    pub fn fail(&mut self, what: impl Into<String>) {
        self.faults.push(format!("{}: {}", self.now, what.into()));
    }

    /// Whether a fault of this chance strikes now.
    pub fn strikes(&mut self, chance: f64) -> bool {
        self.random.random_bool(chance) && !self.is_scripted
    }

    pub fn fresh(&mut self) -> Unique {
        self.serial += 1;
        Unique(self.serial)
    }

    pub fn today(&self) -> Date {
        self.now.to_zoned(TimeZone::UTC).date()
    }

    fn some_day(&mut self) -> Date {
        let days = *[-1i32, 0, 0, 1, 1, 2].choose(&mut self.random).expect("not empty");
        self.today().checked_add(days.days()).expect("within the calendar")
    }

    fn some_solar(&mut self) -> MonthDay {
        let day = self.some_day();
        match self.random.random_bool(0.5) {
            true => *self.hot_solar.choose(&mut self.random).expect("not empty"),
            false => MonthDay::new(day.month() as u8, day.day() as u8).expect("a day"),
        }
    }

    fn some_lunar(&mut self) -> LunarMonthDay {
        let day = LunarDate::of(self.some_day()).expect("within the calendar");
        match self.random.random_bool(0.5) {
            true => *self.hot_lunar.choose(&mut self.random).expect("not empty"),
            false => LunarMonthDay::new(day.month, day.day).expect("a day"),
        }
    }

    /// Commits a row, or its deletion, in a source table.
    pub fn write(&mut self, shard: usize, user: u64, row: Option<UserRow>) {
        match row {
            Some(row) => self.sources[shard].insert(user, row),
            None => self.sources[shard].remove(&user),
        };
        self.log[shard % 2].push_back((shard, user, row));
        self.written[shard % 2] += 1;
        let rows = self.sources.iter().filter_map(|source| source.get(&user)).copied().collect();
        self.history.entry(user).or_default().push((self.now, rows));
    }

    /// Edits a birthday, its type or a name; a rename writes two shards up to an hour apart, in any order.
    pub fn edit(&mut self) {
        let user = *self.history.keys().choose(&mut self.random).expect("there are users");
        let at: Vec<usize> = (0..SHARDS).filter(|shard| self.sources[*shard].contains_key(&user)).collect();
        let kind: f64 = self.random.random();
        let ([shard], today) = (&at[..], self.today()) else { return };
        if kind >= 0.82 && self.moved.get(&user) == Some(&today) {
            return;
        }
        let old = self.sources[*shard][&user];
        let mut row = old;
        match kind {
            x if x < 0.45 => row.solar = Some(self.some_solar()),
            x if x < 0.60 => row.lunar = Some(self.some_lunar()),
            x if x < 0.75 => {
                row.calendar = match row.calendar {
                    Calendar::Solar => Calendar::Lunar,
                    Calendar::Lunar => Calendar::Solar,
                }
            }
            x if x < 0.82 => (row.solar, row.lunar) = (None, None),
            _ => {}
        }
        if kind >= 0.82 || self.random.random_bool(0.15) {
            self.moved.insert(user, today);
            let others = (0..SHARDS).filter(|other| other != shard);
            let new = others.choose(&mut self.random).expect("three others");
            let mut halves = [(new, Some(row)), (*shard, None)];
            if self.random.random_bool(0.5) {
                halves.reverse();
            }
            self.write(halves[0].0, user, halves[0].1);
            let at = self.now + minutes(self.random.random_range(0..60));
            self.later.push((at, halves[1].0, user, halves[1].1));
        } else {
            self.write(*shard, user, Some(row));
        }
        if row != old && (old.solar.is_some() || old.lunar.is_some()) {
            self.changed.insert(user, self.now);
        }
    }

    /// Lets lanes apply up to `most` changes of a source.
    pub fn apply(&mut self, source: usize, most: usize) {
        for _ in 0..most {
            let Some((shard, user, row)) = self.log[source].pop_front() else { break };
            if let Some(old) = self.claims.remove(&(user, shard)) {
                for table in old.places() {
                    self.tables.entry(table).or_default().remove(&(user, shard));
                }
            }
            if let Some(row) = row {
                self.claims.insert((user, shard), row);
                self.derive(user, shard, row);
            }
            self.read[source] += 1;
        }
    }

    fn derive(&mut self, user: u64, shard: usize, row: UserRow) {
        for birthday in row.places() {
            let derived = DerivedRow { calendar: row.calendar, birthday };
            self.tables.entry(birthday).or_default().insert((user, shard), derived);
        }
    }

    /// Runs a good reconciliation: it reads both sides behind a barrier and repairs differences.
    pub fn reconcile(&mut self) {
        for source in 0..2 {
            self.apply(source, usize::MAX);
        }
        self.tables.clear();
        for ((user, shard), row) in self.claims.clone() {
            self.derive(user, shard, row);
        }
        for user in std::mem::take(&mut self.damaged) {
            self.mended.insert(user, self.now);
        }
        self.reconciled_at = Some(self.now);
        self.unproven = (0..SHARDS).filter(|_| self.strikes(0.1)).collect();
    }

    /// Removes a derived row, makes its type stale, or leaves a stale, misplaced or doubled one.
    pub fn damage(&mut self) {
        let user = *self.history.keys().choose(&mut self.random).expect("there are users");
        let rows = |(table, rows): (&Birthday, &BTreeMap<(u64, usize), DerivedRow>)| {
            let of_user = rows.keys().filter(|(of, _)| *of == user);
            of_user.map(|key| (*table, *key)).collect::<Vec<_>>()
        };
        let mine: Vec<_> = self.tables.iter().flat_map(rows).collect();
        self.damaged.insert(user);
        if self.random.random_bool(0.6) && !mine.is_empty() {
            let (table, key) = *mine.choose(&mut self.random).expect("not empty");
            let rows = self.tables.entry(table).or_default();
            let mut row = rows.remove(&key).expect("it was found");
            if self.random.random_bool(0.4) {
                row.calendar = match row.calendar {
                    Calendar::Solar => Calendar::Lunar,
                    Calendar::Lunar => Calendar::Solar,
                };
                rows.insert(key, row);
            }
            return;
        }
        let table = match self.random.random_bool(0.5) {
            true => Birthday::Solar(self.some_solar()),
            false => Birthday::Lunar(self.some_lunar()),
        };
        let other = Birthday::Solar(MonthDay::new(6, 6).expect("a day"));
        let birthday = if self.random.random_bool(0.5) { table } else { other };
        let row = DerivedRow { calendar: table.calendar(), birthday };
        let shard = self.random.random_range(0..SHARDS);
        self.tables.entry(table).or_default().insert((user, shard), row);
    }

    /// The shards that any claim or derived row of a user names.
    pub fn claimed(&self, user: u64) -> BTreeSet<usize> {
        let derived = self.tables.values().flat_map(|rows| rows.keys());
        derived.chain(self.claims.keys()).filter(|(of, _)| *of == user).map(|(_, shard)| *shard).collect()
    }

    /// Whether no user celebrates a day by any rule, and no table of it has a row.
    pub fn is_quiet(&self, day: Date) -> bool {
        [LeapDayRule::Feb28, LeapDayRule::Mar1].into_iter().all(|rule| {
            let both = [Calendar::Solar, Calendar::Lunar];
            anabranch_schemas::celebration::celebrated(day, &both, rule).iter().all(|celebrated| {
                let birthday = celebrated.birthday;
                let rows = self.sources.iter().flat_map(|source| source.values());
                self.tables.get(&birthday).is_none_or(BTreeMap::is_empty)
                    && rows.into_iter().all(|row| row.places().all(|place| place != birthday))
            })
        })
    }

    /// Changes the configuration of a programme: its coupon, zone, rule of 29 February or calendars.
    pub fn reconfigure(&mut self) {
        let year = self.today().year();
        // The first run of a year fixes its rule. A copy that lacks the run would let another rule be fixed.
        let is_fixed = |database: &Database, name: &Arc<str>| {
            [year - 1, year, year + 1]
                .iter()
                .filter(|year| database.leap_days.contains_key(&(name.clone(), **year)))
                .count()
        };
        let fixed_now: Vec<usize> =
            self.programmes.iter().map(|programme| is_fixed(&self.database, &programme.name)).collect();
        let index = self.random.random_range(0..self.programmes.len());
        let same = |copy: &(Timestamp, Database)| {
            is_fixed(&copy.1, &self.programmes[index].name) == fixed_now[index]
        };
        let may_change_rule = self.copies.iter().all(same);
        let kind: f64 = self.random.random();
        let zone = *ZONES.choose(&mut self.random).expect("not empty");
        let programme = &mut self.programmes[index];
        match kind {
            x if x < 0.4 => programme.coupon = format!("{}+", programme.coupon).into(),
            x if x < 0.7 => programme.time_zone = TimeZone::get(zone).expect("a zone"),
            x if x < 0.9 && may_change_rule => {
                programme.leap_day = match programme.leap_day {
                    LeapDayRule::Feb28 => LeapDayRule::Mar1,
                    LeapDayRule::Mar1 => LeapDayRule::Feb28,
                }
            }
            x if x < 0.9 => {}
            _ if programme.calendars.len() == 1 => programme.calendars.push(Calendar::Lunar),
            _ => programme.calendars.truncate(1),
        }
    }

    /// The occurrence of a member's day.
    pub fn key(&self, run: &RunKey, member: Member) -> CouponKey {
        let occurrence = Occurrence::of(member.calendar, run.day).expect("within the calendar");
        CouponKey { user: member.user, programme: run.programme.clone(), occurrence }
    }
}

pub fn minutes(minutes: i64) -> SignedDuration {
    SignedDuration::from_mins(minutes)
}

fn programme(number: usize, random: &mut StdRng) -> Programme {
    let zone = ["UTC", "Asia/Shanghai", "America/New_York"].choose(random).expect("not empty");
    let rule = ["feb28", "mar1"].choose(random).expect("not empty");
    let calendars = ["'solar', 'lunar'", "'solar', 'lunar'", "'solar'"].choose(random).expect("not empty");
    let cool_off = [0, 0, 20].choose(random).expect("not empty");
    let text = format!(
        "name = 'programme-{number}'\ncoupon = 'cake'\ntime_zone = '{zone}'\nleap_day = '{rule}'\n\
         calendars = [{calendars}]\ncool_off_days = {cool_off}\npage_rows = 2\n"
    );
    let table: toml::Table = text.parse().expect("TOML");
    Programme::parse_all(&[table]).expect("a programme").remove(0)
}

/// The shard id of a source table of the simulation.
pub fn shard_id(shard: usize) -> ShardId {
    ShardId::from_u64(shard as u64).expect("a small number")
}
