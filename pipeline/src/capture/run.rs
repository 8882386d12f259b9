//! One attempt of a source's reader: lease, end of the stream, binlog from there, append until something fails.
//!
//! Every error ends the attempt; the supervisor starts the next one, which reads the end of the stream again. So
//! there is one path for the first start, a restart, a lost connection and a lost fence.

use anabranch_schemas::lsn::Lsn;
use futures::StreamExt;
use futures::stream::BoxStream;
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::busiest::BusiestTables;
use super::open::{Capture, OpenedSource, anew, entry_name, lane_progress, open_source, refresh_all};
use super::pace::{self, Step, View};
use crate::config::Limits;
use crate::epochs::Epochs;
use crate::error::{Code, Fault};
use crate::failpoints;
use crate::identifiers::flux::CapturedNumbers;
use crate::metrics as names;
use crate::ports::{BinlogStart, ChangeSource, Filled, Log, LogEntry, LogWriter, Registers, SourceConnector};
use crate::records::{BatchBuilder, Framer, Progress};

/// An event that wakes the loop.
enum Event {
    Acknowledged(Box<LogEntry>),
    Filled(Filled),
    PositionDue,
    /// A lane or another task waits for the position.
    PositionAsked,
    Cancelled,
}

/// Captures until `cancel` or the first error. `acknowledged` follows the position that the log holds. On `cancel` the
/// reader reads no more, and waits until everything that it sent is acknowledged.
///
/// `lanes` yields the progress of every lane of this source. The reader calls it only when the stream is empty or ends
/// before the binlog begins, the register of epochs is missing, or the binlog holds an unreadable part. It skips that
/// part, once an attempt, when every lane reads its tables again anyway.
pub async fn run<
    S: SourceConnector,
    L: Log,
    M: Registers,
    P: Future<Output = Result<Vec<Progress>, Fault>>,
>(
    capture: Capture<'_, S, L, M>,
    lanes: impl Fn() -> P,
    acknowledged: &watch::Sender<Lsn>,
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    let mut epochs = Epochs::read(capture.registers, capture.source).await?;
    let end = capture.log.end(capture.source).await?;
    let entered = open_source(&capture, &mut epochs, end.as_ref(), &lanes).await?;
    let fault = match read(&capture, epochs, end, entered, acknowledged, cancel).await {
        Err(fault) if fault.code().is_mended_by_refresh() => fault,
        ended => return ended,
    };
    let mut epochs = Epochs::read(capture.registers, capture.source).await?;
    let end = capture.log.end(capture.source).await?;
    end.iter().for_each(|end| epochs.learn_of_stream(&end.envelope));
    let known = lane_progress(&lanes, &mut epochs).await?;
    let entered = anew(&capture, &epochs, &known, BinlogStart::Latest, fault).await?;
    match read(&capture, epochs, end, entered, acknowledged, cancel).await {
        Err(fault) if fault.code().is_mended_by_refresh() => Err(refresh_all(capture.source, fault)),
        ended => ended,
    }
}

/// Reads from the entry of the source, and appends after the stream's end.
async fn read<S: SourceConnector, L: Log, M: Registers>(
    capture: &Capture<'_, S, L, M>,
    epochs: Epochs<'_, M>,
    end: Option<LogEntry>,
    entered: OpenedSource<S::Source>,
    acknowledged: &watch::Sender<Lsn>,
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    let position = entered.position();
    let OpenedSource { source, entry, origin, is_announced, crossing } = entered;
    let term = end.as_ref().map_or(1, |end| end.envelope.term + 1);
    let (captured, batch_bytes) = (capture.connector.captured(), capture.limits.batch_bytes.get());
    // Lanes that read more fields than the stream's end has begin at the first message that has them.
    let is_announced = is_announced && end.as_ref().is_some_and(|end| end.envelope.captured == captured);
    let numbers = (term, epochs.number());
    let (framer, mut batch) =
        Framer::begin(entry.resume_point(), position, origin, numbers, captured, batch_bytes);
    if let Some(crossing) = crossing {
        let (tables, server) = (crossing.tables().len(), source.server());
        tracing::warn!(
            source = capture.source, tables, common = %crossing.common, %server,
            "the server lacks transactions that were read: their tables are read again"
        );
        crossing.add_rereads(&mut batch, epochs.latest().followed_by(server).epoch)?;
    }
    batch.count_tables();
    if let Some(numbers) = &capture.numbers {
        batch.note_numbers(numbers.collector());
    }
    tracing::info!(source = capture.source, %position, entry = entry_name(&entry), "capture begins");
    let writer = capture.log.writer(capture.source, end.as_ref()).await?;
    let position_requests = capture.log.position_requests(capture.source).await?;
    acknowledged.send_replace(position);
    let attempt = Attempt {
        name: capture.source,
        log: capture.log,
        is_announced,
        last_id: end.map(|end| end.id),
        batch,
        framer,
        counted: 0,
        drained: false,
        position_message_at: Instant::now() + capture.limits.position_interval,
        // The age of the last message is not known.
        keep_at: Instant::now() + capture.limits.position_interval,
        check_at: Instant::now() + capture.limits.position_interval,
        meters: Meters::of(capture.source),
        busiest: &capture.busiest,
        numbers: capture.numbers.as_ref(),
        epochs,
        source,
        writer,
        position_requests,
        limits: capture.limits,
    };
    attempt.end(acknowledged, cancel).await
}

