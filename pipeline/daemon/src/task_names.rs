//! The names of the tasks that no room of their own names, as status, leases and metrics show them.

/// Name of the task that gives out uuids, and the beginning of its leases' names.
pub const MINT_TASK: &str = "uuids";

/// Returns the name of the task that captures a source.
pub fn reader_task(source: &str) -> String {
    format!("reader/{source}")
}

/// Returns the name of the task that keeps a cache right.
pub fn cache_task(cache: &str) -> String {
    format!("cache/{cache}")
}

/// Returns the name of the task that removes old tombstones of a document projection.
pub fn sweep_task(projection: &str) -> String {
    format!("sweep/{projection}")
}

/// Returns the name of the task that runs a lane.
pub fn lane_task(lane: impl std::fmt::Display) -> String {
    format!("lane/{lane}")
}
