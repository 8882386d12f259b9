//! Decodes bytes of a binlog into values. In the order to read:
//!
//! - `wire.rs` reads forward through bytes, and `compressed.rs` inflates them.
//! - `events.rs` lists the types of events.
//! - `position.rs` has a position in the binlog, `gtid.rs` a set of groups, and `xid.rs` the name of an XA branch.
//! - `table_map.rs` has the columns of a table. `column.rs`, with `decimal.rs`, decodes one value, `runs.rs` compares
//!   runs of cells, and `rows.rs` reads whole rows. `character_sets.rs` distinguishes text from bytes.
//! - `tokens.rs` splits a statement into words, and `query.rs` finds its meaning for tables.
//!
//! No file here waits, queries a server or knows the other folders. `server/` decides which tables are captured, and
//! `stream/` what follows from an event.

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
