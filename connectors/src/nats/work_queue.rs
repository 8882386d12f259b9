//! The work queue of the coupon day: one stream, one subject and one durable consumer for each part of the users.
//!
//! It is a hint. A message may be lost, doubled, delayed and repeated; whoever lacks a coupon is published again until
//! the run is closed. So nothing here is fenced, and what cannot be read is set aside.

use std::time::Duration;

use anabranch_coupons::records::Message;
use anabranch_pipeline::config::LogConfig;
use anabranch_pipeline::error::Fault;

/// The work queue in one NATS, with connections of its own.
#[derive(Debug, Clone)]
pub struct NatsWorkQueue {}

/// Messages of one part, for one granter.
#[derive(Debug)]
pub struct WorkQueuePart {}

/// A message that waits for its end. Dropped without one it comes again after a while.
#[derive(Debug)]
pub struct Delivery {
    pub message: Message,
    /// How often it was delivered, this time included.
    pub deliveries: u64,
}

impl NatsWorkQueue {
    /// Connects. `prefix` is the configuration's `name`.
    pub async fn connect(_config: &LogConfig, _prefix: &str) -> Result<Self, Fault> {
        todo!()
    }

    /// Creates the stream and the consumers, adjusts limits, checks the rest. Safe to repeat.
    pub async fn setup(&self) -> Result<Vec<super::SetupStep>, Vec<Fault>> {
        todo!()
    }

    /// The same checks without changing anything.
    pub async fn check(&self) -> Vec<Fault> {
        todo!()
    }

    /// Messages that nobody has ended yet.
    pub async fn pending(&self) -> Result<u64, Fault> {
        todo!()
    }

    /// The messages of a part: 0 to [`anabranch_coupons::records::PARTS`]. Many may read a part.
    pub async fn part(&self, _part: u64) -> Result<WorkQueuePart, Fault> {
        todo!()
    }
}

impl WorkQueuePart {
    /// The next messages, at most `limit`; none when none came within a second or so. Cancel safe.
    pub async fn next(&mut self, _limit: usize) -> Result<Vec<Delivery>, Fault> {
        todo!()
    }
}

impl Delivery {
    /// The message has been carried: it does not come again.
    pub async fn done(self) {
        todo!()
    }

    /// The message is to come again after a pause.
    pub async fn later(self, _pause: Duration) {
        todo!()
    }
}
