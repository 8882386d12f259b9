//! One folder for each outside system; each implements the ports of `anabranch_pipeline`.

mod certificate;
pub mod coupon_system;
#[cfg(any(test, feature = "twins"))]
pub mod memory;
pub mod mysql;
pub mod nats;
mod progress;
pub mod redis;
pub mod refusals;
mod scan_cursor;
pub mod search;
mod spill;
mod target;
mod tls;

pub use self::certificate::certificate_ends;
pub use self::progress::StoredProgress;
pub use self::spill::SpillRoom;
