//! Refreshes under faults and changes, of lanes with damaged rows: some rows are gone, others belong to absent users or
//! to other tables. A refresh of single keys repairs any damage. A refresh by condition repairs only damage that the
//! next change of a row would repair too, as it cannot find a missing row.

use std::collections::BTreeMap;
use std::time::Duration;

use anabranch_pipeline::deliver::request_refresh;
use anabranch_pipeline::error::Code;
use anabranch_pipeline::ports::SourceConnector;
use anabranch_pipeline::records::{Cell, Condition, Progress, Scope};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IteratorRandom;

use crate::replay::{NOBODY, any_lanes};
use crate::script::{SOURCES, shards, source_of};
use crate::stage::{LaneAt, Stage, lane_id, lanes_of};

/// Pause between two questions of an operator.
const ASK_INTERVAL: Duration = Duration::from_millis(5);

/// Refreshes one lane or all lanes of a source: one table, all tables, or keys.
pub async fn refresh(stage: &Stage, random: &mut StdRng) {
    let source = random.random_range(0..SOURCES);
    // Tables appear with their first rows.
    let known = stage.sources[source].shards().await.expect("it always knows");
    // A refresh of all tables would replace one of keys, and only that one repairs these rows.
    if random.random() && !stage.by_text && !stage.is_lunar {
        return refresh_keys(stage, source, &known, random).await;
    }
    let of_source = || shards().into_iter().filter(|(_, number)| source_of(*number) == source);
    let scope = match random.random_ratio(1, 3) {
        true => Scope::Table(of_source().choose(random).expect("a source has tables").0),
        false => Scope::Source,
    };
    let mut damaged = known;
    damaged.retain(|shard| scope == Scope::Source || scope == Scope::Table(*shard));
    for lane in any_lanes(stage, source, random) {
        // The request would replace a refresh of keys, and only that one repairs these rows.
        let refresh = progress(stage, lane).and_then(|progress| progress.refresh);
        if !matches!(refresh, Some(refresh) if matches!(refresh.scope, Scope::Keys(_) | Scope::Where(..))) {
            damage(stage, lane, &damaged, random);
            ask(stage, lane, scope.clone()).await;
        }
    }
}

/// Damages the lane's rows of tables that the source hides, and has the lane read all tables. It has rows of each of
/// these tables then: a lane does not notice a hidden table of which its store has none (`docs/limits.md`).
pub async fn refresh_hidden(stage: &Stage, lane: LaneAt, hidden: &[ShardId], random: &mut StdRng) {
    damage(stage, lane, hidden, random);
    ask(stage, lane, Scope::Source).await;
}

/// Refreshes as an operator does when the binlog of a source holds an event that cannot be read.
pub async fn refresh_all(stage: &Stage, source: usize) {
    for lane in lanes_of(source) {
        // The operator waits while the server is away.
        while stage.targets[lane.1].is_down() {
            tokio::time::sleep(ASK_INTERVAL).await;
        }
        let refresh = progress(stage, lane).and_then(|progress| progress.refresh);
        if refresh.is_none_or(|refresh| refresh.scope != Scope::Source) {
            ask(stage, lane, Scope::Source).await;
        }
    }
}

/// Refreshes keys of lanes that have begun: the rows of others would not be removed when they are set back to nothing.
async fn refresh_keys(stage: &Stage, source: usize, known: &[ShardId], random: &mut StdRng) {
    for lane in any_lanes(stage, source, random) {
        let may_be_asked = |progress: Progress| progress.position > Lsn::ZERO && progress.refresh.is_none();
        if known.is_empty() || !progress(stage, lane).is_some_and(may_be_asked) {
            continue;
        }
        if random.random_ratio(1, 3) {
            refresh_where(stage, lane, known, random).await;
            continue;
        }
        let mut keys: BTreeMap<ShardId, Vec<Cell>> = BTreeMap::new();
        for _ in 0..random.random_range(1..5) {
            let (shard, user) = (*known.iter().choose(random).expect("not empty"), random.random_range(0..8));
            let user = if user < 6 { user } else { NOBODY + user };
            let kind = random.random_range(0..6);
            spoil(stage, lane, shard, user, kind, random);
            keys.entry(shard).or_default().push(Cell::UInt(user));
        }
        ask(stage, lane, Scope::Keys(keys)).await;
    }
}

