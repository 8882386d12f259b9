//! Where a lane's messages come from: the source's stream, or the binlog itself.
//!
//! The log is a cache of the binlog. A lane is fed *directly* when its position does not link to the stream (a hole, a
//! lost or rolled back stream, retention, a rewind). The direct feed reads the source for this lane alone, with the
//! same code as the reader's, through a bounded channel. The lane goes back to the stream as soon as that links. So one
//! lane's past never delays the others' present.
//!
//! The stream's end says which epoch the present server has: positions of a direct feed and of the stream agree.

use std::time::Duration;

use anabranch_schemas::lsn::{FIRST_EPOCH, Lsn};
use anabranch_schemas::timeline::Timeline;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::lane::Lane;
use super::link::{BEGIN_NEXT_EPOCH, links, require_beginning, require_timeline};
use super::window::Delivery;
use crate::error::{Code, Fault};
use crate::failpoints;
use crate::ports::{BinlogStart, ChangeSource, Filled, Log, LogEntry, LogReader, ReadFrom, SourceConnector};
use crate::records::{BatchBuilder, Framer, Progress};
use crate::wall_clock;

/// Time between two checks whether the stream links, for a lane that is fed directly or waits to be.
pub(super) const JOIN_INTERVAL: Duration = Duration::from_millis(500);
/// Time after which a stream that was broken at a position is tried again there; until then only at later positions.
const DOUBT: Duration = Duration::from_secs(30);
/// Batches read ahead of the target, at most. Each has at most `limits.batch_bytes`.
const BATCHES_AHEAD: usize = 4;

/// An open feed of a lane.
pub(super) enum Feed<R> {
    Stream {
        reader: R,
        /// The next message follows the one that the lane took last.
        follows: bool,
    },
    Direct(DirectFeed),
}

/// A read of the source's binlog in a separate task, which ends with the feed.
pub(super) struct DirectFeed {
    batches: mpsc::Receiver<Result<Delivery, Fault>>,
    /// Epoch and server that the feed reads.
    timeline: Timeline,
    _task: AbortOnDropHandle<()>,
}

/// Position and time at which the stream was found to break off.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hole {
    position: Lsn,
    found_at: Instant,
}

impl Hole {
    pub(super) fn at(position: Lsn) -> Self {
        Self { position, found_at: Instant::now() }
    }

    /// Whether the stream is to be trusted again at a position.
    fn is_passed(&self, position: Lsn) -> bool {
        position > self.position || self.found_at.elapsed() > DOUBT
    }
}

impl<R: LogReader> Feed<R> {
    /// Returns a feed that continues after the message that the lane took last.
    fn after(reader: R) -> Self {
        Self::Stream { reader, follows: true }
    }

    /// Returns a feed that begins at a position.
    fn at(reader: R) -> Self {
        Self::Stream { reader, follows: false }
    }

    pub(super) fn is_direct(&self) -> bool {
        self.direct_timeline().is_some()
    }

    /// Returns the epoch of a direct feed, and the server that it reads; `None` for the stream.
    pub(super) fn direct_timeline(&self) -> Option<&Timeline> {
        match self {
            Self::Direct(feed) => Some(&feed.timeline),
            Self::Stream { .. } => None,
        }
    }

    /// Waits for the next message and returns it. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Delivery, Fault> {
        match self {
            Self::Stream { reader, follows } => {
                let message = reader.next().await?;
                Ok(Delivery::stored(message, std::mem::replace(follows, true)))
            }
            Self::Direct(feed) => match feed.batches.recv().await {
                Some(batch) => batch,
                None => {
                    Err(Fault::new(Code::Internal, "direct feed", "its binlog stream ended without an error"))
                }
            },
        }
    }
}

/// Whether a fault means that the binlog has changes that the stream lacks: a damaged message is a hole too.
pub(crate) fn is_hole(fault: &Fault) -> bool {
    matches!(fault.code(), Code::LogHole | Code::LogMessageCorrupt)
}

