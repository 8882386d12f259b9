//! The scan of one unit: all rows of a range of shards, read on both sides at once and cancelled out in one sketch.
//!
//! Chunks and pages need no common moment: a row that changed during the scan is one more candidate. The servers of
//! both sides are read at the same time, [`TABLES_AT_ONCE`] tables of each. A sketch begins small, so that it stays in
//! the processor's cache. When more differs than it can list, the unit is read again with all the memory that is
//! allowed, and then in slices, a part of the rows each time. Every table also has [`BUCKETS`] sums of fingerprints: a
//! listed difference that does not explain them is not believed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch_schemas::change::{TableIdentity, Value};
use anabranch_schemas::shard::ShardId;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::candidates::Candidates;
use super::foreign::UnownedRows;
use super::placement::{BOOK_BYTES, PlacementAudit, TableAudit};
use crate::error::{Code, Fault};
use crate::ports::{DerivedRows, RowSource};
use crate::projections::Projection;
use crate::records::{Claimed, DerivedRow};
use crate::retry::Attempts;
use crate::sketch::{ElementShape, Elements, Sketch, sum_place};
use crate::throttle::{Pace, SharedThrottle, Throttle, released};

/// Source rows of a chunk, and derived rows of a page: less than a second to read, and a few megabytes.
const CHUNK_ROWS: NonZeroUsize = NonZeroUsize::new(20_000).expect("it is not 0");
/// Tables of one server that are read at the same time, each over its own connection: while one table's rows are
/// buffered, the server reads the other.
pub const TABLES_AT_ONCE: usize = 2;
/// Time for which a rate-limited read runs in one piece: other clients of the server hardly wait.
const CHUNK: Duration = Duration::from_millis(50);
/// Bytes of the first sketch: it stays in the second-level cache of a processor's core, and lists some sixteen thousand
/// differences of users.
const FIRST_BYTES: usize = 1 << 20;
/// Parts that a slice is cut into when too much differs.
const CUT: u64 = 4;
/// Slices of a unit, at most: beyond them it is better to read the whole store again.
const SLICES_MAX: u64 = 64;
/// Groups of rows in each table that have their own sum of fingerprints.
const BUCKETS: u64 = 16;

/// Source and derived stores of one projection.
pub struct Sides<S, D> {
    pub projection: Projection,
    /// The servers for whole tables: replicas where there are some.
    pub sources: BTreeMap<String, Arc<S>>,
    /// Sources whose tables are read from a replica.
    pub replicated: BTreeSet<String>,
    /// The servers for single rows: those whose changes the lanes follow.
    pub primaries: BTreeMap<String, Arc<S>>,
    /// The derived stores, in the order of the projection's targets.
    pub targets: Vec<Arc<D>>,
    /// The placement audit, which sees source rows in the same scan; `None` = no audit.
    pub audit: Option<PlacementAudit>,
}

/// A range of shards, and the source tables whose shards lie in it.
#[derive(Debug, Clone)]
pub struct Unit {
    pub shards: RangeInclusive<ShardId>,
    pub tables: BTreeMap<ShardId, SourceTable>,
}

/// A captured table and its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceTable {
    pub source: String,
    pub identity: TableIdentity<'static>,
}

impl SourceTable {
    /// Returns the name of the table as `database.table`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.identity.database, self.identity.table)
    }
}

/// The result of scanning a unit or a slice of it.
#[derive(Debug)]
pub struct Scanned {
    /// Source rows of the whole unit, in its first slice; 0 in the later ones.
    pub rows_source: u64,
    /// The same rows by source; empty in the later slices.
    pub rows_of_sources: BTreeMap<String, u64>,
    /// Derived rows that the source rows should make.
    pub rows_expected: u64,
    pub rows_derived: u64,
    /// Derived rows of shards that no table of the unit has, in the first slice only: they are not among the
    /// candidates.
    pub unowned: UnownedRows,
    /// Rows of retired source tables by shard, in the first slice only. They are expected, and compared with nothing.
    pub retired: BTreeMap<ShardId, u64>,
    pub candidates: Candidates,
}

impl Scanned {
    fn new(
        (rows_of_sources, rows_expected, rows_derived): (BTreeMap<String, u64>, u64, u64),
        unowned: UnownedRows,
        retired: BTreeMap<ShardId, u64>,
        candidates: Candidates,
    ) -> Self {
        let rows_source = rows_of_sources.values().sum();
        Self { rows_source, rows_of_sources, rows_expected, rows_derived, unowned, retired, candidates }
    }
}

/// The reason why a unit has no result.
#[derive(Debug)]
pub enum Unscanned {
    /// This source table, or a derived store, could not be read.
    Unread { shard: Option<ShardId>, fault: Box<Fault> },
    /// More rows differ than can be listed.
    TooMuch,
}

