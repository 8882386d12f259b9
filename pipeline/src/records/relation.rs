//! Rows of the relation index of payment documents.

use anabranch_schemas::flux::id::{DIGITS, FluxId};
use anabranch_schemas::shard::ShardId;

/// A payment document as one source table has it. While a document is moved, or when it is doubled, several tables
/// have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelationRow {
    pub id: FluxId,
    /// The source table that claims the document.
    pub shard: ShardId,
    /// The parent's identifier as the source has it, which may be any bytes; `None` = the document follows nothing.
    pub parent: Option<Box<[u8]>>,
    pub amount: Option<Box<[u8]>>,
    pub created: Option<Box<[u8]>>,
}

impl RelationRow {
    /// Returns the position of the row in the order of identifiers, and of shards below that.
    pub fn order(&self) -> ([u8; DIGITS], ShardId) {
        (self.id.digits(), self.shard)
    }
}