async fn refresh_where(stage: &Stage, lane: LaneAt, known: &[ShardId], random: &mut StdRng) {
    let (from, users) = (random.random_range(0..5), random.random_range(1..4));
    let table = *known.iter().choose(random).expect("not empty");
    let (only, of_table) = if random.random() { (Some(table), &[table][..]) } else { (None, known) };
    for shard in of_table {
        for user in from..from + users {
            let kind = random.random_range(0..3);
            spoil(stage, lane, *shard, user, kind, random);
        }
    }
    let comparisons = [format!("user_id >= {from}"), format!("user_id < {}", from + users)];
    let comparisons = comparisons.map(|text| text.parse().expect("a comparison"));
    let condition = Condition::new(comparisons.into()).expect("not too many");
    ask(stage, lane, Scope::Where(only, condition)).await;
}

fn progress(stage: &Stage, lane: LaneAt) -> Option<Progress> {
    let id = lane_id(lane);
    stage.progress(lane.0).into_iter().find(|(other, _)| *other == id).map(|(_, progress)| progress)
}

/// Deletes a user's rows or makes them wrong, too old or far too new; or adds a row where none should be.
fn spoil(stage: &Stage, lane: LaneAt, shard: ShardId, user: u64, kind: u32, random: &mut StdRng) {
    let owned = stage.owned(lane);
    let key: Box<[Cell]> = [Cell::UInt(user)].into();
    let wrong = || [Cell::Bytes(b"xx-xx".as_slice().into())].into();
    let (old, new) = (Lsn::from_u64(1).expect("an Lsn"), Lsn::MAX);
    stage.tamper(lane.1, |rows| {
        let is_of_user = |table: &u32, of: &ShardId, of_key: &[Cell]| {
            owned.contains(table) && *of == shard && *of_key == *key
        };
        let of_user = rows.iter_mut().filter(|((table, of, of_key), _)| is_of_user(table, of, of_key));
        match kind {
            0 => rows.retain(|(table, of, of_key), _| !is_of_user(table, of, of_key)),
            1 => of_user.for_each(|(_, row)| row.1 = wrong()),
            2 => of_user.for_each(|(_, row)| *row = (old, wrong())),
            3 => of_user.for_each(|(_, row)| *row = (new, wrong())),
            _ => {
                let version = if kind == 4 { old } else { new };
                let table = *owned.iter().choose(random).expect("a lane has tables");
                rows.insert((table, shard, key.clone()), (version, wrong()));
            }
        }
    });
}

async fn ask(stage: &Stage, lane: LaneAt, mut scope: Scope) {
    let (id, mut store) = (lane_id(lane), stage.store(lane));
    loop {
        let outcome = request_refresh(&id, &mut store, scope.clone()).await;
        stage.log_line(|| match &outcome {
            Ok(before) => format!("{id} at {} is asked to refresh {scope:?}", before.position),
            Err(fault) => format!("refresh: {fault}"),
        });
        match outcome.map_err(|fault| fault.code()) {
            // An operator repeats a request whose outcome is in doubt.
            Err(Code::TargetUnreachable | Code::TargetFenced) => tokio::time::sleep(ASK_INTERVAL).await,
            // The lane may be past the table already, or read all tables since the source began anew.
            Err(Code::RefreshRefused) => {
                if let Scope::Keys(keys) = &scope {
                    lower(stage, lane, keys);
                }
                scope = Scope::Source;
            }
            _ => return,
        }
    }
}

/// Makes far too new rows old: only a refresh of keys would repair them, and a refresh of all tables replaces it.
fn lower(stage: &Stage, lane: LaneAt, keys: &BTreeMap<ShardId, Vec<Cell>>) {
    let owned = stage.owned(lane);
    stage.tamper(lane.1, |rows| {
        for ((table, shard, key), row) in rows.iter_mut() {
            let is_of_key = keys.get(shard).is_some_and(|keys| keys.contains(&key[0]));
            if is_of_key && owned.contains(table) && row.0 == Lsn::MAX {
                row.0 = Lsn::from_u64(1).expect("an Lsn");
            }
        }
    });
}

/// Removes some of the lane's rows, and adds some older ones.
fn damage(stage: &Stage, lane: LaneAt, shards: &[ShardId], random: &mut StdRng) {
    let owned = stage.owned(lane);
    let old = Lsn::from_u64(1).expect("an Lsn");
    stage.tamper(lane.1, |rows| {
        rows.retain(|(table, shard, _), _| {
            !owned.contains(table) || !shards.contains(shard) || random.random_ratio(1, 2)
        });
        for shard in shards {
            let table = *owned.iter().choose(random).expect("a lane has tables");
            for user in [random.random_range(0..3), NOBODY + random.random_range(0..3)] {
                let values = [Cell::Bytes(b"01-01".as_slice().into())];
                rows.entry((table, *shard, [Cell::UInt(user)].into())).or_insert((old, values.into()));
            }
        }
    });
}
