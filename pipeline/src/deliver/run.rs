//! One attempt of a lane: progress from the target, messages from after it, commits until something fails.
//!
//! Every error ends the attempt; the next one reads progress again. So a commit of unknown outcome needs no special
//! path: the progress row says whether it happened. `feed.rs` decides where the messages come from.

use std::time::Duration;

use anabranch_schemas::change::Change;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::timeline::Timeline;
use futures::FutureExt;
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ages;
use super::feed::{Feed, Hole, JOIN_INTERVAL, is_hole};
use super::lane::{Lane, load_own_progress, unless};
use super::load::lacks_rows;
use super::refresh::Refresher;
use super::window::{Delivery, LaneWindow};
use super::withdrawals::Withdrawals;
use super::work_beside::WorkBeside;
use crate::config::Limits;
use crate::error::{Code, Fault};
use crate::failpoints;
use crate::metrics as names;
use crate::ports::{LaneStore, Log, LogReader, RowSource, SourceConnector};
use crate::records::{Flush, LaneId, Progress};
use crate::wall_clock;

/// Least time between two commits of progress without rows (messages that hold nothing for this lane): a transaction
/// for each would cost more than it is worth. After this time, rows that wait for more are written as soon as no
/// message is ready.
const IDLE_PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// Longest time for which rows wait for more: a few rows of a table cost as much as many, in each of a thousand tables.
const FILL_INTERVAL: Duration = Duration::from_secs(1);

/// Times at which periodic work is due next.
struct Due {
    /// The time at which progress without rows is stored.
    progress_at: Instant,
    /// The time at which rows are written though more are on their way.
    rows_at: Instant,
    /// The time of the next check whether the stream links, while the lane is fed directly.
    join_at: Instant,
    /// The time of the next check whether the stored progress is still this lane's.
    check_at: Instant,
}

impl Due {
    fn now(limits: &Limits) -> Self {
        let now = Instant::now();
        Self {
            progress_at: now + IDLE_PROGRESS_INTERVAL,
            rows_at: now + FILL_INTERVAL,
            join_at: now,
            check_at: now + limits.position_interval,
        }
    }

    fn committed(&mut self, limits: &Limits) {
        *self = Self { join_at: self.join_at, ..Self::now(limits) };
    }

    /// Whether the window no longer waits for more.
    fn is_reached(&self, window: &LaneWindow, limits: &Limits) -> bool {
        let now = Instant::now();
        if !window.has_rows() {
            return now >= self.progress_at;
        }
        let waits_for_more = window.has_next() || window.is_within_event();
        !waits_for_more || window.is_full(limits.flush_rows.get()) || now >= self.rows_at
    }
}

/// An event that wakes the loop.
enum Event {
    Delivery(Box<Delivery>),
    Broken(FeedBreak),
    JoinDue,
    ProgressDue,
    CheckDue,
    /// Rows of the source were read.
    Read,
    /// Claims of withdrawn tables are to be removed.
    RemovalDue,
    Cancelled,
}

/// Reason for which a feed does not go on, though the lane can.
enum FeedBreak {
    /// The stream changed under the lane (wiped, rolled back) or lacks messages: the binlog has them.
    Hole(Fault),
    /// The binlog lacks something, or holds something unreadable: the tables have it.
    Unreadable(Fault),
}

impl FeedBreak {
    /// Returns the kind of break that a fault of the feed means; a fault of neither kind ends the attempt.
    fn of(fault: Fault, is_direct: bool) -> Result<Self, Fault> {
        match () {
            () if is_hole(&fault) => Ok(Self::Hole(fault)),
            () if is_direct && fault.code().is_mended_by_refresh() => Ok(Self::Unreadable(fault)),
            () => Err(fault),
        }
    }
}

