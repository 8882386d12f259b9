//! The barrier waits until every lane of a projection has passed everything that its sources had committed.
//!
//! A caller that reads derived tables after the barrier finds each row that a source had committed before it. The
//! barrier reads no rows.

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

/// Waits for the lanes of each source. Returns the sources that the barrier does not hold for, and why.
pub async fn barrier<S: RowSource, L: Lanes>(
    sources: &BTreeMap<String, Arc<S>>,
    lanes: &L,
    lane_wait: &LaneWait,
) -> BTreeMap<String, String> {
    let waits = sources.iter().map(async |(name, source)| {
        let ended = of_source(name, &**source, lanes, lane_wait).await;
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
) -> Result<Option<String>, Fault> {
    // The source reports its position in the epoch of the lanes. Whether both name the same server is compared below.
    let progress = again(|| lanes.progress(name)).await?;
    let epoch = progress.iter().map(|(_, progress)| progress.position.epoch()).max();
    let present = again(|| source.rows(&[], epoch.unwrap_or(FIRST_EPOCH))).await?;
    let hindered = |progress: &Progress| {
        hinders(progress, present.high, &present.server).or_else(|| owes_a_table(progress))
    };
    match lane_wait.until(lanes, name, hindered).await {
        // By now the lane may have read them: then the answer has no names.
        Err(why) if why.contains(OWES) => Ok(Some(match owed_tables(name, source, lanes).await {
            names if names.is_empty() => why,
            names => format!("{why}: {names}"),
        })),
        ended => Ok(ended.err()),
    }
}

/// Returns the names of some tables that the lanes of a source are to read again; empty when there are none now.
async fn owed_tables<S: RowSource, L: Lanes>(name: &str, source: &S, lanes: &L) -> String {
    // The answer is worth having without names.
    let progress = lanes.progress(name).await.unwrap_or_default();
    let rereads = progress.iter().filter_map(|(_, progress)| progress.refresh.as_ref());
    let owed: BTreeSet<ShardId> = rereads.flat_map(|refresh| refresh.rereads.keys().copied()).collect();
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
fn owes_a_table(progress: &Progress) -> Option<LaneObstacle> {
    let owes = progress.refresh.as_ref().is_some_and(|refresh| !refresh.rereads.is_empty());
    owes.then_some(LaneObstacle { why: OWES, passes: true })
}
