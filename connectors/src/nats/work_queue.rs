//! The work queue of the coupon day: one stream, and one subject and durable consumer for each part of the users.
//!
//! Names, for the configured name `demo`: stream `demo_coupons`, subjects `demo.coupons.0` to `demo.coupons.15`,
//! consumers `part-0` to `part-15`. The queue is a hint. A message may be lost, doubled, delayed and repeated; a user
//! who lacks a coupon is published again until the run is closed. So nothing here is fenced, a missing stream is
//! created anew, and an unreadable message is set aside. A full stream refuses further messages: that bounds the queue.

mod codec;

use std::sync::Arc;
use std::time::Duration;

use anabranch_coupons::ports::WorkQueue;
use anabranch_coupons::records::{Message, PARTS, part};
use anabranch_pipeline::config::LogConfig;
use anabranch_pipeline::error::{Code, Fault};
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use async_nats::jetstream::{self, AckKind};
use bytes::Bytes;
use futures::StreamExt;
use futures::future::try_join_all;

use super::client::Connection;
use super::{SetupStep, error, setup};

/// Life of a message: no run is open beyond the second reconciliation after it.
const MAX_AGE: Duration = Duration::from_secs(3 * 24 * 3600);
/// Room for five million users; the dispatcher publishes users again for whom there was no room.
const MAX_MESSAGES: i64 = 50_000;
/// Room for [`MAX_MESSAGES`] messages of a hundred users each.
const MAX_BYTES: i64 = 128 * 1024 * 1024;
/// A message that no granter ends is delivered again after this time, which exceeds a call and its transactions.
pub const ACK_WAIT: Duration = Duration::from_secs(120);
/// Messages of a part that granters hold at once. Messages that wait for their pause count too, so any number of them
/// may wait: those of a slow programme keep none of the others back.
const ACK_PENDING_MAX: i64 = MAX_MESSAGES;
/// Messages that are published and not yet acknowledged, at most.
const IN_FLIGHT_MAX: usize = 256;
/// Messages that a granter gets at once, at most.
const FETCH_MAX: usize = 100;
/// Wait for the first message.
const FETCH_WAIT: Duration = Duration::from_secs(1);
/// Shortest pause: the server does not honour shorter ones any better.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// The work queue in one NATS, over a connection of its own. Clones share it.
#[derive(Debug, Clone)]
pub struct NatsWorkQueue {
    connection: Arc<Connection>,
    config: LogConfig,
    prefix: String,
}

/// Messages of one part. Any number of granters may read a part.
#[derive(Debug)]
pub struct WorkQueuePart {
    consumer: PullConsumer,
    title: String,
    /// Keeps the connection open while the part is read.
    _connection: Arc<Connection>,
}

/// A message whose handling has not ended. It is delivered again two minutes after it was delivered, or after it was
/// last said to be in progress.
#[derive(Debug)]
pub struct Delivery {
    pub message: Message,
    /// Number of deliveries, this one included.
    pub deliveries: u64,
    raw: jetstream::Message,
}

impl NatsWorkQueue {
    /// Connects. `prefix` is the configuration's `name`.
    pub async fn connect(config: &LogConfig, prefix: &str) -> Result<Self, Fault> {
        let connection = Connection::open(config, prefix).await?;
        Ok(Self { connection, config: config.clone(), prefix: prefix.to_owned() })
    }

    /// Creates the stream and its consumers, adjusts limits, checks the rest. Safe to repeat.
    pub async fn setup(&self) -> Result<SetupStep, Vec<Fault>> {
        let step = setup::set_up(self.connection.context(), &self.stream_config()).await?;
        let consumers = (0..PARTS).map(|part| self.consumer(part));
        try_join_all(consumers).await.map_err(|fault| vec![fault])?;
        Ok(step)
    }

    /// Runs the checks of the stream without changing anything; each failed check is one fault.
    pub async fn check(&self) -> Vec<Fault> {
        setup::check_one(self.connection.context(), &self.stream_config()).await
    }

    /// Returns the number of messages that wait or that granters hold.
    pub async fn pending(&self) -> Result<u64, Fault> {
        let info = setup::info(self.connection.context(), &self.stream_name(), &self.title()).await?;
        info.map(|info| info.state.messages).ok_or_else(|| error::stream_missing(&self.title()))
    }

    /// Opens a part: 0 to [`PARTS`] less one. Creates it if missing: nothing could be lost.
    pub async fn part(&self, part: u64) -> Result<WorkQueuePart, Fault> {
        setup::require_or_make(self.connection.context(), &self.stream_config()).await?;
        let consumer = self.consumer(part).await?;
        let title = format!("part {part} of {}", self.title());
        Ok(WorkQueuePart { consumer, title, _connection: Arc::clone(&self.connection) })
    }

    async fn consumer(&self, part: u64) -> Result<PullConsumer, Fault> {
        let config = pull::Config {
            durable_name: Some(format!("part-{part}")),
            description: Some("Anabranch: users who may lack a coupon".to_owned()),
            filter_subject: self.subject(part),
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            max_ack_pending: ACK_PENDING_MAX,
            ..pull::Config::default()
        };
        let made = self.connection.context().create_consumer_on_stream(config, self.stream_name()).await;
        made.map_err(|error| self.fault(error, "its consumer cannot be made"))
    }

