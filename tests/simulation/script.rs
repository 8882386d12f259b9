//! Random transactions over sharded users, and the derived rows that they must lead to.
//!
//! The expectation is computed here from the rows alone, with days, databases and table names written out. It shares
//! nothing with the projector.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use anabranch_connectors::memory::{Group, ScriptedRow, Transaction};
use anabranch_schemas::birthday::Layout;
use anabranch_schemas::change::{Entity, Row, TableIdentity, Value};
use anabranch_schemas::shard::ShardId;
use rand::rngs::StdRng;
use rand::{Rng, RngExt};

pub const SOURCES: usize = 2;
pub const TARGETS: usize = 2;
const SHARDS_A_SOURCE: usize = 2;
const SHARDS: usize = SOURCES * SHARDS_A_SOURCE;
const USERS: u64 = 6;
const BRANCHES_MAX: usize = 3;

/// A day as stored, and the database that holds its table in the layout by day; `None` = it is no date.
///
/// There are few days, so users meet in tables and return to them; each lane of each target owns one. The last days
/// differ from others in lunar birthday and type alone, and only worlds with lunar tables have them.
const DAYS: [((u8, u8), Option<usize>); 9] = [
    ((1, 1), Some(0)),
    ((1, 3), Some(0)),
    ((2, 29), Some(1)),
    ((12, 31), Some(1)),
    ((2, 30), None),
    ((1, 1), Some(0)),
    ((1, 1), Some(0)),
    ((1, 3), Some(0)),
    ((12, 31), Some(1)),
];
/// Days of the worlds with solar tables.
const SOLAR_DAYS: usize = 5;

/// Lunar birthday and type of the same rows, the database of its table in the layout by day, and the type in its row.
const LUNAR: [(&str, &str, Option<usize>, &str); DAYS.len()] = [
    ("01-01", "", Some(0), "solar"),
    ("01-03", "lunar", Some(0), "lunar"),
    ("02-28", "solar", Some(1), "solar"),
    ("12-30", "LUNAR", Some(1), "lunar"),
    ("", "lunar", None, ""),
    ("01-03", "", Some(0), "solar"),
    ("01-01", "lunar", Some(0), "lunar"),
    ("12-31", "lunar", None, ""),
    ("02-28", "lunar", Some(1), "lunar"),
];

/// Index into [`DAYS`].
type Day = usize;
/// Shard number and user.
pub type Key = (usize, u64);

/// An expected derived row: target, `database.table`, shard number, user, and its values.
pub type Claim = (usize, String, usize, u64, String);

/// An XA branch that is prepared; its rows are locked until it is decided.
#[derive(Debug)]
struct Branch {
    number: u64,
    source: usize,
    outcome: Vec<(Key, Option<Day>)>,
}

/// Rows of the sources, and undecided branches.
#[derive(Debug, Default)]
pub struct Script {
    rows: BTreeMap<Key, Day>,
    branches: Vec<Branch>,
    prepared: u64,
    /// Whether branches of one source may be undecided at the same time.
    overlapping: bool,
    /// Whether one event may change a row twice.
    repeating: bool,
    /// Whether rows may change by text, which row events do not show.
    by_text: bool,
    /// Whether lunar tables are derived instead of solar ones.
    is_lunar: bool,
}

pub fn table(shard: usize) -> TableIdentity<'static> {
    let (source, table) = (format!("source-{}", source_of(shard)), format!("user_{shard:03}"));
    TableIdentity {
        entity: Entity::User,
        shard: ShardId::of(&source, "user_00", &table, 0),
        database: Cow::Borrowed("user_00"),
        table: Cow::Owned(table),
    }
}

/// The number of each shard.
pub fn shards() -> BTreeMap<ShardId, usize> {
    (0..SHARDS).map(|shard| (table(shard).shard, shard)).collect()
}

pub fn source_of(shard: usize) -> usize {
    shard / SHARDS_A_SOURCE
}

/// The row with all fields; a source captures some of them.
fn row(user: u64, day: Day) -> Row<'static> {
    let (((month, of_month), _), (lunar, birthday_type, ..)) = (DAYS[day], LUNAR[day]);
    let text = |text: &'static str| Value::Bytes(Cow::Borrowed(text.as_bytes()));
    let date = Value::Date { year: 1992, month, day: of_month };
    vec![Value::UInt(user), date, text(lunar), text(birthday_type)]
}

