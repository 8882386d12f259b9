//! The relation index of payment documents, on the MySQL targets of its projection.

use std::sync::Arc;

pub use anabranch_connectors::mysql::store::MysqlRelations as RelationIndex;
use anabranch_pipeline::config::ProjectionConfig;
use anabranch_pipeline::records::FluxPlaces;

use super::Wiring;

impl Wiring {
    /// Returns the projection whose tables answer which payment documents belong together, and the places of documents:
    /// the first of its kind.
    pub fn relations_projection(&self) -> Option<(&str, &Arc<FluxPlaces>)> {
        self.config()
            .projections
            .iter()
            .find_map(|known| Some((known.name.as_str(), &known.kind.relations()?.places)))
    }

    /// Returns the projections whose rows may outlive their source table.
    pub fn retaining_projections(&self) -> impl Iterator<Item = &str> {
        let config = self.config();
        let retains = move |known: &&ProjectionConfig| {
            self.projection(&known.name).is_ok_and(|projection| config.retains(projection.entity()))
        };
        config.projections.iter().filter(retains).map(|known| known.name.as_str())
    }

    /// Returns a reader of a projection's relation tables, with so many `connections` to each target.
    pub fn relation_index(&self, projection: &str, connections: usize) -> Option<RelationIndex> {
        RelationIndex::new(self.config(), projection, connections)
    }
}
