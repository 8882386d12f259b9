//! Streams in memory: sequences, the message-id chain, loss of a whole stream or of its tail.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{Log, LogEntry, LogMessage, LogReader, LogWriter, ReadFrom};
use anabranch_schemas::envelope::Envelope;
use anabranch_schemas::lsn::Lsn;
use bytes::Bytes;
use tokio::sync::Notify;

use super::{Delays, lock};

const IN_FLIGHT_MESSAGES: usize = 8;

#[derive(Debug, Default)]
struct Stream {
    messages: VecDeque<LogMessage>,
    last_sequence: u64,
    /// Rises when the stream is wiped or rolled back: open readers notice.
    cut: u64,
}

impl Stream {
    fn last_id(&self) -> Option<&str> {
        self.messages.back().map(|message| message.entry.id.as_str())
    }

    fn at(&self, sequence: u64) -> Option<&LogMessage> {
        self.messages.iter().find(|message| message.entry.sequence == sequence)
    }
}

#[derive(Debug, Default)]
struct State {
    streams: BTreeMap<String, Stream>,
    attempts: u64,
}

/// A log whose streams come into being when they are first used.
#[derive(Debug, Clone)]
pub struct MemoryLog {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    delays: Delays,
}

impl MemoryLog {
    pub fn new(delays: Delays) -> Self {
        Self { state: Arc::default(), changed: Arc::default(), delays }
    }

    /// The stream and its sequences are gone, as after the loss of a disk.
    pub fn wipe(&self, source: &str) {
        self.cut(source, |stream| {
            stream.messages.clear();
            stream.last_sequence = 0;
        });
    }

    /// The newest messages are gone and their sequences are used again, as after a power cut.
    pub fn roll_back(&self, source: &str, messages: usize) {
        self.cut(source, |stream| {
            for _ in 0..messages.min(stream.messages.len()) {
                stream.messages.pop_back();
                stream.last_sequence -= 1;
            }
        });
    }

    /// The oldest messages are gone, as by retention; their sequences are not used again.
    pub fn discard(&self, source: &str, messages: usize) {
        let mut state = lock(&self.state);
        let stream = state.streams.entry(source.to_owned()).or_default();
        let kept = stream.messages.len().saturating_sub(messages);
        stream.messages.drain(..stream.messages.len() - kept);
    }

    pub fn messages(&self, source: &str) -> usize {
        lock(&self.state).streams.get(source).map_or(0, |stream| stream.messages.len())
    }

    fn cut(&self, source: &str, change: impl FnOnce(&mut Stream)) {
        let mut state = lock(&self.state);
        let stream = state.streams.entry(source.to_owned()).or_default();
        change(stream);
        stream.cut += 1;
        drop(state);
        self.changed.notify_waiters();
    }
}

impl Log for MemoryLog {
    type Writer = MemoryWriter;
    type Reader = MemoryReader;

    async fn end(&self, source: &str) -> Result<Option<LogEntry>, Fault> {
        self.delays.pause().await;
        let state = lock(&self.state);
        Ok(state
            .streams
            .get(source)
            .and_then(|stream| stream.messages.back())
            .map(|message| message.entry.clone()))
    }

    async fn writer(&self, source: &str, end: Option<&LogEntry>) -> Result<MemoryWriter, Fault> {
        let mut state = lock(&self.state);
        state.attempts += 1;
        let attempt = state.attempts;
        let stream = state.streams.entry(source.to_owned()).or_default();
        let expected_sequence = end.map_or(stream.last_sequence, |end| end.sequence);
        Ok(MemoryWriter {
            log: self.clone(),
            source: source.to_owned(),
            attempt,
            next: 0,
            expected_sequence,
            in_flight: VecDeque::new(),
        })
    }