/// The day of a source's row. Days may differ in lunar birthday and type alone, so the whole row tells.
fn day_of(user: u64, stored: &Row<'_>) -> Day {
    (0..DAYS.len()).find(|day| row(user, *day) == *stored).expect("a row of the script")
}

impl Script {
    pub fn new(overlapping: bool, repeating: bool, by_text: bool) -> Self {
        Self { overlapping, repeating, by_text, ..Self::default() }
    }

    /// A script of the same users, from whom lunar tables are derived.
    pub fn lunar(self) -> Self {
        Self { is_lunar: true, ..self }
    }

    /// One logical change: groups for one or two sources, in the order in which they commit.
    pub fn next(&mut self, random: &mut StdRng) -> Vec<(usize, Group)> {
        match random.random_range(0..100) {
            0..58 => {
                let source = random.random_range(0..SOURCES);
                let events = random.random_range(1..4);
                let transaction = (0..events).map(|_| self.event(random, source)).collect();
                vec![(source, Group::Rows(transaction))]
            }
            58..76 => self.rename(random),
            76..79 => {
                let shard = random.random_range(0..SHARDS);
                self.withdraw(random, shard)
            }
            79..86 => self.prepare(random),
            86..95 => self.decide(random),
            95..97 if self.by_text => {
                let source = random.random_range(0..SOURCES);
                vec![(source, Group::Statement(vec![self.event(random, source)]))]
            }
            97..98 => {
                let source = random.random_range(0..SOURCES);
                vec![(source, Group::Unseen(vec![self.event(random, source)]))]
            }
            _ => vec![(random.random_range(0..SOURCES), Group::Rows(Vec::new()))],
        }
    }

    /// The derived rows that the sources' rows require.
    pub fn claims(&self, layout: Layout) -> BTreeSet<Claim> {
        let claim = |((shard, user), day): (&Key, &Day)| {
            let (((month, of_month), by_day), (lunar, _, lunar_by_day, celebrates_by)) =
                (DAYS[*day], LUNAR[*day]);
            let by_day = if self.is_lunar { lunar_by_day } else { by_day };
            let database = match layout {
                Layout::ByDay => by_day?,
                Layout::ByUser => by_day.and(Some((*user % 2) as usize))?,
            };
            let (table, values) = match self.is_lunar {
                true => {
                    (format!("lunar_birthday_{}", lunar.replace('-', "")), format!("{lunar} {celebrates_by}"))
                }
                false => (format!("birthday_{month:02}{of_month:02}"), format!("{month:02}-{of_month:02}")),
            };
            let table = format!("birthday_{database:02}.{table}");
            Some((database % TARGETS, table, *shard, *user, values))
        };
        self.rows.iter().filter_map(claim).collect()
    }

    /// Takes over the rows of a replaced or restored source, in which no branch is prepared.
    pub fn restored(&mut self, source: usize, rows_of: impl Fn(ShardId) -> BTreeMap<u64, Row<'static>>) {
        self.branches.retain(|branch| branch.source != source);
        self.rows.retain(|(shard, _), _| source_of(*shard) != source);
        for (shard, number) in shards().into_iter().filter(|(_, number)| source_of(*number) == source) {
            let rows = rows_of(shard).into_iter().map(|(user, row)| ((number, user), day_of(user, &row)));
            self.rows.extend(rows);
        }
    }

    /// Makes a row if the source has none: an empty source with derived rows does not begin anew.
    pub fn fill(&mut self, source: usize) -> Option<Group> {
        let key = (source * SHARDS_A_SOURCE, USERS);
        let is_empty = !self.rows.keys().any(|(shard, _)| source_of(*shard) == source);
        is_empty.then(|| Group::Rows(vec![vec![self.change(key, Some(0))]]))
    }

    fn is_locked(&self, key: Key) -> bool {
        self.branches.iter().any(|branch| branch.outcome.iter().any(|(locked, _)| *locked == key))
    }

    fn change(&mut self, key: Key, after: Option<Day>) -> ScriptedRow {
        let before = match after {
            Some(day) => self.rows.insert(key, day),
            None => self.rows.remove(&key),
        };
        scripted(key, before, after)
    }

    fn event(&mut self, random: &mut StdRng, source: usize) -> Vec<ScriptedRow> {
        let (mut rows, mut changed) = (Vec::new(), BTreeSet::new());
        for _ in 0..random.random_range(1..5) {
            let key = any_key(random, source);
            if !self.is_locked(key) && (changed.insert(key) || self.repeating) {
                let after = self.any_day(random, key);
                rows.push(self.change(key, after));
            }
        }
        rows
    }

