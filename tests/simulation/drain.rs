//! The cache of mapping rows under seeded faults: flushes, fills, evictions, two drains that are killed and frozen at
//! any step, a cache that is emptied, restarted and replaced by a lagging replica, a target's clock that is set back.
//!
//! An answer from the cache is a complete set, and never older than a change that was drained before the request. In
//! the quiet, each entry equals the set of its mapping rows, and readers believe the cache. Reconciliations run beside
//! it all: without damage they find nothing; in the quiet they find all damage and remove nothing else.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_connectors::memory::{Freezer, MemoryCache, MemoryMapping, Weather};
use anabranch_pipeline::composition::{CacheParts, drain_all};
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::lookup::{
    CACHED_CLAIMS_MAX, CacheAudit, CacheState, Origin, QueryBounds, Reader, decode, encode,
};
use anabranch_pipeline::ports::{CodeCache, Outbox};
use anabranch_pipeline::records::{Audited, DeviceClaim, EntryDrift, TimeToLive};
use anabranch_schemas::serial::{CodeKind, StoredCode};
use anabranch_schemas::shard::ShardId;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::seeds::Verdict;

const CODES: usize = 4;
const DRAINS: usize = 2;
const READERS: usize = 2;
/// Virtual time after which a quiet cache that is still wrong counts as stuck.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Time in which everything under way arrives.
const LATE: Duration = Duration::from_secs(5);
const RETRY_PAUSE: Duration = Duration::from_millis(20);
const CHECK_INTERVAL: Duration = Duration::from_millis(300);
const TIME: TimeToLive = TimeToLive { full: Duration::from_secs(3600), empty: Duration::from_secs(3600) };

/// State that outlives every process.
#[derive(Clone)]
struct Stage {
    cache: MemoryCache,
    mapping: MemoryMapping,
    codes: Arc<Vec<StoredCode>>,
    /// Outbox rows: id, code, and the version of the flush.
    noted: Arc<Mutex<Vec<(u64, usize, u64)>>>,
    wrong: Arc<Mutex<Vec<String>>>,
}

/// A set of devices that carry the version; version 0 is the empty set.
fn set(version: u64) -> Vec<DeviceClaim> {
    let shard = ShardId::of("source-a", "inventory_0", "serial_code_00", 0);
    let device = |name: &str| DeviceClaim {
        shard,
        uuid: format!("{version}-{name}").into_bytes().into(),
        kind: CodeKind::BoxNo,
    };
    if version == 0 { Vec::new() } else { vec![device("a"), device("b")] }
}

/// The version of a set; `None` when the set is not complete.
fn version(claims: &[DeviceClaim]) -> Option<u64> {
    let Some(first) = claims.first() else { return Some(0) };
    let version = std::str::from_utf8(&first.uuid).ok()?.strip_suffix("-a")?.parse().ok()?;
    (claims == set(version)).then_some(version)
}

impl Stage {
    /// The newest version of a code that was drained.
    fn drained(&self, code: usize) -> u64 {
        let noted = self.noted.lock().expect("nothing panics in here");
        // Each flush of a code has a higher version than the one before it, so the search begins with the newest.
        let mut newest = noted.iter().rev();
        let drained = newest.find(|(id, of, _)| *of == code && self.mapping.was_drained(*id));
        drained.map_or(0, |(_, _, version)| *version)
    }

    fn accuse(&self, what: String) {
        self.wrong.lock().expect("nothing panics in here").push(what);
    }

    fn start_drain(&self) -> Drainer {
        let (stage, freezer) = (self.clone(), Freezer::default());
        let draining = async move {
            let never = CancellationToken::new();
            loop {
                let Stage { cache, mapping, .. } = &stage;
                let outboxes = std::slice::from_ref(mapping);
                let parts = CacheParts { cache, outboxes, mapping, time_to_live: TIME };
                // Starts again after each end, as the supervisor does. No lease keeps two drains from one cache here.
                let _ended = drain_all(&parts, || (), &never).await;
                sleep(RETRY_PAUSE).await;
            }
        };
        let frozen = freezer.clone();
        let task = tokio::spawn(async move { frozen.run(draining).await });
        Drainer { freezer, _task: AbortOnDropHandle::new(task) }
    }

