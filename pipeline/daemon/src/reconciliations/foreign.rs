//! Removes derived rows that belong to no table of any source, on the word of a person.
//!
//! Every source must list its tables, each time it is asked. A table that the last reconciliation knew and that may not
//! be read any more still counts: it is asked for by name, as a reconciliation does it. A source that shows no table of
//! the rows' kind has more likely lost a grant than all its tables.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{ForeignRow, History, RowSource};
use anabranch_pipeline::reconcile::{
    self, Foreign, Removed, VisibleTables, hash_foreign, shard_text, table_text,
};
use anabranch_pipeline::retry::again;
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
        Ok(&present | &hidden(wiring, &sources, &before).await?)
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

/// Returns the shards of tables that a reconciliation has known and that may not be read.
async fn hidden(
    wiring: &Wiring,
    sources: &BTreeMap<String, Arc<Source>>,
    before: &VisibleTables,
) -> Result<BTreeSet<ShardId>, Fault> {
    let asked = before.values().flat_map(|of_source| of_source.keys().copied()).collect();
    let (known, _) = reconcile::find_hidden_tables(sources, before, &asked).await;
    let mut shards = BTreeSet::new();
    for (source, tables) in known {
        let generation = wiring.source_config(&source)?.generation;
        let tables = tables.into_values().flatten();
        shards.extend(tables.map(|(database, table)| ShardId::of(&source, &database, &table, generation)));
    }
    Ok(shards)
}

/// Returns the tables that the last reconciliation knew; none where there is no history.
async fn known_before(wiring: &Wiring) -> Result<VisibleTables, Fault> {
    let Ok(history) = wiring.history() else { return Ok(VisibleTables::new()) };
    let last = history.newest(1).await?.into_iter().next();
    Ok(last
        .and_then(|reconciliation| parsed(&reconciliation.report))
        .map_or_else(VisibleTables::new, |report| report.tables))
}
