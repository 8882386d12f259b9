//! Reconciliations under faults and changes: drift is planted by hand in rows of any lane, and processes that reconcile
//! are killed and replaced.
//!
//! In the storm a reconciliation may report little, and nothing wrong. It never reports a row as drift that no hand has
//! touched, never reports success while a planted row is left, and never repairs more than its gate permits. In the
//! quiet it finds exactly the wrong rows. Beyond its gate it changes nothing and reports that; otherwise it has them
//! repaired, and the next one finds nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch_connectors::memory::{MemoryRows, MemorySource};
use anabranch_pipeline::composition::ProjectionLanes;
use anabranch_pipeline::config::reconcile::{Mode, PressureLimits, ReconcileSettings};
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::{RowSource, SourceConnector, SourcePressure, TableVisibility};
use anabranch_pipeline::reconcile::{
    Checkpoint, LaneWait, Reconciliation, Sides, SourceKey, SourceTable, StoreReport, StoreState,
};
use anabranch_pipeline::records::{Cell, Chunk, Condition, Outcome, ScanCursor};
use anabranch_schemas::change::{Entity, TableIdentity, Value};
use anabranch_schemas::lsn::Lsn;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::drift::{is_hand_made, plant};
use crate::past::{Groups, Past, key_of};
use crate::script::{self, Claim, Key, SOURCES};
use crate::stage::{SOURCE_NAMES, Stage};

/// Virtual time after which a reconciliation in the quiet is stuck, above its wait for a lane that stands still.
const WAIT_MAX: Duration = Duration::from_secs(900);
/// Time after which a reconciliation no longer waits for a lane that does not move.
const STANDSTILL: Duration = Duration::from_secs(30);

/// A derived row and its version.
type StoredVersions = BTreeMap<Claim, Lsn>;

/// Times at which single rows of a key were read.
type ReadTimes = Arc<Mutex<BTreeMap<Key, Vec<ReadTime>>>>;

#[derive(Debug, Clone, Copy)]
struct ReadTime {
    from: Instant,
    to: Instant,
    /// Whether no change was hidden from the read.
    sees_all: bool,
}

/// All reconciliations of a run.
pub struct Reconciliations {
    /// The generator of their gates.
    random: StdRng,
    underway: Option<Underway>,
    begun: u64,
    pub past: Past,
}

/// A running reconciliation, whichever process it is in.
struct Underway {
    began: Instant,
    /// Numbers of transactions at its beginning; `stored` has the derived rows at that time.
    groups: Groups,
    stored: StoredVersions,
    settings: ReconcileSettings,
    saved: Saved,
    reads: ReadTimes,
    process: JoinHandle<Result<StoreState, Fault>>,
}

/// State that outlives the process of a reconciliation.
#[derive(Debug, Clone)]
struct Saved(Arc<Mutex<StoreState>>);

impl Checkpoint for Saved {
    async fn store(&mut self, state: &StoreState) -> Result<(), Fault> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state.clone();
        Ok(())
    }
}

impl Reconciliations {
    pub fn new(seed: u64) -> Self {
        Self { random: StdRng::seed_from_u64(seed), underway: None, begun: 0, past: Past::default() }
    }

    /// Plants drift, or begins, kills or judges a reconciliation; returns the fault of its report, if any.
    pub async fn step(&mut self, stage: &Arc<Stage>, random: &mut StdRng) -> Option<String> {
        if let Some(wrong) = self.ended(stage).await {
            return Some(wrong);
        }
        match (&mut self.underway, random.random_range(0..8)) {
            (_, 0..5) => plant(stage, random).await,
            (None, _) => self.begin(stage, random),
            (Some(reconciliation), 5) => {
                stage.log_line(|| {
                    "the process of the reconciliation is killed, and another one goes on".to_owned()
                });
                reconciliation.process.abort();
                reconciliation.process = reconciliation.start(stage);
            }
            _ => {}
        }
        None
    }

