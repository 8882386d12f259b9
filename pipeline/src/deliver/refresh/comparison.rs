//! A lane compares a table that waits to be read again with its derived rows, and writes only what differs.
//!
//! An online schema tool swaps a table for a copy of it, and a restored server has most rows of before. Little differs,
//! so a lane that wrote and swept every row would change them all for nothing. Here the lane reads the table in the
//! chunks of a refresh, and adds what each row claims to a sketch of the reconciliation. Then it subtracts the derived
//! rows of the table's shard. When nothing is left, the wait of the table ends, with a commit that changes no row. When
//! some keys are left, the lane reads and replaces their rows as a repair does, and compares anew.
//!
//! A table waits because of its entry in `rereads`, or because every table does. The *base* of its comparison is the
//! low watermark of its first chunk.
//!
//! Why the end of the wait is right:
//!
//! - A chunk counts only when a refresh could write it: its low watermark is not below the base or the entry, the lane
//!   has noted every claim that changed since, and the lane has passed its high watermark.
//! - A claim that the lane has noted above the base is left out on both sides. Row events above the base show
//!   everything, so what the feed wrote is what the source has. A change below the base counts for nothing: a lane that
//!   is far behind may apply an old deletion of a row that came back without a row event.
//! - Any other claim did not change while the lane was comparing, in the source or in the store: an update that leaves
//!   a claim as it was is not noted. So the moments at which its chunk and its derived row were read do not matter. It
//!   is equal on both sides, or it is listed.
//! - Only the lane writes its tables. If another process of the lane came in between, the commit is refused.
//! - Nothing is swept. So it does not matter that equal rows keep versions below the base.
//!
//! A later record of the table, another epoch, a page that failed and too many notes end the comparison. It is in
//! memory alone: a lane that is cut off compares again. The lane reads and sweeps the whole table, and stores each
//! chunk of that, in these cases:
//!
//! - More differs than a repair takes, or something differs again after the repair.
//! - A few comparisons in a row had no result, those of earlier attempts in this process included.
//! - A comparison takes long: a process that ends again and again would otherwise never finish one.
//! - The store cannot show its rows.
//! - A person asked for a refresh while not every table waited, or the lane loads its first rows.
//! - Every table waits, and comparisons found too much in more tables than not: each costs a second reading.
//!
//! A store without transactions is never compared, as rows of a flush that was cut off may still come.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::time::Duration;

use anabranch_schemas::change::Change;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use tokio::time::Instant;

use super::changed_claims::ChangedClaims;
use super::plan::Work;
use super::read::Read;
use super::{AGAIN, Refresher};
use crate::deliver::lane::unless;
use crate::deliver::shared::Shared;
use crate::deliver::window::LaneWindow;
use crate::error::{Class, Fault};
use crate::failpoints;
use crate::ports::{LaneStore, RowSource, ShardPage};
use crate::records::{
    Cell, CellRef, Claimed, DerivedRow, Flush, LaneId, MutationAction, Progress, Refresh, Reread, ScanCursor,
    Scope,
};
use crate::sketch::{ElementShape, Elements, RowKey, Sketch, are_of_one_row, assemble, order};

/// Bytes of a sketch: it lists some twenty thousand rows, as many as change in a table while it is compared.
const SKETCH_BYTES: usize = 2 << 20;
/// An odd number whose bits are spread: it parts the seeds of a table's comparisons.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// Key words of an element: a user has one element, a code of a device two.
const SHAPE: ElementShape = ElementShape { key_words: 4 };
/// Comparisons that may end in a reading of the whole table, beyond those that spared one.
const IN_VAIN_MAX: u32 = 2;
/// Comparisons of a table in a row that begin without a result, before the table is read as a whole: foreign keys may
/// change rows of it unseen many times a second, and a target may break off each attempt of the lane.
const BEGUN_MAX: u32 = 3;
/// Time after which a comparison is given up: a comparison that was cut off has nothing to show for it.
const COMPARISON_MAX: Duration = Duration::from_secs(3_600);
/// Derived rows that are read at once: some ten milliseconds, for which changes wait. No rate limits them, as a page
/// costs the target less than a chunk of writes.
const PAGE_ROWS: NonZeroUsize = NonZeroUsize::new(5_000).expect("it is not 0");

