//! From a code to the devices that have it: what mapping tables and their cache hold, and how the cache is kept right.
//!
//! The cache holds complete sets: all claims of a value, or nothing. A lookup that misses fills it (`fill.rs`). A
//! flush of mapping rows notes their values in the outbox of the same transaction, and the outbox is drained into the
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

pub use self::audit::{AuditPace, AuditPlace, AuditState, Audited, CacheAudit, EntryDrift};
pub use self::believed::QUESTION_CODES_MAX;
pub use self::drain::{CacheState, Drain, drain};
pub use self::entry::{EntryDefect, decode, decode_some, encode};
pub use self::fill::fill;
pub use self::reader::{Origin, QueryBounds, Reader, Room, Unanswered};

/// Sets of more claims are not cached: a code that names so many devices is read from its mapping table in pages.
pub const CACHED_CLAIMS_MAX: usize = 1000;
