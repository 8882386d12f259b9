//! The daemon's tasks: one attempt of a reader and of a lane, each under its lease.
//!
//! What an attempt does is the pipeline's; here it gets its pre-flight, its lease and its connectors. Every failure
//! ends the attempt, and the supervisor decides whether there is a next one.

use anabranch_pipeline::capture::{self, Capture};
use anabranch_pipeline::config::{Config, SourceConfig};
use anabranch_pipeline::deliver::{self, Flush, Lane, LaneId};
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::metrics as names;
use anabranch_pipeline::ports::{Lease, Leases, READER_SEAT};
use anabranch_pipeline::projections::Defects;
use anabranch_pipeline::supervise::{Supervisor, TaskHandle};
use anabranch_schemas::change::Change;
use anabranch_schemas::lsn::Lsn;
use metrics::counter;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::observe::{lane_task, lanes, reader_task};
use crate::wiring::Wiring;

/// Starts the reader of one source.
pub fn spawn_reader(supervisor: &mut Supervisor, wiring: &Wiring, source: &SourceConfig) {
    let (wiring, source) = (wiring.clone(), source.clone());
    supervisor.spawn(&reader_task(&source.name), move |handle: TaskHandle, cancel: CancellationToken| {
        let (wiring, source) = (wiring.clone(), source.clone());
        async move { read(&wiring, &source, &handle, &cancel).await }
    });
}

/// Starts one lane.
pub fn spawn_lane(supervisor: &mut Supervisor, wiring: &Wiring, id: &LaneId) {
    let (wiring, id) = (wiring.clone(), id.clone());
    supervisor.spawn(&lane_task(&id), move |handle: TaskHandle, cancel: CancellationToken| {
        let (wiring, id) = (wiring.clone(), id.clone());
        async move { apply(&wiring, &id, &handle, &cancel).await }
    });
}

async fn read(
    wiring: &Wiring,
    source: &SourceConfig,
    handle: &TaskHandle,
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    let log = wiring.log().await?;
    let work = async |acknowledged: watch::Sender<Lsn>| {
        wiring.require_source(&source.name).await?;
        let capture = Capture {
            source: &source.name,
            connector: wiring.source(&source.name)?,
            log,
            start: &source.start,
            limits: &wiring.config().limits,
        };
        let lanes = async || wiring.progress_of_source(&source.name).await;
        capture::run(capture, lanes, &acknowledged, cancel).await
    };
    under_lease(log, handle, cancel, work).await
}

async fn apply(
    wiring: &Wiring,
    id: &LaneId,
    handle: &TaskHandle,
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    let log = wiring.log().await?;
    let work = async |applied: watch::Sender<Lsn>| {
        wiring.require_target(&id.target).await?;
        let mut store = wiring.lane(id)?;
        let projection = wiring.projection(&id.projection)?;
        let scope = store.scope();
        let mut defects = Defects::default();
        let project = |change: &Change<'_, '_>, flush: &mut Flush| {
            projection.project(change, scope, flush, &mut defects);
            count_defects(id, &mut defects);
        };
        let config = wiring.config();
        let lane = Lane {
            id,
            log,
            source: wiring.source(&id.source)?,
            seat: seat(config, id),
            start: &wiring.source_config(&id.source)?.start,
            feeds: wiring.direct_feeds(&id.source)?,
            limits: &config.limits,
        };
        deliver::run(lane, &mut store, project, &applied, cancel).await
    };
    under_lease(log, handle, cancel, work).await
}

/// A lane's place among the readings of its source: the same in every process.
fn seat(config: &Config, id: &LaneId) -> u32 {
    let of_source = lanes(config).into_iter().filter(|lane| lane.source == id.source);
    let place = of_source.take_while(|lane| lane != id).count();
    READER_SEAT + 1 + place as u32
}

/// Defects are rare: the counter is looked up only when there are some.
fn count_defects(id: &LaneId, defects: &mut Defects) {
    if defects.is_empty() {
        return;
    }
    for (defect, count) in defects.take().iter() {
        let (projection, source) = (id.projection.clone(), id.source.clone());
        counter!(names::ROW_DEFECTS, "projection" => projection, "source" => source, "reason" => defect.reason())
            .increment(count);
    }
}

/// Waits for the task's lease and works while it is held. The task runs from the first position that the work
/// reports: then its servers have answered. On `cancel` the work itself comes to an orderly end.
async fn under_lease<W>(
    leases: &impl Leases,
    handle: &TaskHandle,
    cancel: &CancellationToken,
    work: W,
) -> Result<(), Fault>
where
    W: AsyncFnOnce(watch::Sender<Lsn>) -> Result<(), Fault>,
{
    let mut lease = tokio::select! {
        lease = leases.acquire(handle.name()) => lease?,
        () = cancel.cancelled() => return Ok(()),
    };
    let (sender, mut positions) = watch::channel(Lsn::ZERO);
    let started = async {
        if positions.changed().await.is_ok() {
            handle.running();
        }
        std::future::pending::<()>().await;
    };
    let result = tokio::select! {
        result = work(sender) => result,
        fault = lease.lost() => Err(fault),
        () = started => unreachable!("it never ends"),
    };
    lease.release().await;
    result
}
