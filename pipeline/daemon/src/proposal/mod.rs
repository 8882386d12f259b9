//! A configuration that fits the servers: their tables of users or devices, the patterns and columns of these, and the
//! rule by which the application shares out rows.
//!
//! `families.rs`, `recognised.rs` and `placement.rs` decide, `text.rs` writes; none of them asks a server. Facts that
//! cannot be known become comments in the text.

pub mod families;
pub mod placement;
pub mod recognised;
mod text;

use anabranch_pipeline::config::ColumnNames;
use families::Family;
use placement::FoundRule;
use recognised::Recognised;

/// Names of the environment variables that hold the addresses of servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    pub log: String,
    pub target: String,
    /// CA certificate of every server; `None` = as the schemes say.
    pub ca_file: Option<String>,
}

/// A source as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundSource {
    pub name: String,
    pub variable: String,
    /// Kind and version of the server.
    pub server: String,
    /// Settings of its binlog, and their values.
    pub settings: Vec<(String, String)>,
}

/// A family of tables that can be captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposed {
    pub family: Family,
    pub recognised: Recognised,
    pub placement: Option<Placement>,
}

/// The rule by which rows are shared out, and the column that it reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    pub found: FoundRule,
    pub column: ColumnNames,
}

/// Everything that a configuration is written from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    pub addresses: Addresses,
    pub sources: Vec<FoundSource>,
    pub proposed: Vec<Proposed>,
    /// Families whose rows are neither users nor devices.
    pub others: Vec<Family>,
}