    /// Starts a process that looks codes up.
    fn start_reader(&self, seed: u64) -> AbortOnDropHandle<()> {
        let (stage, mut random) = (self.clone(), StdRng::seed_from_u64(seed));
        AbortOnDropHandle::new(tokio::spawn(async move {
            let bounds = QueryBounds { at_once: 2, queued: 8, codes: 8 };
            let reader = Reader::new(Some((stage.cache.clone(), TIME)), stage.mapping.clone(), bounds);
            let mut check_at = Instant::now();
            loop {
                if check_at <= Instant::now() {
                    reader.check_cache(std::slice::from_ref(&stage.mapping)).await;
                    check_at = Instant::now() + CHECK_INTERVAL;
                }
                stage.lookup(&reader, random.random_range(0..CODES)).await;
                sleep(Duration::from_millis(random.random_range(1..20))).await;
            }
        }))
    }

    /// Starts a task that compares the cache again and again.
    fn start_audits(&self) -> AbortOnDropHandle<()> {
        let stage = self.clone();
        AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                let (audited, _) = stage.audit().await;
                if audited.found() > 0 {
                    stage.accuse(format!("an audit finds what is none: {audited:?}"));
                }
                sleep(CHECK_INTERVAL / 2).await;
            }
        }))
    }

    async fn audit(&self) -> (Audited, Option<Fault>) {
        let Self { cache, mapping, .. } = self;
        let outboxes = std::slice::from_ref(mapping);
        let work = CacheAudit { cache, outboxes, mapping, time_to_live: TIME, repairs_max: u64::MAX };
        anabranch_tests::audited(&work).await
    }

    /// Damages the entries of some codes; returns the drift that an audit must find.
    fn damage(&self, random: &mut StdRng) -> BTreeMap<EntryDrift, u64> {
        let mut damages = BTreeMap::new();
        for code in self.codes.iter() {
            if random.random() {
                continue;
            }
            let right = self.mapping.set(code);
            let (drift, set, time) = match random.random_range(0..5) {
                0 => (EntryDrift::Unreadable, None, TIME.full),
                // No row ever had this set.
                1 if right.is_empty() => (EntryDrift::Orphan, Some(set(1)), TIME.full),
                1 => (EntryDrift::Stale, Some(set(u64::MAX)), TIME.full),
                2 if right.is_empty() => continue,
                2 => (EntryDrift::Stale, Some(right[..1].to_vec()), TIME.full),
                3 => (EntryDrift::Lasting, Some(right), Duration::MAX),
                _ => {
                    self.cache.evict(code);
                    self.cache.block(code);
                    *damages.entry(EntryDrift::Blocked).or_default() += 1;
                    continue;
                }
            };
            self.cache.plant(code, set.map_or(b"damaged".to_vec(), |set| encode(&set)), time);
            *damages.entry(drift).or_default() += 1;
        }
        damages
    }

    async fn lookup(&self, reader: &Reader<MemoryCache, MemoryMapping>, code: usize) {
        let drained = self.drained(code);
        let Ok(found) = reader.read(std::slice::from_ref(&self.codes[code]), CACHED_CLAIMS_MAX).await else {
            return;
        };
        for (claims, origin) in found {
            match (version(&claims.claims), origin) {
                (None, _) => self.accuse(format!("code {code}: {:?} is no complete set", claims.claims)),
                (Some(version), Origin::Cache) if version < drained => {
                    self.accuse(format!(
                        "code {code}: version {version} from the cache, {drained} was drained"
                    ));
                }
                _ => {}
            }
        }
    }

    /// Whether the outbox is drained and the cache is believed; otherwise the reason why not.
    async fn settled(&self) -> Result<(), String> {
        let failed = |fault| format!("{fault}");
        if !self.mapping.pending(1).await.map_err(failed)?.is_empty() {
            return Err("the outbox is not drained".to_owned());
        }
        let life = self.cache.incarnation().await.map_err(failed)?;
        let state = CacheState::read(&self.mapping).await.map_err(failed)?;
        if !state.is_believed(&life) {
            return Err(format!("life {life} is not believed: {state:?}"));
        }
        Ok(())
    }

    async fn differences(&self) -> Option<String> {
        let cached = self.cache.get(&self.codes).await.ok()?;
        let mut entries = self.codes.iter().zip(cached.entries).enumerate();
        entries.find_map(|(number, (code, entry))| {
            let (found, expected) = (decode(&entry?), self.mapping.set(code));
            (found.as_ref() != Ok(&expected)).then(|| format!("code {number}: {found:?}, not {expected:?}"))
        })
    }
}

/// A process that drains; dropping it kills it.
struct Drainer {
    freezer: Freezer,
    _task: AbortOnDropHandle<()>,
}

struct World {
    stage: Stage,
    random: StdRng,
    versions: [u64; CODES],
    drains: Vec<Drainer>,
    readers: Vec<AbortOnDropHandle<()>>,
    audits: AbortOnDropHandle<()>,
    replica: MemoryCache,
}

