//! The port to the records of operations.

use std::future::Future;

use crate::error::Fault;
use crate::records::{OperationRecord, StoredOperation};

/// Records of operations. A record never changes and is never removed.
pub trait Operations: Send + Sync {
    /// Adds a record; it is durable when the call returns. After an error it may be stored or not.
    fn append(&self, record: &OperationRecord) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Returns at most `limit` records, the newest first; with `before`, only records with lower numbers. Numbers rise
    /// in the order of appends that did not overlap, and may have gaps.
    fn newest(
        &self,
        before: Option<u64>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<StoredOperation>, Fault>> + Send;
}
