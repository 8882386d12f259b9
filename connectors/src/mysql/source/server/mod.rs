//! Queries a server and decides which of its tables are captured. In the order to read:
//!
//! - `session.rs` is the connection with small queries; `gtid_check.rs` and `collations.rs` have two larger ones.
//! - `tables.rs` decides which tables are captured, `own_names.rs` which names captured columns have in one of them,
//!   and `listing.rs` lists those that exist.
//! - `unfit_tables.rs` names tables whose row events do not show every change.
//! - `heirs.rs` has the shards to which rows pass that a retention job deletes.
//! - `preflight.rs`, with `preflight_tables.rs`, `preflight_columns.rs`, `preflight_marker.rs` and `versions.rs`,
//!   checks every condition of capture.
//! - `head.rs` asks where the binlog begins and ends, `kept.rs` how long the server keeps it, and `pressure.rs` how
//!   busy the server is.
//! - `inventory.rs` looks up rows by key, `estimate.rs` asks for the sizes of tables, `extent.rs` for their greatest
//!   keys too, and `instance.rs` identifies the server. `survey.rs` examines a server before an operator configures it,
//!   and `measure.rs` measures one for a capacity plan.
//!
//! No file here reads the binlog, as `stream/` does, or whole tables, as `snapshot/` does.

mod collations;
mod estimate;
pub(super) mod extent;
mod gtid_check;
mod head;
mod heirs;
mod instance;
pub(super) mod inventory;
pub(super) mod kept;
mod listing;
pub(super) mod measure;
pub(super) mod own_names;
pub(super) mod preflight;
mod preflight_columns;
mod preflight_marker;
mod preflight_tables;
mod pressure;
pub(super) mod session;
pub(super) mod survey;
pub(super) mod tables;
pub(super) mod unfit_tables;
mod versions;