    /// A random day; `None` deletes the row.
    fn any_day(&self, random: &mut StdRng, key: Key) -> Option<Day> {
        let stays = !self.rows.contains_key(&key) || random.random_ratio(2, 3);
        let days = if self.is_lunar { DAYS.len() } else { SOLAR_DAYS };
        stays.then(|| random.random_range(0..days))
    }

    /// Moves a user to another shard: in one transaction (insert before delete) or in two, in either order.
    fn rename(&mut self, random: &mut StdRng) -> Vec<(usize, Group)> {
        let place = random.random_range(0..self.rows.len().max(1));
        let Some((&from, &day)) = self.rows.iter().nth(place) else { return Vec::new() };
        let to = ((from.0 + random.random_range(1..SHARDS)) % SHARDS, from.1);
        if self.is_locked(from) || self.is_locked(to) {
            return Vec::new();
        }
        let (insert, delete) = (self.change(to, Some(day)), self.change(from, None));
        let (source, other) = (source_of(from.0), source_of(to.0));
        if source == other {
            return vec![(source, Group::Rows(vec![vec![insert], vec![delete]]))];
        }
        let mut both =
            vec![(other, Group::Rows(vec![vec![insert]])), (source, Group::Rows(vec![vec![delete]]))];
        if random.next_u32() & 1 == 0 {
            both.reverse();
        }
        both
    }

    /// Truncates a table, unless a branch holds rows of it: the statement would wait for the branch. Where an event may
    /// change a row twice, it may also replace the table and fill it (`CREATE OR REPLACE … SELECT`), all at one
    /// position.
    fn withdraw(&mut self, random: &mut StdRng, shard: usize) -> Vec<(usize, Group)> {
        let is_locked = |branch: &Branch| branch.outcome.iter().any(|((owner, _), _)| *owner == shard);
        if self.branches.iter().any(is_locked) {
            return Vec::new();
        }
        self.rows.retain(|(owner, _), _| *owner != shard);
        let mut event = vec![ScriptedRow { table: table(shard), before: None, after: None }];
        if self.repeating && random.random_ratio(1, 2) {
            for key in (0..random.random_range(1..=USERS)).map(|user| (shard, user)) {
                let after = self.any_day(random, key);
                event.push(self.change(key, after));
            }
        }
        vec![(source_of(shard), Group::Rows(vec![event]))]
    }

    fn prepare(&mut self, random: &mut StdRng) -> Vec<(usize, Group)> {
        let source = random.random_range(0..SOURCES);
        let overlaps = self.branches.iter().any(|branch| branch.source == source);
        if self.branches.len() == BRANCHES_MAX || (overlaps && !self.overlapping) {
            return Vec::new();
        }
        let mut outcome: Vec<(Key, Option<Day>)> = Vec::new();
        for _ in 0..random.random_range(1..4) {
            let key = any_key(random, source);
            if !self.is_locked(key) && outcome.iter().all(|(other, _)| *other != key) {
                outcome.push((key, self.any_day(random, key)));
            }
        }
        let of = |(key, after): &(Key, Option<Day>)| scripted(*key, self.rows.get(key).copied(), *after);
        let rows: Transaction = outcome.iter().map(|change| vec![of(change)]).collect();
        self.prepared += 1;
        let number = self.prepared;
        self.branches.push(Branch { number, source, outcome });
        vec![(source, Group::Prepare { branch: number, rows })]
    }

    fn decide(&mut self, random: &mut StdRng) -> Vec<(usize, Group)> {
        if self.branches.is_empty() {
            return Vec::new();
        }
        let branch = self.branches.swap_remove(random.random_range(0..self.branches.len()));
        if random.random_ratio(1, 3) {
            return vec![(branch.source, Group::RollBackBranch(branch.number))];
        }
        for (key, after) in branch.outcome {
            match after {
                Some(day) => self.rows.insert(key, day),
                None => self.rows.remove(&key),
            };
        }
        vec![(branch.source, Group::CommitBranch(branch.number))]
    }
}

fn any_key(random: &mut StdRng, source: usize) -> Key {
    let shard = source * SHARDS_A_SOURCE + random.random_range(0..SHARDS_A_SOURCE);
    (shard, random.random_range(0..USERS))
}

fn scripted((shard, user): Key, before: Option<Day>, after: Option<Day>) -> ScriptedRow {
    ScriptedRow {
        table: table(shard),
        before: before.map(|day| row(user, day)),
        after: after.map(|day| row(user, day)),
    }
}
