//! The birthday tables of a day: the connector's pages, behind the daemon's barrier.

use std::time::Duration;

use anabranch_connectors::mysql::cohort::MysqlCohort;
use anabranch_coupons::ports::{CohortRow, CohortRows};
use anabranch_pipeline::error::Fault;
use anabranch_schemas::celebration::{Birthday, Occurrence};
use jiff::Timestamp;

use crate::reconciliations;
use crate::wiring::Wiring;

/// A freeze waits so long for lanes. Midnight and noon go on without them then, and say so.
const BARRIER_WAIT: Duration = Duration::from_secs(60);

/// The birthday tables of some projections.
#[derive(Clone)]
pub struct DayTables {
    pub wiring: Wiring,
    pub projections: Vec<String>,
    pub tables: MysqlCohort,
}

impl CohortRows for DayTables {
    async fn barrier(&self) -> Result<bool, Fault> {
        for projection in &self.projections {
            let late = reconciliations::barrier(&self.wiring, projection, BARRIER_WAIT).await?;
            for (source, why) in &late {
                tracing::warn!(projection, source, why, "the wave is frozen without this source's last changes");
            }
            if !late.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn page(
        &self,
        table: Birthday,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<CohortRow>, Fault> {
        self.tables.page(table, after, limit).await
    }

    async fn follow(&self, tables: &[Birthday], granted: &[(u64, Occurrence)]) -> Result<(), Fault> {
        self.tables.follow(tables, granted).await
    }

    async fn reconciled_at(&self) -> Result<Option<Timestamp>, Fault> {
        let last = reconciliations::last_good(&self.wiring, &self.projections).await?;
        Ok(last.and_then(|(_, ended_at_ms)| {
            Timestamp::from_millisecond(i64::try_from(ended_at_ms).ok()?).ok()
        }))
    }
}
