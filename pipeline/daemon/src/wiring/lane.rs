//! The connectors that the tasks of this process are put together from.

use std::collections::BTreeMap;
use std::time::Instant;

use anabranch_connectors::mysql::store::MysqlLane;
use anabranch_connectors::nats::NatsLog;
use anabranch_connectors::search::SearchLane;
use anabranch_pipeline::capture::BusyTable;
use anabranch_pipeline::composition::{Connectors, EitherStore, LogServer, SourceParts};
use anabranch_pipeline::config::{Config, Limits};
use anabranch_pipeline::deliver::UnreadTable;
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::projections::{Assignments, LaneScope, Projection};
use anabranch_pipeline::records::{LaneId, Progress};

use super::{Source, Wiring};
use crate::pauses;

/// The store of a lane on either kind of server.
pub type LaneStore = EitherStore<MysqlLane, SearchLane>;

/// Returns every lane of a configuration.
pub fn lanes(config: &Config) -> Vec<LaneId> {
    let of_target = |name: &String| Assignments::of(config, name).lane_ids();
    config.targets.iter().flat_map(|target| of_target(&target.name)).collect()
}

impl Wiring {
    /// Returns the busiest tables of each source that this process reads, at most `count` a source.
    pub fn busiest(&self, count: usize, now: Instant) -> impl Iterator<Item = (&str, BusyTable)> {
        self.0.sources.iter().flat_map(move |(name, source)| {
            source.busiest.top(count, now).into_iter().map(move |table| (name.as_str(), table))
        })
    }

    /// Returns the tables that lanes of this process are to read again and could not read.
    pub fn unread_tables(&self) -> impl Iterator<Item = (LaneId, Vec<UnreadTable>)> {
        self.0.sources.values().flat_map(|source| source.shared.unread())
    }
}

impl Connectors for Wiring {
    type Log = NatsLog;
    type Registers = NatsLog;
    type Leases = NatsLog;
    type Source = Source;
    type Store = LaneStore;

    async fn log_server(&self) -> Result<LogServer<'_, Self>, Fault> {
        let log = self.log().await?;
        Ok(LogServer { log, registers: log, leases: log })
    }

    fn source(&self, name: &str) -> Result<SourceParts<'_, Source>, Fault> {
        let source = self.wired_source(name)?;
        Ok(SourceParts {
            connector: &source.connector,
            start: &source.config.start,
            shared: &source.shared,
            busiest: source.busiest.clone(),
            numbers: source.numbers.clone(),
        })
    }

    async fn require_source(&self, name: &str) -> Result<(), Fault> {
        Wiring::require_source(self, name).await
    }

    fn note_reader_fault(&self, name: &str, fault: &Fault) {
        Wiring::note_reader_fault(self, name, fault);
    }

    async fn progress_of_source(&self, name: &str) -> Result<Vec<Progress>, Fault> {
        Wiring::progress_of_source(self, name).await
    }

    async fn progress_of_target(&self, name: &str) -> Result<BTreeMap<LaneId, Progress>, Fault> {
        self.progress(name).await
    }

    async fn is_paused(&self, lane: &LaneId) -> bool {
        let pauses = async { pauses::read(self.log().await?).await };
        pauses.await.is_ok_and(|pauses| pauses.of_lane(lane).is_some())
    }

    async fn require_target(&self, name: &str) -> Result<(), Fault> {
        Wiring::require_target(self, name).await
    }

    fn projection(&self, name: &str) -> Result<&Projection, Fault> {
        Wiring::projection(self, name)
    }

    fn lanes(&self) -> Vec<LaneId> {
        lanes(self.config())
    }

    fn store(&self, id: &LaneId) -> Result<(LaneStore, LaneScope), Fault> {
        let store = self.lane(id)?;
        let scope = match &store {
            EitherStore::Tables(lane) => lane.scope(),
            EitherStore::Documents(lane) => lane.scope(),
        };
        Ok((store, scope))
    }

    fn limits(&self) -> &Limits {
        &self.config().limits
    }
}
