//! The demo's own parts on real servers, without the daemon: the workload, and that the verification can fail.

#![allow(clippy::unwrap_used, reason = "the whole target is a test")]

mod serials;
mod verify;
mod workload;
