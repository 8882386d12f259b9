//! The traits through which the flow uses everything outside.
//!
//! They are defined here, and not beside their implementations, because dependencies run `pipeline ← connectors`. Each
//! method states the parts of its contract that types cannot express, and the conformance tests check them.
//! `lookup.rs`, `operations.rs`, `reconciliation.rs`, `relations.rs` and `sequence.rs` have the traits that only
//! lookups, records of operations, reconciliations, relations of payment documents and their identifiers need.

mod lookup;
mod operations;
mod reconciliation;
mod relations;
mod sequence;

use std::collections::BTreeSet;
use std::future::Future;
use std::num::NonZeroUsize;
use std::time::Duration;

use anabranch_schemas::change::{Entity, TableIdentity, Value};
use anabranch_schemas::envelope::{CapturedFields, Envelope, ServerIdentity};
use anabranch_schemas::lsn::{Lsn, ResumePoint};
use anabranch_schemas::shard::ShardId;
use anabranch_schemas::timeline::Timeline;
use bytes::Bytes;
use futures::stream::BoxStream;

pub use self::lookup::{
    CacheEntries, CacheEntry, CacheFill, CacheRecord, Cached, CodeCache, FRESHNESS_KEY_TIME_TO_LIVE,
    MappingStore, OUTBOX_RETENTION, Outbox, OutboxBacklog, OutboxRow,
};
pub use self::operations::Operations;
pub use self::reconciliation::{
    ClaimsPage, DerivedRowQuery, DerivedRows, ForeignRow, ForeignRows, History, Lanes, ShardPage,
};
pub use self::relations::RelationStore;
pub use self::sequence::Sequence;
use crate::error::{Class, Code, Fault};
use crate::records::{
    BatchBuilder, Cell, Chunk, Condition, DerivedRow, Flush, Mutation, Progress, ScanCursor,
};

/// The point of a source's binlog at which a reader or a direct feed begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BinlogStart {
    /// The oldest binlog that the server still has.
    Earliest,
    /// The server's present end.
    Latest,
    /// The point after every transaction of a GTID set, in the server's notation.
    Gtid(String),
    /// A resume point; changes that are not above `position` are dropped.
    ///
    /// `server` was read up to this point. Another server is followed only if it holds everything that was read.
    Resume { resume: ResumePoint, position: Lsn, server: ServerIdentity },
}

impl BinlogStart {
    /// Returns the resume point and server that the message before reported; `None` if the entry follows no message.
    pub fn resume_point(&self) -> Option<(ResumePoint, ServerIdentity)> {
        match self {
            Self::Resume { resume, server, .. } => Some((resume.clone(), server.clone())),
            Self::Earliest | Self::Latest | Self::Gtid(_) => None,
        }
    }
}

/// A point in the past of a source, as an operator names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BinlogPoint {
    /// The oldest binlog that the server still has.
    Earliest,
    /// The server's present end.
    Latest,
    /// This position; changes at it lie above the point.
    Lsn(Lsn),
    /// The point after every transaction of a GTID set, in the server's notation.
    Gtid(String),
    /// A time in microseconds since the Unix epoch.
    Time { at_us: u64 },
}

/// A point of the binlog from which a reader can resume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// Every change after the point lies above this position.
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

/// An open stream of changes from one source.
pub trait ChangeSource: Send {
    /// Waits for the next event, then adds events until the batch is full or no more have arrived.
    ///
    /// Events come in commit order and none is skipped; positions in the batch never go back. Before its first row, the
    /// batch has a position in this stream's epoch. Cancel safe: a dropped call loses nothing, because the events that
    /// it read are in the batch or still unread.
    fn fill(&mut self, batch: &mut BatchBuilder) -> impl Future<Output = Result<Filled, Fault>> + Send;

    /// Returns the position of the stream's entry: exactly the changes above it come. [`Lsn::ZERO`] = not known.
    fn start_position(&self) -> Lsn;

    /// Returns the server that this stream reads.
    fn server(&self) -> &ServerIdentity;
}

/// A source that can be opened for reading.
pub trait SourceConnector: Send + Sync {
    /// The type owns everything that it needs, so that a direct feed can read it in a separate task.
    type Source: ChangeSource + 'static;

    /// Returns how many fields of each entity the streams and chunks of this source have.
    fn captured(&self) -> CapturedFields;

    /// Checks everything that capture depends on. Each failed check is one fault, and so is an unreachable server.
    fn check(&self) -> impl Future<Output = Vec<Fault>> + Send;