/// The part of a unit's rows that one pass compares.
#[derive(Debug, Clone, Copy)]
struct Slice {
    number: u64,
    of: u64,
}

/// Returns the length of a projection's elements: nearly all keys need one element.
pub(super) fn shape(projection: &Projection) -> ElementShape {
    ElementShape { key_words: projection.key_words() }
}

impl<S: RowSource + 'static, D: DerivedRows + 'static> Sides<S, D> {
    /// Returns the scan of a unit. `memory` limits the sketch, its list and the audit's book together, in bytes.
    pub fn scan<'a>(&'a self, unit: &'a Unit, seed: u64, memory: usize, pace: &'a Pace) -> Scan<'a, S, D> {
        let book = self.audit.as_ref().map_or(0, |_| BOOK_BYTES.min(memory / 2));
        // Half of the rest is for the listed differences.
        let whole = ((memory - book) / 2).max(1);
        let left = vec![(Slice { number: 0, of: 1 }, FIRST_BYTES.min(whole))];
        Scan { sides: self, unit, seed, pace, whole, left, audit: self.audit.as_ref(), is_counted: false }
    }

    /// Reads all tables of the unit once; `None` when more differs than the sketch can list.
    async fn read(
        &self,
        unit: &Unit,
        seed: u64,
        bytes: usize,
        slice: Slice,
        (audit, pace): (Option<&PlacementAudit>, &Pace),
    ) -> Result<Option<Scanned>, Unscanned> {
        let shape = shape(&self.projection);
        let board = Arc::new(Mutex::new(UnitTotals {
            sketch: Sketch::within(bytes, shape.words(), seed ^ 1),
            sums: vec![0; self.projection.tables().len() * BUCKETS as usize],
            by_source: BTreeMap::new(),
            rows_expected: 0,
            rows_derived: 0,
            unowned: UnownedRows::default(),
            retired: BTreeMap::new(),
        }));
        let owned: Arc<BTreeSet<ShardId>> = Arc::new(unit.tables.keys().copied().collect());
        // All reads of one server share its throttle.
        let throttle = || SharedThrottle::new(Throttle::new(pace.rows_per_second, CHUNK, CHUNK_ROWS));
        let buffer = |throttle: &SharedThrottle| ScanBuffer {
            board: Arc::clone(&board),
            elements: Elements::new(shape, seed),
            slice,
            owned: Arc::clone(&owned),
            last: None,
            words: Vec::new(),
            sums: Vec::new(),
            unowned: UnownedRows::default(),
            retired: BTreeMap::new(),
            throttle: throttle.clone(),
            backpressure: pace.backpressure.clone(),
        };
        let mut scans = JoinSet::new();
        for (name, source) in &self.sources {
            let of_source = unit.tables.values().filter(|table| table.source == *name).cloned();
            let (tables, throttle) = (Queue::of(of_source), throttle());
            for _ in 0..TABLES_AT_ONCE {
                let (source, tables, audit) = (Arc::clone(source), tables.clone(), audit.cloned());
                let projection = self.projection.clone();
                scans.spawn(read_source(source, tables, projection, audit, buffer(&throttle)));
            }
        }
        for (target, place) in self.targets.iter().zip(0u32..) {
            let tables = Queue::of(self.projection.target_tables(place).map(|(table, _)| table));
            let throttle = throttle();
            for _ in 0..TABLES_AT_ONCE {
                let (target, tables, shards) = (Arc::clone(target), tables.clone(), unit.shards.clone());
                scans.spawn(read_derived(target, tables, shards, buffer(&throttle)));
            }
        }
        while let Some(ended) = scans.join_next().await {
            ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?;
        }
        let board = Arc::into_inner(board).expect("every reading has ended");
        let board = board.into_inner().unwrap_or_else(PoisonError::into_inner);
        let UnitTotals { sketch, sums, by_source, rows_expected, rows_derived, unowned, retired } = board;
        let Some(difference) = sketch.list() else { return Ok(None) };
        let not_understood = |found: &str| Unscanned::Unread {
            shard: None,
            fault: Box::new(Fault::new(Code::Internal, "the reconciliation's sketch", found)),
        };
        if explained(difference.iter(), sums.len()) != sums {
            return Err(not_understood("what it lists does not explain the sums of its tables"));
        }
        let candidates = Candidates::new(difference, &self.projection)
            .map_err(|_| not_understood("it lists parts of a key that are not whole"))?;
        let counts = (by_source, rows_expected, rows_derived);
        Ok(Some(Scanned::new(counts, unowned, retired, candidates)))
    }
}

