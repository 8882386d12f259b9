//! A target in memory: versioned rows and one progress row a lane, changed in one step; or documents, each in a step of
//! its own, and progress behind them, as a search server has them.
//!
//! A flush reaches the server when it is due, whether or not the process that sent it is still there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use anabranch_pipeline::deliver::{Cell, Flush, LaneId, Mutation, MutationAction, Progress};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::LaneStore;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use tokio::time::Instant;

use super::{Weather, lock};

/// In a thousand commits: the connection breaks before it.
const LOST: u32 = 10;
/// In a thousand commits: done, but the answer is lost.
const UNHEARD: u32 = 20;

/// Table, shard, key columns.
type Claim = (u32, ShardId, Box<[Cell]>);

/// A derived row: the version and the value columns.
pub type StoredRow = (Lsn, Box<[Cell]>);

/// How a server keeps what a lane derives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeping {
    /// Rows and progress in one transaction.
    Rows,
    /// Each document under its own version, then progress. A deleted document stays as a tombstone.
    Documents,
}

/// A flush as sent, or a part of it: the server knows nothing of who sent it.
#[derive(Debug)]
struct Sent {
    lane: LaneId,
    tables: Arc<BTreeSet<u32>>,
    withdrawals: Vec<(ShardId, Lsn)>,
    mutations: Vec<Mutation>,
    /// Where the lane is when it is through.
    position: Lsn,
    progress: Option<Progress>,
}

#[derive(Debug, Default)]
struct State {
    rows: BTreeMap<Claim, StoredRow>,
    /// Of documents.
    tombstones: BTreeMap<Claim, Lsn>,
    progress: BTreeMap<LaneId, Progress>,
    on_the_way: BTreeMap<(Instant, u64), Sent>,
    outcomes: BTreeMap<u64, Result<(), Fault>>,
    sent: u64,
    down: bool,
    /// Commits that were refused because another process had moved the lane.
    fenced: u64,
}

/// One server's derived tables.
#[derive(Debug, Clone)]
pub struct MemoryTarget {
    state: Arc<Mutex<State>>,
    weather: Weather,
    keeping: Keeping,
}

impl MemoryTarget {
    pub fn new(weather: Weather, keeping: Keeping) -> Self {
        Self { state: Arc::default(), weather, keeping }
    }

    /// The store of a lane that owns these tables; its progress row is made when it is first used.
    pub fn lane(&self, id: LaneId, tables: Arc<BTreeSet<u32>>) -> MemoryStore {
        MemoryStore { target: self.clone(), id, tables }
    }

    /// Every row: (table, shard, key) → (version, values).
    pub fn rows(&self) -> BTreeMap<Claim, StoredRow> {
        self.with(|state| state.rows.clone())
    }

    /// Progress of the lanes of one source that have begun.
    pub fn progress(&self, source: &str) -> BTreeMap<LaneId, Progress> {
        self.with(|state| {
            let of_source = state.progress.iter().filter(|(id, _)| id.source == source);
            of_source.map(|(id, progress)| (id.clone(), progress.clone())).collect()
        })
    }

    /// Changes rows by hand, behind the back of their lanes.
    pub fn tamper(&self, change: impl FnOnce(&mut BTreeMap<Claim, StoredRow>)) {
        self.with(|state| change(&mut state.rows));
    }

    /// Nobody reaches the server, or everybody does again; what is on the way still arrives.
    pub fn set_down(&self, down: bool) {
        self.with(|state| state.down = down);
    }

    pub fn is_down(&self) -> bool {
        self.with(|state| state.down)
    }

    /// Commits that were refused because another process had moved the lane.
    pub fn fenced(&self) -> u64 {
        self.with(|state| state.fenced)
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = lock(&self.state);
        let now = Instant::now();
        while let Some(next) = state.on_the_way.first_entry()
            && next.key().0 <= now
        {
            let ((_, number), sent) = next.remove_entry();
            let outcome = state.apply(sent, self.keeping);
            state.fenced += u64::from(outcome.is_err());
            state.outcomes.insert(number, outcome);
        }
        work(&mut state)
    }
}