    fn begin(&mut self, stage: &Arc<Stage>, random: &mut StdRng) {
        self.begun += 1;
        let mode = if random.random_ratio(1, 5) { Mode::Report } else { Mode::Repair };
        // Memory for few cells, which needs several slices, up to more than enough.
        let memory = NonZeroUsize::new(1 << random.random_range(12..18)).expect("not zero");
        let limits = PressureLimits {
            rows_per_second: None,
            running_threads: NonZeroU64::MIN,
            replica_lag: Duration::ZERO,
            lane_lag: Duration::from_secs(random.random_range(1..30)),
        };
        let gate = self.random.random_range(0..4);
        let gate_keys = if self.random.random_ratio(1, 4) { gate } else { u64::MAX };
        let settings = ReconcileSettings { mode, memory, gate_keys, gate_share: 1.0, limits };
        let state = StoreState::new("birthday", random.random());
        let mut reconciliation = Underway {
            began: Instant::now(),
            groups: self.past.groups(),
            stored: stored(stage),
            settings,
            saved: Saved(Arc::new(Mutex::new(state))),
            reads: ReadTimes::default(),
            process: tokio::spawn(std::future::pending()),
        };
        stage.log_line(|| {
            format!("reconciliation {} begins: {mode:?}, {memory} bytes, gate {gate_keys}", self.begun)
        });
        reconciliation.process.abort();
        reconciliation.process = reconciliation.start(stage);
        self.underway = Some(reconciliation);
    }

    /// Judges the reconciliation if it has ended; returns the fault of its report.
    async fn ended(&mut self, stage: &Arc<Stage>) -> Option<String> {
        let reconciliation = self.underway.take_if(|reconciliation| reconciliation.process.is_finished())?;
        self.judge(stage, reconciliation).await.err()
    }

    /// The report of a reconciliation that has ended, or the fault of that report.
    async fn judge(&self, stage: &Arc<Stage>, mut reconciliation: Underway) -> Result<StoreReport, String> {
        let ended = (&mut reconciliation.process)
            .await
            .map_err(|error| format!("the reconciliation panicked: {error}"))?;
        let report = ended.map_err(|fault| format!("the reconciliation failed: {fault}"))?.report;
        let outcome = report.outcome();
        stage.log_line(|| format!("reconciliation {}: {outcome:?}, {report:?}", self.begun));
        for drifted in &report.drift {
            let key = parsed(&drifted.key_hash);
            if stage.touched(key).is_none() && !self.may_seem_wrong(key, &reconciliation) {
                return Err(format!("{key:?} was never wrong, and found {:?}", drifted.verdict));
            }
        }
        if report.repaired > reconciliation.settings.gate_keys
            || (report.is_gate_closed && outcome != Outcome::Failed)
        {
            return Err(format!(
                "{outcome:?} with a gate of {}: {report:?}",
                reconciliation.settings.gate_keys
            ));
        }
        if matches!(outcome, Outcome::Clean | Outcome::Repaired) {
            let after = stored(stage);
            let stayed = reconciliation.stored.iter().find(|(row, version)| {
                let was_touched = stage.touched(key_of(row)) >= Some(reconciliation.began);
                is_hand_made(**version)
                    && after.get(*row) == Some(version)
                    && !was_touched
                    && !self.past.may_be_shown(row, reconciliation.groups)
            });
            if let Some(row) = stayed {
                return Err(format!("{outcome:?}, and all the while {row:?} stood there"));
            }
        }
        Ok(report)
    }

    /// Whether a key changed, and back, between two reads, twice. Such a finding is harmless, as repairs follow the
    /// source.
    fn may_seem_wrong(&self, key: Key, reconciliation: &Underway) -> bool {
        let reads = reconciliation.reads.lock().unwrap_or_else(PoisonError::into_inner);
        let reads = reads.get(&key).map_or(&[][..], Vec::as_slice);
        let seen_from = |read: &ReadTime| match read.sees_all {
            true => read.from,
            false => self.past.hidden_from(script::source_of(key.0), read.from),
        };
        let mut times = 0;
        let mut pairs = reads.windows(2);
        while let Some([one, other]) = pairs.next() {
            if self.past.changes(key, seen_from(one), other.to) > 1 {
                times += 1;
                pairs.next();
            }
        }
        times > 1
    }

