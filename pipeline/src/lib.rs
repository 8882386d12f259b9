//! The flow: source → capture → log → deliver → projection → lane → target.
//!
//! Knows no MySQL, no NATS. [`records`] are the nouns, which know no loop; [`ports`] says in them what the flow needs
//! of the outside, and `connectors` has the real ones; [`config`] is the file as written. The loops are above:
//! [`capture`], [`deliver`] with [`projections`], [`lookup`], [`reconcile`]. [`composition`] puts a reader and a lane
//! together, [`supervise`] runs them.

pub mod capture;
pub mod composition;
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
pub mod records;
pub mod retry;
pub mod supervise;
pub mod throttle;
pub mod wall_clock;
