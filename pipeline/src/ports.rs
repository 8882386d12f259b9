//! What the flow needs of the outside, and nothing more.
//!
//! The traits stand here, and not beside their implementations, because dependencies run `pipeline ← connectors`.
//! Contracts that types cannot say are written at each method; the conformance tests check them. `lookup.rs`,
//! `reconciliation.rs` and `sequence.rs` have those that only lookups, reconciliations and identifiers of payment
//! documents need.

mod lookup;
mod reconciliation;
mod sequence;

use std::collections::BTreeSet;
use std::future::Future;
use std::num::NonZeroUsize;
use std::time::Duration;

use anabranch_schemas::change::{TableIdentity, Value};
use anabranch_schemas::envelope::{CapturedFields, Envelope, ServerIdentity};
use anabranch_schemas::lsn::{Lsn, ResumePoint};
use anabranch_schemas::shard::ShardId;
use anabranch_schemas::timeline::Timeline;
use bytes::Bytes;
use futures::stream::BoxStream;

pub use self::lookup::{
    CacheEntries, CacheEntry, CacheRecord, Cached, CodeCache, FRESHNESS_KEY_KEPT, Fill, MappingStore,
    OUTBOX_KEPT, Outbox, OutboxRow,
};
pub use self::reconciliation::{DerivedRows, ForeignRow, ForeignRows, History, Lanes, Sought};
pub use self::sequence::Sequence;
use crate::error::Fault;
use crate::records::{BatchBuilder, Cell, Chunk, ChunkKey, Condition, Flush, Progress};

/// Where a reading of a source begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// The oldest binlog that the server still has.
    Earliest,
    /// The server's present end.
    Latest,
    /// After every transaction of a GTID set, in the server's notation.
    Gtid(String),
    /// At a resume point, dropping what lies not above `position`.
    ///
    /// `server` is the one that was read up to there; another one is followed only if it holds all that was read.
    Resume { resume: ResumePoint, position: Lsn, server: ServerIdentity },
}

impl Entry {
    /// The resume point and server that the message before told, if reading goes on after one.
    pub fn told(&self) -> Option<(ResumePoint, ServerIdentity)> {
        match self {
            Self::Resume { resume, server, .. } => Some((resume.clone(), server.clone())),
            Self::Earliest | Self::Latest | Self::Gtid(_) => None,
        }
    }
}

/// A place in the past of a source, as people say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BinlogPoint {
    /// The oldest binlog that the server still has.
    Earliest,
    /// The server's present end.
    Latest,
    /// This position: its own changes are above the place.
    Lsn(Lsn),
    /// After every transaction of a GTID set, in the server's notation.
    Gtid(String),
    /// Microseconds since the Unix epoch.
    Time { at_us: u64 },
}

/// A place that can be resumed from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// Everything of the place lies above.
    pub position: Lsn,
    pub resume: ResumePoint,
    pub server: ServerIdentity,
}

/// Why [`ChangeSource::fill`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filled {
    /// The batch has reached its limit.
    Full,
    /// Nothing more has arrived for now.
    Drained,
}

/// An open reading of one source.
pub trait ChangeSource: Send {
    /// Waits for the next event, then adds events until the batch is full or no more have arrived.
    ///
    /// Order is commit order; nothing is skipped; positions in the batch never go back. In front of its first row the
    /// batch has a position of the reading's own epoch. Cancel safe: a dropped call loses nothing, what it read is in
    /// the batch or still unread.
    fn fill(&mut self, batch: &mut BatchBuilder) -> impl Future<Output = Result<Filled, Fault>> + Send;

    /// Where the reading entered: what lies above comes, what does not never will. [`Lsn::ZERO`] = not known.
    fn entered_at(&self) -> Lsn;

    /// The server that is being read.
    fn server(&self) -> &ServerIdentity;
}

/// A source that can be opened for reading.
pub trait SourceConnector: Send + Sync {
    /// Owns what it needs, so that a direct feed can be read in a task of its own.
    type Source: ChangeSource + 'static;

    /// How many fields of each entity its readings and chunks have.
    fn captured(&self) -> CapturedFields;

    /// Checks everything that capture depends on; each failed check is one fault. An unreachable server is one too.
    fn check(&self) -> impl Future<Output = Vec<Fault>> + Send;

    /// Opens a reading in the epoch that follows `latest` ([`Timeline::followed_by`]); it must not lie below the
    /// entry's.
    /// In the entry's own epoch its place is gone on from, in a higher one its transactions are.
    ///
    /// `replica_slot` tells readings of one source apart, which the server takes for replicas: 0 is the reader's,
    /// each lane has its own. A second reading of the same replica slot ends the first.
    fn open(
        &self,
        entry: Entry,
        latest: &Timeline,
        replica_slot: u32,
    ) -> impl Future<Output = Result<Self::Source, Fault>> + Send;

    /// Where in the binlog a place lies, as a position of `epoch`. A time leads to a place before its first change,
    /// with at most a file between.
    fn locate(&self, place: BinlogPoint, epoch: u16) -> impl Future<Output = Result<Located, Fault>> + Send;