    /// In the quiet, with every lane at its end: lets the running reconciliation end, plants drift, and expects a
    /// reconciliation to find exactly the wrong rows. Returns the fault, if any.
    pub async fn settle(&mut self, stage: &Arc<Stage>, random: &mut StdRng, plants: bool) -> Option<String> {
        if let Some(reconciliation) = self.underway.take()
            && let Err(wrong) = self.over(stage, reconciliation).await
        {
            return Some(wrong);
        }
        if plants {
            for _ in 0..random.random_range(1..4) {
                plant(stage, random).await;
            }
        }
        let wrong: BTreeSet<Key> =
            stage.found().symmetric_difference(self.past.truth()).map(key_of).collect();
        let (count, before) = (wrong.len() as u64, stored(stage));
        if count > 0 && self.random.random_ratio(1, 3) {
            let gate_keys = self.random.random_range(0..count);
            let report = match self.reconciliation_in_the_quiet(stage, random, gate_keys).await {
                Ok(report) => report,
                Err(wrong) => return Some(wrong),
            };
            // With little memory it judges keys in batches, and stops once they are too many.
            let (found, is_whole) = (keys_of(&report), report.incomplete.is_empty());
            let is_reported = report.is_gate_closed && report.outcome() == Outcome::Failed;
            let is_right = if is_whole { found == wrong } else { found.is_subset(&wrong) };
            let is_beyond = found.len() as u64 > gate_keys && found.len() as u64 == report.left;
            if !is_reported || !is_right || !is_beyond || report.repaired > 0 || stored(stage) != before {
                return Some(format!(
                    "a reconciliation beyond its gate: {report:?}, and wrong were {wrong:?}"
                ));
            }
        }
        let gate_keys = if self.random.random() { count } else { u64::MAX };
        let report = match self.reconciliation_in_the_quiet(stage, random, gate_keys).await {
            Ok(report) => report,
            Err(wrong) => return Some(wrong),
        };
        let expected = if wrong.is_empty() { Outcome::Clean } else { Outcome::Repaired };
        if keys_of(&report) != wrong || report.outcome() != expected || report.confirmed != count {
            return Some(format!("a reconciliation in the quiet: {report:?}, and wrong were {wrong:?}"));
        }
        None
    }

    async fn reconciliation_in_the_quiet(
        &mut self,
        stage: &Arc<Stage>,
        random: &mut StdRng,
        gate_keys: u64,
    ) -> Result<StoreReport, String> {
        self.begin(stage, random);
        let mut reconciliation = self.underway.take().expect("it has just begun");
        reconciliation.process.abort();
        reconciliation.settings =
            ReconcileSettings { mode: Mode::Repair, gate_keys, ..reconciliation.settings.clone() };
        stage.log_line(|| format!("reconciliation {} repairs, gate {gate_keys}", self.begun));
        reconciliation.process = reconciliation.start(stage);
        self.over(stage, reconciliation).await
    }

