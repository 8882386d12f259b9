//! The barrier waits until every lane of a projection has passed everything that its sources had committed.
//!
//! A caller that reads derived tables after the barrier finds each row that a source had committed before it. The
//! barrier reads no rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use anabranch_schemas::lsn::FIRST_EPOCH;
use futures::future::join_all;

use super::lane_wait::{LaneObstacle, LaneWait, hinders};
use crate::error::Fault;
use crate::ports::{Lanes, RowSource};
use crate::records::Progress;
use crate::retry::again;

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
    Ok(lane_wait.until(lanes, name, hindered).await.err())
}

/// Returns the obstacle of a lane that is still to read tables again of which rows changed unseen.
fn owes_a_table(progress: &Progress) -> Option<LaneObstacle> {
    let owes = progress.refresh.as_ref().is_some_and(|refresh| !refresh.rereads.is_empty());
    owes.then_some(LaneObstacle {
        why: "is to read a table again, of which rows changed unseen",
        passes: true,
    })
}
