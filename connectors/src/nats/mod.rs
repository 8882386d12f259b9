//! NATS JetStream: the replayable log, one stream a source, and the leases.
//!
//! Names, for the configured name `demo` and the source `source-a`: stream `demo_source-a` with the one subject
//! `demo.source-a.changes`, requests for a position message on `demo.source-a.positions` (core NATS); buckets
//! `demo_leases`, `demo_registers` and `demo_intake`. Case stays as configured. Two installations whose stream names
//! coincide (`a_b` + `c` and `a` + `b_c`) differ in the subject, so the second one's `setup` is refused by name.
//!
//! `client.rs` connects and checks the server, `setup.rs` makes and compares streams, `writer.rs` appends under the
//! fence, `reader.rs` reads and finds holes, `search.rs` finds positions, `work_queue.rs` carries messages to granters,
//! `lease.rs` holds leases and `lease_holders.rs` lists them, `registers.rs` keeps short texts, `error.rs` turns
//! answers into faults.

mod client;
mod error;
mod lease;
mod lease_holders;
mod reader;
mod registers;
mod search;
mod setup;
pub mod work_queue;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use anabranch_pipeline::config::{Limits, LogConfig};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{Log, LogEntry, ReadFrom};
use anabranch_schemas::lsn::Lsn;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Mutex;

use self::client::Connection;
use self::lease::HeldLeases;
use self::reader::ReadStart;
use self::writer::Destination;

pub use self::lease::NatsLease;
pub use self::lease_holders::LeaseHolder;
pub use self::reader::{NatsLogReader, TailFrom};
pub use self::setup::{SetupOutcome, SetupStep};
pub use self::writer::NatsLogWriter;

/// The server disconnects a client that has 64 MiB on the way (measured: again and again beyond the limit). Each reader
/// may have 3 MiB of pulls open.
const READERS_PER_CONNECTION: usize = 16;
/// Queries for the end of a stream, because retention may remove the last message between two of them.
const END_ATTEMPTS: usize = 3;

/// The log and the leases in one NATS. Clones share the connections.
#[derive(Debug, Clone)]
pub struct NatsLog {
    prefix: String,
    config: LogConfig,
    limits: Limits,
    /// Everything but readers uses this connection, so no answer waits after their bulk.
    connection: Arc<Connection>,
    /// Connections of up to [`READERS_PER_CONNECTION`] readers each; each is closed with its last reader.
    readers: Arc<Mutex<Vec<Arc<Connection>>>>,
    held_leases: HeldLeases,
}

/// State of a source's stream, for `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamState {
    pub messages: u64,
    pub bytes: u64,
    /// Sequence of the oldest kept message; it is above `last_sequence` when the stream is empty.
    pub first_sequence: u64,
    /// Sequence of the last message ever.
    pub last_sequence: u64,
    /// Time when the oldest message was stored, in microseconds since the Unix epoch; `None` when the stream is empty.
    pub first_at_us: Option<u64>,
    /// Like `age_max`, a limit above which the stream drops its oldest messages; `None` = no limit.
    pub bytes_max: Option<u64>,
    pub age_max: Option<Duration>,
}

/// Name and subject of a stream.
#[derive(Debug, Clone)]
struct StreamName {
    name: String,
    subject: String,
}

impl StreamName {
    /// Returns the name by which an operator knows the stream.
    fn title(&self) -> String {
        format!("stream {}", self.name)
    }
}

impl NatsLog {
    /// Resolves with a fault when NATS has not been connected for this time. A request waits for the next connection.
    pub async fn connection_lost(&self, time: Duration) -> Fault {
        self.connection.lost_for(time).await;
        let found = format!("no connection for {} s", time.as_secs_f64());
        Fault::new(Code::LogUnreachable, client::server_name(&self.config), found)
    }

    /// Connects, and checks version, limits and JetStream of the server. `prefix` is the configuration's `name`.
    pub async fn connect(config: &LogConfig, prefix: &str, limits: &Limits) -> Result<Self, Fault> {
        Ok(Self {
            prefix: prefix.to_owned(),
            config: config.clone(),
            limits: *limits,
            connection: Connection::open(config, prefix).await?,
            readers: Arc::default(),
            held_leases: HeldLeases::default(),
        })
    }

    /// Returns the state of the source's stream.
    pub async fn stream_state(&self, source: &str) -> Result<StreamState, Fault> {
        let stream = self.stream(source);
        let Some(info) = setup::info(self.connection.context(), &stream.name, &stream.title()).await? else {
            return Err(error::stream_missing(&stream.title()));
        };
        let first_at = u64::try_from(info.state.first_timestamp.unix_timestamp_nanos() / 1_000).ok();
        Ok(StreamState {
            messages: info.state.messages,
            bytes: info.state.bytes,
            first_sequence: info.state.first_sequence,
            last_sequence: info.state.last_sequence,
            first_at_us: first_at.filter(|_| info.state.messages > 0),
            bytes_max: u64::try_from(info.config.max_bytes).ok().filter(|bytes| *bytes > 0),
            age_max: Some(info.config.max_age).filter(|age| !age.is_zero()),
        })
    }

    /// Deletes the stream of a source that left for good, with all of its messages; returns whether there was one. A
    /// stream of the same name that Anabranch did not make for this source is refused.
    pub async fn remove_stream(&self, source: &str) -> Result<bool, Fault> {
        #[derive(Deserialize)]
        struct Deleted {
            success: bool,
        }
        let (context, stream) = (self.connection.context(), self.stream(source));
        let Some(info) = setup::info(context, &stream.name, &stream.title()).await? else { return Ok(false) };
        setup::require_fixed(&self.config, &stream, &info.config)?;
        let api = format!("STREAM.DELETE.{}", stream.name);
        let deleted: Deleted = error::demand(context, &stream.title(), api, &json!({})).await?;
        Ok(deleted.success)
    }