/// Applies the source's changes to `store` until `cancel` or the first error. `project` turns a change into mutations
/// of the lane's tables. `applied` follows the position up to which the target holds everything.
pub async fn run<S: SourceConnector + RowSource, L: Log>(
    lane: Lane<'_, S, L>,
    store: &mut impl LaneStore,
    mut project: impl FnMut(&Change<'_, '_>, &mut Flush) + Send,
    applied: &watch::Sender<Lsn>,
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    let meters = Meters::of(lane.id);
    let mut window = begin(&lane, store, applied, cancel).await?;
    let (mut hole, mut due) = (None, Due::now(lane.limits));
    let mut beside = WorkBeside::new(&lane, store, cancel);
    let opened = lane.feed_or_load(&mut window, hole, store, cancel).await?;
    let Some((mut feed, _)) = opened else { return Ok(()) };
    loop {
        let event = next_event(&mut feed, &window, &due, &mut beside, &meters, cancel);
        let broken = match event.await? {
            Event::Delivery(delivery) => {
                let broken = take(&lane, &mut window, &mut feed, *delivery, &mut project, &meters)?;
                leave_out_withdrawals(&mut window, &mut beside.refresher, store, cancel).await?;
                if broken.is_none() && !is_commit_due(&due, &window, &beside.refresher, lane.limits) {
                    continue;
                }
                broken
            }
            Event::Broken(broken) => Some(broken),
            Event::JoinDue => {
                due.join_at = Instant::now() + JOIN_INTERVAL;
                if let Some(joined) = joined(&lane, &window, hole, feed.direct_timeline(), cancel).await? {
                    (feed, hole) = (joined, None);
                }
                continue;
            }
            Event::ProgressDue | Event::Read | Event::RemovalDue => None,
            Event::CheckDue => {
                unless(cancel, load_own_progress(&lane, store, &window)).await?;
                due.check_at = Instant::now() + lane.limits.position_interval;
                continue;
            }
            Event::Cancelled => return commit(&lane, &mut window, store, applied, &meters).await,
        };
        match broken {
            None => {}
            Some(FeedBreak::Hole(fault)) => hole = Some(found_hole(&lane, &window, &feed, fault)?),
            Some(FeedBreak::Unreadable(fault)) => {
                lane.begin_at_end(&mut window, fault, store).await?;
                drop(feed);
                let opened = lane.feed_or_load(&mut window, None, store, cancel).await?;
                let Some((other, _)) = opened else { return Ok(()) };
                (feed, hole, due) = (other, None, Due::now(lane.limits));
                beside = WorkBeside::new(&lane, store, cancel);
                continue;
            }
        }
        commit_and_step(&lane, &mut window, &mut beside, store, &mut project, applied, &meters).await?;
        due.committed(lane.limits);
        if hole.is_some() && !feed.is_direct() {
            drop(feed);
            let opened = lane.feed_or_load(&mut window, hole, store, cancel).await?;
            let Some((other, was_set)) = opened else { return Ok(()) };
            feed = other;
            if was_set {
                beside = WorkBeside::new(&lane, store, cancel);
            }
            if !feed.is_direct() {
                // The stream is trusted again; a direct feed remembers the hole until the lane is past it.
                hole = None;
            }
            due.join_at = Instant::now() + JOIN_INTERVAL;
        }
    }
}

/// Returns a window at the lane's stored progress; removes its rows first when it was set back to nothing.
async fn begin<S: SourceConnector, L: Log>(
    lane: &Lane<'_, S, L>,
    store: &mut impl LaneStore,
    applied: &watch::Sender<Lsn>,
    cancel: &CancellationToken,
) -> Result<LaneWindow, Fault> {
    let mut progress = store.load().await?;
    if progress.is_emptied() {
        progress = empty(lane, store, progress, cancel).await?;
    }
    applied.send_replace(progress.position);
    tracing::info!(lane = %lane.id, position = %progress.position, revision = progress.revision, "lane begins");
    Ok(LaneWindow::new(progress))
}

