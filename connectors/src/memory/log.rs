//! The log in memory: streams, attempts to append, readers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{Log, LogEntry, LogMessage, LogReader, LogWriter, ReadFrom};
use anabranch_schemas::envelope::Envelope;
use anabranch_schemas::lsn::Lsn;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::sync::watch;
use tokio::time::Instant;

use super::stream::{SentMessage, Stream};
use super::{Refused, Weather, lock};

/// Frequency, in a thousand messages, with which a message is lost on the way.
const LOST: u32 = 4;
/// Frequency, in a thousand messages, with which a message is stored and its answer is lost.
const UNHEARD: u32 = 8;
/// Frequency, in a thousand dropped writers, with which their messages on the way do not arrive any more.
const FORGOTTEN: u32 = 300;

#[derive(Debug, Default)]
struct State {
    streams: BTreeMap<String, Stream>,
    attempts: u64,
    /// The channel of each source that announces requests for a position message.
    asked: BTreeMap<String, watch::Sender<()>>,
}

/// A log whose streams are created at their first use.
#[derive(Debug, Clone)]
pub struct MemoryLog {
    state: Arc<Mutex<State>>,
    weather: Weather,
    in_flight_messages: u64,
}

impl MemoryLog {
    pub fn new(weather: Weather, in_flight_messages: u64) -> Self {
        Self { state: Arc::default(), weather, in_flight_messages }
    }

    /// Stores the messages that have arrived, then works on the stream.
    fn with<T>(&self, source: &str, work: impl FnOnce(&mut Stream) -> T) -> T {
        let mut state = lock(&self.state);
        if !state.streams.contains_key(source) {
            state.streams.insert(source.to_owned(), Stream::default());
        }
        let stream = state.streams.get_mut(source).expect("just made");
        stream.settle();
        work(stream)
    }

    /// Removes the stream and its count of sequences, as the loss of a disk does.
    pub fn wipe(&self, source: &str) {
        self.with(source, Stream::wipe);
    }

    /// Removes the newest messages; their sequences are used again, as after a power cut.
    pub fn roll_back(&self, source: &str, messages: usize) {
        self.with(source, |stream| stream.roll_back(messages));
    }

    /// Removes the oldest messages, as retention does; their sequences are not used again.
    pub fn discard(&self, source: &str, messages: usize) {
        self.with(source, |stream| stream.discard(messages));
    }

    /// Removes one message that is not the last, as damage to the stored files does.
    pub fn lose(&self, source: &str, index: usize) {
        self.with(source, |stream| stream.lose(index));
    }

    /// Sets whether the server has no room for more messages of this stream.
    pub fn set_full(&self, source: &str, full: bool) {
        self.with(source, |stream| stream.set_full(full));
    }

    /// Returns the last message at once.
    pub fn last(&self, source: &str) -> Option<LogEntry> {
        self.with(source, |stream| stream.end().cloned())
    }

    /// Returns all kept messages.
    pub fn kept(&self, source: &str) -> Vec<LogMessage> {
        self.with(source, |stream| stream.kept())
    }

    /// Returns the positions of all kept messages.
    pub fn positions(&self, source: &str) -> Vec<Lsn> {
        self.with(source, |stream| stream.positions())
    }

    pub fn messages(&self, source: &str) -> usize {
        self.with(source, |stream| stream.messages())
    }

    /// Returns the messages that were stored without following the position of the one before them.
    pub fn misplaced(&self, source: &str) -> Vec<String> {
        self.with(source, |stream| stream.misplaced().to_vec())
    }
}

impl Log for MemoryLog {
    type Writer = MemoryWriter;
    type Reader = MemoryReader;

    async fn end(&self, source: &str) -> Result<Option<LogEntry>, Fault> {
        self.weather.pause().await;
        self.weather.answer(Refused::Log)?;
        Ok(self.with(source, |stream| stream.end().cloned()))
    }

    async fn writer(&self, source: &str, end: Option<&LogEntry>) -> Result<MemoryWriter, Fault> {
        self.weather.answer(Refused::Log)?;
        // Without an end, appends are possible only to an empty stream, which may have had messages before.
        let expected_sequence = self.with(source, |stream| match end {
            Some(end) => end.sequence,
            None if stream.messages() == 0 => stream.last_sequence(),
            None => 0,
        });
        let mut state = lock(&self.state);
        state.attempts += 1;
        Ok(MemoryWriter {
            log: self.clone(),
            source: source.to_owned(),
            attempt: state.attempts,
            sent: 0,
            acknowledged: 0,
            expected_sequence,
            arrival: Instant::now(),
            answer: Instant::now(),
            over: false,
        })
    }

    async fn first_at(&self, source: &str, position: Lsn) -> Result<Option<LogEntry>, Fault> {
        self.weather.pause().await;
        self.weather.answer(Refused::Log)?;
        Ok(self.with(source, |stream| {
            stream.from(stream.sequence_at(position)).map(|message| message.entry.clone())
        }))
    }

    async fn reader(&self, source: &str, from: ReadFrom) -> Result<MemoryReader, Fault> {
        self.weather.pause().await;
        self.weather.answer(Refused::Log)?;
        let (place, cut) = self.with(source, |stream| {
            let place = match from {
                ReadFrom::At(lsn) => Ok(ReadStart::At { lsn, sequence: stream.sequence_at(lsn) }),
                ReadFrom::After { sequence, id } if stream.holds(sequence, &id) => {
                    Ok(ReadStart::After { sequence, id })
                }
                ReadFrom::After { sequence, .. } => Err(hole(source, sequence)),
            };
            place.map(|place| (place, stream.cut()))
        })?;
        Ok(MemoryReader { log: self.clone(), source: source.to_owned(), place, cut })
    }