    /// The shards that the source has now: one for each captured table.
    fn shards(&self) -> impl Future<Output = Result<Vec<ShardId>, Fault>> + Send;

    /// The server's present end of the binlog, in the first epoch: only who knows the stream knows the epoch
    /// ([`Lsn::in_epoch`]).
    fn head(&self) -> impl Future<Output = Result<Lsn, Fault>> + Send;
}

/// How busy a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pressure {
    /// The present end of its binlog, in the first epoch, see [`SourceConnector::head`].
    pub head: Lsn,
    /// Statements that it runs at this moment, the question included.
    pub running_threads: u64,
    /// `None` = it is no replica, or does not tell.
    pub replica_lag: Option<Duration>,
    /// Why the server does not say whether it is a replica, and how far behind.
    pub lag_unknown: Option<String>,
}

/// A source whose tables can be read as they are now. It is never written to, and nothing is locked.
pub trait RowSource: Send + Sync {
    /// Every captured table that exists, in the order of shard ids.
    fn tables(&self) -> impl Future<Output = Result<Vec<TableIdentity<'static>>, Fault>> + Send;

    fn pressure(&self) -> impl Future<Output = Result<Pressure, Fault>> + Send;

    /// The present end of the server, in the notation of its replicas.
    fn replication_end(&self) -> impl Future<Output = Result<String, Fault>> + Send;

    /// Whether this server holds all up to such an end of another one; waits for it, but not for longer than a second.
    fn has_replicated(&self, end: &str) -> impl Future<Output = Result<bool, Fault>> + Send;

    /// At most `rows` rows of a table behind `after`, of the present server; fewer when they are large. The watermark
    /// is said in `epoch`. Values are those that the table's changes have. A TRUNCATE after the watermark may be a
    /// transient fault.
    fn chunk(
        &self,
        table: &TableIdentity<'static>,
        after: Option<&ChunkKey>,
        rows: NonZeroUsize,
        epoch: u16,
    ) -> impl Future<Output = Result<Chunk, Fault>> + Send;

