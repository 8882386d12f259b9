//! The daemon `anabranch`: command line, wiring of connectors to the flow, HTTP.
//!
//! `cli/` has one file a command, `wiring.rs` alone names concrete connectors, `api/` is the HTTP listener. The crate
//! `anabranch_pipeline` decides how changes flow.

pub mod api;
pub mod change_view;
pub mod cli;
pub mod coupons;
pub mod exit;
pub mod logging;
pub mod lookup;
pub mod observe;
pub mod operations;
pub mod operator;
pub mod output;
pub mod pauses;
pub mod proposal;
pub mod reconciliations;
mod redacted;
pub mod relations;
pub mod restarts;
mod retention;
pub mod roles;
mod runbook;
pub mod settings;
pub mod sharing;
pub mod task_names;
pub mod tasks;
pub mod telemetry;
pub mod trace;
pub mod watchdog;
pub mod wiring;

pub use anabranch_pipeline::wall_clock;
