//! The search documents of a projection, as searches ask for them.

use std::time::Duration;

use anabranch_connectors::search::SearchTarget;
use anabranch_pipeline::error::Fault;

use super::{DocumentQuery, PageEnd, SearchPage};

/// The search documents of a projection. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Documents {
    pub projection: String,
    pub target: SearchTarget,
    /// Age from which the daemon removes tombstones; `None` = operators remove them.
    pub tombstones_kept: Option<Duration>,
    pub(super) index: String,
}

impl Documents {
    /// Searches as [`SearchTarget::find`] does.
    pub async fn find(
        &self,
        question: &DocumentQuery,
        after: Option<&PageEnd>,
        limit: usize,
    ) -> Result<SearchPage, Fault> {
        self.target.find(&self.index, question, after, limit).await
    }
}