    async fn ask_for_position(&self, source: &str) {
        if !self.weather.strikes_in(LOST)
            && let Some(asked) = lock(&self.state).asked.get(source)
        {
            asked.send_replace(());
        }
    }

    async fn position_requests(&self, source: &str) -> Result<BoxStream<'static, ()>, Fault> {
        self.weather.answer(Refused::Log)?;
        let asked = lock(&self.state).asked.entry(source.to_owned()).or_default().subscribe();
        let requests =
            stream::unfold(asked, async |mut asked| asked.changed().await.ok().map(|()| ((), asked)));
        Ok(requests.boxed())
    }
}

fn hole(source: &str, sequence: u64) -> Fault {
    Fault::new(Code::LogHole, format!("stream of {source}"), "a message is not there")
        .needs(format!("message {sequence}"))
}

/// One attempt to append. Dropping it may leave messages on the way.
#[derive(Debug)]
pub struct MemoryWriter {
    log: MemoryLog,
    source: String,
    attempt: u64,
    sent: u64,
    acknowledged: u64,
    expected_sequence: u64,
    /// Time when the last sent message arrives.
    arrival: Instant,
    /// Earliest time of the next answer.
    answer: Instant,
    over: bool,
}

impl MemoryWriter {
    fn ended(&self) -> Fault {
        Fault::new(Code::LogFenced, format!("stream of {}", self.source), "the attempt is over")
    }
}

impl LogWriter for MemoryWriter {
    fn has_room(&self) -> bool {
        self.sent - self.acknowledged < self.log.in_flight_messages
    }

    fn in_flight(&self) -> usize {
        (self.sent - self.acknowledged) as usize
    }

    async fn append(&mut self, envelope: Envelope, payload: Bytes) -> Result<(), Fault> {
        if self.over {
            return Err(self.ended());
        }
        let weather = &self.log.weather;
        weather.answer(Refused::Log)?;
        weather.answer(Refused::Appends)?;
        self.arrival = weather.due(self.arrival);
        let sent = SentMessage {
            envelope,
            payload,
            expected_sequence: self.expected_sequence,
            lost: weather.strikes_in(LOST),
            unheard: weather.strikes_in(UNHEARD),
        };
        let (due, place) = (self.arrival, (self.attempt, self.sent));
        self.log.with(&self.source, |stream| stream.send(due, place, sent));
        self.sent += 1;
        Ok(())
    }

    async fn acknowledged(&mut self) -> Result<LogEntry, Fault> {
        loop {
            if self.over {
                return Err(self.ended());
            }
            self.log.weather.answer(Refused::Log)?;
            if self.acknowledged == self.sent {
                return std::future::pending().await;
            }
            tokio::time::sleep_until(self.answer).await;
            let place = (self.attempt, self.acknowledged);
            let (outcome, next) = self
                .log
                .with(&self.source, |stream| (stream.outcome(&self.source, place), stream.next_arrival()));
            if let Some(outcome) = outcome {
                self.acknowledged += 1;
                self.answer = self.log.weather.due(self.answer);
                self.over = outcome.is_err();
                return outcome;
            }
            tokio::time::sleep_until(next.expect("what has no outcome is on the way")).await;
        }
    }
}

impl Drop for MemoryWriter {
    fn drop(&mut self) {
        if self.sent > self.acknowledged && self.log.weather.strikes_in(FORGOTTEN) {
            self.log.with(&self.source, |stream| stream.forget(self.attempt));
        }
    }
}

#[derive(Debug, Clone)]
enum ReadStart {
    /// The first message that reaches a position; its sequence is this one or a later one.
    At {
        lsn: Lsn,
        sequence: u64,
    },
    After {
        sequence: u64,
        id: String,
    },
}

/// A reader of one stream.
#[derive(Debug)]
pub struct MemoryReader {
    log: MemoryLog,
    source: String,
    place: ReadStart,
    cut: u64,
}

impl MemoryReader {
    fn poll(&mut self) -> Result<Option<LogMessage>, Fault> {
        self.log.weather.answer(Refused::Log)?;
        let Self { log, source, place, cut } = self;
        log.with(source, |stream| {
            // A stream is cut while its server is away: the reader connects again and checks.
            if stream.cut() != *cut {
                match place {
                    ReadStart::At { lsn, sequence } => *sequence = stream.sequence_at(*lsn),
                    ReadStart::After { sequence, id } if stream.holds(*sequence, id) => {}
                    ReadStart::After { sequence, .. } => return Err(hole(source, *sequence)),
                }
            }
            *cut = stream.cut();
            let next = match place {
                ReadStart::At { sequence, .. } => *sequence,
                ReadStart::After { sequence, .. } => *sequence + 1,
            };
            let Some(mut message) = stream.from(next).cloned() else { return Ok(None) };
            message.has_next = stream.from(message.entry.sequence + 1).is_some();
            if matches!(place, ReadStart::After { .. }) && message.entry.sequence != next {
                return Err(hole(source, next));
            }
            *place = ReadStart::After { sequence: message.entry.sequence, id: message.entry.id.clone() };
            Ok(Some(message))
        })
    }
}

impl LogReader for MemoryReader {
    async fn next(&mut self) -> Result<LogMessage, Fault> {
        loop {
            let (changed, arrival) =
                self.log.with(&self.source, |stream| (stream.changed.clone(), stream.next_arrival()));
            let mut notified = std::pin::pin!(changed.notified());
            notified.as_mut().enable();
            if let Some(message) = self.poll()? {
                return Ok(message);
            }
            match arrival {
                Some(arrival) => {
                    let _ = tokio::time::timeout_at(arrival, notified).await;
                }
                None => notified.await,
            }
        }
    }
}
