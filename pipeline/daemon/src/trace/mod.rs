//! Follows one key: its source rows, the derived rows that they claim, what each store holds, how far each lane is, the
//! newest change in the log, the cache. One sentence says why they differ, if they do.
//!
//! The order of reads makes the sentence true: sources first, then the progress of lanes, then stores. If a store
//! differs, the lanes that own the rows get a short time to pass the position of the first read; then stores and
//! sources are read again. A trace changes nothing, and nothing logs its key.

mod cache;
mod lanes;
mod last_change;
mod question;
mod sentence;
mod source_rows;
mod stores;
mod view;

use std::collections::BTreeSet;
use std::time::Duration;

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::reconcile::{self, SourceKey, SourceTable};
use anabranch_pipeline::records::Cell;
use anabranch_schemas::change::TableIdentity;
use anabranch_schemas::serial::StoredCode;
use anabranch_schemas::shard::ShardId;
use futures::future::join_all;
use tokio::time::Instant;

use self::lanes::{LaneReach, StoredProgress, TracedLane};
use self::last_change::{LogSearch, WantedRows};
use self::question::TracedEntity;
pub use self::question::{TraceLimits, TraceQuestion};
use self::sentence::{Facts, sentence};
use self::source_rows::{SourceObservation, SourceRow};
use self::stores::{Difference, StoreObservation};
pub use self::view::{
    CacheEntryView, ChangeView, DocumentView, LaneOfKeyView, SearchedView, SourceRowView, StoreView,
    StoredRowView, TraceAnswer, UnreadView,
};
use crate::observe::StatusView;
use crate::wiring::Wiring;

/// Follows a key; `status` is the newest known state of sources, lanes and caches.
///
/// A key may have the form of keys of several entities. The answer is about the first one that has it.
pub async fn follow(
    wiring: &Wiring,
    status: &StatusView,
    question: &TraceQuestion,
    limits: TraceLimits,
) -> Result<TraceAnswer, Fault> {
    let entities = question.entities(wiring)?;
    let end = Instant::now() + limits.whole;
    let mut traces = Vec::new();
    for (traced, key) in &entities {
        traces.push(EntityTrace { traced, status, limits, end }.run(key));
    }
    let mut answers = join_all(traces).await;
    let has_key = |answer: &TraceAnswer| {
        let is_stored = answer.stores.iter().any(|store| !store.rows.is_empty());
        is_stored || !answer.source_rows.is_empty() || answer.last_change.is_some()
    };
    let chosen = answers.iter().position(has_key).unwrap_or(0);
    let mut answer = answers.swap_remove(chosen);
    answer.also = answers.iter().filter(|other| has_key(other)).map(|other| other.entity).collect();
    Ok(answer)
}

/// The trace of a key as one of an entity.
struct EntityTrace<'t> {
    traced: &'t TracedEntity<'t>,
    status: &'t StatusView,
    limits: TraceLimits,
    end: Instant,
}

/// The state of the keys on sources, in lanes and in stores.
struct Observation<'t> {
    sources: SourceObservation,
    lanes: Vec<TracedLane>,
    stores: Vec<StoreObservation<'t>>,
    /// The source rows changed between two reads.
    is_hot: bool,
}

impl<'t> EntityTrace<'t> {
    async fn run(self, key: &Cell) -> TraceAnswer {
        let codes: Vec<StoredCode> = match key {
            Cell::Bytes(code) if self.traced.entity.has_codes() => {
                StoredCode::candidates(code).into_iter().map(|(stored, _)| stored).collect()
            }
            _ => Vec::new(),
        };
        let devices = match codes.is_empty() {
            true => Vec::new(),
            false => cache::devices(self.traced, &codes, self.until(self.limits.sources)).await,
        };
        let is_unnamed = !codes.is_empty() && devices.is_empty();
        let mut keys: BTreeSet<Cell> = devices.into_iter().chain([key.clone()]).collect();
        let wanted = WantedRows { entity: self.traced.entity, keys: keys.clone(), codes: codes.clone() };
        let search = last_change::search(self.traced, &wanted, self.until(self.limits.log));
        let (log, observed) = if is_unnamed {
            // The mapping tables know no device of the code, and a change in the log may name one.
            let log = search.await;
            keys.extend(log.change.iter().map(|change| change.key.clone()));
            (log, self.observe(&keys).await)
        } else {
            tokio::join!(search, self.observe(&keys))
        };
        let cache = self.cache(codes, &observed).await;
        self.answer(key, log, observed, cache)
    }

    /// Returns the moment until which a part may last.
    fn until(&self, part: Duration) -> Instant {
        (Instant::now() + part).min(self.end)
    }

