//! The ports of lookups: mapping rows, their cache, and the outbox between the two.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anabranch_schemas::serial::StoredCode;

use crate::error::Fault;
use crate::records::{Claims, DeviceClaim, ScanCursor, Token};

/// Mapping rows by value: the truth, of which the cache keeps copies.
pub trait MappingStore: Send + Sync {
    /// Returns the claims of each code, in the order of `codes`. Each set is as it was at one moment after the call. A
    /// code has at most `limit` claims; the rest is cut.
    fn claims(
        &self,
        codes: &[StoredCode],
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Claims>, Fault>> + Send;

    /// Returns at most `limit` claims of a code after `after`, in the order of [`DeviceClaim`].
    fn page(
        &self,
        code: &StoredCode,
        after: Option<&DeviceClaim>,
        limit: usize,
    ) -> impl Future<Output = Result<Claims, Fault>> + Send;
}

/// An entry to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheFill {
    pub code: StoredCode,
    pub token: Token,
    /// A complete set, as [`crate::lookup::encode`] writes it.
    pub entry: Vec<u8>,
    pub time_to_live: Duration,
}

/// The cache's answer to a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cached {
    /// The life of the server that answered, see [`CodeCache::incarnation`].
    pub incarnation: Arc<str>,
    /// Entries in the order of the codes; `None` = the cache has none.
    pub entries: Vec<Option<Vec<u8>>>,
}

/// State of one code in the cache.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheEntry {
    /// The entry's bytes (none for a value of another type) and the rest of its life; `None` as life = for ever.
    pub entry: Option<(Vec<u8>, Option<Duration>)>,
    /// A token without expiry is stored, so no process fills the code again.
    pub is_blocked: bool,
}

/// State of several codes in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheEntries {
    /// The life of the server that answered, see [`CodeCache::incarnation`].
    pub incarnation: Arc<str>,
    /// States in the order of the codes.
    pub entries: Vec<CacheEntry>,
}

/// The cache of mapping rows. It may lose anything at any moment. Each entry is a complete set from the mapping tables.
pub trait CodeCache: Send + Sync {
    fn get(&self, codes: &[StoredCode]) -> impl Future<Output = Result<Cached, Fault>> + Send;

    /// Takes a token for each code that no process is filling yet; `None` = another process is filling it.
    fn begin(&self, codes: &[StoredCode]) -> impl Future<Output = Result<Vec<Option<Token>>, Fault>> + Send;

    /// Stores each entry whose token is still stored, and removes the token, in one step. Returns how many it stored.
    fn finish(&self, fills: &[CacheFill]) -> impl Future<Output = Result<usize, Fault>> + Send;

    /// Removes entries and tokens, each pair in one step.
    fn invalidate(&self, codes: &[StoredCode]) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Returns the name of the server's present life. A restart or fail-over begins another life, in which the server
    /// may have forgotten the newest removals.
    fn incarnation(&self) -> impl Future<Output = Result<String, Fault>> + Send;

    /// Removes every entry and token.
    fn clear(&self) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Shortens to `time_to_live` the life of entries that would live longer, or for ever.
    fn shorten(&self, time_to_live: Duration) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Returns some of the codes that have an entry or a token, after `after`, and where the next ones begin; `None` =
    /// there are no more. A code that is stored throughout, in one life, comes at least once; a code may be repeated.
    fn scan(
        &self,
        after: Option<&ScanCursor>,
    ) -> impl Future<Output = Result<(Vec<StoredCode>, Option<ScanCursor>), Fault>> + Send;

    /// Returns the state of these codes.
    fn entries(&self, codes: &[StoredCode]) -> impl Future<Output = Result<CacheEntries, Fault>> + Send;

    /// Stores a freshness key that expires after [`FRESHNESS_KEY_TIME_TO_LIVE`]. Fails when the server is in another
    /// life.
    fn write_freshness_key(&self, incarnation: &str) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Whether the freshness key is stored. Then the cache's content is at most [`FRESHNESS_KEY_TIME_TO_LIVE`] old, and
    /// no older copy.
    fn has_freshness_key(&self) -> impl Future<Output = Result<bool, Fault>> + Send;
}

/// Codes that one flush of mapping rows touched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRow {
    pub id: u64,
    pub codes: Vec<StoredCode>,
}

/// The rows of an outbox that are not drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutboxBacklog {
    /// The id of the oldest pending row.
    pub oldest: u64,
    /// The highest id in the outbox, of a pending row or of another one. Rows that were committed before the call have
    /// no higher id, and a row with a lower id may still appear.
    pub newest: u64,
    /// The distance of the oldest row from the target's clock. A clock that was set back lies before the row.
    pub age: Duration,
}

/// The outbox's record of the cache into which it is drained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheRecord {
    /// The life into which every touched code has been drained. During a drain it is the name of the drain's round,
    /// which is not a life.
    pub incarnation: String,
    pub time_to_live: Duration,
}

/// The outbox of one target's mapping tables.
pub trait Outbox: Send + Sync {
    /// Returns the oldest rows that are not drained, at most `rows`.
    fn pending(&self, rows: usize) -> impl Future<Output = Result<Vec<OutboxRow>, Fault>> + Send;

    /// Resolves when a lane of this process has committed since the call. Commits of other processes go unnoticed.
    fn touched(&self) -> impl Future<Output = ()> + Send;

    /// Records that these rows were drained, if `incarnation` is still recorded: a process that was overtaken meanwhile
    /// changes nothing. The rows are kept for [`OUTBOX_RETENTION`], in case the cache forgets the removals.
    fn drained(&self, ids: &[u64], incarnation: &str) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Makes all kept rows pending again.
    fn repeat(&self) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Removes rows that were drained longer ago than [`OUTBOX_RETENTION`].
    fn forget(&self) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Returns the record. `None` = the content of the cache is unknown, and flushes may have written no outbox rows.
    fn record(&self) -> impl Future<Output = Result<Option<CacheRecord>, Fault>> + Send;

    /// Records this incarnation if `before` is still recorded (`None` = nothing is); if a flush removed the record
    /// meanwhile, it stays removed. The time to live is used only in a first record.
    fn begin(
        &self,
        before: Option<&str>,
        record: &CacheRecord,
    ) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Records this incarnation if `round` is still recorded.
    fn settle(&self, round: &str, incarnation: &str) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Records the longest life of entries, if a record exists.
    fn set_time_to_live(&self, time_to_live: Duration) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Returns which rows are pending; `None` = none is.
    fn backlog(&self) -> impl Future<Output = Result<Option<OutboxBacklog>, Fault>> + Send;
}

/// Time for which drained rows are kept, to be drained again after a fail-over: the cache's replica lags by less.
pub const OUTBOX_RETENTION: Duration = Duration::from_secs(3600);

/// Greatest age of a restarted cache's content that the kept rows can mend. Lookups do not believe an older copy.
pub const FRESHNESS_KEY_TIME_TO_LIVE: Duration = Duration::from_secs(1800);
