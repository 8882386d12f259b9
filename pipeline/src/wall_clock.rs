//! The wall clock, for people (the age of a change or of a withdrawal) and the order of uuids. It decides nothing.

use std::time::{Duration, SystemTime};

/// Returns the time since the Unix epoch.
#[expect(clippy::disallowed_methods, reason = "the one place that reads it")]
pub fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

pub fn now_us() -> u64 {
    u64::try_from(now().as_micros()).unwrap_or(u64::MAX)
}

pub fn now_ms() -> u64 {
    u64::try_from(now().as_millis()).unwrap_or(u64::MAX)
}