    /// The same rows without their watermark, each visited as it arrives: after a fault some have been. After which
    /// row the next ones follow, when more may.
    fn page(
        &self,
        table: &TableIdentity<'static>,
        after: Option<&ChunkKey>,
        rows: NonZeroUsize,
        visit: &mut (dyn FnMut(&[Value<'_>]) + Send),
    ) -> impl Future<Output = Result<Option<ChunkKey>, Fault>> + Send;

    /// A chunk of those rows only that a condition finds; an unknown column and a value that is none of its type are
    /// definite faults. Rows whose columns are equal under the column's collation are.
    fn matching(
        &self,
        table: &TableIdentity<'static>,
        condition: &Condition,
        after: Option<&ChunkKey>,
        rows: NonZeroUsize,
        epoch: u16,
    ) -> impl Future<Output = Result<Chunk, Fault>> + Send;

    /// All rows whose first field, as derived keys have it, is one of the keys of their table, all at one watermark;
    /// others may be among them. There is no next chunk. Without tables it is the watermark alone.
    fn rows(
        &self,
        keys: &[(TableIdentity<'static>, Vec<Cell>)],
        epoch: u16,
    ) -> impl Future<Output = Result<Chunk, Fault>> + Send;
}

/// A stored message of a source's stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    pub sequence: u64,
    /// Unique for ever: `<attempt>-<k>`.
    pub id: String,
    pub envelope: Envelope,
}

/// A message as read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogMessage {
    pub entry: LogEntry,
    pub payload: Bytes,
    /// Another one stood after it when it was delivered.
    pub has_next: bool,
}

/// Where reading the log begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadFrom {
    /// The first kept message whose position is not below this one; [`Lsn::ZERO`] = the oldest kept message.
    At(Lsn),
    /// After this message, which must still be there with this id; else [`crate::error::Code::LogHole`].
    After { sequence: u64, id: String },
}

/// The replayable log: one stream a source.
pub trait Log: Send + Sync {
    type Writer: LogWriter;
    type Reader: LogReader;

    /// The last message of the stream, if it has any.
    fn end(&self, source: &str) -> impl Future<Output = Result<Option<LogEntry>, Fault>> + Send;

    /// Begins an attempt to append behind `end`. A writer that appended since makes the first append fail with
    /// [`crate::error::Code::LogFenced`].
    fn writer(
        &self,
        source: &str,
        end: Option<&LogEntry>,
    ) -> impl Future<Output = Result<Self::Writer, Fault>> + Send;

    /// The first kept message whose position is not below this one, if there is one; a damaged one is passed over.
    fn first_at(
        &self,
        source: &str,
        position: Lsn,
    ) -> impl Future<Output = Result<Option<LogEntry>, Fault>> + Send;

    fn reader(
        &self,
        source: &str,
        from: ReadFrom,
    ) -> impl Future<Output = Result<Self::Reader, Fault>> + Send;

    /// Asks the source's reader, wherever it runs, to tell its position now if it has moved. May be lost: whoever waits
    /// for a position asks again meanwhile.
    fn ask_for_position(&self, source: &str) -> impl Future<Output = ()> + Send;

    /// What is asked of the source's reader from now on; several questions may come as one.
    fn position_requests(
        &self,
        source: &str,
    ) -> impl Future<Output = Result<BoxStream<'static, ()>, Fault>> + Send;
}

/// One attempt to append. The first error ends it: nothing after the failed message is stored.
pub trait LogWriter: Send {
    /// Whether another message may be sent before an acknowledgement has come.
    fn has_room(&self) -> bool;

    /// Messages sent and not yet acknowledged.
    fn in_flight(&self) -> usize;

    /// Sends one message; only to be called while [`Self::has_room`].
    fn append(
        &mut self,
        envelope: Envelope,
        payload: Bytes,
    ) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Waits for the next acknowledgement, in the order of appends; durable according to the server's setting.
    /// Cancel safe. Only to be called while something is in flight.
    fn acknowledged(&mut self) -> impl Future<Output = Result<LogEntry, Fault>> + Send;
}

/// An open reading of one stream.
pub trait LogReader: Send {
    /// The next message; waits for it. Sequences follow one another without a gap, else
    /// [`crate::error::Code::LogHole`]. Cancel safe.
    fn next(&mut self) -> impl Future<Output = Result<LogMessage, Fault>> + Send;
}

/// The store of one lane: its derived tables and its progress in one server.
pub trait LaneStore: Send {
    /// Reads the lane's progress.
    fn load(&mut self) -> impl Future<Output = Result<Progress, Fault>> + Send;

    /// Applies the mutations and stores `flush.progress` in one transaction, if the stored revision is still the one
    /// before `flush.progress.revision`; else [`crate::error::Code::TargetFenced`] and nothing is changed. Of a source
    /// row that the flush replaces exactly what it writes stands afterwards, whatever version stood there.
    ///
    /// After any other error the outcome is unknown: load before going on.
    fn commit(&mut self, flush: &Flush) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Those of the shards of which rows may stand in the lane's tables. The answer may name a shard in vain, and
    /// leaves out none that has rows. It does not know of what another process of the lane commits meanwhile: that
    /// process makes the next commit fail in a store that is atomic, and another store names all shards.
    fn may_stand(
        &mut self,
        shards: BTreeSet<ShardId>,
    ) -> impl Future<Output = Result<BTreeSet<ShardId>, Fault>> + Send;

    /// Whether mutations and progress come in one transaction indeed. A store without transactions writes each mutation
    /// under its version and progress last: a flush that was cut off leaves rows that no progress tells of.
    fn is_atomic(&self) -> bool;
}

/// Names that at most one process holds at a time. A lease saves work; it fences nothing.
pub trait Leases: Send + Sync {
    type Lease: Lease;

    /// Waits until the lease is free and takes it.
    fn acquire(&self, key: &str) -> impl Future<Output = Result<Self::Lease, Fault>> + Send;

    /// The same, and calls `standing_by` each time when it has found another holder.
    fn acquire_or_stand_by(
        &self,
        key: &str,
        standing_by: &(dyn Fn() + Send + Sync),
    ) -> impl Future<Output = Result<Self::Lease, Fault>> + Send;
}

/// A held lease. Dropping it stops the renewal; [`Lease::release`] frees it at once.
pub trait Lease: Send {
    /// Resolves when the lease is lost or could not be renewed in time. Cancel safe.
    fn lost(&mut self) -> impl Future<Output = Fault> + Send;

    fn release(self) -> impl Future<Output = ()> + Send;
}

/// How far something was used, as it was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Register {
    /// Empty when it was never raised.
    pub value: String,
    pub revision: u64,
}

/// Registers whose keys begin with it are the callers' own: they may be forgotten after a day, and a full store refuses
/// them alone, with [`crate::error::Code::UuidsKeysFull`].
pub const INTAKE: &str = "intake/";

/// Short texts that outlive every process. A process sets one only with its last revision, and before it uses what the
/// text reserves.
pub trait Registers: Send + Sync {
    fn read(&self, key: &str) -> impl Future<Output = Result<Register, Fault>> + Send;

    /// Stores `value` if nobody has stored since `known` was read; else [`crate::error::Code::LeaseLost`]. Durable when
    /// it returns. After any other error the outcome is unknown.
    fn compare_and_set(
        &self,
        key: &str,
        known: &Register,
        value: String,
    ) -> impl Future<Output = Result<Register, Fault>> + Send;
}

/// The replica slot of a source's reader; lanes have the ones after it.
pub const READER_REPLICA_SLOT: u32 = 0;

/// Apart from those of readers and lanes: of a reading that only looks whether a source can be read on.
pub const PROBE_REPLICA_SLOT: u32 = (1 << 16) + 1;

/// After this time without renewal a lease is free.
pub const LEASE_TIME_TO_LIVE: Duration = Duration::from_secs(4);