/// The scan of a unit, as a whole or slice by slice: it keeps the differences of one slice at a time.
pub struct Scan<'a, S, D> {
    sides: &'a Sides<S, D>,
    unit: &'a Unit,
    seed: u64,
    pace: &'a Pace,
    /// Bytes of a sketch, at most.
    whole: usize,
    /// Slices that are left, the next one last, each with the bytes of its sketch.
    left: Vec<(Slice, usize)>,
    /// The placement audit, for the first pass, which sees all rows.
    audit: Option<&'a PlacementAudit>,
    /// Whether a slice was read, and all source rows were counted with it.
    is_counted: bool,
}

impl<S: RowSource + 'static, D: DerivedRows + 'static> Scan<'_, S, D> {
    /// Returns the next slice, cut smaller until its differences can be listed; `None` after the last.
    pub async fn next(&mut self) -> Result<Option<Scanned>, Unscanned> {
        while let Some((slice, bytes)) = self.left.pop() {
            let audit_and_pace = (self.audit.take(), self.pace);
            if let Some(mut scanned) =
                self.sides.read(self.unit, self.seed, bytes, slice, audit_and_pace).await?
            {
                if std::mem::replace(&mut self.is_counted, true) {
                    scanned.rows_source = 0;
                    scanned.rows_of_sources = BTreeMap::new();
                    scanned.unowned = UnownedRows::default();
                    scanned.retired = BTreeMap::new();
                }
                return Ok(Some(scanned));
            }
            if bytes < self.whole {
                self.left.push((slice, self.whole));
            } else if slice.of < SLICES_MAX {
                self.left.extend(slice.cut().map(|slice| (slice, bytes)));
            } else {
                return Err(Unscanned::TooMuch);
            }
        }
        Ok(None)
    }
}

impl Slice {
    /// Returns the rows of a slice as [`CUT`] smaller slices.
    fn cut(self) -> impl Iterator<Item = Self> {
        let Self { number, of } = self;
        (0..CUT).rev().map(move |part| Self { number: number + part * of, of: of * CUT })
    }
}

/// The results that all reads of a unit share.
struct UnitTotals {
    sketch: Sketch,
    /// Fingerprints of the source side less those of the derived side, by table and bucket.
    sums: Vec<u64>,
    /// Source rows by source.
    by_source: BTreeMap<String, u64>,
    rows_expected: u64,
    rows_derived: u64,
    unowned: UnownedRows,
    retired: BTreeMap<ShardId, u64>,
}

/// Returns the sums of fingerprints that these differences make.
fn explained<'e>(difference: impl Iterator<Item = (&'e [u64], bool)>, length: usize) -> Vec<u64> {
    let mut sums = vec![0u64; length];
    for (element, is_added) in difference {
        let Some((place, fingerprint)) = Elements::sum_place(element, BUCKETS) else { continue };
        if let Some(sum) = sums.get_mut(place) {
            *sum = if is_added { sum.wrapping_add(fingerprint) } else { sum.wrapping_sub(fingerprint) };
        }
    }
    sums
}

/// The rows of one read until it hands over a whole chunk or page: after a failure in the middle it forgets the part.
struct ScanBuffer {
    board: Arc<Mutex<UnitTotals>>,
    elements: Elements,
    slice: Slice,
    /// Shards of the unit's source tables.
    owned: Arc<BTreeSet<ShardId>>,
    /// The shard of the row before, and whether it is in `owned`: rows come shard by shard.
    last: Option<(ShardId, bool)>,
    words: Vec<u64>,
    sums: Vec<(usize, u64)>,
    unowned: UnownedRows,
    retired: BTreeMap<ShardId, u64>,
    throttle: SharedThrottle,
    backpressure: watch::Receiver<bool>,
}

/// Tables that the reads of one server have left. Clones share it.
#[derive(Clone)]
struct Queue<T>(Arc<Mutex<VecDeque<T>>>);

impl<T> Queue<T> {
    fn of(tables: impl Iterator<Item = T>) -> Self {
        Self(Arc::new(Mutex::new(tables.collect())))
    }

    fn next(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Source,
    Derived,
}

impl ScanBuffer {
    /// Waits until more may be read; returns how many rows.
    async fn ready(&mut self) -> NonZeroUsize {
        released(&mut self.backpressure).await;
        self.throttle.take().await
    }

    fn put(&mut self, row: &Claimed<'_>) {
        let is_owned = match self.last {
            Some((shard, is_owned)) if shard == row.shard => is_owned,
            _ => self.owned.contains(&row.shard),
        };
        self.last = Some((row.shard, is_owned));
        if !is_owned {
            self.unowned.count(row.table, (Some(row.shard), Some(row.shard.as_u64())), row.key);
            return;
        }
        let Self { elements, words, sums, slice, .. } = self;
        let begin = words.len();
        let fingerprint = elements.of(row, |element| words.extend_from_slice(element));
        if fingerprint % slice.of != slice.number {
            words.truncate(begin);
            return;
        }
        sums.push((sum_place(row.table, fingerprint, BUCKETS), fingerprint));
    }

