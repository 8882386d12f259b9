//! The stores of a reconciliation, and the reconciliation of one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anabranch_pipeline::composition::ProjectionLanes;
use anabranch_pipeline::config::reconcile::{Mode, ReconcileSettings};
use anabranch_pipeline::config::{Config, EntityConfig, SourceConfig};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::lookup::{AuditPace, CacheAudit};
use anabranch_pipeline::ports::{CodeCache, MappingStore, Outbox};
use anabranch_pipeline::projections::Projection;
use anabranch_pipeline::reconcile::{
    self, Backpressure, Checkpoint, KnownTables, LaneWait, Sides, StoreReport, StoreState, Verdict,
};
use anabranch_schemas::shard::ShardId;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::columns::{self, COLUMNS};
use super::{ReconcileOrder, foreign};
use crate::wiring::{Cache, DerivedStore, Source, Wiring};

/// Beginning of a cache's name, which tells it from a projection's.
const CACHE: &str = "cache/";
/// Time between two checkpoints of an audit.
const STORED_EACH: Duration = Duration::from_secs(10);
/// Intervals of position messages within which a quiet source reports its position.
const POSITION_MESSAGES: u32 = 3;

/// Returns the names of the requested stores in the order of work: a cache comes after the tables that it is filled
/// from, and so do the columns that follow the coupon ledger.
pub fn names(wiring: &Wiring, order: &ReconcileOrder) -> Result<Vec<String>, Fault> {
    let config = wiring.config();
    let projections = config.projections.iter().map(|projection| projection.name.clone());
    let caches = config.caches.iter().map(|cache| format!("{CACHE}{}", cache.name));
    let columns = columns::is_configured(config).then(|| COLUMNS.to_owned());
    let mut all: Vec<String> = projections.chain(columns).chain(caches).collect();
    if let Some(unknown) = order.stores.iter().find(|name| !all.contains(name)) {
        let needed = format!("one of {}", all.join(", "));
        return Err(Fault::new(Code::ReconcileRefused, format!("store {unknown}"), "it is not configured")
            .needs(needed));
    }
    all.retain(|name| order.stores.is_empty() || order.stores.contains(name));
    Ok(all)
}

/// Reconciles one store, up to its end or `cancel`.
pub async fn reconciliation(
    wiring: &Wiring,
    settings: &ReconcileSettings,
    state: &mut StoreState,
    checkpoint: &mut impl Checkpoint,
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    if state.report.store == COLUMNS {
        columns::reconciliation(wiring, settings, state, cancel).await;
        return Ok(());
    }
    if let Some(cache) = state.report.store.strip_prefix(CACHE) {
        let cache = wiring.cache(cache)?;
        let began = Instant::now();
        let ended = tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            ended = of_cache(wiring, cache, settings, (&mut *state, &mut *checkpoint)) => Some(ended?),
        };
        count_entries(settings, state);
        state.report.seconds += began.elapsed().as_secs_f64();
        if let Some(fault) = ended.flatten() {
            state.report.set_incomplete(format!("not read to its end: {fault}"));
        }
        return Ok(());
    }
    let store = state.report.store.clone();
    let sides = sides(wiring, &store)?;
    let uncaptured = foreign::uncaptured(wiring, sides.projection.entity()).await.unwrap_or_else(|fault| {
        let known = "the tables that the reconciliation before knew are not known";
        state.report.set_incomplete(format!("{known}: {fault}"));
        BTreeSet::new()
    });
    let of_projection = ProjectionLanes { connectors: wiring, projection: &store };
    let key = wiring.config().reconcile.signing_key.as_ref();
    let reconciliation = reconcile::Reconciliation {
        sides: &sides,
        lanes: &of_projection,
        settings,
        lane_wait: LaneWait::new(standstill(wiring.config(), wiring.config().reconcile.lane_wait)),
        hash_key: &|table, row| reconcile::hash_key(table, row, key),
        hash_foreign: &|shard, row| reconcile::hash_foreign(&store, shard, row, key),
        uncaptured: &uncaptured,
    };
    reconciliation.run(state, checkpoint, cancel).await
}

