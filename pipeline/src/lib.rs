//! The flow: source → capture → log → deliver → projection → lane → target.
//!
//! Knows no MySQL, no NATS. What it needs of the outside stands in [`ports`]; `connectors` has the real ones.

pub mod capture;
pub mod config;
pub mod deliver;
pub mod error;
pub mod failpoints;
pub mod identifiers;
pub mod lag;
pub mod lookup;
pub mod metrics;
pub mod ports;
pub mod projections;
pub mod reconcile;
pub mod retry;
pub mod supervise;
pub mod throttle;
pub mod wall_clock;
