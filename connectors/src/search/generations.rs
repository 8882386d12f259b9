//! The indexes of a projection: the one that serves, and the one that is built beside it.

use anabranch_pipeline::projections::Assignment;
use anabranch_schemas::search::index_of;

/// The indexes of a projection's documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generations {
    /// The index that searches read.
    pub serving: String,
    /// The index that a rebuild fills beside the serving one.
    pub building: Option<String>,
}

impl Generations {
    /// Takes the stored list of indexes, which begins with the serving one.
    pub(super) fn of(assignment: &Assignment, noted: Vec<String>) -> Self {
        let mut noted = noted.into_iter();
        let serving = noted.next().unwrap_or_else(|| index_of(assignment.alias()));
        Self { serving, building: noted.next() }
    }
}
