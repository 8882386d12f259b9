//! Leases of a source that left: none may be held when a removal begins, and the removal holds them to its end.
//!
//! A lease that is lost ends the removal, because a process whose file has the source may have begun.

use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{LEASE_TIME_TO_LIVE, Leases};
use anabranch_pipeline::records::LaneId;
use anabranch_pipeline::supervise::{HeldLeases, acquired_within};
use futures::future::try_join_all;
use tokio::time::{Instant, sleep};

use super::RemoveRequest;
use crate::task_names::{lane_task, reader_task};
use crate::wiring::Log;

/// Wait for leases: those of a process that was killed are free by then.
const LEASES_WAIT: Duration = LEASE_TIME_TO_LIVE.saturating_add(Duration::from_secs(2));
const LEASES_INTERVAL: Duration = Duration::from_millis(500);

/// Takes the leases of reader and lanes.
pub(super) async fn take(
    request: &RemoveRequest,
    log: &Log,
    name: &str,
    lanes: &[LaneId],
) -> Result<HeldLeases<<Log as Leases>::Lease>, Fault> {
    let keys = std::iter::once(reader_task(name)).chain(lanes.iter().map(lane_task));
    let taking = keys.map(|key| async move {
        let lease = acquired_within(log, &key, LEASES_WAIT).await?;
        lease.ok_or_else(|| {
            let found = format!("another process holds the lease {key}");
            request.refused(found).needs(still_held(name))
        })
    });
    Ok(try_join_all(taking).await?.into())
}

/// Refuses while any process holds a lease of the source: its configuration has the source. The lease of a process that
/// was killed ends within the wait.
pub(super) async fn require_free(request: &RemoveRequest, log: &Log, source: &str) -> Result<(), Fault> {
    let began = Instant::now();
    loop {
        match require_free_now(request, log, source).await {
            Err(fault) if fault.code() == Code::RemoveRefused && began.elapsed() < LEASES_WAIT => {
                sleep(LEASES_INTERVAL).await;
            }
            ended => return ended,
        }
    }
}

async fn require_free_now(request: &RemoveRequest, log: &Log, source: &str) -> Result<(), Fault> {
    let reader = reader_task(source);
    let is_of_source = |lease: &str| {
        let parts: Vec<&str> = lease.split('/').collect();
        lease == reader || matches!(parts.as_slice(), ["lane", _, _, of, _] if *of == source)
    };
    let holders = log.lease_holders().await?;
    let held = holders.iter().find(|(lease, _)| is_of_source(lease.as_str()));
    let Some((lease, holder)) = held else { return Ok(()) };
    let found = format!("process {} on {} holds the lease {lease}", holder.process_id, holder.host);
    Err(request.refused(found).needs(still_held(source)))
}

fn still_held(source: &str) -> String {
    format!(
        "no process whose configuration has source {source}: take it out of every file, and restart each daemon"
    )
}
