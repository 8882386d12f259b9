//! The refresh of a lane: rows are read from the source as they are, and written between the changes of its feed.
//!
//! A chunk is read in one snapshot, which lies between a low and a high watermark; on MariaDB both are one position.
//! The lane continues with its feed until it has passed the high watermark, and notes which claims of the table changed
//! above the low one. Then it writes the other claims with the low watermark as version, in parts if changes must not
//! wait for a whole chunk. A claim that was not noted is the same at both watermarks. After the last chunk of a table
//! the *sweep* removes claims that are older than the first watermark: no source row claims them. A lane that had no
//! rows when it began has nothing to sweep.
//!
//! A refresh of single keys reads their rows; afterwards only the claims of these rows remain, whatever version other
//! claims of the keys had. A key that changed after the watermark is read again. A condition finds keys in parts. Keys
//! of a table that the source may hide stay as they are: the table waits to be read again.
//!
//! Tables of which rows changed in a way that row events do not show wait among the *rereads* of the refresh, each with
//! the position from which on it is to be read. They go before the tables whose turn it is. `comparison.rs` compares
//! such a table with its derived rows first, and every table when all of them wait: as a rule nothing differs, and then
//! nothing is written or swept.
//!
//! A chunk is discarded and read again when the lane cannot tell which changes came after its watermark: the lane was
//! past the watermark before it began to note, another server came in between, or there was too much to note. A fault
//! of the source does not end the attempt of the lane: its feed goes on.

mod absent;
mod aside;
mod changed_claims;
mod comparison;
mod empty;
mod meters;
mod plan;
mod read;
mod request;
mod sweep;
mod unlisted;

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::time::Duration;

