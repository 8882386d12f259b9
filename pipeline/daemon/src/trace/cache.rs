//! Compares the entries of a cache for the codes of a device with the mapping tables.

use std::time::Duration;

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::lookup::{CACHED_CLAIMS_MAX, decode};
use anabranch_pipeline::ports::{CodeCache, MappingStore};
use anabranch_pipeline::records::Cell;
use anabranch_schemas::serial::StoredCode;
use tokio::time::{Instant, timeout_at};

use super::question::TracedEntity;
use super::view::CacheEntryView;
use crate::observe::StatusView;
use crate::wiring::Cache;

/// Codes that are compared, at most.
const CODES_MAX: usize = 100;
/// Devices of a code that are traced, at most: a box may have thousands.
pub(super) const DEVICES_MAX: usize = 20;
/// Looks at an entry that differs: a drain may be on its way.
const COMPARISONS: usize = 3;
const PAUSE: Duration = Duration::from_millis(300);
/// Connections that read the mapping rows of a code.
const CONNECTIONS: usize = 1;

/// Entries of some codes.
#[derive(Debug, Clone, Copy, Default)]
struct Entries {
    hits: usize,
    differs: bool,
    age: Option<Duration>,
}

/// Returns the uuids of the devices that have one of the codes, by the mapping tables; none when there are no mapping
/// tables or they cannot be read.
pub(super) async fn devices(traced: &TracedEntity<'_>, codes: &[StoredCode], until: Instant) -> Vec<Cell> {
    let Some(projection) = traced.wiring.lookup_projection() else { return Vec::new() };
    let Some(mapping) = traced.wiring.mapping(&projection.name, CONNECTIONS) else { return Vec::new() };
    let Ok(Ok(found)) = timeout_at(until, mapping.claims(codes, DEVICES_MAX)).await else {
        return Vec::new();
    };
    let claims = found.into_iter().flat_map(|of_code| of_code.claims);
    let mut uuids: Vec<Cell> = claims.map(|claim| Cell::Bytes(claim.uuid)).collect();
    uuids.sort_unstable();
    uuids.dedup();
    uuids.truncate(DEVICES_MAX);
    uuids
}

/// Returns the state of the codes in the cache of a traced projection; `None` when no cache is configured.
pub(super) async fn entry_view(
    traced: &TracedEntity<'_>,
    mut codes: Vec<StoredCode>,
    status: &StatusView,
    until: Instant,
) -> Option<CacheEntryView> {
    codes.sort_unstable();
    codes.dedup();
    codes.truncate(CODES_MAX);
    let cache = traced.projections.iter().find_map(|known| traced.wiring.cache_of(known.name))?;
    let name = cache.config.name.clone();
    let is_bypassed = status.caches.iter().any(|view| view.cache == name && view.state == "passed");
    let mut view = CacheEntryView { cache: name, state: "unread", age_seconds: None, differs: None };
    if let Ok(Ok(entries)) = timeout_at(until, compare(cache, &codes)).await {
        view.state = match entries.hits {
            _ if is_bypassed => "bypassed",
            0 => "miss",
            _ => "hit",
        };
        view.age_seconds = entries.age.map(|age| age.as_secs_f64());
        view.differs = (entries.hits > 0).then_some(entries.differs);
    }
    Some(view)
}

/// Compares the entries with the mapping rows; looks again while they differ.
async fn compare(cache: &Cache, codes: &[StoredCode]) -> Result<Entries, Fault> {
    let mut compared = Entries::default();
    for number in 0..COMPARISONS {
        if number > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        compared = compare_once(cache, codes).await?;
        if !compared.differs {
            break;
        }
    }
    Ok(compared)
}

async fn compare_once(cache: &Cache, codes: &[StoredCode]) -> Result<Entries, Fault> {
    let cached = cache.redis.entries(codes).await?.entries;
    let claims = cache.mapping.claims(codes, CACHED_CLAIMS_MAX).await?;
    let mut compared = Entries::default();
    for (cached, claims) in cached.into_iter().zip(&claims) {
        let Some((bytes, left)) = cached.entry else { continue };
        compared.hits += 1;
        let set = decode(&bytes).ok();
        compared.differs |= claims.is_cut || set.as_ref() != Some(&claims.claims);
        let full = cache.config.time_to_live.of(set.map_or(0, |set| set.len()), 0.0);
        let age = left.map(|left| full.saturating_sub(left));
        compared.age = compared.age.max(age);
    }
    Ok(compared)
}
