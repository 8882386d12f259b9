//! Records of operations as commands and HTTP show them.

use anabranch_pipeline::records::StoredOperation;
use serde::Serialize;

/// One record.
#[derive(Debug, Serialize)]
pub struct OperationView {
    pub number: u64,
    /// Id that both records of an operation have.
    pub operation: String,
    /// `begun`, `done` or `failed`.
    pub phase: &'static str,
    pub at_ms: u64,
    pub who: String,
    /// `command` or `page`.
    pub via: &'static str,
    pub host: String,
    pub version: String,
    pub command: String,
    pub before: Option<String>,
    pub after: Option<String>,
}

impl From<StoredOperation> for OperationView {
    fn from(StoredOperation { number, record }: StoredOperation) -> Self {
        Self {
            number,
            operation: record.operation,
            phase: record.phase.name(),
            at_ms: record.at_ms,
            who: record.who,
            via: record.way.name(),
            host: record.host,
            version: record.version,
            command: record.command,
            before: record.before,
            after: record.after,
        }
    }
}
