//! The record of a past reconciliation: a link in the chain of the history.

use serde::{Deserialize, Serialize};

/// How a reconciliation or one store of it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Every row was read, and both sides are equal.
    Clean,
    /// Every row was read; wrong rows were repaired and read back.
    Repaired,
    /// Something could not be read or decided.
    Incomplete,
    /// Something is wrong and stays so.
    Failed,
}

impl Outcome {
    pub const ALL: [Self; 4] = [Self::Clean, Self::Repaired, Self::Incomplete, Self::Failed];

    pub fn name(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Repaired => "repaired",
            Self::Incomplete => "incomplete",
            Self::Failed => "failed",
        }
    }
}

/// A reconciliation as the history holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastReconciliation {
    /// Number in the history, from 1 without a gap.
    pub number: u64,
    pub id: String,
    /// Milliseconds since the Unix epoch.
    pub ended_at_ms: u64,
    pub verdict: Outcome,
    /// The report as JSON.
    pub report: String,
    /// Signature of the reconciliation before; empty for the first.
    pub previous: String,
    pub signature: String,
}