/// Returns the time, at least `least`, after which a lane that should move stands still: several times the interval in
/// which a quiet source reports its position.
pub(super) fn standstill(config: &Config, least: Duration) -> Duration {
    least.max(config.limits.position_interval * POSITION_MESSAGES)
}

/// Returns whether a store is a cache: caches come last, and may end before they are finished.
pub fn is_cache(store: &str) -> bool {
    store.starts_with(CACHE)
}

/// Ends the part of a cache that its window was too short for: the next reconciliation continues there, after its
/// tables.
pub fn end_unread(state: &mut StoreState) {
    let entries = state.audit.audited.entries;
    state.report.set_incomplete(format!(
        "its window ended after {entries} entries, before the end of the store; the next reconciliation continues \
         there, and a longer window (reconcile.window_hours) or a higher reconcile.rows_per_second reads more"
    ));
}

/// Compares a cache with its mapping tables, which were compared with their sources before; returns the fault that
/// ended it early. The audit obeys the backpressure of the reconciliation of these tables.
async fn of_cache(
    wiring: &Wiring,
    cache: &Cache,
    settings: &ReconcileSettings,
    (state, checkpoint): (&mut StoreState, &mut impl Checkpoint),
) -> Result<Option<Fault>, Fault> {
    let work = CacheAudit {
        cache: &cache.redis,
        outboxes: cache.outboxes.as_slice(),
        mapping: &cache.mapping,
        time_to_live: cache.config.time_to_live,
        repairs_max: repairs_max(settings),
    };
    let projection = cache.config.projection.as_str();
    let sides = sides(wiring, projection)?;
    let lanes = ProjectionLanes { connectors: wiring, projection };
    let (backpressure, pace) = Backpressure::of(&settings.limits);
    let mut pace = AuditPace::new(pace);
    tokio::select! {
        ended = entries(&work, &mut pace, settings, (state, checkpoint)) => ended,
        () = backpressure.watch(&sides, &lanes, &settings.limits) => unreachable!("it never ends"),
    }
}

async fn entries<C: CodeCache, O: Outbox, M: MappingStore>(
    work: &CacheAudit<'_, C, O, M>,
    pace: &mut AuditPace,
    settings: &ReconcileSettings,
    (state, checkpoint): (&mut StoreState, &mut impl Checkpoint),
) -> Result<Option<Fault>, Fault> {
    if let Err(fault) = work.begin(&mut state.audit).await {
        return Ok(Some(fault));
    }
    let mut stored_at = Instant::now();
    loop {
        match work.step(&mut state.audit, pace).await {
            Ok(true) => return Ok(None),
            Ok(false) => {}
            Err(fault) => return Ok(Some(fault)),
        }
        if stored_at.elapsed() >= STORED_EACH {
            count_entries(settings, state);
            checkpoint.store(state).await?;
            stored_at = Instant::now();
        }
    }
}

fn repairs_max(settings: &ReconcileSettings) -> u64 {
    match settings.mode {
        Mode::Repair => settings.gate_keys,
        Mode::Report => 0,
    }
}

/// Copies the findings of a cache's audit so far into the report.
fn count_entries(settings: &ReconcileSettings, state: &mut StoreState) {
    let (audited, report) = (&state.audit.audited, &mut state.report);
    report.rows_derived = audited.entries;
    report.candidates = audited.found() + audited.in_flight + audited.unverified;
    report.verdicts.clear();
    report.count(Verdict::InFlight, audited.in_flight);
    report.count(Verdict::Hot, audited.unverified);
    for (drift, entries) in &audited.drift {
        report.count(Verdict::from(*drift), *entries);
    }
    (report.repaired, report.confirmed) = (audited.repaired, audited.repaired);
    report.left = audited.found() - audited.repaired;
    report.is_gate_closed = settings.mode == Mode::Repair && audited.found() > repairs_max(settings);
}