struct Meters {
    changes: Counter,
    unchanged: Counter,
    unseen: Counter,
    rereads: Counter,
    acknowledged: Counter,
    messages: Counter,
    bytes: Counter,
    in_flight: Gauge,
    /// Waits for the log with a full batch in hand.
    waits: Histogram,
}

impl Drop for Meters {
    /// Ends the gauge with the attempt: the process that runs the reader next may be another one.
    fn drop(&mut self) {
        self.in_flight.set(0.0);
    }
}

impl Meters {
    fn of(source: &str) -> Self {
        let source = source.to_owned();
        Self {
            changes: counter!(names::SOURCE_CHANGES, "source" => source.clone()),
            unchanged: counter!(names::SOURCE_UNCHANGED, "source" => source.clone()),
            unseen: counter!(names::SOURCE_UNSEEN_CASCADES, "source" => source.clone()),
            rereads: counter!(names::SOURCE_REREADS, "source" => source.clone()),
            acknowledged: counter!(names::LOG_CHANGES, "source" => source.clone()),
            messages: counter!(names::LOG_MESSAGES, "source" => source.clone()),
            bytes: counter!(names::LOG_BYTES, "source" => source.clone()),
            in_flight: gauge!(names::LOG_IN_FLIGHT, "source" => source.clone()),
            waits: histogram!(names::LOG_WAIT, "source" => source),
        }
    }
}

struct Attempt<'a, C, L: Log, M> {
    name: &'a str,
    log: &'a L,
    epochs: Epochs<'a, M>,
    source: C,
    writer: L::Writer,
    position_requests: BoxStream<'static, ()>,
    /// Id of the newest message that is known to be stored.
    last_id: Option<String>,
    batch: BatchBuilder,
    framer: Framer,
    /// Changes that the counter of read changes includes.
    counted: u64,
    /// The stream has a message with the captured fields, so lanes can see where it continues.
    is_announced: bool,
    drained: bool,
    position_message_at: Instant,
    /// The time at which a position message is due even if the position has not moved.
    keep_at: Instant,
    /// The time of the next check whether the source has begun anew.
    check_at: Instant,
    meters: Meters,
    busiest: &'a BusiestTables,
    numbers: Option<&'a CapturedNumbers>,
    limits: &'a Limits,
}

