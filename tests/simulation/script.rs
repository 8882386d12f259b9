//! Random transactions over sharded users, and what they must lead to.

use std::borrow::Cow;
use std::collections::BTreeMap;

use anabranch_connectors::memory::{ScriptedRow, Transaction};
use anabranch_schemas::change::{Entity, Row, TableIdentity, Value};
use anabranch_schemas::shard::ShardId;
use rand::rngs::StdRng;
use rand::{Rng, RngExt};

pub const SOURCES: usize = 2;
const SHARDS_A_SOURCE: usize = 2;
const USERS: u64 = 6;
/// Few days, so that users meet in tables and come back to them. The last is not a date.
const DAYS: [(u8, u8); 4] = [(1, 1), (2, 29), (12, 31), (2, 30)];

/// What the sources hold: (shard, user) → day.
pub type Truth = BTreeMap<(usize, u64), (u8, u8)>;

pub fn source_of(shard: usize) -> usize {
    shard / SHARDS_A_SOURCE
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

fn row(user: u64, (month, day): (u8, u8)) -> Row<'static> {
    vec![Value::UInt(user), Value::Date { year: 1992, month, day }]
}

fn change(truth: &mut Truth, shard: usize, user: u64, after: Option<(u8, u8)>) -> ScriptedRow {
    let before = match after {
        Some(day) => truth.insert((shard, user), day),
        None => truth.remove(&(shard, user)),
    };
    ScriptedRow {
        table: table(shard),
        before: before.map(|day| row(user, day)),
        after: after.map(|day| row(user, day)),
    }
}

/// One logical change: transactions for one or two sources, in the order in which they commit.
pub fn next(random: &mut StdRng, truth: &mut Truth) -> Vec<(usize, Transaction)> {
    let shards = SOURCES * SHARDS_A_SOURCE;
    match random.random_range(0..100) {
        0..70 => {
            let source = random.random_range(0..SOURCES);
            let events = random.random_range(1..4);
            let transaction = (0..events).map(|_| event(random, truth, source)).collect();
            vec![(source, transaction)]
        }
        70..92 => rename(random, truth, shards),
        92..95 => {
            let shard = random.random_range(0..shards);
            truth.retain(|(owner, _), _| *owner != shard);
            vec![(
                source_of(shard),
                vec![vec![ScriptedRow { table: table(shard), before: None, after: None }]],
            )]
        }
        _ => vec![(random.random_range(0..SOURCES), Vec::new())],
    }
}

fn event(random: &mut StdRng, truth: &mut Truth, source: usize) -> Vec<ScriptedRow> {
    let mut rows = Vec::new();
    for _ in 0..random.random_range(1..5) {
        let shard = source * SHARDS_A_SOURCE + random.random_range(0..SHARDS_A_SOURCE);
        let user = random.random_range(0..USERS);
        let exists = truth.contains_key(&(shard, user));
        let after = (!exists || random.random_ratio(2, 3)).then(|| DAYS[random.random_range(0..DAYS.len())]);
        rows.push(change(truth, shard, user, after));
    }
    rows
}

/// A user moves to another shard: in one transaction (insert before delete) or in two, in either order.
fn rename(random: &mut StdRng, truth: &mut Truth, shards: usize) -> Vec<(usize, Transaction)> {
    let Some(&(from, user)) = truth.keys().nth(random.random_range(0..truth.len().max(1))) else {
        return Vec::new();
    };
    let to = (from + random.random_range(1..shards)) % shards;
    let day = truth[&(from, user)];
    let insert = change(truth, to, user, Some(day));
    let delete = change(truth, from, user, None);
    if source_of(from) == source_of(to) {
        return vec![(source_of(from), vec![vec![insert], vec![delete]])];
    }
    let mut both = vec![(source_of(to), vec![vec![insert]]), (source_of(from), vec![vec![delete]])];
    if random.next_u32() & 1 == 0 {
        both.reverse();
    }
    both
}