    async fn over(&self, stage: &Arc<Stage>, reconciliation: Underway) -> Result<StoreReport, String> {
        let deadline = Instant::now() + WAIT_MAX;
        while !reconciliation.process.is_finished() {
            if Instant::now() > deadline {
                reconciliation.process.abort();
                return Err("the reconciliation does not end".to_owned());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.judge(stage, reconciliation).await
    }
}

impl Underway {
    fn start(&self, stage: &Arc<Stage>) -> JoinHandle<Result<StoreState, Fault>> {
        let (stage, mut saved) = (stage.clone(), self.saved.clone());
        let (settings, reads) = (self.settings.clone(), self.reads.clone());
        tokio::spawn(async move {
            let sources: BTreeMap<String, Arc<Watched>> = (0..SOURCES)
                .map(|source| {
                    let watched = Watched { source: stage.sources[source].clone(), reads: reads.clone() };
                    (SOURCE_NAMES[source].to_owned(), Arc::new(watched))
                })
                .collect();
            let projection = stage.projection();
            let sides: Sides<Watched, MemoryRows> = Sides {
                replicated: Default::default(),
                projection: projection.clone(),
                audit: None,
                primaries: sources.clone(),
                sources,
                targets: stage.targets.iter().map(|target| Arc::new(target.derived(projection))).collect(),
            };
            let shards = script::shards();
            let hash_key =
                |_: &SourceTable, key: &SourceKey| format!("{}:{}", shards[&key.shard], user_of(&key.key));
            let process = stage.comparing();
            let mut state = saved.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let reconciliation = Reconciliation {
                sides: &sides,
                lanes: &ProjectionLanes { connectors: &process, projection: "birthday" },
                settings: &settings,
                hash_key: &hash_key,
                hash_foreign: &|shard, key| format!("{shard:?}:{key:?}"),
                uncaptured: &BTreeSet::new(),
                lane_wait: LaneWait::new(STANDSTILL),
            };
            reconciliation.run(&mut state, &mut saved, &CancellationToken::new()).await?;
            Ok(state)
        })
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.process.abort();
    }
}

/// A source that records when its single rows were read.
#[derive(Debug)]
struct Watched {
    source: MemorySource,
    reads: ReadTimes,
}

impl RowSource for Watched {
    async fn tables(&self) -> Result<Vec<TableIdentity<'static>>, Fault> {
        self.source.tables().await
    }

    fn visit_likely_tables(&self, entity: Entity, visit: &mut dyn FnMut(&TableIdentity<'_>)) {
        self.source.visit_likely_tables(entity, visit);
    }

    async fn pressure(&self) -> Result<SourcePressure, Fault> {
        self.source.pressure().await
    }

    async fn replication_end(&self) -> Result<String, Fault> {
        self.source.replication_end().await
    }

    async fn has_replicated(&self, end: &str) -> Result<bool, Fault> {
        self.source.has_replicated(end).await
    }

    async fn chunk(
        &self,
        table: &TableIdentity<'static>,
        after: Option<&ScanCursor>,
        rows: NonZeroUsize,
        epoch: u16,
    ) -> Result<Chunk, Fault> {
        self.source.chunk(table, after, rows, epoch).await
    }

    async fn first_rows(&self, tables: &[TableIdentity<'static>], epoch: u16) -> Result<Chunk, Fault> {
        self.source.first_rows(tables, epoch).await
    }

    async fn page(
        &self,
        table: &TableIdentity<'static>,
        after: Option<&ScanCursor>,
        rows: NonZeroUsize,
        visit: &mut (dyn FnMut(&[Value<'_>]) + Send),
    ) -> Result<Option<ScanCursor>, Fault> {
        self.source.page(table, after, rows, visit).await
    }

    async fn matching(
        &self,
        table: &TableIdentity<'static>,
        condition: &Condition,
        after: Option<&ScanCursor>,
        rows: NonZeroUsize,
        epoch: u16,
    ) -> Result<Chunk, Fault> {
        self.source.matching(table, condition, after, rows, epoch).await
    }

    async fn rows(&self, keys: &[(TableIdentity<'static>, Vec<Cell>)], epoch: u16) -> Result<Chunk, Fault> {
        let from = Instant::now();
        let chunk = self.source.rows(keys, epoch).await?;
        let head = self.source.head().await?.in_epoch(epoch).expect("it was one");
        let read = ReadTime { from, to: Instant::now(), sees_all: chunk.low >= head };
        let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        for (table, keys) in keys {
            let shard = script::shards()[&table.shard];
            for key in keys {
                reads.entry((shard, user_of(key))).or_default().push(read);
            }
        }
        Ok(chunk)
    }

    async fn visibility(&self, database: &str, table: &str) -> Result<TableVisibility, Fault> {
        self.source.visibility(database, table).await
    }

    async fn absence(&self, table: &TableIdentity<'static>, epoch: u16) -> Result<Option<Chunk>, Fault> {
        self.source.absence(table, epoch).await
    }
}

/// The derived rows with their versions.
fn stored(stage: &Stage) -> StoredVersions {
    stage.found_with_versions().into_iter().collect()
}

fn keys_of(report: &StoreReport) -> BTreeSet<Key> {
    report.drift.iter().map(|drifted| parsed(&drifted.key_hash)).collect()
}

fn user_of(key: &Cell) -> u64 {
    match key {
        Cell::UInt(user) => *user,
        other => panic!("a user's key is a number, not {other:?}"),
    }
}

/// The key of a text `shard:user`.
fn parsed(text: &str) -> Key {
    let (shard, user) = text.split_once(':').expect("as the hash of this run is");
    (shard.parse().expect("a number"), user.parse().expect("a number"))
}
