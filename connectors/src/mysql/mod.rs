//! MySQL and MariaDB: source of changes (`source/`), store of derived rows (`store/`) and coupon ledger (`ledger/`).

pub mod cohort;
pub mod connection;
pub mod error;
mod keyset;
pub mod ledger;
mod pool;
pub mod refusals;
mod remedy;
pub mod sequence;
pub mod source;
pub mod source_rows;
pub mod store;
