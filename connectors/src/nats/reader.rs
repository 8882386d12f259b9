//! Reads a stream in order through a pull consumer that leaves nothing behind and is opened anew whenever it breaks.
//!
//! The consumer's own state is never trusted: a server that lost its newest messages keeps consumers that are ahead of
//! the stream, and skips messages. So each opening first checks that the stream still holds the last delivered message,
//! with its id; and each message must follow the one before it. Any other message is a hole, which the caller handles.
//! After a reconnect everything on the way is dropped and fetched again after that check.

use std::sync::Arc;
use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{LogEntry, LogMessage, LogReader};
use anabranch_schemas::envelope::Envelope;
use anabranch_schemas::lsn::Lsn;
use async_nats::HeaderMap;
use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull};
use async_nats::jetstream::stream::{ConsumerErrorKind, RawMessageErrorKind};
use async_nats::jetstream::{self, Message};
use futures::StreamExt;
use futures::future::BoxFuture;
use tokio::time::Instant;

use super::client::Connection;
use super::{StreamName, error, search, setup};

/// Life of an idle consumer, such as that of a crashed reader. A reader slower than this opens anew.
const INACTIVE_THRESHOLD: Duration = Duration::from_secs(60);
/// A silent server is noticed after two of these.
const HEARTBEAT: Duration = Duration::from_secs(5);
const PULL_MESSAGES: usize = 256;
/// Largest messages for which a pull has room; with fewer it might never be served. The client holds up to 1.5 pulls.
const LARGEST_MESSAGES_A_PULL: usize = 2;
/// A consumer that breaks within this time without a message causes a fault instead of the next attempt.
const LIFE_MIN: Duration = Duration::from_secs(1);

/// The point at which `tail` begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TailFrom {
    /// The oldest message that is kept.
    First,
    /// This sequence, or the next one that is kept.
    Sequence(u64),
    /// The first message stored at this time or later, microseconds since the Unix epoch.
    Time { at_us: u64 },
    /// The next message after the present end.
    Latest,
}

/// The last delivered message, or the point at which the first one is to be found.
#[derive(Debug, Clone)]
pub(super) enum ReadStart {
    First,
    Sequence(u64),
    Time {
        at_us: u64,
    },
    /// This position is searched for at each opening: the stream may have been made anew meanwhile.
    Position(Lsn),
    After {
        sequence: u64,
        id: String,
    },
}

/// A reader of one stream, see the module. Dropping it leaves a consumer that the server removes by itself.
pub struct NatsLogReader {
    connection: Arc<Connection>,
    stream: StreamName,
    start: ReadStart,
    state: State,
}

enum State {
    Closed,
    /// The future is kept here, so that a dropped `next` does not start it over.
    Opening(BoxFuture<'static, Result<OpenPull, Fault>>),
    Open(OpenPull),
}

struct OpenPull {
    generation: u64,
    messages: Box<pull::Stream>,
    since: Instant,
    delivered: bool,
}

impl NatsLogReader {
    /// Opens the consumer at once, so that a hole shows before anything is read.
    pub(super) async fn open(
        connection: Arc<Connection>,
        stream: StreamName,
        start: ReadStart,
    ) -> Result<Self, Fault> {
        let open = open(Arc::clone(&connection), stream.clone(), start.clone()).await?;
        Ok(Self { connection, stream, start, state: State::Open(open) })
    }

