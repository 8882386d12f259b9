//! Lookups, from a code to the devices that have it: mapping tables, their cache, and how the cache is kept right.
//!
//! The cache holds complete sets: all claims of a value, or nothing. A lookup that misses fills it (`fill.rs`). A flush
//! of mapping rows notes their values in the outbox in the same transaction, and the drain empties the outbox into the
//! cache (`drain.rs`). A fill takes a token before it reads; draining removes entry and token; an entry is stored only
//! while its token exists. So rows that were read before a change are never stored after it. `reader.rs` answers
//! lookups, `believed.rs` asks the cache for them while `state.rs` says that it may, `audit.rs` compares all entries of
//! the cache.

mod audit;
mod believed;
mod drain;
mod entry;
mod fill;
mod reader;
mod state;

pub use self::audit::{AuditPace, CacheAudit};
pub use self::believed::QUESTION_CODES_MAX;
pub use self::drain::{Drain, drain};
pub use self::entry::{EntryDefect, decode, decode_some, encode};
pub use self::fill::fill;
pub use self::reader::{BatchMemory, Origin, QueryBounds, Reader, Unanswered};
pub use self::state::{CacheState, DrainWatch};

/// Sets of more claims are not cached: their codes are read from the mapping table in pages.
pub const CACHED_CLAIMS_MAX: usize = 1000;
