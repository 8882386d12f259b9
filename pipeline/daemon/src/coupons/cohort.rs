//! The birthday tables of a day: the connector's pages, after the daemon's barrier.

use std::sync::Arc;
use std::time::Duration;

use anabranch_coupons::ports::{CohortRow, CohortRows, Reconciled};
use anabranch_pipeline::error::Fault;
use anabranch_schemas::celebration::{Birthday, Occurrence};
use jiff::Timestamp;
use tokio::time::{Instant, sleep};

use super::lane_lag::LaneLag;
use crate::reconciliations::{self, LastGood, ReliedOn};
use crate::wiring::{CouponTables, Wiring};

/// Time that a freeze waits for lanes; midnight and noon then go on without them, and say so.
const BARRIER_WAIT: Duration = Duration::from_secs(60);
/// Pause after a page that was read while lanes lag, at least: about the time in which its rows are written.
const PAGE_PAUSE_MIN: Duration = Duration::from_millis(50);

/// The birthday tables of the projections that coupons are granted by.
#[derive(Clone)]
pub struct DayTables {
    wiring: Wiring,
    projections: Vec<String>,
    tables: CouponTables,
    last_good: Arc<LastGood>,
    lane_lag: LaneLag,
}

impl DayTables {
    pub(super) fn new(wiring: &Wiring, lane_lag: LaneLag) -> Result<Self, Fault> {
        let projections = wiring.coupon_system()?.projections.clone();
        Ok(Self {
            lane_lag,
            tables: wiring.coupon_tables()?,
            last_good: Arc::new(LastGood::new(wiring.history()?, projections.clone())),
            projections,
            wiring: wiring.clone(),
        })
    }

    /// Returns whether lanes lag, so that a coupon day does less at once.
    pub async fn are_lanes_late(&self) -> bool {
        self.lane_lag.is_late().await
    }

    /// Returns the last whole reconciliation that left nothing wrong.
    pub async fn last_good(&self) -> Result<Option<ReliedOn>, Fault> {
        self.last_good.read().await
    }
}

impl CohortRows for DayTables {
    async fn barrier(&self) -> Result<bool, Fault> {
        for projection in &self.projections {
            let late = reconciliations::barrier(&self.wiring, projection, BARRIER_WAIT).await?;
            for (source, why) in &late {
                tracing::warn!(
                    projection,
                    source,
                    why,
                    "the wave is frozen without this source's last changes"
                );
            }
            if !late.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn page(&self, table: Birthday, after: Option<u64>, limit: usize) -> Result<Vec<CohortRow>, Fault> {
        let began = Instant::now();
        let page = self.tables.page(table, after, limit).await?;
        self.make_way(began.elapsed()).await;
        Ok(page)
    }

    async fn follow(&self, tables: &[Birthday], granted: &[(u64, Occurrence)]) -> Result<(), Fault> {
        self.tables.follow(tables, granted).await
    }

    async fn reconciled(&self) -> Result<Option<Reconciled>, Fault> {
        let reconciled = |last: ReliedOn| {
            let ended_at_ms = i64::try_from(last.ended_at_ms).ok()?;
            let ended_at = Timestamp::from_millisecond(ended_at_ms).ok()?;
            Some(Reconciled { id: last.id.into(), ended_at, unproven: last.unproven })
        };
        Ok(self.last_good().await?.and_then(reconciled))
    }

    async fn make_way(&self, worked: Duration) {
        if self.are_lanes_late().await {
            sleep(worked.max(PAGE_PAUSE_MIN)).await;
        }
    }
}
