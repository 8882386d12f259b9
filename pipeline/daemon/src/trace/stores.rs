//! The derived rows of a key on each target, and how they differ from the rows that the source claims.
//!
//! Rows are sought for every known shard in every derived table, as a reconciliation seeks the rows of a candidate.
//! Rows of a shard that belongs to no known table are not found: `reconcile remove-foreign --dry-run` lists those.

use std::collections::{BTreeMap, BTreeSet};

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::{DerivedRowQuery, DerivedRows};
use anabranch_pipeline::reconcile::SourceTable;
use anabranch_pipeline::records::{Cell, LaneId};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use futures::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::question::{TracedEntity, TracedProjection};
use super::source_rows::{RowAddress, Rows, SourceObservation, owned};
use super::view::{DocumentView, StoreView, StoredRowView};
use crate::wiring::DerivedStore;

/// Rows that are sought at once: the memory of a trace does not depend on the number of tables.
const QUERY_ROWS: usize = 1_000;

/// The kind of difference between a derived row and the source. A store with several kinds gets the verdict of the last
/// one in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DifferenceKind {
    /// A stored row that no source row claims.
    LeftOver,
    /// A stored row with other values than the source row claims.
    Stale,
    /// A claimed row that the store lacks.
    Missing,
}

impl DifferenceKind {
    pub(super) fn verdict(self) -> &'static str {
        match self {
            Self::LeftOver => "left over",
            Self::Stale => "stale",
            Self::Missing => "missing",
        }
    }
}

/// One derived row that is left over, stale or missing.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Difference {
    pub(super) kind: DifferenceKind,
    /// Name of the derived table.
    pub(super) derived: String,
    /// The lane that owns the row.
    pub(super) lane: LaneId,
    /// The source table of the row's shard, as `database.table`.
    pub(super) source_table: String,
}

/// The derived rows of the traced keys in one target, or the reason why the target could not be read.
pub(super) struct StoreObservation<'w> {
    /// Index into the traced projections.
    projection_index: usize,
    traced: &'w TracedProjection<'w>,
    pub(super) target: &'w str,
    /// Index into the targets of the projection.
    target_index: u32,
    /// The target is a search server: its derived rows are documents.
    is_documents: bool,
    pub(super) found: Result<FoundRows, String>,
}

/// Derived rows and their versions.
#[derive(Debug, Default)]
pub(super) struct FoundRows {
    pub(super) rows: Rows,
    versions: BTreeMap<RowAddress, Lsn>,
}

/// Reads the derived rows of the keys from every target of every traced projection.
pub(super) async fn read<'w>(
    traced: &'w TracedEntity<'w>,
    keys: &BTreeSet<Cell>,
    tables: &BTreeMap<ShardId, SourceTable>,
    until: Instant,
) -> Vec<StoreObservation<'w>> {
    let mut reads = Vec::new();
    for (projection_index, of_projection) in traced.projections.iter().enumerate() {
        // The configuration has the projection and its targets, so this cannot fail.
        let stores = traced.wiring.derived(of_projection.name).unwrap_or_default();
        for (target_index, (store, target)) in (0u32..).zip(stores.into_iter().zip(of_projection.targets)) {
            reads.push(of_target(
                store,
                (of_projection, projection_index),
                (target.as_str(), target_index),
                keys,
                tables,
                until,
            ));
        }
    }
    join_all(reads).await
}

async fn of_target<'w>(
    store: DerivedStore,
    (traced, projection_index): (&'w TracedProjection<'w>, usize),
    (target, target_index): (&'w str, u32),
    keys: &BTreeSet<Cell>,
    tables: &BTreeMap<ShardId, SourceTable>,
    until: Instant,
) -> StoreObservation<'w> {
    let queries = row_queries(traced, target_index, keys, tables);
    let found = match timeout_at(until, read_rows(&store, queries)).await {
        Ok(read) => read.map_err(|fault| fault.to_string()),
        Err(_) => Err("it was not read in time".to_owned()),
    };
    let is_documents = matches!(store, DerivedStore::Search(_));
    StoreObservation { projection_index, traced, target, target_index, is_documents, found }
}

/// Yields one query for each derived table of a target, key and shard: a derived row could be there.
fn row_queries<'k>(
    traced: &'k TracedProjection<'_>,
    target_index: u32,
    keys: &'k BTreeSet<Cell>,
    tables: &'k BTreeMap<ShardId, SourceTable>,
) -> impl Iterator<Item = DerivedRowQuery> + Send {
    let projection = traced.projection.clone();
    let derived: Vec<u32> = projection.target_tables(target_index).map(|(table, _)| table).collect();
    let mut pairs = Vec::new();
    for table in derived {
        for key in keys {
            // Some projections have the rows of a key in one table only.
            let only = match key {
                Cell::Bytes(bytes) => projection.table_of_source_key(bytes),
                _ => None,
            };
            if only.is_none_or(|only| only == table) {
                pairs.push((table, key));
            }
        }
    }
    pairs.into_iter().flat_map(move |(table, key)| {
        tables.keys().map(move |shard| DerivedRowQuery { table, shard: *shard, key: key.clone() })
    })
}

async fn read_rows(
    store: &DerivedStore,
    mut queries: impl Iterator<Item = DerivedRowQuery> + Send,
) -> Result<FoundRows, Fault> {
    let mut found = FoundRows::default();
    loop {
        let some: Vec<DerivedRowQuery> = queries.by_ref().take(QUERY_ROWS).collect();
        if some.is_empty() {
            return Ok(found);
        }
        let before = found.rows.len();
        store.rows(&some, &mut |row| _ = found.rows.insert(RowAddress::of(&row), owned(row.values))).await?;
        if found.rows.len() > before {
            store
                .versions(&some, &mut |row, version| {
                    found.versions.insert(RowAddress::of(&row), version);
                })
                .await?;
        }
    }
}