impl<S: SourceConnector, L: Log> Lane<'_, S, L> {
    /// Opens the stream where it continues the lane's progress, otherwise the source.
    ///
    /// The lane waits for an empty stream: the reader begins it with a position message, which shows whether it links.
    /// A lane that waits for other lanes' direct feeds checks the stream meanwhile. A lane that may have rows of a
    /// later epoch than its position's is fed by the present server, in its epoch.
    pub(super) async fn feed(
        &self,
        progress: &Progress,
        hole: Option<Hole>,
    ) -> Result<Feed<L::Reader>, Fault> {
        let source = &self.id.source;
        if let Some(LogEntry { envelope: end, .. }) = self.log.end(source).await?
            && end.beginning > progress.beginning
        {
            require_beginning(self.id, progress, &end)?;
        }
        if let (None, Some((sequence, id)), false) =
            (hole, progress.message.clone(), progress.is_in_earlier_epoch())
        {
            match self.log.reader(source, ReadFrom::After { sequence, id }).await {
                Err(fault) if fault.code() == Code::LogHole => {
                    tracing::warn!(lane = %self.id, %fault, "the last applied message is not in the stream any more");
                }
                opened => return Ok(Feed::after(opened?)),
            }
        }
        let (mut waits, mut is_awaited) = (false, false);
        loop {
            let Some(end) = self.log.end(source).await? else {
                if progress.is_in_earlier_epoch() {
                    sleep(JOIN_INTERVAL).await;
                    continue;
                }
                return Ok(Feed::at(self.log.reader(source, ReadFrom::At(Lsn::ZERO)).await?));
            };
            // A stream that was lost begins with a point of the past, and then reports the present epoch.
            let is_earlier_epoch = end.envelope.position.epoch() < progress.highest_position.epoch();
            if progress.is_in_earlier_epoch() && is_earlier_epoch && !std::mem::replace(&mut is_awaited, true)
            {
                sleep(JOIN_INTERVAL).await;
                continue;
            }
            if let Some(feed) = self.join(progress, hole, None).await? {
                return Ok(feed);
            }
            if let Some(permit) = self.permit().await {
                return self.open_direct(progress, &end, permit).await.map(Feed::Direct);
            }
            if !std::mem::replace(&mut waits, true) {
                tracing::info!(lane = %self.id, "the lane waits until another lane ends its direct feed");
            }
        }
    }

    /// Returns the stream, if it links at the lane's position. A lane that is `fed` from the binlog in an epoch that is
    /// over must begin again in the present one: the old epoch's server may live on, and the stream would never link.
    pub(super) async fn join(
        &self,
        progress: &Progress,
        hole: Option<Hole>,
        fed: Option<&Timeline>,
    ) -> Result<Option<Feed<L::Reader>>, Fault> {
        let position = progress.position;
        let source = &self.id.source;
        let Some(LogEntry { envelope: end, .. }) = self.log.end(source).await? else { return Ok(None) };
        require_timeline(self.id, progress, &end)?;
        let present = Timeline::of(end.position, &end.server);
        if let Some(over) = fed.filter(|fed| fed.epoch < present.epoch) {
            let found = format!("a direct feed of epoch {over}");
            return Err(Fault::new(Code::SourceUnreachable, format!("source {source}"), found)
                .needs(format!("a direct feed of epoch {present}, which the stream has")));
        }
        if progress.is_in_earlier_epoch() || hole.is_some_and(|hole| !hole.is_passed(position)) {
            return Ok(None);
        }
        // The next append follows the end; a stored message says itself which position it follows.
        let is_linked = (end.position < position && end.position.epoch() == position.epoch())
            || self
                .log
                .first_at(source, position)
                .await?
                .is_some_and(|first| links(&first.envelope, position, false));
        if !is_linked {
            return Ok(None);
        }
        self.log.reader(source, ReadFrom::At(position)).await.map(|reader| Some(Feed::at(reader)))
    }

    /// Returns the permit for a direct feed; `None` while other lanes have all of them.
    async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        let waited = timeout(JOIN_INTERVAL, self.shared.feeds.clone().acquire_owned()).await;
        waited.ok().map(|permit| permit.expect("it is never closed"))
    }

    async fn open_direct(
        &self,
        progress: &Progress,
        end: &LogEntry,
        permit: OwnedSemaphorePermit,
    ) -> Result<DirectFeed, Fault> {
        let entry = self.direct_entry(progress, end)?;
        let timeline = Timeline::of(end.envelope.position, &end.envelope.server);
        let resume_point = entry.resume_point();
        let source = self.source.open(entry, &timeline, self.replica_slot).await?;
        if *source.server() != end.envelope.server {
            let (found, needed) = (format!("it is server {}", source.server()), &end.envelope.server);
            return Err(Fault::new(Code::SourceUnreachable, format!("source {}", self.id.source), found)
                .needs(format!(
                    "server {needed}, which the stream was read from, or a stream that follows the new one"
                )));
        }
        tracing::info!(
            lane = %self.id, position = %progress.position, start_position = %source.start_position(),
            "the lane is fed from the binlog: the stream does not link"
        );
        failpoints::reach("lane-direct-opened").await;
        let is_origin = progress.position == Lsn::ZERO;
        let (numbers, batch_bytes) = ((0, progress.beginning), self.limits.batch_bytes.get());
        let (framer, batch) = Framer::begin(
            resume_point,
            source.start_position(),
            is_origin,
            numbers,
            self.source.captured(),
            batch_bytes,
        );
        let (sender, batches) = mpsc::channel(BATCHES_AHEAD);
        let name = self.id.source.clone();
        let task = tokio::spawn(async move {
            let _permit = permit;
            if let Err(fault) = read(&name, source, batch, framer, &sender).await {
                // A receiver that is gone needs no reason.
                let _ = sender.send(Err(fault)).await;
            }
        });
        Ok(DirectFeed { batches, timeline, _task: AbortOnDropHandle::new(task) })
    }

    /// Returns the entry at which a direct feed enters the binlog. A lane that has not begun uses the configured one.
    fn direct_entry(&self, progress: &Progress, end: &LogEntry) -> Result<BinlogStart, Fault> {
        let epoch = end.envelope.position.epoch();
        let highest = progress.timeline().epoch;
        if epoch < highest {
            let found = format!("the stream is in epoch {epoch}, and the lane has been in {highest}");
            return Err(Fault::new(Code::LogEpochLagging, format!("lane {}", self.id), found)
                .needs("the source's reader, which begins a later epoch")
                .remedy(BEGIN_NEXT_EPOCH));
        }
        if progress.position > Lsn::ZERO {
            return Ok(BinlogStart::Resume {
                resume: progress.resume.clone(),
                position: progress.position,
                server: progress.server.clone(),
            });
        }
        let found = match self.start {
            BinlogStart::Latest => "the lane has not begun, and the source's `start` is `latest`",
            _ if epoch > FIRST_EPOCH => {
                "the lane has not begun, and the source has failed over since its beginning"
            }
            start => return Ok(start.clone()),
        };
        Err(Fault::new(Code::LogHole, format!("lane {}", self.id), found)
            .needs("the whole history, in the stream or in the binlog")
            .remedy(format!(
                "`anabranch replay --projection {} --source {} --from …` says where it begins",
                self.id.projection, self.id.source
            )))
    }
}

/// Reads the source and sends a batch as soon as it is full or the source has nothing more to read.
async fn read<C: ChangeSource>(
    name: &str,
    mut source: C,
    mut batch: BatchBuilder,
    mut framer: Framer,
    batches: &mpsc::Sender<Result<Delivery, Fault>>,
) -> Result<(), Fault> {
    loop {
        let filled = source.fill(&mut batch).await?;
        let is_ready = batch.is_full() || filled == Filled::Drained && !batch.is_empty();
        if !is_ready && batch.position() == framer.previous() {
            continue;
        }
        batch.require_order(name)?;
        let taken = batch.take();
        let envelope = framer.frame(&taken, source.server());
        if batches
            .send(Ok(Delivery {
                envelope,
                payload: taken.payload,
                stored: None,
                read_at_us: wall_clock::now_us(),
                follows: true,
                has_next: false,
            }))
            .await
            .is_err()
        {
            return Ok(());
        }
    }
}