    fn stream_config(&self) -> Config {
        Config {
            name: self.stream_name(),
            subjects: vec![format!("{}.coupons.*", self.prefix)],
            description: Some("Anabranch: users who may lack a coupon".to_owned()),
            retention: RetentionPolicy::WorkQueue,
            discard: DiscardPolicy::New,
            storage: StorageType::File,
            num_replicas: self.config.replicas.get(),
            max_age: MAX_AGE,
            max_bytes: MAX_BYTES,
            max_messages: MAX_MESSAGES,
            max_messages_per_subject: -1,
            max_consumers: -1,
            max_message_size: codec::MESSAGE_BYTES_MAX as i32,
            duplicate_window: setup::DUPLICATE_WINDOW,
            ..Config::default()
        }
    }

    fn stream_name(&self) -> String {
        format!("{}_coupons", self.prefix)
    }

    fn subject(&self, part: u64) -> String {
        format!("{}.coupons.{part}", self.prefix)
    }

    fn title(&self) -> String {
        format!("stream {}", self.stream_name())
    }

    fn fault(&self, error: impl std::error::Error + Send + Sync + 'static, found: &str) -> Fault {
        fault(&self.title(), error, found)
    }

    async fn publish_some(&self, messages: &[Message]) -> Result<(), Fault> {
        let context = self.connection.context();
        let mut acknowledged = Vec::with_capacity(messages.len());
        for message in messages {
            let Some(first) = message.members.first() else { continue };
            let payload = Bytes::from(codec::encode(message));
            let sent = context.publish(self.subject(part(first.user)), payload).await;
            acknowledged.push(sent.map_err(|error| self.fault(error, "a message was not sent"))?);
        }
        for waiting in acknowledged {
            waiting.await.map_err(|error| self.fault(error, "a message was not stored"))?;
        }
        Ok(())
    }
}

impl WorkQueue for NatsWorkQueue {
    async fn publish(&self, messages: &[Message]) -> Result<(), Fault> {
        for some in messages.chunks(IN_FLIGHT_MAX) {
            self.publish_some(some).await?;
        }
        Ok(())
    }
}

impl WorkQueuePart {
    /// Returns the next messages: at most `limit`, at most a hundred, none if none comes within a second.
    ///
    /// If this is cancelled, messages on their way are delivered again like any that no granter ended. After a fault
    /// the caller opens the part anew: the stream may have been removed.
    pub async fn next(&mut self, limit: usize) -> Result<Vec<Delivery>, Fault> {
        let limit = limit.clamp(1, FETCH_MAX);
        let waiting = self.consumer.fetch().max_messages(limit).messages().await;
        let mut found = self.collect(waiting).await?;
        if found.is_empty() {
            let first = self.consumer.batch().max_messages(1).expires(FETCH_WAIT).messages().await;
            found = self.collect(first).await?;
        }
        let mut deliveries = Vec::with_capacity(found.len());
        for raw in found {
            deliveries.extend(self.read(raw).await);
        }
        Ok(deliveries)
    }

    async fn collect<E>(&self, asked: Result<pull::Batch, E>) -> Result<Vec<jetstream::Message>, Fault>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        let batch = asked.map_err(|error| fault(&self.title, error, "its messages cannot be fetched"))?;
        let found: Vec<Result<jetstream::Message, _>> = batch.collect().await;
        let (mut messages, mut broken) = (Vec::with_capacity(found.len()), None);
        for message in found {
            match message {
                Ok(message) => messages.push(message),
                Err(error) => broken = Some(error),
            }
        }
        match broken {
            Some(error) if messages.is_empty() => {
                Err(Fault::new(Code::LogUnreachable, &self.title, "its messages cannot be fetched")
                    .caused_by(error))
            }
            _ => Ok(messages),
        }
    }

    /// Decodes a message. Reports and ends an unreadable one, so that it is not delivered again, and returns `None`.
    async fn read(&self, raw: jetstream::Message) -> Option<Delivery> {
        let (sequence, deliveries) = raw.info().map_or((0, 1), |info| (info.stream_sequence, info.delivered));
        match codec::decode(&raw.payload) {
            Ok(message) => {
                Some(Delivery { message, deliveries: u64::try_from(deliveries).unwrap_or(1), raw })
            }
            Err(why) => {
                let subject = format!("message {sequence} of {}", self.title);
                let fault = Fault::new(Code::LogMessageCorrupt, subject, "it cannot be read").caused_by(why);
                tracing::warn!(%fault, "a message of the work queue cannot be read and was removed from it");
                end(&raw, AckKind::Term).await;
                None
            }
        }
    }
}

impl Delivery {
    /// Ends a message whose work is done: it is not delivered again.
    pub async fn acknowledge(self) {
        end(&self.raw, AckKind::Ack).await;
    }

    /// Says that work on the message goes on, so that it is not delivered again for another [`ACK_WAIT`].
    pub async fn in_progress(&self) {
        end(&self.raw, AckKind::Progress).await;
    }

    /// Asks for another delivery of the message after a pause.
    pub async fn later(self, pause: Duration) {
        end(&self.raw, AckKind::Nak(Some(pause.max(PAUSE_MIN)))).await;
    }
}

/// Sends the end of a message, or that it is in progress. A lost one does no harm: the message is delivered again.
async fn end(message: &jetstream::Message, kind: AckKind) {
    if let Err(error) = message.ack_with(kind).await {
        tracing::debug!(%error, "the acknowledgement of a message could not be sent");
    }
}

fn fault(title: &str, error: impl std::error::Error + Send + Sync + 'static, found: &str) -> Fault {
    match error::refusal_beneath(&error) {
        Some(refusal) => {
            let fault = error::refused(title, refusal);
            match fault.code() {
                Code::LogFull => fault.needs("granters that work its messages off, or free storage of NATS"),
                _ => fault,
            }
        }
        None => Fault::new(Code::LogUnreachable, title, found).caused_by(error),
    }
}