impl StoreObservation<'_> {
    /// Returns the store's name as `projection/target`.
    pub(super) fn name(&self) -> String {
        format!("{}/{}", self.traced.name, self.target)
    }

    /// Returns the rows that the source claims here.
    pub(super) fn expected(&self, sources: &SourceObservation) -> Rows {
        let mut rows = sources.claimed(self.projection_index);
        rows.retain(|address, _| {
            self.traced.projection.tables()[address.table as usize].target == self.target_index
        });
        rows
    }

    /// Returns all differences; none while the store could not be read. Rows of source tables that could not be read
    /// are left out.
    pub(super) fn differences(&self, sources: &SourceObservation) -> Vec<Difference> {
        let Ok(found) = &self.found else { return Vec::new() };
        let mut differences = Vec::new();
        let mut differs = |address: &RowAddress, kind| {
            differences.extend(self.difference(address, kind, sources));
        };
        let expected = self.expected(sources);
        for (address, values) in &expected {
            match found.rows.get(address) {
                None => differs(address, DifferenceKind::Missing),
                Some(stored) if stored != values => differs(address, DifferenceKind::Stale),
                Some(_) => {}
            }
        }
        let left_over = found.rows.keys().filter(|address| !expected.contains_key(*address));
        left_over
            .filter(|address| !sources.unread_shards.contains(&address.shard))
            .for_each(|address| differs(address, DifferenceKind::LeftOver));
        differences
    }

    fn difference(
        &self,
        address: &RowAddress,
        kind: DifferenceKind,
        sources: &SourceObservation,
    ) -> Option<Difference> {
        let table = sources.tables.get(&address.shard)?;
        let lane = LaneId {
            projection: self.traced.name.to_owned(),
            target: self.target.to_owned(),
            source: table.source.clone(),
            lane: self.traced.projection.lane_of(address.table),
        };
        Some(Difference { kind, derived: self.table_name(address), lane, source_table: table.name() })
    }

    fn table_name(&self, address: &RowAddress) -> String {
        table_name(self.traced, address.table)
    }

    /// Returns the view; `why` is the reason of the verdict, if it is not `equal`.
    pub(super) fn view(&self, sources: &SourceObservation, why: &str) -> StoreView {
        let differences = self.differences(sources);
        let gravest = differences.iter().map(|difference| difference.kind).max();
        let (verdict, why) = match (&self.found, gravest) {
            (Err(unread), _) => ("unread", Some(unread.clone())),
            (Ok(_), Some(kind)) => (kind.verdict(), Some(why.to_owned())),
            (Ok(_), None) => ("equal", None),
        };
        let expected = self.expected(sources);
        let row = |address: &RowAddress, found: &FoundRows| StoredRowView {
            table: self.table_name(address),
            source_table: sources
                .tables
                .get(&address.shard)
                .map_or_else(String::new, |table| format!("{}: {}", table.source, table.name())),
            position: found.versions.get(address).map(Lsn::to_string),
            is_claimed: (!sources.unread_shards.contains(&address.shard))
                .then(|| expected.contains_key(address)),
        };
        let rows = match &self.found {
            Ok(found) => found.rows.keys().map(|address| row(address, found)).collect(),
            Err(_) => Vec::new(),
        };
        let (projection, target) = (self.traced.name.to_owned(), self.target.to_owned());
        StoreView { projection, target, rows, verdict, why }
    }

    /// Returns the documents of an index, found or missing; none for a store of tables.
    pub(super) fn documents(&self, sources: &SourceObservation) -> Vec<DocumentView> {
        if !self.is_documents {
            return Vec::new();
        }
        let expected = self.expected(sources);
        let nothing = FoundRows::default();
        let found = self.found.as_ref().unwrap_or(&nothing);
        let addresses: BTreeSet<&RowAddress> = expected.keys().chain(found.rows.keys()).collect();
        let document = |address: &RowAddress| DocumentView {
            projection: self.traced.name.to_owned(),
            id: document_id(address),
            position: found.versions.get(address).map(Lsn::to_string),
            verdict: match (&self.found, expected.get(address), found.rows.get(address)) {
                (Err(_), _, _) => "unread",
                (Ok(_), Some(_), None) => DifferenceKind::Missing.verdict(),
                (Ok(_), Some(wanted), Some(stored)) if wanted != stored => DifferenceKind::Stale.verdict(),
                (Ok(_), None, _) if sources.unread_shards.contains(&address.shard) => "unread",
                (Ok(_), None, _) => DifferenceKind::LeftOver.verdict(),
                (Ok(_), Some(_), Some(_)) => "equal",
            },
        };
        addresses.into_iter().map(document).collect()
    }
}

/// Returns the name of a derived table; an index has no database.
pub(super) fn table_name(traced: &TracedProjection<'_>, table: u32) -> String {
    let derived = &traced.projection.tables()[table as usize].derived;
    match derived.database.is_empty() {
        true => derived.table.clone(),
        false => format!("{}.{}", derived.database, derived.table),
    }
}

/// Returns the id that the lane gives a document.
fn document_id(address: &RowAddress) -> String {
    let key = address.key.iter().map(|cell| match cell {
        Cell::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Cell::UInt(number) => number.to_string(),
        Cell::Int(number) => number.to_string(),
        Cell::Null => String::new(),
    });
    format!("{}-{}", address.shard, key.collect::<Vec<_>>().join("-"))
}