/// Commits the window, and does a step of the work beside the feed once the window is empty.
async fn commit_and_step<S: RowSource, L: Log>(
    lane: &Lane<'_, S, L>,
    window: &mut LaneWindow,
    beside: &mut WorkBeside<'_, S>,
    store: &mut impl LaneStore,
    project: impl FnMut(&Change<'_, '_>, &mut Flush),
    applied: &watch::Sender<Lsn>,
    meters: &Meters,
) -> Result<(), Fault> {
    if window.has_moved() {
        beside.refresher.record(window.flush());
    }
    commit(lane, window, store, applied, meters).await?;
    beside.write(window, store, project).await
}

/// Returns the feed of the stream if it links to a lane that is fed directly.
async fn joined<S: SourceConnector, L: Log>(
    lane: &Lane<'_, S, L>,
    window: &LaneWindow,
    hole: Option<Hole>,
    fed: Option<&Timeline>,
    cancel: &CancellationToken,
) -> Result<Option<Feed<L::Reader>>, Fault> {
    let joined = unless(cancel, lane.join(window.progress(), hole, fed)).await?;
    let Some(Some(joined)) = joined else { return Ok(None) };
    tracing::info!(lane = %lane.id, position = %window.progress().position, "reads the stream again");
    failpoints::reach("lane-direct-joined").await;
    Ok(Some(joined))
}

/// Waits for the first event, and records how long. Each branch is cancel safe.
async fn next_event<R: LogReader, S: RowSource>(
    feed: &mut Feed<R>,
    window: &LaneWindow,
    due: &Due,
    beside: &mut WorkBeside<'_, S>,
    meters: &Meters,
    cancel: &CancellationToken,
) -> Result<Event, Fault> {
    beside.withdrawals.measure(window.progress());
    let is_direct = feed.is_direct();
    meters.direct.set(f64::from(u8::from(is_direct)));
    let began = Instant::now();
    let is_removal_due = !window.is_within_event() && Withdrawals::are_due(window.progress());
    let event = tokio::select! {
        biased;
        () = cancel.cancelled() => Ok(Event::Cancelled),
        () = tokio::time::sleep_until(due.join_at), if is_direct => Ok(Event::JoinDue),
        delivery = feed.next() => match delivery {
            Ok(delivery) => Ok(Event::Delivery(Box::new(delivery))),
            Err(fault) => FeedBreak::of(fault, is_direct).map(Event::Broken),
        },
        () = tokio::time::sleep_until(due.progress_at), if window.has_moved() => Ok(Event::ProgressDue),
        // A late writer may undo a part of a flush that ends within an event, where versions have no order within it.
        () = beside.refresher.read(window.progress()), if !window.is_within_event() => Ok(Event::Read),
        // The read comes first, so the next chunk is on its way while claims are removed.
        () = std::future::ready(()), if is_removal_due => Ok(Event::RemovalDue),
        () = tokio::time::sleep_until(due.check_at), if !window.has_moved() => Ok(Event::CheckDue),
    };
    meters.waits.record(began.elapsed().as_secs_f64());
    event
}

/// Takes a message, and those that have arrived already, until the window is full or the feed is broken. Shows the
/// changes that are neither applied nor passed, also when it fails.
fn take<S, L: Log>(
    lane: &Lane<'_, S, L>,
    window: &mut LaneWindow,
    feed: &mut Feed<L::Reader>,
    delivery: Delivery,
    project: impl FnMut(&Change<'_, '_>, &mut Flush),
    meters: &Meters,
) -> Result<Option<FeedBreak>, Fault> {
    let broken = add_messages(lane, window, feed, delivery, project);
    meters.unaccounted.set(window.counts().unaccounted() as f64);
    broken
}

