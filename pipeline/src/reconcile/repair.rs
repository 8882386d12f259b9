//! Repair: the lanes that own the rows read the source rows again and write their derived rows.
//!
//! Only the lane writes, between its own changes and at a version that the source has, so nothing can overtake it. The
//! caller reads the stores again to learn whether the repair helped.

use std::collections::BTreeMap;

use anabranch_schemas::shard::ShardId;

use super::candidates::SourceKey;
use super::lane_wait::{LaneObstacle, LaneWait};
use crate::deliver::request_refresh;
use crate::error::Fault;
use crate::ports::Lanes;
use crate::records::{Cell, KEYS_MAX, Progress, Refresh, Scope};
use crate::retry::again;

/// Has every lane of a source read these rows again and waits until all have; returns the reason when one does not.
pub async fn repair<L: Lanes>(
    lanes: &L,
    lane_wait: &LaneWait,
    source: &str,
    keys: &[&SourceKey],
) -> Result<(), String> {
    for keys in keys.chunks(KEYS_MAX) {
        let mut of_shard: BTreeMap<ShardId, Vec<Cell>> = BTreeMap::new();
        keys.iter().for_each(|key| of_shard.entry(key.shard).or_default().push(key.key.clone()));
        let text = |fault: Fault| fault.to_string();
        let asked = again(|| lanes.progress(source)).await.map_err(text)?;
        for (id, _) in &asked {
            // The lane's own commits may hold its progress for longer than one request waits.
            let ask = async || {
                request_refresh(id, &mut lanes.store(id)?, Scope::Keys(of_shard.clone())).await.map(drop)
            };
            again(ask).await.map_err(text)?;
        }
        let hindered = |progress: &Progress| {
            let waits = LaneObstacle { why: "does not come to the repair", passes: true };
            let repairs = |refresh: &Refresh| refresh.scope != Scope::Rereads;
            progress.refresh.as_ref().is_some_and(repairs).then_some(waits)
        };
        lane_wait.until(lanes, source, hindered).await?;
    }
    Ok(())
}
