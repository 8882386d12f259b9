//! The connectors of one process of a run: twins in the product's own composition.

use std::collections::BTreeMap;
use std::time::Duration;

use anabranch_connectors::memory::{
    MemoryLease, MemoryLeases, MemoryLog, MemoryRegisters, MemorySource, MemoryStore,
};
use anabranch_pipeline::capture::BusiestTables;
use anabranch_pipeline::composition::{self, Connectors, EitherStore, LogServer, SourceParts};
use anabranch_pipeline::config::Limits;
use anabranch_pipeline::deliver::Shared;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{BinlogStart, Lease, Leases, SourceConnector};
use anabranch_pipeline::projections::{LaneScope, Projection};
use anabranch_pipeline::records::{LaneId, Progress};
use anabranch_pipeline::supervise::TaskStates;
use tokio_util::sync::CancellationToken;

use crate::script::{SOURCES, TARGETS};
use crate::stage::{DIRECT_FEEDS, LANES, LaneAt, SOURCE_NAMES, Stage, lane_at, lane_id, lanes_of, target_at};

/// The parts of one task's composition.
pub struct Process<'a> {
    stage: &'a Stage,
    /// The sources, which capture as many fields as the process.
    sources: Vec<MemorySource>,
    /// State that the lanes of the task's source share.
    shared: &'a Shared,
    leases: ProcessLeases,
}

impl<'a> Process<'a> {
    pub fn new(stage: &'a Stage, fields: usize, shared: &'a Shared, leases: ProcessLeases) -> Self {
        let sources = stage.sources.iter().map(|source| source.capturing(fields)).collect();
        Self { stage, sources, shared, leases }
    }
}

impl Connectors for Process<'_> {
    type Log = MemoryLog;
    type Registers = MemoryRegisters;
    type Leases = ProcessLeases;
    type Source = MemorySource;
    type Store = EitherStore<MemoryStore, MemoryStore>;

    async fn log_server(&self) -> Result<LogServer<'_, Self>, Fault> {
        let Stage { log, registers, .. } = self.stage;
        Ok(LogServer { log, registers, leases: &self.leases })
    }

    fn source(&self, name: &str) -> Result<SourceParts<'_, MemorySource>, Fault> {
        let connector = &self.sources[number(name)];
        let busiest = BusiestTables::default();
        let (start, shared) = (&BinlogStart::Earliest, self.shared);
        Ok(SourceParts { connector, start, shared, busiest, numbers: None })
    }

    async fn require_source(&self, name: &str) -> Result<(), Fault> {
        self.sources[number(name)].check().await.pop().map_or(Ok(()), Err)
    }

    /// The twin's pre-flight is cheap: it runs in each attempt.
    fn note_reader_fault(&self, _name: &str, _fault: &Fault) {}

    /// Answers as targets after set-up do: each lane has its row.
    async fn progress_of_source(&self, name: &str) -> Result<Vec<Progress>, Fault> {
        if self.stage.targets.iter().any(|target| target.is_down()) {
            return Err(Fault::new(Code::TargetUnreachable, "target", "it is down"));
        }
        let stored = self.stage.progress(number(name)).into_iter();
        let mut all: Vec<_> = stored.map(|(_, progress)| progress).collect();
        all.resize(TARGETS * LANES as usize, Progress::default());
        Ok(all)
    }

    async fn progress_of_target(&self, name: &str) -> Result<BTreeMap<LaneId, Progress>, Fault> {
        // A question to a target takes time.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let target = &self.stage.targets[target_at(name)];
        if target.is_down() {
            return Err(Fault::new(Code::TargetUnreachable, "target", "it is down"));
        }
        Ok(SOURCE_NAMES.iter().flat_map(|source| target.progress(source)).collect())
    }

    /// No lane is paused here.
    async fn is_paused(&self, _lane: &LaneId) -> bool {
        false
    }

    async fn require_target(&self, _name: &str) -> Result<(), Fault> {
        Ok(())
    }

    fn projection(&self, _name: &str) -> Result<&Projection, Fault> {
        Ok(self.stage.projection())
    }

    fn lanes(&self) -> Vec<LaneId> {
        (0..SOURCES).flat_map(lanes_of).map(lane_id).collect()
    }

    fn store(&self, id: &LaneId) -> Result<(Self::Store, LaneScope), Fault> {
        let at @ (_, target, lane) = lane_at(id);
        let scope = LaneScope { target: target as u32, lane };
        let store = self.stage.store(at);
        Ok((
            if self.stage.keeps_documents {
                EitherStore::Documents(store)
            } else {
                EitherStore::Tables(store)
            },
            scope,
        ))
    }

    fn limits(&self) -> &Limits {
        &self.stage.limits
    }
}

impl Stage {
    /// Returns the connectors of a process that compares, and has neither readers nor lanes.
    pub fn comparing(&self) -> Process<'_> {
        Process::new(self, self.fields(), &self.without_lanes, ProcessLeases::Believed)
    }

    /// Runs one attempt of a reader whose process believes that it holds its lease.
    pub async fn read(&self, source: usize, cancel: &CancellationToken) -> Result<(), Fault> {
        let (shared, handle) = (Shared::new(DIRECT_FEEDS), TaskStates::default().handle("reader"));
        let process = Process::new(self, self.fields(), &shared, ProcessLeases::Believed);
        Box::pin(composition::read(&process, SOURCE_NAMES[source], &handle, cancel)).await
    }

    /// Runs one attempt of a lane whose process believes that it holds its lease.
    pub async fn deliver(
        &self,
        lane: LaneAt,
        shared: &Shared,
        cancel: &CancellationToken,
    ) -> Result<(), Fault> {
        let process = Process::new(self, self.fields(), shared, ProcessLeases::Believed);
        let handle = TaskStates::default().handle("lane");
        Box::pin(composition::apply(&process, &lane_id(lane), &handle, cancel)).await
    }
}

fn number(source: &str) -> usize {
    SOURCE_NAMES.iter().position(|name| *name == source).expect("a source of the run")
}

/// The leases of a process.
#[derive(Debug, Clone)]
pub enum ProcessLeases {
    Kept(MemoryLeases),
    /// The process believes that it holds each lease.
    Believed,
}

impl Leases for ProcessLeases {
    type Lease = ProcessLease;

    async fn acquire(&self, key: &str) -> Result<ProcessLease, Fault> {
        self.acquire_or_stand_by(key, &|| ()).await
    }

    async fn acquire_or_stand_by(
        &self,
        key: &str,
        on_standby: &(dyn Fn() + Send + Sync),
    ) -> Result<ProcessLease, Fault> {
        match self {
            Self::Kept(leases) => leases.acquire_or_stand_by(key, on_standby).await.map(ProcessLease::Kept),
            Self::Believed => Ok(ProcessLease::Believed),
        }
    }
}

pub enum ProcessLease {
    Kept(MemoryLease),
    Believed,
}

impl Lease for ProcessLease {
    async fn lost(&mut self) -> Fault {
        match self {
            Self::Kept(lease) => lease.lost().await,
            Self::Believed => std::future::pending().await,
        }
    }

    async fn release(self) {
        if let Self::Kept(lease) = self {
            lease.release().await;
        }
    }
}
