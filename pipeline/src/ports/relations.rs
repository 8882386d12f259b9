//! The port of the relation index of payment documents.

use std::future::Future;

use anabranch_schemas::flux::id::FluxId;

use crate::error::Fault;
use crate::records::RelationRow;

/// Rows of the relation index: by identifier, and by the parent's identifier.
pub trait RelationStore: Send + Sync {
    /// Returns all rows of these documents in the order of [`RelationRow::order`], from the table of each document's
    /// own partition. A document that no source table has is left out.
    fn documents(&self, ids: &[FluxId]) -> impl Future<Output = Result<Vec<RelationRow>, Fault>> + Send;

    /// Returns the rows whose parent is one of these documents, in the order of [`RelationRow::order`], from the tables
    /// of the parents' partitions: the first `limit` of all. The parents themselves may be missing.
    fn children(
        &self,
        parents: &[FluxId],
        limit: usize,
    ) -> impl Future<Output = Result<Vec<RelationRow>, Fault>> + Send;
}
