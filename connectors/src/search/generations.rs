//! Which indexes a projection has: the one that serves, and the one that is built beside it.

use anabranch_pipeline::projections::Assignment;
use anabranch_schemas::search::index_of;

/// The indexes of a projection's documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generations {
    /// The one that is searched.
    pub serving: String,
    /// The one that a rebuild fills beside it.
    pub building: Option<String>,
}

impl Generations {
    /// From what was noted, the one that serves first.
    pub(super) fn of(assignment: &Assignment, noted: Vec<String>) -> Self {
        let mut noted = noted.into_iter();
        let serving = noted.next().unwrap_or_else(|| index_of(assignment.alias()));
        Self { serving, building: noted.next() }
    }
}
