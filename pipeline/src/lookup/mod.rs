//! From a code to the devices that have it: what mapping tables and their cache hold, and how the cache is kept right.
//!
//! The cache holds complete sets: all claims of a value, or nothing. Whoever misses fills it (`fill.rs`), whoever
//! writes mapping rows notes their values in the outbox of the same transaction, and the outbox is drained into the
//! cache (`drain.rs`). A fill takes a token before it reads; draining removes entry and token; an entry is stored only
//! while its token stands. So what was read before a change is never stored after it.
//! `reader.rs` answers lookups, `believed.rs` asks the cache for them, `audit.rs` compares all that stands in the
//! cache.

mod audit;
mod believed;
mod drain;
mod entry;
mod fill;
mod reader;

pub use self::audit::{Audit, AuditPace, AuditPlace, AuditState, Audited, EntryDrift};
pub use self::believed::QUESTION_CODES_MAX;
pub use self::drain::{CacheState, Drain, drain};
pub use self::entry::{EntryDefect, decode, decode_some, encode};
pub use self::fill::{TimeToLive, fill};
pub use self::reader::{Origin, Reader, Readings, Room, Unanswered};

use anabranch_schemas::serial::CodeKind;
use anabranch_schemas::shard::ShardId;
use serde::{Deserialize, Serialize};

/// A device that has a code, said by one shard.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    pub shard: ShardId,
    /// As text.
    pub uuid: Box<[u8]>,
    pub kind: CodeKind,
}

/// The claims of one value, in the order (shard, uuid, kind).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claims {
    pub claims: Vec<Claim>,
    /// There are more behind the last one.
    pub is_cut: bool,
}

/// Sets of more claims are not cached: a code that names so many devices is read from its mapping table in pages.
pub const CACHED_CLAIMS_MAX: usize = 1000;

/// Says that a fill has begun, and which one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Token(pub u128);
