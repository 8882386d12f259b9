//! The answer of a trace, as JSON shows it. Positions are text, as in `/v1/status`.

use serde::Serialize;
use serde_json::{Map, Value as Json};

/// Everything that a trace found about one key.
#[derive(Debug, Serialize)]
pub struct TraceAnswer {
    /// Hash of the key in the first table that has it, as reports of reconciliations show it.
    pub key_hash: String,
    /// The entity whose key it is.
    pub entity: &'static str,
    /// Other entities that have the key too; `projection` traces them.
    pub also: Vec<&'static str>,
    /// One sentence: the stores equal the source, or why they differ.
    pub sentence: String,
    pub source_rows: Vec<SourceRowView>,
    /// Sources and tables that could not be read.
    pub unread: Vec<UnreadView>,
    /// The newest change of the key in the part of the log that was searched.
    pub last_change: Option<ChangeView>,
    pub searched: SearchedView,
    pub stores: Vec<StoreView>,
    pub lanes: Vec<LaneOfKeyView>,
    /// `None` when no cache holds codes of the key.
    pub cache: Option<CacheEntryView>,
    pub documents: Vec<DocumentView>,
}

/// A source row that has the key now.
#[derive(Debug, Serialize)]
pub struct SourceRowView {
    pub source: String,
    pub table: String,
    pub key_hash: String,
    /// Derived rows that the row claims, as `table of projection/target`.
    pub claims: Vec<String>,
    /// Projections of which the row claims nothing, each with the reason.
    pub excluded: Vec<String>,
    /// The captured fields.
    pub fields: Map<String, Json>,
}

/// A source, or a table of it, that could not be read.
#[derive(Debug, Clone, Serialize)]
pub struct UnreadView {
    pub source: String,
    pub why: String,
}

#[derive(Debug, Serialize)]
pub struct ChangeView {
    pub source: String,
    pub table: String,
    /// `insert`, `update` or `delete`.
    pub kind: &'static str,
    pub position: String,
    /// Sequence of the message in the source's stream.
    pub sequence: u64,
    /// Commit time of the newest change of that message, microseconds since the Unix epoch; 0 = unknown.
    pub committed_at_us: u64,
}

/// How much of the log was searched.
#[derive(Debug, Default, Serialize)]
pub struct SearchedView {
    /// Messages of all streams that were read.
    pub messages: u64,
    /// No stream has a later change of the key than the one that was found, or any if none was.
    pub is_whole: bool,
    /// Streams that could not be read.
    pub unread: Vec<UnreadView>,
}

/// The derived rows of a projection on one target.
#[derive(Debug, Serialize)]
pub struct StoreView {
    pub projection: String,
    pub target: String,
    pub rows: Vec<StoredRowView>,
    /// `equal`, `missing`, `stale`, `left over` or `unread`: the gravest of all rows.
    pub verdict: &'static str,
    pub why: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct StoredRowView {
    pub table: String,
    /// The source table whose shard the row has, as `source: database.table`.
    pub source_table: String,
    pub position: Option<String>,
    /// `None` = the source table could not be read.
    pub is_claimed: Option<bool>,
}

/// A lane of the sources that have the key.
#[derive(Debug, Serialize)]
pub struct LaneOfKeyView {
    pub lane: String,
    pub position: Option<String>,
    pub lag_seconds: Option<f64>,
    /// A state as `/v1/status` shows it.
    pub state: String,
    pub code: Option<String>,
}

/// The cache's entries of the codes of the key.
#[derive(Debug, Serialize)]
pub struct CacheEntryView {
    pub cache: String,
    /// `hit`, `miss`, `bypassed` (lookups do not ask the cache) or `unread`.
    pub state: &'static str,
    /// Age of the oldest entry, at most: chance shortens the life of entries, so they may be younger.
    pub age_seconds: Option<f64>,
    /// Whether an entry differs from the mapping tables; `None` without an entry.
    pub differs: Option<bool>,
}

/// A search document of the key.
#[derive(Debug, Serialize)]
pub struct DocumentView {
    pub projection: String,
    pub id: String,
    /// `None` = the index lacks the document.
    pub position: Option<String>,
    /// `equal`, `missing`, `stale`, `left over` or `unread`.
    pub verdict: &'static str,
}
