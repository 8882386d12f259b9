//! Devices that have a code, and the time for which a cache keeps them.

use std::time::Duration;

use anabranch_schemas::serial::CodeKind;
use anabranch_schemas::shard::ShardId;
use serde::{Deserialize, Serialize};

/// A device that has a code, according to one shard.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceClaim {
    pub shard: ShardId,
    /// The device's uuid as text.
    pub uuid: Box<[u8]>,
    pub kind: CodeKind,
}

/// The claims of one value, in the order (shard, uuid, kind).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claims {
    pub claims: Vec<DeviceClaim>,
    /// More claims follow the last one.
    pub is_cut: bool,
}

/// Names a fill that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Token(pub u128);

/// How long entries live. Chance shortens each life by a part, so that entries filled together do not expire together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeToLive {
    pub full: Duration,
    /// Life of sets without claims: a client that tries codes at random fills no memory for a year.
    pub empty: Duration,
}

/// Greatest part of its time by which an entry lives shorter: a week of a year.
const JITTER: f64 = 0.02;

impl TimeToLive {
    /// Returns the life of a set of this many claims; `part` is a random number from 0 to 1.
    pub fn of(&self, claims: usize, part: f64) -> Duration {
        let longest = if claims == 0 { self.empty.min(self.full) } else { self.full };
        longest.mul_f64(1.0 - JITTER * part.clamp(0.0, 1.0))
    }
}
