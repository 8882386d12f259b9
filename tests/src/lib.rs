//! Parts that the tests on real servers share: a whole installation of the product, and limits of waiting.
//!
//! An [`Installation`] is the product as its user has it: captured servers with sharded tables, NATS, targets, a
//! configuration file and the binary `anabranch`. Tests use its command line, its HTTP port and its tables alone.
//! Servers are costly to start, so the tests of one target take turns on one stack, and each begins on a clean slate.

mod audit;
mod browser;
mod daemon;
mod ground;
pub mod http;
mod installation;
pub mod protections;
mod search;
mod versions;
mod waiting;
mod workload;

pub use audit::audited;
pub use browser::browser;
pub use daemon::{Daemon, Finished};
pub use ground::{Ground, Turn};
pub use installation::{Installation, Plan};
pub use search::Search;
pub use versions::{DATABASE_VARIABLE, TestDatabase};
pub use waiting::{WAIT_MAX, blocking, seed, until, until_some};
pub use workload::{until_each_kind, until_reported};