fn add_messages<S, L: Log>(
    lane: &Lane<'_, S, L>,
    window: &mut LaneWindow,
    feed: &mut Feed<L::Reader>,
    delivery: Delivery,
    mut project: impl FnMut(&Change<'_, '_>, &mut Flush),
) -> Result<Option<FeedBreak>, Fault> {
    let mut next = Ok(delivery);
    loop {
        let taken = next.and_then(|delivery| {
            let lacks_rows = lacks_rows(window.progress(), lane.start, &delivery.envelope);
            let fields = lane.fields_read().taken(window.progress(), &delivery.envelope);
            window.add_message(lane.id, &delivery, &mut project)?;
            if window.note_fields(fields) {
                tracing::info!(lane = %lane.id, "messages have all fields of the lane again: it reads all tables");
            } else if fields.begins_lack {
                tracing::warn!(
                    lane = %lane.id, reads = lane.fields,
                    "messages were captured with fewer fields than the projection reads: their reader has another configuration"
                );
            } else if lacks_rows && !fields.is_lacking {
                tracing::info!(lane = %lane.id, "the lane begins with a refresh of all tables");
                window.load();
            }
            Ok(())
        });
        match taken {
            Err(fault) => return FeedBreak::of(fault, feed.is_direct()).map(Some),
            Ok(()) if window.is_full(lane.limits.flush_rows.get()) => return Ok(None),
            Ok(()) => {}
        }
        match feed.next().now_or_never() {
            Some(delivery) => next = delivery,
            None => return Ok(None),
        }
    }
}

/// Drops the withdrawals of shards without rows when the transaction takes no more.
async fn leave_out_withdrawals<S: RowSource>(
    window: &mut LaneWindow,
    refresher: &mut Refresher<'_, S>,
    store: &mut impl LaneStore,
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    if !window.has_many_withdrawals() {
        return Ok(());
    }
    // Noted first: a chunk of a dropped table may have been read before the drop.
    refresher.record(window.flush());
    // On the heap: it is rare, and every step of the lane would have room for it on its stack.
    let with_rows = Box::pin(store.shards_with_rows(window.withdrawn()));
    if let Some(with_rows) = unless(cancel, with_rows).await? {
        window.keep_withdrawals_of(&with_rows);
    }
    Ok(())
}

/// Whether the window is committed now: it no longer waits, or a chunk waits for it.
fn is_commit_due<S: RowSource>(
    due: &Due,
    window: &LaneWindow,
    refresher: &Refresher<'_, S>,
    limits: &Limits,
) -> bool {
    due.is_reached(window, limits) || !window.is_within_event() && refresher.is_due(window.progress())
}

/// Returns the hole that a fault of the stream shows. A direct feed reads the binlog, so a hole there is a defect.
fn found_hole<S, L: Log>(
    lane: &Lane<'_, S, L>,
    window: &LaneWindow,
    feed: &Feed<L::Reader>,
    fault: Fault,
) -> Result<Hole, Fault> {
    if feed.is_direct() {
        return Err(Fault::new(Code::Internal, format!("lane {}", lane.id), "its direct feed does not link")
            .caused_by(fault));
    }
    tracing::warn!(lane = %lane.id, %fault, "the stream does not continue at the lane's position");
    Ok(Hole::at(window.progress().position))
}

/// Removes the claims of a lane that was rewound to nothing, a shard at a time, before the first change comes. The
/// position stays at nothing meanwhile, so a process that is cut off begins again.
async fn empty<S: SourceConnector, L: Log>(
    lane: &Lane<'_, S, L>,
    store: &mut impl LaneStore,
    mut progress: Progress,
    cancel: &CancellationToken,
) -> Result<Progress, Fault> {
    let Some(shards) = unless(cancel, lane.source.shards()).await? else { return Ok(progress) };
    tracing::info!(
        lane = %lane.id, shards = shards.len(),
        "the lane was rewound to nothing: its derived rows are removed"
    );
    // The first commit raises only the fence: a flush of another process that is under way then fails, instead of
    // ending after the removal of the rows that it has written.
    for shard in std::iter::once(None).chain(shards.into_iter().map(Some)) {
        let mut flush = Flush::new(progress.clone());
        flush.progress.revision += 1;
        shard.into_iter().for_each(|shard| flush.withdraw(shard, Lsn::MAX));
        // If the commit is cut off, it is done or not: the process that runs the lane next reads its progress.
        if unless(cancel, store.commit(&flush)).await?.is_none() {
            break;
        }
        progress = flush.progress;
    }
    Ok(progress)
}

