//! Tests of the demo's own parts on real servers: the workload, and a verification that can fail.

#![allow(clippy::unwrap_used, reason = "the whole target is a test")]

mod drift;
mod payments;
mod relations;
mod serials;
mod stores;
mod verify;
mod workload;
