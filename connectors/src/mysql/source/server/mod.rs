//! Questions to a server, and what is captured of it, in reading order:
//!
//! - `session.rs` is the connection with the small questions; `behind.rs` and `collations.rs` ask two larger ones.
//! - `tables.rs` says which tables are captured, and `listing.rs` lists those that exist.
//! - `preflight.rs`, with `preflight_tables.rs` and `versions.rs`, checks all that capture depends on.
//! - `head.rs` asks where the binlog begins and ends, `kept.rs` how long it is kept, and `pressure.rs` how busy the
//!   server is.
//! - `inventory.rs` looks rows up by key, `estimate.rs` asks how large tables are, and `instance.rs` which server this
//!   is. `survey.rs` looks at a server before anything is configured.
//!
//! No file here reads the binlog: that is `stream/`. Whole tables are read by `snapshot/`.

mod collations;
mod estimate;
mod gtid_check;
mod head;
mod instance;
pub(super) mod inventory;
pub(super) mod kept;
mod listing;
pub(super) mod preflight;
mod preflight_tables;
mod pressure;
pub(super) mod session;
pub(super) mod survey;
pub(super) mod tables;
mod versions;
