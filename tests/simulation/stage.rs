//! The twins of one run, and one attempt of a reader or lane on them, in the product's composition.

use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use anabranch_connectors::memory::{
    MemoryLeases, MemoryLog, MemoryRegisters, MemorySource, MemoryStore, MemoryTarget, StoreKind, StoredRow,
    Weather,
};
use anabranch_pipeline::config::{BirthdayTables, Limits, ProjectionConfig, ProjectionKind};
use anabranch_pipeline::deliver::{RewindSource, Shared};
use anabranch_pipeline::ports::{BinlogStart, LogMessage, Register};
use anabranch_pipeline::projections::Projection;
use anabranch_pipeline::records::{Cell, LaneId, Progress};
use anabranch_schemas::birthday::Layout;
use anabranch_schemas::celebration::Calendar;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use tokio::time::Instant;

use crate::script::{self, Claim, Key, SOURCES, TARGETS};

pub const LANES: u32 = 2;
pub const SOURCE_NAMES: [&str; SOURCES] = ["source-0", "source-1"];
/// Direct feeds of a source in each daemon, fewer than it has lanes.
pub const DIRECT_FEEDS: usize = 2;

/// Source, target and number of a lane.
pub type LaneAt = (usize, usize, u32);

/// Table, shard and key columns of a derived row.
pub type RowClaim = (u32, ShardId, Box<[Cell]>);

/// State that outlives every process.
#[derive(Debug)]
pub struct Stage {
    pub weather: Weather,
    pub sources: Vec<MemorySource>,
    pub log: MemoryLog,
    pub registers: MemoryRegisters,
    pub targets: Vec<MemoryTarget>,
    pub keeps_documents: bool,
    pub leases: MemoryLeases,
    pub layout: Layout,
    pub limits: Limits,
    /// Whether rows change by text at times; an operator then has all tables of the source read again.
    pub by_text: bool,
    /// Whether lunar tables are derived instead of solar ones.
    pub is_lunar: bool,
    /// Whether sources lose their history at times; an operator then begins them anew.
    pub has_disasters: bool,
    /// Number of disasters of each source so far, which an operator's request names.
    pub disasters: [AtomicU64; SOURCES],
    /// Held while an operator asks for a new beginning of the source.
    pub operators: [tokio::sync::Mutex<()>; SOURCES],
    /// Tasks that have stopped, by the supervisor's rules.
    pub stopped: Mutex<Vec<String>>,
    /// State that the lanes of a source share, for a process without lanes.
    pub without_lanes: Shared,
    /// Keys whose derived rows were changed by hand, each with the last time.
    touched: Mutex<BTreeMap<Key, Instant>>,
    /// Whether steps are printed.
    is_logged: bool,
    began: Instant,
}

/// Content of the log and the targets.
#[derive(Debug, PartialEq, Eq)]
pub struct Stored {
    messages: Vec<LogMessage>,
    registers: BTreeMap<String, Register>,
    /// Rows and progress of each target, as text.
    targets: Vec<String>,
}

/// A projection and the tables of each (target, lane); the same in every run.
struct Projected {
    projection: Projection,
    owned: BTreeMap<(u32, u32), Arc<BTreeSet<u32>>>,
}

fn projected(layout: Layout, is_lunar: bool) -> &'static Projected {
    static PROJECTED: [OnceLock<Projected>; 4] = [const { OnceLock::new() }; 4];
    let (calendar, name) = match is_lunar {
        false => (Calendar::Solar, "birthday"),
        true => (Calendar::Lunar, "lunar_birthday"),
    };
    let place = usize::from(layout == Layout::ByUser) + 2 * usize::from(is_lunar);
    PROJECTED[place].get_or_init(|| {
        let tables = BirthdayTables {
            calendar,
            captures_type: is_lunar,
            layout,
            databases: NonZeroU32::new(2).expect("not zero"),
            database: "birthday_{db:02}".to_owned(),
            table: format!("{name}_{{mmdd}}"),
        };
        let projection = Projection::new(&ProjectionConfig {
            name: "birthday".to_owned(),
            lanes: NonZeroU32::new(LANES).expect("not zero"),
            targets: (0..TARGETS).map(target_name).collect(),
            kind: ProjectionKind::Birthday(tables),
        });
        let mut owned: BTreeMap<(u32, u32), BTreeSet<u32>> = BTreeMap::new();
        for (index, table) in (0..).zip(projection.tables()) {
            owned.entry((table.target, table.lane)).or_default().insert(index);
        }
        let owned = owned.into_iter().map(|(lane, tables)| (lane, Arc::new(tables))).collect();
        Projected { projection, owned }
    })
}

impl Stage {
    pub fn new(
        weather: Weather,
        store_kind: StoreKind,
        layout: Layout,
        limits: Limits,
        is_logged: bool,
    ) -> Self {
        Self {
            sources: (0..SOURCES).map(|_| MemorySource::new(weather.clone())).collect(),
            log: MemoryLog::new(weather.clone(), 8),
            registers: MemoryRegisters::new(weather.clone()),
            targets: (0..TARGETS).map(|_| MemoryTarget::new(weather.clone(), store_kind)).collect(),
            keeps_documents: store_kind == StoreKind::Documents,
            leases: MemoryLeases::new(),
            weather,
            layout,
            limits,
            by_text: false,
            is_lunar: false,
            has_disasters: false,
            disasters: Default::default(),
            operators: Default::default(),
            stopped: Mutex::default(),
            without_lanes: Shared::new(DIRECT_FEEDS),
            touched: Mutex::default(),
            is_logged,
            began: Instant::now(),
        }
    }

    /// A stage of tables without faults.
    pub fn calm(layout: Layout, limits: Limits) -> Self {
        Self::new(Weather::calm(), StoreKind::Rows, layout, limits, false)
    }

