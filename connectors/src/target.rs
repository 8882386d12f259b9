//! A configured target: the same for each kind of store, which brings its settings and its lanes.

use std::sync::Arc;

use anabranch_pipeline::config::{Config, TargetConfig, TargetStore};
use anabranch_pipeline::projections::{Assignment, Assignments};
use anabranch_pipeline::records::LaneId;

/// One configured target. Cheap to clone.
#[derive(Debug)]
pub struct Target<S>(pub(crate) Arc<S>);

/// The settings of a target, by its kind of store.
pub trait Settings: Sized {
    const STORE: TargetStore;
    type Lane;

    /// Makes the settings of a target of this kind.
    fn new(config: &Config, target: &TargetConfig) -> Self;

    fn name(&self) -> &str;

    /// Returns the projections that have tables on the target.
    fn assignments(&self) -> &Assignments;

    /// Makes the store of a lane, not connected yet.
    fn lane(target: &Target<Self>, assignment: &Arc<Assignment>, id: &LaneId) -> Self::Lane;
}

impl<S> Clone for Target<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Settings> Target<S> {
    /// Makes the target of that name; `None` if the configuration has no such target of this kind of store.
    pub fn new(config: &Config, name: &str) -> Option<Self> {
        let target = config.target(name).filter(|target| target.store == S::STORE)?;
        Some(Self(Arc::new(S::new(config, target))))
    }

    /// Returns all targets of a configuration with this kind of store.
    pub fn all(config: &Config) -> Vec<Self> {
        config.targets.iter().filter_map(|target| Self::new(config, &target.name)).collect()
    }

    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Returns every lane of this target: projections × sources × lanes.
    pub fn lane_ids(&self) -> Vec<LaneId> {
        self.0.assignments().lane_ids()
    }

    /// Makes the store of one lane; `None` when this target has no such lane. It does not connect yet.
    pub fn lane(&self, id: &LaneId) -> Option<S::Lane> {
        let assignment = self.0.assignments().of_lane(id)?;
        Some(S::lane(self, assignment, id))
    }
}
