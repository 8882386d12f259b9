//! Removes derived rows that belong to no table of any source, on the word of a person.
//!
//! Every source must list its tables, each time it is asked. A table that the last reconciliation knew and that may not
//! be read any more still counts: it is asked for by name, as a reconciliation does it. So does one that no pattern
//! captures any more, unless a person names the shard id. A source that shows no table of the rows' kind has more
//! likely lost a grant than all its tables.
//!
//! Rows of source tables that left for good are found in the same way. They are known by their shards, so the other
//! sources need not answer: a list of their tables only shortens the search.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{ForeignRow, History, RowSource};
use anabranch_pipeline::reconcile::{
    self, Foreign, KnownTables, ReconciliationReport, Removed, VisibleTables, hash_foreign, shard_text,
    table_text,
};
use anabranch_pipeline::retry::again;
use anabranch_schemas::change::Entity;
use anabranch_schemas::shard::ShardId;

use super::parsed;
use crate::wiring::{Source, Wiring};

/// The shard id that the rows to remove have stored; `None` = rows without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForeignShard(pub Option<u64>);

/// Removes the foreign rows of a projection, or those of one shard id; a rehearsal only visits them.
pub async fn remove_foreign(
    wiring: &Wiring,
    store: &str,
    only: Option<ForeignShard>,
    is_rehearsal: bool,
    mut visit: impl FnMut(Foreign),
) -> Result<Removed, Fault> {
    let projection = wiring.projection(store)?;
    let targets: Vec<_> = wiring.derived(store)?.into_iter().map(Arc::new).collect();
    let config = wiring.config();
    let names = config.sources.iter().map(|source| &source.name);
    let sources = names.map(|name| Ok((name.clone(), wiring.source_connector(name)?)));
    let sources: BTreeMap<String, Arc<Source>> = sources.collect::<Result<_, Fault>>()?;
    let before = known_before(wiring).await?;
    let known = async || {
        let present = present(wiring, store, &sources, only.is_some()).await?;
        Ok(&present | &known_still(wiring, &sources, &before, only.is_none()).await?)
    };
    let is_meant = |row: &ForeignRow| only.is_none_or(|ForeignShard(shard)| row.shard == shard);
    let key = config.reconcile.signing_key.as_ref();
    let visit = |row: &ForeignRow| {
        visit(Foreign {
            table: table_text(&projection.tables()[row.table as usize].derived),
            shard: shard_text(row.shard),
            key_hash: hash_foreign(store, row.shard, &row.key, key),
        });
    };
    reconcile::remove_foreign((projection, &targets), known, is_meant, is_rehearsal, visit).await
}

/// Derived rows of source tables that left for good.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DepartedRows {
    pub found: u64,
    /// Rows that were removed; none by a rehearsal.
    pub removed: u64,
    /// Rows of other tables that no source lists, which stay. They include those of the `unlisted` sources.
    pub others: u64,
    /// Sources that did not list their tables.
    pub unlisted: BTreeSet<String>,
}

/// Removes the derived rows of these shards from a projection, unless a source has a table of such a shard. A rehearsal
/// only counts them.
///
/// The sources of `asked` must answer, each time before rows are removed. Rows of retired source tables stay.
pub async fn remove_departed(
    wiring: &Wiring,
    store: &str,
    shards: &BTreeSet<ShardId>,
    asked: &[String],
    is_rehearsal: bool,
) -> Result<DepartedRows, Fault> {
    let projection = wiring.projection(store)?;
    let targets: Vec<_> = wiring.derived(store)?.into_iter().map(Arc::new).collect();
    let unlisted = Mutex::new(BTreeSet::new());
    let at_first = listed(wiring, asked, &unlisted).await?;
    let known = async || {
        if asked.is_empty() {
            return Ok(at_first.clone());
        }
        listed(wiring, asked, &unlisted).await
    };
    let others = AtomicU64::new(0);
    let is_meant = |row: &ForeignRow| {
        let is_meant = row.owner.is_some_and(|owner| shards.contains(&owner));
        others.fetch_add(u64::from(!is_meant), Ordering::Relaxed);
        is_meant
    };
    let removing = reconcile::remove_foreign((projection, &targets), known, is_meant, is_rehearsal, |_| ());
    let Removed { found, removed } = removing.await?;
    let unlisted = unlisted.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(DepartedRows { found, removed, others: others.load(Ordering::Relaxed), unlisted })
}

