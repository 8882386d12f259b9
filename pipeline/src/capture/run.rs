//! One attempt of a source's reader: lease, end of the stream, binlog from there, append until something fails.
//!
//! Every error ends the attempt; the supervisor starts the next one, which reads the end of the stream again. So
//! there is one path for the first start, a restart, a lost connection and a lost fence.

use anabranch_schemas::envelope::ServerIdentity;
use anabranch_schemas::lsn::{Lsn, ResumePoint};
use anabranch_schemas::timeline::Timeline;
use futures::StreamExt;
use futures::stream::BoxStream;
use metrics::{Counter, Gauge, counter, gauge};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::epochs::Epochs;
use super::pace::{self, Step, View};
use crate::config::Limits;
use crate::deliver::refresh_command;
use crate::error::{Code, Fault};
use crate::failpoints;
use crate::metrics as names;
use crate::ports::{
    ChangeSource, Entry, Filled, Log, LogEntry, LogWriter, READER_REPLICA_SLOT, Registers, SourceConnector,
};
use crate::records::{BatchBuilder, Framer, Progress};

/// What one reader works on.
#[derive(Debug)]
pub struct Capture<'a, S, L, M> {
    pub source: &'a str,
    pub connector: &'a S,
    pub log: &'a L,
    /// The registers, which hold the epochs.
    pub registers: &'a M,
    /// Where to begin when neither the stream nor a lane knows anything.
    pub start: &'a Entry,
    pub limits: &'a Limits,
}

/// What woke the loop.
enum Event {
    Acknowledged(LogEntry),
    Filled(Filled),
    PositionDue,
    /// Somebody waits for the position.
    PositionAsked,
    Cancelled,
}

/// Captures until `cancel` or the first error. `lanes` yields the progress of every lane of this source and is asked
/// only when the stream is empty or ends before the binlog begins, the register of epochs is missing, or the binlog
/// holds what cannot be read. `acknowledged` follows the position that the log holds.
///
/// What cannot be read is left behind, once an attempt, when every lane reads its tables again anyway.
///
/// On `cancel` nothing more is read, and what was sent is waited for.
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
    let entered = enter(&capture, &mut epochs, end.as_ref(), &lanes).await?;
    let fault = match read(&capture, epochs, end, entered, acknowledged, cancel).await {
        Err(fault) if fault.code().is_mended_by_reading() => fault,
        ended => return ended,
    };
    let mut epochs = Epochs::read(capture.registers, capture.source).await?;
    let end = capture.log.end(capture.source).await?;
    end.iter().for_each(|end| epochs.learn(Timeline::of(end.envelope.position, &end.envelope.server)));
    let known = ask(&lanes, &mut epochs).await?;
    let entered = anew(&capture, &epochs, &known, Entry::Latest, fault).await?;
    match read(&capture, epochs, end, entered, acknowledged, cancel).await {
        Err(fault) if fault.code().is_mended_by_reading() => Err(refresh_all(capture.source, fault)),
        ended => ended,
    }
}

/// The fault with what has every lane read its tables again.
fn refresh_all(source: &str, fault: Fault) -> Fault {
    fault.then(refresh_command("NAME", source) + "; for each projection")
}

/// Reads from where the source was entered, and appends after the stream's end.
async fn read<S: SourceConnector, L: Log, M: Registers>(
    capture: &Capture<'_, S, L, M>,
    epochs: Epochs<'_, M>,
    end: Option<LogEntry>,
    entered: Entered<S::Source>,
    acknowledged: &watch::Sender<Lsn>,
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    let Entered { source, entry, origin, is_announced } = entered;
    let position = source.entered_at();
    let term = end.as_ref().map_or(1, |end| end.envelope.term + 1);
    let (captured, batch_bytes) = (capture.connector.captured(), capture.limits.batch_bytes.get());
    let (framer, batch) = Framer::begin(entry.told(), position, origin, term, captured, batch_bytes);
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
        // Nobody says how old the last message is, and lanes may wait for one with all fields.
        keep_at: Instant::now() + capture.limits.position_interval,
        meters: Meters::of(capture.source),
        epochs,
        source,
        writer,
        position_requests,
        limits: capture.limits,
    };
    attempt.end(acknowledged, cancel).await
}

/// An open source: where it was entered, and what lanes must be told of that.
struct Entered<S> {
    source: S,
    entry: Entry,
    /// The source's history begins there.
    origin: bool,
    /// Lanes learn at once where the stream goes on.
    is_announced: bool,
}

