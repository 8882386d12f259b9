//! Which projections have tables on a target, and which lanes serve them there.

use super::{ProjectedTable, Projection};
use crate::config::{Config, ProjectionConfig};
use crate::deliver::LaneId;

/// A projection that has tables on one target.
#[derive(Debug, Clone)]
pub struct Assignment {
    /// The projection's name.
    pub name: String,
    pub projection: Projection,
    /// Place of the target among the projection's targets.
    pub target: u32,
    pub lanes: u32,
    /// Sources that capture the projection's entity.
    pub sources: Vec<String>,
    /// There is a cache of its tables.
    pub is_cached: bool,
}

impl Assignment {
    /// Those of the target of that name.
    pub fn all(config: &Config, target: &str) -> Vec<Self> {
        let here = |name: &String| name == target;
        let places = config
            .projections
            .iter()
            .filter_map(|projection| Some((projection, projection.targets.iter().position(here)?)));
        let assignment = |(config_of, place): (&ProjectionConfig, usize)| {
            let kind = Projection::new(config_of);
            let captures = |entities: &[_]| entities.contains(&kind.entity());
            let sources = config.sources.iter().filter(|source| captures(&source.entities));
            Self {
                name: config_of.name.clone(),
                target: place as u32,
                lanes: config_of.lanes.get(),
                sources: sources.map(|source| source.name.clone()).collect(),
                is_cached: config.caches.iter().any(|cache| cache.projection == config_of.name),
                projection: kind,
            }
        };
        places.map(assignment).collect()
    }

    /// Its tables on the target.
    pub fn tables(&self) -> impl Iterator<Item = &ProjectedTable> {
        self.projection.target_tables(self.target).map(|(_, table)| table)
    }

    /// Indexes of the tables that one lane owns, in the projection's list.
    pub fn owned_by(&self, lane: u32) -> Vec<u32> {
        let tables = self.projection.target_tables(self.target);
        tables.filter(|(_, table)| table.lane == lane).map(|(index, _)| index).collect()
    }

    /// The name of its first table: of documents, the alias of their one index.
    pub fn alias(&self) -> &str {
        self.tables().next().map_or("", |table| &table.derived.table)
    }

    /// What progress on the target was made for.
    pub fn fingerprint(&self) -> String {
        self.projection.fingerprint(self.target)
    }

    /// Whether a lane of its projection is one of its own.
    pub fn has_lane(&self, id: &LaneId) -> bool {
        id.projection == self.name && id.lane < self.lanes && self.sources.contains(&id.source)
    }

    /// Its lanes on the target of that name: sources × lanes.
    pub fn lane_ids(&self, target: &str) -> Vec<LaneId> {
        let of_source = |source: &String| {
            let lane = |lane| LaneId {
                projection: self.name.clone(),
                target: target.to_owned(),
                source: source.clone(),
                lane,
            };
            (0..self.lanes).map(lane).collect::<Vec<_>>()
        };
        self.sources.iter().flat_map(of_source).collect()
    }
}
