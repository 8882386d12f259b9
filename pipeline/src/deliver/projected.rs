//! A lane as every process builds it: the daemon, a rebuild of an index, a benchmark, the simulation.
//!
//! `run.rs` knows no projection. Here a projection gives the lane its entity and turns changes into mutations.

use anabranch_schemas::change::Change;
use anabranch_schemas::lsn::Lsn;
use metrics::counter;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::lane::Lane;
use super::run::run;
use super::shared::Shared;
use crate::config::Limits;
use crate::error::Fault;
use crate::metrics as names;
use crate::ports::{BinlogStart, LaneStore, Log, RowSource, SourceConnector};
use crate::projections::{Defects, LaneScope, Projection};
use crate::records::{Flush, LaneId};

/// The inputs of a projection's lane, for every kind of store.
#[derive(Debug)]
pub struct ProjectedLane<'a, S, L> {
    pub id: &'a LaneId,
    pub projection: &'a Projection,
    /// The tables that the lane owns.
    pub scope: LaneScope,
    pub log: &'a L,
    /// The source that feeds the lane when the log cannot.
    pub source: &'a S,
    /// Replica slot of the lane's direct feed.
    pub replica_slot: u32,
    /// Entry of a lane without progress when the stream does not begin there.
    pub start: &'a BinlogStart,
    /// State that the lane shares with the other lanes of the source.
    pub shared: &'a Shared,
    pub limits: &'a Limits,
}

impl<S: SourceConnector + RowSource, L: Log> ProjectedLane<'_, S, L> {
    /// Makes one attempt of the lane, see [`run`], and counts rows with defects.
    pub async fn run(
        self,
        store: &mut impl LaneStore,
        applied: &watch::Sender<Lsn>,
        cancel: &CancellationToken,
    ) -> Result<(), Fault> {
        let Self { id, projection, scope, log, source, replica_slot, start, shared, limits } = self;
        let mut defects = Defects::default();
        let project = |change: &Change<'_, '_>, flush: &mut Flush| {
            projection.project(change, scope, flush, &mut defects);
            count(id, &mut defects);
        };
        let lane = Lane {
            id,
            log,
            source,
            replica_slot,
            start,
            entity: projection.entity(),
            fields: projection.fields(),
            source_column: projection.source_column(),
            row_weight: projection.flush_weight(),
            tables: projection.tables().len() as u32,
            shared,
            limits,
        };
        run(lane, store, project, applied, cancel).await
    }
}

/// Counts defects. They are rare: the counter is looked up only when there are some.
fn count(id: &LaneId, defects: &mut Defects) {
    if defects.is_empty() {
        return;
    }
    for (defect, count) in defects.take().iter() {
        let (projection, source) = (id.projection.clone(), id.source.clone());
        counter!(names::ROW_DEFECTS, "projection" => projection, "source" => source, "reason" => defect.reason())
            .increment(count);
    }
}
