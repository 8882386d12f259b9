//! MySQL and MariaDB: source of changes (`source/`) and store of derived rows (`store/`).

pub mod cohort;
pub mod connection;
pub mod error;
mod keyset;
mod pool;
pub mod refusals;
mod remedy;
pub mod source;
pub mod source_rows;
pub mod store;
