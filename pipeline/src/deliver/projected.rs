//! A lane as every process puts it together: the daemon, a rebuild of an index, a benchmark, the simulation.
//!
//! `run.rs` knows no projection; here a projection gives the lane what it reads and how a change becomes mutations.

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
use crate::ports::{Entry, LaneStore, Log, RowSource, SourceConnector};
use crate::projections::{Defects, LaneScope, Projection};
use crate::records::{Flush, LaneId};

/// What a lane of a projection works with, whatever its store is.
#[derive(Debug)]
pub struct ProjectedLane<'a, S, L> {
    pub id: &'a LaneId,
    pub projection: &'a Projection,
    /// The tables that the lane owns.
    pub scope: LaneScope,
    pub log: &'a L,
    /// Feeds the lane when the log cannot.
    pub source: &'a S,
    /// Its own among the readings of the source.
    pub replica_slot: u32,
    /// Where a lane without progress begins when the stream does not begin there.
    pub start: &'a Entry,
    /// With the other lanes of the source.
    pub shared: &'a Shared,
    pub limits: &'a Limits,
}

impl<S: SourceConnector + RowSource, L: Log> ProjectedLane<'_, S, L> {
    /// One attempt of the lane, see [`run`]. Rows with defects are counted.
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

/// Defects are rare: the counter is looked up only when there are some.
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