/// Comparisons of one attempt of a lane.
#[derive(Debug)]
pub(super) struct TableComparisons<'a> {
    id: &'a LaneId,
    /// Counts comparisons without a result, beyond this attempt.
    shared: &'a Shared,
    /// The store shows its rows.
    is_possible: bool,
    running: Option<TableComparison>,
    /// Tables whose comparison ended without a result: they are read as a whole.
    whole: BTreeSet<ShardId>,
    /// Tables of which a comparison found rows that differed, and had them written.
    repaired: BTreeSet<ShardId>,
    /// Comparisons of tables in turn that found more than a repair takes.
    in_vain: u32,
    /// Comparisons of tables in turn that spared a reading of the whole table.
    useful: u32,
}

/// The reason for which a table is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// It has an entry in `rereads`, at this position.
    Entry(Lsn),
    /// Its turn has come in a refresh of every table, as rows of any may have changed unseen.
    Turn,
}

impl Cause {
    /// Whether the refresh has tables compared for this reason.
    fn is_compared(self, refresh: &Refresh) -> bool {
        let is_of_every = refresh.scope == Scope::Source && refresh.every_waits;
        is_of_every || matches!(self, Self::Entry(_)) && refresh.scope == Scope::Rereads
    }

    /// Whether the table still waits for this reason.
    fn stands(self, shard: ShardId, refresh: &Refresh) -> bool {
        self.is_compared(refresh)
            && match self {
                Self::Entry(at) => refresh.rereads.get(&shard) == Some(&at),
                Self::Turn => refresh.wants(shard),
            }
    }
}

/// The comparison of one table.
#[derive(Debug)]
struct TableComparison {
    shard: ShardId,
    cause: Cause,
    /// Its base: a claim that the lane changed above it is not compared. Before the first chunk it is the position that
    /// the chunk must reach.
    at: Lsn,
    begun_at: Instant,
    next: Needed,
    sketch: Sketch,
    elements: Elements,
    /// Sum of the fingerprints of the source's claims less those of the derived rows.
    sum: u64,
    rows: u64,
}

/// The next work of a comparison.
#[derive(Debug, Clone)]
pub(super) enum Needed {
    /// Reads the chunk of the table that follows this key, at or above the position.
    Chunk(Option<ScanCursor>, Lsn),
    /// Reads derived rows.
    Stored(ShardPage),
    /// Reads the rows with these keys, and replaces their claims.
    Rows(BTreeMap<ShardId, Vec<Cell>>),
}

impl<'a> TableComparisons<'a> {
    pub(super) fn new(id: &'a LaneId, shared: &'a Shared, is_possible: bool) -> Self {
        let (whole, repaired) = (BTreeSet::new(), BTreeSet::new());
        Self { id, shared, is_possible, running: None, whole, repaired, in_vain: 0, useful: 0 }
    }

    /// Whether comparisons spare about as many readings as they cost.
    fn are_worthwhile(&self) -> bool {
        self.in_vain <= self.useful.saturating_add(IN_VAIN_MAX)
    }

    /// Ends the present comparison without a result, as other work comes first.
    pub(super) fn leave(&mut self) {
        self.running = None;
    }

    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Returns the table that is being compared.
    pub(super) fn running_shard(&self) -> Option<ShardId> {
        self.running.as_ref().map(|running| running.shard)
    }

    /// Forgets what is known of tables that are to be read again: they are compared from the beginning. Returns whether
    /// a comparison ended. `refresh` has the entries with these records.
    pub(super) fn begin_anew(&mut self, rereads: &[Reread], refresh: Option<&Refresh>) -> bool {
        let was_running = self.is_running();
        for reread in rereads {
            match reread {
                Reread::Every => *self = Self::new(self.id, self.shared, self.is_possible),
                Reread::Unlisted => {}
                Reread::Table(shard) => {
                    // A comparison may begin before the commit with its own record, which ends nothing.
                    let at = refresh.and_then(|refresh| refresh.rereads.get(shard));
                    let is_older = |running: &TableComparison| at.is_none_or(|at| running.at < *at);
                    let ended = self.running.take_if(|running| running.shard == *shard && is_older(running));
                    if ended.is_some() || self.running_shard() != Some(*shard) {
                        self.repaired.remove(shard);
                    }
                }
            }
        }
        was_running && !self.is_running()
    }

