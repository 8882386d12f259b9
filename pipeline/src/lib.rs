//! The flow: source → capture → log → deliver → projection → lane → target.
//!
//! This crate knows no MySQL and no NATS. [`records`] has the values that pass through the flow. [`ports`] has the
//! traits that the flow needs from outside, and `connectors` implements them. [`config`] is the configuration file,
//! parsed. The loops are [`capture`], [`deliver`] with [`projections`], [`lookup`], [`relations`] and [`reconcile`].
//! [`composition`]
//! puts tasks together for every process; [`supervise`] runs them.
//!
//! Each room imports only rooms below it. `tests/tidy/rooms.rs` has their order.

pub mod capture;
pub mod composition;
pub mod config;
pub mod deliver;
mod epochs;
pub mod error;
pub mod failpoints;
pub mod identifiers;
pub mod lag;
pub mod lookup;
pub mod metrics;
pub mod ports;
pub mod projections;
pub mod reconcile;
pub mod records;
pub mod relations;
pub mod retry;
mod sketch;
pub mod supervise;
pub mod throttle;
pub mod wall_clock;
