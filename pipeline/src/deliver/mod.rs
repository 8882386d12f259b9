//! From a source's stream to the derived stores: lanes.
//!
//! A lane owns some derived tables of one target for one source. It is their only writer, and its progress row, written
//! in the same transaction as the rows, is the only truth about its position. `lane.rs` has the inputs of a lane, and
//! `projected.rs` builds one for a projection. `feed.rs` decides where its messages come from, `link.rs` whether one
//! continues the lane's state (pure), `fields.rs` whether one has all fields (pure). `window.rs` collects the work of
//! one transaction (pure), `run.rs` is one attempt, `rewind.rs` sets a lane back, `refresh.rs` brings in rows that are
//! not in the feed, and `load.rs` begins a lane with them. `withdrawals.rs` removes the rows of tables that were
//! dropped or truncated, and `work_beside.rs` does both beside the feed. `shared.rs` has the state that the lanes of a
//! source share, `owed.rs` the reasons why tables wait to be read again, and `ages.rs` says how old changes are when
//! they are visible (pure).

mod ages;
mod feed;
mod fields;
mod lane;
mod link;
mod load;
mod owed;
mod projected;
mod refresh;
mod rewind;
mod run;
mod shared;
mod window;
mod withdrawals;
mod work_beside;

pub(crate) use feed::is_hole;
pub use lane::Lane;
pub use owed::UnreadTable;
pub use projected::ProjectedLane;
pub use refresh::{forget_rereads, rehearse_refresh, request_refresh};
pub use rewind::{Rewind, RewindSource, fence, rewind};
pub use run::run;
pub use shared::Shared;
