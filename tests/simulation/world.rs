//! One run: daemons on twins, faults from a seed, then quiet, then the comparison.

use std::sync::Arc;
use std::time::Duration;

use anabranch_connectors::memory::{StoreKind, Weather};
use anabranch_pipeline::ports::LogEntry;
use anabranch_schemas::birthday::Layout;
use anabranch_schemas::change::Entity;
use anabranch_schemas::lsn::{Lsn, ResumePoint};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

use crate::anew::strike;
use crate::daemon::Daemon;
use crate::reconciliations::Reconciliations;
use crate::refresh::refresh;
use crate::replay::replay;
use crate::script::{SOURCES, Script, TARGETS};
use crate::seeds::{self, Verdict};
use crate::stage::{LANES, SOURCE_NAMES, Stage, limits};

mod grants;
mod quiet;

const DAEMONS: usize = 2;
/// Longer than a run: a step with this interval never happens.
const LONG: Duration = Duration::from_secs(3600);

/// Verdict and figures of a run.
#[derive(Debug, PartialEq, Eq)]
pub struct Run {
    pub verdict: Verdict,
    pub virtual_time: Duration,
    pub strikes: u64,
    pub fenced: u64,
}

/// The subject of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Changes and faults.
    Plain,
    /// Drift and reconciliations too.
    Reconciled,
    /// Lunar tables; some readers capture no lunar birthdays yet, or no longer.
    Lunar,
    /// Sources lose grants and get them back, beside all other faults.
    Hidden,
}

/// Runs one seed.
pub fn run(seed: u64, store_kind: StoreKind, kind: Kind, is_logged: bool) -> Run {
    // Log lines of the product appear between the steps.
    let subscriber = is_logged.then(|| tracing_subscriber::fmt().with_ansi(false).without_time().finish());
    let _said = subscriber.map(tracing::subscriber::set_default);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O");
    runtime.block_on(async {
        let (began, world) = (Instant::now(), World::new(seed, store_kind, kind, is_logged));
        let stage = world.stage.clone();
        let verdict = world.run().await;
        Run {
            verdict,
            virtual_time: began.elapsed(),
            strikes: stage.weather.strikes(),
            fenced: stage.targets.iter().map(|target| target.fenced()).sum(),
        }
    })
}

struct World {
    stage: Arc<Stage>,
    random: StdRng,
    script: Script,
    daemons: Vec<Daemon>,
    store_kind: StoreKind,
    /// Whether leases are kept. Without them, each daemon does all work all the time: they only save work.
    lawful: bool,
    /// Whether sources fail over. After one, overlapping XA branches may make all tables of the source be read again
    /// (`docs/limits.md`), or stop it if `unseen_changes = "stop"`. So a run has either fail-overs or overlaps.
    fails_over: bool,
    loses_grants: bool,
    /// In worlds with drift, the reconciliations that repair it.
    reconciliations: Option<Reconciliations>,
    /// A wrong report of a reconciliation.
    lie: Option<String>,
}

impl World {
    fn new(seed: u64, store_kind: StoreKind, kind: Kind, is_logged: bool) -> Self {
        let has_reconciliations = kind == Kind::Reconciled;
        let mut random = StdRng::seed_from_u64(seed);
        let layout = if random.random() { Layout::ByDay } else { Layout::ByUser };
        let keep_interval = if random.random() { Duration::from_secs(2) } else { LONG };
        // In a third of the runs nearly each event is larger than a batch.
        let batch_bytes = if random.random_ratio(1, 3) { 40..60 } else { 60..400 };
        let (batch_bytes, flush_rows) = (random.random_range(batch_bytes), random.random_range(1..11));
        let limits = limits(batch_bytes, flush_rows, keep_interval);
        let pause_max_ms = if random.random_ratio(1, 4) { 50 } else { 5 };
        let mut stage =
            Stage::new(Weather::stormy(seed ^ 0x5eed, pause_max_ms), store_kind, layout, limits, is_logged);
        let (lawful, fails_over) = (random.random_ratio(1, 2), random.random_ratio(1, 2));
        // Requests of a document writer that are still under way would arrive after the load (`docs/limits.md`).
        stage.by_text = store_kind == StoreKind::Rows && !has_reconciliations && random.random_ratio(1, 2);
        stage.is_lunar = kind == Kind::Lunar;
        // Late requests of a document writer would arrive after the sweep. A source that is reset just when its reader
        // leaves a statement behind looks like itself (`docs/limits.md`). A kept seed keeps its world.
        stage.has_disasters = store_kind == StoreKind::Rows
            && !has_reconciliations
            && seed.is_multiple_of(3)
            && !seeds::kept().contains(&seed);
        stage.by_text &= !stage.has_disasters;
        let script = Script::new(!fails_over, store_kind == StoreKind::Rows, stage.by_text);
        let script = if stage.is_lunar { script.lunar() } else { script };
        Self {
            stage: Arc::new(stage),
            random,
            // A late request of a document writer may undo the second change (`docs/limits.md`).
            script,
            daemons: Vec::new(),
            store_kind,
            lawful,
            fails_over,
            loses_grants: kind == Kind::Hidden,
            reconciliations: has_reconciliations.then(|| Reconciliations::new(seed)),
            lie: None,
        }
    }