    pub fn log_line(&self, what: impl FnOnce() -> String) {
        if self.is_logged {
            println!("{:>6} ms  {}", self.began.elapsed().as_millis(), what());
        }
    }

    /// Everything that tasks have written.
    pub fn stored(&self) -> Stored {
        Stored {
            messages: SOURCE_NAMES.iter().flat_map(|source| self.log.kept(source)).collect(),
            registers: self.registers.all(),
            targets: self.targets.iter().map(MemoryTarget::stored).collect(),
        }
    }

    /// Progress of the lanes of a source that have a row, on all targets.
    pub fn progress(&self, source: usize) -> Vec<(LaneId, Progress)> {
        self.targets.iter().flat_map(|target| target.progress(SOURCE_NAMES[source])).collect()
    }

    pub fn projection(&self) -> &'static Projection {
        &projected(self.layout, self.is_lunar).projection
    }

    /// Number of a user's fields that the projection reads.
    pub fn fields(&self) -> usize {
        self.projection().fields()
    }

    /// Changes rows of a target by hand.
    pub fn tamper(&self, target: usize, change: impl FnOnce(&mut BTreeMap<RowClaim, StoredRow>)) {
        let (mut touched, shards) = (self.touched.lock().expect("nothing panics in there"), script::shards());
        self.targets[target].tamper(|rows| {
            let before = rows.clone();
            change(rows);
            let has_changed = |claim: &&RowClaim| before.get(*claim) != rows.get(*claim);
            for (_, shard, key) in before.keys().chain(rows.keys()).filter(has_changed) {
                let [Cell::UInt(user)] = &**key else { panic!("a birthday row has a number, not {key:?}") };
                touched.insert((shards.get(shard).copied().unwrap_or(usize::MAX), *user), Instant::now());
            }
        });
    }

    /// The last time at which derived rows of a key were changed by hand.
    pub fn touched(&self, key: Key) -> Option<Instant> {
        self.touched.lock().expect("nothing panics in there").get(&key).copied()
    }

    /// Contents of the derived tables.
    pub fn found(&self) -> BTreeSet<Claim> {
        self.found_with_versions().into_iter().map(|(claim, _)| claim).collect()
    }

    pub fn found_with_versions(&self) -> Vec<(Claim, Lsn)> {
        let (shards, tables) = (script::shards(), self.projection().tables());
        let mut found = Vec::new();
        for (target, server) in self.targets.iter().enumerate() {
            for ((table, shard, key), (version, values)) in server.rows() {
                let ([Cell::UInt(user)], [Cell::Bytes(_), ..]) = (&*key, &*values) else {
                    panic!("a birthday row is a number and a text, not {key:?} and {values:?}")
                };
                let text = |cell: &Cell| match cell {
                    Cell::Bytes(text) => String::from_utf8_lossy(text).into_owned(),
                    other => panic!("{other:?} is no text"),
                };
                let derived = &tables[table as usize].derived;
                let name = format!("{}.{}", derived.database, derived.table);
                let shard = shards.get(&shard).copied().unwrap_or(usize::MAX);
                let day = values.iter().map(text).collect::<Vec<_>>().join(" ");
                found.push(((target, name, shard, *user, day), version));
            }
        }
        found
    }

    pub fn past(&self, source: usize) -> RewindSource<'_, MemorySource, MemoryLog, MemoryRegisters> {
        let (name, connector) = (SOURCE_NAMES[source], &self.sources[source]);
        RewindSource {
            source: name,
            connector,
            log: &self.log,
            registers: &self.registers,
            start: &BinlogStart::Earliest,
        }
    }

    /// The tables of a lane.
    pub fn owned(&self, (_, target, number): LaneAt) -> Arc<BTreeSet<u32>> {
        projected(self.layout, self.is_lunar).owned[&(target as u32, number)].clone()
    }

    pub fn store(&self, lane: LaneAt) -> MemoryStore {
        self.targets[lane.1].lane(lane_id(lane), self.owned(lane))
    }
}

/// The lanes of a source.
pub fn lanes_of(source: usize) -> impl Iterator<Item = LaneAt> {
    (0..TARGETS).flat_map(move |target| (0..LANES).map(move |lane| (source, target, lane)))
}

pub fn lane_id((source, target, lane): LaneAt) -> LaneId {
    let (target, source) = (target_name(target), SOURCE_NAMES[source].to_owned());
    LaneId { projection: "birthday".to_owned(), target, source, lane }
}

pub fn lane_at(id: &LaneId) -> LaneAt {
    let source = SOURCE_NAMES.iter().position(|name| *name == id.source).expect("a source of the run");
    (source, target_at(&id.target), id.lane)
}

pub fn target_at(name: &str) -> usize {
    (0..TARGETS).find(|target| target_name(*target) == name).expect("a target of the run")
}

fn target_name(target: usize) -> String {
    format!("target-{target}")
}

pub fn limits(batch_bytes: usize, flush_rows: usize, keep_interval: Duration) -> Limits {
    let number = |number| NonZeroUsize::new(number).expect("not zero");
    Limits {
        batch_bytes: number(batch_bytes),
        in_flight_messages: number(8),
        in_flight_bytes: number(1 << 20),
        flush_rows: number(flush_rows),
        statement_rows: number(10),
        position_interval: Duration::from_millis(200),
        keep_interval,
        heartbeat: Duration::from_secs(1),
        retry_budget: Duration::from_secs(1),
        shutdown: Duration::from_secs(1),
        direct_feeds: number(DIRECT_FEEDS),
        // With a rate, chunks are written in parts.
        refresh_rows_per_second: NonZeroU64::new(1_000_000).filter(|_| flush_rows.is_multiple_of(2)),
    }
}
