//! One attempt to append: a chain of message ids that no second writer can enter.
//!
//! The first message names the sequence that it follows, and each further one the id of the message before it. So the
//! server stores an unbroken run of one attempt's messages and refuses the rest. (Predicted sequences would not do:
//! after a second writer's message, all messages on the way but the first would fit again.)
//!
//! Answers come to an inbox of the attempt, in order; the chain makes an answer prove every message before it too. One
//! deadline, that of the oldest message, covers lost answers. A reconnect ends the attempt: the client library drops
//! the messages it had sent. Deliberately nothing is repeated here: the caller starts another attempt.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anabranch_pipeline::config::Limits;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{LogEntry, LogWriter};
use anabranch_schemas::codec;
use anabranch_schemas::envelope::Envelope;
use async_nats::header::{
    NATS_EXPECTED_LAST_MESSAGE_ID, NATS_EXPECTED_LAST_SEQUENCE, NATS_EXPECTED_STREAM, NATS_MESSAGE_ID,
};
use async_nats::jetstream::{publish::PublishAck, response::Response};
use async_nats::{HeaderMap, HeaderValue, Message, StatusCode, Subject, Subscriber};
use bytes::Bytes;
use futures::StreamExt;
use tokio::time::{Instant, sleep_until, timeout};

use super::client::{Connection, REQUEST_TIMEOUT};
use super::setup;
use super::{StreamName, error};

/// Wait for the answer to the oldest message in flight.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(5);

const LARGER_MESSAGES: &str = "raise max_payload of the NATS server and log.max_message_bytes (64 MB at most), run \
     `anabranch --config FILE setup`, restart; or leave the large column out of `columns`";

/// The stream of an attempt and the sequence after which it appends.
pub(super) struct Destination {
    pub(super) connection: Arc<Connection>,
    pub(super) stream: StreamName,
    /// Sequence of the stream's last message ever, whether it is kept or not.
    pub(super) last_sequence: u64,
}

/// One attempt to append to a stream, see the module.
#[derive(Debug)]
pub struct NatsLogWriter {
    connection: Arc<Connection>,
    generation: u64,
    stream: StreamName,
    subject: Subject,
    /// Sequence before the attempt's first message.
    base_sequence: u64,
    /// Unique for ever: 64 random bits in hexadecimal.
    attempt: String,
    inbox: String,
    replies: Subscriber,
    in_flight: VecDeque<SentMessage>,
    in_flight_bytes: usize,
    messages_max: usize,
    bytes_max: usize,
    /// Messages returned as acknowledged: the number of the oldest one in flight.
    settled: u64,
    /// Messages known to be stored.
    stored: u64,
    over: Option<AttemptEnd>,
}

#[derive(Debug)]
struct SentMessage {
    envelope: Envelope,
    bytes: usize,
    deadline: Instant,
}

/// State of an attempt that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AttemptEnd {
    /// The caller has got the fault.
    Answered,
    /// No server listens on the subject; the reason is still to be found.
    NoResponders,
}

impl NatsLogWriter {
    pub(super) async fn begin(destination: Destination, limits: &Limits) -> Result<Self, Fault> {
        let Destination { connection, stream, last_sequence } = destination;
        let generation = connection.generation();
        let inbox = connection.client().new_inbox();
        let replies = connection.client().subscribe(format!("{inbox}.*")).await.map_err(|error| {
            Fault::new(Code::LogUnreachable, stream.title(), "no inbox for answers").caused_by(error)
        })?;
        Ok(Self {
            generation,
            subject: Subject::from(stream.subject.as_str()),
            base_sequence: last_sequence,
            attempt: format!("{:016x}", rand::random::<u64>()),
            inbox,
            replies,
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            messages_max: limits.in_flight_messages.get(),
            bytes_max: limits.in_flight_bytes.get(),
            settled: 0,
            stored: 0,
            over: None,
            connection,
            stream,
        })
    }

    fn id(&self, number: u64) -> String {
        format!("{}-{number}", self.attempt)
    }

    fn next_number(&self) -> u64 {
        self.settled + self.in_flight.len() as u64
    }

