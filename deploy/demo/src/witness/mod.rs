//! A coupon system for demo and tests: the contract of `docs/coupon-system.md`, faults on demand, and a book that
//! forgets nothing.
//!
//! It forgets keys as a coupon system does, and then gives a coupon again that it gave before. Each gift is a line of
//! its book, so a comparison finds both. `book.rs` keeps the file, `faults.rs` the faults, `service.rs` the answers,
//! `server.rs` the connections; `client.rs` is for tests and for the demo's verification.

mod book;
mod client;
mod faults;
mod server;
mod service;

pub use self::book::Gift;
pub use self::client::WitnessClient;
pub use self::faults::Faults;
pub use self::server::{Witness, WitnessOptions};
