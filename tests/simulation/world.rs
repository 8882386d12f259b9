//! One run: tasks on twins, faults from a seed, then quiet, then the comparison.

use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use anabranch_connectors::memory::{Delays, MemoryLog, MemorySource, MemoryTarget};
use anabranch_pipeline::capture::{self, Capture};
use anabranch_pipeline::config::{BirthdayTables, Limits, ProjectionConfig, ProjectionKind};
use anabranch_pipeline::deliver::{self, Cell, Lane, LaneId};
use anabranch_pipeline::ports::Entry;
use anabranch_pipeline::projections::{Defects, LaneScope, Projection};
use anabranch_schemas::birthday::{Layout, MonthDay};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::{Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::script::{self, SOURCES, Truth};

const LANES: u32 = 2;
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Virtual time after which a run that has not become equal is stuck.
const PATIENCE: Duration = Duration::from_secs(10);

/// (table, shard, user): a derived row.
type Claims = BTreeSet<(u32, ShardId, u64)>;

#[derive(Debug, Clone)]
struct Stage {
    sources: Vec<MemorySource>,
    log: MemoryLog,
    target: MemoryTarget,
    projection: Projection,
    limits: Limits,
}

pub struct World {
    stage: Stage,
    random: StdRng,
    truth: Truth,
    tasks: JoinSet<()>,
    /// Readers and lanes at work, by name.
    running: BTreeMap<String, Process>,
    /// Frozen ones whose name was given to another.
    zombies: Vec<Process>,
}

/// A task that can be stopped and continued like a process.
struct Process {
    task: AbortHandle,
    frozen: watch::Sender<bool>,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let delays = Delays::seeded(seed ^ 0x5eed);
        let mut random = StdRng::seed_from_u64(seed);
        let limits = limits(random.random_range(40..400));
        let tables = BirthdayTables {
            layout: Layout::ByDay,
            databases: NonZeroU32::MIN,
            database: "birthday".to_owned(),
            table: "birthday_{mmdd}".to_owned(),
        };
        let projection = Projection::new(&ProjectionConfig {
            name: "birthday".to_owned(),
            lanes: NonZeroU32::new(LANES).expect("not zero"),
            targets: vec!["target".to_owned()],
            kind: ProjectionKind::Birthday(tables),
        });
        let stage = Stage {
            sources: (0..SOURCES).map(|_| MemorySource::new(delays.clone())).collect(),
            log: MemoryLog::new(delays.clone()),
            target: MemoryTarget::new(delays),
            projection,
            limits,
        };
        Self {
            stage,
            random,
            truth: Truth::new(),
            tasks: JoinSet::new(),
            running: BTreeMap::new(),
            zombies: Vec::new(),
        }
    }

    pub async fn run(mut self) -> Result<(), String> {
        for source in 0..SOURCES {
            self.start_reader(source);
            (0..LANES).for_each(|lane| self.start_lane(source, lane));
        }
        for _ in 0..self.random.random_range(60..160) {
            self.step().await;
        }
        self.settle().await
    }

    async fn step(&mut self) {
        let source = self.random.random_range(0..SOURCES);
        let lane = self.random.random_range(0..LANES);
        match self.random.random_range(0..100) {
            0..60 => {
                for (source, transaction) in script::next(&mut self.random, &mut self.truth) {
                    self.stage.sources[source].commit(transaction);
                }
            }
            60..68 => self.restart(&reader_name(source), |world| world.start_reader(source)),
            68..78 => self.restart(&lane_name(source, lane), |world| world.start_lane(source, lane)),
            78..80 => self.freeze(&reader_name(source), |world| world.start_reader(source)),
            80..83 => self.freeze(&lane_name(source, lane), |world| world.start_lane(source, lane)),
            83..86 => self.wake_a_zombie(),
            86..87 => self.stage.log.wipe(&name(source)),
            87..88 => self.stage.log.discard(&name(source), 3),
            88..90 => {
                let messages = self.random.random_range(1..6);
                self.stage.log.roll_back(&name(source), messages);
            }
            _ => {
                let millis = self.random.random_range(1..60);
                tokio::time::sleep(Duration::from_millis(millis)).await;
            }
        }
    }

    fn restart(&mut self, name: &str, start: impl FnOnce(&mut Self)) {
        if let Some(process) = self.running.remove(name) {
            process.task.abort();
        }
        start(self);
    }

    /// Stops a process as SIGSTOP does and starts its successor.
    fn freeze(&mut self, name: &str, start: impl FnOnce(&mut Self)) {
        if let Some(process) = self.running.remove(name) {
            process.frozen.send_replace(true);
            self.zombies.push(process);
        }
        start(self);
    }

    /// A zombie goes on where it was stopped, for a while.
    fn wake_a_zombie(&mut self) {
        if self.zombies.is_empty() {
            return;
        }
        let zombie = self.zombies.swap_remove(self.random.random_range(0..self.zombies.len()));
        zombie.frozen.send_replace(false);
        let life = Duration::from_millis(self.random.random_range(1..30));
        self.tasks.spawn(async move {
            tokio::time::sleep(life).await;
            zombie.task.abort();
        });
    }

    fn start(&mut self, name: String, attempts: impl Future<Output = ()> + Send + 'static) {
        let (frozen, thawed) = watch::channel(false);
        let task = self.tasks.spawn(freezable(thawed, attempts));
        self.running.insert(name, Process { task, frozen });
    }

    fn start_reader(&mut self, source: usize) {
        let stage = self.stage.clone();
        self.start(reader_name(source), async move {
            loop {
                let _ = read(&stage, source).await;
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        });
    }

    fn start_lane(&mut self, source: usize, lane: u32) {
        let stage = self.stage.clone();
        self.start(lane_name(source, lane), async move {
            loop {
                let _ = deliver(&stage, source, lane).await;
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        });
    }

    /// No more faults: within [`PATIENCE`] the store must be equal.
    ///
    /// Half of it in, a lane may wait behind a hole that retention made: then the operator empties the stream, as
    /// the runbook says, and the reader rebuilds it from the binlog.
    async fn settle(&mut self) -> Result<(), String> {
        let want = expected(&self.truth);
        while !self.zombies.is_empty() {
            self.wake_a_zombie();
        }
        let begun = tokio::time::Instant::now();
        let (deadline, mut emptied) = (begun + PATIENCE, false);
        loop {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let behind = self.behind();
            if behind.is_empty() {
                let found = self.found();
                return if found == want {
                    Ok(())
                } else {
                    Err(format!(
                        "missing {:?}, orphans {:?}",
                        want.difference(&found).count(),
                        found.difference(&want).count()
                    ))
                };
            }
            if begun.elapsed() > PATIENCE / 2 && !emptied {
                emptied = true;
                (0..SOURCES).for_each(|source| self.stage.log.wipe(&name(source)));
            }
            if tokio::time::Instant::now() > deadline {
                return Err(format!("stuck: {}", behind.join(", ")));
            }
        }
    }

    fn behind(&self) -> Vec<String> {
        let mut behind = Vec::new();
        for (number, source) in self.stage.sources.iter().enumerate() {
            let progress = self.stage.target.progress(&name(number));
            let end = source.end();
            if progress.len() < LANES as usize || progress.iter().any(|progress| progress.position < end) {
                let positions: Vec<_> =
                    progress.iter().map(|progress| progress.position.to_string()).collect();
                behind.push(format!("{} at {positions:?} of {end}", name(number)));
            }
        }
        behind
    }

    fn found(&self) -> Claims {
        let user = |key: &[Cell]| match key {
            [Cell::UInt(user)] => *user,
            other => panic!("a key of the birthday tables is one unsigned number, not {other:?}"),
        };
        self.stage.target.rows().keys().map(|(table, shard, key)| (*table, *shard, user(key))).collect()
    }
}

/// Polls `inner` only while it is not frozen.
async fn freezable(mut frozen: watch::Receiver<bool>, inner: impl Future<Output = ()>) {
    let mut inner = std::pin::pin!(inner);
    loop {
        // The sender lives as long as the process is known; afterwards the task is about to be aborted.
        if frozen.wait_for(|frozen| !frozen).await.is_err() {
            return inner.await;
        }
        tokio::select! {
            biased;
            Ok(_) = frozen.wait_for(|frozen| *frozen) => {}
            () = &mut inner => return,
        }
    }
}

async fn read(stage: &Stage, source: usize) -> Result<(), anabranch_pipeline::error::Fault> {
    let (name, start) = (name(source), Entry::Earliest);
    let capture = Capture {
        source: &name,
        connector: &stage.sources[source],
        log: &stage.log,
        start: &start,
        limits: &stage.limits,
    };
    let lanes = async || Ok(stage.target.progress(&name));
    capture::run(capture, lanes, &watch::Sender::new(Lsn::ZERO), &CancellationToken::new()).await
}

async fn deliver(stage: &Stage, source: usize, number: u32) -> Result<(), anabranch_pipeline::error::Fault> {
    let id = LaneId {
        projection: "birthday".to_owned(),
        target: "target".to_owned(),
        source: name(source),
        lane: number,
    };
    let mut store = stage.target.lane(id.clone());
    let scope = LaneScope { target: 0, lane: number };
    let mut defects = Defects::default();
    let lane = Lane {
        id: &id,
        log: &stage.log,
        source: &stage.sources[source],
        seat: 1 + number,
        start: &Entry::Earliest,
        feeds: &Arc::new(Semaphore::new(1)),
        limits: &stage.limits,
    };
    let project = |change: &anabranch_schemas::change::Change<'_, '_>, flush: &mut deliver::Flush| {
        stage.projection.project(change, scope, flush, &mut defects);
    };
    deliver::run(lane, &mut store, project, &watch::Sender::new(Lsn::ZERO), &CancellationToken::new()).await
}

/// What the derived tables must hold: a pure function of the sources' rows, not shared with the projector.
fn expected(truth: &Truth) -> Claims {
    let day = |(month, day): (u8, u8)| MonthDay::new(month, day).map(MonthDay::ordinal);
    truth
        .iter()
        .filter_map(|((shard, user), date)| Some((day(*date)?, script::table(*shard).shard, *user)))
        .collect()
}

fn name(source: usize) -> String {
    format!("source-{source}")
}

fn reader_name(source: usize) -> String {
    format!("reader {source}")
}

fn lane_name(source: usize, lane: u32) -> String {
    format!("lane {source}/{lane}")
}

fn limits(batch_bytes: usize) -> Limits {
    let number = |number| NonZeroUsize::new(number).expect("not zero");
    Limits {
        batch_bytes: number(batch_bytes),
        in_flight_messages: number(8),
        in_flight_bytes: number(1 << 20),
        flush_rows: number(10),
        statement_rows: number(10),
        mark_interval: Duration::from_millis(100),
        keep_interval: Duration::from_secs(2),
        heartbeat: Duration::from_secs(1),
        retry_budget: Duration::from_secs(1),
        shutdown: Duration::from_secs(1),
        direct_feeds: number(1),
    }
}
