//! The vocabulary of Anabranch: what a change, a position, a shard, a birthday and a serial code are, and how they are
//! written.
//!
//! No I/O, no async, no clock. Every other package speaks in these types; none of them is specific to a server.

pub mod birthday;
pub mod change;
pub mod codec;
pub mod envelope;
pub mod lsn;
pub mod search;
pub mod serial;
pub mod shard;
pub mod sql;
pub mod timeline;
