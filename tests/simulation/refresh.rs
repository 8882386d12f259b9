//! Refreshes while everything goes on, of lanes whose rows were damaged before: some are gone, and some are there of
//! users who are not, or in tables where they do not belong.

use anabranch_pipeline::deliver::{Cell, Scope, request_refresh};
use anabranch_pipeline::error::Code;
use anabranch_pipeline::ports::SourceConnector;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IteratorRandom;

use crate::replay::{NOBODY, any_lanes};
use crate::script::{SOURCES, shards, source_of};
use crate::stage::{LaneAt, Stage, lane_id};

/// One lane, or all lanes of a source; one table, or all.
pub async fn refresh(stage: &Stage, random: &mut StdRng) {
    let source = random.random_range(0..SOURCES);
    let of_source = || shards().into_iter().filter(|(_, number)| source_of(*number) == source);
    let scope = match random.random_ratio(1, 3) {
        true => Scope::Table(of_source().choose(random).expect("a source has tables").0),
        false => Scope::Source,
    };
    // Tables come to be with their first rows.
    let mut damaged = stage.sources[source].shards().await.expect("it always knows");
    damaged.retain(|shard| scope == Scope::Source || scope == Scope::Table(*shard));
    for lane in any_lanes(stage, source, random) {
        damage(stage, lane, &damaged, random);
        ask(stage, lane, scope).await;
    }
}

async fn ask(stage: &Stage, lane: LaneAt, mut scope: Scope) {
    let (id, mut store) = (lane_id(lane), stage.store(lane));
    loop {
        let outcome = request_refresh(&id, &mut store, scope).await;
        stage.tell(|| match &outcome {
            Ok(before) => format!("{id} at {} is asked to refresh {scope:?}", before.position),
            Err(fault) => format!("refresh: {fault}"),
        });
        match outcome.map_err(|fault| fault.code()) {
            // What is in doubt is said again, as people do.
            Err(Code::TargetUnreachable | Code::TargetFenced) => {}
            // It may be beyond the table already.
            Err(Code::RefreshRefused) => scope = Scope::Source,
            _ => return,
        }
    }
}

/// Of the lane's rows some are removed, and some older ones are added.
fn damage(stage: &Stage, lane: LaneAt, shards: &[ShardId], random: &mut StdRng) {
    let owned = stage.owned(lane);
    let old = Lsn::from_u64(1).expect("an Lsn");
    stage.targets[lane.1].tamper(|rows| {
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