    /// Notes that a table was read and swept, or that nothing differs in it.
    pub(super) fn was_read(&mut self, shard: ShardId) {
        self.whole.remove(&shard);
        self.shared.comparison_ended(self.id, shard);
    }

    /// Notes that a table cannot be read now. It is compared again once it can be, however often it was tried.
    pub(super) fn was_unreadable(&mut self, shard: ShardId) {
        if self.running.take_if(|running| running.shard == shard).is_some() {
            self.shared.comparison_ended(self.id, shard);
        }
    }
}

impl TableComparison {
    /// Begins a comparison; `number` counts the comparisons of the table without a result.
    fn new(shard: ShardId, cause: Cause, at: Lsn, number: u32) -> Self {
        // The comparison after a repair has another seed too, so a collision does not come twice.
        let seed = shard.as_u64() ^ at.as_u64() ^ u64::from(number).wrapping_mul(SEED_STEP);
        Self {
            shard,
            cause,
            at,
            begun_at: Instant::now(),
            next: Needed::Chunk(None, at),
            sketch: Sketch::within(SKETCH_BYTES, SHAPE.words(), seed ^ 1),
            elements: Elements::new(SHAPE, seed),
            sum: 0,
            rows: 0,
        }
    }

    /// Takes the low watermark of the first chunk for the base.
    fn begin_at(&mut self, low: Lsn) {
        if let Needed::Chunk(None, _) = self.next {
            self.at = self.at.max(low);
        }
    }

    /// Adds what the rows of a chunk claim.
    fn add(&mut self, claims: &Flush, changes: &ChangedClaims) {
        for claim in claims.ordered() {
            let MutationAction::Upsert(values) = claim.action else { continue };
            if changes.has_changed(claim.table, claim.shard, claim.key, self.at) {
                continue;
            }
            let key: Vec<CellRef<'_>> = claim.key.iter().map(Cell::borrowed).collect();
            let values: Vec<CellRef<'_>> = values.iter().map(Cell::borrowed).collect();
            let row = Claimed { table: claim.table, shard: claim.shard, key: &key, values: &values };
            let Self { elements, sketch, sum, .. } = self;
            *sum = sum.wrapping_add(elements.of(&row, |element| sketch.add(element)));
        }
    }

    /// Subtracts a derived row.
    fn subtract(&mut self, row: &Claimed<'_>, changes: &ChangedClaims) {
        let key: Box<[Cell]> = row.key.iter().copied().map(CellRef::to_owned).collect();
        if changes.has_changed(row.table, row.shard, &key, self.at) {
            return;
        }
        let Self { elements, sketch, sum, .. } = self;
        *sum = sum.wrapping_sub(elements.of(row, |element| sketch.subtract(element)));
    }

    /// Returns the rows that differ; `None` when they cannot be listed. The sketch is empty afterwards.
    fn list(&mut self) -> Option<BTreeSet<RowKey>> {
        let empty = Sketch::within(0, SHAPE.words(), 0);
        let found = std::mem::replace(&mut self.sketch, empty).list()?;
        let mut sum = 0u64;
        for (element, is_added) in found.iter() {
            let Some((_, fingerprint)) = Elements::sum_place(element, 1) else { continue };
            sum = if is_added { sum.wrapping_add(fingerprint) } else { sum.wrapping_sub(fingerprint) };
        }
        if sum != self.sum {
            return None;
        }
        let mut parts: Vec<&[u64]> = found.iter().map(|(element, _)| element).collect();
        parts.sort_unstable_by(|one, other| order(one, other));
        let rows = parts.chunk_by(|one, other| are_of_one_row(one, other));
        rows.map(|parts| assemble(parts.iter().copied())).collect()
    }
}