    async fn run(mut self) -> Verdict {
        self.stage.log_line(|| format!("layout {:?}, leases kept: {}", self.stage.layout, self.lawful));
        self.daemons = (0..DAEMONS).map(|_| self.start()).collect();
        if self.stage.is_lunar {
            // The installation captures lunar birthdays later.
            self.daemons =
                (0..DAEMONS).map(|_| self.start_capturing(Entity::User.required_fields())).collect();
        }
        for _ in 0..self.random.random_range(80..240) {
            match self.reconciliations.is_some() && self.random.random_ratio(1, 8) {
                true => self.reconciliation().await,
                false => self.step().await,
            }
            if let Some(lie) = self.lie.take() {
                return Verdict::Wrong(lie);
            }
        }
        match self.reconciliations.is_some() {
            true => self.settle_reconciliations().await,
            false => self.settle().await,
        }
    }

    fn start(&self) -> Daemon {
        self.start_capturing(self.stage.fields())
    }

    fn start_capturing(&self, fields: usize) -> Daemon {
        Daemon::start_capturing(&self.stage, self.lawful.then_some(&self.stage.leases), fields)
    }

    /// Starts a process in place of another one, perhaps with another configuration.
    fn start_next(&mut self) -> Daemon {
        let is_older = self.stage.is_lunar && self.random.random_ratio(1, 3);
        let fields = if is_older { Entity::User.required_fields() } else { self.stage.fields() };
        self.stage.log_line(|| format!("a daemon starts that captures {fields} fields"));
        self.start_capturing(fields)
    }

    async fn step(&mut self) {
        if self.stage.has_disasters && self.random.random_ratio(1, 30) {
            let source = self.random.random_range(0..SOURCES);
            return self.disaster(source);
        }
        if self.loses_grants && self.random.random_ratio(1, 15) {
            return self.grant_fault().await;
        }
        match self.random.random_range(0..1000) {
            0..540 => self.change(),
            540..690 => self.process_fault().await,
            690..760 => self.log_fault().await,
            760..820 => self.source_fault().await,
            820..840 => self.target_fault(),
            840..850 => self.full_log(),
            850..870 => replay(&self.stage, &mut self.random).await,
            870..880 => self.wait(500..6000).await,
            880..900 => refresh(&self.stage, &mut self.random).await,
            _ => self.wait(1..40).await,
        }
    }

    /// Commits the next change of the script at the sources.
    fn change(&mut self) {
        let groups = self.script.next(&mut self.random);
        self.restore_emptied(&groups);
        if let Some(reconciliations) = &mut self.reconciliations {
            reconciliations.past.note(&groups, self.script.claims(self.stage.layout));
        }
        for (source, group) in groups {
            self.stage.log_line(|| format!("source {source}: {group:?}"));
            self.stage.sources[source].commit(group);
        }
    }

    /// Plants drift or lets a reconciliation act, and lets time pass.
    async fn reconciliation(&mut self) {
        if let Some(reconciliations) = &mut self.reconciliations {
            self.lie = reconciliations.step(&self.stage, &mut self.random).await;
        }
        self.wait(1..2000).await;
    }

    async fn wait(&mut self, millis: std::ops::Range<u64>) {
        let millis = self.random.random_range(millis);
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }

    async fn process_fault(&mut self) {
        let daemon = self.random.random_range(0..DAEMONS);
        match self.random.random_range(0..10) {
            0..4 => {
                self.stage.log_line(|| format!("daemon {daemon} is killed"));
                self.daemons[daemon] = self.start_next();
            }
            4..5 => {
                self.stage.log_line(|| format!("daemon {daemon} is stopped"));
                let next = self.start_next();
                std::mem::replace(&mut self.daemons[daemon], next).stop().await;
            }
            _ => {
                let frozen = !self.daemons[daemon].is_frozen();
                self.stage.log_line(|| format!("daemon {daemon} frozen: {frozen}"));
                self.daemons[daemon].set_frozen(frozen);
            }
        }
    }