    /// Opens a stream in the epoch that follows `latest` ([`Timeline::followed_by`]), which must not lie below the
    /// entry's. In the entry's own epoch the stream continues from the entry's file and offset, in a higher one from
    /// its transactions.
    ///
    /// `replica_slot` tells the streams of one source apart, which the server takes for replicas. The reader has slot
    /// 0, and each lane has its own. A second stream with the same replica slot ends the first.
    fn open(
        &self,
        entry: BinlogStart,
        latest: &Timeline,
        replica_slot: u32,
    ) -> impl Future<Output = Result<Self::Source, Fault>> + Send;

    /// Finds a point in the binlog and returns it with a position of `epoch`. A time leads to a point before its first
    /// change, with at most one file between.
    fn locate(&self, place: BinlogPoint, epoch: u16) -> impl Future<Output = Result<Located, Fault>> + Send;

    /// Returns the shards that the source has now: one for each captured table.
    fn shards(&self) -> impl Future<Output = Result<Vec<ShardId>, Fault>> + Send;

    /// Returns the server's present end of the binlog, in the first epoch. Only a caller that knows the stream knows
    /// the epoch ([`Lsn::in_epoch`]).
    fn head(&self) -> impl Future<Output = Result<Lsn, Fault>> + Send;
}

/// How busy a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourcePressure {
    /// The present end of its binlog, in the first epoch, see [`SourceConnector::head`].
    pub head: Lsn,
    /// Statements that the server runs at this moment, this query included.
    pub running_threads: u64,
    /// Lag of a replica; `None` = the server is no replica, or does not report its lag.
    pub replica_lag: Option<Duration>,
    /// Reason for which the server does not report whether it is a replica, and how far it lags.
    pub lag_unknown: Option<String>,
}

/// The answer of a source to the question for one table, whether a pattern captures that table or not.
#[derive(Debug)]
pub enum TableVisibility {
    /// The source has the table and lets it be read.
    Readable,
    /// The source does not have the table.
    Gone,
    /// The source does not say whether it has the table: the account may not read it, or it cannot be read.
    Hidden(Fault),
}

impl TableVisibility {
    /// Returns the meaning of a read of the table; a transient fault means nothing.
    pub fn of(read: Result<(), Fault>) -> Result<Self, Fault> {
        match read {
            Ok(()) => Ok(Self::Readable),
            Err(fault) if fault.code() == Code::SourceTableMissing => Ok(Self::Gone),
            Err(fault) if fault.class() == Class::Transient => Err(fault),
            Err(fault) => Ok(Self::Hidden(fault)),
        }
    }
}

/// A source whose tables can be read in their present state. Reads write nothing and lock nothing.
pub trait RowSource: Send + Sync {
    /// Returns every captured table that exists, in the order of shard ids.
    fn tables(&self) -> impl Future<Output = Result<Vec<TableIdentity<'static>>, Fault>> + Send;