    /// Adds what was read to the totals; `of_source` counts rows of this source.
    fn hand_over(&mut self, side: Side, of_source: Option<(&str, u64)>) {
        let shared = Arc::clone(&self.board);
        let mut board = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let board = &mut *board;
        for element in self.words.chunks_exact(self.elements.words()) {
            match side {
                Side::Source => board.sketch.add(element),
                Side::Derived => board.sketch.subtract(element),
            }
        }
        for (place, fingerprint) in &self.sums {
            let sum = &mut board.sums[*place];
            *sum = match side {
                Side::Source => sum.wrapping_add(*fingerprint),
                Side::Derived => sum.wrapping_sub(*fingerprint),
            };
        }
        let rows = self.sums.len() as u64;
        match side {
            Side::Source => board.rows_expected += rows,
            Side::Derived => board.rows_derived += rows,
        }
        if let Some((source, rows)) = of_source {
            *board.by_source.entry(source.to_owned()).or_default() += rows;
        }
        board.unowned.append(std::mem::take(&mut self.unowned));
        for (shard, rows) in std::mem::take(&mut self.retired) {
            *board.retired.entry(shard).or_default() += rows;
        }
        self.forget();
    }

    fn forget(&mut self) {
        self.words.clear();
        self.sums.clear();
        self.unowned = UnownedRows::default();
        self.retired.clear();
    }
}

async fn read_source<S: RowSource>(
    source: Arc<S>,
    tables: Queue<SourceTable>,
    projection: Projection,
    audit: Option<PlacementAudit>,
    mut buffer: ScanBuffer,
) -> Result<(), Unscanned> {
    while let Some(SourceTable { source: name, identity: table }) = tables.next() {
        let mut placement = audit.as_ref().map(|audit| audit.table_audit(&table));
        let unread = |fault| Unscanned::Unread { shard: Some(table.shard), fault: Box::new(fault) };
        let mut after = None;
        loop {
            let rows = buffer.ready().await;
            let mut attempts = Attempts::default();
            let (count, next) = loop {
                let mut count = 0;
                let mut visit = |row: &[Value<'_>]| {
                    count += 1;
                    projection.claims(&table, row, |row| buffer.put(&row));
                    if let Some(placement) = &mut placement {
                        placement.row(row);
                    }
                };
                match source.page(&table, after.as_ref(), rows, &mut visit).await {
                    Ok(next) => break (count, next),
                    Err(fault) => attempts.failed(fault).await.map_err(unread)?,
                }
                buffer.forget();
                placement.iter_mut().for_each(TableAudit::forget);
            };
            buffer.throttle.give_back(rows.get().saturating_sub(count));
            placement.iter_mut().for_each(TableAudit::hand_over);
            buffer.hand_over(Side::Source, Some((name.as_str(), count as u64)));
            after = next;
            if after.is_none() {
                break;
            }
        }
    }
    Ok(())
}

async fn read_derived<D: DerivedRows>(
    target: Arc<D>,
    tables: Queue<u32>,
    shards: RangeInclusive<ShardId>,
    mut buffer: ScanBuffer,
) -> Result<(), Unscanned> {
    let unread = |fault| Unscanned::Unread { shard: None, fault: Box::new(fault) };
    while let Some(table) = tables.next() {
        let mut after = None;
        loop {
            let rows = buffer.ready().await;
            let mut attempts = Attempts::default();
            after = loop {
                let mut visit = |row: DerivedRow<'_>| match row {
                    DerivedRow::Claimed(row) => buffer.put(&row),
                    DerivedRow::Stray(row) => buffer.unowned.count(row.table, (None, row.shard), row.key),
                    DerivedRow::Retired(row) => *buffer.retired.entry(row.shard).or_default() += 1,
                };
                match target.page(table, shards.clone(), after.as_ref(), rows, &mut visit).await {
                    Ok(next) => break next,
                    Err(fault) => attempts.failed(fault).await.map_err(unread)?,
                }
                buffer.forget();
            };
            let kept = buffer.retired.values().sum::<u64>();
            let read = buffer.sums.len() as u64 + buffer.unowned.rows() + kept;
            buffer.throttle.give_back(rows.get().saturating_sub(read as usize));
            buffer.hand_over(Side::Derived, None);
            if after.is_none() {
                break;
            }
        }
    }
    Ok(())
}
