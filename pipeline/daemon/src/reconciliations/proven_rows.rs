//! The rows that the tables of a source had when a reconciliation last proved them.

use std::collections::BTreeMap;

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::reconcile::{ReconciliationReport, StoreReport};
use anabranch_schemas::change::Entity;

use super::newest;
use super::schedule::is_believed;
use crate::wall_clock;
use crate::wiring::Wiring;

/// Returns the newest reconciliation that proved all tables of a projection, and the number of the source's rows in it,
/// for each entity that has one. None where no target stores a history.
pub async fn proven_rows(wiring: &Wiring, source: &str) -> Result<BTreeMap<Entity, (String, u64)>, Fault> {
    let Ok(history) = wiring.history() else { return Ok(BTreeMap::new()) };
    let (mut proven, now_ms) = (BTreeMap::<Entity, (String, u64)>::new(), wall_clock::now_ms());
    let captured = &wiring.source_config(source)?.entities;
    for projection in &wiring.config().projections {
        let entity = wiring.projection(&projection.name)?.entity();
        if !captured.contains(&entity) {
            continue;
        }
        let rows = |report: &ReconciliationReport| {
            let of_projection = |store: &&StoreReport| store.store == projection.name;
            report.stores.iter().find(of_projection).and_then(|store| store.proven_rows_of(source))
        };
        let is_it =
            |report: &ReconciliationReport| is_believed(report.ended_at_ms, now_ms) && rows(report).is_some();
        let Some(report) = newest(&history, is_it).await? else { continue };
        let Some(rows) = rows(&report) else { continue };
        // Reports have ids in the order of time.
        if proven.get(&entity).is_none_or(|(known, _)| *known < report.id) {
            proven.insert(entity, (report.id, rows));
        }
    }
    Ok(proven)
}
