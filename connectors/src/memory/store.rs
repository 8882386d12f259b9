//! A target in memory: versioned rows and one progress row a lane, changed in one step.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use anabranch_pipeline::deliver::{Cell, Flush, LaneId, MutationAction, Progress};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::LaneStore;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;

use super::{Delays, lock};

/// Table, shard, key columns.
type Claim = (u32, ShardId, Box<[Cell]>);

/// A derived row: the version and the value columns.
pub type StoredRow = (Lsn, Box<[Cell]>);

#[derive(Debug, Default)]
struct State {
    rows: BTreeMap<Claim, StoredRow>,
    progress: BTreeMap<LaneId, Progress>,
}

/// One server's derived tables.
#[derive(Debug, Clone)]
pub struct MemoryTarget {
    state: Arc<Mutex<State>>,
    delays: Delays,
}

impl MemoryTarget {
    pub fn new(delays: Delays) -> Self {
        Self { state: Arc::default(), delays }
    }

    /// A lane's store; its progress row is made when it is first used.
    pub fn lane(&self, id: LaneId) -> MemoryStore {
        MemoryStore { target: self.clone(), id }
    }

    /// Every row: (table, shard, key) → (version, values).
    pub fn rows(&self) -> BTreeMap<Claim, StoredRow> {
        lock(&self.state).rows.clone()
    }

    pub fn progress(&self, source: &str) -> Vec<Progress> {
        let state = lock(&self.state);
        state
            .progress
            .iter()
            .filter(|(id, _)| id.source == source)
            .map(|(_, progress)| progress.clone())
            .collect()
    }
}

/// The store of one lane.
#[derive(Debug)]
pub struct MemoryStore {
    target: MemoryTarget,
    id: LaneId,
}

impl LaneStore for MemoryStore {
    async fn load(&mut self) -> Result<Progress, Fault> {
        self.target.delays.pause().await;
        Ok(lock(&self.target.state).progress.entry(self.id.clone()).or_default().clone())
    }

    async fn commit(&mut self, flush: &Flush) -> Result<(), Fault> {
        self.target.delays.pause().await;
        self.apply(flush)?;
        // Cut off here, the caller does not know that it was committed.
        self.target.delays.pause().await;
        Ok(())
    }
}

impl MemoryStore {
    fn apply(&self, flush: &Flush) -> Result<(), Fault> {
        let mut state = lock(&self.target.state);
        let stored = state.progress.entry(self.id.clone()).or_default();
        if stored.revision + 1 != flush.progress.revision {
            let found =
                format!("revision {} is stored, {} follows it", stored.revision, flush.progress.revision);
            return Err(Fault::new(Code::TargetFenced, format!("lane {}", self.id), found));
        }
        *stored = flush.progress.clone();
        for (shard, lsn) in &flush.withdrawals {
            state.rows.retain(|(_, owner, _), (version, _)| owner != shard || *version > *lsn);
        }
        for mutation in flush.ordered() {
            let claim = (mutation.table, mutation.shard, mutation.key);
            if state.rows.get(&claim).is_some_and(|(version, _)| *version > mutation.lsn) {
                continue;
            }
            match mutation.action {
                MutationAction::Upsert(values) => state.rows.insert(claim, (mutation.lsn, values)),
                MutationAction::Delete => state.rows.remove(&claim),
            };
        }
        Ok(())
    }
}
