//! The projections that have tables on a target, and the lanes that serve them there.

use std::sync::Arc;

use super::{ProjectedTable, Projection};
use crate::config::{Config, ProjectionConfig};
use crate::records::LaneId;

/// A projection that has tables on one target.
#[derive(Debug, Clone)]
pub struct Assignment {
    /// The projection's name.
    pub name: String,
    pub projection: Projection,
    /// Index of the target among the projection's targets.
    pub target: u32,
    pub lanes: u32,
    /// Sources that capture the projection's entity.
    pub sources: Vec<String>,
    /// Whether there is a cache of its tables.
    pub is_cached: bool,
}

/// All projections that have tables on one target; none by default.
#[derive(Debug, Clone, Default)]
pub struct Assignments {
    target: String,
    all: Vec<Arc<Assignment>>,
}

impl Assignments {
    /// Returns the assignments of the target with that name.
    pub fn of(config: &Config, target: &str) -> Self {
        let here = |name: &String| name == target;
        let places = config
            .projections
            .iter()
            .filter_map(|projection| Some((projection, projection.targets.iter().position(here)?)));
        let assignment = |(config_of, place): (&ProjectionConfig, usize)| {
            let kind = Projection::new(config_of);
            let captures = |entities: &[_]| entities.contains(&kind.entity());
            let sources = config.sources.iter().filter(|source| captures(&source.entities));
            Assignment {
                name: config_of.name.clone(),
                target: place as u32,
                lanes: config_of.lanes.get(),
                sources: sources.map(|source| source.name.clone()).collect(),
                is_cached: config.caches.iter().any(|cache| cache.projection == config_of.name),
                projection: kind,
            }
        };
        Self { target: target.to_owned(), all: places.map(assignment).map(Arc::new).collect() }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Assignment>> {
        self.all.iter()
    }

    pub fn of_projection(&self, name: &str) -> Option<&Arc<Assignment>> {
        self.all.iter().find(|assignment| assignment.name == name)
    }

    /// Returns the assignment that has the lane; `None` when the target has no such lane.
    pub fn of_lane(&self, id: &LaneId) -> Option<&Arc<Assignment>> {
        let known = self.of_projection(&id.projection)?;
        (id.target == self.target && known.has_lane(id)).then_some(known)
    }

    /// Returns every lane of the target: projections × sources × lanes.
    pub fn lane_ids(&self) -> Vec<LaneId> {
        self.all.iter().flat_map(|assignment| assignment.lane_ids(&self.target)).collect()
    }
}

impl Assignment {
    /// Returns the projection's tables on the target.
    pub fn tables(&self) -> impl Iterator<Item = &ProjectedTable> {
        self.projection.target_tables(self.target).map(|(_, table)| table)
    }

    /// Returns the indexes of the tables that one lane owns, in the projection's list.
    pub fn owned_by(&self, lane: u32) -> Vec<u32> {
        let tables = self.projection.target_tables(self.target);
        tables.filter(|(_, table)| table.lane == lane).map(|(index, _)| index).collect()
    }

    /// Returns the name of the first table; for documents it is the alias of their one index.
    pub fn alias(&self) -> &str {
        self.tables().next().map_or("", |table| &table.derived.table)
    }

    /// Returns the text that ties progress on the target to its tables; see [`Projection::fingerprint`].
    pub fn fingerprint(&self) -> String {
        self.projection.fingerprint(self.target)
    }

    /// Returns whether the lane is one of this projection's lanes.
    fn has_lane(&self, id: &LaneId) -> bool {
        id.projection == self.name && id.lane < self.lanes && self.sources.contains(&id.source)
    }

    /// Returns the projection's lanes on the target with that name: sources × lanes.
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
