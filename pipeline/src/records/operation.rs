//! The record of an operation: what a person had a command or the live page change.
//!
//! An operation has two records with one id: one is written before the change begins, and one after its end.

/// The part of an operation that a record is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationPhase {
    Begun,
    Done,
    Failed,
}

impl OperationPhase {
    pub const ALL: [Self; 3] = [Self::Begun, Self::Done, Self::Failed];

    pub fn name(self) -> &'static str {
        match self {
            Self::Begun => "begun",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }
}

/// The way in which a person asked for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationWay {
    Command,
    /// The live page, or another client with an operator's token.
    Page,
}

impl OperationWay {
    pub const ALL: [Self; 2] = [Self::Command, Self::Page];

    pub fn name(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Page => "page",
        }
    }
}

/// One record of an operation. No field holds keys of rows or values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationRecord {
    /// Id of the operation: 16 hexadecimal digits.
    pub operation: String,
    pub phase: OperationPhase,
    /// Milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Account that ran the command, or name of the operator.
    pub who: String,
    pub way: OperationWay,
    /// Machine of the process that did it.
    pub host: String,
    pub version: String,
    pub command: String,
    /// State before the change; the record of the beginning has it.
    pub before: Option<String>,
    /// The change that was made, or the fault; the record of the end has it.
    pub after: Option<String>,
}

/// A record with its number in the order of all records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredOperation {
    pub number: u64,
    pub record: OperationRecord,
}