impl World {
    async fn step(&mut self) {
        let Self { stage, random, .. } = self;
        match random.random_range(0..1000) {
            0..350 => self.flush(),
            350..400 => {
                let one = random.random_range(0..DRAINS);
                self.drains[one] = stage.start_drain();
            }
            400..450 => {
                let freezer = &self.drains[random.random_range(0..DRAINS)].freezer;
                freezer.set(!freezer.is_frozen());
            }
            450..480 => {
                let one = random.random_range(0..READERS);
                self.readers[one] = stage.start_reader(random.random());
            }
            480..540 => stage.cache.evict(&stage.codes[random.random_range(0..CODES)]),
            540..550 => stage.cache.lose_all(),
            // The replica has an earlier state of the cache.
            550..640 => self.replica = stage.cache.copy(),
            640..665 => stage.cache.fail_over_to(&self.replica),
            665..670 => stage.cache.fail_over_to(&MemoryCache::default()),
            670..675 => {
                let code = random.random_range(0..CODES);
                self.versions[code] += 1;
                let after = set(self.versions[code]);
                stage.mapping.flush_without_cache(vec![(stage.codes[code].clone(), after)]);
            }
            675..680 => stage.mapping.set_clock_back(Duration::from_secs(random.random_range(1..3600))),
            680..690 => sleep(Duration::from_millis(random.random_range(300..3000))).await,
            _ => sleep(Duration::from_millis(random.random_range(1..30))).await,
        }
    }

    fn flush(&mut self) {
        let first = self.random.random_range(0..CODES);
        let count = self.random.random_range(1..3);
        let codes: Vec<usize> = (first..first + count).map(|code| code % CODES).collect();
        let sets = codes.iter().map(|code| {
            self.versions[*code] += 1;
            (self.stage.codes[*code].clone(), set(self.versions[*code]))
        });
        let id = self.stage.mapping.flush(sets.collect());
        let mut noted = self.stage.noted.lock().expect("nothing panics in there");
        noted.extend(codes.into_iter().map(|code| (id, code, self.versions[code])));
    }

    async fn run(mut self, weather: &Weather) -> Verdict {
        for _ in 0..self.random.random_range(100..400) {
            self.step().await;
        }
        weather.clear();
        self.drains.iter().for_each(|drain| drain.freezer.set(false));
        let deadline = Instant::now() + WAIT_MAX;
        while let Err(why) = self.stage.settled().await {
            if Instant::now() > deadline {
                return Verdict::Stuck(why);
            }
            sleep(RETRY_PAUSE).await;
        }
        let wrong = self.stage.wrong.lock().expect("nothing panics in there").first().cloned();
        if let Some(wrong) = wrong {
            return Verdict::Wrong(wrong);
        }
        if let Some(differs) = self.stage.differences().await {
            return Verdict::Wrong(differs);
        }
        self.reconciliation().await
    }

    /// Audits a quiet cache in which some entries were damaged.
    async fn reconciliation(mut self) -> Verdict {
        self.readers.clear();
        drop(self.audits);
        // Work of readers and drains ends by itself, perhaps in another round of a drain.
        sleep(LATE).await;
        while self.stage.settled().await.is_err() {
            sleep(RETRY_PAUSE).await;
        }
        let damaged = self.stage.damage(&mut self.random);
        let (audited, fault) = self.stage.audit().await;
        let count = damaged.values().sum::<u64>();
        if fault.is_some() || !audited.is_judged() || audited.drift != damaged || audited.repaired != count {
            return Verdict::Wrong(format!("{damaged:?} was damaged, {audited:?}"));
        }
        self.stage.differences().await.map_or(Verdict::Equal, Verdict::Wrong)
    }
}

/// Runs one seed.
pub fn run(seed: u64) -> Verdict {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O");
    runtime.block_on(async {
        let mut random = StdRng::seed_from_u64(seed);
        let weather = Weather::stormy(seed ^ 0xcac4e, if random.random_ratio(1, 4) { 30 } else { 4 });
        let code =
            |number: usize| StoredCode::exact(format!("BOX-{number}").as_bytes()).expect("it is short");
        let stage = Stage {
            cache: MemoryCache::new(weather.clone()),
            mapping: MemoryMapping::new(weather.clone()),
            codes: Arc::new((0..CODES).map(code).collect()),
            noted: Arc::default(),
            wrong: Arc::default(),
        };
        let drains = (0..DRAINS).map(|_| stage.start_drain()).collect();
        let readers = (0..READERS).map(|_| stage.start_reader(random.random())).collect();
        let replica = stage.cache.copy();
        let audits = stage.start_audits();
        let world = World { stage, random, versions: [0; CODES], drains, readers, audits, replica };
        world.run(&weather).await
    })
}