async fn commit<S, L>(
    lane: &Lane<'_, S, L>,
    window: &mut LaneWindow,
    store: &mut impl LaneStore,
    applied: &watch::Sender<Lsn>,
    meters: &Meters,
) -> Result<(), Fault> {
    if !window.has_moved() {
        return Ok(());
    }
    let began = Instant::now();
    failpoints::reach("lane-before-commit").await;
    if store.is_atomic() {
        window.defer_withdrawals();
    }
    if !store.is_atomic()
        && let Some(note) = window.epoch_record()
    {
        store.commit(&note).await?;
        window.epoch_recorded(note.progress);
    }
    let (rows, taken, read_at_us) = (window.rows(), window.counts(), window.read_at_us());
    store.commit(window.flush()).await?;
    failpoints::reach("lane-after-commit").await;
    window.committed();
    let position = window.progress().position;
    applied.send_replace(position);
    meters.rows.increment(rows as u64);
    meters.applied.increment(taken.applied);
    meters.passed.increment(taken.passed);
    meters.overlapping.increment(taken.overlapping);
    meters.flushes.increment(1);
    meters.seconds.record(began.elapsed().as_secs_f64());
    meters.fill.record(rows as f64 / lane.limits.flush_rows.get() as f64);
    if taken.applied > 0 {
        meters.record_ages(window.progress(), read_at_us, wall_clock::now_us());
    }
    tracing::trace!(lane = %lane.id, %position, rows, "committed");
    Ok(())
}

struct Meters {
    rows: Counter,
    applied: Counter,
    passed: Counter,
    overlapping: Counter,
    unaccounted: Gauge,
    waits: Histogram,
    flushes: Counter,
    seconds: Histogram,
    fill: Histogram,
    visible: Histogram,
    read_to_visible: Histogram,
    direct: Gauge,
}

impl Drop for Meters {
    /// Ends the gauge with the attempt: the process that runs the lane next may be another one.
    fn drop(&mut self) {
        self.direct.set(0.0);
    }
}

impl Meters {
    fn of(id: &LaneId) -> Self {
        let labels = id.labels();
        // The store counts these.
        counter!(names::LANE_REPEATED, &labels).increment(0);
        let changes = |lanes: &[(&'static str, String)], outcome: &[(&'static str, &str)]| {
            let outcome = outcome.iter().map(|(name, value)| (*name, (*value).to_owned()));
            let labels: Vec<_> = lanes.iter().cloned().chain(outcome).collect();
            counter!(names::LANE_CHANGES, &labels)
        };
        // Most lanes never pass a change, so those of a source share these two series.
        let passed = |reason| changes(&labels[..3], &[("outcome", "passed"), ("reason", reason)]);
        Self {
            rows: counter!(names::LANE_ROWS, &labels),
            applied: changes(&labels, &[("outcome", "applied")]),
            passed: passed("duplicate"),
            overlapping: passed("overlap"),
            unaccounted: gauge!(names::LANE_UNACCOUNTED, &labels),
            waits: histogram!(names::LANE_WAIT, &labels[..2]),
            flushes: counter!(names::LANE_FLUSHES, &labels),
            seconds: histogram!(names::LANE_FLUSH_SECONDS, &labels[..2]),
            fill: histogram!(names::LANE_FLUSH_FILL, &labels[..2]),
            visible: histogram!(names::LANE_VISIBLE, &labels[..2]),
            read_to_visible: histogram!(names::LANE_READ_TO_VISIBLE, &labels[..2]),
            direct: gauge!(names::LANE_DIRECT, &labels),
        }
    }

    /// Records the ages of the newest change of a flush that is visible now.
    fn record_ages(&self, progress: &Progress, read_at_us: u64, now_us: u64) {
        let ages = [
            (&self.visible, ages::since_commit(progress, now_us)),
            (&self.read_to_visible, ages::since_read(progress, read_at_us, now_us)),
        ];
        for (histogram, age) in ages {
            age.iter().for_each(|age| histogram.record(age.as_secs_f64()));
        }
    }
}

#[cfg(test)]
mod tests;
