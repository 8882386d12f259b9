//! The load of this process: its connections to databases, and how often the cache answered its lookups.
//!
//! These are figures that its metrics have too, so no server is asked for them.

use std::collections::BTreeMap;

use anabranch_pipeline::metrics as names;
use serde::{Deserialize, Serialize};

use crate::telemetry::Telemetry;
use crate::wiring::pool_uses;

/// The load of the process that answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadView {
    pub connections: Vec<ConnectionsView>,
    pub lookups: LookupsView,
}

/// The connections of this process to one database server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionsView {
    /// Kind of the server: `source` or `target`.
    pub dependency: String,
    /// Name of the server in the configuration.
    pub name: String,
    pub in_use: usize,
    pub max: usize,
    /// Queries that wait because all connections are in use.
    pub waiting: usize,
}

/// Codes that lookups asked for since the process started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookupsView {
    /// Codes that the cache had.
    pub hits: u64,
    /// Codes that it lacked.
    pub misses: u64,
    /// Codes that were read beside the cache, because it was not believed.
    pub bypassed: u64,
}

impl LoadView {
    /// Returns the present load of this process.
    pub fn now(metrics: &Telemetry) -> Self {
        let codes = |outcome: &str| metrics.counted(names::CACHE_LOOKUPS, ("outcome", outcome));
        let lookups = LookupsView { hits: codes("hit"), misses: codes("miss"), bypassed: codes("bypassed") };
        let mut servers: BTreeMap<(&'static str, String), ConnectionsView> = BTreeMap::new();
        for (pool, used) in pool_uses() {
            let server = servers.entry((pool.dependency, pool.name)).or_default();
            server.in_use += used.in_use;
            server.max += used.connections_max;
            server.waiting += used.waiting;
        }
        let named = |((dependency, name), server): ((&str, String), ConnectionsView)| ConnectionsView {
            dependency: dependency.to_owned(),
            name,
            ..server
        };
        Self { connections: servers.into_iter().map(named).collect(), lookups }
    }
}