use anabranch_schemas::change::{Change, Entity, TableIdentity};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use futures::future::BoxFuture;
use futures::{FutureExt, TryFutureExt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::absent::Absences;
use self::aside::Aside;
use self::changed_claims::ChangedClaims;
use self::comparison::{Needed, TableComparisons};
use self::empty::EmptyTables;
use self::meters::Meters;
use self::plan::{Judged, Verdict, Work};
use self::read::{Read, rows_of, rows_where};
pub use self::request::{forget_rereads, rehearse_refresh, request_refresh};
use self::sweep::is_sweep_due;
use super::lane::Lane;
use super::owed::UnreadOfLane;
use super::shared::{ChunkRequest, Shared};
use super::window::LaneWindow;
use crate::error::Fault;
use crate::failpoints;
use crate::ports::{LaneStore, Log, RowSource};
use crate::records::{Flush, KEYS_MAX, LaneId, Progress, Refresh, Scope};
use crate::throttle::Throttle;

/// Pause before a chunk that was discarded is read again.
const AGAIN: Duration = Duration::from_secs(1);
/// Time between two requests for the source reader's position, while a chunk waits for its watermark.
const ASK: Duration = Duration::from_millis(200);
/// Time whose rows a rate-limited lane takes at once: rows of half a second cost half as much as those of 50 ms, as
/// each of a thousand tables gets one statement and not many.
const CHUNK: Duration = Duration::from_millis(500);
/// Work that is written at once, as [`Flush::cut`] counts: some ten milliseconds, for which changes wait.
const PART_WORK: usize = 500;
/// Full flushes that a lane without a rate takes at once: a hundred rows for each of hundreds of tables. With one
/// flush, which has some fifty, a row costs the target a tenth more.
const CHUNK_FLUSHES: usize = 3;

/// The refresh's present activity.
enum Phase<'a> {
    Resting,
    Listing(BoxFuture<'a, Result<Vec<TableIdentity<'static>>, Fault>>),
    Querying(BoxFuture<'a, Result<Read, Fault>>),
    /// Tables that the source does not list are asked for.
    Asking(BoxFuture<'a, Result<BTreeSet<ShardId>, Fault>>),
    /// Tables that wait and are not listed are asked for.
    Proving(BoxFuture<'a, Result<Absences, Fault>>),
    /// The step is written as soon as the lane may write it.
    Waiting(Step),
}

/// One step, which is one commit.
#[derive(Debug)]
enum Step {
    /// A chunk, with the rest of it once a part is written.
    Chunk(Read, Option<Box<Flush>>),
    /// The rest of a sweep: these tables, and those after them.
    Sweep(Range<u32>),
    /// Derived rows are read for the comparison of a table.
    Stored,
    /// The next tables are empty.
    Empty,
    /// The table no longer exists: the feed removed its rows.
    Gone(ShardId),
    /// The table cannot be read now: the others go first.
    Owed(ShardId),
    /// Unlisted tables that wait get entries; the source hides these tables, if it was asked.
    Unlisted(Option<BTreeSet<ShardId>>),
    /// The refresh ends.
    Finished,
}

/// A lane's refresh, within one attempt of the lane.
pub(super) struct Refresher<'a, S> {
    id: &'a LaneId,
    source: &'a S,
    shared: &'a Shared,
    /// Start of the attempt. A request for a refresh ends the attempt before, so chunks read since answer every
    /// request.
    since: Instant,
    /// Ends the reads of derived rows, which may take long.
    cancel: CancellationToken,
    /// Asks the source's reader to append its position.
    ask: Box<dyn Fn() -> BoxFuture<'a, ()> + Send + Sync + 'a>,
    ask_at: Instant,
    entity: Entity,
    source_column: usize,
    throttle: Throttle,
    /// Work that is written at once, if changes are not to wait for more; `None` = a whole chunk.
    part_work: Option<usize>,
    /// Number of the projection's derived tables.
    derived_tables: u32,
    /// Rows of the chunk that is being read, at most.
    asked: usize,
    /// The table whose first chunk is being read was chosen because it waits to be read again.
    is_reread: bool,
    phase: Phase<'a>,
    /// Tables of the entity, in the order of shard ids.
    tables: Option<Vec<TableIdentity<'static>>>,
    /// Whether unlisted tables that wait have entries, by the present `tables`.
    are_unlisted_owed: bool,
    changes: ChangedClaims,
    comparisons: TableComparisons<'a>,
    empty: EmptyTables,
    not_before: Instant,
    failures: u32,
    /// How often the chunk was discarded.
    repeated: u32,
    meters: Meters,
    aside: Aside,
    /// Why tables that wait could not be read.
    unread: UnreadOfLane<'a>,
    /// Tables that were retired in this attempt: one that cannot be found is gone and not hidden.
    retired: BTreeSet<ShardId>,
}

impl<'a, S: RowSource> Refresher<'a, S> {
    pub(super) fn new<L: Log>(
        lane: &Lane<'a, S, L>,
        store: &impl LaneStore,
        cancel: &CancellationToken,
    ) -> Self {
        let (log, name) = (lane.log, lane.id.source.as_str());
        let (flush_rows, rate) = (lane.limits.flush_rows.get(), lane.limits.refresh_rows_per_second);
        let claims = if rate.is_some() { flush_rows } else { flush_rows * CHUNK_FLUSHES };
        let rows = claims / lane.row_weight.max(1);
        Self {
            id: lane.id,
            source: lane.source,
            shared: lane.shared,
            since: Instant::now(),
            cancel: cancel.clone(),
            ask: Box::new(move || log.ask_for_position(name).boxed()),
            ask_at: Instant::now(),
            entity: lane.entity,
            source_column: lane.source_column,
            throttle: Throttle::new(rate, CHUNK, NonZeroUsize::new(rows).unwrap_or(NonZeroUsize::MIN)),
            derived_tables: lane.tables,
            part_work: rate.map(|_| PART_WORK.min(flush_rows)),
            asked: 0,
            is_reread: false,
            phase: Phase::Resting,
            tables: None,
            are_unlisted_owed: false,
            changes: ChangedClaims::default(),
            comparisons: TableComparisons::new(lane.id, lane.shared, store.is_atomic()),
            empty: EmptyTables::new(store.is_atomic()),
            not_before: Instant::now(),
            failures: 0,
            repeated: 0,
            meters: Meters::of(lane.id),
            aside: Aside::default(),
            unread: UnreadOfLane::new(&lane.shared.unread, lane.id),
            retired: BTreeSet::new(),
        }
    }

    /// Reads the rows that are to be written next; waits for ever when there are none. Cancel safe. `progress` is the
    /// lane's with its uncommitted work.
    pub(super) async fn read(&mut self, progress: &Progress) {
        if let Phase::Resting = self.phase {
            let tables = self.tables.as_deref();
            let waiting =
                progress.refresh.as_ref().map_or(0, |refresh| plan::waiting_tables(refresh, tables));
            self.meters.rereads(waiting);
            let Some(refresh) = &progress.refresh else { return std::future::pending().await };
            // A replay may be in an epoch that is over, and it writes below any watermark.
            if progress.position == Lsn::ZERO || progress.is_replaying() {
                return std::future::pending().await;
            }
            tokio::time::sleep_until(self.aside.not_before(self.not_before)).await;
            self.throttle.ready().await;
            self.phase = self.next(refresh, progress);
            if let Phase::Waiting(_) = self.phase {
                return;
            }
        }
        let outcome = match &mut self.phase {
            Phase::Listing(listing) => listing.await.map(|mut tables| {
                tables.retain(|table| table.entity == self.entity);
                self.tables = Some(tables);
                self.are_unlisted_owed = false;
                Phase::Resting
            }),
            Phase::Querying(query) => query.await.map(|read| {
                let asked = std::mem::take(&mut self.asked);
                self.throttle
                    .give_back(asked.saturating_sub(usize::try_from(read.chunk.rows).unwrap_or(asked)));
                Phase::Waiting(Step::Chunk(read, None))
            }),
            Phase::Asking(asking) => asking.await.map(|hidden| Phase::Waiting(Step::Unlisted(Some(hidden)))),
            Phase::Proving(proof) => proof.await.map(|found| found.take(&mut self.aside, &mut self.changes)),
            Phase::Waiting(Step::Chunk(Read { chunk, .. }, _)) if progress.position < chunk.high => loop {
                tokio::time::sleep_until(self.ask_at).await;
                self.ask_at = Instant::now() + ASK;
                (self.ask)().await;
            },
            Phase::Resting | Phase::Waiting(_) => return,
        };
        self.phase = match outcome {
            Ok(phase) => {
                self.failures = 0;
                phase
            }
            Err(fault) => self.failed(fault, progress),
        };
    }

    /// Returns the next phase of the refresh.
    fn next(&mut self, refresh: &Refresh, progress: &Progress) -> Phase<'a> {
        let (source, entity) = (self.source, self.entity);
        if let Some(tables) = &self.tables {
            let left = tables.iter().filter(|table| refresh.wants(table.shard)).count();
            self.meters.left(left + refresh.rereads.len());
        }
        if let Some(step) = self.next_unlisted(refresh, progress) {
            return Phase::Waiting(step);
        }
        let (set_aside, running) = (self.aside.tables(), self.comparisons.running_shard());
        let work = plan::next(refresh, self.tables.as_deref(), &set_aside, running);
        let (epoch, floor) = (progress.position.epoch(), progress.highest_change);
        if let Some(phase) = self.next_empty(&work, refresh, progress) {
            self.comparisons.leave();
            return phase;
        }
        let compared = self.next_compared(&work, refresh, progress);
        let (table, after, first) = match work {
            Work::Chunk { table, after, first, is_reread } => {
                self.is_reread = is_reread.unwrap_or(self.is_reread);
                // A first chunk below the table's entry would have the table read once more.
                let waits = is_reread.and_then(|_| refresh.rereads.get(&table.shard));
                let first = first.max(waits.copied().unwrap_or_default());
                match compared {
                    None => {
                        if is_reread.is_some() {
                            self.aside.begun(table.shard);
                        }
                        (table, after, first)
                    }
                    Some(Needed::Chunk(after, at)) => (table, after, at),
                    Some(Needed::Rows(keys)) => {
                        return Phase::Querying(rows_of(source, entity, vec![table], keys, epoch).boxed());
                    }
                    Some(Needed::Stored(_)) => return Phase::Waiting(Step::Stored),
                }
            }
            Work::Keys(keys) => {
                self.changes = ChangedClaims::new(epoch, keys.keys().copied().collect(), floor);
                let tables = self.tables.clone().unwrap_or_default();
                return Phase::Querying(rows_of(source, entity, tables, keys, epoch).boxed());
            }
            Work::List => return Phase::Listing(source.tables().boxed()),
            Work::Gone(shard) => return Phase::Waiting(Step::Gone(shard)),
            Work::WaitForSetAside => return self.wait_for_set_aside(refresh, progress),
            Work::Finished => return Phase::Waiting(Step::Finished),
        };
        // Noted since its first chunk, so that the lane can take chunks that other lanes have read before.
        let is_noted = self.changes.epoch == epoch && self.changes.shards.iter().eq([&table.shard]);
        if !is_noted || self.changes.is_full() {
            self.changes = ChangedClaims::new(epoch, [table.shard].into(), floor);
        }
        let rows = self.throttle.take();
        self.asked = rows.get();
        if let Scope::Where(_, condition) = &refresh.scope {
            let rows = rows.min(NonZeroUsize::new(KEYS_MAX).expect("it is not zero"));
            return Phase::Querying(rows_where(source, table, condition.clone(), after, rows, epoch).boxed());
        }
        let (floor, server, shared) = (self.changes.floor.max(first), progress.server.clone(), self.shared);
        let since = self.since;
        let chunk = async move {
            let (table, after, server) = (&table, after.as_ref(), &server);
            shared.chunk(source, ChunkRequest { table, after, rows, epoch, floor, since, server }).await
        };
        Phase::Querying(chunk.map_ok(Read::of_chunk).boxed())
    }

    /// Notes a flush that is about to be committed: an older chunk must not overwrite the claims that it changes.
    pub(super) fn record(&mut self, flush: &Flush) {
        self.note_rereads(&flush.rereads, flush.progress.refresh.as_ref());
        if !flush.retirements.is_empty() {
            // A table that left is no longer listed. A chunk of it that was read before is written all the same: its
            // rows are as old as the table, and stay as the others do. The heir of a table never was listed.
            let tables = self.tables.as_deref().unwrap_or_default();
            let is_listed = |shard| tables.binary_search_by_key(&shard, |table| table.shard).is_ok();
            if flush.retirements.iter().any(|retired| is_listed(retired.table.shard)) {
                self.tables = None;
            }
            self.retired.extend(flush.retirements.iter().map(|retired| retired.table.shard));
        }
        self.changes.record(flush);
    }

    /// Whether a step could be written if everything was committed.
    pub(super) fn is_due(&self, progress: &Progress) -> bool {
        match &self.phase {
            Phase::Waiting(Step::Chunk(read, _)) => progress.position >= read.chunk.high,
            Phase::Waiting(_) => true,
            _ => false,
        }
    }

    /// Returns the shards of the tables that the present step is about.
    pub(super) fn shards(&self) -> &BTreeSet<ShardId> {
        &self.changes.shards
    }

    /// Whether the present step finds out which unlisted tables have claims.
    pub(super) fn asks_for_unlisted(&self) -> bool {
        matches!(self.phase, Phase::Waiting(Step::Unlisted(None)))
    }

    /// Writes the step that may be written. The window must be empty: everything that it held is committed, and noted.
    pub(super) async fn write(
        &mut self,
        window: &mut LaneWindow,
        store: &mut impl LaneStore,
        project: impl FnMut(&Change<'_, '_>, &mut Flush),
    ) -> Result<(), Fault> {
        let progress = window.progress();
        let Some(refresh) = &progress.refresh else { return Ok(()) };
        let mut flush = Flush::new(progress.clone());
        match std::mem::replace(&mut self.phase, Phase::Resting) {
            Phase::Waiting(Step::Chunk(read, rest)) => match self.verdict(&read, refresh, progress) {
                Verdict::Wait => {
                    self.phase = Phase::Waiting(Step::Chunk(read, rest));
                    return Ok(());
                }
                Verdict::Again(why) => {
                    // First rows have no notes from before their read. A source whose readers are ahead of its
                    // snapshots could refuse each of them, and a chunk is good at its second read.
                    self.first_rows_failed();
                    self.discard(&read, why);
                    return Ok(());
                }
                Verdict::Write if self.empty.is_asking() => {
                    return self.take_first_rows(&read, window, store).await;
                }
                Verdict::Write if self.comparisons.is_running() => {
                    return self.take_compared(read, window, store, project).await;
                }
                Verdict::Write => {
                    flush = match rest {
                        Some(mut rest) => {
                            rest.progress = flush.progress;
                            *rest
                        }
                        None => self.project_chunk(&read, flush, project)?,
                    };
                    let (low, rest) = (read.chunk.low, self.part_work.and_then(|work| flush.cut(work)));
                    if read.keys.is_none() {
                        flush.retain(|table, shard, key| !self.changes.has_changed(table, shard, key, low));
                    }
                    if let Some(rest) = rest {
                        self.phase = Phase::Waiting(Step::Chunk(read, Some(Box::new(rest))));
                    } else {
                        flush.progress.refresh = Some(self.after_read(refresh, &read, progress));
                    }
                }
            },
            Phase::Waiting(Step::Sweep(tables)) => return self.sweep(window, store, tables).await,
            Phase::Waiting(Step::Stored) => return self.compare_stored(window, store).await,
            Phase::Waiting(Step::Empty) => flush.progress.refresh = Some(self.after_empty(refresh, progress)),
            Phase::Waiting(Step::Gone(shard)) => flush.progress.refresh = Some(refresh.after_table(shard)),
            Phase::Waiting(Step::Owed(shard)) => {
                flush.progress.refresh = Some(self.owe(refresh, shard, progress));
            }
            Phase::Waiting(Step::Unlisted(hidden)) => {
                let owed = Box::pin(self.owe_unlisted(hidden, progress, store)).await?;
                let Some(owed) = owed else { return Ok(()) };
                flush.progress.refresh = Some(owed);
            }
            Phase::Waiting(Step::Finished) => flush.progress.refresh = self.end(refresh),
            // The read continues after the present work.
            other => {
                self.phase = other;
                return Ok(());
            }
        }
        failpoints::reach("refresh-before-commit").await;
        self.commit(window, store, flush).await?;
        failpoints::reach("refresh-after-commit").await;
        let first = self.first_swept();
        self.sweep(window, store, first).await
    }

    /// Notes a chunk whose last part is about to be written.
    fn note_end(&mut self, refresh: &Refresh, read: &Read) {
        self.repeated = 0;
        self.meters.rows.increment(read.chunk.rows);
        self.empty.note_chunk(refresh, read);
    }

    /// Returns the refresh after a chunk whose last part is about to be written.
    fn after_read(&mut self, refresh: &Refresh, read: &Read, progress: &Progress) -> Refresh {
        self.note_end(refresh, read);
        self.log_absence(read);
        let shard = *self.changes.shards.first().expect("a chunk was read of something");
        self.unread.was_read(shard);
        self.aside.was_read(shard);
        let after = refresh.after_chunk(shard, &read.chunk, self.is_reread);
        self.owe_hidden(after, &read.hidden, progress)
    }

    /// Has a chunk read again, after a pause.
    fn discard(&mut self, read: &Read, why: &str) {
        tracing::debug!(lane = %self.id, low = %read.chunk.low, why, "a chunk is read again");
        self.not_before = Instant::now() + AGAIN;
        self.repeated += 1;
    }

    fn verdict(&self, read: &Read, refresh: &Refresh, progress: &Progress) -> Verdict {
        let (changes, source_column, repeated) = (&self.changes, self.source_column, self.repeated);
        let is_compared = self.comparisons.is_running();
        Judged { refresh, progress, changes, source_column, repeated, is_compared }.verdict(read)
    }

    /// Commits work beside the feed: the position stays. The next chunk is read meanwhile, as no change is applied in
    /// between.
    pub(super) async fn commit(
        &mut self,
        window: &mut LaneWindow,
        store: &mut impl LaneStore,
        mut flush: Flush,
    ) -> Result<(), Fault> {
        flush.progress.revision += 1;
        flush.progress.rows += flush.rows() as u64;
        let after = flush.progress.clone();
        let query_ahead = async {
            if !is_sweep_due(&after) {
                self.read(&after).await;
            }
            std::future::pending::<()>().await;
        };
        let began = Instant::now();
        tokio::select! {
            biased;
            committed = store.commit(&flush) => committed?,
            () = query_ahead => unreachable!("it never ends"),
        }
        let (rows, withdraws) = (flush.rows(), !flush.withdrawals.is_empty());
        tracing::debug!(
            rows,
            withdraws,
            seconds = began.elapsed().as_secs_f64(),
            "refreshed rows are written"
        );
        *window = LaneWindow::new(flush.progress);
        Ok(())
    }
}
