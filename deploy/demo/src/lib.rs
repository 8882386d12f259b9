//! The demo as a library, for its binary and for the tests: workload, lag probe, verification.
//!
//! It acts as an application on one side of the product and as an auditor on the other. It knows the product's
//! configuration file, its derived stores and their progress, and shares no code with the parts that fill them.

pub mod browser;
mod coupons;
pub mod daemon;
pub mod drift;
mod endpoint;
mod error;
pub mod ghost;
mod json_client;
mod lunar;
mod probe;
mod redis;
mod search;
mod topology;
pub mod verify;
mod witness;
mod workload;

pub use self::coupons::{CouponDay, CouponReport, afternoon};
pub use self::json_client::JsonClient;
pub use self::redis::RedisServer;
pub use endpoint::{Connection, Endpoint, FORGET_BINLOG, SHOW_BINLOG_END, SILENCE_MAX};
pub use error::{DemoError, Result, exit_code};
pub use probe::{LagProbe, LagReport, LagSummary, LiveLag};
pub use topology::{
    BirthdayType, INVENTORY_DATABASES, SERIAL_TABLES, SourceTable, Topology, USER_TABLES, UuidType, uuid,
};
pub use witness::{Faults, Gift, Witness, WitnessClient, WitnessOptions};
pub use workload::{GIANT_ROWS, LiveReport, Load, Pace, SetAside, Workload, WorkloadOptions, WorkloadReport};
