//! What lookups need: mapping rows, their cache, and the outbox between the two.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anabranch_schemas::serial::StoredCode;

use crate::error::Fault;
use crate::records::{ChunkKey, Claims, DeviceClaim, Token};

/// Mapping rows by value: the truth after the cache.
pub trait MappingStore: Send + Sync {
    /// The claims of each code, in the order of `codes`, each a set as it was at one moment after the call.
    /// At most `limit` claims a code; the rest is cut.
    fn claims(
        &self,
        codes: &[StoredCode],
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Claims>, Fault>> + Send;

    /// The claims of a code behind `after`, in the order of [`DeviceClaim`], at most `limit`.
    fn page(
        &self,
        code: &StoredCode,
        after: Option<&DeviceClaim>,
        limit: usize,
    ) -> impl Future<Output = Result<Claims, Fault>> + Send;
}

/// One entry to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fill {
    pub code: StoredCode,
    pub token: Token,
    /// [`crate::lookup::encode`]d complete set.
    pub entry: Vec<u8>,
    pub time_to_live: Duration,
}

/// What the cache answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cached {
    /// The life of the server that answered, see [`CodeCache::incarnation`].
    pub incarnation: Arc<str>,
    /// In the order of the codes; `None` = there is none.
    pub entries: Vec<Option<Vec<u8>>>,
}

/// What the cache keeps for a code.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheEntry {
    /// The entry's bytes, none where something else stands in its place, and for how long it lives; `None` = for ever.
    pub entry: Option<(Vec<u8>, Option<Duration>)>,
    /// A token stands that never ends, so nobody fills the code again.
    pub is_blocked: bool,
}

/// What stands in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheEntries {
    /// The life of the server that answered, see [`CodeCache::incarnation`].
    pub incarnation: Arc<str>,
    /// In the order of the codes.
    pub standing: Vec<CacheEntry>,
}

/// The cache of mapping rows. It may lose anything at any moment; what it holds is a complete set that was read.
pub trait CodeCache: Send + Sync {
    fn get(&self, codes: &[StoredCode]) -> impl Future<Output = Result<Cached, Fault>> + Send;

    /// A token for each code that nobody fills yet; `None` = somebody does.
    fn begin(&self, codes: &[StoredCode]) -> impl Future<Output = Result<Vec<Option<Token>>, Fault>> + Send;

    /// Stores each entry whose token still stands, and removes the token, in one step; how many were stored.
    fn finish(&self, fills: &[Fill]) -> impl Future<Output = Result<usize, Fault>> + Send;

    /// Removes entries and tokens, each pair in one step.
    fn invalidate(&self, codes: &[StoredCode]) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Tells the server's lives apart: another one after a restart or fail-over, in which it may have forgotten the
    /// newest removals.
    fn incarnation(&self) -> impl Future<Output = Result<String, Fault>> + Send;

    /// Removes every entry and token.
    fn clear(&self) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Makes entries that would live longer, or for ever, live this long.
    fn shorten(&self, time_to_live: Duration) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Some of the codes that something is kept for, behind `after`, and where the next ones begin; `None` = there are
    /// no more. What stands through all of it, in one life, is named at least once; a code may be named again.
    fn scan(
        &self,
        after: Option<&ChunkKey>,
    ) -> impl Future<Output = Result<(Vec<StoredCode>, Option<ChunkKey>), Fault>> + Send;

    /// What is kept for these codes.
    fn standing(&self, codes: &[StoredCode]) -> impl Future<Output = Result<CacheEntries, Fault>> + Send;

    /// Leaves a freshness key that goes after [`FRESHNESS_KEY_KEPT`]; an error when the server is in another life.
    fn write_freshness_key(&self, incarnation: &str) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Whether the freshness key stands: what the cache holds is at most [`FRESHNESS_KEY_KEPT`] old, and no old copy
    /// of it.
    fn has_freshness_key(&self) -> impl Future<Output = Result<bool, Fault>> + Send;
}

/// Values that a flush of mapping rows has touched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRow {
    pub id: u64,
    pub codes: Vec<StoredCode>,
}

/// What the outbox knows of the cache that it is drained into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheRecord {
    /// The life into which everything that was touched has been drained; while a drain is at it, the name of its round,
    /// which is no life.
    pub incarnation: String,
    pub time_to_live: Duration,
}

/// The outbox of one target's mapping tables.
pub trait Outbox: Send + Sync {
    /// The oldest rows that are not drained, at most so many.
    fn pending(&self, rows: usize) -> impl Future<Output = Result<Vec<OutboxRow>, Fault>> + Send;

    /// Resolves when a lane of this process has committed since the call; one of another process is not noticed.
    fn touched(&self) -> impl Future<Output = ()> + Send;

    /// Says that these were drained, if `incarnation` is still what is recorded: a process that was overtaken
    /// meanwhile has no say. They are kept for [`OUTBOX_KEPT`], in case the cache forgets it.
    fn drained(&self, ids: &[u64], incarnation: &str) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Makes all kept rows pending again.
    fn repeat(&self) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Removes rows that were drained longer ago than [`OUTBOX_KEPT`].
    fn forget(&self) -> impl Future<Output = Result<(), Fault>> + Send;

    /// `None`: the cache's content is not known, and flushes may have left it out.
    fn record(&self) -> impl Future<Output = Result<Option<CacheRecord>, Fault>> + Send;

    /// Records this incarnation if `before` is still what is recorded, `None` = nothing is: a flush that took the
    /// record away meanwhile has the say. The time to live is that of a first record only.
    fn begin(
        &self,
        before: Option<&str>,
        record: &CacheRecord,
    ) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Records this incarnation if `round` is still what is recorded.
    fn settle(&self, round: &str, incarnation: &str) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Records what entries live at most, if anything is recorded.
    fn set_time_to_live(&self, time_to_live: Duration) -> impl Future<Output = Result<(), Fault>> + Send;

    /// For how long the oldest pending row has waited.
    fn delay(&self) -> impl Future<Output = Result<Duration, Fault>> + Send;
}

/// A replica that takes over lags by less; what was drained within this time is drained again then.
pub const OUTBOX_KEPT: Duration = Duration::from_secs(3600);

/// What a restarted cache holds may be as old as this and be mended by what is kept; an older copy is not believed.
pub const FRESHNESS_KEY_KEPT: Duration = Duration::from_secs(1800);
