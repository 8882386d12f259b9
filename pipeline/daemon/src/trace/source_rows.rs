//! The source rows that have a key now, with the derived rows that they claim.
//!
//! Every captured table of the entity is asked on every source: a key may be in several tables while it is being moved.
//! The claims are those of the projection, as lanes and reconciliations use them. A table or source that cannot be read
//! is listed, and the others are read all the same.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use anabranch_pipeline::error::{Class, Code, Fault};
use anabranch_pipeline::ports::RowSource;
use anabranch_pipeline::projections::{Defects, LaneScope, key_of};
use anabranch_pipeline::reconcile::SourceTable;
use anabranch_pipeline::records::{Cell, CellRef, Chunk, Claimed, Flush};
use anabranch_schemas::change::{Action, Change, TableIdentity, Value};
use anabranch_schemas::codec;
use anabranch_schemas::envelope::ServerIdentity;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use futures::StreamExt;
use serde_json::{Map, Value as Json, json};
use tokio::time::{Instant, timeout_at};

use super::question::{TracedEntity, TracedProjection};
use super::view::UnreadView;
use crate::change_view::bytes_json;
use crate::wiring::Source;

/// Tables that one statement reads.
const TABLES_A_READ: usize = 100;
/// Sources that are read at the same time.
const SOURCES_AT_ONCE: usize = 8;

/// Address of a derived row in a projection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RowAddress {
    /// Index into the projection's derived tables.
    pub(super) table: u32,
    pub(super) shard: ShardId,
    pub(super) key: Box<[Cell]>,
}

impl RowAddress {
    pub(super) fn of(row: &Claimed<'_>) -> Self {
        Self { table: row.table, shard: row.shard, key: owned(row.key) }
    }
}

pub(super) fn owned(cells: &[CellRef<'_>]) -> Box<[Cell]> {
    cells.iter().copied().map(CellRef::to_owned).collect()
}

/// Derived rows with their values.
pub(super) type Rows = BTreeMap<RowAddress, Box<[Cell]>>;

/// A source row that has one of the keys.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SourceRow {
    pub(super) shard: ShardId,
    pub(super) key: Cell,
    /// Claimed rows, by the index of the traced projection.
    pub(super) claims: Vec<Rows>,
    /// Projections of which the row claims nothing, each with the reason.
    pub(super) excluded: Vec<(String, String)>,
    pub(super) fields: Map<String, Json>,
}

/// The rows of the keys on their sources.
#[derive(Debug, Default)]
pub(super) struct SourceObservation {
    pub(super) rows: Vec<SourceRow>,
    /// Every captured table of the entity.
    pub(super) tables: BTreeMap<ShardId, SourceTable>,
    pub(super) unread: Vec<UnreadView>,
    /// Tables among `tables` that could not be read.
    pub(super) unread_shards: BTreeSet<ShardId>,
    /// The position up to which each source was read, and the server that it belongs to.
    pub(super) places: BTreeMap<String, (Lsn, ServerIdentity)>,
}

impl SourceObservation {
    /// Returns all rows that are claimed of a projection, by its index.
    pub(super) fn claimed(&self, projection: usize) -> Rows {
        let of_projection = self.rows.iter().filter_map(|row| row.claims.get(projection));
        of_projection.flatten().map(|(address, values)| (address.clone(), values.clone())).collect()
    }

    fn add(&mut self, part: Self) {
        self.rows.extend(part.rows);
        self.tables.extend(part.tables);
        self.unread.extend(part.unread);
        self.unread_shards.extend(part.unread_shards);
        self.places.extend(part.places);
    }
}

/// Reads the rows of the keys from every source; positions are in the epoch that the lanes of the source have.
pub(super) async fn read(
    traced: &TracedEntity<'_>,
    keys: &BTreeSet<Cell>,
    epochs: &BTreeMap<String, u16>,
    until: Instant,
) -> SourceObservation {
    let reads: Vec<_> =
        traced.sources.iter().map(|name| of_source(traced, name, keys, epochs, until)).collect();
    let parts: Vec<SourceObservation> =
        futures::stream::iter(reads).buffered(SOURCES_AT_ONCE).collect().await;
    let mut observed = SourceObservation::default();
    parts.into_iter().for_each(|part| observed.add(part));
    observed
}

async fn of_source(
    traced: &TracedEntity<'_>,
    name: &str,
    keys: &BTreeSet<Cell>,
    epochs: &BTreeMap<String, u16>,
    until: Instant,
) -> SourceObservation {
    let mut observed = SourceObservation::default();
    let epoch = epochs.get(name).copied().unwrap_or(anabranch_schemas::lsn::FIRST_EPOCH);
    let mut reader = SourceReader { traced, name, keys, epoch, left: VecDeque::new() };
    let why = match timeout_at(until, reader.read(&mut observed)).await {
        Ok(Ok(())) => return observed,
        Ok(Err(fault)) => fault.to_string(),
        Err(_) if observed.tables.is_empty() => "it did not answer in time".to_owned(),
        Err(_) => "some of its tables were not read in time".to_owned(),
    };
    observed.unread.push(UnreadView { source: name.to_owned(), why });
    observed.unread_shards.extend(reader.left.iter().flatten().map(|table| table.shard));
    observed
}

struct SourceReader<'r, 'w> {
    traced: &'r TracedEntity<'w>,
    name: &'r str,
    keys: &'r BTreeSet<Cell>,
    epoch: u16,
    /// Tables that are still to be read, in the batches in which they are read.
    left: VecDeque<Vec<TableIdentity<'static>>>,
}