    fn headers(&self, number: u64, envelope: &Envelope) -> Result<HeaderMap, Fault> {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_ID, self.id(number));
        headers.insert(NATS_EXPECTED_STREAM, self.stream.name.as_str());
        match number.checked_sub(1) {
            Some(previous) => headers.insert(NATS_EXPECTED_LAST_MESSAGE_ID, self.id(previous)),
            None => headers.insert(NATS_EXPECTED_LAST_SEQUENCE, HeaderValue::from(self.base_sequence)),
        }
        for (name, value) in envelope.to_headers() {
            let value: HeaderValue = value.parse().map_err(|_| {
                Fault::new(Code::Internal, self.stream.title(), format!("header {name} holds a line break"))
            })?;
            headers.insert(name, value);
        }
        Ok(headers)
    }

    /// Ends the attempt; returns its fault.
    fn end(&mut self, code: Code, found: impl Into<String>) -> Fault {
        self.over = Some(AttemptEnd::Answered);
        Fault::new(code, self.stream.title(), found)
    }

    /// Processes one answer; an error ends the attempt.
    fn handle_reply(&mut self, reply: &Message) -> Result<(), Fault> {
        let number = reply.subject.rsplit('.').next().and_then(|token| token.parse::<u64>().ok());
        let Some(number) = number.filter(|number| *number < self.next_number()) else {
            return Err(self.end(Code::Internal, "an answer to a message that was not sent"));
        };
        if reply.status == Some(StatusCode::NO_RESPONDERS) {
            self.over = Some(AttemptEnd::NoResponders);
            return Ok(());
        }
        let ack = match serde_json::from_slice::<Response<PublishAck>>(&reply.payload) {
            Ok(Response::Ok(ack)) => ack,
            Ok(Response::Err { error }) => {
                self.over = Some(AttemptEnd::Answered);
                return Err(error::refused(&self.stream.title(), error));
            }
            Err(error) => {
                return Err(self.end(Code::LogUnreachable, "an answer that is not JSON").caused_by(error));
            }
        };
        let expected = self.base_sequence + 1 + number;
        if ack.sequence != expected || ack.duplicate || ack.stream != self.stream.name {
            let found = format!(
                "stored at sequence {} of {}, duplicate: {}",
                ack.sequence, ack.stream, ack.duplicate
            );
            return Err(self.end(Code::LogFenced, found).needs(format!("sequence {expected}")));
        }
        self.stored = self.stored.max(number + 1);
        Ok(())
    }

    /// Takes the oldest message in flight if it is known to be stored.
    fn settle(&mut self) -> Option<LogEntry> {
        if self.settled >= self.stored {
            return None;
        }
        let sent = self.in_flight.pop_front()?;
        self.in_flight_bytes -= sent.bytes;
        let number = self.settled;
        self.settled += 1;
        Some(LogEntry {
            sequence: self.base_sequence + 1 + number,
            id: self.id(number),
            envelope: sent.envelope,
        })
    }

    /// Queries the server for the reason of silence: the stream is gone, or it has no leader at the moment.
    async fn explain_silence(&self) -> Fault {
        let title = self.stream.title();
        match setup::info(self.connection.context(), &self.stream.name, &title).await {
            Ok(None) => error::stream_missing(&title),
            Ok(Some(_)) => error::Unanswered::NoResponders.into_fault(&title),
            Err(fault) => fault,
        }
    }
}

impl LogWriter for NatsLogWriter {
    fn has_room(&self) -> bool {
        self.in_flight.len() < self.messages_max && self.in_flight_bytes < self.bytes_max
    }

    fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    async fn append(&mut self, envelope: Envelope, payload: Bytes) -> Result<(), Fault> {
        debug_assert!(self.has_room(), "append without room");
        if self.over.is_some() {
            return Err(self.end(Code::LogUnreachable, "the attempt to append is over"));
        }
        if !self.connection.is_current(self.generation) {
            return Err(self.end(Code::LogUnreachable, "the connection broke"));
        }
        let number = self.next_number();
        let headers = self.headers(number, &envelope)?;
        let bytes = payload.len() + header_bytes(&headers);
        let bytes_max = self.connection.message_bytes_max();
        if bytes > bytes_max {
            let found =
                format!("a message has {bytes} bytes, most of them in a change of {}", last_table(&payload));
            return Err(self
                .end(Code::LogSettingsDiffer, found)
                .needs(format!("at most {bytes_max}, which is log.max_message_bytes"))
                .remedy(LARGER_MESSAGES));
        }
        let reply = format!("{}.{number}", self.inbox);
        let client = self.connection.client();
        let send = client.publish_with_reply_and_headers(self.subject.clone(), reply, headers, payload);
        match timeout(REQUEST_TIMEOUT, send).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                return Err(self.end(Code::LogUnreachable, "a message was not sent").caused_by(error));
            }
            Err(_) => return Err(self.end(Code::LogUnreachable, "a message could not be sent in time")),
        }
        self.in_flight_bytes += bytes;
        let deadline = Instant::now() + ACKNOWLEDGE_TIMEOUT;
        self.in_flight.push_back(SentMessage { envelope, bytes, deadline });
        Ok(())
    }

    async fn acknowledged(&mut self) -> Result<LogEntry, Fault> {
        loop {
            if let Some(entry) = self.settle() {
                return Ok(entry);
            }
            match self.over {
                Some(AttemptEnd::NoResponders) => return Err(self.explain_silence().await),
                Some(AttemptEnd::Answered) => {
                    return Err(self.end(Code::LogUnreachable, "the attempt to append is over"));
                }
                None => {}
            }
            let Some(oldest) = self.in_flight.front() else {
                return Err(self.end(Code::Internal, "waited for an answer with nothing in flight"));
            };
            let deadline = oldest.deadline;
            let reply = tokio::select! {
                biased;
                reply = self.replies.next() => reply,
                () = self.connection.broken(self.generation) => None,
                () = sleep_until(deadline) => {
                    let found = format!("no answer to a message within {} s", ACKNOWLEDGE_TIMEOUT.as_secs());
                    return Err(self.end(Code::LogUnreachable, found));
                }
            };
            match reply {
                Some(reply) => self.handle_reply(&reply)?,
                None => return Err(self.end(Code::LogUnreachable, "the connection broke")),
            }
        }
    }
}

/// Names the table of the last change: batches fill up long before a message is too large, so that change is.
fn last_table(payload: &[u8]) -> String {
    let mut last = None;
    let mut changes = codec::decode(payload).ok();
    while let Some(Ok(Some(change))) = changes.as_mut().map(codec::Decoder::next) {
        last = Some(format!("{}.{}", change.table.database, change.table.table));
    }
    last.unwrap_or_else(|| "no table".to_owned())
}

/// Counts header bytes as the server does: a first line, a line `name: value` for each, an empty line.
fn header_bytes(headers: &HeaderMap) -> usize {
    const FIRST_AND_LAST_LINE: usize = "NATS/1.0\r\n\r\n".len();
    let lines = headers.iter().flat_map(|(name, values)| {
        values.iter().map(|value| AsRef::<str>::as_ref(name).len() + value.as_str().len() + ": \r\n".len())
    });
    FIRST_AND_LAST_LINE + lines.sum::<usize>()
}