/// Returns the tables that are known now. A table that the reconciliation before knew and that is hidden makes its
/// stores incomplete.
pub async fn tables(
    wiring: &Wiring,
    stores: &mut [StoreReport],
    before: &KnownTables,
) -> Result<KnownTables, Fault> {
    let entity = |store: &StoreReport| wiring.projection(&store.store).ok().map(Projection::entity);
    let asked = stores.iter().filter_map(entity).collect();
    let names = wiring.config().sources.iter().map(|source| &source.name);
    let sources = names.map(|name| Ok((name.clone(), wiring.source_connector(name)?)));
    let sources: BTreeMap<String, Arc<Source>> = sources.collect::<Result<_, Fault>>()?;
    let (known, hidden) = reconcile::find_hidden_tables(&sources, before, &asked).await;
    for hidden in hidden {
        let source = wiring.config().sources.iter().find(|source| source.name == hidden.source);
        let (database, table) = &hidden.place;
        let shard = source.map(|source| ShardId::of(&source.name, database, table, source.generation));
        for store in stores.iter_mut().filter(|store| entity(store) == Some(hidden.entity)) {
            store.set_incomplete(&*hidden.why);
            store.unproven.add(shard);
        }
    }
    Ok(known)
}

pub(super) fn sides(wiring: &Wiring, name: &str) -> Result<Sides<Source, DerivedStore>, Fault> {
    let projection = wiring.projection(name)?.clone();
    let captures = |source: &&SourceConfig| source.entities.contains(&projection.entity());
    let config = wiring.config();
    let sources: Vec<_> = config.sources.iter().filter(captures).collect();
    let read = sources.iter().map(|source| (source.name.clone(), Arc::new(whole_tables(config, source))));
    let read: BTreeMap<String, Arc<Source>> = read.collect();
    let primaries =
        sources.iter().map(|source| Ok((source.name.clone(), wiring.source_connector(&source.name)?)));
    let primaries: BTreeMap<String, Arc<Source>> = primaries.collect::<Result<_, Fault>>()?;
    let targets = wiring.derived(name)?.into_iter().map(Arc::new).collect();
    // The audit runs once for each kind of rows.
    let is_first =
        config.projections.iter().find(|known| Projection::new(known).entity() == projection.entity());
    let audit = is_first.filter(|first| first.name == name).map(|_| {
        reconcile::PlacementAudit::new(
            reconcile::Rules::of(projection.entity(), &config.entities, &config.flux_places),
            rand::random(),
        )
    });
    let replicated = sources.iter().filter(|source| source.replica.is_some());
    let replicated = replicated.map(|source| source.name.clone()).collect();
    Ok(Sides { projection, sources: read, replicated, primaries, targets, audit })
}

/// Returns the server for whole tables: a replica if there is one, with the columns that the sharding rules read.
pub fn whole_tables(config: &Config, source: &SourceConfig) -> Source {
    let mut server = source.clone();
    if let Some((url, ca_file)) = &source.replica {
        (server.url, server.ca_file) = (url.clone(), ca_file.clone());
    }
    let entities: Vec<_> = config.entities.iter().cloned().map(EntityConfig::with_sharding_column).collect();
    Source::new(&server, &entities, config.limits.heartbeat)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_may_stand_still_as_long_as_is_configured_and_several_position_messages_of_a_quiet_source() {
        let text = include_str!("../../../../deploy/anabranch.example.toml");
        let standstill = |lane_wait: u64, position_interval_ms: u64| {
            let text = text
                .replace("[reconcile]\n", &format!("[reconcile]\nlane_wait_seconds = {lane_wait}\n"))
                .replace("[limits]\n", &format!("[limits]\nposition_interval_ms = {position_interval_ms}\n"));
            let config = Config::parse(&text).unwrap();
            super::standstill(&config, config.reconcile.lane_wait).as_secs()
        };
        assert_eq!(standstill(70, 1_000), 70);
        assert_eq!(standstill(5, 10_000), 30);
    }
}