/// Returns the shards of all tables that sources list; those of `asked` must answer. Others that do not are noted in
/// `unlisted`.
async fn listed(
    wiring: &Wiring,
    asked: &[String],
    unlisted: &Mutex<BTreeSet<String>>,
) -> Result<BTreeSet<ShardId>, Fault> {
    let mut shards = BTreeSet::new();
    for source in &wiring.config().sources {
        let connector = wiring.source_connector(&source.name)?;
        match connector.tables().await {
            Ok(tables) => shards.extend(tables.into_iter().map(|table| table.shard)),
            Err(fault) if asked.contains(&source.name) => return Err(fault),
            Err(fault) => {
                tracing::warn!(source = source.name, %fault, "its tables are not known, so its rows are read too");
                unlisted.lock().unwrap_or_else(PoisonError::into_inner).insert(source.name.clone());
            }
        }
    }
    Ok(shards)
}

/// Returns the names of a source's tables in its newest reports of reconciliations, `reports` at most; none where there
/// is no history.
pub async fn reported_tables(
    wiring: &Wiring,
    source: &str,
    reports: usize,
) -> Result<BTreeSet<(String, String)>, Fault> {
    let Ok(history) = wiring.history() else { return Ok(BTreeSet::new()) };
    let newest = history.newest(reports).await?;
    let reports = newest.iter().filter_map(|reconciliation| parsed(&reconciliation.report));
    let tables = reports.flat_map(|mut report| {
        [report.tables.remove(source), report.uncaptured.remove(source)].into_iter().flatten()
    });
    Ok(tables.flat_map(BTreeMap::into_values).flatten().collect())
}

/// Returns the shards of all tables that sources have now.
async fn present(
    wiring: &Wiring,
    store: &str,
    sources: &BTreeMap<String, Arc<Source>>,
    may_be_empty: bool,
) -> Result<BTreeSet<ShardId>, Fault> {
    let (mut shards, entity) = (BTreeSet::new(), wiring.projection(store)?.entity());
    for (name, source) in sources {
        let tables = again(|| source.tables()).await?;
        let is_captured = wiring.source_config(name)?.entities.contains(&entity);
        if !may_be_empty && is_captured && !tables.iter().any(|table| table.entity == entity) {
            let found =
                format!("it shows no table of {}: all derived rows of it would be removed", entity.name());
            return Err(Fault::new(Code::ReconcileRefused, format!("source {name}"), found).needs(
                "patterns and grants that show its tables; if it really has none, --shard for each shard id",
            ));
        }
        shards.extend(tables.into_iter().map(|table| table.shard));
    }
    Ok(shards)
}

/// Returns the shards of tables that a reconciliation has known and that may not be read; and, if `with_uncaptured`, of
/// those that no pattern captures any more.
async fn known_still(
    wiring: &Wiring,
    sources: &BTreeMap<String, Arc<Source>>,
    before: &KnownTables,
    with_uncaptured: bool,
) -> Result<BTreeSet<ShardId>, Fault> {
    let every = before.shown.values().chain(before.uncaptured.values());
    let asked = every.flat_map(|of_source| of_source.keys().copied()).collect();
    let (known, _) = reconcile::find_hidden_tables(sources, before, &asked).await;
    let mut shards = shards_of(wiring, known.shown)?;
    if with_uncaptured {
        shards.append(&mut shards_of(wiring, known.uncaptured)?);
    }
    Ok(shards)
}

/// Returns the shards of tables of an entity that the last reconciliation knew, that sources have, and that no pattern
/// captures any more.
pub(super) async fn uncaptured(wiring: &Wiring, entity: Entity) -> Result<BTreeSet<ShardId>, Fault> {
    let before = again(|| known_before(wiring)).await?;
    let names = wiring.config().sources.iter().map(|source| &source.name);
    let sources = names.map(|name| Ok((name.clone(), wiring.source_connector(name)?)));
    let sources: BTreeMap<String, Arc<Source>> = sources.collect::<Result<_, Fault>>()?;
    let (mut known, _) = reconcile::find_hidden_tables(&sources, &before, &[entity].into()).await;
    known.uncaptured.values_mut().for_each(|of_source| of_source.retain(|of, _| *of == entity));
    shards_of(wiring, known.uncaptured)
}

fn shards_of(wiring: &Wiring, tables: VisibleTables) -> Result<BTreeSet<ShardId>, Fault> {
    let mut shards = BTreeSet::new();
    for (source, tables) in tables {
        let generation = wiring.source_config(&source)?.generation;
        let tables = tables.into_values().flatten();
        shards.extend(tables.map(|(database, table)| ShardId::of(&source, &database, &table, generation)));
    }
    Ok(shards)
}

/// Returns the tables that the last reconciliation knew; none where there is no history.
async fn known_before(wiring: &Wiring) -> Result<KnownTables, Fault> {
    let Ok(history) = wiring.history() else { return Ok(KnownTables::default()) };
    let last = history.newest(1).await?.into_iter().next();
    let report = last.and_then(|reconciliation| parsed(&reconciliation.report));
    Ok(report.map(ReconciliationReport::into_known_tables).unwrap_or_default())
}