    /// Visits the captured tables that may exist by their usual names, whether they do or not. Leaves out an entity
    /// whose rows stand when a table is dropped, and one with too many names.
    fn visit_likely_tables(&self, entity: Entity, visit: &mut dyn FnMut(&TableIdentity<'_>));

    fn pressure(&self) -> impl Future<Output = Result<SourcePressure, Fault>> + Send;

    /// Returns the present end of the server, in the notation of its replicas.
    fn replication_end(&self) -> impl Future<Output = Result<String, Fault>> + Send;

    /// Waits at most a second until this server holds all up to the `end` of another one; returns whether it does.
    fn has_replicated(&self, end: &str) -> impl Future<Output = Result<bool, Fault>> + Send;

    /// Returns at most `rows` rows of a table after `after`, read from the present server; fewer when they are large.
    /// The watermarks are positions of `epoch`. Values are the same as in the table's changes. A TRUNCATE after the
    /// watermark may cause a transient fault.
    fn chunk(
        &self,
        table: &TableIdentity<'static>,
        after: Option<&ScanCursor>,
        rows: NonZeroUsize,
        epoch: u16,
    ) -> impl Future<Output = Result<Chunk, Fault>> + Send;

    /// Returns the first row of each of these tables, of which there is one at least. Each is read at a position of its
    /// own between the chunk's two watermarks: a table of which the chunk has no row is empty there. While one table is
    /// read, statements can change the others. There is no next chunk. If one of the tables cannot be read, the fault
    /// may be of any of them.
    fn first_rows(
        &self,
        tables: &[TableIdentity<'static>],
        epoch: u16,
    ) -> impl Future<Output = Result<Chunk, Fault>> + Send;

    /// Visits the rows that [`Self::chunk`] returns, each as it arrives, without a watermark. After a fault some were
    /// visited. Returns the key after which the next rows follow; `None` = there are no more.
    fn page(
        &self,
        table: &TableIdentity<'static>,
        after: Option<&ScanCursor>,
        rows: NonZeroUsize,
        visit: &mut (dyn FnMut(&[Value<'_>]) + Send),
    ) -> impl Future<Output = Result<Option<ScanCursor>, Fault>> + Send;

    /// Returns a chunk of the rows that match a condition; values compare under the column's collation. An unknown
    /// column and a value that is invalid for the column's type are definite faults.
    fn matching(
        &self,
        table: &TableIdentity<'static>,
        condition: &Condition,
        after: Option<&ScanCursor>,
        rows: NonZeroUsize,
        epoch: u16,
    ) -> impl Future<Output = Result<Chunk, Fault>> + Send;

    /// Returns all rows whose first field, in the form of derived keys, is one of the keys of their table, all at one
    /// watermark. Other rows may be among them. There is no next chunk. Without tables it is only the watermark.
    fn rows(
        &self,
        keys: &[(TableIdentity<'static>, Vec<Cell>)],
        epoch: u16,
    ) -> impl Future<Output = Result<Chunk, Fault>> + Send;

    /// Asks whether the source has a table of this name and lets it be read. The answer does not depend on the patterns
    /// that capture tables. A caller asks so if its answer to a person depends on the reason, which [`Self::absence`]
    /// does not return.
    fn visibility(
        &self,
        database: &str,
        table: &str,
    ) -> impl Future<Output = Result<TableVisibility, Fault>> + Send;

    /// Returns a chunk without rows if one server proves that it does not have the table between the two watermarks;
    /// `None` if it has the table, or may hide it. It is for a caller that acts on the proof alone. It does not depend
    /// on the patterns that capture tables.
    fn absence(
        &self,
        table: &TableIdentity<'static>,
        epoch: u16,
    ) -> impl Future<Output = Result<Option<Chunk>, Fault>> + Send;
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
    /// The time at which the log stored it, by the log's clock, in microseconds since the Unix epoch; 0 = not known.
    pub stored_at_us: u64,
    /// Another message was stored after this one when it was delivered.
    pub has_next: bool,
}

/// The point at which reading the log begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadFrom {
    /// The first kept message at or above this position; [`Lsn::ZERO`] = the oldest kept message.
    At(Lsn),
    /// After this message, which must still be stored with this id; otherwise [`crate::error::Code::LogHole`].
    After { sequence: u64, id: String },
}

/// The replayable log, with one stream for each source.
pub trait Log: Send + Sync {
    type Writer: LogWriter;
    type Reader: LogReader;

    /// Returns the last message of the stream, if it has any.
    fn end(&self, source: &str) -> impl Future<Output = Result<Option<LogEntry>, Fault>> + Send;

    /// Begins an attempt to append after `end`. If another writer has appended since, the first append fails with
    /// [`crate::error::Code::LogFenced`].
    fn writer(
        &self,
        source: &str,
        end: Option<&LogEntry>,
    ) -> impl Future<Output = Result<Self::Writer, Fault>> + Send;

    /// Returns the first kept message at or above this position, if there is one; skips a damaged one.
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

    /// Asks the source's reader, in whichever process it runs, to append its position now if it has moved. The request
    /// may be lost: a caller that waits for a position repeats it.
    fn ask_for_position(&self, source: &str) -> impl Future<Output = ()> + Send;

    /// Yields the position requests for the source's reader from now on; several requests may come as one.
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

    /// Sends one message. The caller must check [`Self::has_room`] first.
    fn append(
        &mut self,
        envelope: Envelope,
        payload: Bytes,
    ) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Waits for the next acknowledgement, in the order of appends; the message is durable according to the server's
    /// setting. Cancel safe. The caller must have a message in flight.
    fn acknowledged(&mut self) -> impl Future<Output = Result<LogEntry, Fault>> + Send;
}

/// An open reader of one stream.
pub trait LogReader: Send {
    /// Waits for the next message and returns it. Sequences follow one another without a gap; otherwise
    /// [`crate::error::Code::LogHole`]. Cancel safe.
    fn next(&mut self) -> impl Future<Output = Result<LogMessage, Fault>> + Send;
}

/// The store of one lane: its derived tables and its progress in one server.
pub trait LaneStore: Send {
    /// Reads the lane's progress.
    fn load(&mut self) -> impl Future<Output = Result<Progress, Fault>> + Send;

    /// Applies the mutations and stores `flush.progress` in one transaction, if the stored revision is one below
    /// `flush.progress.revision`. Otherwise it changes nothing and fails with [`crate::error::Code::TargetFenced`]. For
    /// a source row that the flush replaces, only the claims that the flush writes remain, whatever version was stored.
    ///
    /// After any other error the outcome is unknown: the caller must load before it continues.
    fn commit(&mut self, flush: &Flush) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Returns the given shards of which the lane's tables may hold rows. The answer may name a shard without rows; it
    /// names every shard with rows. It misses commits that another process of the lane makes meanwhile. In an atomic
    /// store they make the next commit here fail; a store that is not atomic names all shards.
    fn shards_with_rows(
        &mut self,
        shards: BTreeSet<ShardId>,
    ) -> impl Future<Output = Result<BTreeSet<ShardId>, Fault>> + Send;

    /// Returns claims that withdrawals of shards remove, each as a delete at the shard's position. These are the claims
    /// of the shards with a version up to that position, without rows of retired tables. Looks at no more than `limit`
    /// rows of the shards in some of the lane's tables, from this page on: rows with higher versions are passed once.
    /// Returns where the next page begins; `None` = no claim is left after these are deleted. A page may have no claims
    /// although others follow. Sees everything that was committed before the call. A store that is not atomic fails.
    fn withdrawn_claims(
        &mut self,
        withdrawals: &[(ShardId, Lsn)],
        page: &ClaimsPage,
        limit: NonZeroUsize,
    ) -> impl Future<Output = Result<(Vec<Mutation>, Option<ClaimsPage>), Fault>> + Send;

    /// Visits at most `limit` rows of a shard in the lane's tables, from this page on. Sees everything that was
    /// committed before the call. Returns where the next page begins; `None` = there are no more. A page may have no
    /// rows although others follow. A row that is stored throughout all pages is visited once; a row that comes or goes
    /// meanwhile may be. After an error some rows may have been visited, and the next commit is as good as before. A
    /// store that is not atomic fails.
    fn rows_of_shard(
        &mut self,
        page: &ShardPage,
        limit: NonZeroUsize,
        visit: &mut (dyn FnMut(DerivedRow<'_>) + Send),
    ) -> impl Future<Output = Result<Option<ShardPage>, Fault>> + Send;

    /// Whether mutations and progress are stored in one transaction. A store without transactions writes each mutation
    /// under its version and progress last: a flush that was cut off leaves rows that no progress reports.
    fn is_atomic(&self) -> bool;
}

/// Names that at most one process holds at a time. A lease saves work; it fences nothing.
pub trait Leases: Send + Sync {
    type Lease: Lease;

    /// Waits until the lease is free and takes it.
    fn acquire(&self, key: &str) -> impl Future<Output = Result<Self::Lease, Fault>> + Send;

    /// Acquires as [`Self::acquire`] does, and calls `on_standby` each time it has found another holder.
    fn acquire_or_stand_by(
        &self,
        key: &str,
        on_standby: &(dyn Fn() + Send + Sync),
    ) -> impl Future<Output = Result<Self::Lease, Fault>> + Send;
}

/// A held lease. Dropping it stops the renewal; [`Lease::release`] frees it at once.
pub trait Lease: Send {
    /// Resolves when the lease is lost or could not be renewed in time. Cancel safe.
    fn lost(&mut self) -> impl Future<Output = Fault> + Send;

    fn release(self) -> impl Future<Output = ()> + Send;
}

/// The text of a register as it was read; it says how far something was used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Register {
    /// Empty when the register was never set.
    pub value: String,
    pub revision: u64,
}

/// Prefix of the registers of callers' idempotency keys. They may be forgotten after a day, and a full store refuses
/// only them, with [`crate::error::Code::UuidsKeysFull`].
pub const INTAKE: &str = "intake/";

/// Short texts that outlive every process. A process sets a register only with the revision that it read last, and
/// before it uses the range that the text reserves.
pub trait Registers: Send + Sync {
    fn read(&self, key: &str) -> impl Future<Output = Result<Register, Fault>> + Send;

    /// Stores `value` if no writer has stored since `known` was read; otherwise [`crate::error::Code::LeaseLost`].
    /// Durable when it returns. After any other error the outcome is unknown.
    fn compare_and_set(
        &self,
        key: &str,
        known: &Register,
        value: String,
    ) -> impl Future<Output = Result<Register, Fault>> + Send;
}

/// Replica slot of a source's reader. Lanes have the slots after it.
pub const READER_REPLICA_SLOT: u32 = 0;

/// Replica slot of a probe, which only checks whether a source can be read on. No reader or lane has it.
pub const PROBE_REPLICA_SLOT: u32 = (1 << 16) + 1;

/// Time without renewal after which a lease is free.
pub const LEASE_TIME_TO_LIVE: Duration = Duration::from_secs(4);
