//! Facts that other parts rely on: a barrier before the tables of a projection, and their last good comparison.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anabranch_pipeline::composition::ProjectionLanes;
use anabranch_pipeline::config::SourceConfig;
use anabranch_pipeline::config::reconcile::Mode;
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::History;
use anabranch_pipeline::reconcile::{self, LaneWait, ReconciliationReport};
use anabranch_pipeline::records::Outcome;
use anabranch_schemas::shard::ShardId;
use tokio::sync::Mutex;

use super::newest;
use super::schedule::is_believed;
use super::stores::standstill;
use crate::wall_clock;
use crate::wiring::{PastReports, Source, Wiring};

/// Waits until every lane of a projection has passed the changes that its sources had committed, but not for a lane
/// that does not move, as reconciliations do. Returns each source that was not reached, with the reason.
pub async fn barrier(
    wiring: &Wiring,
    projection: &str,
    wait: Duration,
) -> Result<BTreeMap<String, String>, Fault> {
    let entity = wiring.projection(projection)?.entity();
    let captures = |source: &&SourceConfig| source.entities.contains(&entity);
    let sources = wiring.config().sources.iter().filter(captures);
    let sources = sources.map(|source| Ok((source.name.clone(), wiring.source_connector(&source.name)?)));
    let sources: BTreeMap<String, Arc<Source>> = sources.collect::<Result<_, Fault>>()?;
    let lanes = ProjectionLanes { connectors: wiring, projection };
    let lane_wait = LaneWait::short(standstill(wiring.config(), wait));
    Ok(reconcile::barrier(&sources, &lanes, &lane_wait, None).await)
}

/// The last whole reconciliation that compared every table of some projections and left nothing wrong in them.
#[derive(Debug)]
pub struct LastGood {
    history: PastReports,
    projections: Vec<String>,
    /// Number of the newest reconciliation at the last search, and its result: reports are large, and never change.
    seen: Mutex<Option<(u64, Option<ReliedOn>)>>,
}

/// The facts of a reconciliation that are relied on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReliedOn {
    pub id: String,
    /// Milliseconds since the Unix epoch.
    pub ended_at_ms: u64,
    /// Source tables that it does not prove.
    pub unproven: BTreeSet<ShardId>,
}

impl LastGood {
    pub fn new(history: PastReports, projections: Vec<String>) -> Self {
        Self { history, projections, seen: Mutex::default() }
    }

    /// Returns the last good reconciliation; `None` = there is none.
    pub async fn read(&self) -> Result<Option<ReliedOn>, Fault> {
        let Some(number) = self.history.newest_number().await? else { return Ok(None) };
        let mut seen = self.seen.lock().await;
        if let Some((at, found)) = &*seen
            && *at == number
        {
            return Ok(found.clone());
        }
        let now_ms = wall_clock::now_ms();
        let is_good = |report: &ReconciliationReport| {
            is_believed(report.ended_at_ms, now_ms) && is_relied_on(report, &self.projections)
        };
        let found = newest(&self.history, is_good).await?.map(|report| ReliedOn {
            unproven: unproven(&report, &self.projections),
            id: report.id,
            ended_at_ms: report.ended_at_ms,
        });
        *seen = Some((number, found.clone()));
        Ok(found)
    }
}

/// Returns whether a report proves the projections: not if it repairs nothing, leaves stores out, left wrong rows or
/// compared no table. A report names the tables whose rows it could not read or decide, and proves the others.
fn is_relied_on(report: &ReconciliationReport, projections: &[String]) -> bool {
    let is_good = |projection: &String| {
        let of_projection = report.stores.iter().find(|store| store.store == *projection);
        of_projection.is_some_and(|store| store.outcome() != Outcome::Failed && !store.unproven.is_all)
    };
    report.is_whole && report.mode == Mode::Repair && projections.iter().all(is_good)
}

/// Returns the source tables that a reconciliation does not prove for all of these projections.
fn unproven(report: &ReconciliationReport, projections: &[String]) -> BTreeSet<ShardId> {
    let of_them = report.stores.iter().filter(|store| projections.contains(&store.store));
    of_them.flat_map(|store| store.unproven.shards.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use anabranch_pipeline::reconcile::StoreReport;

    use super::*;

    fn report(change: impl Fn(&mut ReconciliationReport)) -> bool {
        is_relied_on(&changed(change), &["birthday".to_owned()])
    }

    fn changed(change: impl Fn(&mut ReconciliationReport)) -> ReconciliationReport {
        let mut report = ReconciliationReport {
            id: "r".to_owned(),
            verdict: Outcome::Clean,
            begun_at_ms: 1,
            ended_at_ms: 2,
            mode: Mode::Repair,
            stores: vec![StoreReport::new("mapping"), StoreReport::new("birthday")],
            tables: Default::default(),
            uncaptured: Default::default(),
            is_whole: true,
            caches: BTreeMap::new(),
            command: None,
            asked_by: None,
            gaps: Vec::new(),
        };
        change(&mut report);
        report
    }

    #[test]
    fn what_is_relied_on_leaves_out_the_tables_that_it_names() {
        let shard = |number| ShardId::from_u64(number).unwrap();
        let named = changed(|report| {
            report.stores[0].unproven.add([shard(1)]);
            report.stores[1].unproven.add([shard(2)]);
        });
        assert_eq!(unproven(&named, &["birthday".to_owned()]), [shard(2)].into());
        assert!(report(|report| report.stores[1].unproven.add([shard(2)])));
        assert!(!report(|report| report.stores[1].unproven.add_all()), "nothing was compared");
        assert!(report(|report| report.stores[0].unproven.add_all()), "another store");
    }

    #[test]
    fn a_day_relies_on_whole_reconciliations_that_repair_and_leave_nothing_wrong() {
        assert!(report(|_| {}));
        assert!(report(|report| report.stores[1].set_incomplete("a table cannot be read")));
        assert!(report(|report| report.stores[0].left = 1), "another store");
        assert!(!report(|report| report.stores[1].left = 1));
        assert!(!report(|report| report.mode = Mode::Report));
        assert!(!report(|report| report.is_whole = false));
        assert!(!report(|report| _ = report.stores.pop()));
    }
}