    /// Checks that the message follows the last one.
    fn accept(&mut self, message: &Message) -> Result<LogMessage, Fault> {
        let title = self.stream.title();
        let info = message.info().map_err(|error| {
            Fault::new(Code::LogUnreachable, &title, "a delivery without a sequence").caused_by(error)
        })?;
        let (sequence, has_next) = (info.stream_sequence, info.pending > 0);
        let stored_at_us = u64::try_from(info.published.unix_timestamp_nanos() / 1_000).unwrap_or_default();
        if let ReadStart::After { sequence: last, .. } = self.start
            && sequence != last + 1
        {
            return Err(Fault::new(Code::LogHole, title, format!("message {sequence} follows {last}"))
                .needs(format!("message {}", last + 1)));
        }
        let entry = entry(&self.stream, sequence, message.headers.as_ref())?;
        self.start = ReadStart::After { sequence, id: entry.id.clone() };
        Ok(LogMessage { entry, payload: message.payload.clone(), stored_at_us, has_next })
    }
}

impl LogReader for NatsLogReader {
    async fn next(&mut self) -> Result<LogMessage, Fault> {
        loop {
            match &mut self.state {
                State::Closed => {
                    let connection = Arc::clone(&self.connection);
                    let opening = open(connection, self.stream.clone(), self.start.clone());
                    self.state = State::Opening(Box::pin(opening));
                }
                State::Opening(opening) => {
                    let opened = opening.await;
                    self.state = State::Closed;
                    self.state = State::Open(opened?);
                }
                State::Open(open) => {
                    let item = tokio::select! {
                        biased;
                        item = open.messages.next() => item,
                        () = self.connection.broken(open.generation) => None,
                    };
                    match item {
                        // A message of a later connection may follow messages that were lost with the earlier one.
                        Some(Ok(message)) if self.connection.generation() == open.generation => {
                            open.delivered = true;
                            let accepted = self.accept(&message);
                            if accepted.is_err() {
                                self.state = State::Closed;
                            }
                            return accepted;
                        }
                        item => {
                            let hopeless = !open.delivered && open.since.elapsed() < LIFE_MIN;
                            let hopeless = hopeless && self.connection.is_current(open.generation);
                            self.state = State::Closed;
                            if let Some(Err(error)) = item {
                                tracing::debug!(stream = self.stream.name, %error, "consumer ended");
                                if hopeless {
                                    let found = "its consumer ends at once";
                                    return Err(Fault::new(Code::LogUnreachable, self.stream.title(), found)
                                        .caused_by(error));
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Checks the starting point, then makes a consumer after it, both on one connection.
async fn open(connection: Arc<Connection>, stream: StreamName, start: ReadStart) -> Result<OpenPull, Fault> {
    let generation = connection.generation();
    let deliver_policy = match &start {
        ReadStart::First => DeliverPolicy::All,
        ReadStart::Sequence(sequence) => {
            DeliverPolicy::ByStartSequence { start_sequence: (*sequence).max(1) }
        }
        ReadStart::Time { at_us } => DeliverPolicy::ByStartTime { start_time: time(&stream, *at_us)? },
        ReadStart::Position(lsn) => {
            let (last, found) = first_at(connection.context(), &stream, *lsn).await?;
            let start_sequence = found.map_or(last + 1, |entry| entry.sequence).max(1);
            DeliverPolicy::ByStartSequence { start_sequence }
        }
        ReadStart::After { sequence, id } => {
            check_link(connection.context(), &stream, *sequence, id).await?;
            DeliverPolicy::ByStartSequence { start_sequence: sequence + 1 }
        }
    };
    let consumer = make_consumer(connection.context(), &stream, deliver_policy).await?;
    let unavailable = |found: &str| Fault::new(Code::LogUnreachable, stream.title(), found);
    let messages = consumer
        .stream()
        .max_messages_per_batch(PULL_MESSAGES)
        .max_bytes_per_batch(LARGEST_MESSAGES_A_PULL * connection.message_bytes_max())
        .heartbeat(HEARTBEAT)
        .messages()
        .await
        .map_err(|error| unavailable("cannot be read").caused_by(error))?;
    if !connection.is_current(generation) {
        return Err(unavailable("the connection broke"));
    }
    Ok(OpenPull { generation, messages: Box::new(messages), since: Instant::now(), delivered: false })
}

async fn make_consumer(
    context: &jetstream::Context,
    stream: &StreamName,
    deliver_policy: DeliverPolicy,
) -> Result<PullConsumer, Fault> {
    let config = pull::Config {
        description: Some("Anabranch reader".to_owned()),
        deliver_policy,
        ack_policy: AckPolicy::None,
        inactive_threshold: INACTIVE_THRESHOLD,
        memory_storage: true,
        num_replicas: 1,
        ..pull::Config::default()
    };
    context.create_consumer_on_stream(config, stream.name.as_str()).await.map_err(|error| {
        let title = stream.title();
        match error.kind() {
            ConsumerErrorKind::JetStream(refusal) => error::refused(&title, refusal),
            _ => Fault::new(Code::LogUnreachable, title, "no consumer could be made").caused_by(error),
        }
    })
}

/// Requires that the stream still holds this message with this id.
async fn check_link(
    context: &jetstream::Context,
    stream: &StreamName,
    sequence: u64,
    id: &str,
) -> Result<(), Fault> {
    let title = stream.title();
    let hole = |found: String| {
        Fault::new(Code::LogHole, title.clone(), found).needs(format!("message {sequence} with id {id}"))
    };
    if let Some(message) = raw_message(context, stream, sequence).await? {
        let found = message.headers.get_last(NATS_MESSAGE_ID).map_or("none", |value| value.as_str());
        if found == id {
            return Ok(());
        }
        return Err(hole(format!("message {sequence} was written anew: its id is {found}")));
    }
    let Some(info) = setup::info(context, &stream.name, &title).await? else {
        return Err(error::stream_missing(&title));
    };
    let (first, last) = (info.state.first_sequence, info.state.last_sequence);
    Err(hole(if sequence > last {
        format!("its last message is {last}: newer ones were lost, or the stream was created anew")
    } else if sequence < first {
        format!("its first message is {first}: retention removed message {sequence}")
    } else {
        format!("message {sequence} was deleted")
    }))
}

/// Returns a message by its sequence, from the stream's leader; `None` when the stream does not hold it.
pub(super) async fn raw_message(
    context: &jetstream::Context,
    stream: &StreamName,
    sequence: u64,
) -> Result<Option<jetstream::message::StreamMessage>, Fault> {
    let title = stream.title();
    let handle = context
        .get_stream_no_info(stream.name.as_str())
        .await
        .map_err(|error| Fault::new(Code::Internal, title.clone(), "not a stream's name").caused_by(error))?;
    match handle.get_raw_message(sequence).await {
        Ok(message) => Ok(Some(message)),
        Err(error) => match error.kind() {
            RawMessageErrorKind::NoMessageFound => Ok(None),
            RawMessageErrorKind::JetStream(refusal) => Err(error::refused(&title, refusal)),
            _ => Err(Fault::new(Code::LogUnreachable, title, "no answer").caused_by(error)),
        },
    }
}

/// Returns the first kept sequence and the last one ever used.
pub(super) async fn bounds(context: &jetstream::Context, stream: &StreamName) -> Result<(u64, u64), Fault> {
    match setup::info(context, &stream.name, &stream.title()).await? {
        Some(info) => Ok((info.state.first_sequence, info.state.last_sequence)),
        None => Err(error::stream_missing(&stream.title())),
    }
}

/// Returns the last sequence ever used, and the first whole message whose position is not below `lsn`.
pub(super) async fn first_at(
    context: &jetstream::Context,
    stream: &StreamName,
    lsn: Lsn,
) -> Result<(u64, Option<LogEntry>), Fault> {
    let (first, last) = bounds(context, stream).await?;
    let found = search::first_at(lsn, first, last, &|sequence| first_kept(context, stream, sequence)).await?;
    Ok((last, found))
}

/// Returns the first whole message from `sequence` on that the stream still holds. A damaged message is skipped: it has
/// no known position.
pub(super) async fn first_kept(
    context: &jetstream::Context,
    stream: &StreamName,
    mut sequence: u64,
) -> Result<Option<LogEntry>, Fault> {
    let title = stream.title();
    let handle = context
        .get_stream_no_info(stream.name.as_str())
        .await
        .map_err(|error| Fault::new(Code::Internal, title.clone(), "not a stream's name").caused_by(error))?;
    loop {
        let message = match handle.get_first_raw_message_by_subject(stream.subject.as_str(), sequence).await {
            Ok(message) => message,
            Err(error) => match error.kind() {
                RawMessageErrorKind::NoMessageFound => return Ok(None),
                RawMessageErrorKind::JetStream(refusal) => return Err(error::refused(&title, refusal)),
                _ => return Err(Fault::new(Code::LogUnreachable, title, "no answer").caused_by(error)),
            },
        };
        match entry(stream, message.sequence, Some(&message.headers)) {
            Err(fault) if fault.code() == Code::LogMessageCorrupt => sequence = message.sequence + 1,
            entry => return entry.map(Some),
        }
    }
}

/// Reads id and envelope of a stored message.
pub(super) fn entry(
    stream: &StreamName,
    sequence: u64,
    headers: Option<&HeaderMap>,
) -> Result<LogEntry, Fault> {
    let header = |name: &str| headers.and_then(|headers| headers.get_last(name)).map(|value| value.as_str());
    let subject = || format!("message {sequence} of {}", stream.title());
    let foreign = |found: String| {
        Fault::new(Code::LogForeign, subject(), found)
            .needs(format!("no other publisher on subject {}", stream.subject))
            .remedy(format!(
                "stop the other publisher, `nats stream rm {}`, then {}",
                stream.name,
                error::SETUP
            ))
    };
    let Some(id) = headers.and_then(|headers| headers.get_last(NATS_MESSAGE_ID)) else {
        return Err(foreign("it has no message id".to_owned()));
    };
    let envelope = Envelope::from_headers(header).map_err(|invalid| {
        if header(invalid.name).is_none() {
            foreign(format!("it has no header {}", invalid.name))
        } else {
            Fault::new(Code::LogMessageCorrupt, subject(), "a header is malformed").caused_by(invalid)
        }
    })?;
    Ok(LogEntry { sequence, id: id.as_str().to_owned(), envelope })
}

fn time(stream: &StreamName, at_us: u64) -> Result<async_nats::datetime::DateTime, Fault> {
    async_nats::datetime::from_nanos(i128::from(at_us) * 1_000).map_err(|error| {
        Fault::new(Code::ConfigInvalid, stream.title(), format!("{at_us} µs is not a time")).caused_by(error)
    })
}
