//! The birthday tables of a day: the connector's pages, behind the daemon's barrier.

use std::sync::Arc;
use std::time::Duration;

use anabranch_coupons::ports::{CohortRow, CohortRows, Reconciled};
use anabranch_pipeline::error::Fault;
use anabranch_schemas::celebration::{Birthday, Occurrence};
use jiff::Timestamp;

use crate::reconciliations::{self, LastGood, ReliedOn};
use crate::wiring::{CouponTables, Wiring};

/// A freeze waits so long for lanes. Midnight and noon go on without them then, and say so.
const BARRIER_WAIT: Duration = Duration::from_secs(60);

/// The birthday tables of the projections that coupons are granted by.
#[derive(Clone)]
pub struct DayTables {
    wiring: Wiring,
    projections: Vec<String>,
    tables: CouponTables,
    last_good: Arc<LastGood>,
}

impl DayTables {
    pub(super) fn new(wiring: &Wiring) -> Result<Self, Fault> {
        let projections = wiring.coupon_system()?.projections.clone();
        Ok(Self {
            tables: wiring.coupon_tables()?,
            last_good: Arc::new(LastGood::new(wiring.history()?, projections.clone())),
            projections,
            wiring: wiring.clone(),
        })
    }

    /// The last whole reconciliation that left nothing wrong.
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
        self.tables.page(table, after, limit).await
    }

    async fn follow(&self, tables: &[Birthday], granted: &[(u64, Occurrence)]) -> Result<(), Fault> {
        self.tables.follow(tables, granted).await
    }

    async fn reconciled(&self) -> Result<Option<Reconciled>, Fault> {
        let reconciled = |last: ReliedOn| {
            let ended_at_ms = i64::try_from(last.ended_at_ms).ok()?;
            let ended_at = Timestamp::from_millisecond(ended_at_ms).ok()?;
            Some(Reconciled { ended_at, unproven: last.unproven })
        };
        Ok(self.last_good().await?.and_then(reconciled))
    }
}
