//! Which stores a night is about, and the night of one of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anabranch_pipeline::deliver::{LaneId, Progress};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::Lanes;
use anabranch_pipeline::reconcile::{self, Checkpoint, Patience, Settings, Sides, StoreState};
use tokio_util::sync::CancellationToken;

use super::Order;
use crate::observe::lanes;
use crate::wiring::{DerivedStore, LaneStore, Source, Wiring};

/// A lane that has not moved for so many intervals of marks stands still, and for so long.
const MARKS: u32 = 3;
const STANDSTILL_MIN: Duration = Duration::from_secs(10);

/// Names of the stores that are asked for, in the order in which they are worked on: a cache comes behind the tables
/// that it is filled from.
pub fn names(wiring: &Wiring, order: &Order) -> Result<Vec<String>, Fault> {
    let config = wiring.config();
    let projections = config.projections.iter().map(|projection| &projection.name);
    let all: Vec<&String> = projections.collect();
    if let Some(unknown) = order.stores.iter().find(|name| !all.contains(name)) {
        return Err(Fault::new(Code::ReconcileRefused, format!("store {unknown}"), "it is not configured")
            .needs("a projection or cache of the configuration"));
    }
    let is_wanted = |name: &&&String| order.stores.is_empty() || order.stores.contains(name);
    Ok(all.iter().filter(is_wanted).map(|name| (*name).clone()).collect())
}

/// The night of one store, up to its end or `cancel`.
pub async fn night(
    wiring: &Wiring,
    settings: &Settings,
    state: &mut StoreState,
    checkpoint: &mut impl Checkpoint,
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    let sides = sides(wiring, &state.report.store)?;
    let of_projection = ProjectionLanes { wiring, projection: &state.report.store.clone() };
    let key = wiring.config().reconcile.signing_key.as_ref();
    let night = reconcile::Night {
        sides: &sides,
        lanes: &of_projection,
        settings,
        patience: Patience::new(STANDSTILL_MIN.max(wiring.config().limits.mark_interval * MARKS)),
        hash_key: &|table, row| reconcile::hash_key(table, row, key),
    };
    night.run(state, checkpoint, cancel).await
}

fn sides(wiring: &Wiring, name: &str) -> Result<Sides<Source, DerivedStore>, Fault> {
    let projection = wiring.projection(name)?.clone();
    let captures =
        |source: &&anabranch_pipeline::config::SourceConfig| source.entities.contains(&projection.entity());
    let sources = wiring.config().sources.iter().filter(captures);
    let primaries = sources.map(|source| Ok((source.name.clone(), wiring.source_connector(&source.name)?)));
    let primaries: BTreeMap<String, Arc<Source>> = primaries.collect::<Result<_, Fault>>()?;
    let targets = wiring.derived(name)?.into_iter().map(Arc::new).collect();
    Ok(Sides { projection, sources: primaries.clone(), primaries, targets })
}

/// The lanes of one projection.
struct ProjectionLanes<'a> {
    wiring: &'a Wiring,
    projection: &'a str,
}

impl Lanes for ProjectionLanes<'_> {
    type Store = LaneStore;

    async fn progress(&self, source: &str) -> Result<Vec<(LaneId, Progress)>, Fault> {
        let mut all = Vec::new();
        let of_source = lanes(self.wiring.config());
        let of_source =
            of_source.into_iter().filter(|id| id.projection == self.projection && id.source == source);
        let mut of_targets: BTreeMap<String, Vec<LaneId>> = BTreeMap::new();
        of_source.for_each(|id| of_targets.entry(id.target.clone()).or_default().push(id));
        for (target, ids) in of_targets {
            let mut stored = self.wiring.progress(&target).await?;
            // One without a row has not begun.
            all.extend(ids.into_iter().map(|id| {
                let progress = stored.remove(&id).unwrap_or_default();
                (id, progress)
            }));
        }
        Ok(all)
    }

    fn store(&self, lane: &LaneId) -> Result<LaneStore, Fault> {
        self.wiring.lane(lane)
    }
}