impl<C: ChangeSource, L: Log, M: Registers> Attempt<'_, C, L, M> {
    /// Runs to the end. Before it returns a fault that the tables mend, it waits until everything that was sent is
    /// acknowledged, so that the next attempt resumes after it.
    async fn end(
        mut self,
        acknowledged: &watch::Sender<Lsn>,
        cancel: &CancellationToken,
    ) -> Result<(), Fault> {
        let ended = self.run(acknowledged, cancel).await;
        if ended.as_ref().is_err_and(|fault| fault.code().is_mended_by_refresh()) {
            while self.writer.in_flight() > 0 {
                let entry = self.writer.acknowledged().await?;
                self.acknowledge(&entry, acknowledged).await;
            }
        }
        ended
    }

    async fn run(
        &mut self,
        acknowledged: &watch::Sender<Lsn>,
        cancel: &CancellationToken,
    ) -> Result<(), Fault> {
        loop {
            let step = pace::next_step(self.view());
            if step == Step::Append {
                self.append().await?;
                continue;
            }
            let began = Instant::now();
            let event = self.event(step, cancel).await;
            if step == Step::AwaitAcknowledgement {
                self.meters.waits.record(began.elapsed().as_secs_f64());
            }
            match event? {
                Event::Filled(filled) => {
                    self.count_read();
                    self.drained = filled == Filled::Drained;
                }
                Event::Acknowledged(entry) => self.acknowledge(&entry, acknowledged).await,
                Event::PositionDue => self.check_end().await?,
                // A request before the position has moved is dropped: its sender repeats it.
                Event::PositionAsked if self.wants_position_message() => {
                    self.position_message_at = Instant::now()
                }
                Event::PositionAsked => {}
                Event::Cancelled => return self.drain(acknowledged).await,
            }
        }
    }

    fn view(&self) -> View {
        View {
            full: self.batch.is_full(),
            empty: self.batch.is_empty(),
            drained: self.drained,
            moved: self.wants_position_message(),
            // Lanes wait for the first message of an empty stream, or with other fields, also when the source is quiet.
            position_message_due: Instant::now() >= self.position_message_at || !self.is_announced,
            in_flight: self.writer.in_flight(),
            has_room: self.writer.has_room(),
        }
    }

    /// Whether there is a position to report, with a resume point: a new one, or one that `max_age` must not take.
    fn wants_position_message(&self) -> bool {
        let has_moved = self.batch.position() > self.framer.previous() || !self.is_announced;
        (has_moved || Instant::now() >= self.keep_at) && !self.batch.resume().file.is_empty()
    }

    fn is_idle(&self) -> bool {
        self.batch.is_empty() && self.writer.in_flight() == 0
    }

    /// Waits for the first event. Each branch is cancel safe.
    async fn event(&mut self, step: Step, cancel: &CancellationToken) -> Result<Event, Fault> {
        tokio::select! {
            biased;
            () = cancel.cancelled() => Ok(Event::Cancelled),
            entry = self.writer.acknowledged(), if self.writer.in_flight() > 0 => {
                entry.map(|entry| Event::Acknowledged(Box::new(entry)))
            }
            Some(()) = self.position_requests.next() => Ok(Event::PositionAsked),
            filled = self.source.fill(&mut self.batch), if step == Step::Fill => filled.map(Event::Filled),
            // Not while messages are in flight: their acknowledgements wake the loop, and this branch would spin.
            () = tokio::time::sleep_until(self.position_message_at), if self.is_idle() => Ok(Event::PositionDue),
        }
    }

    /// Checks the stream's end. A quiet reader appends nothing, so the chain cannot tell it that the stream was wiped
    /// or rolled back, or that another writer took over. When the position moved, the position message that follows
    /// finds it as well.
    async fn check_end(&mut self) -> Result<(), Fault> {
        if self.wants_position_message() {
            return Ok(());
        }
        self.position_message_at = Instant::now() + self.limits.position_interval;
        self.check_register().await?;
        let end = self.log.end(self.name).await?.map(|end| end.id);
        if end == self.last_id {
            return Ok(());
        }
        let found = "the last message is not the one that this reader wrote or found last";
        Err(Fault::new(Code::LogFenced, format!("stream of source {}", self.name), found))
    }

    async fn check_register(&mut self) -> Result<(), Fault> {
        if Instant::now() < self.check_at {
            return Ok(());
        }
        self.check_at = Instant::now() + self.limits.position_interval;
        self.epochs.require_present().await
    }

    /// Counts the changes that were read; those of a cancelled call are counted with the next one.
    fn count_read(&mut self) {
        let added = self.batch.added();
        let unchanged = self.batch.take_unchanged();
        self.meters.changes.increment(added - self.counted + unchanged);
        self.meters.unchanged.increment(unchanged);
        self.meters.unseen.increment(self.batch.take_unseen());
        self.meters.rereads.increment(self.batch.take_rereads());
        self.counted = added;
    }

    async fn append(&mut self) -> Result<(), Fault> {
        self.count_read();
        self.batch.require_order(self.name)?;
        self.busiest.add(self.batch.take_tables(), Instant::now().into_std());
        if let Some(numbers) = self.numbers {
            numbers.add(self.batch.take_numbers());
        }
        let batch = self.batch.take();
        let envelope = self.framer.frame(&batch, self.source.server());
        self.check_register().await?;
        self.epochs.reserve(self.source.server(), &envelope).await?;
        self.is_announced = true;
        self.position_message_at = Instant::now() + self.limits.position_interval;
        self.keep_at = Instant::now() + self.limits.keep_interval;
        self.meters.bytes.increment(batch.payload.len() as u64);
        failpoints::reach("capture-before-append").await;
        self.writer.append(envelope, batch.payload).await?;
        failpoints::reach("capture-after-append").await;
        self.meters.in_flight.set(self.writer.in_flight() as f64);
        Ok(())
    }

    async fn acknowledge(&mut self, entry: &LogEntry, acknowledged: &watch::Sender<Lsn>) {
        failpoints::reach("capture-after-ack").await;
        self.meters.messages.increment(1);
        self.meters.acknowledged.increment(u64::from(entry.envelope.changes));
        self.meters.in_flight.set(self.writer.in_flight() as f64);
        acknowledged.send_replace(entry.envelope.position);
        self.last_id = Some(entry.id.clone());
    }

    /// Stops in order: appends everything that was read, and waits until it is acknowledged.
    async fn drain(&mut self, acknowledged: &watch::Sender<Lsn>) -> Result<(), Fault> {
        while self.writer.in_flight() > 0 || !self.batch.is_empty() {
            if !self.batch.is_empty() && self.writer.has_room() {
                self.append().await?;
            } else {
                let entry = self.writer.acknowledged().await?;
                self.acknowledge(&entry, acknowledged).await;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
