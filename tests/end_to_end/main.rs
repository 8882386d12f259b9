//! The whole product on real servers: from a change in a sharded table to the derived tables, and everything that an
//! operator sees on the way.

#![expect(clippy::unwrap_used, reason = "the whole target is tests")]

mod commands;
mod flow;

use anabranch_tests::Ground;

/// Two sources, a target, NATS.
static STANDARD: Ground = Ground::standard();
