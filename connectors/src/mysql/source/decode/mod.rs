//! Bytes of a binlog as values, in reading order:
//!
//! - `wire.rs` reads forward through bytes, and `compressed.rs` inflates them.
//! - `events.rs` lists the types of events.
//! - `position.rs` is a place in the binlog, `gtid.rs` a set of groups, and `xid.rs` the name of an XA branch.
//! - `table_map.rs` has the columns of a table. `column.rs`, with `decimal.rs`, reads one value, `runs.rs` steps over
//!   several, and `rows.rs` reads whole rows. `character_sets.rs` tells text from bytes.
//! - `tokens.rs` cuts a statement into words, and `query.rs` says what it means for tables.
//!
//! Nothing here waits, asks a server or knows the other rooms. Which tables are captured, `server/` says; what follows
//! from an event, `stream/` decides.

pub(super) mod character_sets;
pub(super) mod column;
pub(super) mod compressed;
mod decimal;
pub(super) mod events;
pub(super) mod gtid;
pub(super) mod position;
pub(super) mod query;
pub(super) mod rows;
mod runs;
pub(super) mod table_map;
mod tokens;
pub(super) mod wire;
pub(super) mod xid;