/// Opens the source after the stream's end.
///
/// A stream that lost its newest messages may end where the binlog is purged already. The lanes were further, and
/// those that are not are fed from the binlog, so the stream goes on from the furthest as if it were lost. When no lane
/// is, and all of them read their tables again, it goes on from the oldest binlog that there is.
async fn enter<S: SourceConnector, L, M: Registers, P: Future<Output = Result<Vec<Progress>, Fault>>>(
    capture: &Capture<'_, S, L, M>,
    epochs: &mut Epochs<'_, M>,
    end: Option<&LogEntry>,
    lanes: &impl Fn() -> P,
) -> Result<Entered<S::Source>, Fault> {
    let end = end.map(|end| &end.envelope);
    end.iter().for_each(|end| epochs.learn(Timeline::of(end.position, &end.server)));
    let Some(envelope) = end else {
        let lanes = ask(lanes, epochs).await?;
        let (entry, origin) = entry_without_log(&lanes, capture.start);
        return match open(capture, epochs, &entry).await {
            Ok(source) => Ok(Entered { source, entry, origin, is_announced: false }),
            Err(fault) if !origin => at_earliest(capture, epochs, &lanes, fault).await,
            Err(fault) => Err(fault),
        };
    };
    let entry = resume_at(&envelope.resume, envelope.position, &envelope.server);
    // Nobody has said which epochs were used.
    let asked = match epochs.is_registered() {
        true => None,
        false => Some(ask(lanes, epochs).await?),
    };
    let fault = match open(capture, epochs, &entry).await {
        Ok(source) => return Ok(Entered { source, entry, origin: false, is_announced: true }),
        Err(fault) if fault.code() == Code::BinlogPurged => fault,
        Err(fault) => return Err(fault),
    };
    let known = match asked {
        Some(known) => known,
        None => ask(lanes, epochs).await?,
    };
    let Some(lane) = furthest(&known).filter(|lane| lane.position > envelope.position) else {
        return at_earliest(capture, epochs, &known, fault).await;
    };
    tracing::warn!(%fault, position = %lane.position, "the stream goes on from the lane that is furthest");
    let entry = resume_at(&lane.resume, lane.position, &lane.server);
    match open(capture, epochs, &entry).await {
        Ok(source) => Ok(Entered { source, entry, origin: false, is_announced: true }),
        Err(fault) => at_earliest(capture, epochs, &known, fault).await,
    }
}

/// From the oldest binlog that there is, once no lane needs an older one.
async fn at_earliest<S: SourceConnector, L, M: Registers>(
    capture: &Capture<'_, S, L, M>,
    epochs: &Epochs<'_, M>,
    lanes: &[Progress],
    fault: Fault,
) -> Result<Entered<S::Source>, Fault> {
    if fault.code() != Code::BinlogPurged {
        return Err(fault);
    }
    anew(capture, epochs, lanes, Entry::Earliest, fault).await
}

/// From `entry`, without what lies before it and cannot be read, once every lane reads its tables again.
async fn anew<S: SourceConnector, L, M: Registers>(
    capture: &Capture<'_, S, L, M>,
    epochs: &Epochs<'_, M>,
    lanes: &[Progress],
    entry: Entry,
    fault: Fault,
) -> Result<Entered<S::Source>, Fault> {
    if !lanes.iter().all(Progress::may_begin_anew) {
        return Err(refresh_all(capture.source, fault));
    }
    let entry_name = entry_name(&entry);
    tracing::warn!(%fault, entry = entry_name, "the stream goes on from there: every lane reads its tables again");
    let source = open(capture, epochs, &entry).await?;
    Ok(Entered { source, entry, origin: false, is_announced: false })
}

async fn open<S: SourceConnector, L, M: Registers>(
    capture: &Capture<'_, S, L, M>,
    epochs: &Epochs<'_, M>,
    entry: &Entry,
) -> Result<S::Source, Fault> {
    capture.connector.open(entry.clone(), epochs.latest(), READER_REPLICA_SLOT).await
}

/// Progress of all lanes, and the epochs that it tells of.
async fn ask<M: Registers, P: Future<Output = Result<Vec<Progress>, Fault>>>(
    lanes: &impl Fn() -> P,
    epochs: &mut Epochs<'_, M>,
) -> Result<Vec<Progress>, Fault> {
    let lanes = lanes().await?;
    lanes.iter().for_each(|lane| epochs.learn(lane.timeline()));
    Ok(lanes)
}

/// The lane that has the highest position, if any has begun.
fn furthest(lanes: &[Progress]) -> Option<&Progress> {
    lanes.iter().max_by_key(|progress| progress.position).filter(|progress| progress.position > Lsn::ZERO)
}

fn resume_at(resume: &ResumePoint, position: Lsn, server: &ServerIdentity) -> Entry {
    Entry::Resume { resume: resume.clone(), position, server: server.clone() }
}

/// Where to begin when the stream is empty, and whether the source's history begins there.
///
/// No lane has progress: a first start. Else the log was lost, and the stream goes on from the lane that is furthest:
/// the others are fed from the binlog until they are there.
fn entry_without_log(lanes: &[Progress], start: &Entry) -> (Entry, bool) {
    match furthest(lanes) {
        Some(progress) => {
            tracing::warn!(position = %progress.position, "the stream is empty but a lane has progress: the log was lost and goes on from there");
            (resume_at(&progress.resume, progress.position, &progress.server), false)
        }
        None => (start.clone(), true),
    }
}

