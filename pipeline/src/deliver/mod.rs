//! From a source's stream to the derived stores: lanes.
//!
//! A lane owns some derived tables of one target for one source. It is their only writer, and its progress row,
//! written in the same transaction as the rows, is the only truth about how far it is.

mod mutation;
mod progress;

pub use mutation::{Cell, DerivedTable, Flush, Mutation, MutationAction};
pub use progress::{LaneId, Progress};
