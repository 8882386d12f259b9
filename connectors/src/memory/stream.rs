//! One stream of the log in memory: the messages that the server holds, and those that are still on their way to it.
//!
//! A message arrives when it is due, even if its sender is gone by then. The server stores it only if it continues the
//! chain of its attempt, and refuses it otherwise.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{LogEntry, LogMessage};
use anabranch_pipeline::wall_clock;
use anabranch_schemas::envelope::Envelope;
use anabranch_schemas::lsn::Lsn;
use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Identity of a message: the number of its attempt, and its own number within the attempt, from 0.
pub(super) type BatchNumber = (u64, u64);

/// A message on its way.
#[derive(Debug)]
pub(super) struct SentMessage {
    pub envelope: Envelope,
    pub payload: Bytes,
    /// For the first message of an attempt: the sequence that it must follow.
    pub expected_sequence: u64,
    /// The message never arrives.
    pub lost: bool,
    /// The message is stored, but its answer never arrives.
    pub unheard: bool,
}

#[derive(Debug, Default)]
pub(super) struct Stream {
    messages: VecDeque<LogMessage>,
    last_sequence: u64,
    /// Rises when stored messages are lost, but not when the oldest are discarded. Open readers then search their
    /// position again.
    cut: u64,
    /// Messages on their way, in the order of arrival; the batch number makes each key unique.
    on_the_way: BTreeMap<(Instant, BatchNumber), SentMessage>,
    full: bool,
    outcomes: BTreeMap<BatchNumber, Result<LogEntry, Code>>,
    /// Messages that were stored and do not follow the position of the one before them.
    misplaced: Vec<String>,
    pub changed: Arc<Notify>,
}

impl Stream {
    pub fn send(&mut self, due: Instant, place: BatchNumber, sent: SentMessage) {
        self.on_the_way.insert((due, place), sent);
        self.changed.notify_waiters();
    }

    /// Stores or refuses the messages that have arrived by now.
    pub fn settle(&mut self) {
        let now = Instant::now();
        while let Some(next) = self.on_the_way.first_entry()
            && next.key().0 <= now
        {
            let ((_, place), sent) = next.remove_entry();
            let outcome = self.arrive(place, sent);
            self.outcomes.insert(place, outcome);
        }
    }

    /// Returns the time when the next message arrives; `None` if none is on its way.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.on_the_way.keys().next().map(|(due, _)| *due)
    }

    fn arrive(&mut self, (attempt, number): BatchNumber, sent: SentMessage) -> Result<LogEntry, Code> {
        if sent.lost || self.full {
            return Err(if self.full { Code::LogFull } else { Code::LogUnreachable });
        }
        let continues = match number.checked_sub(1) {
            None => self.last_sequence == sent.expected_sequence,
            Some(before) => self.last_id() == Some(id(attempt, before).as_str()),
        };
        if !continues {
            return Err(Code::LogFenced);
        }
        // The first message of an attempt is fenced by its sequence alone.
        if number > 0
            && let Some(last) = self.messages.back()
            && last.entry.envelope.position != sent.envelope.previous
        {
            let (before, previous) = (last.entry.envelope.position, sent.envelope.previous);
            self.misplaced.push(format!("a message behind {previous} follows one at {before}"));
        }
        self.last_sequence += 1;
        let entry =
            LogEntry { sequence: self.last_sequence, id: id(attempt, number), envelope: sent.envelope };
        let (payload, stored_at_us) = (sent.payload, wall_clock::now_us());
        self.messages.push_back(LogMessage { entry: entry.clone(), payload, stored_at_us, has_next: false });
        self.changed.notify_waiters();
        if sent.unheard { Err(Code::LogUnreachable) } else { Ok(entry) }
    }

    /// Takes the outcome of a message; `None` while it has none yet, and after it was taken.
    pub fn outcome(&mut self, source: &str, place: BatchNumber) -> Option<Result<LogEntry, Fault>> {
        let fault = |code| {
            let found = match code {
                Code::LogFenced => "another message was appended",
                Code::LogFull => "there is no room",
                _ => "the connection broke",
            };
            Fault::new(code, format!("stream of {source}"), found)
        };
        self.outcomes.remove(&place).map(|outcome| outcome.map_err(fault))
    }

    /// Forgets all messages of an attempt that are still on their way, as if its process had died before sending them.
    pub fn forget(&mut self, attempt: u64) {
        self.on_the_way.retain(|(_, (owner, _)), _| *owner != attempt);
    }

    fn last_id(&self) -> Option<&str> {
        self.messages.back().map(|message| message.entry.id.as_str())
    }

    pub fn end(&self) -> Option<&LogEntry> {
        self.messages.back().map(|message| &message.entry)
    }

    pub fn last_sequence(&self) -> u64 {
        self.last_sequence
    }

    pub fn messages(&self) -> usize {
        self.messages.len()
    }

    pub fn kept(&self) -> Vec<LogMessage> {
        self.messages.iter().cloned().collect()
    }

    pub fn positions(&self) -> Vec<Lsn> {
        self.messages.iter().map(|message| message.entry.envelope.position).collect()
    }

    pub fn cut(&self) -> u64 {
        self.cut
    }

    pub fn misplaced(&self) -> &[String] {
        &self.misplaced
    }

    /// Returns the first message that has this sequence or a later one.
    pub fn from(&self, sequence: u64) -> Option<&LogMessage> {
        let index = self.messages.partition_point(|message| message.entry.sequence < sequence);
        self.messages.get(index)
    }

    pub fn holds(&self, sequence: u64, id: &str) -> bool {
        self.from(sequence)
            .is_some_and(|message| message.entry.sequence == sequence && message.entry.id == id)
    }

    /// Returns the sequence of the first message at or above a position; without one, the sequence after the last.
    pub fn sequence_at(&self, lsn: Lsn) -> u64 {
        let reaches = |message: &&LogMessage| message.entry.envelope.position >= lsn;
        let found = self.messages.iter().find(reaches).map(|message| message.entry.sequence);
        found.unwrap_or(self.last_sequence + 1)
    }

    /// Loses the newest messages; their sequences are used again.
    pub fn roll_back(&mut self, messages: usize) {
        for _ in 0..messages.min(self.messages.len()) {
            let gone =
                self.messages.pop_back().map_or(self.last_sequence + 1, |message| message.entry.sequence);
            self.last_sequence = self.messages.back().map_or(gone - 1, |message| message.entry.sequence);
        }
        self.was_cut();
    }

    /// Loses all messages and the count of sequences, which begins again at 1.
    pub fn wipe(&mut self) {
        self.messages.clear();
        self.last_sequence = 0;
        self.was_cut();
    }

    /// Discards the oldest messages, as retention does; their sequences are not used again.
    pub fn discard(&mut self, messages: usize) {
        self.messages.drain(..messages.min(self.messages.len()));
    }

    /// Sets whether the server is full: while it is, it refuses every message.
    pub fn set_full(&mut self, full: bool) {
        self.full = full;
    }

    /// Loses one message that is not the last.
    pub fn lose(&mut self, index: usize) {
        if index + 1 < self.messages.len() {
            self.messages.remove(index);
            self.was_cut();
        }
    }

    fn was_cut(&mut self) {
        self.cut += 1;
        self.changed.notify_waiters();
    }
}

fn id(attempt: u64, number: u64) -> String {
    format!("{attempt}-{number}")
}