impl SourceReader<'_, '_> {
    async fn read(&mut self, observed: &mut SourceObservation) -> Result<(), Fault> {
        let traced = self.traced;
        let source = traced.wiring.source(self.name)?;
        let mut tables = RowSource::tables(source).await?;
        tables.retain(|table| table.entity == traced.entity);
        for identity in &tables {
            let table = SourceTable { source: self.name.to_owned(), identity: identity.clone() };
            observed.tables.insert(identity.shard, table);
        }
        self.left = tables.chunks(TABLES_A_READ).map(<[_]>::to_vec).collect();
        // The batch stays in the list until it is read: the caller may end the work.
        while let Some(batch) = self.left.front().cloned() {
            let read = self.read_batch(source, &batch).await;
            match read.and_then(|chunk| self.take(&chunk, observed)) {
                Ok(()) => _ = self.left.pop_front(),
                Err(fault) if fault.class() == Class::Transient => return Err(fault),
                // If one table of several fails, each is read alone, so that the others are read.
                Err(_) if batch.len() > 1 => {
                    self.left.pop_front();
                    self.left.extend(batch.into_iter().map(|table| vec![table]));
                }
                Err(fault) => {
                    self.left.pop_front();
                    observed.unread_shards.extend(batch.iter().map(|table| table.shard));
                    observed.unread.push(UnreadView { source: self.name.to_owned(), why: fault.to_string() });
                }
            }
        }
        Ok(())
    }

    async fn read_batch(&self, source: &Source, batch: &[TableIdentity<'static>]) -> Result<Chunk, Fault> {
        let keys: Vec<Cell> = self.keys.iter().cloned().collect();
        let sought: Vec<_> = batch.iter().map(|table| (table.clone(), keys.clone())).collect();
        match source.rows(&sought, self.epoch).await {
            // An idle connection may have been closed meanwhile, so a transient fault is retried once.
            Err(fault) if fault.class() == Class::Transient => source.rows(&sought, self.epoch).await,
            read => read,
        }
    }

    /// Adds the rows of a chunk that have one of the keys.
    fn take(&self, chunk: &Chunk, observed: &mut SourceObservation) -> Result<(), Fault> {
        let broken = |error| {
            Fault::new(Code::Internal, format!("source {}", self.name), "rows cannot be read")
                .caused_by(error)
        };
        let mut rows = Vec::new();
        let mut changes = codec::decode(&chunk.payload).map_err(broken)?;
        while let Some(change) = changes.next().map_err(broken)? {
            let Action::Insert { after } = &change.action else { continue };
            let key = key_of(self.traced.entity, after).filter(|key| self.keys.contains(key));
            if let Some(key) = key {
                rows.push(self.row(&change, after, key));
            }
        }
        observed.rows.extend(rows);
        let place = (chunk.high, chunk.server.clone());
        let known = observed.places.entry(self.name.to_owned()).or_insert_with(|| place.clone());
        if known.1 != place.1 {
            let subject = format!("source {}", self.name);
            return Err(Fault::new(Code::SourceUnreachable, subject, "another server took over"));
        }
        known.0 = known.0.max(place.0);
        Ok(())
    }

    fn row(&self, change: &Change<'_, '_>, row: &[Value<'_>], key: Cell) -> SourceRow {
        let mut found = SourceRow {
            shard: change.table.shard,
            key,
            claims: Vec::new(),
            excluded: Vec::new(),
            fields: fields(self.traced.entity.field_names(), row),
        };
        for traced in &self.traced.projections {
            let mut claims = Rows::new();
            traced.projection.claims(change.table, row, |claimed| {
                claims.insert(RowAddress::of(&claimed), owned(claimed.values));
            });
            if claims.is_empty() {
                found.excluded.push((traced.name.to_owned(), exclusion(traced, change)));
            }
            found.claims.push(claims);
        }
        found
    }
}

/// Returns why a row makes no derived row, as the metric of defects names it.
fn exclusion(traced: &TracedProjection<'_>, change: &Change<'_, '_>) -> String {
    let (mut flush, mut defects) = (Flush::default(), Defects::default());
    traced.projection.project(change, LaneScope::COUNTS_DEFECTS, &mut flush, &mut defects);
    let reasons: Vec<&str> = defects.iter().map(|(defect, _)| defect.reason()).collect();
    match reasons.is_empty() {
        true => "it has nothing that the projection derives".to_owned(),
        false => reasons.join(", "),
    }
}

/// Returns the captured fields of a row by their names.
fn fields(names: &[&str], row: &[Value<'_>]) -> Map<String, Json> {
    let named = names.iter().zip(row).map(|(name, value)| ((*name).to_owned(), plain(value)));
    named.collect()
}

/// Returns a value for people: dates as text.
fn plain(value: &Value<'_>) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Int(number) => json!(number),
        Value::UInt(number) => json!(number),
        Value::Double(number) => json!(number),
        Value::Bytes(bytes) => bytes_json(bytes),
        Value::Date { year, month, day } => json!(format!("{year:04}-{month:02}-{day:02}")),
        Value::DateTime { year, month, day, hour, minute, second, .. } => {
            json!(format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}"))
        }
        Value::Timestamp { microseconds } | Value::Time { microseconds } => json!(microseconds),
    }
}