    async fn observe(&self, keys: &BTreeSet<Cell>) -> Observation<'t> {
        let before = lanes::progress(self.traced, self.until(self.limits.sources)).await;
        let epochs = lanes::epochs(&before);
        let read_sources = || source_rows::read(self.traced, keys, &epochs, self.until(self.limits.sources));
        let sources = read_sources().await;
        let progress = lanes::progress(self.traced, self.until(self.limits.sources)).await;
        let traced_lanes = |progress: &StoredProgress| {
            lanes::traced_lanes(self.traced, progress, &sources.places, self.status)
        };
        let lanes = traced_lanes(&progress);
        let stores = stores::read(self.traced, keys, &sources.tables, self.until(self.limits.stores)).await;
        let differences = all_differences(&stores, &sources);
        if differences.is_empty() {
            return Observation { sources, lanes, stores, is_hot: false };
        }
        let owners: Vec<&TracedLane> = lanes
            .iter()
            .filter(|lane| differences.iter().any(|difference| difference.lane == lane.id))
            .collect();
        let is_waited = owners.iter().any(|lane| matches!(lane.reach, LaneReach::Lagging { .. }));
        let lanes = match is_waited {
            true => {
                let until = self.until(self.limits.lanes);
                traced_lanes(&lanes::wait(self.traced, &owners, &sources.places, until).await)
            }
            false => lanes,
        };
        let stores = stores::read(self.traced, keys, &sources.tables, self.until(self.limits.stores)).await;
        let second = read_sources().await;
        let is_hot = second.unread.is_empty() && sources.unread.is_empty() && second.rows != sources.rows;
        Observation { sources, lanes, stores, is_hot }
    }

    async fn cache(&self, mut codes: Vec<StoredCode>, observed: &Observation<'_>) -> Option<CacheEntryView> {
        if !self.traced.entity.has_codes() {
            return None;
        }
        let cached = self.traced.projections.iter().map(|known| known.projection.is_cached());
        for (place, _) in cached.enumerate().filter(|(_, is_cached)| *is_cached) {
            let values = observed.sources.claimed(place).into_keys().map(|address| address.key);
            let stored = values.filter_map(|key| match key.first()? {
                Cell::Bytes(value) => StoredCode::from_stored(value),
                _ => None,
            });
            codes.extend(stored);
        }
        cache::entry_view(self.traced, codes, self.status, self.until(self.limits.sources)).await
    }

    fn answer(
        &self,
        key: &Cell,
        log: LogSearch,
        observed: Observation<'_>,
        cache: Option<CacheEntryView>,
    ) -> TraceAnswer {
        let differences = all_differences(&observed.stores, &observed.sources);
        let facts = self.facts(&log, &observed, &differences, cache.as_ref());
        let why = |store: &StoreObservation<'_>| {
            let of_store = store.differences(&observed.sources);
            let gravest = of_store.iter().max_by_key(|difference| difference.kind);
            gravest.map_or_else(String::new, |gravest| sentence::why(&facts, gravest))
        };
        let stores: Vec<StoreView> =
            observed.stores.iter().map(|store| store.view(&observed.sources, &why(store))).collect();
        let sentence = sentence(&facts);
        TraceAnswer {
            key_hash: self.key_hash(key, &observed),
            entity: self.traced.entity.name(),
            also: Vec::new(),
            sentence,
            source_rows: observed
                .sources
                .rows
                .iter()
                .map(|row| self.row_view(row, &observed.sources))
                .collect(),
            lanes: self.lane_views(&observed, log.change.as_ref().map(|change| change.view.source.as_str())),
            documents: observed.stores.iter().flat_map(|store| store.documents(&observed.sources)).collect(),
            unread: observed.sources.unread.clone(),
            stores,
            cache,
            last_change: log.change.map(|change| change.view),
            searched: log.searched,
        }
    }

    fn facts<'f>(
        &self,
        log: &LogSearch,
        observed: &'f Observation<'_>,
        differences: &'f [Difference],
        cache: Option<&'f CacheEntryView>,
    ) -> Facts<'f> {
        let sources = &observed.sources;
        let name = |row: &SourceRow| {
            let table = sources.tables.get(&row.shard);
            table.map_or_else(String::new, |table| format!("{} of {}", table.name(), table.source))
        };
        let excluded = sources.rows.iter().flat_map(|row| &row.excluded);
        let unread =
            observed.stores.iter().filter_map(|store| Some((store.name(), store.found.as_ref().err()?)));
        Facts {
            rows: sources.rows.iter().map(name).collect(),
            claims: sources.rows.iter().flat_map(|row| &row.claims).map(|claims| claims.len()).sum(),
            stores: observed.stores.len(),
            excluded: excluded.map(|(projection, reason)| (projection.as_str(), reason.as_str())).collect(),
            differences,
            lanes: &observed.lanes,
            is_hot: observed.is_hot,
            unread: &sources.unread,
            unread_stores: unread.map(|(store, why)| (store, why.as_str())).collect(),
            cache,
            is_in_log: log.change.is_some(),
            messages: log.searched.messages,
            owed: self.owed(observed),
        }
    }

    /// Says that a lane is to read a table again that has the key: one with a row of it, or one that was not read.
    fn owed(&self, observed: &Observation<'_>) -> Option<String> {
        let sources = &observed.sources;
        let stored = observed.stores.iter().filter_map(|store| store.found.as_ref().ok());
        let stored = stored.flat_map(|found| found.rows.keys().map(|address| address.shard));
        let shards: BTreeSet<ShardId> = sources.rows.iter().map(|row| row.shard).chain(stored).collect();
        observed.lanes.iter().find_map(|lane| {
            // A source that did not answer lists no table.
            let is_listed = sources.places.contains_key(&lane.id.source);
            let is_meant = |shard: ShardId| {
                let is_unlisted = is_listed && !sources.tables.contains_key(&shard);
                shards.contains(&shard) || sources.unread_shards.contains(&shard) || is_unlisted
            };
            lane.waits(is_meant, |shard| Some(sources.tables.get(&shard)?.name()))
        })
    }

    fn row_view(&self, row: &SourceRow, sources: &SourceObservation) -> SourceRowView {
        let table = sources.tables.get(&row.shard);
        let mut claims = Vec::new();
        for (traced, of_projection) in self.traced.projections.iter().zip(&row.claims) {
            claims.extend(of_projection.keys().map(|address| {
                let target = traced.projection.tables()[address.table as usize].target;
                let target = traced.targets.get(target as usize).map_or("", String::as_str);
                format!("{} of {}/{target}", stores::table_name(traced, address.table), traced.name)
            }));
        }
        SourceRowView {
            source: table.map_or_else(String::new, |table| table.source.clone()),
            table: table.map_or_else(String::new, SourceTable::name),
            key_hash: self.hash(table, row.shard, &row.key),
            claims,
            excluded: row.excluded.iter().map(|(projection, why)| format!("{projection}: {why}")).collect(),
            fields: row.fields.clone(),
        }
    }

    /// Returns the lanes of the sources that have or had the key; all lanes if none is known to.
    fn lane_views(&self, observed: &Observation<'_>, changed: Option<&str>) -> Vec<LaneOfKeyView> {
        let shards = observed.sources.rows.iter().map(|row| row.shard);
        let stored = observed.stores.iter().filter_map(|store| store.found.as_ref().ok());
        let shards = shards.chain(stored.flat_map(|found| found.rows.keys().map(|address| address.shard)));
        let tables = shards.filter_map(|shard| observed.sources.tables.get(&shard));
        let sources: BTreeSet<&str> = tables.map(|table| table.source.as_str()).chain(changed).collect();
        let is_meant = |lane: &&TracedLane| sources.is_empty() || sources.contains(lane.id.source.as_str());
        observed.lanes.iter().filter(is_meant).map(TracedLane::view).collect()
    }

    /// Returns the hash of the key in the first table that has it.
    fn key_hash(&self, key: &Cell, observed: &Observation<'_>) -> String {
        let stored = || {
            let found = observed.stores.iter().filter_map(|store| store.found.as_ref().ok());
            found.flat_map(|found| found.rows.keys().map(|address| address.shard)).next()
        };
        let row = observed.sources.rows.first();
        let shard = row.map(|row| row.shard).or_else(stored);
        let table = shard.and_then(|shard| observed.sources.tables.get(&shard));
        let shard = shard.unwrap_or_else(|| ShardId::of("", "", "", 0));
        self.hash(table, shard, row.map_or(key, |row| &row.key))
    }

    /// Returns the hash that reports of reconciliations show instead of the key; without a table, of the key alone.
    fn hash(&self, table: Option<&SourceTable>, shard: ShardId, key: &Cell) -> String {
        let (database, name) = ("".into(), "".into());
        let identity = TableIdentity { entity: self.traced.entity, shard, database, table: name };
        let no_table = SourceTable { source: String::new(), identity };
        let row = SourceKey { shard, key: key.clone() };
        let signing_key = self.traced.wiring.config().reconcile.signing_key.as_ref();
        reconcile::hash_key(table.unwrap_or(&no_table), &row, signing_key)
    }
}

fn all_differences(stores: &[StoreObservation<'_>], sources: &SourceObservation) -> Vec<Difference> {
    stores.iter().flat_map(|store| store.differences(sources)).collect()
}
