//! The barrier waits until every lane of a projection has passed everything that its sources had committed.
//!
//! A caller that reads derived tables after the barrier finds each row that a source had committed before it. The
//! barrier reads no rows. A caller that reads derived rows of one table does not wait for other tables that the lanes
//! are to read again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anabranch_schemas::lsn::FIRST_EPOCH;
use anabranch_schemas::shard::ShardId;
use futures::future::join_all;

use super::lane_wait::{LaneObstacle, LaneWait, hinders};
use crate::error::Fault;
use crate::ports::{Lanes, RowSource};
use crate::records::Progress;
use crate::retry::again;

/// The obstacle of a lane that is still to read a table again.
const OWES: &str = "is to read a table again, whose rows changed without row events";
/// Tables that an answer names, at most.
const NAMED_MAX: usize = 5;

/// Waits for the lanes of each source; with `only`, for no other table that they are to read again. Returns the sources
/// that the barrier does not hold for, and why.
pub async fn barrier<S: RowSource, L: Lanes>(
    sources: &BTreeMap<String, Arc<S>>,
    lanes: &L,
    lane_wait: &LaneWait,
    only: Option<ShardId>,
) -> BTreeMap<String, String> {
    let waits = sources.iter().map(async |(name, source)| {
        let ended = of_source(name, &**source, lanes, lane_wait, only).await;
        let why = ended.unwrap_or_else(|fault| Some(fault.to_string()))?;
        Some((name.clone(), why))
    });
    join_all(waits).await.into_iter().flatten().collect()
}

/// Returns why the lanes of a source have not passed its present end; `None` when they have.
async fn of_source<S: RowSource, L: Lanes>(
    name: &str,
    source: &S,
    lanes: &L,
    lane_wait: &LaneWait,
    only: Option<ShardId>,
) -> Result<Option<String>, Fault> {
    // The source reports its position in the epoch of the lanes. Whether both name the same server is compared below.
    let progress = again(|| lanes.progress(name)).await?;
    let epoch = progress.iter().map(|(_, progress)| progress.position.epoch()).max();
    let present = again(|| source.rows(&[], epoch.unwrap_or(FIRST_EPOCH))).await?;
    let hindered = |progress: &Progress| {
        hinders(progress, present.high, &present.server).or_else(|| owes_a_table(progress, only))
    };
    match lane_wait.until(lanes, name, hindered).await {
        // By now the lane may have read them: then the answer has no names.
        Err(why) if why.contains(OWES) => Ok(Some(match owed_tables(name, source, lanes, only).await {
            names if names.is_empty() => why,
            names => format!("{why}: {names}"),
        })),
        ended => Ok(ended.err()),
    }
}

/// Returns the names of some tables that the lanes of a source are to read again; empty when there are none now.
async fn owed_tables<S: RowSource, L: Lanes>(
    name: &str,
    source: &S,
    lanes: &L,
    only: Option<ShardId>,
) -> String {
    // The answer is worth having without names.
    let progress = lanes.progress(name).await.unwrap_or_default();
    let rereads = progress.iter().filter_map(|(_, progress)| progress.refresh.as_ref());
    let owed = rereads.flat_map(|refresh| refresh.rereads.keys().copied());
    let owed: BTreeSet<ShardId> = owed.filter(|shard| is_meant(*shard, only)).collect();
    let tables = source.tables().await.unwrap_or_default();
    let named = |shard: &ShardId| match tables.iter().find(|table| table.shard == *shard) {
        Some(table) => format!("{}.{}", table.database, table.table),
        None => format!("the table of shard {shard}"),
    };
    let names: Vec<String> = owed.iter().take(NAMED_MAX).map(named).collect();
    match owed.len() {
        0..=NAMED_MAX => names.join(", "),
        all => format!("{} and {} more", names.join(", "), all - NAMED_MAX),
    }
}

/// Returns the obstacle of a lane that is still to read tables again of which rows changed unseen.
fn owes_a_table(progress: &Progress, only: Option<ShardId>) -> Option<LaneObstacle> {
    let mut owed = progress.refresh.iter().flat_map(|refresh| refresh.rereads.keys());
    owed.any(|shard| is_meant(*shard, only)).then_some(LaneObstacle { why: OWES, passes: true })
}

fn is_meant(shard: ShardId, only: Option<ShardId>) -> bool {
    only.is_none_or(|only| only == shard)
}

#[cfg(test)]
mod tests {
    use anabranch_schemas::lsn::Lsn;

    use super::*;
    use crate::records::Refresh;

    #[test]
    fn a_barrier_for_one_table_does_not_wait_for_another_one_that_is_to_be_read_again() {
        let shard = |number| ShardId::from_u64(number).expect("it is small");
        let refresh = Some(Refresh::with_reread(None, shard(7), Lsn::MAX));
        let progress = Progress { refresh, ..Progress::default() };
        let waits = |only| owes_a_table(&progress, only).is_some();
        assert!(waits(None));
        assert!(waits(Some(shard(7))));
        assert!(!waits(Some(shard(8))));
        assert!(owes_a_table(&Progress::default(), None).is_none());
    }
}
