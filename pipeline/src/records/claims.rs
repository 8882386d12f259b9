//! Which devices have a code, and for how long a cache keeps that.

use std::time::Duration;

use anabranch_schemas::serial::CodeKind;
use anabranch_schemas::shard::ShardId;
use serde::{Deserialize, Serialize};

/// A device that has a code, said by one shard.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceClaim {
    pub shard: ShardId,
    /// As text.
    pub uuid: Box<[u8]>,
    pub kind: CodeKind,
}

/// The claims of one value, in the order (shard, uuid, kind).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claims {
    pub claims: Vec<DeviceClaim>,
    /// There are more after the last one.
    pub is_cut: bool,
}

/// Says that a fill has begun, and which one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Token(pub u128);

/// How long entries live. They are spread over a part of it, so that what was filled together does not expire together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeToLive {
    pub full: Duration,
    /// Sets without claims: a client that tries codes at random fills no memory for a year.
    pub empty: Duration,
}

/// An entry lives up to this part of its time shorter: a week of a year.
const JITTER: f64 = 0.02;

impl TimeToLive {
    /// For a set of so many claims; `part` is a random number from 0 to 1.
    pub fn of(&self, claims: usize, part: f64) -> Duration {
        let longest = if claims == 0 { self.empty.min(self.full) } else { self.full };
        longest.mul_f64(1.0 - JITTER * part.clamp(0.0, 1.0))
    }
}
