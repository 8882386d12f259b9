//! MySQL and MariaDB: source of changes (`source/`), store of derived rows (`store/`), tables of a coupon day
//! (`cohort/`), coupon ledger (`ledger/`) and counters of payment documents (`sequence/`).

mod answer;
pub mod cohort;
pub mod connection;
pub mod error;
mod keyset;
pub mod ledger;
mod pool;
mod pool_use;
mod remedy;
pub mod sequence;
pub mod source;
pub mod source_rows;
pub mod store;
mod target_session;

pub use self::pool_use::{PoolName, PoolUse, pool_uses};
