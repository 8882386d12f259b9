//! The lanes of a projection, as reconciliations, spot checks, proofs and barriers see them.

use std::collections::BTreeMap;

use super::{Connectors, LogServer};
use crate::error::Fault;
use crate::ports::{Lanes, Log};
use crate::records::{LaneId, Progress};

/// The lanes of one projection, on the connectors of this process.
pub struct ProjectionLanes<'a, C> {
    pub connectors: &'a C,
    pub projection: &'a str,
}

impl<C: Connectors> Lanes for ProjectionLanes<'_, C> {
    type Store = C::Store;

    async fn progress(&self, source: &str) -> Result<Vec<(LaneId, Progress)>, Fault> {
        let mut all = Vec::new();
        let of_source = self.connectors.lanes().into_iter();
        let of_source = of_source.filter(|id| id.projection == self.projection && id.source == source);
        let mut of_targets: BTreeMap<String, Vec<LaneId>> = BTreeMap::new();
        of_source.for_each(|id| of_targets.entry(id.target.clone()).or_default().push(id));
        for (target, ids) in of_targets {
            let mut stored = self.connectors.progress_of_target(&target).await?;
            // A lane without a row has not begun.
            all.extend(ids.into_iter().map(|id| {
                let progress = stored.remove(&id).unwrap_or_default();
                (id, progress)
            }));
        }
        Ok(all)
    }

    async fn is_paused(&self, lane: &LaneId) -> bool {
        self.connectors.is_paused(lane).await
    }

    fn store(&self, lane: &LaneId) -> Result<C::Store, Fault> {
        self.connectors.store(lane).map(|(store, _)| store)
    }

    async fn ask_for_position(&self, source: &str) {
        if let Ok(LogServer { log, .. }) = self.connectors.log_server().await {
            log.ask_for_position(source).await;
        }
    }
}