    async fn reader(&self, source: &str, from: ReadFrom) -> Result<MemoryReader, Fault> {
        self.delays.pause().await;
        let mut state = lock(&self.state);
        let stream = state.streams.entry(source.to_owned()).or_default();
        let next = match from {
            ReadFrom::At(Lsn::ZERO) => None,
            ReadFrom::At(lsn) => {
                let reaches = |message: &&LogMessage| message.entry.envelope.position >= lsn;
                let found = stream.messages.iter().find(reaches).map(|message| message.entry.sequence);
                Some(found.unwrap_or(stream.last_sequence + 1))
            }
            ReadFrom::After { sequence, id } => {
                let there = stream.at(sequence).is_some_and(|message| message.entry.id == id);
                if !there {
                    return Err(hole(source, sequence));
                }
                Some(sequence + 1)
            }
        };
        let cut = stream.cut;
        Ok(MemoryReader { log: self.clone(), source: source.to_owned(), next, cut })
    }
}

fn hole(source: &str, sequence: u64) -> Fault {
    Fault::new(Code::LogHole, format!("stream of {source}"), format!("message {sequence} is not there"))
}

/// One attempt. Messages are stored when they are sent; the acknowledgement comes later.
#[derive(Debug)]
pub struct MemoryWriter {
    log: MemoryLog,
    source: String,
    attempt: u64,
    next: u64,
    expected_sequence: u64,
    in_flight: VecDeque<Result<LogEntry, Fault>>,
}

impl LogWriter for MemoryWriter {
    fn has_room(&self) -> bool {
        self.in_flight.len() < IN_FLIGHT_MESSAGES
    }

    fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    async fn append(&mut self, envelope: Envelope, payload: Bytes) -> Result<(), Fault> {
        self.log.delays.pause().await;
        let mut state = lock(&self.log.state);
        let stream = state.streams.entry(self.source.clone()).or_default();
        let fits = match self.next {
            0 => stream.last_sequence == self.expected_sequence,
            k => stream.last_id() == Some(format!("{}-{}", self.attempt, k - 1).as_str()),
        };
        if fits {
            stream.last_sequence += 1;
            let id = format!("{}-{}", self.attempt, self.next);
            let entry = LogEntry { sequence: stream.last_sequence, id, envelope };
            stream.messages.push_back(LogMessage { entry: entry.clone(), payload });
            self.in_flight.push_back(Ok(entry));
        } else {
            let fault = Fault::new(
                Code::LogFenced,
                format!("stream of {}", self.source),
                "another message was appended",
            );
            self.in_flight.push_back(Err(fault));
        }
        self.next += 1;
        drop(state);
        self.log.changed.notify_waiters();
        Ok(())
    }

    async fn acknowledged(&mut self) -> Result<LogEntry, Fault> {
        self.log.delays.pause().await;
        match self.in_flight.pop_front() {
            Some(outcome) => outcome,
            None => std::future::pending().await,
        }
    }
}

/// An open reading.
#[derive(Debug)]
pub struct MemoryReader {
    log: MemoryLog,
    source: String,
    /// `None` until the first message of a reading from the start.
    next: Option<u64>,
    cut: u64,
}

impl MemoryReader {
    fn poll(&mut self) -> Result<Option<LogMessage>, Fault> {
        let mut state = lock(&self.log.state);
        let stream = state.streams.entry(self.source.clone()).or_default();
        if stream.cut != self.cut {
            return Err(hole(&self.source, self.next.unwrap_or_default()));
        }
        let Some(first) = stream.messages.front().map(|message| message.entry.sequence) else {
            return Ok(None);
        };
        let next = *self.next.get_or_insert(first);
        if next < first {
            return Err(hole(&self.source, next));
        }
        let message = stream.at(next).cloned();
        if message.is_some() {
            self.next = Some(next + 1);
        }
        Ok(message)
    }
}

impl LogReader for MemoryReader {
    async fn next(&mut self) -> Result<LogMessage, Fault> {
        loop {
            let changed = self.log.changed.clone();
            let mut notified = std::pin::pin!(changed.notified());
            notified.as_mut().enable();
            if let Some(message) = self.poll()? {
                return Ok(message);
            }
            notified.await;
        }
    }
}