impl<S: RowSource> Refresher<'_, S> {
    /// Returns the next work of the comparison of the table that `work` is about; `None` when it is not compared.
    pub(super) fn next_compared(
        &mut self,
        work: &Work,
        refresh: &Refresh,
        progress: &Progress,
    ) -> Option<Needed> {
        let (shard, is_reread) = match work {
            Work::List => return None,
            Work::Chunk { table, after: None, is_reread: Some(is_reread), .. } => (table.shard, *is_reread),
            _ => {
                self.comparisons.leave();
                return None;
            }
        };
        let entry = refresh.rereads.get(&shard).copied().unwrap_or_default();
        let (cause, at) = match is_reread {
            true => (Cause::Entry(entry), entry),
            false => (Cause::Turn, progress.highest_change.max(entry)),
        };
        let is_same = |running: &TableComparison| (running.shard, running.cause) == (shard, cause);
        let running = self.comparisons.running.take().filter(is_same);
        if let Some(running) = &running {
            if self.changes.is_full() {
                self.read_whole(shard, "too many keys have changed");
            } else if running.begun_at.elapsed() > COMPARISON_MAX {
                self.read_whole(shard, "the comparison takes too long");
            }
        }
        let is_whole = !self.comparisons.is_possible || self.comparisons.whole.contains(&shard);
        let is_in_vain = running.is_none() && cause == Cause::Turn && !self.comparisons.are_worthwhile();
        if is_whole || is_in_vain || !cause.is_compared(refresh) {
            return None;
        }
        let is_noted =
            self.changes.epoch == progress.position.epoch() && self.changes.shards.iter().eq([&shard]);
        let running = match running.filter(|_| is_noted) {
            Some(running) => running,
            None => {
                let number = self.comparisons.shared.comparison_begun(self.id, shard);
                if number > BEGUN_MAX {
                    self.read_whole(shard, "comparisons of it came to no end");
                    return None;
                }
                // The first chunk begins the notes.
                self.changes = ChangedClaims::default();
                self.aside.begun(shard);
                TableComparison::new(shard, cause, at, number)
            }
        };
        Some(self.comparisons.running.insert(running).next.clone())
    }

    /// Has the table read as a whole in this attempt.
    fn read_whole(&mut self, shard: ShardId, why: &'static str) {
        tracing::info!(
            lane = %self.id, %shard, why,
            "a table is read as a whole, as it could not be compared with its derived rows"
        );
        self.comparisons.leave();
        self.comparisons.whole.insert(shard);
    }

    /// Takes a chunk of the table that is compared, or writes rows that differed. The window must be empty.
    pub(super) async fn take_compared(
        &mut self,
        read: Read,
        window: &mut LaneWindow,
        store: &mut impl LaneStore,
        project: impl FnMut(&Change<'_, '_>, &mut Flush),
    ) -> Result<(), Fault> {
        let flush = self.project_chunk(&read, Flush::new(window.progress().clone()), project)?;
        self.repeated = 0;
        self.meters.rows.increment(read.chunk.rows);
        if read.keys.is_some() {
            // The table still waits: the next comparison shows whether anything differs yet.
            self.comparisons.leave();
            failpoints::reach("refresh-before-commit").await;
            self.commit(window, store, flush).await?;
            failpoints::reach("refresh-after-commit").await;
            return Ok(());
        }
        self.meters.compared.increment(read.chunk.rows);
        if let Some(refresh) = &window.progress().refresh {
            self.empty.note_chunk(refresh, &read);
        }
        let Some(running) = &mut self.comparisons.running else { return Ok(()) };
        self.unread.was_read(running.shard);
        self.aside.was_read(running.shard);
        running.begin_at(read.chunk.low);
        running.add(&flush, &self.changes);
        running.rows += read.chunk.rows;
        running.next = match read.chunk.next {
            Some(after) => Needed::Chunk(Some(after), running.at),
            None => Needed::Stored(ShardPage { shard: running.shard, table: 0, after: None }),
        };
        Ok(())
    }

    /// Reads some of the derived rows of the table that is compared. The window must be empty.
    pub(super) async fn compare_stored(
        &mut self,
        window: &mut LaneWindow,
        store: &mut impl LaneStore,
    ) -> Result<(), Fault> {
        let Some(running) = &mut self.comparisons.running else { return Ok(()) };
        let Needed::Stored(page) = running.next.clone() else { return Ok(()) };
        let changes = &self.changes;
        let mut visit = |row: DerivedRow<'_>| {
            if let Some(row) = row.claimed().filter(|row| row.shard == page.shard) {
                running.subtract(&row, changes);
            }
        };
        match unless(&self.cancel, store.rows_of_shard(&page, PAGE_ROWS, &mut visit)).await {
            Ok(Some(Some(next))) => running.next = Needed::Stored(next),
            Ok(Some(None)) => return self.end_comparison(window, store).await,
            // The lane ends, and it has nothing to store: the comparison is in memory alone.
            Ok(None) => self.comparisons.running = None,
            Err(fault) => {
                tracing::warn!(lane = %self.id, %fault, "derived rows of a table could not be read");
                if fault.class() == Class::Transient {
                    // A part of the page may have been subtracted.
                    self.comparisons.running = None;
                    self.not_before = Instant::now() + AGAIN;
                } else {
                    self.read_whole(page.shard, "its derived rows could not be read");
                }
            }
        }
        Ok(())
    }

    /// Ends the table's wait if nothing differs; otherwise the rows that differ are read next, or the whole table.
    async fn end_comparison(
        &mut self,
        window: &mut LaneWindow,
        store: &mut impl LaneStore,
    ) -> Result<(), Fault> {
        let Some(mut running) = self.comparisons.running.take() else { return Ok(()) };
        let (shard, cause, at, progress) = (running.shard, running.cause, running.at, window.progress());
        let Some(refresh) = &progress.refresh else { return Ok(()) };
        if !cause.stands(shard, refresh) || self.changes.epoch != progress.position.epoch() {
            return Ok(());
        }
        if self.changes.is_full() {
            self.read_whole(shard, "too many keys have changed");
            return Ok(());
        }
        let counts = u32::from(cause == Cause::Turn);
        let Some(differing) = running.list() else {
            self.comparisons.in_vain += counts;
            self.read_whole(shard, "more rows differ than can be listed");
            return Ok(());
        };
        let stand = |row: &&RowKey| !self.changes.has_changed(row.table, row.shard, &row.key, at);
        let keys = differing.iter().filter(stand).map(|row| row.key.get(self.source_column).cloned());
        let keys: BTreeSet<Option<Cell>> = keys.collect();
        tracing::info!(
            lane = %self.id, %shard, rows = running.rows, differing = keys.len(),
            "a table was compared with its derived rows"
        );
        self.meters.differing.increment(keys.len() as u64);
        if keys.is_empty() {
            self.comparisons.useful += counts;
            self.comparisons.was_read(shard);
            self.aside.ended();
            let mut flush = Flush::new(progress.clone());
            let rows = refresh.rows + running.rows;
            let after = match cause {
                Cause::Entry(_) => refresh.clone().without_reread(shard, at),
                Cause::Turn => refresh.after_sweep(shard, at),
            };
            flush.progress.refresh = Some(Refresh { rows, ..after });
            failpoints::reach("refresh-before-commit").await;
            self.commit(window, store, flush).await?;
            failpoints::reach("refresh-after-commit").await;
            return Ok(());
        }
        let rows: Option<BTreeMap<ShardId, Vec<Cell>>> =
            keys.into_iter().collect::<Option<Vec<Cell>>>().map(|keys| [(shard, keys)].into());
        match rows.filter(|rows| Scope::Keys(rows.clone()).problem().is_none()) {
            Some(rows) if self.comparisons.repaired.insert(shard) => {
                running.next = Needed::Rows(rows);
                self.comparisons.running = Some(running);
            }
            Some(_) => self.read_whole(shard, "rows differ after a repair"),
            None => {
                self.comparisons.in_vain += counts;
                self.read_whole(shard, "more rows differ than a repair takes");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
