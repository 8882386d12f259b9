//! How a reader, a lane, the drain of a cache and the mint are put together: lease, pre-flight, store, replica slot,
//! loop. [`ProjectionLanes`] are the lanes as reconciliations see them.
//!
//! Each process brings its own [`Connectors`]: the daemon has those of real servers, the simulation has the twins. The
//! supervisor decides how often an attempt is made; the loops in `capture` and `deliver` do the work.

mod drain;
mod mint;
mod reconciliation;
mod store;

use std::collections::BTreeMap;

use tokio_util::sync::CancellationToken;

pub use self::drain::{CacheParts, drain, drain_all};
pub use self::mint::mint;
pub use self::reconciliation::ProjectionLanes;
pub use self::store::EitherStore;
use crate::capture::{self, BusiestTables, Capture};
use crate::config::Limits;
use crate::deliver::{ProjectedLane, Shared};
use crate::error::Fault;
use crate::identifiers::flux::CapturedNumbers;
use crate::ports::{
    BinlogStart, LaneStore, Leases, Log, READER_REPLICA_SLOT, Registers, RowSource, SourceConnector,
};
use crate::projections::{LaneScope, Projection};
use crate::records::{LaneId, Progress};
use crate::supervise::{Ready, TaskHandle, under_lease};

/// The connectors of one process, for one configuration.
pub trait Connectors: Send + Sync {
    type Log: Log;
    type Registers: Registers;
    type Leases: Leases;
    type Source: SourceConnector + RowSource;
    type Store: LaneStore;

    /// The server of the log, which also keeps registers and leases. The first call connects.
    fn log_server(&self) -> impl Future<Output = Result<LogServer<'_, Self>, Fault>> + Send;

    fn source(&self, name: &str) -> Result<SourceParts<'_, Self::Source>, Fault>;

    /// Requires a pre-flight of a source that passed, and returns it as one result. One pass may stand for the attempts
    /// after it as long as the server is the same.
    fn require_source(&self, name: &str) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Notes the fault that ended an attempt of the reader: the next pre-flight may have to ask more.
    fn note_reader_fault(&self, name: &str, fault: &Fault);

    /// Returns the progress of every lane of a source, on all targets. The call fails if one of them does not answer,
    /// because its lane may be the furthest.
    fn progress_of_source(&self, name: &str) -> impl Future<Output = Result<Vec<Progress>, Fault>> + Send;

    /// Returns the progress of each configured lane of a target that has a row. A damaged row is left out: its own
    /// lane reports it.
    fn progress_of_target(
        &self,
        name: &str,
    ) -> impl Future<Output = Result<BTreeMap<LaneId, Progress>, Fault>> + Send;

    /// Whether an operator has paused the lane; `false`, so that it is waited for, if that is not known.
    fn is_paused(&self, lane: &LaneId) -> impl Future<Output = bool> + Send;

    /// Runs the pre-flight of a target and returns it as one result.
    fn require_target(&self, name: &str) -> impl Future<Output = Result<(), Fault>> + Send;

    fn projection(&self, name: &str) -> Result<&Projection, Fault>;

    /// Returns every lane of the configuration, in the same order in every process.
    fn lanes(&self) -> Vec<LaneId>;

    /// Returns the store of a lane, not connected yet, and the tables that the lane owns.
    fn store(&self, id: &LaneId) -> Result<(Self::Store, LaneScope), Fault>;

    fn limits(&self) -> &Limits;
}

/// The ports that the log's server keeps.
pub struct LogServer<'a, C: Connectors + ?Sized> {
    pub log: &'a C::Log,
    pub registers: &'a C::Registers,
    pub leases: &'a C::Leases,
}

/// A source, and the values that its reader and its lanes need beside it.
#[derive(Debug)]
pub struct SourceParts<'a, S> {
    pub connector: &'a S,
    /// Entry at which reading begins when neither the stream nor a lane has a position.
    pub start: &'a BinlogStart,
    /// State that the lanes of the source share in this process.
    pub shared: &'a Shared,
    /// Counters of the source's busiest tables, which its reader in this process fills.
    pub busiest: BusiestTables,
    /// Receives the numbers of captured payment documents; `None` = no counter of this installation needs them.
    pub numbers: Option<CapturedNumbers>,
}

/// Makes one attempt of the reader of a source, under its lease.
pub async fn read<C: Connectors>(
    connectors: &C,
    source: &str,
    handle: &TaskHandle,
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    let LogServer { log, registers, leases } = connectors.log_server().await?;
    let work = async |ready: Ready| {
        handle.waits_for(format!("source {source}"));
        connectors.require_source(source).await?;
        let SourceParts { connector, start, busiest, numbers, .. } = connectors.source(source)?;
        let (limits, recorded) = (connectors.limits(), numbers.clone());
        let capture = Capture { source, connector, log, registers, start, busiest, numbers, limits };
        let lanes = || connectors.progress_of_source(source);
        // On the heap: the loop is large, and each future around it would move it over the stack once more.
        let capturing = Box::pin(capture::run(capture, lanes, ready.positions(), cancel));
        let ended = match recorded {
            Some(numbers) => numbers.recorded_beside(registers, capturing).await,
            None => capturing.await,
        };
        ended.inspect_err(|fault| connectors.note_reader_fault(source, fault))
    };
    under_lease(leases, handle, cancel, work).await
}

/// Makes one attempt of a lane, under its lease.
pub async fn apply<C: Connectors>(
    connectors: &C,
    id: &LaneId,
    handle: &TaskHandle,
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    let LogServer { leases, .. } = connectors.log_server().await?;
    let work = async |ready: Ready| {
        handle.waits_for(format!("target {}", id.target));
        connectors.require_target(&id.target).await?;
        let (mut store, scope) = connectors.store(id)?;
        let (projection, slot) = (connectors.projection(&id.projection)?, replica_slot(connectors, id));
        let lane = lane(connectors, id, projection, scope, slot).await?;
        Box::pin(lane.run(&mut store, ready.positions(), cancel)).await
    };
    under_lease(leases, handle, cancel, work).await
}

/// Returns a lane of a projection on the connectors of this process.
pub async fn lane<'a, C: Connectors>(
    connectors: &'a C,
    id: &'a LaneId,
    projection: &'a Projection,
    scope: LaneScope,
    replica_slot: u32,
) -> Result<ProjectedLane<'a, C::Source, C::Log>, Fault> {
    let LogServer { log, .. } = connectors.log_server().await?;
    let SourceParts { connector, start, shared, .. } = connectors.source(&id.source)?;
    let (source, limits) = (connector, connectors.limits());
    Ok(ProjectedLane { id, projection, scope, log, source, replica_slot, start, shared, limits })
}

/// Returns a lane's number among the streams of its source, the same in every process.
pub fn replica_slot(connectors: &impl Connectors, id: &LaneId) -> u32 {
    let of_source = connectors.lanes().into_iter().filter(|lane| lane.source == id.source);
    let before = of_source.take_while(|lane| lane != id).count();
    READER_REPLICA_SLOT + 1 + before as u32
}
