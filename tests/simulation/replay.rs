//! `replay` under faults and changes: the product's code sets lanes back, whose process runs, is frozen or is dead.
//!
//! Before lanes begin anew from nothing, their rows are changed by hand: only their removal repairs that.

use anabranch_pipeline::deliver::{Rewind, rewind};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::BinlogPoint;
use anabranch_pipeline::records::{Cell, Progress};
use anabranch_schemas::lsn::Lsn;
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use crate::anew::is_known;
use crate::script::{SOURCES, shards, source_of};
use crate::stage::{LaneAt, SOURCE_NAMES, Stage, lane_id, lanes_of};

/// Lowest number above every user of the script.
pub const NOBODY: u64 = 1000;

/// Sets one lane, or all lanes of a source, back.
pub async fn replay(stage: &Stage, random: &mut StdRng) {
    let source = random.random_range(0..SOURCES);
    // An operator replays nothing of a server that lost its past before it has begun anew.
    if !is_known(stage, source).await {
        return;
    }
    // A lane that begins from nothing does not notice a hidden table (`docs/limits.md`).
    if !stage.sources[source].hidden().is_empty() {
        return;
    }
    let lanes = any_lanes(stage, source, random);
    let to = match any_place(stage, source, random).await {
        Ok(Rewind::To(place)) if stage.sources[source].splits_branch(&place.resume) => {
            // The lane would stop by name, as the branch's rows are not after the position.
            return stage.log_line(|| format!("replay: {place:?} lies between XA PREPARE and XA COMMIT"));
        }
        Ok(to) => to,
        Err(fault) => return stage.log_line(|| format!("replay: {fault}")),
    };
    for lane in lanes {
        set_back(stage, lane, &to, random).await;
    }
}

/// One lane of the source, or all; without those whose target is away.
pub fn any_lanes(stage: &Stage, source: usize, random: &mut StdRng) -> Vec<LaneAt> {
    let mut lanes: Vec<LaneAt> = lanes_of(source).collect();
    if random.random_ratio(2, 3) {
        lanes = vec![*lanes.choose(random).expect("a source has lanes")];
    }
    // The operator cannot reach the lanes of a server that is away.
    lanes.retain(|lane| !stage.targets[lane.1].is_down());
    lanes
}

async fn any_place(stage: &Stage, source: usize, random: &mut StdRng) -> Result<Rewind, Fault> {
    let past = stage.past(source);
    let kept = stage.log.positions(SOURCE_NAMES[source]);
    match random.random_range(0..3) {
        0 => past.nothing(false).await,
        1 => past.resolve(BinlogPoint::Earliest).await,
        _ => {
            past.resolve(kept.choose(random).map_or(BinlogPoint::Earliest, |at| BinlogPoint::Lsn(*at))).await
        }
    }
}

async fn set_back(stage: &Stage, lane: LaneAt, to: &Rewind, random: &mut StdRng) {
    let (id, mut store) = (lane_id(lane), stage.store(lane));
    match (to, highest(stage, lane) == Lsn::ZERO) {
        // An operator may choose where a new lane begins, at their own risk.
        (Rewind::To(_), true) => return,
        (Rewind::To(_), false) => {}
        // No row is removed: documents of an interrupted first flush come again.
        (Rewind::ToNothing, true) => {}
        (Rewind::ToNothing, false) => tamper(stage, lane, random),
    }
    loop {
        let outcome = rewind(&id, &mut store, to, false).await;
        stage.log_line(|| match &outcome {
            Ok(before) => format!("{id} was at {} and is set to {to:?}", before.position),
            Err(fault) => format!("replay: {fault}"),
        });
        let Err(fault) = outcome else { return };
        // An operator repeats a request whose outcome is in doubt.
        if !matches!(fault.code(), Code::TargetUnreachable | Code::TargetFenced) {
            return;
        }
    }
}

fn highest(stage: &Stage, lane: LaneAt) -> Lsn {
    let id = lane_id(lane);
    let of_lane = stage.progress(lane.0).into_iter().find(|(other, _)| *other == id);
    of_lane.map_or(Lsn::ZERO, |(_, Progress { highest_position, .. })| highest_position)
}

/// Removes some of the lane's rows, and gives others another key and a version above every change.
fn tamper(stage: &Stage, lane: LaneAt, random: &mut StdRng) {
    let (owned, shards) = (stage.owned(lane), shards());
    let of_lane = |table: &u32, shard| owned.contains(table) && source_of(shards[&shard]) == lane.0;
    stage.tamper(lane.1, |rows| {
        let claims: Vec<_> =
            rows.keys().filter(|(table, shard, _)| of_lane(table, *shard)).cloned().collect();
        for claim in claims {
            let (table, shard, key) = claim.clone();
            match (random.random_range(0..4), &*key) {
                (0, _) => _ = rows.remove(&claim),
                (1, [Cell::UInt(user)]) => {
                    let values = rows[&claim].1.clone();
                    rows.insert((table, shard, [Cell::UInt(NOBODY + user)].into()), (Lsn::MAX, values));
                }
                _ => {}
            }
        }
    });
}