fn entry_name(entry: &Entry) -> &'static str {
    match entry {
        Entry::Earliest => "earliest",
        Entry::Latest => "latest",
        Entry::Gtid(_) => "gtid",
        Entry::Resume { .. } => "resume",
    }
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
    /// Changes that the counter of those that were read has.
    counted: u64,
    /// The stream has a message, so lanes can see where it goes on.
    is_announced: bool,
    drained: bool,
    position_message_at: Instant,
    /// Time for a position message even if the position has not moved.
    keep_at: Instant,
    meters: Meters,
    limits: &'a Limits,
}

impl<C: ChangeSource, L: Log, M: Registers> Attempt<'_, C, L, M> {
    /// Runs to the end. Before a fault that the tables mend is told, everything that was sent is acknowledged, so that
    /// the next reading goes on after it.
    async fn end(
        mut self,
        acknowledged: &watch::Sender<Lsn>,
        cancel: &CancellationToken,
    ) -> Result<(), Fault> {
        let ended = self.run(acknowledged, cancel).await;
        if ended.as_ref().is_err_and(|fault| fault.code().is_mended_by_reading()) {
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
            match self.event(step, cancel).await? {
                Event::Filled(filled) => {
                    self.count_read();
                    self.drained = filled == Filled::Drained;
                }
                Event::Acknowledged(entry) => self.acknowledge(&entry, acknowledged).await,
                Event::PositionDue => self.look_at_the_end().await?,
                // One that has not moved is asked again.
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
            // Lanes wait for the first message of an empty stream, also when the source is quiet.
            position_message_due: Instant::now() >= self.position_message_at || !self.is_announced,
            in_flight: self.writer.in_flight(),
            has_room: self.writer.has_room(),
        }
    }

    /// There is a position to tell of, and a resume point with it: a new one, or one that `max_age` must not take.
    fn wants_position_message(&self) -> bool {
        let has_moved = self.batch.position() > self.framer.previous() || !self.is_announced;
        (has_moved || Instant::now() >= self.keep_at) && !self.batch.resume().file.is_empty()
    }

    fn is_idle(&self) -> bool {
        self.batch.is_empty() && self.writer.in_flight() == 0
    }

    /// Waits for whatever comes first. Each branch is cancel safe.
    async fn event(&mut self, step: Step, cancel: &CancellationToken) -> Result<Event, Fault> {
        tokio::select! {
            biased;
            () = cancel.cancelled() => Ok(Event::Cancelled),
            entry = self.writer.acknowledged(), if self.writer.in_flight() > 0 => entry.map(Event::Acknowledged),
            Some(()) = self.position_requests.next() => Ok(Event::PositionAsked),
            filled = self.source.fill(&mut self.batch), if step == Step::Fill => filled.map(Event::Filled),
            // What is on its way is waited for; an answer wakes too, and else this would go round in a circle.
            () = tokio::time::sleep_until(self.position_message_at), if self.is_idle() => Ok(Event::PositionDue),
        }
    }

    /// A quiet reader appends nothing, so the chain cannot tell it that the stream was wiped or rolled back, or that
    /// another writer took over: it looks. When the position moved, the position message that follows tells as well.
    async fn look_at_the_end(&mut self) -> Result<(), Fault> {
        if self.wants_position_message() {
            return Ok(());
        }
        self.position_message_at = Instant::now() + self.limits.position_interval;
        let end = self.log.end(self.name).await?.map(|end| end.id);
        if end == self.last_id {
            return Ok(());
        }
        let found = "the last message is not the one that this reader wrote or found last";
        Err(Fault::new(Code::LogFenced, format!("stream of source {}", self.name), found))
    }

    /// What a cancelled reading has added is counted with the next one.
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
        self.epochs.claim(self.source.server()).await?;
        let batch = self.batch.take();
        let envelope = self.framer.frame(&batch, self.source.server());
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

    /// Orderly stop: what was read leaves, and everything sent is acknowledged.
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
mod tests {
    use super::*;

    fn progress(position: u64) -> Progress {
        Progress { position: Lsn::new(1, 1, position).unwrap(), ..Progress::default() }
    }

    #[test]
    fn an_empty_stream_without_progress_is_a_first_start() {
        assert_eq!(entry_without_log(&[Progress::default()], &Entry::Latest), (Entry::Latest, true));
        assert_eq!(entry_without_log(&[], &Entry::Earliest), (Entry::Earliest, true));
    }

    #[test]
    fn an_empty_stream_with_progress_is_a_lost_log_and_goes_on_from_the_lane_that_is_furthest() {
        let lanes = [progress(320), progress(160), Progress::default()];
        let (entry, origin) = entry_without_log(&lanes, &Entry::Earliest);
        let Entry::Resume { position, .. } = entry else { panic!("must resume") };
        assert_eq!((position, origin), (Lsn::new(1, 1, 320).unwrap(), false));
    }
}
