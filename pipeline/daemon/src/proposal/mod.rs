//! A configuration that fits what servers have: which tables are users or devices, by which pattern, in which columns,
//! and by which rule the application shares them out.
//!
//! `families.rs`, `recognised.rs` and `placement.rs` decide, `text.rs` writes; none of them asks a server. What cannot
//! be known stands in the text as a comment.

pub mod families;
pub mod placement;
pub mod recognised;
mod text;

use families::Family;
use placement::FoundRule;
use recognised::Recognised;

/// How servers are reached: each address is in an environment variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    pub log: String,
    pub target: String,
    /// Trusted by every server; `None` = as the schemes say.
    pub ca_file: Option<String>,
}

/// A source as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundSource {
    pub name: String,
    pub variable: String,
    /// What it is: kind and version.
    pub server: String,
    /// Settings of its binlog, and their values.
    pub settings: Vec<(String, String)>,
}

/// Tables that can be captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposed {
    pub family: Family,
    pub recognised: Recognised,
    pub placement: Option<Placement>,
}

/// By which rule rows are shared out, and the column that it reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    pub found: FoundRule,
    pub column: String,
}

/// All that a configuration is written from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    pub addresses: Addresses,
    pub sources: Vec<FoundSource>,
    pub proposed: Vec<Proposed>,
    /// Families whose rows are neither users nor devices.
    pub others: Vec<Family>,
}