    /// Opens a reader at any point, for operators. Its sequences have no gap after the first message.
    pub async fn tail(&self, source: &str, from: TailFrom) -> Result<NatsLogReader, Fault> {
        let place = match from {
            TailFrom::First => ReadStart::First,
            TailFrom::Sequence(sequence) => ReadStart::Sequence(sequence),
            TailFrom::Time { at_us } => ReadStart::Time { at_us },
            TailFrom::Latest => ReadStart::Sequence(self.stream_state(source).await?.last_sequence + 1),
        };
        NatsLogReader::open(self.reader_connection().await?, self.stream(source), place).await
    }

    /// Sequence of the first message, kept or still to come, that can hold a change at this position or later.
    pub async fn sequence_of(&self, source: &str, lsn: Lsn) -> Result<u64, Fault> {
        let (context, stream) = (self.connection.context(), self.stream(source));
        let (first, last) = reader::bounds(context, &stream).await?;
        search::first_with(lsn, first, last, &|sequence| reader::first_kept(context, &stream, sequence)).await
    }

    fn stream(&self, source: &str) -> StreamName {
        StreamName { name: self.stream_name(source), subject: self.subject_name(source) }
    }

    fn stream_name(&self, source: &str) -> String {
        format!("{}_{source}", self.prefix)
    }

    fn subject_name(&self, source: &str) -> String {
        format!("{}.{source}.changes", self.prefix)
    }

    fn request_subject(&self, source: &str) -> String {
        format!("{}.{source}.positions", self.prefix)
    }

    fn lease_bucket(&self) -> String {
        format!("{}_leases", self.prefix)
    }

    fn register_bucket(&self) -> String {
        format!("{}_registers", self.prefix)
    }

    fn intake_bucket(&self) -> String {
        format!("{}_intake", self.prefix)
    }

    async fn reader_connection(&self) -> Result<Arc<Connection>, Fault> {
        let mut readers = self.readers.lock().await;
        readers.retain(|connection| Arc::strong_count(connection) > 1);
        if let Some(free) = readers.iter().find(|c| Arc::strong_count(c) <= READERS_PER_CONNECTION) {
            return Ok(Arc::clone(free));
        }
        let connection = Connection::open(&self.config, &self.prefix).await?;
        readers.push(Arc::clone(&connection));
        Ok(connection)
    }
}

impl Log for NatsLog {
    type Writer = NatsLogWriter;
    type Reader = NatsLogReader;

    async fn end(&self, source: &str) -> Result<Option<LogEntry>, Fault> {
        let stream = self.stream(source);
        for _ in 0..END_ATTEMPTS {
            let info = setup::info(self.connection.context(), &stream.name, &stream.title()).await?;
            let Some(info) = info else { return Err(error::stream_missing(&stream.title())) };
            setup::require_fixed(&self.config, &stream, &info.config)?;
            if info.state.messages == 0 {
                return Ok(None);
            }
            let last = info.state.last_sequence;
            if let Some(message) = reader::raw_message(self.connection.context(), &stream, last).await? {
                return reader::entry(&stream, last, Some(&message.headers)).map(Some);
            }
        }
        Err(Fault::new(Code::LogHole, stream.title(), "its last message was deleted")
            .needs("the message that holds the position to resume from")
            .remedy(format!("`nats stream rm {}`, then {}", stream.name, error::SETUP)))
    }

    /// Asks for the stream's state when there is no end: a stream emptied by retention or a purge keeps counting.
    async fn writer(&self, source: &str, end: Option<&LogEntry>) -> Result<NatsLogWriter, Fault> {
        let last_sequence = match end {
            Some(end) => end.sequence,
            None => {
                let state = self.stream_state(source).await?;
                // As with a known end, the first append finds a writer that appended since.
                if state.messages == 0 { state.last_sequence } else { state.first_sequence.saturating_sub(1) }
            }
        };
        let connection = Arc::clone(&self.connection);
        let destination = Destination { connection, stream: self.stream(source), last_sequence };
        NatsLogWriter::begin(destination, &self.limits).await
    }

    async fn first_at(&self, source: &str, position: Lsn) -> Result<Option<LogEntry>, Fault> {
        let (_, found) = reader::first_at(self.connection.context(), &self.stream(source), position).await?;
        Ok(found)
    }

    async fn reader(&self, source: &str, from: ReadFrom) -> Result<NatsLogReader, Fault> {
        let place = match from {
            ReadFrom::At(Lsn::ZERO) => ReadStart::First,
            ReadFrom::At(lsn) => ReadStart::Position(lsn),
            ReadFrom::After { sequence, id } => ReadStart::After { sequence, id },
        };
        NatsLogReader::open(self.reader_connection().await?, self.stream(source), place).await
    }

    async fn ask_for_position(&self, source: &str) {
        if let Err(error) = self.connection.client().publish(self.request_subject(source), Bytes::new()).await
        {
            tracing::debug!(source, %error, "a position message cannot be asked for");
        }
    }

    async fn position_requests(&self, source: &str) -> Result<BoxStream<'static, ()>, Fault> {
        let subject = self.request_subject(source);
        let asked = self.connection.client().subscribe(subject.clone()).await.map_err(|error| {
            Fault::new(Code::LogUnreachable, format!("subject {subject}"), "no subscription").caused_by(error)
        })?;
        Ok(asked.map(|_| ()).boxed())
    }
}