    async fn log_fault(&mut self) {
        let source = self.random.random_range(0..SOURCES);
        let (log, name) = (&self.stage.log, SOURCE_NAMES[source]);
        let messages = self.random.random_range(1..6);
        match self.random.random_range(0..20) {
            0..1 => self.wipe(source),
            1..2 => self.lose_registers(),
            2..6 => self.roll_back(source, messages),
            6..8 => {
                // The reader appends again, and the next wipe interrupts it.
                self.roll_back(source, messages * 6);
                self.change();
                self.wait(1..80).await;
                self.wipe(source);
            }
            8..14 => {
                let newest = log.messages(name).saturating_sub(messages);
                let messages = if self.random.random() { messages } else { newest };
                self.stage.log_line(|| format!("log {source} loses its oldest {messages}"));
                log.discard(name, messages);
            }
            14..18 => {
                let index = self.random.random_range(0..log.messages(name).max(1));
                self.stage.log_line(|| format!("log {source} loses message {index}"));
                log.lose(name, index);
            }
            _ => {
                self.stage.log_line(|| "all leases are forgotten".to_owned());
                self.stage.leases.forget();
            }
        }
    }

    fn wipe(&self, source: usize) {
        self.stage.log_line(|| format!("log {source} wiped"));
        self.stage.log.wipe(SOURCE_NAMES[source]);
    }

    /// Loses the register bucket, or everything that the log server keeps, as after the loss of its disk.
    fn lose_registers(&mut self) {
        let loses_all = self.random.random_ratio(2, 3);
        self.stage.log_line(|| format!("registers are lost, and the log server's disk: {loses_all}"));
        self.stage.registers.wipe();
        if loses_all {
            SOURCE_NAMES.iter().for_each(|name| self.stage.log.wipe(name));
            self.stage.leases.forget();
        }
    }

    fn roll_back(&self, source: usize, messages: usize) {
        self.stage.log_line(|| format!("log {source} rolled back by {messages}"));
        self.stage.log.roll_back(SOURCE_NAMES[source], messages);
        // Before its first transaction a source looks like any other.
        let is_first = |end: &LogEntry| end.envelope.resume.read_gtids().is_empty();
        if self.stage.has_disasters
            && self.stage.log.last(SOURCE_NAMES[source]).as_ref().is_some_and(is_first)
        {
            self.wipe(source);
        }
    }

    /// Fills the log for some time, or makes room again: a full log takes no message.
    fn full_log(&mut self) {
        let (source, full) = (self.random.random_range(0..SOURCES), self.random.random_ratio(1, 3));
        self.stage.log_line(|| format!("log {source} is full: {full}"));
        self.stage.log.set_full(SOURCE_NAMES[source], full);
    }

    async fn source_fault(&mut self) {
        let number = self.random.random_range(0..SOURCES);
        let source = &self.stage.sources[number];
        match self.random.random_range(0..10) {
            0..4 => {
                self.stage.log_line(|| format!("source {number} begins a new file"));
                source.rotate();
            }
            4..7 => {
                // All lanes have read the purged groups; the log is only a copy of the rest.
                let needed = self.resume_points(number);
                self.stage.log_line(|| format!("source {number} purges what lies before {needed:?}"));
                source.purge(&needed);
            }
            _ if !self.fails_over => {}
            _ => {
                for _ in 0..self.random.random_range(1..4) {
                    self.fail_over(number);
                    self.change();
                    self.wait(1..200).await;
                }
            }
        }
    }

    /// Makes a source lose its past.
    fn disaster(&mut self, number: usize) {
        let points = self.resume_points(number);
        if strike(&self.stage, number, &points, self.fails_over, &mut self.random) {
            self.script.restored(number, |shard| self.stage.sources[number].table(shard));
        }
    }

    fn fail_over(&mut self, number: usize) {
        // A lane that has not begun reads the tables; late requests of its first flush would arrive after that
        // (`docs/limits.md`).
        if self.store_kind == StoreKind::Documents && !self.all_have_begun(number) {
            return;
        }
        let source = &self.stage.sources[number];
        let back = self.random.random_ratio(1, 3) && source.fail_back(&self.resume_points(number));
        if !back {
            source.fail_over();
        }
        self.stage.log_line(|| format!("source {number} fails over, back to the former server: {back}"));
    }

    /// Takes a target away, or brings it back.
    fn target_fault(&mut self) {
        let number = self.random.random_range(0..TARGETS);
        let target = &self.stage.targets[number];
        let down = !target.is_down() && self.random.random_ratio(1, 3);
        self.stage.log_line(|| format!("target {number} is away: {down}"));
        target.set_down(down);
    }

    fn all_have_begun(&self, source: usize) -> bool {
        let begun = self.stage.progress(source).into_iter().filter(|(_, lane)| lane.position > Lsn::ZERO);
        begun.count() == TARGETS * LANES as usize
    }

    /// The point at which each lane of a source would enter the binlog; the origin for a lane that has not begun.
    fn resume_points(&self, source: usize) -> Vec<ResumePoint> {
        let mut points: Vec<_> =
            self.stage.progress(source).into_iter().map(|(_, progress)| progress.resume).collect();
        points.resize(TARGETS * LANES as usize, ResumePoint::default());
        points
    }
}
