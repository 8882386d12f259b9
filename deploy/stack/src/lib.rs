//! The development stack: real MariaDB, MySQL, NATS, Redis and OpenSearch servers on private ports of 127.0.0.1.
//!
//! The demo, the tests and people (`cargo stack up`) use the same servers, started the same way: with TLS, random
//! passwords and the documented least-privilege accounts. Nothing is installed system-wide, and no file is outside of
//! the workspace's target folder. When the owner of a stack ends, however it ends, its servers end too.
//!
//! ```no_run
//! use anabranch_stack::{Options, Stack};
//!
//! let stack = Stack::start(Options::standard())?;
//! let source = stack.server("source-a")?;
//! source.kill()?;
//! source.restart()?;
//! # Ok::<(), anabranch_stack::StackError>(())
//! ```
//!
//! All calls block; use them from a blocking thread in asynchronous code.

mod building;
mod by_kind;
mod clock;
mod companion;
mod database;
mod error;
mod exchange;
mod fetch;
mod instance;
mod layout;
mod managed_server;
mod mariadb;
mod mysql;
mod nats;
mod optional;
mod ports;
mod process;
mod programs;
mod prometheus;
mod redis;
mod search;
mod secrets;
mod server;
mod spec;
mod stack;
mod template;

pub use building::{cargo, cargo_build};
pub use clock::Clock;
pub use companion::Companion;
pub use error::{Result, StackError};
pub use fetch::{PAGE_PORT_VARIABLE, fetch};
pub use layout::Layout;
pub use optional::{browser, gh_ost, promtool, pt_online_schema_change};
pub use ports::ReservedPort;
pub use programs::{BrowserPrograms, PROGRAMS_VARIABLE, Program};
pub use secrets::SignedCertificate;
pub use server::{Server, ServerStatus};
pub use spec::{
    Database, DatabaseAccount, Kind, MariaDbVersion, Nats, NatsVersion, Options, Passwords, Prometheus,
    Redis, RedisRole, Search, ServerSpec,
};
pub use stack::{KEEP_VARIABLE, Stack, instance_names};
