//! Proves derived stores equal to their sources.
//!
//! This is independent of the product: it shares no code with reader, projector or target, only the documented rules.
//! Each kind of store is a [`Layer`]; a [`Verification`] compares one with its sources.

mod birthdays;
mod cache;
mod celebrating;
mod compare;
mod comparison;
mod documents;
mod drain;
mod mapping;
mod relations;
mod scratch;
mod sources;
mod spot;
mod tables;

use std::collections::BTreeMap;

pub use self::birthdays::{BirthdayLayer, DerivedLayout};
pub use self::cache::CacheLayer;
pub(crate) use self::cache::{CachedClaim, encode as encode_cached, expected as expected_in_cache};
pub use self::comparison::{Comparison, Differences, Example};
pub use self::documents::DocumentLayer;
pub use self::drain::{Drained, drain, drain_and_compare};
pub use self::mapping::MappingLayer;
pub use self::relations::RelationLayer;
pub use self::spot::SpotCheck;
pub(crate) use self::tables::{Column, DerivedTables, literals, shard_id_sql};
use crate::error::Result;
use crate::topology::{SourceTable, Topology};

/// Tables that one statement reads.
pub(crate) const UNION_TABLES: usize = 61;

/// A progress row: source, lane, lanes, position, revision, and whether the lane reads tables beside the feed.
type ProgressRow = (String, u32, u32, u64, u64, bool);

/// A kind of derived store, with its address.
#[derive(Debug, Clone)]
pub enum Layer {
    Birthday(BirthdayLayer),
    Mapping(MappingLayer),
    Cache(CacheLayer),
    Documents(DocumentLayer),
    Relations(RelationLayer),
}

/// A derived layer and its sources. Several layers may have the same sources.
#[derive(Debug, Clone)]
pub struct Verification {
    pub topology: Topology,
    pub layer: Layer,
}

/// Returns the topology of each entity of these audits once.
pub fn topologies(audits: &[Verification]) -> Vec<&Topology> {
    let mut topologies: Vec<&Topology> = Vec::new();
    for audit in audits {
        if topologies.iter().all(|known| known.entity != audit.topology.entity) {
            topologies.push(&audit.topology);
        }
    }
    topologies
}

impl Verification {
    /// Returns the layer's name for people: that of its projection in the demo's configuration, or `cache`.
    pub fn name(&self) -> &'static str {
        match self.layer {
            Layer::Birthday(ref layer) => layer.name(),
            Layer::Mapping(_) => "mapping",
            Layer::Cache(_) => "cache",
            Layer::Documents(_) => "documents",
            Layer::Relations(_) => "relations",
        }
    }

    /// Returns the plural noun for the layer's content.
    pub fn noun(&self) -> &'static str {
        match self.layer {
            Layer::Birthday(_) | Layer::Mapping(_) | Layer::Relations(_) => "rows",
            Layer::Cache(_) => "keys",
            Layer::Documents(_) => "documents",
        }
    }

    /// Compares every derived row with the sources. Both sides must not change meanwhile.
    pub async fn compare(&self) -> Result<Comparison> {
        match &self.layer {
            Layer::Birthday(layer) => {
                compare::compare(&self.topology, layer, drain::lanes(self).await?).await
            }
            Layer::Mapping(layer) => compare::compare(&self.topology, layer, drain::lanes(self).await?).await,
            Layer::Cache(layer) => cache::compare(&self.topology, layer).await,
            Layer::Documents(layer) => documents::compare(&self.topology, layer).await,
            Layer::Relations(layer) => relations::compare(&self.topology, layer).await,
        }
    }

    /// Checks one source table while everything runs; `None` for a layer that is no SQL table.
    pub async fn spot_check(&self, source_table: SourceTable) -> Result<Option<SpotCheck>> {
        match &self.layer {
            Layer::Birthday(layer) => spot::spot_check(&self.topology, layer, source_table).await.map(Some),
            Layer::Mapping(layer) => spot::spot_check(&self.topology, layer, source_table).await.map(Some),
            Layer::Relations(layer) => spot::spot_check(&self.topology, layer, source_table).await.map(Some),
            Layer::Cache(_) | Layer::Documents(_) => Ok(None),
        }
    }

    /// Counts the present rows of each derived database, index or cache.
    pub async fn count_rows(&self) -> Result<BTreeMap<String, u64>> {
        match &self.layer {
            Layer::Birthday(layer) => tables::count_rows(layer).await,
            Layer::Mapping(layer) => tables::count_rows(layer).await,
            Layer::Relations(layer) => tables::count_rows(layer).await,
            Layer::Cache(layer) => {
                Ok(BTreeMap::from([(layer.server.name.clone(), cache::count(layer).await?)]))
            }
            Layer::Documents(layer) => {
                Ok(BTreeMap::from([(layer.index.clone(), documents::count(layer).await?)]))
            }
        }
    }
}
