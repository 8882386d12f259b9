//! The daemon's tasks: readers, lanes, drains of caches, sweeps of tombstones and the mint of uuids.
//!
//! `composition` in the pipeline puts readers, lanes, drains and the mint together; here readers and lanes also obey
//! pauses, and yield to processes that have less to do. Each failure ends an attempt, and the supervisor decides
//! whether it makes another one.

use std::pin::pin;
use std::time::Duration;

use anabranch_pipeline::composition::{self, CacheParts};
use anabranch_pipeline::config::SourceConfig;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::identifiers::UuidOrders;
use anabranch_pipeline::metrics as names;
use anabranch_pipeline::records::LaneId;
use anabranch_pipeline::supervise::{Ready, Supervisor, TaskHandle, under_lease};
use metrics::counter;
use tokio_util::sync::CancellationToken;

use crate::pauses::{KnownPauses, Pause};
use crate::sharing::{self, Yields};
use crate::task_names::{MINT_TASK, cache_task, lane_task, reader_task, sweep_task};
use crate::wall_clock;
use crate::wiring::{Documents, Wiring};

/// Pause between two sweeps of tombstones, which have an age of hours.
const SWEEP_INTERVAL: Duration = Duration::from_secs(3600);

/// Requests to a task while it works.
#[derive(Debug, Clone)]
pub struct Requests {
    pub pauses: KnownPauses,
    pub yields: Yields,
}

/// A reason for which a task ends its work without a cancellation.
enum Interruption {
    Paused(Pause),
    /// Another process has less to do.
    Yielded,
}

/// Starts the reader of one source.
pub fn spawn_reader(supervisor: &mut Supervisor, wiring: &Wiring, yields: &Yields, source: &SourceConfig) {
    let (name, context) = (reader_task(&source.name), (wiring.clone(), yields.clone(), source.clone()));
    supervisor.spawn_with(&name, context, |(wiring, yields, source), handle, cancel| async move {
        loop {
            let turn = cancel.child_token();
            let work = Box::pin(composition::read(&wiring, &source.name, &handle, &turn));
            let yielded = async {
                yields.requested(handle.name()).await;
                Interruption::Yielded
            };
            match interruptible(work, &turn, yielded).await? {
                Some(_) => stand_back(&handle, &cancel).await,
                None => return Ok(()),
            }
        }
    });
}

/// Starts one lane, which works while it is not paused.
pub fn spawn_lane(supervisor: &mut Supervisor, wiring: &Wiring, requests: &Requests, id: &LaneId) {
    let context = (wiring.clone(), requests.clone(), id.clone());
    supervisor.spawn_with(&lane_task(id), context, |(wiring, requests, id), handle, cancel| {
        let Requests { pauses, yields } = requests;
        async move {
            loop {
                pauses.resumed(&id, &handle, &cancel).await;
                let turn = cancel.child_token();
                let work = Box::pin(composition::apply(&wiring, &id, &handle, &turn));
                let interruption = async {
                    tokio::select! {
                        pause = pauses.paused(&id) => Interruption::Paused(pause),
                        () = yields.requested(handle.name()) => Interruption::Yielded,
                    }
                };
                match interruptible(work, &turn, interruption).await? {
                    Some(Interruption::Paused(pause)) => {
                        tracing::info!(lane = %id, by = pause.by, reason = pause.reason, "the lane is paused");
                    }
                    Some(Interruption::Yielded) => stand_back(&handle, &cancel).await,
                    None => return Ok(()),
                }
            }
        }
    });
}

/// Does the work to its end, or to an orderly one on an interruption, which gives the lease back and is returned.
async fn interruptible(
    work: impl Future<Output = Result<(), Fault>>,
    turn: &CancellationToken,
    interruption: impl Future<Output = Interruption>,
) -> Result<Option<Interruption>, Fault> {
    let mut work = pin!(work);
    let why = tokio::select! {
        ended = &mut work => return ended.map(|()| None),
        why = interruption => why,
    };
    turn.cancel();
    work.await.map(|()| Some(why))
}

/// Leaves a task to another process for a while.
async fn stand_back(handle: &TaskHandle, cancel: &CancellationToken) {
    handle.standby();
    tokio::select! {
        () = cancel.cancelled() => {}
        () = tokio::time::sleep(sharing::STAND_BACK) => {}
    }
}

/// Starts the task that keeps a cache right.
pub fn spawn_cache(supervisor: &mut Supervisor, wiring: &Wiring, name: &str) {
    let context = (wiring.clone(), name.to_owned());
    supervisor.spawn_with(&cache_task(name), context, |(wiring, name), handle, cancel| async move {
        drain(&wiring, &name, &handle, &cancel).await
    });
}

async fn drain(
    wiring: &Wiring,
    name: &str,
    handle: &TaskHandle,
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    let (log, cache) = (wiring.log().await?, wiring.cache(name)?);
    let parts = CacheParts {
        cache: &cache.redis,
        outboxes: &cache.outboxes,
        mapping: &cache.mapping,
        time_to_live: cache.config.time_to_live,
    };
    composition::drain(log, name, parts, handle, cancel).await
}

/// Starts the task that removes tombstones of a document projection that are older than `kept`.
pub fn spawn_sweep(supervisor: &mut Supervisor, wiring: &Wiring, documents: &Documents, kept: Duration) {
    let (name, context) = (sweep_task(&documents.projection), (wiring.clone(), documents.clone()));
    counter!(names::SEARCH_SWEPT, "projection" => documents.projection.clone()).increment(0);
    supervisor.spawn_with(&name, context, move |(wiring, documents), handle, cancel| async move {
        sweep(&wiring, &documents, kept, &handle, &cancel).await
    });
}

async fn sweep(
    wiring: &Wiring,
    documents: &Documents,
    kept: Duration,
    handle: &TaskHandle,
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    let log = wiring.log().await?;
    let Documents { projection, target, .. } = documents;
    let work = async |ready: Ready| loop {
        let before_ms = wall_clock::now_ms().saturating_sub(kept.as_millis() as u64);
        match target.sweep(projection, before_ms, false).await {
            Ok(count) => counter!(names::SEARCH_SWEPT, "projection" => projection.clone()).increment(count),
            // A rebuild or a replay needs them.
            Err(fault) if fault.code() == Code::ReplayRefused => tracing::info!(%fault, "tombstones stay"),
            Err(fault) => return Err(fault),
        }
        ready.report();
        tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            () = tokio::time::sleep(SWEEP_INTERVAL) => {}
        }
    };
    under_lease(log, handle, cancel, work).await
}

/// Starts the task that gives out uuids.
pub fn spawn_mint(supervisor: &mut Supervisor, wiring: &Wiring, orders: &UuidOrders) {
    let context = (wiring.clone(), orders.clone());
    supervisor.spawn_with(MINT_TASK, context, |(wiring, orders), handle, cancel| async move {
        composition::mint(&wiring, &orders, wall_clock::now_ms, &handle, &cancel).await
    });
}