impl State {
    fn apply(&mut self, sent: Sent, keeping: Keeping) -> Result<(), Fault> {
        if let Some(progress) = sent.progress {
            let stored = self.progress.entry(sent.lane.clone()).or_default();
            if stored.revision + 1 != progress.revision {
                return Err(fenced(&sent.lane, stored.revision, progress.revision));
            }
            *stored = progress;
        }
        for (shard, lsn) in &sent.withdrawals {
            let is_meant = |(table, owner, _): &Claim, version: Lsn| {
                owner == shard && version <= *lsn && sent.tables.contains(table)
            };
            let meant = self.rows.extract_if(.., |claim, (version, _)| is_meant(claim, *version));
            // At the beginning of a replay everything is to come again.
            let kept = |own| if *lsn > sent.position { own } else { *lsn };
            let tombstones = meant.map(|(claim, (own, _))| (claim, kept(own)));
            match keeping {
                Keeping::Rows => tombstones.for_each(drop),
                Keeping::Documents => self.tombstones.extend(tombstones),
            }
        }
        for mutation in sent.mutations {
            let claim = (mutation.table, mutation.shard, mutation.key);
            let row = self.rows.get(&claim).map(|(version, _)| *version);
            if row.max(self.tombstones.get(&claim).copied()).is_some_and(|version| version > mutation.lsn) {
                continue;
            }
            self.tombstones.remove(&claim);
            match mutation.action {
                MutationAction::Upsert(values) => {
                    self.rows.insert(claim, (mutation.lsn, (*values).into()));
                }
                MutationAction::Delete => {
                    self.rows.remove(&claim);
                    if keeping == Keeping::Documents {
                        self.tombstones.insert(claim, mutation.lsn);
                    }
                }
            }
        }
        Ok(())
    }
}

fn fenced(lane: &LaneId, stored: u64, next: u64) -> Fault {
    let found = format!("revision {stored} is stored, {next} follows it");
    Fault::new(Code::TargetFenced, format!("lane {lane}"), found)
}

/// The store of one lane.
#[derive(Debug)]
pub struct MemoryStore {
    target: MemoryTarget,
    id: LaneId,
    tables: Arc<BTreeSet<u32>>,
}

impl MemoryStore {
    fn broken(&self) -> Fault {
        Fault::new(Code::TargetUnreachable, format!("lane {}", self.id), "the connection broke")
    }
}

impl LaneStore for MemoryStore {
    async fn load(&mut self) -> Result<Progress, Fault> {
        self.target.weather.pause().await;
        if self.target.is_down() {
            return Err(self.broken());
        }
        Ok(self.target.with(|state| state.progress.entry(self.id.clone()).or_default().clone()))
    }

    async fn commit(&mut self, flush: &Flush) -> Result<(), Fault> {
        let whole = Sent {
            lane: self.id.clone(),
            tables: self.tables.clone(),
            withdrawals: flush.withdrawals.clone(),
            mutations: flush.ordered().iter().map(|mutation| mutation.to_owned()).collect(),
            position: flush.progress.position,
            progress: Some(flush.progress.clone()),
        };
        match self.target.keeping {
            Keeping::Rows => self.send(whole).await,
            Keeping::Documents => self.send_in_parts(whole).await,
        }
    }
}

impl MemoryStore {
    /// As a lane of documents does it: progress is looked at, then come withdrawals, then documents in two requests at
    /// once, then progress.
    async fn send_in_parts(&mut self, mut whole: Sent) -> Result<(), Fault> {
        let (stored, progress) = (self.load().await?, whole.progress.take());
        let next = progress.as_ref().map_or(0, |progress| progress.revision);
        if stored.revision + 1 != next {
            return Err(fenced(&self.id, stored.revision, next));
        }
        let part = || Sent {
            lane: whole.lane.clone(),
            tables: whole.tables.clone(),
            withdrawals: Vec::new(),
            mutations: Vec::new(),
            position: whole.position,
            progress: None,
        };
        if !whole.withdrawals.is_empty() {
            self.send(Sent { withdrawals: whole.withdrawals, ..part() }).await?;
        }
        let mut one = whole.mutations;
        let other = one.split_off(one.len() / 2);
        let (one, other) = (Sent { mutations: one, ..part() }, Sent { mutations: other, ..part() });
        futures::try_join!(self.send(one), self.send(other))?;
        self.send(Sent { progress, ..part() }).await
    }

    async fn send(&self, sent: Sent) -> Result<(), Fault> {
        let weather = &self.target.weather;
        let due = weather.due(Instant::now());
        if self.target.is_down() || weather.strikes_in(LOST) {
            return Err(self.broken());
        }
        let number = self.target.with(|state| {
            state.sent += 1;
            state.on_the_way.insert((due, state.sent), sent);
            state.sent
        });
        // Cut off here, it is done all the same, later.
        tokio::time::sleep_until(due).await;
        let outcome = self.target.with(|state| state.outcomes.remove(&number)).expect("it was due");
        // Cut off here, the caller does not know that it was done.
        weather.pause().await;
        if weather.strikes_in(UNHEARD) { Err(self.broken()) } else { outcome }
    }
}
