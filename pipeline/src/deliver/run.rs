//! One attempt of a lane: progress from the target, messages from behind it, commits until something fails.
//!
//! Every error ends the attempt; the next one reads progress again. So a commit of unknown outcome needs no special
//! path: the progress row says whether it happened.

use std::time::Duration;

use anabranch_schemas::change::Change;
use anabranch_schemas::lsn::Lsn;
use futures::FutureExt;
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::window::Window;
use super::{Flush, LaneId, Progress};
use crate::config::Limits;
use crate::error::{Code, Fault};
use crate::failpoints;
use crate::metrics as names;
use crate::ports::{LaneStore, Log, LogMessage, LogReader, ReadFrom};

/// Progress without rows (messages that hold nothing for this lane) is stored at most this often: a transaction for
/// each would cost more than it tells.
const IDLE_PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// What one lane works on.
#[derive(Debug)]
pub struct Lane<'a, L> {
    pub id: &'a LaneId,
    pub log: &'a L,
    pub limits: &'a Limits,
}

/// What woke the loop.
enum Event {
    Message(Box<LogMessage>),
    ProgressDue,
    Cancelled,
}

/// Applies the stream to `store` until `cancel` or the first error. `project` turns a change into mutations of the
/// lane's tables. `applied` follows the position up to which the target holds everything.
pub async fn run<L: Log>(
    lane: Lane<'_, L>,
    store: &mut impl LaneStore,
    mut project: impl FnMut(&Change<'_, '_>, &mut Flush) + Send,
    applied: &watch::Sender<Lsn>,
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    let meters = Meters::of(lane.id);
    let progress = store.load().await?;
    applied.send_replace(progress.position);
    tracing::info!(lane = %lane.id, position = %progress.position, revision = progress.revision, "lane begins");
    let mut reader = lane.open(&progress).await?;
    let mut window = Window::new(progress);
    let mut progress_at = Instant::now();
    loop {
        let event = tokio::select! {
            biased;
            () = cancel.cancelled() => Event::Cancelled,
            message = reader.next() => match message {
                Ok(message) => Event::Message(Box::new(message)),
                // The stream changed under us (wiped, rolled back): look again where it links.
                Err(fault) if fault.code() == Code::LogHole => {
                    tracing::warn!(lane = %lane.id, %fault, "the stream no longer continues here");
                    commit(&lane, &mut window, store, applied, &meters).await?;
                    reader = lane.open(window.progress()).await?;
                    continue;
                }
                Err(fault) => return Err(fault),
            },
            () = tokio::time::sleep_until(progress_at), if window.has_moved() => Event::ProgressDue,
        };
        match event {
            Event::Message(message) => {
                window.take(lane.id, &message, &mut project)?;
                while window.rows() < lane.limits.flush_rows.get()
                    && let Some(next) = reader.next().now_or_never()
                {
                    window.take(lane.id, &next?, &mut project)?;
                }
                if !window.has_rows() && Instant::now() < progress_at {
                    continue;
                }
            }
            Event::ProgressDue => {}
            Event::Cancelled => return commit(&lane, &mut window, store, applied, &meters).await,
        }
        commit(&lane, &mut window, store, applied, &meters).await?;
        progress_at = Instant::now() + IDLE_PROGRESS_INTERVAL;
    }
}

impl<L: Log> Lane<'_, L> {
    /// Opens the stream behind the last applied message. When that message is not there any more (retention, loss,
    /// rollback), reading starts at the oldest one: what is not above the position is passed over, and the link
    /// check finds out whether anything is missing.
    async fn open(&self, progress: &Progress) -> Result<L::Reader, Fault> {
        let source = &self.id.source;
        let Some((sequence, id)) = progress.message.clone() else {
            return self.log.reader(source, ReadFrom::At(progress.position)).await;
        };
        match self.log.reader(source, ReadFrom::After { sequence, id }).await {
            Err(fault) if fault.code() == Code::LogHole => {
                tracing::warn!(lane = %self.id, %fault, "the last applied message is gone; reading from the oldest one");
                self.log.reader(source, ReadFrom::At(progress.position)).await
            }
            other => other,
        }
    }
}

async fn commit<L>(
    lane: &Lane<'_, L>,
    window: &mut Window,
    store: &mut impl LaneStore,
    applied: &watch::Sender<Lsn>,
    meters: &Meters,
) -> Result<(), Fault> {
    if !window.has_moved() {
        return Ok(());
    }
    let began = Instant::now();
    failpoints::reach("lane-before-commit").await;
    let rows = window.rows();
    store.commit(window.flush()).await?;
    failpoints::reach("lane-after-commit").await;
    window.committed();
    let position = window.progress().position;
    applied.send_replace(position);
    meters.rows.increment(rows as u64);
    meters.flushes.increment(1);
    meters.seconds.record(began.elapsed().as_secs_f64());
    meters.position.set(position.as_u64() as f64);
    tracing::trace!(lane = %lane.id, %position, rows, "committed");
    Ok(())
}

struct Meters {
    rows: Counter,
    flushes: Counter,
    seconds: Histogram,
    position: Gauge,
}

impl Meters {
    fn of(id: &LaneId) -> Self {
        let labels = [
            ("projection", id.projection.clone()),
            ("target", id.target.clone()),
            ("source", id.source.clone()),
            ("lane", id.lane.to_string()),
        ];
        Self {
            rows: counter!(names::LANE_ROWS, &labels),
            flushes: counter!(names::LANE_FLUSHES, &labels),
            seconds: histogram!(names::LANE_FLUSH_SECONDS, &labels[..2]),
            position: gauge!(names::LANE_POSITION, &labels),
        }
    }
}
